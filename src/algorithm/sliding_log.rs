//! `sliding_log`: the times of all requests admitted in the last window.
//!
//! A request admitted at x counts at t while t − x < window; a request is denied iff the sum of the costs that count +
//! cost > limit. With `count_denied` denied requests are logged with their cost too, also those that can never fit, and
//! before their own retry time is computed. With `min_gap` a request closer than that to the last one in the log is denied.
//!
//! The arithmetic is that of [`Sliding`]. State: 40 bytes, and 8 for each time with a cost of 1 in the window, 16 with
//! another; up to four times of that may be reserved.

use crate::algorithm::sliding::{Grain, Sliding};
use crate::algorithm::{Algorithm, Arguments, InvalidParameter, Parameter, ParameterKind, Value};
use crate::units::Nanos;

/// The algorithm.
#[derive(Clone, Copy, Debug)]
pub struct SlidingLog;

impl Algorithm for SlidingLog {
    const NAME: &'static str = "sliding_log";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::tokens("limit").at_most(Sliding::MAX_LIMIT),
        Parameter::required("window", ParameterKind::Duration).at_least(1),
        Parameter::optional("count_denied", ParameterKind::Flag),
        Parameter::optional("min_gap", ParameterKind::Duration),
    ];

    type Core = Sliding;

    fn from_arguments(arguments: &Arguments) -> Result<Sliding, InvalidParameter> {
        let limit = arguments.required_whole("limit")?;
        let window = arguments.duration("window")?;
        let min_gap = arguments.duration_or("min_gap", Nanos::ZERO)?;
        if min_gap > window {
            let problem =
                format!("must not be longer than the window; write `limit: 1` and `window: {min_gap}` instead");
            return Err(InvalidParameter::new("min_gap", problem));
        }
        let count_denied = arguments.flag("count_denied");
        Ok(Sliding { limit, window, grain: Grain::NANOSECOND, slots: 0, count_denied, min_gap })
    }

    fn arguments(rule: &Sliding) -> Arguments {
        [
            ("limit", Value::Whole(rule.limit)),
            ("window", Value::Duration(rule.window)),
            ("min_gap", Value::Duration(rule.min_gap)),
            ("count_denied", Value::Flag(rule.count_denied)),
        ]
        .into()
    }

    fn describe(rule: &Sliding) -> String {
        let mut words = format!("{} in any {}", rule.limit, rule.window);
        if rule.min_gap > Nanos::ZERO {
            words.push_str(&format!(", at least {} apart", rule.min_gap));
        }
        if rule.count_denied {
            words.push_str(", denied ones counted too");
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Core, Decision, Value};
    use crate::units::Cost;

    type State = <Sliding as Core>::State;

    const fn at(nanos: u64) -> Nanos {
        Nanos::new(nanos)
    }

    fn build(limit: u64, settings: &[(&'static str, Value)]) -> Result<Sliding, InvalidParameter> {
        let mut arguments = Arguments::default();
        arguments.set("limit", Value::Whole(limit));
        arguments.set("window", Value::Duration(at(100)));
        for (name, value) in settings {
            arguments.set(name, value.clone());
        }
        SlidingLog::build(&arguments)
    }

    /// The state after requests at these times with these costs.
    fn after(rule: &Sliding, requests: &[(u64, Cost)]) -> Option<State> {
        requests.iter().fold(None, |state, (time, cost)| rule.decide(state, *cost, at(*time)).1)
    }

    #[test]
    fn a_request_fits_when_enough_has_left_the_window() {
        let rule = build(5, &[]).unwrap();
        let state = after(&rule, &[(10, 2), (20, 1), (30, 2)]);
        assert_eq!(rule.decide(state.clone(), 1, at(40)), (Decision::later(at(70)), state.clone()));
        assert_eq!(rule.decide(state.clone(), 3, at(40)).0, Decision::later(at(80)));
        assert_eq!(rule.decide(state.clone(), 5, at(40)).0, Decision::later(at(90)));
        assert_eq!(rule.decide(state.clone(), 6, at(40)), (Decision::never(5), state.clone()));
        assert_eq!(rule.decide(state.clone(), 2, at(110)).0, Decision::ADMIT);
        let headroom = rule.headroom(state.as_ref(), at(115));
        assert_eq!((headroom.remaining, headroom.until_more, headroom.until_full), (Some(2), at(5), at(15)));
    }

    #[test]
    fn a_denied_request_that_counts_stands_in_its_own_way() {
        let rule = build(3, &[("count_denied", Value::Flag(true))]).unwrap();
        let state = after(&rule, &[(0, 1), (10, 2)]);
        // at 100 the first request has left the window, but the denied one counts
        let (decision, state) = rule.decide(state, 1, at(20));
        assert_eq!(decision, Decision::later(at(90)));
        assert_eq!(rule.decide(state.clone(), 2, at(109)).0, Decision::later(at(100)));
        assert_eq!(rule.decide(state.clone(), 2, at(110)).0, Decision::ADMIT);
        let (decision, state) = rule.decide(state, 9, at(110));
        assert_eq!(decision, Decision::never(3));
        assert_eq!(rule.headroom(state.as_ref(), at(209)).remaining, Some(0));
        assert_eq!(rule.headroom(state.as_ref(), at(210)).remaining, Some(3));
        assert!(rule.denials_count());
    }

    #[test]
    fn denials_do_not_fill_the_memory() {
        let rule = build(3, &[("count_denied", Value::Flag(true))]).unwrap();
        let flood: Vec<_> = (0..10_000).map(|time| (time, 1)).collect();
        let state = after(&rule, &flood).unwrap();
        assert_eq!(state.iter().count(), 3);
        assert_eq!(rule.decide(Some(state), 1, at(10_000)).0, Decision::later(at(98)));
    }

    #[test]
    fn two_requests_are_a_gap_apart() {
        let rule = build(3, &[("min_gap", Value::Duration(at(10)))]).unwrap();
        assert_eq!(SlidingLog::describe(&rule), "3 in any 100ns, at least 10ns apart");
        let state = after(&rule, &[(0, 1)]);
        assert_eq!(rule.headroom(state.as_ref(), at(9)).remaining, Some(0));
        assert_eq!(rule.decide(state.clone(), 1, at(9)).0, Decision::later(at(1)));
        let state = rule.decide(state, 2, at(10)).1;
        assert_eq!(rule.decide(state.clone(), 1, at(95)).0, Decision::later(at(5)));
        assert_eq!(rule.decide(state, 1, at(5)).0, Decision::later(at(95)));
        assert_eq!(build(3, &[("min_gap", Value::Duration(at(101)))]).unwrap_err().parameter, "min_gap");
    }

    #[test]
    fn a_refund_takes_the_request_out_of_the_log() {
        let rule = build(3, &[]).unwrap();
        let state = after(&rule, &[(0, 1), (10, 2), (100, 1)]);
        let back = rule.refund(state.clone().unwrap(), 2, at(110), at(105));
        assert_eq!(rule.headroom(back.as_ref(), at(105)).remaining, Some(2));
        assert_eq!(rule.refund(state.clone().unwrap(), 1, at(100), at(105)), state);
    }

    #[test]
    fn a_changed_window_says_what_of_the_log_counts() {
        let rule = build(3, &[]).unwrap();
        let short = build(2, &[("window", Value::Duration(at(20)))]).unwrap();
        let state = after(&rule, &[(0, 1), (10, 1)]);
        let carried = short.migrate_state(&rule, state.unwrap(), at(25));
        assert_eq!(short.headroom(carried.as_ref(), at(25)).remaining, Some(1));
    }

    #[test]
    fn a_state_takes_a_word_for_each_token_or_two_for_each_nanosecond() {
        assert_eq!(build(7, &[]).unwrap().largest_state(), 40 + 7 * 8);
        assert_eq!(build(1 << 62, &[]).unwrap().largest_state(), 40 + 100 * 16);
        let endless = build(1 << 62, &[("window", Value::Duration(Nanos::MAX))]).unwrap();
        assert_eq!(endless.largest_state(), u64::MAX);
    }

    #[test]
    fn a_limit_that_cannot_be_logged_is_refused() {
        assert!(build(1 << 62, &[]).is_ok());
        let error = build(1 << 63, &[]).unwrap_err();
        assert!(error.to_string().starts_with("`limit` must be at most 4611686018427387904"));
    }
}
