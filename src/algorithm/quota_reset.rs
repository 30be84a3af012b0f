//! `quota_reset`: a quota for a window that starts at the key's first request.
//!
//! An admitted request starts a window if there is none, or if the last one is over: now ≥ start + window. A request is
//! denied iff used + cost > limit. The arithmetic is that of [`Counter`]. State: 16 bytes.

use crate::algorithm::counter::{Counter, Window};
use crate::algorithm::{Algorithm, Arguments, InvalidParameter, Parameter, ParameterKind, Value};

/// The algorithm.
#[derive(Clone, Copy, Debug)]
pub struct QuotaReset;

impl Algorithm for QuotaReset {
    const NAME: &'static str = "quota_reset";
    const PARAMETERS: &'static [Parameter] =
        &[Parameter::tokens("limit"), Parameter::required("window", ParameterKind::Duration).at_least(1)];

    type Core = Counter;

    fn from_arguments(arguments: &Arguments) -> Result<Counter, InvalidParameter> {
        let limit = arguments.required_whole("limit")?;
        let window = Window::FromFirst(arguments.duration("window")?);
        Ok(Counter { limit, window })
    }

    fn arguments(rule: &Counter) -> Arguments {
        let length = rule.window.usual_length();
        [("limit", Value::Whole(rule.limit)), ("window", Value::Duration(length))].into()
    }

    fn describe(rule: &Counter) -> String {
        format!("{} {}", rule.limit, rule.window.description())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Core, Decision, Value};
    use crate::units::Nanos;

    #[test]
    fn the_window_starts_at_the_first_request() {
        let mut arguments = Arguments::default();
        arguments.set("limit", Value::Whole(3));
        arguments.set("window", Value::Duration(Nanos::new(100)));
        let rule = QuotaReset::build(&arguments).unwrap();
        assert_eq!(QuotaReset::describe(&rule), "3 in 100ns from the first request on, then all anew");

        let at = Nanos::new;
        let (_, state) = rule.decide(None, 2, at(70));
        assert_eq!(rule.headroom(state.as_ref(), at(80)).remaining, Some(1));
        assert_eq!(rule.decide(state, 2, at(169)), (Decision::later(at(1)), state));
        assert_eq!(rule.decide(state, 4, at(169)), (Decision::never(3), state));
        let (decision, state) = rule.decide(state, 2, at(170));
        assert_eq!(decision, Decision::ADMIT);
        assert_eq!(rule.headroom(state.as_ref(), at(200)).until_full, at(70));
    }
}
