#![expect(clippy::arithmetic_side_effects, reason = "small numbers, written here")]

use super::*;
use crate::algorithm::Value;

const fn ms(count: u64) -> Nanos {
    Nanos::new(count * 1_000_000)
}

fn rule(limit: u64, period: Nanos, max_wait: Nanos) -> Cycle {
    Cycle::new(limit, period, limit, max_wait).unwrap()
}

/// The decisions on (time, cost) pairs for one key.
fn decisions(rule: &Cycle, requests: &[(Nanos, Cost)]) -> Vec<Decision> {
    let mut state = None;
    let mut decide = |now, cost| {
        let (decision, next) = rule.decide(state, cost, now);
        state = next;
        decision
    };
    requests.iter().map(|(now, cost)| decide(*now, *cost)).collect()
}

const fn admitted(wait: Nanos) -> Decision {
    Decision::Admit { wait }
}

#[test]
fn the_limit_is_whole_again_at_each_cycle_from_the_first_request() {
    let rule = rule(5, ms(500), Nanos::ZERO);
    let requests = [(ms(100), 5), (ms(599), 1), (ms(600), 4), (ms(600), 2), (ms(2100), 5), (ms(2599), 6)];
    let expected = [
        Decision::ADMIT,
        Decision::later(ms(1)),
        Decision::ADMIT,
        Decision::later(ms(500)),
        Decision::ADMIT,
        Decision::never(5),
    ];
    assert_eq!(decisions(&rule, &requests), expected);
}

#[test]
fn later_cycles_are_reserved_as_far_as_the_wait_allows() {
    // 13 permits reach into the cycle that starts at 1000, 35 take the one at 3000 to its end
    let rule = rule(5, ms(500), ms(3000));
    let requests = [(ms(0), 1), (ms(0), 12), (ms(100), 1), (ms(499), 21), (ms(499), 1), (ms(500), 1)];
    let expected = [
        Decision::ADMIT,
        admitted(ms(1000)),
        admitted(ms(900)),
        admitted(ms(2501)),
        Decision::later(ms(1)),
        admitted(ms(3000)),
    ];
    assert_eq!(decisions(&rule, &requests), expected);
}

#[test]
fn a_cost_above_the_limit_waits_for_a_moment_late_enough_in_the_cycle() {
    // two periods of 10 ms are needed at the start of a cycle, 12 ms are allowed: from 8 ms into any cycle on
    let rule = rule(3, ms(10), ms(12));
    let (decision, state) = rule.decide(None, 7, ms(100));
    assert_eq!(decision, Decision::later(ms(8)));
    assert_eq!(rule.decide(state, 7, Nanos::new(107_999_999)).0, Decision::later(Nanos::new(1)));
    assert_eq!(rule.decide(state, 7, ms(108)).0, admitted(ms(12)));
    assert_eq!(rule.decide(state, 7, ms(110)).0, Decision::later(ms(8)));
    assert_eq!(rule.decide(state, 10, ms(109)).0, Decision::never(9));
    assert_eq!(rule.largest_cost(), Some(9));
}

#[test]
fn unused_permits_are_kept_up_to_the_burst() {
    let rule = Cycle::new(2, ms(500), 5, Nanos::ZERO).unwrap();
    let requests = [(ms(0), 5), (ms(499), 1), (ms(500), 2), (ms(500), 3), (ms(2000), 5), (ms(2000), 5), (ms(9000), 6)];
    let expected = [
        Decision::ADMIT,
        Decision::later(ms(1)),
        Decision::ADMIT,
        // two permits come at 1000, the third with two more at 1500
        Decision::later(ms(1000)),
        Decision::ADMIT,
        Decision::later(ms(1500)),
        Decision::never(5),
    ];
    assert_eq!(decisions(&rule, &requests), expected);
    let (_, state) = rule.decide(None, 4, ms(0));
    let headroom = rule.headroom(state.as_ref(), ms(100));
    assert_eq!((headroom.remaining, headroom.until_more, headroom.until_full), (Some(1), ms(400), ms(900)));
    assert_eq!(rule.policy(), Policy { quota: 5, window: Some(ms(1500)) });
}

#[test]
fn cycles_count_from_a_first_request_that_can_never_be_admitted() {
    let rule = rule(5, ms(500), Nanos::ZERO);
    let requests = [(ms(100), 6), (ms(300), 5), (ms(599), 1), (ms(600), 5)];
    let expected = [Decision::never(5), Decision::ADMIT, Decision::later(ms(1)), Decision::ADMIT];
    assert_eq!(decisions(&rule, &requests), expected);
}

