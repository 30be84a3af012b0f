//! What a directory says about a customer, in the words of the configuration: plans, time zones, overrides of limits.
//!
//! The words are the configuration's, so it is the configuration that reads them; whoever keeps a directory asks.

use std::fmt;
use std::sync::Arc;

use jiff::tz::TimeZone;

use crate::algorithm::Rule;
use crate::ruleset::{LimitId, PlanId};

/// What a customer or a group has of its own, in place of what its plan has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides(pub Vec<(LimitId, Override)>);

/// What a limit asks of one customer.
#[derive(Clone, Debug, PartialEq)]
pub enum Override {
    /// Nothing.
    Unlimited,
    /// These parameters.
    Rule(Arc<Rule>),
}

impl Overrides {
    /// What `limit` asks of the customer, where that is not what it asks of its plan.
    pub fn of(&self, limit: LimitId) -> Option<&Override> {
        self.0.iter().find(|(of, _)| *of == limit).map(|(_, term)| term)
    }
}

/// Reads what a directory says about a customer.
pub trait OverridesReader: fmt::Debug + Send + Sync {
    /// The plan of this name.
    fn plan(&self, name: &str) -> Result<PlanId, InvalidOverride>;

    /// The time zone of this name.
    fn time_zone(&self, name: &str) -> Result<TimeZone, InvalidOverride>;

    /// What limits ask of a customer, or of a group of this `level`, with these overrides (a YAML mapping, JSON included)
    /// and time zone, where that is not what they ask of its plan. Errors: everything that is wrong with the overrides.
    fn terms(
        &self,
        level: Option<&str>,
        plan: Option<PlanId>,
        zone: Option<&TimeZone>,
        overrides: Option<&str>,
    ) -> Result<Overrides, Vec<InvalidOverride>>;
}

/// Something in a directory that the configuration does not understand. Holds no value that may be a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidOverride {
    /// Which value, below what was read (`per-customer.rate`); empty for the whole of it.
    pub path: String,
    /// What is wrong with it, to be read after the path.
    pub message: String,
    /// What is there.
    pub found: Option<String>,
    /// What should be there.
    pub expected: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
}

impl fmt::Display for InvalidOverride {
    /// `path: message (found ..., expected ...)`, on one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)?;
        match (&self.found, &self.expected) {
            (Some(found), Some(expected)) => write!(f, " (found {found}, expected {expected})"),
            (Some(found), None) => write!(f, " (found {found})"),
            (None, Some(expected)) => write!(f, " (expected {expected})"),
            (None, None) => Ok(()),
        }
    }
}
