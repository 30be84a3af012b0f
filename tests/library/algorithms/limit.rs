//! A limit as text: `gcra rate=3/s burst=5 delay_after=0 max_wait=1s`.
//!
//! The recorded traces, the generator and the committed regressions use this notation. The oracles read their parameters
//! from here, so they share no code with the algorithms that they check.

use std::fmt;
use std::str::FromStr;

use tollgate::algorithm::{AlgorithmName, Arguments, InvalidParameter, MAX_WAIT, ParameterKind, Rule, Value};
use tollgate::units::{Nanos, Rate};

/// An algorithm and its settings; each value is written as in the configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Limit {
    pub(crate) algorithm: AlgorithmName,
    settings: Vec<(String, String)>,
}

impl Limit {
    /// A limit without any setting yet.
    pub(crate) const fn new(algorithm: AlgorithmName) -> Self {
        Self { algorithm, settings: Vec::new() }
    }

    /// The same limit with `name` set to `value`.
    pub(crate) fn with(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.settings.retain(|(known, _)| known != name);
        self.settings.push((name.to_owned(), value.to_string()));
        self
    }

    /// The same limit with `name` set to `nanos` nanoseconds.
    pub(crate) fn with_duration(self, name: &str, nanos: u64) -> Self {
        self.with(name, format_args!("{nanos}ns"))
    }

    /// The same limit with `factor` times the tokens in the same times.
    pub(crate) fn times(&self, factor: u64) -> Self {
        let tokens = |value: &str| match value.parse::<u64>() {
            Ok(whole) => whole.saturating_mul(factor).to_string(),
            Err(_) => (0..factor).map(|_| value.parse::<f64>().expect("a number")).sum::<f64>().to_string(),
        };
        let settings = self.settings.iter().map(|(name, value)| {
            let value = match (name.as_str(), value.split_once('/')) {
                // one token more than the capacity fits at once
                ("capacity", _) if self.algorithm.as_str() == "leaky_queue" => {
                    let capacity = self.whole(name).expect("a capacity").saturating_add(1);
                    capacity.saturating_mul(factor).saturating_sub(1).to_string()
                }
                ("limit" | "burst" | "capacity", _) => tokens(value),
                ("rate", Some((number, period))) => format!("{}/{period}", tokens(number)),
                _ => value.clone(),
            };
            (name.clone(), value)
        });
        Self { algorithm: self.algorithm, settings: settings.collect() }
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.settings.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The whole number `name`.
    pub(crate) fn whole(&self, name: &str) -> Option<u64> {
        self.text(name).map(|text| text.parse().expect("a whole number"))
    }

    /// The decimal number `name`.
    pub(crate) fn decimal(&self, name: &str) -> Option<f64> {
        self.text(name).map(|text| text.parse().expect("a number"))
    }

    /// The duration `name` in nanoseconds.
    pub(crate) fn duration(&self, name: &str) -> Option<u64> {
        self.text(name).and_then(duration)
    }

    /// The rate `name` as tokens and a period in nanoseconds.
    pub(crate) fn rate(&self, name: &str) -> Option<(u64, u64)> {
        self.text(name).map(|text| rate(text).expect("a rate"))
    }

    /// Whether `name` is set to this word.
    pub(crate) fn is(&self, name: &str, word: &str) -> bool {
        self.text(name) == Some(word)
    }

    /// The word that `name` is set to.
    pub(crate) fn word(&self, name: &str) -> Option<&str> {
        self.text(name)
    }

    /// The longest wait allowed.
    pub(crate) fn max_wait(&self) -> u64 {
        self.duration(MAX_WAIT).unwrap_or(0)
    }

    /// All durations that matter for this limit: its settings, and the time of one token.
    pub(crate) fn spans(&self) -> Vec<u64> {
        let mut spans = Vec::new();
        for (name, text) in &self.settings {
            if let Some(nanos) = duration(text).filter(|nanos| *nanos > 0) {
                spans.push(nanos);
                if let (true, Some(slots)) = (name == "window", self.whole("slots")) {
                    spans.push(nanos.div_ceil(slots));
                }
            }
            if let Some((tokens, period)) = rate(text) {
                spans.push(period.div_ceil(tokens));
            }
        }
        spans
    }

    /// The settings as the program's arguments.
    pub(crate) fn arguments(&self) -> Arguments {
        let mut arguments = Arguments::default();
        for (name, text) in &self.settings {
            if name == MAX_WAIT {
                arguments.set(MAX_WAIT, Value::Duration(Nanos::new(duration(text).expect("a duration"))));
                continue;
            }
            let parameters = self.algorithm.parameters();
            let parameter = parameters.iter().find(|parameter| parameter.name == name);
            let parameter = parameter.unwrap_or_else(|| panic!("{self}: there is no parameter {name}"));
            let value = value(parameter.kind, text);
            arguments.set(parameter.name, value.unwrap_or_else(|| panic!("{self}: {name} cannot be {text}")));
        }
        arguments
    }

    /// The rule that the program builds.
    pub(crate) fn build(&self) -> Result<Rule, InvalidParameter> {
        self.algorithm.build(&self.arguments())
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.algorithm.as_str())?;
        self.settings.iter().try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let mut limit = Self::new(named(words.next().unwrap_or_default())?);
        for word in words {
            let (name, value) = word.split_once('=').ok_or_else(|| format!("no `=` in `{word}`"))?;
            limit = limit.with(name, value);
        }
        Ok(limit)
    }
}

