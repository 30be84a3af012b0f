//! The local store: exact counts with concurrent requests, all limits or none, bounded memory, and states that survive
//! changed parameters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::algorithm::{AlgorithmName, Arguments, Completion, Decision, Denial, Rule, Value};
use tollgate::charge::{Charge, Charged, Enforcement, Mode, Refund, RuleRef};
use tollgate::store::floors::charge_local;
use tollgate::store::local::Binding;
use tollgate::store::{LimitSpec, LocalStore};
use tollgate::units::{LimitKey, Nanos, Rate};

pub(crate) const START: Nanos = Nanos::from_secs(1_000_000);

fn gcra(per_second: u64, burst: u64) -> Rule {
    let mut arguments = Arguments::default();
    arguments.set("rate", Value::Rate(Rate::new(per_second, Nanos::SECOND).unwrap()));
    arguments.set("burst", Value::Whole(burst));
    AlgorithmName::Gcra.build(&arguments).unwrap()
}

pub(crate) fn spec<'a>(name: &'a str, rules: &'a [Rule], max_keys: u64) -> LimitSpec<'a> {
    LimitSpec {
        name,
        algorithm: AlgorithmName::Gcra,
        mode: Mode::Sticky,
        key_kind: 0,
        is_reset: false,
        rules,
        max_keys,
        may_refund: false,
    }
}

fn charge(limit: usize, key: u128) -> Charge {
    Charge::new(limit, RuleRef::Listed(0), spread(key), 1, Enforcement::DEFAULT)
}

