//! Parsers of single values: rates, durations, sizes, numbers.
//!
//! They are exact: they round nothing, and a value that cannot be represented is an error. Pure functions of the text.

use std::num::IntErrorKind;

use crate::config::problem::Hint;
use crate::config::words;
use crate::ruleset::prices::Price;
use crate::ruleset::{Jitter, Share};
use crate::units::{Nanos, Rate, TIME_UNITS};

/// An error about a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidValue {
    /// The message, which follows the value's path.
    pub message: String,
    /// A value to write instead, where it is clear.
    pub hint: Option<String>,
}

impl InvalidValue {
    pub(super) fn hint(self, hint: impl Into<Hint>) -> Self {
        Self { hint: hint.into().0, ..self }
    }
}

/// An error about a value, without a hint.
pub(super) fn invalid(message: impl Into<String>) -> InvalidValue {
    InvalidValue { message: message.into(), hint: None }
}

/// The unit that a hint suggests for each name of a unit of time in other programs.
const OTHER_TIME_UNITS: [(&str, &[&str]); 9] = [
    ("ns", &["nsec"]),
    ("us", &["usec", "µs", "μs"]),
    ("ms", &["msec", "millis"]),
    ("s", &["S", "sec", "secs", "second", "seconds"]),
    ("m", &["min", "mins", "minute", "minutes"]),
    ("h", &["H", "hr", "hour", "hours"]),
    ("d", &["D", "day", "days"]),
    ("7d", &["week"]),
    ("365d", &["year"]),
];

const SIZE_UNITS: [(&str, u64); 4] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

const OTHER_SIZE_UNITS: [(&str, &[&str]); 4] =
    [("B", &["b", "bytes"]), ("KiB", &["k", "K", "kB", "KB", "kb"]), ("MiB", &["M", "MB"]), ("GiB", &["G", "GB"])];

const TOO_FINE: &str = "has more digits than can be counted exactly";

/// Parses a rate, tokens per time: `100/s`, `0.5/s`, `10/500ms`, `1/333333333ns`.
///
/// A decimal number of tokens becomes a ratio: `2.5/s` is 25 in 10 seconds.
pub fn rate(text: &str) -> Result<Rate, InvalidValue> {
    let Some((tokens, time)) = text.split_once('/') else {
        let hint = decimal_parts(text).ok().map(|_| format!("did you mean `{text}/s`?"));
        return Err(invalid("is not a rate").hint(hint));
    };
    if let Some(number) = tokens.strip_suffix('r').filter(|number| decimal_parts(number).is_ok()) {
        return Err(invalid("is not a rate").hint(format!("did you mean `{number}/{time}`?")));
    }
    let written = tokens;
    let (tokens, scale) = decimal_parts(tokens).map_err(|reason| match reason {
        NotDecimal::TooLarge => invalid(TOO_FINE),
        NotDecimal::Malformed => invalid("is not a rate"),
    })?;
    let unit_alone = time.starts_with(|c: char| c.is_alphabetic());
    let one_of = |unit: &str| TIME_UNITS.iter().find(|(_, name)| *name == unit);
    let period = match one_of(time) {
        Some((length, _)) => Ok(Nanos::new(*length)),
        None if unit_alone => duration(&format!("1{time}")),
        None => duration(time),
    };
    let period = period.map_err(|InvalidValue { message, hint }| {
        let unit = OTHER_TIME_UNITS.iter().find(|(_, others)| unit_alone && others.contains(&time));
        let meant = unit.map(|(unit, _)| format!("did you mean `{written}/{unit}`?"));
        invalid(format!("is not a rate: its time {message}")).hint(meant.or(hint))
    })?;
    if tokens == 0 {
        return Err(invalid("is zero, which would never admit anything"));
    }
    if period == Nanos::ZERO {
        return Err(invalid("has a time of zero"));
    }
    let period = period.get().checked_mul(scale).map(Nanos::new).ok_or_else(|| invalid(TOO_FINE))?;
    let max = Rate::MAX_TOKENS;
    Rate::new(tokens, period).ok_or_else(|| invalid(format!("is more than {max} tokens in a time")))
}

/// Parses a length of time: `250ms`, `15m`, `1.5s`. Decimals are valid if the result is a whole number of nanoseconds.
pub fn duration(text: &str) -> Result<Nanos, InvalidValue> {
    let (number, unit) = split_unit(text);
    let known = TIME_UNITS.iter().find(|(_, name)| *name == unit);
    let Some((length, _)) = known else {
        return Err(unknown_unit("duration", number, unit, "s", &OTHER_TIME_UNITS));
    };
    quantity("duration", number, *length, "nanoseconds", "213503d").map(Nanos::new)
}

