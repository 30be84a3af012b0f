use jiff::tz::TimeZoneDatabase;
use proptest::prelude::*;

use super::*;
use crate::algorithm::{AlgorithmName, Arguments, MAX_WAIT, ParameterKind, Rule, Value};
use crate::charge::{Charge, Enforcement, Mode, RuleRef};
use crate::store::local::Binding;
use crate::units::{LimitKey, Rate};

const START: Nanos = Nanos::from_secs(1_700_000_000);
const HEAD: SnapshotHead = SnapshotHead { seed: [7; 16], at: START };
/// The snapshot of [`everything`] in version 3. If this program cannot read it any more, increment the version.
const GOLDEN: &[u8] = include_bytes!("../../../../tests/fixtures/state/version-3.state");

pub(in crate::store::local) fn at(seconds: u64) -> Nanos {
    START.saturating_add(Nanos::from_secs(seconds))
}

/// A rule of any algorithm, in canonical form: a few tokens, a minute or so.
pub(in crate::store::local) fn rule(algorithm: AlgorithmName) -> Rule {
    let mut arguments = Arguments::default();
    for parameter in algorithm.parameters() {
        let value = match (parameter.name, parameter.kind) {
            ("min_gap" | "target", _) => continue,
            (_, ParameterKind::Rate) => Value::Rate(Rate::new(7, Nanos::from_secs(60)).unwrap()),
            ("delay_after", _) => Value::Whole(1),
            (_, ParameterKind::Whole) => Value::Whole(5),
            (_, ParameterKind::Decimal) => Value::Decimal(5.5),
            ("window", ParameterKind::DurationOr(words)) => Value::Choice(words.first().unwrap()),
            ("align", _) => Value::Choice("calendar"),
            (_, ParameterKind::Duration | ParameterKind::DurationOr(_)) => Value::Duration(Nanos::from_secs(61)),
            (_, ParameterKind::Flag) => Value::Flag(true),
            (_, ParameterKind::Choice(words)) => Value::Choice(words.last().unwrap()),
            (_, ParameterKind::TimeZone) => Value::TimeZone(TimeZoneDatabase::bundled().get("Asia/Kathmandu").unwrap()),
        };
        arguments.set(parameter.name, value);
    }
    arguments.set(MAX_WAIT, Value::Duration(Nanos::from_secs(20)));
    algorithm.build(&arguments).unwrap().canonical()
}

fn gcra(per_hour: u64, burst: u64) -> Rule {
    let rate = Value::Rate(Rate::new(per_hour, Nanos::from_secs(3600)).unwrap());
    AlgorithmName::Gcra.build(&[("rate", rate), ("burst", Value::Whole(burst))].into()).unwrap()
}

pub(in crate::store::local) fn spec(rules: &[Rule]) -> LimitSpec<'_> {
    let algorithm = rules[0].name();
    let mode = Mode::default();
    LimitSpec {
        name: algorithm.as_str(),
        algorithm,
        mode,
        key_kind: 9,
        is_reset: false,
        rules,
        max_keys: 100_000,
        may_refund: false,
    }
}

