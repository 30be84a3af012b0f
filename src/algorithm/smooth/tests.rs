#![expect(clippy::arithmetic_side_effects, reason = "small numbers, written here")]

use super::*;
use crate::algorithm::{Algorithm, InvalidParameter, MAX_WAIT, Value};

const fn us(count: u64) -> Nanos {
    Nanos::new(count * 1000)
}

fn build<A: Algorithm<Core = Smooth>>(
    tokens: u64,
    period: Nanos,
    set: &[(&'static str, Value)],
) -> Result<Smooth, InvalidParameter> {
    let mut arguments = Arguments::default();
    arguments.set("rate", Value::Rate(Rate::new(tokens, period).unwrap()));
    for (name, value) in set {
        arguments.set(name, value.clone());
    }
    A::build(&arguments)
}

fn bursty(per_second: u64, max_wait: Nanos) -> Smooth {
    build::<SmoothBursty>(per_second, Nanos::SECOND, &[(MAX_WAIT, Value::Duration(max_wait))]).unwrap()
}

/// Warm after 4 s, three times slower when cold.
fn warming_up(per_second: u64, warm_up: Nanos) -> Smooth {
    let max_wait = Value::Duration(Nanos::from_secs(1000));
    build::<SmoothWarmingUp>(per_second, Nanos::SECOND, &[("warm_up", Value::Duration(warm_up)), (MAX_WAIT, max_wait)])
        .unwrap()
}

/// The decisions on `count` requests of `cost` at `now`.
fn decisions(rule: &Smooth, state: &mut Option<Reserved>, count: usize, cost: Cost, now: Nanos) -> Vec<Decision> {
    let mut decide = || {
        let (decision, next) = rule.decide(*state, cost, now);
        *state = next;
        decision
    };
    (0..count).map(|_| decide()).collect()
}

fn waits(millis: &[u64]) -> Vec<Decision> {
    millis.iter().map(|millis| Decision::Admit { wait: us(millis * 1000) }).collect()
}

#[test]
fn a_bursty_limit_spaces_requests_and_the_next_pays_for_this_one() {
    let rule = bursty(5, Nanos::from_secs(10));
    let mut state = None;
    assert_eq!(decisions(&rule, &mut state, 3, 1, Nanos::SECOND), waits(&[0, 200, 400]));
    assert_eq!(decisions(&rule, &mut state, 1, 40, Nanos::SECOND), waits(&[600]));
    assert_eq!(decisions(&rule, &mut state, 1, 1, Nanos::SECOND), waits(&[8600]));
}

#[test]
fn unused_time_is_saved_for_a_burst_up_to_the_most() {
    let rule = bursty(5, Nanos::ZERO);
    let mut state = None;
    assert_eq!(decisions(&rule, &mut state, 1, 1, us(0)), waits(&[0]));
    // five stored permits, and one more that the next caller pays for
    let later = Nanos::from_secs(60);
    assert_eq!(decisions(&rule, &mut state, 6, 1, later), waits(&[0; 6]));
    assert_eq!(decisions(&rule, &mut state, 1, 1, later), [Decision::later(us(200_000))]);
}

#[test]
fn retry_times_are_exact_between_microseconds_too() {
    let rule = bursty(5, Nanos::new(50_000_999));
    let mut state = None;
    assert_eq!(decisions(&rule, &mut state, 1, 1, Nanos::new(700)), waits(&[0]));
    // next is 200000 µs, 50000 µs of waiting are allowed
    assert_eq!(rule.decide(state, 1, Nanos::new(1_500)).0, Decision::later(Nanos::new(149_998_500)));
    assert_eq!(rule.decide(state, 1, Nanos::new(149_999_999)).0, Decision::later(Nanos::new(1)));
    assert_eq!(rule.decide(state, 1, us(150_000)).0, Decision::Admit { wait: us(50_000) });
}

#[test]
fn a_cold_limit_starts_at_a_third_of_the_rate_and_is_warm_after_warm_up() {
    // stable 0.5 s, cold 1.5 s, threshold 4, max 8: a permit between k and k-1 above the threshold takes
    // 0.5 s + (k - ½)·0.25 s, and the four above it together 4 s
    let rule = warming_up(2, Nanos::from_secs(4));
    let mut state = None;
    let expected = waits(&[0, 1375, 2500, 3375, 4000, 4500, 5000, 5500, 6000, 6500, 7000]);
    assert_eq!(decisions(&rule, &mut state, 11, 1, Nanos::SECOND), expected);
    // ten seconds later it is cold again, and a cost takes its area at once
    assert_eq!(decisions(&rule, &mut state, 2, 3, Nanos::from_secs(60)), waits(&[0, 3375]));
}

#[test]
fn the_rate_of_admission_grows_threefold_over_warm_up() {
    let rule =
        build::<SmoothWarmingUp>(100, Nanos::SECOND, &[("warm_up", Value::Duration(Nanos::from_secs(10)))]).unwrap();
    let mut state = None;
    let mut admitted_in_second = [0_u32; 14];
    for millisecond in 0..14_000 {
        let (decision, next) = rule.decide(state, 1, us(millisecond * 1000));
        state = next;
        admitted_in_second[millisecond as usize / 1000] += u32::from(decision.is_admitted());
    }
    assert!((33..=36).contains(&admitted_in_second[0]), "{admitted_in_second:?}");
    assert!(admitted_in_second[..11].is_sorted(), "{admitted_in_second:?}");
    assert!((97..=100).contains(&admitted_in_second[11]), "{admitted_in_second:?}");
    assert_eq!(admitted_in_second[12], admitted_in_second[11]);
}

#[test]
fn headroom_is_nothing_or_without_bound() {
    let rule = bursty(5, Nanos::ZERO);
    let (_, state) = rule.decide(None, 3, us(7));
    let headroom = rule.headroom(state.as_ref(), Nanos::new(8_001));
    let until = Nanos::new(600_007_000 - 8_001);
    assert_eq!((headroom.remaining, headroom.until_more, headroom.until_full), (Some(0), until, until));
    let headroom = rule.headroom(state.as_ref(), us(600_007));
    assert_eq!((headroom.remaining, headroom.until_more, headroom.until_full), (None, us(0), us(0)));
    assert_eq!(rule.headroom(None, us(0)).remaining, None);
    assert_eq!(rule.largest_cost(), None);
}

#[test]
fn a_full_bursty_key_may_be_forgotten_and_a_cold_one_is_fresh() {
    let rule = bursty(5, Nanos::ZERO);
    let (_, state) = rule.decide(None, 1, us(0));
    assert_eq!(rule.evictability(&state.unwrap()), Evictability::Safe(us(1_200_002)));
    let rule = warming_up(2, Nanos::from_secs(4));
    let (_, state) = rule.decide(None, 1, us(0));
    let Evictability::Fresh(at) = rule.evictability(&state.unwrap()) else { panic!("not fresh") };
    assert_eq!(at, us(1_375_000 + 500_000 + 2));
    assert_eq!(rule.decide(state, 2, at), rule.decide(None, 2, at));
}

#[test]
fn a_refund_right_after_a_charge_restores_the_state() {
    let (bursty, warming_up) = (bursty(5, Nanos::from_secs(60)), warming_up(2, Nanos::from_secs(4)));
    let full_at = |headroom: Headroom, now: Nanos| now.saturating_add(headroom.until_full);
    let now = Nanos::SECOND;
    let mut before = Some(Reserved { next: 1_000_000, stored: 0.0 });
    for cost in [1, 7, 3] {
        let (_, after) = bursty.decide(before, cost, now);
        let full_at = full_at(bursty.headroom(after.as_ref(), now), now);
        assert_eq!(bursty.refund(after.unwrap(), cost, full_at, now), before);
        before = after;
    }
    let mut before = Some(Reserved { next: 1_000_000, stored: 8.0 });
    for cost in [1, 2, 4] {
        let (_, after) = warming_up.decide(before, cost, now);
        let full_at = full_at(warming_up.headroom(after.as_ref(), now), now);
        assert_eq!(warming_up.refund(after.unwrap(), cost, full_at, now), before);
        before = after;
    }
}

#[test]
fn a_refund_gives_nothing_back_that_time_has_made_good() {
    let rule = bursty(5, Nanos::ZERO);
    let (_, state) = rule.decide(None, 1, us(0));
    let full_at = us(200_000);
    // the key was full long before the next burst: the time of the charge is not refunded
    let (_, state) = rule.decide(state, 9, Nanos::from_secs(100));
    assert_eq!(rule.refund(state.unwrap(), 1, full_at, Nanos::from_secs(100)), state);
}

#[test]
fn a_changed_rate_keeps_the_stored_share_and_what_is_reserved() {
    // two seconds at 5/s fill it; then half of it is taken
    let (old, new) = (bursty(5, Nanos::ZERO), bursty(20, Nanos::ZERO));
    let state = Reserved { next: 0, stored: 0.0 };
    let carried = new.migrate_state(&old, state, us(500_000)).unwrap();
    assert_eq!((carried.next, carried.stored), (500_000, 10.0));
    let reserved = Reserved { next: 900_000, stored: 1.0 };
    let carried = new.migrate_state(&old, reserved, us(500_000)).unwrap();
    assert_eq!((carried.next, carried.stored), (900_000, 4.0));
    assert_eq!(new.migrate_state(&bursty(20, Nanos::SECOND), state, us(500_000)), Some(state));
}

#[test]
fn a_clock_that_steps_back_waits_for_what_is_reserved() {
    let rule = bursty(5, Nanos::ZERO);
    let (_, state) = rule.decide(None, 1, Nanos::from_secs(10));
    assert_eq!(rule.decide(state, 1, Nanos::from_secs(4)), (Decision::later(us(6_200_000)), state));
}

#[test]
fn extremes_saturate_or_are_refused() {
    let year = Nanos::from_secs(31_536_000);
    let rule = build::<SmoothBursty>(1, year, &[("max_burst", Value::Duration(Nanos::ZERO))]).unwrap();
    let (decision, state) = rule.decide(None, u64::MAX, Nanos::MAX);
    assert_eq!(decision, Decision::ADMIT);
    assert_eq!(rule.decide(state, 1, us(0)), (Decision::later(Nanos::MAX), state));
    assert_eq!(rule.refund(state.unwrap(), u64::MAX, Nanos::MAX, Nanos::MAX), state);
    let problem =
        |set: &[(&'static str, Value)], tokens| build::<SmoothWarmingUp>(tokens, Nanos::SECOND, set).unwrap_err();
    let warm_up = ("warm_up", Value::Duration(Nanos::SECOND));
    assert_eq!(problem(&[], 5).to_string(), "`warm_up` is missing");
    assert_eq!(problem(&[("warm_up", Value::Duration(Nanos::new(999)))], 5).parameter, "warm_up");
    assert_eq!(
        problem(std::slice::from_ref(&warm_up), 2_000_000_000).to_string(),
        "`rate` must be at most 1000000/s; for more use `gcra`"
    );
    for cold_factor in [0.99, f64::NAN, f64::INFINITY] {
        let refused = problem(&[warm_up.clone(), ("cold_factor", Value::Decimal(cold_factor))], 5);
        assert_eq!(refused.parameter, "cold_factor");
    }
    let level =
        build::<SmoothWarmingUp>(1_000_000, Nanos::SECOND, &[warm_up, ("cold_factor", Value::Whole(1))]).unwrap();
    assert_eq!(level.decide(None, 5, us(3)).1.map(|state| state.next), Some(8));
}
