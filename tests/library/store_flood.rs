//! The memory for keys in the local store, and the effect of a flood of keys. Each test has a process of its own.

use std::process::Command;

use tollgate::algorithm::{AlgorithmName, Arguments, Rule, Value};
use tollgate::charge::{Charge, Enforcement, Mode, RuleRef};
use tollgate::store::local::Binding;
use tollgate::store::{LimitSpec, LocalStore};
use tollgate::units::{LimitKey, Nanos, Rate};

/// With 0 in this variable, the allocator gives back at once what is freed. Otherwise it keeps some of that, for as long as
/// it likes.
const PURGE_DELAY: &str = "MIMALLOC_PURGE_DELAY";
const NOW: Nanos = Nanos::from_secs(1_000_000);
/// A key that has spent its limit before the flood.
const SPENT: u64 = u64::MAX;

fn store(algorithm: AlgorithmName, max_keys: u64) -> (LocalStore, Binding) {
    let mut arguments = Arguments::default();
    match algorithm {
        AlgorithmName::Gcra => {
            arguments.set("rate", Value::Rate(Rate::new(1, Nanos::from_secs(86_400)).unwrap()));
            arguments.set("burst", Value::Whole(1));
        }
        _ => {
            arguments.set("limit", Value::Whole(1));
            arguments.set("window", Value::Duration(Nanos::from_secs(86_400)));
        }
    }
    let rules: [Rule; 1] = [algorithm.build(&arguments).unwrap()];
    let spec = LimitSpec {
        name: "flood",
        algorithm,
        mode: Mode::Sticky,
        key_kind: 0,
        is_reset: false,
        rules: &rules,
        max_keys,
        may_refund: false,
    };
    let store = LocalStore::new();
    let binding = store.bind(&[spec]);
    (store, binding)
}

fn is_admitted(store: &LocalStore, binding: &Binding, key: u64) -> bool {
    // spread like a hash
    let spread = u128::from(key).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    let key = LimitKey(spread ^ (spread >> 64));
    let mut charges = [Charge::new(0, RuleRef::Listed(0), key, 1, Enforcement::DEFAULT)];
    store.charge(binding, &mut charges, NOW)[0].decision.is_admitted()
}

/// The memory that this process has allocated and touched, in bytes. Pages of its program, which the system drops and reads
/// again as it likes, do not count.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    resident.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Fills a table with `kept` keys, then sends `more` other keys. Returns the memory of the first keys and that of all, in
/// bytes.
fn flood(algorithm: AlgorithmName, kept: u64, more: u64) -> (u64, u64) {
    let (store, binding) = store(algorithm, kept);
    let at_first = memory();
    assert!(is_admitted(&store, &binding, SPENT));
    let admitted = (1..kept).filter(|key| is_admitted(&store, &binding, *key)).count() as u64;
    assert_eq!(admitted, kept - 1);
    let full = memory().saturating_sub(at_first);
    let admitted = (kept..kept + more).filter(|key| is_admitted(&store, &binding, *key)).count();
    assert_eq!(admitted, 1, "keys without a place share one bucket");
    let flooded = memory().saturating_sub(at_first);
    assert!(!is_admitted(&store, &binding, SPENT), "a spent key stays spent");
    assert!((1..kept).step_by(997).all(|key| !is_admitted(&store, &binding, key)));
    (full, flooded)
}

/// Floods a table in a process that runs the test with the name `test` alone. A key may take `most` bytes; in a small table, what
/// the store takes beside its buckets counts too.
fn hold(test: &str, (algorithm, most): (AlgorithmName, u64), kept: u64, more: u64) {
    if std::env::var_os(PURGE_DELAY).is_none() {
        let test = format!("store_flood::{test}");
        let mut alone = Command::new(std::env::current_exe().unwrap());
        let alone = alone.args(["--exact", "--include-ignored", "--nocapture", &test]).env(PURGE_DELAY, "0");
        assert!(alone.status().unwrap().success(), "{test} in a process of its own");
        return;
    }
    // the system would make huge pages of pages that are partly used, at a time of its own
    rustix::thread::disable_transparent_huge_pages(true).unwrap();
    let (full, flooded) = flood(algorithm, kept, more);
    say(&format!(
        "{algorithm:?}: {kept} keys take {} MiB, {} bytes each; after {more} more it is {} MiB",
        full >> 20,
        full / kept,
        flooded >> 20
    ));
    assert!(full / kept <= most, "{algorithm:?}: {} bytes a key", full / kept);
    assert!(flooded <= full + full / 10, "{algorithm:?}: {full} bytes, then {flooded}");
}

#[expect(clippy::print_stderr, reason = "figures for whoever runs the tests")]
fn say(text: &str) {
    eprintln!("{text}");
}

#[test]
fn a_flood_of_keys_takes_no_more_memory_than_the_table_may_hold() {
    let test = "a_flood_of_keys_takes_no_more_memory_than_the_table_may_hold";
    hold(test, (AlgorithmName::Gcra, 45), 300_000, 1_200_000);
}

#[test]
fn a_flood_of_keys_with_windows_takes_no_more_memory_than_the_table_may_hold() {
    let test = "a_flood_of_keys_with_windows_takes_no_more_memory_than_the_table_may_hold";
    hold(test, (AlgorithmName::FixedWindow, 100), 300_000, 1_200_000);
}

/// `cargo test --release --test library -- --ignored --nocapture store_flood`
#[test]
#[ignore = "takes half a gigabyte"]
fn ten_million_keys_take_what_is_said_and_ten_million_more_take_nothing() {
    let test = "ten_million_keys_take_what_is_said_and_ten_million_more_take_nothing";
    hold(test, (AlgorithmName::Gcra, 30), 10_000_000, 10_000_000);
}
