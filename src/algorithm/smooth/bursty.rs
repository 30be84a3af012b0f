//! `smooth_bursty` (Guava SmoothBursty): up to max = max_burst·rate permits are stored, one in the time that one takes at
//! the rate, and cost nothing. A fresh key has none.

use crate::algorithm::smooth::{RATE, Shape, Smooth, micros, stable};
use crate::algorithm::{Algorithm, Arguments, InvalidParameter, Parameter, ParameterKind};
use crate::units::Nanos;

/// Stored permits cost nothing: bursts up to the number of stored permits.
#[derive(Clone, Copy, Debug)]
pub struct SmoothBursty;

/// The default of `max_burst`.
const MAX_BURST: Nanos = Nanos::SECOND;

impl Algorithm for SmoothBursty {
    const NAME: &'static str = "smooth_bursty";
    const PARAMETERS: &'static [Parameter] = &[RATE, Parameter::optional("max_burst", ParameterKind::Duration)];

    type Core = Smooth;

    fn from_arguments(arguments: &Arguments) -> Result<Smooth, InvalidParameter> {
        let (rate, max_burst) = (arguments.rate("rate")?, arguments.duration_or("max_burst", MAX_BURST)?);
        let stable = stable(rate);
        let seconds = max_burst.get() as f64 / 1e9;
        Ok(Smooth {
            rate,
            max_wait: micros(arguments.max_wait()),
            stable,
            max_stored: seconds * rate.per_second(),
            cool: stable,
            threshold: 0.0,
            slope: 0.0,
            shape: Shape::Bursty { max_burst },
        })
    }

    fn arguments(rule: &Smooth) -> Arguments {
        rule.arguments()
    }

    fn describe(rule: &Smooth) -> String {
        rule.describe()
    }
}
