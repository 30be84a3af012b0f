//! What a configuration says, for tests of directories.

use std::sync::Arc;

use jiff::tz::TimeZone;

use crate::algorithm::{AlgorithmName, Arguments, Rule, Value};
use crate::ruleset::overrides::{InvalidOverride, Override, Overrides, OverridesReader};
use crate::ruleset::{LimitId, PlanId};
use crate::units::{Nanos, Rate};

/// Knows two plans, every time zone, and the overrides `unlimited` and, for customers, `gcra`. Those of a group are of the limit
/// whose position is the length of its level's name.
#[derive(Debug)]
pub(super) struct Words;

/// What is wrong with anything else.
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
        overrides: Option<&str>,
    ) -> Result<Overrides, Vec<InvalidOverride>> {
        let limit = LimitId(level.map_or(0, str::len));
        match (level, overrides) {
            (_, None) => Ok(Overrides::default()),
            (_, Some("unlimited")) => Ok(Overrides(vec![(limit, Override::Unlimited)])),
            (None, Some("gcra")) => Ok(Overrides(vec![(limit, Override::Rule(Arc::new(gcra())))])),
            (_, Some(_)) => Err(vec![misread()]),
        }
    }
}

/// The parameters that `gcra` stands for.
fn gcra() -> Rule {
    let rate = Rate::new(1, Nanos::SECOND).unwrap();
    let arguments = Arguments::from([("rate", Value::Rate(rate)), ("burst", Value::Whole(1))]);
    AlgorithmName::Gcra.build(&arguments).unwrap()
}
