//! The input to build algorithms: the parameters that they declare, and the values set for them.

use std::cmp::Ordering;

use crate::units::{Nanos, Rate};

/// One setting of an algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// The key in the configuration.
    pub name: &'static str,
    /// The kind of value.
    pub kind: ParameterKind,
    /// Whether it is required.
    pub required: bool,
    /// The smallest value: a number, nanoseconds, or tokens per second.
    pub min: u64,
    /// The largest value, if there is one.
    pub max: Option<u64>,
    /// The advice for users who need a value outside these bounds; empty if there is none.
    advice: &'static str,
}

impl Parameter {
    /// A required parameter.
    pub const fn required(name: &'static str, kind: ParameterKind) -> Self {
        Self { name, kind, required: true, min: 0, max: None, advice: "" }
    }

    /// A parameter that may be left out.
    pub const fn optional(name: &'static str, kind: ParameterKind) -> Self {
        Self { required: false, ..Self::required(name, kind) }
    }

    /// A required number of tokens to admit: whole, at least 1.
    pub const fn tokens(name: &'static str) -> Self {
        let advice = "`unlimited` admits everything";
        Self::required(name, ParameterKind::Whole).at_least(1).advice(advice)
    }

    /// Sets the smallest value: a number, nanoseconds, or tokens per second.
    #[must_use]
    pub const fn at_least(self, min: u64) -> Self {
        Self { min, ..self }
    }

    /// Sets the largest value: a number, nanoseconds, or tokens per second.
    #[must_use]
    pub const fn at_most(self, max: u64) -> Self {
        Self { max: Some(max), ..self }
    }

    /// Sets the advice for users who need a value outside the bounds.
    #[must_use]
    pub const fn advice(self, advice: &'static str) -> Self {
        Self { advice, ..self }
    }

    /// Checks that `value` is within the bounds.
    pub fn check(&self, value: &Value) -> Result<(), InvalidParameter> {
        let bound = match (value.compared_to(self.min), self.max.map(|max| (max, value.compared_to(max)))) {
            (Some(Ordering::Less), _) => match (value, self.min) {
                (Value::Duration(_), 1) => "longer than 0s".to_owned(),
                (_, min) => format!("at least {}", self.bound(min)),
            },
            (_, Some((max, Some(Ordering::Greater)))) => format!("at most {}", self.bound(max)),
            _ => return Ok(()),
        };
        let advice = if self.advice.is_empty() { "" } else { "; " };
        Err(InvalidParameter::new(self.name, format!("must be {bound}{advice}{}", self.advice)))
    }

    /// A bound as the configuration would write it.
    fn bound(&self, bound: u64) -> String {
        match self.kind {
            ParameterKind::Duration | ParameterKind::DurationOr(_) => Nanos::new(bound).to_string(),
            ParameterKind::Rate => format!("{bound}/s"),
            ParameterKind::Whole
            | ParameterKind::Decimal
            | ParameterKind::Flag
            | ParameterKind::Choice(_)
            | ParameterKind::TimeZone => bound.to_string(),
        }
    }
}

/// The syntax of a parameter's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterKind {
    /// `100/s`
    Rate,
    /// `15m`
    Duration,
    /// `15m`, or one of these words.
    DurationOr(&'static [&'static str]),
    /// A whole number, zero or more.
    Whole,
    /// A decimal number, zero or more.
    Decimal,
    /// `true` or `false`
    Flag,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// The name of a time zone (`Europe/Berlin`), or `customer`.
    TimeZone,
}

/// A parameter's value, parsed by its [`ParameterKind`].
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of [`ParameterKind::Rate`].
    Rate(Rate),
    /// Of [`ParameterKind::Duration`] and [`ParameterKind::DurationOr`].
    Duration(Nanos),
    /// Of [`ParameterKind::Whole`].
    Whole(u64),
    /// Of [`ParameterKind::Decimal`]; finite, zero or more.
    Decimal(f64),
    /// Of [`ParameterKind::Flag`].
    Flag(bool),
    /// Of [`ParameterKind::Choice`] and [`ParameterKind::DurationOr`].
    Choice(&'static str),
    /// Of [`ParameterKind::TimeZone`].
    TimeZone(jiff::tz::TimeZone),
    /// Of [`ParameterKind::TimeZone`]: a placeholder for the own zone of each customer that has one.
    CustomersTimeZone,
}

impl Value {
    /// How this compares to a bound; `None` for values without a size.
    #[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "bounds of decimals are below 2^53")]
    fn compared_to(&self, bound: u64) -> Option<Ordering> {
        match self {
            Self::Rate(rate) => {
                let bound = u128::from(bound).saturating_mul(u128::from(rate.period().get()));
                let second = u128::from(Nanos::SECOND.get());
                Some(u128::from(rate.tokens()).saturating_mul(second).cmp(&bound))
            }
            Self::Duration(duration) => Some(duration.get().cmp(&bound)),
            Self::Whole(number) => Some(number.cmp(&bound)),
            // NaN is below every bound
            Self::Decimal(number) => Some(number.partial_cmp(&(bound as f64)).unwrap_or(Ordering::Less)),
            Self::Flag(_) | Self::Choice(_) | Self::TimeZone(_) | Self::CustomersTimeZone => None,
        }
    }
}

/// The longest wait that the limit allows (`over_limit.delay.max_wait`); an argument of every algorithm beside its own
/// parameters, zero if absent.
pub const MAX_WAIT: &str = "max_wait";

/// The values set for one limit (for one plan, with overrides applied).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Arguments(Vec<(&'static str, Value)>);

