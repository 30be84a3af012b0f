//! The states that a gateway remembers, which stand in for charges that Redis has lost.

use tollgate::algorithm::{AlgorithmName, Decision, Evictability, Rule, State};
use tollgate::store::redis::{Call, CallArgument, KeyState, SharedRule};
use tollgate::units::Nanos;

use crate::algorithms::limits::{Domain, random_limit};
use crate::algorithms::random::Random;
use crate::redis_link::server::Server;
use crate::redis_rules::compare;
use crate::redis_rules::script::Scripted;
use crate::redis_rules::slots::{START, after, bucket, call, shared};

#[test]
fn the_state_that_a_gateway_remembers_stands_in_for_one_that_redis_has_forgotten() {
    let server = Server::start();
    let mut redis = Scripted::new(server.connect());
    let rule = shared("gcra rate=7/13s burst=3");
    let fresh = bucket(&rule, 3, CallArgument::Nothing);
    let answer = call(&mut redis, Call::Charge, START, &fresh);
    let (_, all) = answer.charged(std::slice::from_ref(&fresh));
    let [KeyState::State(Some(state))] = &*all else { panic!("{all:?}") };
    let repair = fresh.rule.rule().repair_state(state).unwrap();
    redis::cmd("FLUSHALL").exec(&mut redis.connection).unwrap();
    let one = |call_argument| bucket(&rule, 1, call_argument);
    let at = |seconds: u64| after(seconds);
    let denied = call(&mut redis, Call::Charge, at(1), &one(CallArgument::RepairState(&repair)));
    let retry_after = Nanos::new(13_000_000_000_u64.div_ceil(7) - 1_000_000_000);
    assert_eq!(denied.charged(&[one(CallArgument::Nothing)]).0[0].decision, Decision::later(retry_after));
    // an older repair state, a malformed one and a missing one change nothing
    assert_eq!(call(&mut redis, Call::Charge, at(2), &one(CallArgument::RepairState(&repair))).granted, 1);
    for call_argument in [CallArgument::RepairState(&repair), CallArgument::RepairState("nan"), CallArgument::Nothing] {
        assert_eq!(call(&mut redis, Call::Charge, at(2), &one(call_argument)).granted, 0);
    }
    // a repair state of a clock far ahead counts as the largest debt
    let repair = "99999999999999 0 0";
    let answer = call(&mut redis, Call::Debit, at(2), &bucket(&rule, 1, CallArgument::RepairState(repair)));
    let until_full = answer.seen()[0].headroom(rule.rule(), answer.now).until_full;
    assert_eq!(until_full, Nanos::new(86_400_000_000_000 + 78_000_000_000_u64.div_ceil(7)));
}

/// A state that some charges within a few windows leave; `None` if it is fresh.
fn walked(rule: &Rule, start: Nanos, random: &mut Random) -> Option<State> {
    let (policy, mut state) = (rule.policy(), None);
    let window = policy.window.unwrap_or(Nanos::SECOND).get();
    for _ in 0..random.from(1, 6) {
        let now = start.saturating_sub(Nanos::new(random.from(0, window)));
        let cost = random.from(1, policy.quota.max(1));
        state = match random.once_in(4) {
            true => rule.debit(state, cost, now),
            false => rule.decide(state, cost, now).1,
        };
    }
    state
}

#[test]
fn the_script_merges_what_it_keeps_with_what_a_node_remembers_as_the_rules_in_rust_do() {
    let now = START.saturating_add(Nanos::new(987_654_321));
    let server = Server::start();
    let mut redis = Scripted::new(server.connect());
    let mut random = Random::new(1);
    let mut merged = std::collections::BTreeMap::new();
    for case in 0..6_000 {
        let algorithm = random.one_of(AlgorithmName::ALL);
        let Ok(rule) = random_limit(algorithm, Domain::Ordinary, &mut random).build() else { continue };
        let Ok(shared) = SharedRule::new(rule.clone(), Nanos::from_secs(10)) else { continue };
        let (kept, remembered) = (walked(&rule, now, &mut random), walked(&rule, now, &mut random));
        let (Some(kept), Some(remembered)) = (kept, remembered) else { continue };
        let is_over = |state| matches!(rule.evictability(state), Evictability::Fresh(from) if from <= now);
        if is_over(&kept) || is_over(&remembered) {
            continue;
        }
        let (Some(first), Some(second)) = (rule.repair_state(&kept), rule.repair_state(&remembered)) else { continue };
        redis::cmd("FLUSHALL").exec(&mut redis.connection).unwrap();
        let mut stands = |repair: &str| {
            let answer = call(&mut redis, Call::Debit, now, &bucket(&shared, 0, CallArgument::RepairState(repair)));
            answer.seen()[0].headroom(&rule, now)
        };
        let expected =
            [&kept, &rule.merge(kept.clone(), remembered.clone())].map(|state| rule.headroom(Some(state), now));
        for (repair, expected) in [(&first, &expected[0]), (&second, &expected[1]), (&first, &expected[1])] {
            compare::headroom(&rule, expected, &stands(repair)).unwrap_or_else(|different| {
                panic!("case {case}, {}: {kept:?} and {remembered:?}: {different}", rule.describe())
            });
        }
        *merged.entry(algorithm.as_str()).or_insert(0) += 1;
    }
    assert!(merged.len() >= 7 && merged.values().all(|cases| *cases > 20), "{merged:?}");
}