/// The algorithm of this name.
pub(crate) fn named(name: &str) -> Result<AlgorithmName, String> {
    let found = AlgorithmName::ALL.iter().find(|known| known.as_str() == name);
    found.copied().ok_or_else(|| format!("there is no algorithm `{name}`"))
}

fn value(kind: ParameterKind, text: &str) -> Option<Value> {
    match kind {
        ParameterKind::Rate => {
            let (tokens, period) = rate(text)?;
            Rate::new(tokens, Nanos::new(period)).map(Value::Rate)
        }
        ParameterKind::Duration => duration(text).map(|nanos| Value::Duration(Nanos::new(nanos))),
        ParameterKind::DurationOr(words) => match words.iter().find(|word| **word == text) {
            Some(word) => Some(Value::Choice(word)),
            None => duration(text).map(|nanos| Value::Duration(Nanos::new(nanos))),
        },
        ParameterKind::Whole => text.parse().ok().map(Value::Whole),
        ParameterKind::Decimal => match text.parse() {
            Ok(whole) => Some(Value::Whole(whole)),
            Err(_) => text.parse().ok().map(Value::Decimal),
        },
        ParameterKind::Flag => text.parse().ok().map(Value::Flag),
        ParameterKind::Choice(words) => words.iter().find(|word| **word == text).map(|word| Value::Choice(word)),
        ParameterKind::TimeZone => jiff::tz::TimeZone::get(text).ok().map(Value::TimeZone),
    }
}

/// A duration like `250ms` in nanoseconds; also the period of a rate, which may have no number and then means 1.
fn duration(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at_checked(digits)?;
    let unit = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        _ => return None,
    };
    let number: u64 = if number.is_empty() { 1 } else { number.parse().ok()? };
    number.checked_mul(unit)
}

/// A rate like `2.5/s` or `7/13s` as tokens and nanoseconds.
pub(crate) fn rate(text: &str) -> Option<(u64, u64)> {
    let (tokens, period) = text.split_once('/')?;
    let period = duration(period)?;
    let (whole, decimals) = tokens.split_once('.').unwrap_or((tokens, ""));
    let tokens = format!("{whole}{decimals}").parse().ok()?;
    Some((tokens, period.checked_mul(10_u64.checked_pow(u32::try_from(decimals.len()).ok()?)?)?))
}

#[test]
fn a_limit_reads_back_as_it_is_written() {
    for text in ["gcra rate=2.5/s burst=5 max_wait=1ns", "gcra rate=7/13s burst=9 delay_after=0"] {
        assert_eq!(text.parse::<Limit>().map(|limit| limit.to_string()), Ok(text.to_owned()));
    }
    assert_eq!(rate("2.5/s"), Some((25, 10_000_000_000)));
    assert_eq!(rate("1/333333333ns"), Some((1, 333_333_333)));
    assert_eq!(duration("15m"), Some(900_000_000_000));
}
