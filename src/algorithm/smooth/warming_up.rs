//! `smooth_warming_up` (Guava SmoothWarmingUp): the price of a stored permit depends on their number. It is stable up to the
//! threshold, and then rises along a straight line to cold = stable·cold_factor at max.
//!
//! threshold = 0.5·warm_up/stable; max = threshold + 2·warm_up/(stable + cold), so that going from max to the
//! threshold takes `warm_up`; slope = (cold − stable)/(max − threshold); cool = warm_up/max. The price of several permits
//! is the area under the line; the parts above and below the threshold are truncated separately. A fresh key is cold:
//! stored = max.

use crate::algorithm::smooth::{RATE, Shape, Smooth, micros, stable};
use crate::algorithm::{Algorithm, Arguments, InvalidParameter, Parameter, ParameterKind};

/// Stored permits mean that there were no requests for a while, and cost more: a cold start.
#[derive(Clone, Copy, Debug)]
pub struct SmoothWarmingUp;

/// The default of `cold_factor`, and its largest value.
const COLD_FACTOR: f64 = 3.0;
const COLDEST: u64 = 1_000_000;

impl Algorithm for SmoothWarmingUp {
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

    type Core = Smooth;

    fn from_arguments(arguments: &Arguments) -> Result<Smooth, InvalidParameter> {
        let (rate, warm_up) = (arguments.rate("rate")?, arguments.duration("warm_up")?);
        let cold_factor = arguments.decimal("cold_factor").unwrap_or(COLD_FACTOR);
        let (stable, time) = (stable(rate), micros(warm_up) as f64);
        let cold = stable * cold_factor;
        let threshold = 0.5 * time / stable;
        let max_stored = threshold + 2.0 * time / (stable + cold);
        Ok(Smooth {
            rate,
            max_wait: micros(arguments.max_wait()),
            stable,
            max_stored,
            cool: time / max_stored,
            threshold,
            slope: (cold - stable) / (max_stored - threshold),
            shape: Shape::WarmingUp { warm_up, cold_factor },
        })
    }

    fn arguments(rule: &Smooth) -> Arguments {
        rule.arguments()
    }

    fn describe(rule: &Smooth) -> String {
        rule.describe()
    }
}
