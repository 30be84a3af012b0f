//! `leaky_bucket`: the meter (J. Turner 1986; ITU-T I.371 calls it the continuous-state leaky bucket).
//!
//! The level drains at `rate`, not below 0. A request adds its cost, and is denied if the level would then be above
//! `capacity`. Requests never wait: for the queue of the same name see `leaky_queue`. The level is the number of missing
//! tokens, so the arithmetic is that of [`Schedule`]. State: 12 bytes.

use crate::algorithm::schedule::Schedule;
use crate::algorithm::{Algorithm, Arguments, InvalidParameter, Parameter, ParameterKind, Value};

/// The algorithm.
#[derive(Clone, Copy, Debug)]
pub struct LeakyBucket;

impl Algorithm for LeakyBucket {
    const NAME: &'static str = "leaky_bucket";
    const PARAMETERS: &'static [Parameter] =
        &[Parameter::required("rate", ParameterKind::Rate), Parameter::tokens("capacity")];

    type Core = Schedule;

    fn from_arguments(arguments: &Arguments) -> Result<Schedule, InvalidParameter> {
        let capacity = arguments.required_whole("capacity")?;
        Schedule::new(arguments.rate("rate")?, capacity, None).map_err(|error| error.invalid("capacity"))
    }

    fn arguments(rule: &Schedule) -> Arguments {
        [("rate", Value::Rate(rule.rate)), ("capacity", Value::Whole(rule.burst))].into()
    }

    fn describe(rule: &Schedule) -> String {
        format!("{} at once, then {} as they drain", rule.burst, rule.rate.describe_interval())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Core, Decision, Value};
    use crate::units::{Nanos, Rate};

    fn build(capacity: u64) -> Result<Schedule, InvalidParameter> {
        let mut arguments = Arguments::default();
        arguments.set("rate", Value::Rate(Rate::new(1, Nanos::SECOND).unwrap()));
        arguments.set("capacity", Value::Whole(capacity));
        LeakyBucket::build(&arguments)
    }

    #[test]
    fn a_request_that_would_overflow_is_denied_until_enough_has_drained() {
        let rule = build(3).unwrap();
        let (_, state) = rule.decide(None, 2, Nanos::ZERO);
        assert_eq!(rule.decide(state, 2, Nanos::ZERO), (Decision::later(Nanos::SECOND), state));
        assert_eq!(rule.decide(state, 2, Nanos::SECOND).0, Decision::ADMIT);
        assert_eq!(rule.decide(state, 4, Nanos::SECOND).0, Decision::never(3));
    }

    #[test]
    fn errors_name_the_capacity() {
        assert!(build(0).unwrap_err().to_string().starts_with("`capacity` must be at least 1"));
    }
}