#[test]
fn headroom_tells_when_cycles_bring_more() {
    let rule = rule(5, ms(500), ms(3000));
    let (_, state) = rule.decide(None, 12, ms(0));
    let headroom = rule.headroom(state.as_ref(), ms(100));
    assert_eq!((headroom.remaining, headroom.until_more, headroom.until_full), (Some(0), ms(900), ms(1400)));
    let headroom = rule.headroom(state.as_ref(), ms(1000));
    assert_eq!((headroom.remaining, headroom.until_more, headroom.until_full), (Some(3), ms(500), ms(500)));
    assert_eq!(rule.evictability(&state.unwrap()), Evictability::Safe(ms(1500)));
}

#[test]
fn a_refund_returns_what_no_cycle_has_forgiven() {
    let rule = rule(5, ms(500), Nanos::ZERO);
    let (_, state) = rule.decide(None, 4, ms(0));
    let back = rule.refund(state.unwrap(), 3, ms(500), ms(400));
    assert_eq!(rule.headroom(back.as_ref(), ms(400)).remaining, Some(4));
    let (_, state) = rule.decide(state, 2, ms(500));
    let back = rule.refund(state.unwrap(), 4, ms(500), ms(600));
    assert_eq!(rule.headroom(back.as_ref(), ms(600)).remaining, Some(3));
}

#[test]
fn a_refund_at_once_is_whole_although_later_cycles_may_be_reserved() {
    let rule = rule(5, ms(500), ms(600));
    let (_, state) = rule.decide(None, 4, ms(0));
    let back = rule.refund(state.unwrap(), 4, ms(500), ms(0));
    assert_eq!(rule.headroom(back.as_ref(), ms(0)).remaining, Some(5));
}

#[test]
fn a_clock_that_steps_back_waits_for_the_cycle_it_knows() {
    let rule = rule(5, ms(500), ms(500));
    let (_, state) = rule.decide(None, 5, ms(10_000));
    assert_eq!(rule.decide(state, 1, ms(9_000)).0, Decision::later(ms(1000)));
    assert_eq!(rule.decide(state, 1, ms(10_000)).0, admitted(ms(500)));
}

#[test]
fn a_changed_limit_keeps_the_used_share_and_the_place_in_the_cycle() {
    let (old, new) = (rule(4, ms(1000), Nanos::ZERO), rule(10, ms(500), Nanos::ZERO));
    let (_, state) = old.decide(None, 3, ms(2000));
    let carried = new.migrate_state(&old, state.unwrap(), ms(2400));
    let headroom = new.headroom(carried.as_ref(), ms(2400));
    assert_eq!((headroom.remaining, headroom.until_full), (Some(2), ms(300)));
    assert_eq!(new.migrate_state(&new, state.unwrap(), ms(9000)), state);
}

#[test]
fn a_larger_limit_does_not_multiply_what_is_owed() {
    let (old, new) = (rule(4, ms(1000), Nanos::ZERO), rule(400, ms(1000), Nanos::ZERO));
    let owing = old.debit(None, 100, ms(2000));
    let carried = new.migrate_state(&old, owing.unwrap(), ms(2000)).unwrap();
    assert_eq!(carried.used, 400 + 96);
    assert_eq!(old.migrate_state(&new, carried, ms(2000)), owing);
}

#[test]
fn extremes_work_or_are_refused() {
    let tick = rule(u64::MAX, Nanos::new(1), Nanos::ZERO);
    assert_eq!(tick.decide(None, u64::MAX, Nanos::MAX).0, Decision::ADMIT);
    let year = rule(1 << 63, Nanos::from_secs(31_536_000), Nanos::ZERO);
    let (_, state) = year.decide(None, 1 << 63, Nanos::ZERO);
    assert_eq!(year.decide(state, 1, Nanos::ZERO).0, Decision::later(Nanos::from_secs(31_536_000)));
    let problem = Cycle::new(1 << 63, Nanos::SECOND, 1 << 63, Nanos::SECOND).unwrap_err();
    assert_eq!(
        problem.to_string(),
        "`limit` of 9223372036854775808 every 1s is too large to be reserved for a `max_wait` of 1s; lower one"
    );
    let mut arguments = Arguments::default();
    arguments.set("limit", Value::Whole(1));
    arguments.set("period", Value::Duration(Nanos::ZERO));
    assert_eq!(Cycle::build(&arguments).unwrap_err().to_string(), "`period` must be longer than 0s");
    arguments.set("limit", Value::Whole(0));
    arguments.set("period", Value::Duration(Nanos::SECOND));
    assert_eq!(Cycle::build(&arguments).unwrap_err().parameter, "limit");
}
