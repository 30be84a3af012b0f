//! The cost of a snapshot of a million keys, for the writer and for requests.

use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollgate::algorithm::{AlgorithmName, Rule, Value};
use tollgate::charge::{Charge, Enforcement, Mode, RuleRef};
use tollgate::clock::{Clock, SystemClock};
use tollgate::store::local::Binding;
use tollgate::store::{LimitSpec, LocalStore, SnapshotHead};
use tollgate::units::{LimitKey, Nanos, Rate};

const KEYS: u64 = 1_000_000;

fn charge(key: u64) -> [Charge; 1] {
    let key = LimitKey((u128::from(key) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
    [Charge::new(0, RuleRef::Listed(0), key, 1, Enforcement::DEFAULT)]
}

fn bind(store: &LocalStore, rules: &[Rule]) -> Binding {
    let algorithm = AlgorithmName::Gcra;
    let mode = Mode::default();
    store.bind(&[LimitSpec {
        name: "l",
        algorithm,
        mode,
        key_kind: 0,
        is_reset: false,
        rules,
        max_keys: KEYS,
        may_refund: false,
    }])
}

/// The durations of charges while `work` runs, sorted.
fn charges_beside(store: &LocalStore, binding: &Binding, clock: &SystemClock, work: impl FnOnce()) -> Vec<Nanos> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let charging = scope.spawn(|| {
            let mut times = Vec::new();
            for key in (0..KEYS).cycle() {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let began = clock.now();
                store.charge(binding, &mut charge(key), began);
                times.push(clock.now().saturating_sub(began));
            }
            times.sort_unstable();
            times
        });
        work();
        over.store(true, Ordering::Relaxed);
        charging.join().unwrap()
    })
}

/// `cargo test --release --test library -- --ignored --nocapture` prints the figures.
#[test]
#[ignore = "its figures mean something on an idle machine only"]
#[expect(clippy::print_stderr, reason = "figures for whoever runs it")]
fn a_million_keys_are_written_beside_charges() {
    let clock = SystemClock::new();
    let rate = Value::Rate(Rate::new(1, Nanos::from_secs(3600)).unwrap());
    let rules = [AlgorithmName::Gcra.build(&[("rate", rate), ("burst", Value::Whole(1_000_000))].into()).unwrap()];
    let store = LocalStore::new();
    let binding = bind(&store, &rules);
    for key in 0..KEYS {
        store.charge(&binding, &mut charge(key), clock.now());
    }
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("million.state");
    let write = || {
        let began = clock.now();
        let file = File::create(&path).unwrap();
        let head = SnapshotHead { seed: [0; 16], at: began };
        let written = store.write_snapshot(&head, BufWriter::with_capacity(1 << 20, &file)).unwrap();
        let encoded = clock.now().saturating_sub(began);
        file.sync_all().unwrap();
        (written, encoded, clock.now().saturating_sub(began))
    };
    let told = |name: &str, times: &[Nanos]| {
        let at = |per_million: usize| times[(times.len() * per_million / 1_000_000).min(times.len() - 1)];
        eprintln!(
            "charges {name}: {} of them; median {}, p99 {}, p99.9 {}, p99.99 {}, longest {}",
            times.len(),
            at(500_000),
            at(990_000),
            at(999_000),
            at(999_900),
            at(1_000_000)
        );
    };
    let pause = || std::thread::park_timeout(Duration::from_secs(2));
    told("alone", &charges_beside(&store, &binding, &clock, pause));
    for _ in 0..3 {
        let mut outcome = None;
        let times = charges_beside(&store, &binding, &clock, || outcome = Some(write()));
        let (written, encoded, synced) = outcome.unwrap();
        eprintln!("{written:?}: written in {encoded}, on disk after {synced}");
        told("beside it", &times);
    }
    let began = clock.now();
    let restored = LocalStore::read_snapshot(BufReader::new(File::open(&path).unwrap()), clock.now()).unwrap();
    eprintln!("{} keys restored in {}", restored.keys, clock.now().saturating_sub(began));
    assert_eq!(restored.keys, KEYS);
    std::fs::remove_file(path).unwrap();
}
