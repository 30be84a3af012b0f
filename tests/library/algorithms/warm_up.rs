//! `smooth_warming_up` in numbers: at 10/s with a warm-up of 4 s, 40 permits are stored when cold, and each permit costs 10
//! ms less than the one before, down to 100 ms.

use tollgate::algorithm::{Decision, Denial, Rule, State};
use tollgate::units::Nanos;

use crate::algorithms::limit::Limit;

fn rule(more: &str) -> Rule {
    let limit: Limit = format!("smooth_warming_up rate=10/s warm_up=4s {more}").parse().expect("a limit");
    limit.build().expect("a limit that is not refused")
}

const fn millis(millis: u64) -> u64 {
    millis * 1_000_000
}

/// The times in milliseconds at which requests pass that all arrive at `now`, and the state after them.
fn passing(rule: &Rule, mut state: Option<State>, now: u64, requests: usize) -> (Vec<u64>, Option<State>) {
    let mut passed = Vec::new();
    for _ in 0..requests {
        let (decision, next) = rule.decide(state, 1, Nanos::new(now));
        let Decision::Admit { wait } = decision else { panic!("{decision:?}") };
        passed.push((now + wait.get()) / millis(1));
        state = next;
    }
    (passed, state)
}

fn pauses(passed: &[u64]) -> Vec<u64> {
    passed.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn a_cold_limit_starts_at_a_third_of_its_rate_and_reaches_it_after_the_warm_up() {
    let (passed, _) = passing(&rule("max_wait=3650d"), None, 0, 60);
    assert_eq!(passed[..4], [0, 295, 580, 855]);
    let pauses = pauses(&passed);
    for (stored, pause) in (21..=40).rev().zip(&pauses) {
        assert_eq!(*pause, 100 + (stored - 20) * 10 - 5, "the price of a permit with {stored} stored");
    }
    assert_eq!(passed[20], 4000, "warm when warm_up has passed");
    assert!(pauses[20..].iter().all(|pause| *pause == 100), "{pauses:?}");
}

#[test]
fn a_warm_limit_is_cold_again_after_an_idle_warm_up() {
    let rule = rule("max_wait=3650d");
    let (passed, state) = passing(&rule, None, 0, 60);
    let due = millis(passed[59] + 100);
    assert_eq!(pauses(&passing(&rule, state.clone(), due + millis(4000), 3).0), [295, 285]);
    // Half of that time restores half of the stored permits: 20, all below the threshold.
    assert_eq!(pauses(&passing(&rule, state, due + millis(2000), 3).0), [100, 100]);
}

#[test]
fn a_request_that_may_not_wait_passes_when_the_one_before_is_paid_for() {
    let rule = rule("");
    let (decision, state) = rule.decide(None, 1, Nanos::ZERO);
    assert_eq!(decision, Decision::ADMIT);
    let (decision, state) = rule.decide(state, 1, Nanos::new(millis(1)));
    assert_eq!(decision, Decision::Deny(Denial::Later { retry_after: Nanos::new(millis(294)) }));
    assert_eq!(rule.decide(state, 1, Nanos::new(millis(295))).0, Decision::ADMIT);
}
