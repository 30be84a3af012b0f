#![expect(clippy::arithmetic_side_effects, reason = "small numbers, written here")]

use super::*;
use crate::algorithm::Value;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

const NOW: Nanos = Nanos::SECOND;

const fn ms(count: u64) -> Nanos {
    Nanos::new(count * 1_000_000)
}

fn build(min: u64, max: u64, target: Option<Nanos>) -> Result<AdaptiveConcurrency, InvalidParameter> {
    let mut arguments = Arguments::default();
    arguments.set("min", Value::Whole(min));
    arguments.set("max", Value::Whole(max));
    if let Some(target) = target {
        arguments.set("target", Value::Duration(target));
    }
    AdaptiveConcurrency::build(&arguments)
}

fn rule(min: u64, max: u64, target: Option<Nanos>) -> AdaptiveConcurrency {
    build(min, max, target).unwrap()
}

const fn ended(latency: Nanos) -> Completion {
    Completion { latency, measured: true }
}

/// Simulates an upstream that answers in `latency` while at most as many requests are in flight as it has workers in this
/// minute, and proportionally slower beyond, with clients that take every slot. Returns the limit at the end of each minute.
fn saturate(rule: &AdaptiveConcurrency, workers: &[u64], latency: Nanos) -> Vec<f64> {
    let mut state = None;
    let mut in_flight = BinaryHeap::new();
    let mut now = NOW;
    let mut limits = vec![];
    for (minute, workers) in (1..).zip(workers) {
        while now < ms(minute * 60_000) {
            loop {
                let (decision, next) = rule.decide(state, 1, now);
                if !decision.is_admitted() {
                    break;
                }
                state = next;
                let load = (in_flight.len() as u64 + 1).max(*workers);
                let took = Nanos::new(latency.get() * load / workers);
                in_flight.push(Reverse((now.saturating_add(took), took)));
            }
            let Reverse((at, took)) = in_flight.pop().unwrap();
            now = at;
            state = rule.complete(state.unwrap(), 1, ended(took), now);
        }
        limits.push(state.map_or(0.0, |state| state.limit));
    }

    limits
}

#[test]
fn the_limit_settles_a_little_above_what_the_upstream_can_do_and_stays_there() {
    let limits = saturate(&rule(4, 1000, None), &[100; 5], ms(50));
    assert!(limits.iter().all(|limit| (120.0..150.0).contains(limit)), "{limits:?}");
}

#[test]
fn the_limit_falls_when_the_upstream_gets_slower() {
    let limits = saturate(&rule(2, 2000, None), &[400, 100], ms(10));
    assert!(limits[1] * 2.0 < limits[0], "{limits:?}");
}

#[test]
fn with_a_target_latency_is_held_near_the_target() {
    // latency is 100 ms where twice as many requests as workers are in flight
    let limits = saturate(&rule(4, 1000, Some(ms(100))), &[100; 2], ms(50));
    assert!(limits.iter().all(|limit| (210.0..220.0).contains(limit)), "{limits:?}");
}

#[test]
fn the_limit_stays_within_its_bounds() {
    assert_eq!(saturate(&rule(4, 50, None), &[100], ms(20)), [50.0]);
    assert_eq!(saturate(&rule(20, 50, Some(ms(1))), &[10], ms(20)), [20.0]);
}

#[test]
fn one_request_moves_the_limit_by_its_share_of_a_round() {
    let rule = rule(4, 1000, Some(ms(10)));
    let state = ControllerState { limit: 100.0, in_flight: 50, measuring: 0, due: 0, best: 0.0, latency: 10e6 };
    // at the target: 100 -> +¼·1/100·√100
    let limit_after = |state: ControllerState, latency| { rule.complete(state, 1, ended(latency), NOW).unwrap() }.limit;
    assert_eq!(limit_after(state, ms(10)), 100.025);
    // with less than half the limit in flight, the limit does not move
    assert_eq!(limit_after(ControllerState { in_flight: 49, ..state }, ms(10)), 100.0);
    // at twice the target: gradient ½, -¼·1/100·(50 - 10)
    let slow = ControllerState { latency: 20e6, ..state };
    assert_eq!(limit_after(slow, ms(20)), 99.9);
    let idle = ControllerState { in_flight: 49, ..slow };
    assert_eq!(limit_after(idle, ms(20)), 100.0);
    // nor does it move after an error
    let failed = rule.complete(slow, 1, Completion { latency: ms(1), measured: false }, NOW);
    assert_eq!(failed, Some(ControllerState { in_flight: 49, ..slow }));
}

