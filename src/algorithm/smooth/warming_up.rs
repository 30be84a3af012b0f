//! The shape of `smooth_warming_up` (Guava SmoothWarmingUp): the price of a stored permit depends on their number. It is
//! stable up to the threshold, and then rises along a straight line to cold = stable·cold_factor at max.
//!
//! threshold = 0.5·warm_up/stable; max = threshold + 2·warm_up/(stable + cold), so that going from max to the
//! threshold takes `warm_up`; slope = (cold − stable)/(max − threshold); cool = warm_up/max. The price of several permits
//! is the area under the line; the parts above and below the threshold are truncated separately. A fresh key is cold:
//! stored = max.

use crate::algorithm::smooth::{RATE, Refund, Shape, Undo, micros, stable};
use crate::algorithm::{Arguments, Evictability, InvalidParameter, Parameter, ParameterKind, Policy, Value};
use crate::units::{Nanos, Rate};

/// The full rate is reached after `warm_up` of use, from a rate of rate/`cold_factor`.
#[derive(Clone, Debug, PartialEq)]
pub struct WarmingUp {
    warm_up: Nanos,
    cold_factor: f64,
    stable: f64,
    threshold: f64,
    most: f64,
    slope: f64,
    cool: f64,
}

/// The default of `cold_factor`, and its largest value.
const COLD_FACTOR: f64 = 3.0;
const COLDEST: u64 = 1_000_000;

impl WarmingUp {
    /// The price of one permit at `permits` permits above the threshold.
    fn price_at(&self, permits: f64) -> f64 {
        self.stable + permits * self.slope
    }
}

impl Shape for WarmingUp {
    const NAME: &'static str = "smooth_warming_up";
    const PARAMETERS: &'static [Parameter] = &[
        RATE,
        Parameter::required("warm_up", ParameterKind::Duration)
            .at_least(1_000)
            .advice("to start at the full rate use `smooth_bursty`"),
        Parameter::optional("cold_factor", ParameterKind::Decimal)
            .at_least(1)
            .at_most(COLDEST)
            .advice("it says how many times slower a cold start is"),
    ];

    fn build(arguments: &Arguments, rate: Rate) -> Result<Self, InvalidParameter> {
        let warm_up = arguments.duration("warm_up")?;
        let cold_factor = arguments.decimal("cold_factor").unwrap_or(COLD_FACTOR);
        let (stable, time) = (stable(rate), micros(warm_up) as f64);
        let cold = stable * cold_factor;
        let threshold = 0.5 * time / stable;
        let most = threshold + 2.0 * time / (stable + cold);
        let slope = (cold - stable) / (most - threshold);
        Ok(Self { warm_up, cold_factor, stable, threshold, most, slope, cool: time / most })
    }

    fn arguments(&self) -> Arguments {
        [("warm_up", Value::Duration(self.warm_up)), ("cold_factor", Value::Decimal(self.cold_factor))].into()
    }

    fn most(&self) -> f64 {
        self.most
    }

    fn fresh(&self) -> f64 {
        self.most
    }

    fn cool(&self) -> f64 {
        self.cool
    }

    /// The more permits are stored, the colder the key is, and the more each permit costs.
    fn stricter(&self, one: f64, other: f64) -> f64 {
        one.max(other)
    }

    fn price(&self, stored: f64, taken: f64) -> u64 {
        let above = stored - self.threshold;
        if above <= 0.0 {
            return (self.stable * taken) as u64;
        }
        let cold = above.min(taken);
        let area = cold * (self.price_at(above) + self.price_at(above - cold)) / 2.0;
        (area as u64).saturating_add((self.stable * (taken - cold)) as u64)
    }

    /// All permits come back as stored ones, which makes the key colder if anything. For the last charge, if all its
    /// permits had been stored, time comes back at the price that they had; otherwise at the lowest price, less the time
    /// that may have passed unused without the charge. That time began with the charge's reservation, which at the highest
    /// price began earlier by the surcharge.
    fn undo(&self, refund: &Refund) -> Undo {
        let stored = self.most.min(refund.stored + refund.cost);
        let lowest = refund.cost * self.stable;
        let most_stored = refund.cost.min(self.most);
        let surcharge = self.price(self.most, most_stored) as f64 - most_stored * self.stable;
        let earlier = match refund.latest {
            true if refund.stored > 0.0 => self.price(stored, refund.cost),
            true => lowest as u64,
            false => lowest.min(refund.left - surcharge) as u64,
        };
        Undo { stored, earlier }
    }

    /// A key that has cooled down is the same as a fresh one.
    fn evictability(full: Nanos) -> Evictability {
        Evictability::Fresh(full)
    }

    fn policy(&self, rate: Rate) -> Policy {
        Policy { quota: rate.tokens(), window: Some(rate.period()) }
    }

    fn describe(&self, rate: Rate) -> String {
        format!(
            "{rate}, the next one after {}; a cold start is {} times slower and warm after {}; each request is paid for by the next",
            rate.time_for(1),
            self.cold_factor,
            self.warm_up,
        )
    }

    fn shared_form(&self) -> (char, f64, f64) {
        ('w', self.threshold, self.slope)
    }
}
