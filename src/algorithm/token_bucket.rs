//! `token_bucket`: a bucket of `burst` tokens, full at first, refilled at `rate`; a request takes its cost or is
//! denied.
//!
//! The state is the time at which the bucket will be full again, so nothing refills it between requests: the same rule as
//! `gcra` without `delay_after`. The arithmetic is that of [`Schedule`]. State: 12 bytes.

use crate::algorithm::schedule::Schedule;
use crate::algorithm::{Algorithm, Arguments, InvalidParameter, Parameter, ParameterKind, Value};

/// The algorithm.
#[derive(Clone, Copy, Debug)]
pub struct TokenBucket;

impl Algorithm for TokenBucket {
    const NAME: &'static str = "token_bucket";
    const PARAMETERS: &'static [Parameter] =
        &[Parameter::required("rate", ParameterKind::Rate), Parameter::tokens("burst")];

    type Core = Schedule;

    fn from_arguments(arguments: &Arguments) -> Result<Schedule, InvalidParameter> {
        let burst = arguments.required_whole("burst")?;
        Schedule::new(arguments.rate("rate")?, burst, None).map_err(|error| error.invalid("burst"))
    }

    fn arguments(rule: &Schedule) -> Arguments {
        [("rate", Value::Rate(rule.rate)), ("burst", Value::Whole(rule.burst))].into()
    }

    fn describe(rule: &Schedule) -> String {
        format!("{} at once, then {}", rule.burst, rule.rate.describe_interval())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Core, Decision, Value};
    use crate::units::{Nanos, Rate};

    fn arguments(rate: Rate, burst: u64) -> Arguments {
        let mut arguments = Arguments::default();
        arguments.set("rate", Value::Rate(rate));
        arguments.set("burst", Value::Whole(burst));
        arguments
    }

    #[test]
    fn it_starts_full_and_refills_one_by_one() {
        let rule = TokenBucket::build(&arguments(Rate::new(10, Nanos::SECOND).unwrap(), 2)).unwrap();
        assert_eq!(TokenBucket::describe(&rule), "2 at once, then one every 100ms");
        let (decision, state) = rule.decide(None, 2, Nanos::ZERO);
        assert_eq!(decision, Decision::ADMIT);
        assert_eq!(rule.decide(state, 1, Nanos::new(99_999_999)), (Decision::later(Nanos::new(1)), state));
        assert_eq!(rule.decide(state, 1, Nanos::new(100_000_000)).0, Decision::ADMIT);
    }

    #[test]
    fn a_burst_that_cannot_be_counted_is_refused_with_the_largest_that_can() {
        let error = TokenBucket::build(&arguments(Rate::new(1, Nanos::MAX).unwrap(), 1 << 63)).unwrap_err();
        let most = "`burst` is more than can be counted exactly at 1/18446744073709551615ns; write at most 4294967295";
        assert_eq!(error.to_string(), most);
    }
}