/// Parses a number of bytes: `64KiB`.
pub fn size(text: &str) -> Result<u64, InvalidValue> {
    let (number, unit) = split_unit(text);
    let known = SIZE_UNITS.iter().find(|(name, _)| *name == unit);
    let Some((_, length)) = known else {
        return Err(unknown_unit("size", number, unit, "B", &OTHER_SIZE_UNITS));
    };
    quantity("size", number, *length, "bytes", "17179869183GiB")
}

/// Parses a number of bytes in each second: `100B/s`.
pub fn byte_rate(text: &str) -> Result<u64, InvalidValue> {
    match text.split_once('/') {
        Some((bytes, "s")) => size(bytes),
        Some((bytes, _)) if size(bytes).is_ok() => {
            Err(invalid("is not for a second").hint(format!("write how much comes in a second, like `{bytes}/s`")))
        }
        _ => {
            let unit = if is_digits(text) { "B" } else { "" };
            let hint = size(&format!("{text}{unit}")).ok().map(|_| format!("did you mean `{text}{unit}/s`?"));
            Err(invalid("is not a number of bytes in a second").hint(hint))
        }
    }
}

/// Parses a whole number, zero or more.
pub fn whole(text: &str) -> Result<u64, InvalidValue> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse::<u64>().map_err(|error| match error.kind() {
            IntErrorKind::PosOverflow => invalid(format!("is too large (at most {})", u64::MAX)),
            _ => invalid("is not a whole number"),
        });
    }
    let digits: String = text.chars().filter(|c| !matches!(c, '_' | ',' | '\'')).collect();
    let invalid = invalid("is not a whole number");
    Err(match digits.parse::<u64>() {
        Ok(number) if digits.len() < text.len() => invalid.hint(format!("write `{number}`")),
        _ => invalid,
    })
}

/// Parses a decimal number, zero or more: `5.5`. Returns the nearest double.
pub fn decimal(text: &str) -> Result<f64, InvalidValue> {
    let well_formed = match text.split_once('.') {
        Some((whole, fraction)) => is_digits(whole) && is_digits(fraction),
        None => is_digits(text),
    };
    if !well_formed {
        return Err(invalid("is not a decimal number"));
    }
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => Err(invalid("is too large")),
    }
}

/// Parses a share above 0 and up to 1, which must be one in a whole number: `0.01` is one in 100.
pub fn one_in(text: &str) -> Result<u32, InvalidValue> {
    let (numerator, denominator) = decimal_parts(text).map_err(|_| invalid("is not a decimal number"))?;
    if numerator == 0 || numerator > denominator {
        return Err(invalid("is not above 0 and up to 1"));
    }
    let nearest = denominator.saturating_add(numerator / 2) / numerator;
    match u32::try_from(nearest) {
        Ok(n) if denominator.is_multiple_of(numerator) => Ok(n),
        Ok(n) => Err(invalid("is not one in a whole number").hint(format!("the nearest is `one_in: {n}`"))),
        Err(_) => Err(invalid(format!("is less than one in {}", u32::MAX))),
    }
}

/// Parses a share from 0 to 1 with up to six decimals: `0.01`.
pub fn fraction(text: &str) -> Result<Share, InvalidValue> {
    let (numerator, denominator) = decimal_parts(text).map_err(|_| invalid("is not a decimal number"))?;
    let millionths = u128::from(numerator).saturating_mul(Share::WHOLE.0.into());
    let (whole, rest) = (millionths / u128::from(denominator), millionths % u128::from(denominator));
    match u32::try_from(whole).map(Share) {
        Ok(share) if rest == 0 && share <= Share::WHOLE => Ok(share),
        Ok(share) if share < Share::WHOLE => Err(invalid("has more than six decimals")),
        _ => Err(invalid("is more than 1")),
    }
}

/// Parses a share in percent, 0 to 100 with up to four decimals: `12.5`.
pub fn percent(text: &str) -> Result<Share, InvalidValue> {
    let (numerator, denominator) = match text.strip_suffix('%') {
        Some(number) if decimal_parts(number).is_ok() => {
            return Err(invalid("has a unit that the name says already").hint(format!("write `{number}`")));
        }
        _ => decimal_parts(text).map_err(|_| invalid("is not a number"))?,
    };
    share(numerator, denominator)
}

/// Parses the price of a million tokens, in units of money with up to six decimals: `0.15`.
pub fn price(text: &str) -> Result<Price, InvalidValue> {
    const MAX_PRICE: u64 = 1_000_000;
    let (numerator, denominator) = decimal_parts(text).map_err(|_| invalid("is not a decimal number"))?;
    let millionths = u128::from(numerator).saturating_mul(1_000_000);
    match (millionths % u128::from(denominator), u64::try_from(millionths / u128::from(denominator))) {
        (0, Ok(price)) if price <= MAX_PRICE.saturating_mul(1_000_000) => Ok(Price(price)),
        (0, _) => Err(invalid("is too large").hint("the most is 1000000")),
        _ => Err(invalid("has more than six decimals")),
    }
}

