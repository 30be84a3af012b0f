//! The cost of a decision of each algorithm in the local store, and the bytes per key, compared with a bare lookup in a
//! table with the same locks and shards.
//!
//! `cargo bench --bench algorithms`; the limits are those of `config/algorithms.yaml`.

use std::sync::OnceLock;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion};
use hashbrown::HashTable;
use parking_lot::Mutex;
use tollgate::algorithm::Rule;
use tollgate::charge::{Charge, Enforcement, Mode, RuleRef};
use tollgate::clock::{Clock, SystemClock};
use tollgate::config::{self, WrittenLimit};
use tollgate::store::local::Binding;
use tollgate::store::{LimitSpec, LocalStore};
use tollgate::units::LimitKey;

mod shared;

use shared::Subject;

const SIZES: [(&str, u64); 2] = [("hot key", 1), ("1M keys", 1_000_000)];
const BARE: &str = "bare lookup";

struct InStore {
    store: LocalStore,
    binding: Binding,
    clock: SystemClock,
}

impl InStore {
    fn new(limit: &WrittenLimit, rule: Rule) -> Self {
        let store = LocalStore::new();
        let rules = [rule];
        let spec = LimitSpec {
            name: &limit.name,
            algorithm: limit.algorithm,
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

impl Subject for InStore {
    fn decide(&self, key: u64) -> bool {
        let charge = Charge::new(0, RuleRef::Listed(0), shared::limit_key(key), 1, Enforcement::DEFAULT);
        self.store.charge(&self.binding, &mut [charge], self.clock.now())[0].decision.is_admitted()
    }
}

/// A table of keys and words that decides nothing, but reads the clock like the others.
struct Bare {
    shards: Vec<Mutex<HashTable<(u128, u128)>>>,
    clock: SystemClock,
}

impl Bare {
    fn new() -> Self {
        Self { shards: (0..1024).map(|_| Mutex::default()).collect(), clock: SystemClock::new() }
    }
}

impl Subject for Bare {
    #[expect(clippy::cast_possible_truncation, reason = "halves of a hash")]
    fn decide(&self, key: u64) -> bool {
        let LimitKey(key) = shared::limit_key(key);
        let now = u128::from(self.clock.now().get());
        let mut shard = self.shards[((key >> 64) % 1024) as usize].lock();
        let entry = shard.entry(key as u64, |cell| cell.0 == key, |cell| cell.0 as u64);
        let before = entry.and_modify(|cell| cell.1 = now).or_insert((key, now));
        before.get().1 == now
    }
}

fn limits() -> Vec<WrittenLimit> {
    let text = include_str!("../config/algorithms.yaml");
    config::load_limits(text, "config/algorithms.yaml", &|_| None).expect("the sample is right").limits
}

fn make(name: &str) -> Box<dyn Subject> {
    match limits().into_iter().find(|limit| limit.name == name) {
        Some(limit) => {
            let rule = limit.rule(None).expect("the sample is right").expect("it has no plans");
            Box::new(InStore::new(&limit, rule))
        }
        None => Box::new(Bare::new()),
    }
}

fn decisions(criterion: &mut Criterion, names: &[&str]) {
    for (size, keys) in SIZES {
        let mut group = criterion.benchmark_group(size);
        group.sample_size(10).measurement_time(Duration::from_secs(1)).warm_up_time(Duration::from_millis(300));
        for name in names {
            let subject: OnceLock<Box<dyn Subject>> = OnceLock::new();
            group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
                let subject = subject.get_or_init(|| {
                    let subject = make(name);
                    shared::fill(&*subject, keys);
                    subject
                });
                bencher.iter_custom(|rounds| shared::measure(&**subject, keys, 1, rounds));
            });
        }
        group.finish();
    }
}

fn main() -> std::io::Result<()> {
    if shared::printed_memory(make) {
        return Ok(());
    }
    let limits = limits();
    let names: Vec<&str> = [BARE].into_iter().chain(limits.iter().map(|limit| limit.name.as_str())).collect();
    shared::print_memory_of_each(&names, &[1_000_000])?;
    let mut criterion = Criterion::default().configure_from_args();
    decisions(&mut criterion, &names);
    criterion.final_summary();
    Ok(())
}
