//! Groups of customers by level (organisation, team, project), whose requests limits can count together.

use std::sync::Arc;

use crate::ruleset::PlanId;
use crate::ruleset::overrides::Overrides;

/// The largest number of levels.
pub const MAX_LEVELS: usize = 4;

/// The columns of customer files that have another meaning, so that no level may have one of these names.
pub const COLUMNS: [&str; 9] =
    ["credential", "customer", "level", "group", "plan", "overrides", "time_zone", "valid_until", "suspended"];

/// One group: an organisation or a team, for example.
#[derive(Debug, PartialEq)]
pub struct Group {
    /// Its level.
    pub level: Arc<str>,
    /// The name, unique in its level, by which limits count.
    pub name: Box<str>,
    /// The group's plan, or that of the group it belongs to.
    pub plan: Option<PlanId>,
    /// The group's own terms, in place of its plan's.
    pub own: Option<Arc<Overrides>>,
    /// Whether the gateway denies all members for now.
    pub suspended: bool,
}

/// The groups that a customer belongs to: at most one of each level, the outermost first.
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

    /// Whether any of the groups is suspended.
    pub fn suspended(&self) -> bool {
        self.0.iter().any(|group| group.suspended)
    }
}
