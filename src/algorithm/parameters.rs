//! Parameters in serialized form, for snapshots and between nodes: named arguments from which they can be built again.

use jiff::tz::TimeZoneDatabase;
use serde::{Deserialize, Serialize};

use super::{AlgorithmName, Arguments, MAX_WAIT, ParameterKind, Rule, Value};
use crate::units::{Nanos, Rate};

/// The arguments of one rule.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Parameters(Vec<(String, WrittenValue)>);

/// A [`Value`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum WrittenValue {
    Rate { tokens: u64, period: Nanos },
    Duration(Nanos),
    Whole(u64),
    Decimal(f64),
    Flag(bool),
    Choice(String),
    TimeZone(String),
    CustomersTimeZone,
}

impl Parameters {
    /// The arguments of `rule`.
    pub fn of(rule: &Rule) -> Self {
        Self(rule.arguments().iter().map(|(name, value)| (name.to_owned(), WrittenValue::of(value))).collect())
    }

    /// The rule; `None` if this version of the program does not understand the arguments.
    pub fn rule(&self, algorithm: AlgorithmName) -> Option<Rule> {
        let mut arguments = Arguments::default();
        for (name, written) in &self.0 {
            let (name, words) = match algorithm.parameters().iter().find(|parameter| parameter.name == name) {
                Some(parameter) => match parameter.kind {
                    ParameterKind::Choice(words) | ParameterKind::DurationOr(words) => (parameter.name, words),
                    _ => (parameter.name, &[][..]),
                },
                None if name == MAX_WAIT => (MAX_WAIT, &[][..]),
                None => return None,
            };
            arguments.set(name, written.value(words)?);
        }
        algorithm.build(&arguments).ok()
    }
}

impl WrittenValue {
    fn of(value: &Value) -> Self {
        match value {
            Value::Rate(rate) => Self::Rate { tokens: rate.tokens(), period: rate.period() },
            Value::Duration(duration) => Self::Duration(*duration),
            Value::Whole(number) => Self::Whole(*number),
            Value::Decimal(number) => Self::Decimal(*number),
            Value::Flag(flag) => Self::Flag(*flag),
            Value::Choice(word) => Self::Choice((*word).to_owned()),
            // every zone in the configuration has a name
            Value::TimeZone(zone) => Self::TimeZone(zone.iana_name().unwrap_or_default().to_owned()),
            Value::CustomersTimeZone => Self::CustomersTimeZone,
        }
    }

    /// The value; choices are among `words`.
    fn value(&self, words: &[&'static str]) -> Option<Value> {
        Some(match self {
            Self::Rate { tokens, period } => Value::Rate(Rate::new(*tokens, *period)?),
            Self::Duration(duration) => Value::Duration(*duration),
            Self::Whole(number) => Value::Whole(*number),
            Self::Decimal(number) => Value::Decimal(*number),
            Self::Flag(flag) => Value::Flag(*flag),
            Self::Choice(word) => Value::Choice(words.iter().find(|known| *known == word)?),
            Self::TimeZone(name) => Value::TimeZone(TimeZoneDatabase::bundled().get(name).ok()?),
            Self::CustomersTimeZone => Value::CustomersTimeZone,
        })
    }
}
