//! `leaky_queue`: the leaky bucket as a queue: departures 1/rate apart, first come first served.
//!
//! A request departs at d = max(now, last departure + T), and waits d − now. It is denied iff the wait would be above
//! capacity·T or above the limit's `max_wait`. A request of cost c takes the places of c requests that arrive together,
//! and departs with the last of them. This is `gcra` with a burst of capacity + 1 and `delay_after: 0`; with a capacity
//! of 0 no request waits. The arithmetic is that of [`Schedule`]. State: 12 bytes.

use crate::algorithm::schedule::{Delay, Schedule, TooLarge};
use crate::algorithm::{Algorithm, Arguments, InvalidParameter, MAX_WAIT, Parameter, ParameterKind, Value};

/// The algorithm.
#[derive(Clone, Copy, Debug)]
pub struct LeakyQueue;

impl Algorithm for LeakyQueue {
    const NAME: &'static str = "leaky_queue";
    const PARAMETERS: &'static [Parameter] =
        &[Parameter::required("rate", ParameterKind::Rate), Parameter::required("capacity", ParameterKind::Whole)];

    type Core = Schedule;

    fn from_arguments(arguments: &Arguments) -> Result<Schedule, InvalidParameter> {
        let capacity = arguments.required_whole("capacity")?;
        let rate = arguments.rate("rate")?;
        let invalid = |max_burst: u64| TooLarge { max_burst: max_burst.saturating_sub(1), rate }.invalid("capacity");
        let burst = capacity.checked_add(1).ok_or_else(|| invalid(u64::MAX))?;
        let delay = Delay { after: 0, max_wait: arguments.max_wait() };
        Schedule::new(rate, burst, Some(delay)).map_err(|error| invalid(error.max_burst))
    }

    fn arguments(rule: &Schedule) -> Arguments {
        let capacity = Value::Whole(rule.burst.saturating_sub(1));
        let max_wait = Value::Duration(rule.max_wait());
        [("rate", Value::Rate(rule.rate)), ("capacity", capacity), (MAX_WAIT, max_wait)].into()
    }

    fn describe(rule: &Schedule) -> String {
        format!("{}; {}", rule.rate.describe_interval(), rule.describe_queue())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Core, Decision, MAX_WAIT, Value};
    use crate::units::{Nanos, Rate};

    fn build(capacity: u64, max_wait: u64) -> Result<Schedule, InvalidParameter> {
        let mut arguments = Arguments::default();
        arguments.set("rate", Value::Rate(Rate::new(3, Nanos::SECOND).unwrap()));
        arguments.set("capacity", Value::Whole(capacity));
        arguments.set(MAX_WAIT, Value::Duration(Nanos::new(max_wait)));
        LeakyQueue::build(&arguments)
    }

    #[test]
    fn departures_are_a_token_apart() {
        let rule = build(2, u64::MAX).unwrap();
        let mut state = None;
        for wait in [0, 333_333_334, 666_666_667] {
            let (decision, after) = rule.decide(state, 1, Nanos::ZERO);
            assert_eq!(decision, Decision::Admit { wait: Nanos::new(wait) });
            state = after;
        }
        assert_eq!(rule.decide(state, 1, Nanos::ZERO), (Decision::later(Nanos::new(333_333_334)), state));
        assert_eq!(LeakyQueue::describe(&rule), "one every 333.333ms; up to 2 wait for their turn");
    }

    #[test]
    fn with_no_capacity_or_no_patience_nothing_waits() {
        for rule in [build(0, u64::MAX).unwrap(), build(5, 0).unwrap()] {
            let (decision, state) = rule.decide(None, 1, Nanos::ZERO);
            assert_eq!(decision, Decision::ADMIT);
            assert_eq!(rule.decide(state, 1, Nanos::ZERO).0, Decision::later(Nanos::new(333_333_334)));
            assert_eq!(LeakyQueue::describe(&rule), "one every 333.333ms; none waits");
        }
    }

    #[test]
    fn one_that_leaves_the_queue_gives_its_place_back() {
        let rule = build(5, u64::MAX).unwrap();
        let (_, first) = rule.decide(None, 1, Nanos::ZERO);
        let (_, second) = rule.decide(first, 1, Nanos::ZERO);
        let full_at = rule.headroom(second.as_ref(), Nanos::ZERO).until_full;
        let (_, third) = rule.decide(second, 1, Nanos::ZERO);
        let gone = rule.refund(third.unwrap(), 1, full_at, Nanos::new(300_000_000));
        assert_eq!(gone, second);
    }

    #[test]
    fn the_largest_capacity_is_said_in_its_own_terms() {
        let error = build(u64::MAX, 0).unwrap_err().to_string();
        let max_capacity: u64 = error.rsplit(' ').next().unwrap().parse().unwrap();
        assert!(error.starts_with("`capacity` is more than"));
        assert!(build(max_capacity, 0).is_ok());
        assert!(build(max_capacity + 1, 0).is_err());
    }
}
