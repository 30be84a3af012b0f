//! `gcra`: the generic cell rate algorithm with virtual scheduling (ITU-T I.371, ATM Forum TM 4.0).
//!
//! TAT' = max(TAT, now) + cost·T; a request is denied iff TAT' − now > burst·T. With `delay_after: n` an admitted
//! request waits max(0, TAT' − now − (n+1)·T), and is denied also iff that is longer than the limit's `max_wait`:
//! nginx `limit_req burst=b delay=n` is `burst: b+1, delay_after: n`.
//!
//! The arithmetic is [`Schedule`]'s. State: 12 bytes.

use crate::algorithm::schedule::{Delay, Schedule};
use crate::algorithm::shared::Named;
use crate::algorithm::token_bucket::TokenBucket;
use crate::algorithm::{Arguments, InvalidParameter, Kind, MAX_WAIT, Parameter, Value};
use crate::units::{Nanos, Rate};

/// The parameters.
#[derive(Clone, Debug, PartialEq, Hash)]
pub struct Gcra {
    schedule: Schedule,
    delay_after: Option<u64>,
}

impl Gcra {
    /// `burst` tokens at once, refilled at `rate`. With `delay_after: n` requests beyond the first n+1 of a burst
    /// wait, at most `max_wait`.
    ///
    /// Errors: a burst that takes too long to refill (see [`Schedule::new`]).
    fn new(rate: Rate, burst: u64, delay_after: Option<u64>, max_wait: Nanos) -> Result<Self, InvalidParameter> {
        let delay = delay_after.map(|after| Delay { after, max_wait });
        let schedule = Schedule::new(rate, burst, delay).map_err(|error| error.invalid("burst"))?;
        Ok(Self { schedule, delay_after })
    }

    /// The rate at which tokens come back.
    pub const fn rate(&self) -> Rate {
        self.schedule.rate()
    }
}

impl From<TokenBucket> for Gcra {
    fn from(bucket: TokenBucket) -> Self {
        Self { schedule: bucket.into_schedule(), delay_after: None }
    }
}

impl Named for Gcra {
    const NAME: &'static str = "gcra";
    const PARAMETERS: &'static [Parameter] = &[
        Parameter::required("rate", Kind::Rate),
        Parameter::tokens("burst"),
        Parameter::optional("delay_after", Kind::Whole),
    ];

    type Core = Schedule;

    fn from_arguments(arguments: &Arguments) -> Result<Self, InvalidParameter> {
        let burst = arguments.required_whole("burst")?;
        Self::new(arguments.rate("rate")?, burst, arguments.whole("delay_after"), arguments.max_wait())
    }

    fn arguments(&self) -> Arguments {
        let mut arguments: Arguments =
            [("rate", Value::Rate(self.rate())), ("burst", Value::Whole(self.schedule.burst()))].into();
        if let Some(after) = self.delay_after {
            arguments.set("delay_after", Value::Whole(after));
            arguments.set(MAX_WAIT, Value::Duration(self.schedule.max_wait()));
        }
        arguments
    }

    fn core(&self) -> &Schedule {
        &self.schedule
    }

    fn description(&self) -> String {
        let burst = self.schedule.burst();
        let every = self.rate().time_for(1);
        match self.delay_after {
            None => format!("{burst} at once, then one every {every}"),
            Some(n) => format!(
                "{} at once, then one every {every}; up to {} wait for their turn",
                n.saturating_add(1).min(burst),
                self.schedule.queue(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{Algorithm, Decision, Value};

    const fn at(nanos: u64) -> Nanos {
        Nanos::new(nanos)
    }

    #[test]
    fn those_beyond_delay_after_wait_and_those_beyond_the_burst_are_denied() {
        let rule = Gcra::new(Rate::new(1, at(100)).unwrap(), 4, Some(1), at(1000)).unwrap();
        let mut state = None;
        for wait in [0, 0, 100, 200] {
            let (decision, after) = rule.decide(state, 1, at(0));
            assert_eq!(decision, Decision::Admit { wait: at(wait) });
            state = after;
        }
        assert_eq!(rule.decide(state, 1, at(0)), (Decision::later(at(100)), state));
        assert_eq!(rule.describe(), "2 at once, then one every 100ns; up to 2 wait for their turn");
    }

    #[test]
    fn the_longest_wait_bounds_the_largest_cost() {
        let rule = Gcra::new(Rate::new(1, at(100)).unwrap(), 10, Some(0), at(250)).unwrap();
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