#[test]
fn charges_that_a_node_made_by_itself_are_debited_as_of_their_times() {
    let server = Server::start();
    let mut redis = Scripted::new(server.connect());
    let shared = shared("gcra rate=1/1s burst=5");
    let (rule, mut random) = (shared.rule(), Random::new(1));
    for case in 0..300 {
        redis::cmd("FLUSHALL").exec(&mut redis.connection).unwrap();
        let before = random.from(1, 5);
        call(&mut redis, Call::Charge, START, &bucket(&shared, before, CallArgument::Nothing));
        let (mut all, mut alone, mut cost) = (rule.debit(None, before, START), None, 0);
        for second in 1..=10 {
            let more = if random.once_in(2) { random.from(0, 3) } else { 0 };
            for state in [&mut all, &mut alone] {
                *state = rule.debit(state.take(), more, after(second));
            }
            cost += more;
        }
        let Some(since) = alone.and_then(|alone| rule.charged_since(&alone, cost)) else { continue };
        let debit = bucket(&shared, cost, CallArgument::Since(since, None));
        let answer = call(&mut redis, Call::Debit, after(10), &debit);
        let (expected, seen) = (rule.headroom(all.as_ref(), answer.now), answer.seen()[0].headroom(rule, answer.now));
        compare::headroom(rule, &expected, &seen).unwrap_or_else(|different| panic!("case {case}: {different}"));
    }
}

#[test]
fn a_state_of_before_tokens_came_back_does_not_take_them_again() {
    let server = Server::start();
    let mut redis = Scripted::new(server.connect());
    for limit in [
        "gcra rate=1/h burst=6",
        "fixed_window limit=6 window=1h",
        "quota_reset limit=6 window=1h",
        "sliding_window limit=6 window=1h",
    ] {
        let rule = shared(limit);
        redis::cmd("FLUSHALL").exec(&mut redis.connection).unwrap();
        let spent = bucket(&rule, 6, CallArgument::Nothing);
        let answer = call(&mut redis, Call::Charge, START, &spent);
        let (charged, all) = answer.charged(std::slice::from_ref(&spent));
        let [KeyState::State(Some(state))] = &*all else { panic!("{all:?}") };
        let repair = rule.rule().repair_state(state).unwrap();
        let full_at = START.saturating_add(charged[0].headroom.until_full);
        call(&mut redis, Call::Refund, after(1), &bucket(&rule, 4, CallArgument::FullAt(full_at, None)));
        let one = bucket(&rule, 1, CallArgument::RepairState(&repair));
        let granted: Vec<u64> =
            (2..8).map(|second| call(&mut redis, Call::Charge, after(second), &one).granted).collect();
        assert_eq!(granted, [1, 1, 1, 1, 0, 0], "{limit}");
        // but a Redis that has lost the key takes the node's word for it
        redis::cmd("FLUSHALL").exec(&mut redis.connection).unwrap();
        assert_eq!(call(&mut redis, Call::Charge, after(8), &one).granted, 0, "{limit}");
        // also for a refund that comes first
        redis::cmd("FLUSHALL").exec(&mut redis.connection).unwrap();
        let refund = bucket(&rule, 4, CallArgument::FullAt(full_at, Some(&repair)));
        call(&mut redis, Call::Refund, after(9), &refund);
        let one = bucket(&rule, 1, CallArgument::Nothing);
        let granted: Vec<u64> =
            (10..16).map(|second| call(&mut redis, Call::Charge, after(second), &one).granted).collect();
        assert_eq!(granted, [1, 1, 1, 1, 0, 0], "{limit}");
    }
}