#[test]
fn the_best_latency_is_measured_at_half_the_limit() {
    let rule = rule(4, 1000, None);
    let mut state = ControllerState { limit: 40.0, in_flight: 40, measuring: 0, due: 1, best: 10e6, latency: 12e6 };
    state = rule.complete(state, 1, ended(ms(12)), NOW).unwrap();
    assert!({ state.measuring } >= 80 && rule.slots(&state) == 20);
    assert_eq!(rule.decide(Some(state), 1, NOW).0, Decision::BUSY);
    while { state.measuring } > 0 {
        let latency = if { state.measuring } > 40 { ms(12) } else { ms(11) };
        state.in_flight = 20;
        state = rule.complete(state, 1, ended(latency), NOW).unwrap();
    }
    assert_eq!(({ state.best }, { state.due }, rule.slots(&state)), (11e6, 61, 40));
}

#[test]
fn slots_come_back_and_a_large_cost_passes_alone() {
    let rule = rule(4, 100, None);
    let (decision, state) = rule.decide(None, 60, NOW);
    assert_eq!(decision, Decision::ADMIT);
    assert_eq!(rule.decide(state, 1, NOW), (Decision::BUSY, state));
    assert_eq!(rule.headroom(state.as_ref(), NOW).remaining, Some(0));
    assert_eq!(rule.evictability(&state.unwrap()), Evictability::Held);
    assert_eq!(rule.refund(state.unwrap(), 60, NOW, NOW), None);
    assert_eq!(rule.decide(None, 101, NOW), (Decision::never(100), None));
    assert_eq!(rule.decide(state, 0, NOW), (Decision::ADMIT, state));
    let learned = rule.complete(state.unwrap(), 60, ended(ms(5)), NOW).unwrap();
    assert_eq!((learned.in_flight == 0, rule.evictability(&learned)), (true, Evictability::Safe(Nanos::ZERO)));
}

#[test]
fn a_changed_limit_keeps_what_was_learned_within_the_new_bounds() {
    let (old, new) = (rule(4, 100, None), rule(10, 50, Some(ms(20))));
    let learned = ControllerState { limit: 80.0, in_flight: 70, measuring: 0, due: 9, best: 5e6, latency: 6e6 };
    let carried = new.migrate_state(&old, learned, NOW).unwrap();
    assert_eq!(carried, ControllerState { limit: 50.0, ..learned });
    assert_eq!(new.decide(Some(carried), 1, NOW).0, Decision::BUSY);
    let back = old.migrate_state(&new, ControllerState { best: 0.0, ..carried }, NOW).unwrap();
    assert_eq!({ back.measuring }, 100);
}

#[test]
fn parameters_that_make_no_sense_are_refused() {
    let problem = |min, max, target| build(min, max, target).unwrap_err().to_string();
    assert_eq!(problem(9, 5, None), "`min` of 9 is above `max`, 5; lower it or raise `max`");
    assert_eq!(problem(0, 5, None), "`min` must be at least 1");
    assert_eq!(problem(1, 1 << 63, None), "`max` must be at most 4294967295");
    assert!(problem(1, 5, Some(Nanos::ZERO)).starts_with("`target` must be longer than 0s"));
}

#[test]
fn a_state_takes_28_bytes() {
    assert_eq!(size_of::<ControllerState>(), 28);
}
