#![expect(clippy::arithmetic_side_effects, reason = "small numbers, written here")]

use super::*;
use crate::algorithm::Value;

const fn ms(count: u64) -> Nanos {
    Nanos::new(count * 1_000_000)
}

fn build(limit: f64, period: Nanos, policy: &'static str) -> Result<Exponential, InvalidParameter> {
    let mut arguments = Arguments::default();
    arguments.set("limit", Value::Decimal(limit));
    arguments.set("period", Value::Duration(period));
    arguments.set("policy", Value::Choice(policy));
    Exponential::build(&arguments)
}

fn leaky(limit: f64, period: Nanos) -> Exponential {
    build(limit, period, LEAKY).unwrap()
}

fn strict(limit: f64, period: Nanos) -> Exponential {
    build(limit, period, STRICT).unwrap()
}

fn retry(decision: Decision) -> u64 {
    match decision {
        Decision::Deny(crate::algorithm::Denial::Later { retry_after }) => retry_after.get(),
        other => panic!("not denied for now: {other:?}"),
    }
}

/// The state after `count` requests of cost 1 at `now`.
fn after(rule: &Exponential, count: u64, now: Nanos) -> Option<RateEstimate> {
    (0..count).fold(None, |state, _| rule.decide(state, 1, now).1)
}

#[test]
fn a_burst_up_to_the_limit_passes_and_the_wait_is_that_of_the_steady_rate() {
    // from rate = limit a cost c is admitted at x = c/limit, where (1 - α)/x · c = (1 - α) · limit
    let rule = leaky(5.0, Nanos::SECOND);
    let state = after(&rule, 5, ms(1000));
    assert_eq!(state.map(|state| state.rate), Some(5.0));
    let (decision, kept) = rule.decide(state, 1, ms(1000));
    assert!(retry(decision).abs_diff(200_000_000) <= 1, "{decision:?}");
    assert_eq!(kept, state);
    assert!(retry(rule.decide(state, 3, ms(1100)).0).abs_diff(500_000_000) <= 1);
}

#[test]
fn every_retry_time_is_denied_just_before_and_admitted_from_then_on() {
    for period in [Nanos::new(1), ms(1), Nanos::SECOND, Nanos::from_secs(86_400), Nanos::from_secs(365 * 86_400)] {
        for rule in [leaky(5.5, period), strict(5.5, period)] {
            let state = after(&rule, 9, ms(5));
            for cost in 1..=5 {
                let (decision, kept) = rule.decide(state, cost, ms(5));
                let at = Nanos::saturating_add(ms(5), Nanos::new(retry(decision)));
                let admitted = |at| rule.decide(kept, cost, at).0.is_admitted();
                assert!(!admitted(at.saturating_sub(Nanos::new(1))), "{rule:?} {cost} {decision:?}");
                for later in [0, 1, 2, 3, 5, 10, 1000] {
                    assert!(admitted(at.saturating_add(Nanos::new(later))), "{rule:?} {cost} {decision:?} + {later}");
                }
            }
        }
    }
}

#[test]
fn strict_remembers_what_is_denied_and_leaky_does_not() {
    let (leaky, strict) = (leaky(5.0, Nanos::SECOND), strict(5.0, Nanos::SECOND));
    assert!(!leaky.denials_count() && strict.denials_count());
    assert_eq!(after(&leaky, 9, ms(0)).map(|state| state.rate), Some(5.0));
    assert_eq!(after(&strict, 9, ms(0)).map(|state| state.rate), Some(9.0));
    // (1 - α)/x + 9α = 5 at x = 0.74013642
    let wait = retry(strict.decide(after(&strict, 8, ms(0)), 1, ms(0)).0);
    assert!(wait.abs_diff(740_136_420) < 1000, "{wait}");
    let (decision, state) = strict.decide(None, 6, ms(0));
    assert_eq!((decision, state.map(|state| state.rate)), (Decision::never(5), Some(6.0)));
    assert_eq!(leaky.decide(None, 6, ms(0)), (Decision::never(5), None));
}

#[test]
fn the_measured_rate_decays_and_tells_how_much_room_is_left() {
    let rule = leaky(5.5, Nanos::SECOND);
    let state = after(&rule, 4, ms(0));
    let now = rule.headroom(state.as_ref(), ms(0));
    assert_eq!((now.remaining, rule.measured_rate(state.as_ref(), ms(0))), (Some(1), 4.0));
    let until = |cost| rule.headroom(state.as_ref(), now.until_more).remaining == Some(cost);
    assert!(until(2) && rule.decide(state, 2, now.until_more).0.is_admitted());
    assert!(rule.decide(state, 5, now.until_full).0.is_admitted());
    assert_eq!(rule.headroom(state.as_ref(), now.until_full).until_full, Nanos::ZERO);
    let decayed = rule.measured_rate(state.as_ref(), Nanos::SECOND);
    assert!((decayed - 4.0 / std::f64::consts::E).abs() < 1e-12);
    let fresh = rule.headroom(None, ms(0));
    assert_eq!((fresh.remaining, fresh.until_full, rule.measured_rate(None, ms(0))), (Some(5), Nanos::ZERO, 0.0));
}

