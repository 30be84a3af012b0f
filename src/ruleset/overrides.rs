//! The part of a directory's entries that has the configuration's syntax: plans, time zones, overrides of limits.
//!
//! The configuration implements [`OverridesReader`], because the syntax is its own; the code of a directory calls it.

use std::fmt;
use std::sync::Arc;

use jiff::tz::TimeZone;

use crate::algorithm::Rule;
use crate::ruleset::{LimitId, PlanId};

/// The terms of a customer or a group that replace those of its plan, by limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides(pub Vec<(LimitId, Override)>);

/// The terms of a limit for one customer or one group.
#[derive(Clone, Debug, PartialEq)]
pub enum Override {
    /// The limit does not apply.
    Unlimited,
    /// These parameters.
    Rule(Arc<Rule>),
}

impl Overrides {
    /// The own terms under `limit`; `None` where those of the plan apply.
    pub fn of(&self, limit: LimitId) -> Option<&Override> {
        self.0.iter().find(|(of, _)| *of == limit).map(|(_, term)| term)
    }
}

/// Reads a directory's entries about a customer.
pub trait OverridesReader: fmt::Debug + Send + Sync {
    /// The plan of this name.
    fn plan(&self, name: &str) -> Result<PlanId, InvalidOverride>;

    /// The time zone of this name.
    fn time_zone(&self, name: &str) -> Result<TimeZone, InvalidOverride>;

    /// The own terms of a customer, or of a group of this `level`, with these overrides (a YAML mapping, JSON included)
    /// and time zone, where they differ from those of its plan. Errors: everything that is wrong with the overrides.
    fn terms(
        &self,
        level: Option<&str>,
        plan: Option<PlanId>,
        zone: Option<&TimeZone>,
        overrides: Option<&str>,
    ) -> Result<Overrides, Vec<InvalidOverride>>;
}

/// A value in a directory that is not valid in the configuration. Holds no value that may be a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidOverride {
    /// The path to the value, below the text that was read (`per-customer.rate`); empty for the whole text.
    pub path: String,
    /// The problem, to be read after the path.
    pub message: String,
    /// The value found.
    pub found: Option<String>,
    /// The value expected.
    pub expected: Option<String>,
    /// The remedy.
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
