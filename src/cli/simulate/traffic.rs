//! The traffic of a simulation: recorded, or generated from flags.

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::values::{count, duration, longer_than_nothing, rate, whole};
use crate::simulation::arrivals::{Arrivals, Shape};
use crate::simulation::trace::{Trace, TraceError};
use crate::simulation::{SimulationError, Traffic};
use crate::units::{Nanos, Rate};

/// The most requests that are generated: more would take hours.
const MAX_ARRIVALS: f64 = 1e9;

/// The error where the flags give no traffic.
pub(in crate::cli) const NO_TRAFFIC: &str = "give --trace, or --rate and --for";

/// Recorded traffic, or how to make some up.
#[derive(Args, Clone, Debug)]
#[group(skip)]
pub struct TrafficArgs {
    /// Recorded traffic: a CSV file with at least the columns t_ns and key, or `-` for standard input
    #[arg(long, value_name = "FILE")]
    #[arg(conflicts_with_all = ["rate", "duration", "arrivals", "seed", "burst_size", "on", "off"])]
    pub trace: Option<PathBuf>,
    /// The mean rate of generated traffic
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub rate: Option<Rate>,
    /// The duration of generated traffic
    #[arg(long = "for", value_name = "DURATION", value_parser = longer_than_nothing)]
    pub duration: Option<Nanos>,
    /// How generated traffic is distributed over time
    #[arg(long, value_enum, default_value_t = Spread::Uniform)]
    pub arrivals: Spread,
    /// The seed of the random numbers; the same seed gives the same traffic everywhere
    #[arg(long, value_name = "NUMBER", default_value_t = 1, value_parser = whole, allow_negative_numbers = true)]
    pub seed: u64,
    /// For `burst`: the number of requests in a burst [default: the requests of one second, at least 2]
    #[arg(long, value_name = "NUMBER", value_parser = count, allow_negative_numbers = true)]
    pub burst_size: Option<NonZeroU64>,
    /// For `on_off`: the length of a busy phase
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = longer_than_nothing)]
    pub on: Nanos,
    /// For `on_off`: the length of the idle phase after it
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration)]
    pub off: Nanos,
}

/// The distribution of generated traffic over time; the mean is always the rate.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
#[value(rename_all = "snake_case")]
pub enum Spread {
    /// Evenly
    Uniform,
    /// At random times, independent of each other
    Poisson,
    /// In bursts of many requests at the same instant
    Burst,
    /// Evenly during busy phases, with idle phases between
    OnOff,
}

// === impl TrafficArgs ===

impl TrafficArgs {
    /// Whether the flags give any traffic. The attributes of the flags refuse combinations that conflict.
    pub const fn is_complete(&self) -> bool {
        self.trace.is_some() || (self.rate.is_some() && self.duration.is_some())
    }

    /// The name of the traffic in error messages.
    pub(super) fn name(&self) -> String {
        match &self.trace {
            Some(path) if is_standard_input(path) => "standard input".to_owned(),
            Some(path) => path.display().to_string(),
            None => "generated traffic".to_owned(),
        }
    }

    pub(super) fn open<'a>(&self, input: impl Read + 'a) -> Result<Box<dyn Traffic + 'a>, Box<dyn Error>> {
        match (&self.trace, self.rate, self.duration) {
            (Some(path), _, _) if is_standard_input(path) => self.read(input),
            (Some(path), _, _) => {
                let file =
                    File::open(path).map_err(|error| format!("cannot open the trace {}: {error}", path.display()))?;
                self.read(file)
            }
            (None, Some(rate), Some(until)) => self.make(rate, until),
            (None, _, _) => Err(NO_TRAFFIC.into()),
        }
    }

    fn read<'a>(&self, input: impl Read + 'a) -> Result<Box<dyn Traffic + 'a>, Box<dyn Error>> {
        let named = |error: TraceError| self.named(error.into());
        Ok(Box::new(Trace::new(input, rate).map_err(named)?))
    }

    /// The error that stopped the simulation, with the name of the traffic if the traffic caused it.
    pub(super) fn named(&self, error: SimulationError) -> Box<dyn Error> {
        match error {
            SimulationError::Write(_) => error.into(),
            _ => format!("{}: {error}", self.name()).into(),
        }
    }

    fn make(&self, rate: Rate, until: Nanos) -> Result<Box<dyn Traffic>, Box<dyn Error>> {
        let shape = self.shape(rate);
        let expected = expected(rate, until, shape);
        if expected > MAX_ARRIVALS {
            return Err(format!(
                "--rate and --for: found about {expected:.0} requests, expected at most {MAX_ARRIVALS:.0}: take a lower rate or a shorter time"
            )
            .into());
        }
        let arrivals = Arrivals::new(rate, until, shape)
            .ok_or_else(|| format!("--on: found `{}`, expected a duration longer than 0s", self.on))?;
        Ok(Box::new(arrivals))
    }

    fn shape(&self, rate: Rate) -> Shape {
        match self.arrivals {
            Spread::Uniform => Shape::Uniform,
            Spread::Poisson => Shape::Poisson { seed: self.seed },
            Spread::Burst => Shape::Burst { size: self.burst_size.unwrap_or_else(|| second_of(rate)) },
            Spread::OnOff => Shape::OnOff { on: self.on, off: self.off },
        }
    }
}

fn is_standard_input(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The estimated number of requests; more than the mean if the traffic ends within a burst or a busy phase.
#[expect(clippy::cast_precision_loss, reason = "an estimate")]
fn expected(rate: Rate, until: Nanos, shape: Shape) -> f64 {
    let until = until.as_secs_f64();
    match shape {
        Shape::Uniform | Shape::Poisson { .. } => until * rate.per_second(),
        Shape::Burst { size } => {
            let size = size.get() as f64;
            (until * rate.per_second() / size).ceil() * size
        }
        Shape::OnOff { on, off } => {
            let on = on.as_secs_f64();
            let cycle = on + off.as_secs_f64();
            let busy = (until / cycle).floor() * on + (until % cycle).min(on);
            busy * cycle / on * rate.per_second()
        }
    }
}

/// The number of requests in a second, rounded up, at least 2.
fn second_of(rate: Rate) -> NonZeroU64 {
    const MIN_BURST: NonZeroU64 = NonZeroU64::MIN.saturating_add(1);
    let tokens = u128::from(rate.tokens()) * u128::from(Nanos::SECOND.get());
    let tokens = u64::try_from(tokens.div_ceil(u128::from(rate.period().get()))).unwrap_or(u64::MAX);
    NonZeroU64::new(tokens).map_or(MIN_BURST, |tokens| tokens.max(MIN_BURST))
}