#[test]
fn an_idle_key_becomes_as_a_fresh_one() {
    let rule = leaky(5.0, Nanos::SECOND);
    let state = after(&rule, 5, ms(0)).unwrap();
    let Evictability::Fresh(at) = rule.evictability(&state) else { panic!("not fresh") };
    for cost in 1..=5 {
        let (kept, fresh) = (rule.decide(Some(state), cost, at), rule.decide(None, cost, at));
        assert_eq!((kept.0, kept.1.map(|state| state.rate)), (fresh.0, fresh.1.map(|state| state.rate)));
    }
    // α·5 = 1 - (1 - α)/x at x = 2.1408062
    assert!(at.get().abs_diff(2_140_806_173) < 1000, "{at:?}");
}

#[test]
fn a_refund_undoes_the_latest_charge_and_no_other() {
    let rule = leaky(50.0, Nanos::SECOND);
    let charge = |state: Option<RateEstimate>, cost, now| {
        let (_, state) = rule.decide(state, cost, now);
        (state.unwrap(), rule.full_at(&state.unwrap()))
    };
    let (first, first_full) = charge(None, 20, ms(0));
    assert_eq!(rule.refund(first, 20, first_full, ms(0)), None);
    assert_eq!(rule.refund(first, 8, first_full, ms(0)).map(|state| state.rate), Some(12.0));
    let (second, second_full) = charge(Some(first), 10, ms(500));
    let undone = rule.refund(second, 10, second_full, ms(700)).unwrap();
    assert!((undone.rate - 20.0 * (-0.5f64).exp()).abs() < 1e-12);
    assert_eq!(rule.refund(undone, 10, second_full, ms(700)).map(|state| state.rate), Some(undone.rate));
    assert_eq!(rule.refund(second, 20, first_full, ms(700)), Some(second));
    // after a pause the cost alone is the rate, and the earlier rate is what stays
    let (third, third_full) = charge(Some(second), 40, ms(2500));
    assert_eq!(third.rate, 40.0);
    let undone = rule.refund(third, 40, third_full, ms(2500)).unwrap();
    assert!((undone.rate - second.rate * (-2.0f64).exp()).abs() < 1e-12);
}

#[test]
fn a_changed_limit_keeps_the_share_and_a_changed_period_the_age() {
    let (old, new) = (leaky(5.0, Nanos::SECOND), leaky(50.0, ms(4000)));
    let state = after(&old, 4, ms(10_000)).unwrap();
    let carried = new.migrate_state(&old, state, ms(10_500)).unwrap();
    assert_eq!((carried.rate, carried.last), (40.0, ms(8_500)));
    assert_eq!(new.migrate_state(&leaky(50.0, ms(4000)), state, ms(99_000)), Some(state));
}

#[test]
fn a_clock_that_steps_back_measures_no_time() {
    let rule = leaky(5.0, Nanos::SECOND);
    let state = after(&rule, 5, ms(10_000));
    assert!(retry(rule.decide(state, 1, ms(4_000)).0).abs_diff(6_200_000_000) <= 1);
    let four = after(&rule, 4, ms(10_000));
    let (decision, state) = rule.decide(four, 1, ms(4_000));
    assert_eq!((decision, state.map(|state| (state.rate, state.last))), (Decision::ADMIT, Some((5.0, ms(10_000)))));
}

#[test]
fn extremes_work_or_are_refused() {
    let year = leaky(1.0, Nanos::from_secs(365 * 86_400));
    let state = after(&year, 1, ms(0));
    assert!(retry(year.decide(state, 1, ms(0)).0).abs_diff(31_536_000_000_000_000) < 1000);
    let vast = leaky(MAX_LIMIT as f64, Nanos::new(1));
    let (decision, state) = vast.decide(None, 1 << 52, Nanos::MAX);
    assert_eq!(decision, Decision::ADMIT);
    assert_eq!(vast.headroom(state.as_ref(), Nanos::MAX).remaining, Some(0));
    assert_eq!(vast.decide(None, (1 << 52) + 1, ms(0)).0, Decision::never(1 << 52));
    let ages = leaky(1.0, Nanos::MAX);
    assert!(!ages.decide(after(&ages, 1, ms(0)), 1, Nanos::new(u64::MAX / 2)).0.is_admitted());
    for limit in [0.0, 0.99, f64::NAN, f64::INFINITY, 9.3e18] {
        assert!(build(limit, Nanos::SECOND, LEAKY).is_err(), "{limit}");
    }
    let problem = build(0.5, Nanos::SECOND, LEAKY).unwrap_err().to_string();
    assert!(problem.starts_with("`limit` must be at least 1; for a lower rate take a longer"), "{problem}");
    let mut arguments = Arguments::default();
    arguments.set("limit", Value::Whole(5));
    arguments.set("period", Value::Duration(Nanos::ZERO));
    assert!(Exponential::build(&arguments).is_err());
    arguments.set("period", Value::Duration(Nanos::SECOND));
    arguments.set("policy", Value::Choice(STRICT));
    assert_eq!(Exponential::build(&arguments), Ok(strict(5.0, Nanos::SECOND)));
}
