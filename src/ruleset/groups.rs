//! Groups of customers by level (organisation, team, project): what limits count together.

use std::sync::Arc;

use crate::ruleset::PlanId;
use crate::ruleset::overrides::Overrides;

/// The most levels.
pub const MOST_LEVELS: usize = 4;

/// The columns of files about customers that are no levels, so that no level may have one of these names.
pub const COLUMNS: [&str; 9] =
    ["credential", "customer", "level", "group", "plan", "overrides", "time_zone", "valid_until", "suspended"];

/// One organisation, or one team.
#[derive(Debug, PartialEq)]
pub struct Group {
    /// Its level.
    pub level: Arc<str>,
    /// The name, which no other group of the level has: what limits count by.
    pub name: Box<str>,
    /// Its plan, or that of the group it belongs to.
    pub plan: Option<PlanId>,
    /// What the group has in place of what its plan has.
    pub own: Option<Arc<Overrides>>,
    /// Whether all its members are kept out for now.
    pub suspended: bool,
}

/// The groups that a customer belongs to: one of a level at most, the outermost first.
#[derive(Debug, PartialEq)]
pub struct Groups(pub Box<[Arc<Group>]>);

impl Groups {
    /// The group of this level.
    pub fn at(&self, level: &str) -> Option<&Arc<Group>> {
        self.0.iter().find(|group| *group.level == *level)
    }

    /// The plan of the innermost group that has one.
    pub fn plan(&self) -> Option<PlanId> {
        self.0.last().and_then(|group| group.plan)
    }

    /// Whether any of them is kept out.
    pub fn suspended(&self) -> bool {
        self.0.iter().any(|group| group.suspended)
    }
}
