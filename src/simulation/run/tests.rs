use super::*;
use crate::algorithm::{AlgorithmName, Arguments, Denial, Value};
use crate::simulation::testing::{UPSTREAM, gcra, queue};

fn arrival(at: u64, key: usize, cost: Cost) -> Arrival {
    Arrival { at: Nanos::new(at), key: KeyNumber(key), cost, set_rate: None }
}

fn decisions(run: &mut Run, arrivals: &[(u64, usize, Cost)]) -> Vec<Decision> {
    arrivals.iter().map(|(at, key, cost)| run.step(&arrival(*at, *key, *cost)).unwrap().decision).collect()
}

fn wait(nanos: u64) -> Decision {
    Decision::Admit { wait: Nanos::new(nanos) }
}

fn later(nanos: u64) -> Decision {
    Decision::later(Nanos::new(nanos))
}

const SECOND: u64 = 1_000_000_000;

#[test]
fn nobody_waits_beyond_max_waiting_and_the_retry_time_is_when_the_first_has_passed() {
    let mut run = Run::new(queue(1, 9, Nanos::from_secs(60), Some(2)), UPSTREAM).unwrap();
    let all = [(0, 0, 1), (0, 0, 1), (0, 0, 1), (0, 0, 1), (SECOND - 1, 0, 1), (SECOND, 0, 1), (SECOND, 0, 1)];
    assert_eq!(
        decisions(&mut run, &all),
        [wait(0), wait(SECOND), wait(2 * SECOND), later(SECOND), later(1), wait(2 * SECOND), later(SECOND),]
    );
}

#[test]
fn the_bound_on_waiting_is_over_all_keys_and_does_not_touch_those_who_need_not_wait() {
    let mut run = Run::new(queue(1, 9, Nanos::from_secs(60), Some(1)), UPSTREAM).unwrap();
    let all = [(0, 0, 1), (0, 0, 1), (0, 1, 1), (500_000_000, 1, 1), (500_000_000, 1, 0)];
    assert_eq!(decisions(&mut run, &all), [wait(0), wait(SECOND), wait(0), later(500_000_000), wait(0)]);
}

#[test]
fn with_no_place_to_wait_the_retry_time_is_ones_turn_or_never() {
    let mut run = Run::new(queue(3, 9, Nanos::from_secs(60), Some(0)), UPSTREAM).unwrap();
    let all = [(0, 0, 1), (0, 0, 1), (333_333_333, 0, 1), (333_333_334, 0, 1), (9 * SECOND, 0, 2)];
    assert_eq!(
        decisions(&mut run, &all),
        [wait(0), later(333_333_334), later(1), wait(0), Decision::Deny(Denial::Never { max: 1 }),]
    );
}

#[test]
fn a_request_that_the_rule_denies_waits_for_a_place_too() {
    let mut run = Run::new(queue(1, 10, Nanos::from_secs(1), Some(1)), UPSTREAM).unwrap();
    let tenth = SECOND / 10;
    let all = [
        (0, 1, 1),
        (9 * tenth, 0, 1),
        (9 * tenth, 0, 1),
        (9 * tenth, 1, 2),
        (19 * tenth - 1, 1, 2),
        (19 * tenth, 1, 2),
    ];
    // from 1 s on the rule would let the request wait for its turn, but the only place is taken until 1.9 s
    assert_eq!(decisions(&mut run, &all), [wait(0), wait(0), wait(SECOND), later(SECOND), later(1), wait(SECOND)]);
}

#[test]
fn requests_that_have_passed_come_in_the_order_of_passing() {
    let mut run = Run::new(queue(1, 9, Nanos::from_secs(60), None), UPSTREAM).unwrap();
    decisions(&mut run, &[(0, 0, 1), (0, 0, 1), (0, 0, 1), (0, 1, 1), (0, 1, 1)]);
    let step = arrival(SECOND, 2, 1);
    let passed = |passes: &[Pass]| passes.iter().map(|pass| (pass.at.get(), pass.key.0)).collect::<Vec<_>>();
    let outcome = run.step(&step).unwrap();
    assert_eq!(outcome.waiting, 1);
    assert_eq!(passed(outcome.passes), [(SECOND, 0), (SECOND, 1), (SECOND, 2)]);
    assert_eq!(passed(run.finish()), [(2 * SECOND, 0)]);
}

