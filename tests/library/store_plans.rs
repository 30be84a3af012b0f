//! One key under two plans: the local store counts the requests of both, and each plan is held to its own limit.

use tollgate::algorithm::{AlgorithmName, Decision, Value};
use tollgate::charge::{Charge, Enforcement, RuleRef};
use tollgate::store::{LimitSpec, LocalStore};
use tollgate::units::{Cost, Nanos};

use crate::store::{START, spec, spread};

/// A store with one limit that two plans use, and how the first or the second of them is charged.
fn two_plans(algorithm: &str, windows: [(u64, u64); 2]) -> impl Fn(usize, Nanos) -> bool {
    let decide = decisions_of_two_plans(algorithm, windows);
    move |plan, now| decide(plan, 1, now).is_admitted()
}

fn decisions_of_two_plans(algorithm: &str, windows: [(u64, u64); 2]) -> impl Fn(usize, Cost, Nanos) -> Decision {
    let algorithm = AlgorithmName::ALL.iter().copied().find(|known| known.as_str() == algorithm).unwrap();
    let rules = windows.map(|(limit, seconds)| {
        let window = Value::Duration(Nanos::from_secs(seconds));
        algorithm.build(&[("limit", Value::Whole(limit)), ("window", window)].into()).unwrap()
    });
    let store = LocalStore::new();
    let binding = store.bind(&[LimitSpec { algorithm, ..spec("l", &rules, 10) }]);
    move |plan, cost, now| {
        let charge = Charge::new(0, RuleRef::Listed(plan), spread(1), cost, Enforcement::DEFAULT);
        store.charge(&binding, &mut [charge], now)[0].decision
    }
}

const WINDOWED: [&str; 4] = ["fixed_window", "quota_reset", "quota_linear", "sliding_window"];

#[test]
fn a_request_under_a_short_window_does_not_end_a_long_one() {
    for algorithm in WINDOWED {
        let admits = two_plans(algorithm, [(1000, 2), (5, 3600)]);
        let after = |seconds| START.saturating_add(Nanos::from_secs(seconds));
        assert_eq!((0..9).filter(|_| admits(1, START)).count(), 5, "{algorithm}");
        for seconds in [1, 4, 5, 30, 500] {
            assert!(admits(0, after(seconds)), "{algorithm} after {seconds} s");
            assert!(!admits(1, after(seconds + 3)), "{algorithm} after {seconds} s");
        }
        assert!(admits(1, after(7200)), "{algorithm}: usage leaves the long window");
        // requests under the short window first
        let admits = two_plans(algorithm, [(1000, 2), (5, 3600)]);
        assert!(admits(0, START));
        assert_eq!((0..9).filter(|_| admits(1, after(1))).count(), 4, "{algorithm}");
        assert!(!admits(1, after(5)), "{algorithm}: the window became longer");
    }
}

#[test]
fn denials_under_a_smaller_plan_refill_nothing() {
    for algorithm in WINDOWED {
        for smaller in [(10, 3600), (10, 7200), (1, 3600)] {
            let admits = two_plans(algorithm, [(20, 3600), smaller]);
            assert!((0..20).all(|_| admits(0, START)), "{algorithm}");
            assert!((0..40).all(|request| !admits(1 - request % 2, START)), "{algorithm} beside {smaller:?}");
        }
    }
    let admits = two_plans("quota_linear", [(20, 3600), (10, 3600)]);
    assert_eq!((0..30).filter(|_| admits(0, START)).count(), 20);
    let end = START.saturating_add(Nanos::from_secs(3600));
    assert_eq!((0..40).filter(|request| admits(1 - request % 2, end)).count(), 1, "a smooth key has one token");
}

#[test]
fn a_wait_under_one_plan_ends_when_the_state_of_the_other_allows_it() {
    let after = |seconds| START.saturating_add(Nanos::from_secs(seconds));
    for (algorithm, windows, cost, fresh) in [
        ("quota_linear", [(1, 7), (3, 10)], [1, 3], 10),
        ("quota_linear", [(3, 7), (10, 10)], [3, 3], 10),
        ("quota_linear", [(10, 7), (20, 7)], [1, 20], 7),
        ("sliding_window", [(1, 7), (10, 10)], [1, 1], 20),
    ] {
        let decide = decisions_of_two_plans(algorithm, windows);
        assert_eq!(decide(1, cost[1], START), Decision::ADMIT);
        for second in 1..fresh {
            let later = Decision::later(Nanos::from_secs(fresh - second));
            assert_eq!(decide(0, cost[0], after(second)), later, "{algorithm} {windows:?} at {second} s");
        }
        assert_eq!(decide(0, cost[0], after(fresh)), Decision::ADMIT, "{algorithm} {windows:?}");
    }
}

#[test]
fn two_plans_of_a_key_never_lock_each_other_out() {
    for (algorithm, long) in
        [("fixed_window", 3600), ("quota_reset", 3600), ("quota_linear", 3600), ("sliding_window", 5)]
    {
        let admits = two_plans(algorithm, [(3, 4), (20, long)]);
        for hour in 0..4 {
            let seconds = (hour * 3600..).take(3600).map(|second| START.saturating_add(Nanos::from_secs(second)));
            let passed = seconds.map(|now| (admits(0, now), admits(1, now))).filter(|(_, second)| *second).count();
            assert!(passed >= 15, "{algorithm}: {passed} pass in hour {hour}");
        }
    }
}

#[test]
fn windows_that_do_not_nest_end_too() {
    let admits = two_plans("fixed_window", [(20, 7), (20, 10)]);
    let passed = (0..700).filter(|second| {
        let now = START.saturating_add(Nanos::from_secs(*second));
        let both = [admits(0, now), admits(1, now), admits(0, now), admits(1, now)];
        both.contains(&true)
    });
    assert!(passed.count() >= 200, "20 in each 10 s, for two plans that ask 4 times a second");
}