/// A key with a small number spread over all 128 bits, like a hash.
pub(crate) fn spread(key: u128) -> LimitKey {
    LimitKey((key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

fn mannered(limit: usize, key: u128, enforcement: Enforcement) -> Charge {
    Charge { enforcement, ..charge(limit, key) }
}

const WATCHES: Enforcement = Enforcement { enforces: false, ..Enforcement::DEFAULT };
const ASKS: Enforcement = Enforcement { consumes: false, ..Enforcement::DEFAULT };
const COUNTS_DENIED: Enforcement = Enforcement { counts_denied: true, ..Enforcement::DEFAULT };

fn remaining(store: &LocalStore, binding: &Binding, limit: usize, key: u128) -> Option<u64> {
    let asked = store.charge(binding, &mut [mannered(limit, key, ASKS)], START);
    asked[0].headroom.remaining
}

fn admitted(charged: &[Charged]) -> bool {
    charged.iter().all(|charged| charged.decision.is_admitted())
}

fn one(store: &LocalStore, binding: &Binding, key: u128, now: Nanos) -> bool {
    admitted(&store.charge(binding, &mut [charge(0, key)], now))
}

#[test]
fn sixty_four_threads_are_admitted_exactly_the_burst() {
    let store = LocalStore::new();
    let rules = [gcra(1, 1000)];
    let binding = store.bind(&[spec("l", &rules, 10)]);
    let count = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..64 {
            scope.spawn(|| {
                let mine = (0..100).filter(|_| one(&store, &binding, 7, START)).count();
                count.fetch_add(mine as u64, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(count.load(Ordering::Relaxed), 1000);
}

#[test]
fn a_request_under_several_limits_is_charged_by_all_or_by_none() {
    let store = LocalStore::new();
    let (wide, narrow) = ([gcra(1, 100)], [gcra(1, 3)]);
    let binding = store.bind(&[spec("wide", &wide, 10), spec("narrow", &narrow, 10)]);
    let both = [charge(0, 1), charge(1, 2)];
    let passed = (0..10).filter(|_| admitted(&store.charge(&binding, &mut both.clone(), START))).count();
    assert_eq!(passed, 3);
    let left = (0..200).filter(|_| admitted(&store.charge(&binding, &mut [both[0].clone()], START))).count();
    assert_eq!(left, 97, "the denied requests took nothing from the wide limit");
}

#[test]
fn requests_that_name_limits_in_any_order_do_not_lock_each_other_up() {
    let store = LocalStore::new();
    let rules = [gcra(1, 1_000_000)];
    let binding = store.bind(&[spec("a", &rules, 1000), spec("b", &rules, 1000)]);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (store, binding) = (&store, &binding);
            scope.spawn(move || {
                for round in 0..5_000_u128 {
                    let mut pair = match thread % 2 {
                        0 => [charge(0, round % 7), charge(1, round % 5)],
                        _ => [charge(1, round % 7), charge(0, round % 5)],
                    };
                    assert!(admitted(&store.charge(binding, &mut pair, START)));
                }
            });
        }
    });
}

#[test]
fn a_full_table_sends_new_keys_to_one_bucket_and_never_refills_a_spent_one() {
    let store = LocalStore::new();
    let rules = [gcra(1, 2)];
    let binding = store.bind(&[spec("l", &rules, 100)]);
    for key in 0..100 {
        assert!(one(&store, &binding, key, START) && one(&store, &binding, key, START));
    }
    let strangers = (1000..3000).filter(|key| one(&store, &binding, *key, START)).count();
    assert_eq!(strangers, 2, "all new keys share one bucket");
    assert!((0..100).all(|key| !one(&store, &binding, key, START)), "spent keys stay spent");
    let usage = &store.usage(&binding)[0];
    assert_eq!((usage.keys, usage.overflowed), (101, 2000));

    let later = START.saturating_add(Nanos::from_secs(10));
    assert!(one(&store, &binding, 5000, later), "expired keys make room");
    assert!(store.usage(&binding)[0].evicted_expired > 0);
}

#[test]
fn several_charges_of_one_limit_add_up_also_in_the_common_bucket() {
    let store = LocalStore::new();
    let rules = [gcra(1, 5)];
    let binding = store.bind(&[spec("l", &rules, 2)]);
    let charged = |costs: &[(u128, u64)]| {
        let batch = costs.iter().map(|(key, cost)| Charge { cost: *cost, ..charge(0, *key) });
        admitted(&store.charge(&binding, &mut batch.collect::<Vec<_>>(), START))
    };
    let left = |key| remaining(&store, &binding, 0, key);
    assert!(!charged(&[(1, 4), (2, 6)]));
    assert_eq!((left(1), left(2)), (Some(5), Some(5)), "all or none");
    assert!(charged(&[(1, 2), (2, 1), (1, 2)]));
    assert_eq!((left(1), left(2)), (Some(1), Some(4)));
    assert!(!charged(&[(2, 2), (2, 3)]));
    // the table is full, so new keys share a bucket
    assert!(charged(&[(3, 2), (4, 2)]));
    assert!(!charged(&[(5, 1), (6, 1)]));
    assert!(charged(&[(7, 1)]) && !charged(&[(8, 1)]));
}

#[test]
fn sweeping_forgets_what_is_as_good_as_new_and_nothing_else() {
    let store = LocalStore::new();
    let rules = [gcra(1, 10)];
    let binding = store.bind(&[spec("l", &rules, 10_000)]);
    for key in 0..1000 {
        one(&store, &binding, key, START);
    }
    let soon = START.saturating_add(Nanos::new(999_999_999));
    (0..8).for_each(|part| store.sweep(part, 8, soon));
    assert_eq!(store.usage(&binding)[0].keys, 1000);
    let then = START.saturating_add(Nanos::SECOND);
    (0..8).for_each(|part| store.sweep(part, 8, then));
    assert_eq!(store.usage(&binding)[0].keys, 0);
}

#[test]
fn a_changed_limit_finds_its_states_again() {
    let store = LocalStore::new();
    let (before, after) = ([gcra(1, 10)], [gcra(1, 20)]);
    let old = store.bind(&[spec("l", &before, 10)]);
    (0..10).for_each(|_| assert!(one(&store, &old, 1, START)));
    let new = store.bind(&[spec("l", &after, 10)]);
    assert!(!one(&store, &new, 1, START), "a spent bucket stays spent");
    assert!(one(&store, &new, 1, START.saturating_add(Nanos::SECOND)));
    assert!(
        !one(&store, &old, 1, START.saturating_add(Nanos::SECOND)),
        "also for requests that began under the old rules"
    );
}

#[test]
fn a_charge_that_is_taken_back_can_be_made_again() {
    let store = LocalStore::new();
    let rules = [gcra(1, 1)];
    let binding = store.bind(&[spec("l", &rules, 10)]);
    let mut batch = [charge(0, 1)];
    assert!(admitted(&store.charge(&binding, &mut batch, START)));
    assert!(!admitted(&store.charge(&binding, &mut batch, START)));
    store.refund(&binding, &[Refund { charge: batch[0].clone(), full_at: START.saturating_add(Nanos::SECOND) }], START);
    assert!(admitted(&store.charge(&binding, &mut batch, START)));
}

#[test]
fn a_denial_says_when_to_come_back_and_is_true_to_the_nanosecond() {
    let store = LocalStore::new();
    let rules = [gcra(3, 1)];
    let binding = store.bind(&[spec("l", &rules, 10)]);
    assert!(one(&store, &binding, 1, START));
    let charged = store.charge(&binding, &mut [charge(0, 1)], START);
    assert_eq!(charged[0].decision, Decision::later(Nanos::new(333_333_334)));
    assert!(!one(&store, &binding, 1, START.saturating_add(Nanos::new(333_333_333))));
    assert!(one(&store, &binding, 1, START.saturating_add(Nanos::new(333_333_334))));
}

#[test]
fn a_slot_taken_from_the_common_bucket_is_given_back_there() {
    let store = LocalStore::new();
    let mut arguments = Arguments::default();
    arguments.set("limit", Value::Whole(1));
    let rules = [AlgorithmName::Concurrency.build(&arguments).unwrap()];
    let spec = LimitSpec { rules: &rules, algorithm: AlgorithmName::Concurrency, ..spec("l", &[], 1) };
    let binding = store.bind(&[spec]);
    let end = Completion { latency: Nanos::SECOND, measured: true };
    for round in 0..10 {
        let (mut known, mut stranger) = ([charge(0, round)], [charge(0, 100 + round)]);
        assert!(admitted(&store.charge(&binding, &mut known, START)), "round {round}");
        assert!(admitted(&store.charge(&binding, &mut stranger, START)), "round {round}");
        store.complete(&binding, &known, end, START);
        store.complete(&binding, &stranger, end, START);
        assert_eq!(store.usage(&binding)[0].keys, 0);
    }
}

#[test]
fn a_limit_that_comes_back_finds_its_states_again() {
    let store = LocalStore::new();
    let (rules, later) = ([gcra(1, 10)], START.saturating_add(Nanos::SECOND));
    let spent = |binding: &Binding| !one(&store, binding, 1, START);
    let first = store.bind(&[spec("l", &rules, 10)]);
    (0..10).for_each(|_| assert!(one(&store, &first, 1, START)));
    drop(first);
    drop(store.bind(&[spec("other", &rules, 10)]));
    assert!(!spent(&store.bind(&[LimitSpec { key_kind: 1, ..spec("l", &rules, 10) }])), "other keys are other callers");
    store.sweep(0, 1, later);
    assert!(spent(&store.bind(&[spec("l", &rules, 10)])));
}

#[test]
fn a_limit_that_starts_afresh_forgets_and_counts_on() {
    let store = LocalStore::new();
    let rules = [gcra(1, 1)];
    let before = store.bind(&[spec("l", &rules, 1)]);
    assert!(one(&store, &before, 1, START) && !one(&store, &before, 1, START));
    assert!(one(&store, &before, 2, START), "the common bucket");
    let after = store.bind(&[LimitSpec { is_reset: true, ..spec("l", &rules, 1) }]);
    assert_eq!((store.usage(&after)[0].keys, store.usage(&after)[0].overflowed), (0, 1));
    assert!(one(&store, &after, 1, START));
    assert!(!one(&store, &before, 1, START), "requests that began before are charged where they began");
    let third = store.bind(&[spec("l", &rules, 1)]);
    assert!(!one(&store, &third, 1, START), "once");
    drop(before);
    store.sweep(0, 1, START);
    assert_eq!(store.tables(), 1);
}

#[test]
fn tables_of_limits_that_are_gone_go_when_they_are_empty_or_too_many() {
    let store = LocalStore::new();
    let rules = [gcra(1, 2)];
    let mut most = 0;
    for round in 0..1000 {
        let binding = store.bind(&[spec(&format!("l{round}"), &rules, 10), spec("kept", &rules, 10)]);
        assert!(one(&store, &binding, 1, START));
        assert_eq!(admitted(&store.charge(&binding, &mut [charge(1, 1)], START)), round < 2, "round {round}");
        most = most.max(store.tables());
    }
    assert!((10..100).contains(&most), "{most}");
    let binding = store.bind(&[spec("kept", &rules, 10)]);
    store.sweep(0, 1, START.saturating_add(Nanos::from_secs(10)));
    store.sweep(0, 1, START.saturating_add(Nanos::from_secs(10)));
    assert_eq!(store.tables(), 1);
    assert!(one(&store, &binding, 1, START.saturating_add(Nanos::from_secs(10))));
}

#[test]
fn a_limit_that_only_watches_denies_nobody_and_is_charged_what_passes() {
    let store = LocalStore::new();
    let rules = [gcra(1, 2)];
    let binding = store.bind(&[spec("watching", &rules, 10), spec("binding", &rules, 10)]);
    let batch = || [mannered(0, 1, WATCHES), charge(1, 1)];
    assert!(one_of(&store, &binding, &mut batch()).iter().all(|decision| decision.is_admitted()));
    // another request spends the limit that only watches
    assert!(one(&store, &binding, 1, START));
    let decisions = one_of(&store, &binding, &mut batch());
    assert_eq!((decisions[0].is_admitted(), decisions[1].is_admitted()), (false, true));
    assert_eq!(remaining(&store, &binding, 1, 1), Some(0), "it passed");
    let refund = Refund { charge: charge(0, 1), full_at: START.saturating_add(Nanos::from_secs(2)) };
    store.refund(&binding, &[refund], START);
    assert!(!admitted(&store.charge(&binding, &mut batch(), START)));
    assert_eq!(remaining(&store, &binding, 0, 1), Some(1), "what did not pass is not charged");
}

fn one_of(store: &LocalStore, binding: &Binding, batch: &mut [Charge]) -> Vec<Decision> {
    store.charge(binding, batch, START).iter().map(|charged| charged.decision).collect()
}

#[test]
fn a_limit_that_is_only_asked_denies_and_takes_nothing() {
    let store = LocalStore::new();
    let rules = [gcra(1, 1)];
    let binding = store.bind(&[spec("asked", &rules, 10), spec("charged", &rules, 10)]);
    for _ in 0..3 {
        assert!(admitted(&store.charge(&binding, &mut [mannered(0, 1, ASKS)], START)));
    }
    assert_eq!(store.usage(&binding)[0].keys, 0);
    assert!(one(&store, &binding, 1, START));
    assert!(!admitted(&store.charge(&binding, &mut [mannered(0, 1, ASKS), charge(1, 1)], START)));
    assert_eq!(remaining(&store, &binding, 1, 1), Some(1));
}

#[test]
fn denied_requests_that_count_take_their_tokens_whoever_denies_them() {
    let store = LocalStore::new();
    let rules = [gcra(1, 2)];
    let binding = store.bind(&[spec("strict", &rules, 10), spec("other", &rules, 10)]);
    let count = |limit| store.charge(&binding, &mut [mannered(limit, 1, COUNTS_DENIED)], START)[0].decision;
    assert!(count(0).is_admitted() && count(0).is_admitted());
    assert_eq!(count(0), Decision::later(Nanos::from_secs(2)), "the denied one counts");
    assert_eq!(count(0), Decision::later(Nanos::from_secs(3)));
    let denied = one_of(&store, &binding, &mut [charge(0, 1), mannered(1, 1, COUNTS_DENIED)]);
    assert_eq!((denied[0].is_admitted(), denied[1].is_admitted()), (false, true));
    assert_eq!((remaining(&store, &binding, 1, 1), count(0)), (Some(1), Decision::later(Nanos::from_secs(4))));
}

#[test]
fn a_client_that_obeys_is_admitted_although_its_denials_count() {
    let store = LocalStore::new();
    let rules = [gcra(1, 5)];
    let binding = store.bind(&[spec("l", &rules, 10)]);
    // with a floor of 3 tokens for others, and without one
    for (key, floor) in [(1, 0), (2, 3)] {
        let (mut now, mut denied) = (START, 0);
        let mut admitted_in_a_row = 0;
        while denied < 3 {
            let mut batch = [Charge { floor, ..mannered(0, key, COUNTS_DENIED) }];
            match charge_local(&store, &binding, &mut batch, now)[0].decision {
                Decision::Deny(Denial::Later { retry_after }) => {
                    assert!(admitted_in_a_row > 0, "floor {floor}: denied again after the wait");
                    (now, denied, admitted_in_a_row) = (now.saturating_add(retry_after), denied + 1, 0);
                }
                Decision::Deny(denial) => panic!("{denial:?}"),
                Decision::Admit { .. } => admitted_in_a_row += 1,
            }
        }
    }
}

#[test]
fn a_client_that_obeys_a_cycle_is_admitted_beside_another_limit() {
    let seconds = |seconds| Value::Duration(Nanos::from_secs(seconds));
    let arguments = [("limit", Value::Whole(10)), ("period", seconds(7)), ("max_wait", seconds(3))].into();
    let (cycle, gcra) = ([AlgorithmName::Cycle.build(&arguments).unwrap()], [gcra(100, 100)]);
    let store = LocalStore::new();
    let cycle = LimitSpec { algorithm: AlgorithmName::Cycle, ..spec("cycle", &cycle, 10) };
    let binding = store.bind(&[cycle, spec("gcra", &gcra, 10)]);
    let ask = |now| store.charge(&binding, &mut [Charge { cost: 15, ..charge(0, 1) }, charge(1, 1)], now)[0].decision;
    // two cycles are needed, and the second one comes soon enough from 4 s on
    assert_eq!(ask(START), Decision::later(Nanos::from_secs(4)));
    assert!(ask(START.saturating_add(Nanos::from_secs(4))).is_admitted());
}

#[test]
fn a_debit_goes_below_nothing_and_a_full_table_leaves_it_to_the_common_bucket() {
    let store = LocalStore::new();
    let rules = [gcra(1, 2)];
    let binding = store.bind(&[spec("l", &rules, 1)]);
    store.debit(&binding, &[Charge { cost: 5, ..charge(0, 1) }], START);
    let asked = || store.charge(&binding, &mut [charge(0, 1)], START)[0].decision;
    assert_eq!(asked(), Decision::later(Nanos::from_secs(4)));
    store.debit(&binding, &[Charge { cost: 5, ..charge(0, 2) }], START);
    assert_eq!(store.usage(&binding)[0].overflowed, 1);
    assert!(!one(&store, &binding, 3, START), "other new keys meet the debt");
}

#[test]
fn a_customer_s_own_parameters_count_on_the_same_state() {
    let store = LocalStore::new();
    let rules = [gcra(1, 2)];
    let binding = store.bind(&[spec("l", &rules, 10)]);
    let own = Arc::new(gcra(1, 4));
    let with_own = || Charge { rule: RuleRef::Own(Arc::clone(&own)), ..charge(0, 1) };
    let admits = |charge: Charge| admitted(&store.charge(&binding, &mut [charge], START));
    assert!(admits(charge(0, 1)));
    // half of the burst is used: two of four
    assert!(admits(with_own()) && admits(with_own()) && !admits(with_own()) && !admits(charge(0, 1)));
}

#[test]
fn a_hundred_thousand_sets_of_parameters_are_told_apart() {
    let store = LocalStore::new();
    let rules: Vec<Rule> = (1..=50_000).map(|burst| gcra(1, burst)).collect();
    let binding = store.bind(&[spec("l", &rules, u64::MAX)]);
    for burst in [1, 2, 49_999, 50_000, 50_001, 100_000] {
        let rule = Arc::new(gcra(1, burst));
        let charge = Charge { rule: RuleRef::Own(rule), cost: burst, ..charge(0, u128::from(burst)) };
        let charged = store.charge(&binding, &mut [charge], START);
        assert_eq!((charged[0].decision, charged[0].headroom.remaining), (Decision::ADMIT, Some(0)));
    }
    (50_001..=100_000).for_each(|burst| {
        let charge = Charge { rule: RuleRef::Own(Arc::new(gcra(1, burst))), ..charge(0, 7) };
        store.charge(&binding, &mut [charge], START);
    });
}