fn charge(limit: usize, key: u64) -> Charge {
    let key = LimitKey((u128::from(key) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
    Charge::new(limit, RuleRef::Listed(0), key, 1, Enforcement::DEFAULT)
}

fn written(store: &LocalStore) -> Vec<u8> {
    let mut bytes = Vec::new();
    let written = store.write_snapshot(&HEAD, &mut bytes).unwrap();
    assert_eq!(written.bytes, bytes.len() as u64);
    bytes
}

fn read(bytes: &[u8]) -> Result<Restored, SnapshotError> {
    LocalStore::read_snapshot(bytes, START)
}

fn bound(store: &LocalStore, rules: &[Rule]) -> Binding {
    let specs: Vec<LimitSpec<'_>> = rules.iter().map(|rule| spec(std::slice::from_ref(rule))).collect();
    store.bind(&specs)
}

fn all_rules() -> Vec<Rule> {
    AlgorithmName::ALL.iter().copied().filter(|name| name.canonical() == *name).map(rule).collect()
}

/// One key under every algorithm.
fn everything() -> LocalStore {
    let store = LocalStore::new();
    let rules = all_rules();
    let binding = bound(&store, &rules);
    for (limit, cost) in (0..rules.len()).flat_map(|limit| [(limit, 1), (limit, 2)]) {
        store.charge(&binding, &mut [Charge { cost, ..charge(limit, 1) }], START);
    }
    store
}

/// One key under one algorithm: every way to spoil it is soon tried.
fn small() -> Vec<u8> {
    let store = LocalStore::new();
    let binding = bound(&store, &[gcra(1, 2)]);
    store.charge(&binding, &mut [charge(0, 1)], START);
    written(&store)
}

#[test]
fn every_algorithm_goes_on_where_it_was() {
    let (store, rules) = (everything(), all_rules());
    let restored = read(&written(&store)).unwrap();
    let holding = rules.iter().filter(|rule| rule.holds_slots()).count() as u64;
    assert_eq!((restored.keys, restored.unknown), (rules.len() as u64 - holding, 0));
    assert_eq!(restored.head.seed, HEAD.seed);
    let (before, after) = (bound(&store, &rules), bound(&restored.store, &rules));
    for (limit, rule) in rules.iter().enumerate().filter(|(_, rule)| !rule.holds_slots()) {
        for second in [0, 1, 9, 40] {
            let ask = |store: &LocalStore, binding| store.charge(binding, &mut [charge(limit, 1)], at(second));
            assert_eq!(ask(&store, &before), ask(&restored.store, &after), "{} at {second}", rule.name().as_str());
        }
    }
}

#[test]
fn slots_of_running_requests_are_forgotten() {
    let restored = read(&written(&everything())).unwrap().store;
    let rules: Vec<Rule> = all_rules().into_iter().filter(Rule::holds_slots).collect();
    let binding = bound(&restored, &rules);
    assert!(!rules.is_empty());
    assert!(restored.usage(&binding).iter().all(|usage| usage.keys == 0));
}

#[test]
fn a_snapshot_of_an_earlier_program_is_read() {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write("tests/fixtures/state/version-3.state", written(&everything())).unwrap();
        return;
    }
    let restored = read(GOLDEN).unwrap();
    assert_eq!(restored.unknown, 0);
    assert_eq!(written(&restored.store), GOLDEN, "it is written in another way");
    assert_eq!(written(&everything()), GOLDEN, "it means something else");
}

#[test]
fn many_keys_are_all_there() {
    const KEYS: u64 = 20_000;
    let store = LocalStore::new();
    let rules = [gcra(1, 2)];
    let binding = bound(&store, &rules);
    for key in 0..KEYS {
        store.charge(&binding, &mut [Charge { cost: 1 + key % 2, ..charge(0, key) }], START);
    }
    let restored = read(&written(&store)).unwrap();
    assert_eq!(restored.keys, KEYS);
    let binding = bound(&restored.store, &rules);
    assert_eq!(restored.store.usage(&binding)[0].keys, KEYS);
    for key in 0..KEYS {
        let charged = restored.store.charge(&binding, &mut [charge(0, key)], START);
        assert_eq!(charged[0].decision.is_admitted(), key % 2 == 0, "{key}");
    }
}

#[test]
fn other_parameters_take_over_by_their_rule() {
    let store = LocalStore::new();
    let binding = bound(&store, &[gcra(1, 2)]);
    store.charge(&binding, &mut [Charge { cost: 2, ..charge(0, 1) }], START);
    let restored = read(&written(&store)).unwrap().store;
    // under the new parameters, the key has no token left now, and has one again after an hour
    let rules = [gcra(10, 10)];
    assert!(restored.was_bound_otherwise(&spec(&rules)));
    let binding = bound(&restored, &rules);
    assert!(!restored.was_bound_otherwise(&spec(&rules)));
    let admitted = |second| {
        let charged = restored.charge(&binding, &mut [charge(0, 1)], at(second));
        charged[0].decision.is_admitted()
    };
    assert!(!admitted(0));
    assert!(admitted(3600));
}

#[test]
fn the_same_parameters_are_known_as_the_same() {
    let restored = read(&written(&everything())).unwrap().store;
    for rule in all_rules().iter().filter(|rule| !rule.holds_slots()) {
        let rules = std::slice::from_ref(rule);
        assert!(!restored.was_bound_otherwise(&spec(rules)), "{}", rule.name().as_str());
    }
}

#[test]
fn customers_own_parameters_come_back() {
    let store = LocalStore::new();
    let rules = [gcra(1, 2)];
    let binding = bound(&store, &rules);
    let own = |key| Charge { rule: RuleRef::Own(Arc::new(gcra(1, 1))), ..charge(0, key) };
    store.charge(&binding, &mut [own(1)], START);
    let restored = read(&written(&store)).unwrap();
    assert_eq!((restored.keys, restored.unknown), (1, 0));
    let binding = bound(&restored.store, &rules);
    assert!(!restored.store.was_bound_otherwise(&spec(&rules)), "they are not the configuration's");
    assert!(!restored.store.charge(&binding, &mut [own(1)], START)[0].decision.is_admitted());
}

#[test]
fn parameters_of_another_program_are_unknown() {
    let known = Parameters::of(&gcra(1, 2));
    assert_eq!(known.rule(AlgorithmName::Gcra), Some(gcra(1, 2)));
    assert_eq!(known.rule(AlgorithmName::LeakyBucket), None);
}

#[test]
fn a_snapshot_cut_short_is_refused_at_every_length() {
    let snapshot = small();
    for length in 0..snapshot.len() {
        let refused = read(&snapshot[..length]).err().unwrap();
        assert!(matches!(refused, SnapshotError::CutShort), "{length}: {refused}");
    }
}

#[test]
fn a_snapshot_with_any_bit_flipped_is_refused() {
    let snapshot = small();
    for (position, bit) in (0..snapshot.len()).flat_map(|position| (0..8).map(move |bit| (position, bit))) {
        let mut bytes = snapshot.clone();
        bytes[position] ^= 1 << bit;
        assert!(read(&bytes).is_err(), "bit {bit} of byte {position}");
    }
}

#[test]
fn other_versions_other_files_and_the_future_are_refused() {
    let mut other = GOLDEN.to_vec();
    other[MARK.len()] = VERSION - 1;
    assert!(matches!(read(&other), Err(SnapshotError::Version(found)) if found == VERSION - 1));
    assert!(matches!(read(b"limits: {}\nroutes: []\n"), Err(SnapshotError::Foreign)));
    let early = LocalStore::read_snapshot(GOLDEN, START.saturating_sub(Nanos::SECOND));
    assert!(matches!(early, Err(SnapshotError::Future(ahead)) if ahead == Nanos::SECOND));
}

proptest! {
    #[test]
    fn anything_at_all_is_refused_without_a_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(read(&bytes).is_err());
        bytes.splice(0..0, GOLDEN[..16].iter().copied());
        prop_assert!(read(&bytes).is_err());
    }

    /// Reading takes no more memory than the input has bytes, even if the input looks like a snapshot.
    #[test]
    fn damage_that_is_not_seen_breaks_nothing(position in 16..GOLDEN.len() - 16, byte in any::<u8>()) {
        let mut bytes = GOLDEN[..GOLDEN.len() - 16].to_vec();
        bytes[position] = byte;
        let mut hasher = SipHasher13::new();
        hasher.write(&bytes);
        bytes.extend(hasher.finish128().as_bytes());
        if let Ok(restored) = read(&bytes) {
            let binding = bound(&restored.store, &all_rules());
            for limit in 0..all_rules().len() {
                restored.store.charge(&binding, &mut [charge(limit, 1)], at(5));
            }
            restored.store.sweep(0, 1, at(1_000_000));
        }
    }
}

#[test]
fn parameters_that_no_state_was_written_under_are_left_out() {
    let store = LocalStore::new();
    let binding = bound(&store, &[gcra(3600, 9)]);
    let charge_under = |burst: u64, key: u64, now: Nanos| {
        let rule = RuleRef::Own(Arc::new(gcra(3600, burst)));
        store.charge(&binding, &mut [Charge { rule, ..charge(0, key) }], now);
    };
    charge_under(2, 1, START);
    let before = written(&store).len();
    (3..200).for_each(|burst| charge_under(burst, burst, START));
    store.sweep(0, 1, at(10));
    charge_under(300, 1, at(10));
    let bytes = written(&store);
    assert!(bytes.len() <= before + 16, "{} bytes after {before}", bytes.len());
    let restored = read(&bytes).unwrap();
    assert_eq!((restored.keys, restored.unknown), (1, 0));
    assert!(!restored.store.was_bound_otherwise(&spec(&[gcra(3600, 9)])));
    let binding = bound(&restored.store, &[gcra(3600, 9)]);
    let charged = restored.store.charge(&binding, &mut [charge(0, 1)], at(10));
    assert_eq!(charged[0].headroom.remaining, Some(7));
}
