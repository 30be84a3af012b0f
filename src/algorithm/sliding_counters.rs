//! `sliding_counters`: one counter for each slot of the window.
//!
//! Slots are counted from the clock's epoch: ⌊now·slots/window⌋; they need not divide the window. A request is denied iff
//! the sum over the current slot and the slots − 1 before it + cost > limit. This is a log whose times are the beginnings
//! of the slots, so the arithmetic is that of [`Sliding`]. State: 40 bytes, and 16 for each slot in use (8 if 1 token was
//! used in it); up to four times of that may be reserved.

use crate::algorithm::sliding::{Grain, Sliding};
use crate::algorithm::{Algorithm, Arguments, InvalidParameter, Parameter, ParameterKind, Value};
use crate::units::Nanos;

/// The algorithm.
#[derive(Clone, Copy, Debug)]
pub struct SlidingCounters;

impl SlidingCounters {
    /// The default number of slots in a window.
    pub const DEFAULT_SLOTS: u64 = 60;
}

impl Algorithm for SlidingCounters {
    const NAME: &'static str = "sliding_counters";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::tokens("limit").at_most(Sliding::MAX_LIMIT),
        Parameter::required("window", ParameterKind::Duration).at_least(1),
        Parameter::optional("slots", ParameterKind::Whole).at_least(1),
    ];

    type Core = Sliding;

    fn from_arguments(arguments: &Arguments) -> Result<Sliding, InvalidParameter> {
        let limit = arguments.required_whole("limit")?;
        let window = arguments.duration("window")?;
        let slots = arguments.whole("slots").unwrap_or(Self::DEFAULT_SLOTS);
        let grain = Grain::new(window.get(), slots);
        Ok(Sliding { limit, window, grain, slots, count_denied: false, min_gap: Nanos::ZERO })
    }

    fn arguments(rule: &Sliding) -> Arguments {
        let Sliding { limit, window, slots, .. } = *rule;
        [("limit", Value::Whole(limit)), ("window", Value::Duration(window)), ("slots", Value::Whole(slots))].into()
    }

    fn describe(rule: &Sliding) -> String {
        format!("{} in any {}, counted in {} slots", rule.limit, rule.window, rule.slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Core, Decision, Value};

    const fn at(nanos: u64) -> Nanos {
        Nanos::new(nanos)
    }

    fn build(limit: u64, window: u64, slots: u64) -> Result<Sliding, InvalidParameter> {
        let mut arguments = Arguments::default();
        arguments.set("limit", Value::Whole(limit));
        arguments.set("window", Value::Duration(at(window)));
        arguments.set("slots", Value::Whole(slots));
        SlidingCounters::build(&arguments)
    }

    #[test]
    fn a_slot_leaves_the_sum_as_a_whole() {
        let rule = build(3, 100, 4).unwrap();
        let state = [0, 24, 25].into_iter().fold(None, |state, time| rule.decide(state, 1, at(time)).1);
        assert_eq!(state.as_ref().map(|log| log.iter().count()), Some(2));
        assert_eq!(rule.decide(state.clone(), 1, at(60)).0, Decision::later(at(40)));
        assert_eq!(rule.headroom(state.as_ref(), at(100)).remaining, Some(2));
        assert_eq!(rule.headroom(state.as_ref(), at(125)).remaining, Some(3));
    }

    #[test]
    fn slots_need_not_divide_the_window() {
        // slots begin at 0, 3⅓, 6⅔, 10
        let rule = build(1, 10, 3).unwrap();
        for (time, retry_after) in [(3, 7), (4, 10), (6, 8), (7, 10), (9, 8)] {
            let (_, state) = rule.decide(None, 1, at(time));
            assert_eq!(rule.decide(state, 1, at(time)).0, Decision::later(at(retry_after)));
        }
    }

    #[test]
    fn a_state_takes_two_words_for_each_slot() {
        assert_eq!(build(1_000_000, 1_000_000, 60).unwrap().largest_state(), 40 + 60 * 16);
        assert_eq!(build(9, 1_000_000, 60).unwrap().largest_state(), 40 + 9 * 8);
    }

    #[test]
    fn slots_may_be_shorter_than_a_nanosecond_but_must_be() {
        let rule = build(1, 1, 60).unwrap();
        let (_, state) = rule.decide(None, 1, at(7));
        assert_eq!(rule.decide(state, 1, at(7)).0, Decision::later(at(1)));
        assert_eq!(build(1, 1, 0).unwrap_err().to_string(), "`slots` must be at least 1");
    }
}
