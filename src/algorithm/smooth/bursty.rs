//! The shape of `smooth_bursty` (Guava SmoothBursty): up to max = max_burst·rate permits are stored, one in the time that
//! one takes at the rate, and cost nothing. A fresh key has none.

use crate::algorithm::smooth::{RATE, Refund, Shape, Undo, stable};
use crate::algorithm::{Arguments, Evictability, InvalidParameter, Parameter, ParameterKind, Policy, Value};
use crate::units::{Nanos, Rate};

/// Up to `max_burst` of unused time is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Bursty {
    max_burst: Nanos,
    most: f64,
    stable: f64,
}

/// The default of `max_burst`.
const MAX_BURST: Nanos = Nanos::SECOND;

impl Shape for Bursty {
    const NAME: &'static str = "smooth_bursty";
    const PARAMETERS: &'static [Parameter] = &[RATE, Parameter::optional("max_burst", ParameterKind::Duration)];

    fn build(arguments: &Arguments, rate: Rate) -> Result<Self, InvalidParameter> {
        let max_burst = arguments.duration_or("max_burst", MAX_BURST)?;
        let seconds = max_burst.get() as f64 / 1e9;
        Ok(Self { max_burst, most: seconds * rate.per_second(), stable: stable(rate) })
    }

    fn arguments(&self) -> Arguments {
        [("max_burst", Value::Duration(self.max_burst))].into()
    }

    fn most(&self) -> f64 {
        self.most
    }

    fn fresh(&self) -> f64 {
        0.0
    }

    fn cool(&self) -> f64 {
        self.stable
    }

    fn stricter(&self, one: f64, other: f64) -> f64 {
        one.min(other)
    }

    fn price(&self, _stored: f64, _taken: f64) -> u64 {
        0
    }

    /// A stored permit is worth the time of one permit, so everything comes back as time. Without the charge, the time since
    /// then would have stored permits only up to the most; time beyond that is not refunded.
    fn undo(&self, refund: &Refund) -> Undo {
        let price = refund.cost * self.stable;
        let unforgiven = refund.left + refund.cost.min(self.most) * self.stable;
        let earlier = if refund.latest { price } else { price.min(unforgiven) };
        Undo { stored: refund.stored, earlier: earlier as u64 }
    }

    /// A fresh key has no stored permits: evicting a full one can only admit less.
    fn evictability(full: Nanos) -> Evictability {
        Evictability::Safe(full)
    }

    fn policy(&self, rate: Rate) -> Policy {
        let quota = (self.most as u64).max(1);
        Policy { quota, window: Some(rate.time_for(quota)) }
    }

    fn describe(&self, rate: Rate) -> String {
        let saved = match self.max_burst {
            Nanos::ZERO => "unused time is not saved".to_owned(),
            max_burst => format!("up to {max_burst} of unused time is saved for a burst"),
        };
        format!("{rate}, the next one after {}; {saved}; each request is paid for by the next", rate.time_for(1))
    }

    fn shared_form(&self) -> (char, f64, f64) {
        ('b', 0.0, 0.0)
    }
}