impl<const N: usize> From<[(&'static str, Value); N]> for Arguments {
    fn from(values: [(&'static str, Value); N]) -> Self {
        Self(values.into())
    }
}

impl Arguments {
    /// Sets `name`, replacing an earlier value.
    pub fn set(&mut self, name: &'static str, value: Value) {
        self.remove(name);
        self.0.push((name, value));
    }

    /// Removes `name`, if it is set.
    pub fn remove(&mut self, name: &str) {
        self.0.retain(|(known, _)| *known != name);
    }

    /// These values with those of `other` on top.
    #[must_use]
    pub fn overlaid(&self, other: &Self) -> Self {
        let mut all = self.clone();
        for (name, value) in &other.0 {
            all.set(name, value.clone());
        }
        all
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Value)> {
        self.0.iter().map(|(name, value)| (*name, value))
    }

    /// Whether `name` is set.
    pub fn has(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    /// Checks that each value is within the bounds of its parameter.
    pub fn check(&self, parameters: &[Parameter]) -> Result<(), InvalidParameter> {
        parameters.iter().try_for_each(|parameter| match self.find(parameter.name) {
            Some(value) => parameter.check(value),
            None => Ok(()),
        })
    }

    fn find(&self, name: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| value)
    }

    /// The rate `name`, which the caller declared as required.
    pub fn rate(&self, name: &'static str) -> Result<Rate, InvalidParameter> {
        match self.find(name) {
            Some(Value::Rate(rate)) => Ok(*rate),
            _ => Err(InvalidParameter::missing(name)),
        }
    }

    /// The duration `name`, required.
    pub fn duration(&self, name: &'static str) -> Result<Nanos, InvalidParameter> {
        self.duration_or(name, None)
    }

    /// The duration `name`, or `default` where it is absent.
    pub fn duration_or(
        &self,
        name: &'static str,
        default: impl Into<Option<Nanos>>,
    ) -> Result<Nanos, InvalidParameter> {
        match self.find(name) {
            Some(Value::Duration(duration)) => Ok(*duration),
            _ => default.into().ok_or_else(|| InvalidParameter::missing(name)),
        }
    }

    /// The whole number `name`, if set.
    pub fn whole(&self, name: &'static str) -> Option<u64> {
        match self.find(name) {
            Some(Value::Whole(number)) => Some(*number),
            _ => None,
        }
    }

    /// The whole number `name`, required.
    pub fn required_whole(&self, name: &'static str) -> Result<u64, InvalidParameter> {
        self.whole(name).ok_or_else(|| InvalidParameter::missing(name))
    }

    /// The decimal number `name`, if set (a whole number is one too).
    #[expect(
        clippy::as_conversions,
        clippy::cast_precision_loss,
        reason = "parameters of this kind are defined as doubles"
    )]
    pub fn decimal(&self, name: &'static str) -> Option<f64> {
        match self.find(name) {
            Some(Value::Decimal(number)) => Some(*number),
            Some(Value::Whole(number)) => Some(*number as f64),
            _ => None,
        }
    }

    /// The flag `name`, false where it is absent.
    pub fn flag(&self, name: &'static str) -> bool {
        matches!(self.find(name), Some(Value::Flag(true)))
    }

    /// The word chosen for `name`, if set.
    pub fn choice(&self, name: &'static str) -> Option<&'static str> {
        match self.find(name) {
            Some(Value::Choice(word)) => Some(word),
            _ => None,
        }
    }

    /// The time zone `name`, if set.
    pub fn time_zone(&self, name: &'static str) -> Option<jiff::tz::TimeZone> {
        match self.find(name) {
            Some(Value::TimeZone(zone)) => Some(zone.clone()),
            _ => None,
        }
    }

    /// Whether the time zone `name` is the customer's own.
    pub fn is_customers_zone(&self, name: &'static str) -> bool {
        matches!(self.find(name), Some(Value::CustomersTimeZone))
    }

    /// Whether any value depends on the customer's own time zone.
    pub fn has_customers_zone(&self) -> bool {
        self.0.iter().any(|(_, value)| matches!(value, Value::CustomersTimeZone))
    }

    /// These values for a customer in `zone`; `None` if no value depends on the customer's time zone.
    pub fn in_zone(&self, zone: &jiff::tz::TimeZone) -> Option<Self> {
        let depends = |value: &Value| matches!(value, Value::CustomersTimeZone);
        self.has_customers_zone().then(|| {
            let of_customer = |(name, value): &(&'static str, Value)| match depends(value) {
                true => (*name, Value::TimeZone(zone.clone())),
                false => (*name, value.clone()),
            };
            Self(self.0.iter().map(of_customer).collect())
        })
    }

    /// The longest wait allowed; zero where none was set.
    pub fn max_wait(&self) -> Nanos {
        match self.find(MAX_WAIT) {
            Some(Value::Duration(duration)) => *duration,
            _ => Nanos::ZERO,
        }
    }
}

/// Invalid parameters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{parameter}` {problem}")]
pub struct InvalidParameter {
    /// The parameter to change.
    pub parameter: &'static str,
    /// The problem and what would be right, to be read after the parameter's name.
    pub problem: String,
}

impl InvalidParameter {
    /// An error about `parameter`, with the text `problem`.
    pub fn new(parameter: &'static str, problem: impl Into<String>) -> Self {
        Self { parameter, problem: problem.into() }
    }

    /// An error about the missing `parameter`.
    pub fn missing(parameter: &'static str) -> Self {
        Self::new(parameter, "is missing")
    }
}