/// Parses the largest random addition to a time: a share of the time like `10%`, or a length of time like `5s`.
pub fn jitter(text: &str) -> Result<Jitter, InvalidValue> {
    let jitter = match text.strip_suffix('%') {
        Some(number) => {
            let (numerator, denominator) = decimal_parts(number).map_err(|_| invalid("is not a number"))?;
            Jitter::Share(share(numerator, denominator)?)
        }
        None => Jitter::Time(duration(text)?),
    };
    match jitter {
        Jitter::Share(Share(0)) | Jitter::Time(Nanos::ZERO) => Err(invalid("is nothing").hint("leave it out")),
        jitter => Ok(jitter),
    }
}

/// A share from a number of percent: at most 100, in steps of a millionth of the whole.
fn share(numerator: u64, denominator: u64) -> Result<Share, InvalidValue> {
    let millionths = u128::from(numerator).saturating_mul(u128::from(Share::WHOLE.0 / 100));
    let (whole, rest) = (millionths / u128::from(denominator), millionths % u128::from(denominator));
    if rest != 0 {
        return Err(invalid("has more than four decimals"));
    }
    match u32::try_from(whole).map(Share) {
        Ok(share) if share <= Share::WHOLE => Ok(share),
        _ => Err(invalid("is more than 100")),
    }
}

/// Parses `true` or `false`.
pub fn flag(text: &str) -> Result<bool, InvalidValue> {
    let invalid = || invalid("is neither `true` nor `false`");
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "1" => invalid().hint("write `true`"),
            "false" | "no" | "off" | "0" => invalid().hint("write `false`"),
            _ => invalid(),
        }),
    }
}

/// Finds a time zone by its name in the tz database that is built in, which is the same on every machine.
pub fn time_zone(text: &str) -> Result<jiff::tz::TimeZone, InvalidValue> {
    let database = jiff::tz::TimeZoneDatabase::bundled();
    database.get(text).map_err(|_| {
        let names: Vec<String> = database.available().map(|name| name.to_string()).collect();
        let near = words::nearest(text, names.iter().map(String::as_str));
        invalid("is not the name of a time zone").hint(near.map(words::did_you_mean))
    })
}

/// Splits a number and its unit, at the first character that is neither a digit nor a point.
fn split_unit(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text.split_at(end)
}

fn unknown_unit(what: &str, number: &str, unit: &str, usual: &str, others: &[(&str, &[&str])]) -> InvalidValue {
    if decimal_parts(number).is_err() {
        return invalid(format!("is not a {what}"));
    }
    if unit.is_empty() {
        return invalid("has no unit").hint(format!("did you mean `{number}{usual}`?"));
    }
    let invalid = invalid("has an unknown unit");
    let written = unit.trim();
    match others.iter().find(|(_, others)| others.contains(&written)) {
        Some((unit, _)) if !unit.starts_with(|c: char| c.is_ascii_digit()) => {
            invalid.hint(format!("did you mean `{number}{unit}`?"))
        }
        Some((unit, _)) => invalid.hint(format!("a {written} is `{unit}`")),
        None => invalid,
    }
}

/// `number` times `length`, which must be a whole number.
fn quantity(what: &str, number: &str, length: u64, smallest: &str, max: &str) -> Result<u64, InvalidValue> {
    let (digits, scale) = match decimal_parts(number) {
        Ok(parts) => parts,
        Err(NotDecimal::Malformed) => return Err(invalid(format!("is not a {what}"))),
        Err(NotDecimal::TooLarge) => return Err(invalid("is too large")),
    };
    let product = u128::from(digits).saturating_mul(u128::from(length));
    let (whole, rest) = (product / u128::from(scale), product % u128::from(scale));
    if rest != 0 {
        return Err(invalid(format!("is not a whole number of {smallest}")));
    }
    u64::try_from(whole).map_err(|_| invalid(format!("is too large (at most {max})")))
}

#[derive(Debug, PartialEq)]
enum NotDecimal {
    Malformed,
    TooLarge,
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Parses `12.50` as 125 / 10: a numerator and a power of ten.
fn decimal_parts(text: &str) -> Result<(u64, u64), NotDecimal> {
    let (whole, fraction) = match text.split_once('.') {
        Some((whole, fraction)) if is_digits(fraction) => (whole, fraction.trim_end_matches('0')),
        Some(_) => return Err(NotDecimal::Malformed),
        None => (text, ""),
    };
    if !is_digits(whole) {
        return Err(NotDecimal::Malformed);
    }
    let scale = u32::try_from(fraction.len()).ok().and_then(|digits| 10_u64.checked_pow(digits));
    let number = match fraction {
        "" => whole.parse::<u64>(),
        fraction => format!("{whole}{fraction}").parse(),
    };
    let number = number.ok();
    number.zip(scale).ok_or(NotDecimal::TooLarge)
}

#[cfg(test)]
mod tests;
