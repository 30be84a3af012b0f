//! The cost of a decision in the local store, compared with `governor`'s keyed limiter on the same work: hash a key, read
//! the clock, decide and charge. One hot key, a million and ten million keys; one thread and two.
//!
//! `cargo bench --bench store` prints the memory per key before the times.

use std::num::NonZeroU32;
use std::sync::OnceLock;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion};
use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tollgate::algorithm::{AlgorithmName, Arguments, Value};
use tollgate::charge::{Charge, Enforcement, Mode, RuleRef};
use tollgate::clock::{Clock, SystemClock};
use tollgate::store::local::Binding;
use tollgate::store::{LimitSpec, LocalStore};
use tollgate::units::{Nanos, Rate};

mod shared;

use shared::Subject;

const SIZES: [(&str, u64); 3] = [("hot key", 1), ("1M keys", 1_000_000), ("10M keys", 10_000_000)];

/// A refill so slow that no key becomes fresh during a measurement.
const BURST: u32 = 1000;

struct Tollgate {
    store: LocalStore,
    binding: Binding,
    clock: SystemClock,
}

impl Tollgate {
    fn new() -> Self {
        let rate = Rate::new(1, Nanos::SECOND).expect("not zero");
        let mut arguments = Arguments::default();
        arguments.set("rate", Value::Rate(rate));
        arguments.set("burst", Value::Whole(BURST.into()));
        let rules = [AlgorithmName::Gcra.build(&arguments).expect("sensible")];
        let store = LocalStore::new();
        let spec = LimitSpec {
            name: "bench",
            algorithm: AlgorithmName::Gcra,
            mode: Mode::Sticky,
            key_kind: 0,
            is_reset: false,
            rules: &rules,
            max_keys: u64::MAX,
            may_refund: false,
        };
        let binding = store.bind(&[spec]);
        Self { store, binding, clock: SystemClock::new() }
    }
}

impl Subject for Tollgate {
    fn decide(&self, key: u64) -> bool {
        let charge = Charge::new(0, RuleRef::Listed(0), shared::limit_key(key), 1, Enforcement::DEFAULT);
        self.store.charge(&self.binding, &mut [charge], self.clock.now())[0].decision.is_admitted()
    }
}

struct Governor(DefaultKeyedRateLimiter<u64>);

impl Governor {
    fn new() -> Self {
        let quota = Quota::per_second(NonZeroU32::MIN).allow_burst(NonZeroU32::new(BURST).expect("not zero"));
        Self(RateLimiter::keyed(quota))
    }
}

impl Subject for Governor {
    fn decide(&self, key: u64) -> bool {
        self.0.check_key(&key).is_ok()
    }
}

fn make(name: &str) -> Box<dyn Subject> {
    match name {
        "governor" => Box::new(Governor::new()),
        _ => Box::new(Tollgate::new()),
    }
}

fn decisions(criterion: &mut Criterion) {
    for (size, keys) in SIZES {
        let mut group = criterion.benchmark_group(size);
        group.sample_size(10).measurement_time(Duration::from_secs(3)).warm_up_time(Duration::from_millis(500));
        for name in ["tollgate", "governor"] {
            let subject: OnceLock<Box<dyn Subject>> = OnceLock::new();
            for threads in [1, 2] {
                group.bench_function(BenchmarkId::new(name, format!("{threads} threads")), |bencher| {
                    let subject = subject.get_or_init(|| {
                        let subject = make(name);
                        shared::fill(&*subject, keys);
                        subject
                    });
                    bencher.iter_custom(|rounds| shared::measure(&**subject, keys, threads, rounds));
                });
            }
        }
        group.finish();
    }
}

fn main() -> std::io::Result<()> {
    if shared::printed_memory(make) {
        return Ok(());
    }
    shared::print_memory_of_each(&["tollgate", "governor"], &[1_000_000, 10_000_000])?;
    let mut criterion = Criterion::default().configure_from_args();
    decisions(&mut criterion);
    criterion.final_summary();
    Ok(())
}
