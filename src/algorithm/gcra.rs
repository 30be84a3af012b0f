//! `gcra`: the generic cell rate algorithm with virtual scheduling (ITU-T I.371, ATM Forum TM 4.0).
//!
//! TAT' = max(TAT, now) + cost·T; a request is denied iff TAT' − now > burst·T. With `delay_after: n` an admitted
//! request waits max(0, TAT' − now − (n+1)·T), and is also denied if that is longer than the limit's `max_wait`:
//! nginx `limit_req burst=b delay=n` is `burst: b+1, delay_after: n`.
//!
//! The arithmetic is that of [`Schedule`]. State: 12 bytes.

use crate::algorithm::schedule::{Delay, Schedule};
use crate::algorithm::{Algorithm, Arguments, InvalidParameter, MAX_WAIT, Parameter, ParameterKind, Value};

/// The algorithm.
#[derive(Clone, Copy, Debug)]
pub struct Gcra;

impl Algorithm for Gcra {
    const NAME: &'static str = "gcra";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::required("rate", ParameterKind::Rate),
        Parameter::tokens("burst"),
        Parameter::optional("delay_after", ParameterKind::Whole),
    ];

    type Core = Schedule;

    fn from_arguments(arguments: &Arguments) -> Result<Schedule, InvalidParameter> {
        let burst = arguments.required_whole("burst")?;
        let delay = arguments.whole("delay_after").map(|after| Delay { after, max_wait: arguments.max_wait() });
        Schedule::new(arguments.rate("rate")?, burst, delay).map_err(|error| error.invalid("burst"))
    }

    fn arguments(rule: &Schedule) -> Arguments {
        let mut arguments: Arguments = [("rate", Value::Rate(rule.rate)), ("burst", Value::Whole(rule.burst))].into();
        if let Some(after) = rule.delay_after {
            arguments.set("delay_after", Value::Whole(after));
            arguments.set(MAX_WAIT, Value::Duration(rule.max_wait()));
        }
        arguments
    }

    fn describe(rule: &Schedule) -> String {
        let burst = rule.burst;
        let interval = rule.rate.describe_interval();
        match rule.delay_after {
            None => format!("{burst} at once, then {interval}"),
            Some(n) => {
                let at_once = n.saturating_add(1).min(burst);
                format!("{at_once} at once, then {interval}; {}", rule.describe_queue())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Core, Decision, Value};
    use crate::units::{Nanos, Rate};

    const fn at(nanos: u64) -> Nanos {
        Nanos::new(nanos)
    }

    fn delaying(burst: u64, after: u64, max_wait: Nanos) -> Schedule {
        Schedule::new(Rate::new(1, at(100)).unwrap(), burst, Some(Delay { after, max_wait })).unwrap()
    }

    #[test]
    fn requests_beyond_delay_after_wait_and_requests_beyond_the_burst_are_denied() {
        let rule = delaying(4, 1, at(1000));
        let mut state = None;
        for wait in [0, 0, 100, 200] {
            let (decision, after) = rule.decide(state, 1, at(0));
            assert_eq!(decision, Decision::Admit { wait: at(wait) });
            state = after;
        }
        assert_eq!(rule.decide(state, 1, at(0)), (Decision::later(at(100)), state));
        assert_eq!(Gcra::describe(&rule), "2 at once, then one every 100ns; up to 2 wait for their turn");
        let short = delaying(2, 0, at(50));
        let (_, after) = short.decide(None, 1, at(0));
        assert_eq!(short.decide(after, 1, at(60)).0, Decision::Admit { wait: at(40) });
        assert_eq!(Gcra::describe(&short), "1 at once, then one every 100ns; one waits for its turn");
    }

    #[test]
    fn the_longest_wait_bounds_the_largest_cost() {
        let rule = delaying(10, 0, at(250));
        assert_eq!(rule.largest_cost(), Some(3));
        assert_eq!(rule.decide(None, 3, at(0)).0, Decision::Admit { wait: at(200) });
        assert_eq!(rule.decide(None, 4, at(0)).0, Decision::never(3));
    }

    #[test]
    fn a_burst_of_nothing_is_refused() {
        let mut arguments = Arguments::default();
        arguments.set("rate", Value::Rate(Rate::new(1, at(100)).unwrap()));
        arguments.set("burst", Value::Whole(0));
        let error = Gcra::build(&arguments).unwrap_err().to_string();
        assert!(error.starts_with("`burst` must be at least 1; "), "{error}");
    }
}
