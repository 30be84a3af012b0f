//! The parser of overrides that tests of directories use.

use std::sync::Arc;

use jiff::tz::TimeZone;

use crate::algorithm::{AlgorithmName, Arguments, Rule, Value};
use crate::ruleset::overrides::{InvalidOverride, Override, OverridesReader};
use crate::ruleset::{LimitId, PlanId};
use crate::units::{Nanos, Rate};

/// A parser that knows two plans, every time zone, and the overrides `unlimited` and, for customers, `gcra`. The overrides
/// of a group belong to the limit whose position is the length of the group's level name.
#[derive(Debug)]
pub(super) struct Words;

/// The error for anything else.
pub(super) fn misread() -> InvalidOverride {
    InvalidOverride { path: String::new(), message: "is strange".to_owned(), found: None, expected: None, hint: None }
}

impl OverridesReader for Words {
    fn plan(&self, name: &str) -> Result<PlanId, InvalidOverride> {
        ["free", "pro"].iter().position(|plan| *plan == name).map(PlanId).ok_or_else(misread)
    }

    fn time_zone(&self, name: &str) -> Result<TimeZone, InvalidOverride> {
        TimeZone::get(name).map_err(|_| misread())
    }

    fn terms(
        &self,
        level: Option<&str>,
        _: Option<PlanId>,
        _: Option<&TimeZone>,
        overrides: &str,
    ) -> Result<Vec<(LimitId, Override)>, Vec<InvalidOverride>> {
        let limit = LimitId(level.map_or(0, str::len));
        match (level, overrides) {
            (_, "unlimited") => Ok(vec![(limit, Override::Unlimited)]),
            (None, "gcra") => Ok(vec![(limit, Override::Rule(Arc::new(gcra())))]),
            (_, _) => Err(vec![misread()]),
        }
    }

    fn zoned_rules(&self, _: &TimeZone) -> Vec<((LimitId, usize), Arc<Rule>)> {
        Vec::new()
    }
}

/// The rule that the override `gcra` stands for.
fn gcra() -> Rule {
    let rate = Rate::new(1, Nanos::SECOND).unwrap();
    let arguments = Arguments::from([("rate", Value::Rate(rate)), ("burst", Value::Whole(1))]);
    AlgorithmName::Gcra.build(&arguments).unwrap()
}