#[test]
fn a_rate_that_does_not_fit_stops_the_run_and_changes_nothing() {
    let mut run = Run::new(gcra(1, u64::MAX >> 31), UPSTREAM).unwrap();
    let rate = Rate::new(1, Nanos::MAX).unwrap();
    let error = run.step(&Arrival { set_rate: Some(rate), ..arrival(0, 0, 1) }).unwrap_err();
    assert!(matches!(&error, RunError::InvalidParameter { invalid, .. } if invalid.parameter == "burst"), "{error}");
    assert_eq!(run.subject().rate(), Rate::new(1, Nanos::SECOND));
}

#[test]
fn set_rate_to_the_rate_in_force_rounds_as_guava_does() {
    let (rate, second) = (Rate::new(3, Nanos::SECOND).unwrap(), Value::Duration(Nanos::SECOND));
    let arguments: Arguments = [("rate", Value::Rate(rate)), ("warm_up", second)].into();
    let mut run = Run::new(SimulatedLimit::new("l", AlgorithmName::SmoothWarmingUp, arguments), UPSTREAM).unwrap();
    assert_eq!(decisions(&mut run, &[(SECOND, 0, 1)]), [wait(0)]);
    run.step(&Arrival { set_rate: Some(rate), ..arrival(2_001_000_000, 0, 2) }).unwrap();
    // Without the resync of Guava's setRate, the second request is paid for 1 µs later.
    assert_eq!(decisions(&mut run, &[(2_971_692_999, 0, 1), (2_971_693_000, 0, 1)]), [later(1), wait(0)]);
}

fn concurrency(limit: u64) -> SimulatedLimit {
    let mut arguments = Arguments::default();
    arguments.set("limit", Value::Whole(limit));
    SimulatedLimit::new("l", AlgorithmName::Concurrency, arguments)
}

#[test]
fn slots_are_free_again_when_their_requests_end_and_denials_say_when_that_is() {
    let upstream = Upstream { hold: Nanos::new(10), servers: None };
    let mut run = Run::new(concurrency(2), upstream).unwrap();
    let all = [(0, 0, 1), (4, 0, 1), (5, 0, 1), (5, 0, 2), (5, 1, 2), (9, 0, 1), (10, 0, 1), (10, 0, 1), (10, 0, 3)];
    assert_eq!(
        decisions(&mut run, &all),
        [wait(0), wait(0), later(5), later(9), wait(0), later(1), wait(0), later(4), Decision::never(2),]
    );
    let left = |at, key| run.clone().step(&arrival(at, key, 0)).unwrap().headroom.remaining;
    assert_eq!([left(13, 0), left(14, 0), left(20, 0)], [Some(0), Some(1), Some(2)]);
}

#[test]
fn latency_is_known_where_slots_are_held() {
    let upstream = Upstream { hold: Nanos::new(10), servers: NonZeroUsize::new(1) };
    let mut run = Run::new(concurrency(2), upstream).unwrap();
    let latencies = [0, 4, 5].map(|at| run.step(&arrival(at, 0, 1)).unwrap().latency);
    assert_eq!(latencies, [Some(Nanos::new(10)), Some(Nanos::new(16)), None]);
    assert_eq!(Run::new(gcra(1, 1), upstream).unwrap().step(&arrival(0, 0, 1)).unwrap().latency, None);
}

#[test]
fn an_adaptive_limit_shrinks_where_the_upstream_is_slower_than_its_best() {
    let mut arguments = Arguments::default();
    arguments.set("min", Value::Whole(4));
    arguments.set("max", Value::Whole(1000));
    let subject = SimulatedLimit::new("l", AlgorithmName::AdaptiveConcurrency, arguments);
    let denied = |servers| {
        let upstream = Upstream { hold: Nanos::new(10_000_000), servers };
        let mut run = Run::new(subject.clone(), upstream).unwrap();
        let all: Vec<_> = (0..20_000).map(|number| (number * 200_000, 0, 1)).collect();
        decisions(&mut run, &all).iter().filter(|decision| !decision.is_admitted()).count()
    };
    // 5000 requests a second of 10 ms each: 50 at the same time are enough, and 20 servers are not.
    assert!(denied(None) < 2000, "{}", denied(None));
    assert!(denied(NonZeroUsize::new(20)) > 8000, "{}", denied(NonZeroUsize::new(20)));
}

#[test]
fn an_upstream_with_few_servers_makes_requests_queue_there() {
    let upstream = Upstream { hold: Nanos::new(10), servers: NonZeroUsize::new(2) };
    let mut run = Run::new(gcra(1, 1), upstream).unwrap();
    let ends = [0, 0, 0, 5, 30].map(|at| run.upstream_end(Nanos::new(at)).get());
    assert_eq!(ends, [10, 10, 20, 20, 40]);
}
