//! The part of a directory's entries that has the configuration's syntax: plans, time zones, overrides of limits.
//!
//! The configuration implements [`OverridesReader`], because the syntax is its own; the code of a directory calls it.

use std::fmt;
use std::sync::Arc;

use jiff::tz::TimeZone;

use crate::algorithm::Rule;
use crate::ruleset::{LimitId, PlanId};

/// The terms of a customer or a group that replace those of its plan, and its time zone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overrides {
    /// The own terms, by limit.
    pub limits: Vec<(LimitId, Override)>,
    /// The rules of plans in the owner's time zone; `None` where it has no time zone, or no rule depends on it.
    pub zone: Option<Arc<ZonedRules>>,
}

/// The rules of plans in one time zone, for limits that count days or months in the customer's own.
#[derive(Debug, PartialEq)]
pub struct ZonedRules {
    /// The name of the time zone.
    pub zone: Arc<str>,
    /// The rules, sorted by limit and position in [`Limit::rules`](crate::ruleset::Limit::rules).
    pub rules: Vec<((LimitId, usize), Arc<Rule>)>,
}

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
        self.limits.iter().find(|(of, _)| *of == limit).map(|(_, term)| term)
    }
}

impl ZonedRules {
    /// The rule at `position` of the list of `limit` in this time zone; `None` where it does not depend on the zone.
    pub fn rule(&self, limit: LimitId, position: usize) -> Option<&Arc<Rule>> {
        let found = self.rules.binary_search_by_key(&(limit, position), |(of, _)| *of).ok()?;
        self.rules.get(found).map(|(_, rule)| rule)
    }
}

/// Reads a directory's entries about a customer.
pub trait OverridesReader: Send + Sync {
    /// The plan of this name.
    fn plan(&self, name: &str) -> Result<PlanId, InvalidOverride>;

    /// The time zone of this name.
    fn time_zone(&self, name: &str) -> Result<TimeZone, InvalidOverride>;

    /// The own terms of a customer, or of a group of this `level`, with these overrides (a YAML mapping, JSON included)
    /// and time zone. Errors: everything that is wrong with the overrides.
    fn terms(
        &self,
        level: Option<&str>,
        plan: Option<PlanId>,
        zone: Option<&TimeZone>,
        overrides: &str,
    ) -> Result<Vec<(LimitId, Override)>, Vec<InvalidOverride>>;

    /// The rules of all plans that depend on the customer's time zone, in this one; sorted as in [`ZonedRules::rules`].
    fn zoned_rules(&self, zone: &TimeZone) -> Vec<((LimitId, usize), Arc<Rule>)>;
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
