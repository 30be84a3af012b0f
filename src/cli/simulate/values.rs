//! Parsers for the values of flags: rates and durations are parsed as in the configuration.

use std::num::{NonZeroU64, NonZeroUsize};
use std::ops::RangeInclusive;

use crate::config::scalar::{self, InvalidValue};
use crate::units::{Nanos, Rate};

/// The smallest and the largest factor of `--abuse`.
const FACTORS: RangeInclusive<f64> = 0.001..=1_000_000.0;

pub(in crate::cli) fn rate(text: &str) -> Result<Rate, String> {
    scalar::rate(text).map_err(describe)
}

pub(in crate::cli) fn duration(text: &str) -> Result<Nanos, String> {
    scalar::duration(text).map_err(describe)
}

pub(super) fn longer_than_nothing(text: &str) -> Result<Nanos, String> {
    match duration(text)? {
        Nanos::ZERO => Err("expected a duration longer than 0s".to_owned()),
        duration => Ok(duration),
    }
}

pub(super) fn whole(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("expected a whole number from 0 to {}", u64::MAX))
}

pub(super) fn count(text: &str) -> Result<NonZeroU64, String> {
    text.parse().map_err(|_| format!("expected a whole number from 1 to {}", u64::MAX))
}

pub(super) fn servers(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| format!("expected a whole number from 1 to {}", usize::MAX))
}

/// Parses how many times the rate an abuser asks for.
pub(super) fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| FACTORS.contains(factor));
    factor.ok_or_else(|| format!("expected a number from {} to {}", FACTORS.start(), FACTORS.end()))
}

pub(in crate::cli) fn describe(invalid: InvalidValue) -> String {
    match invalid.hint {
        Some(hint) => format!("{} ({hint})", invalid.message),
        None => invalid.message,
    }
}
