//! The totals of the meters so far, from which rates are computed.

use crate::telemetry::meters::{Meters, plan_label};

/// The number of requests by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTotals {
    /// Answered, with any status.
    pub answered: u64,
    /// Answered with 5xx.
    pub failed: u64,
    /// Admitted at once.
    pub admitted: u64,
    /// Admitted after a wait.
    pub delayed: u64,
    /// Over the limit: denied, or diverted, marked or let pass by a shadow limit.
    pub over: u64,
    /// Exempt.
    pub bypassed: u64,
    /// Admitted or denied because the limit's decision could not be known.
    pub unknown: u64,
}

/// What one meter has counted so far.
#[derive(Clone, Copy, Debug)]
pub struct Total<'m> {
    /// The route's name.
    pub route: &'m str,
    /// The requests of the route that the meter counts.
    pub counted: Counted<'m>,
    /// Whether the limit that they are over denies them.
    pub denies: bool,
    /// The number of requests by outcome.
    pub counts: RequestTotals,
}

/// The requests of a route that a meter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counted<'m> {
    /// Those that were answered with this status.
    Answers(u16),
    /// Those of a plan under a limit.
    Outcomes {
        /// The limit's name.
        limit: &'m str,
        /// The plan's name.
        plan: &'m str,
    },
}

impl RequestTotals {
    /// The sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.each(other, u64::saturating_add)
    }

    /// The increase since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        self.each(before, u64::saturating_sub)
    }

    /// The larger of each.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.each(other, u64::max)
    }

    fn each(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        Self {
            answered: of(self.answered, other.answered),
            failed: of(self.failed, other.failed),
            admitted: of(self.admitted, other.admitted),
            delayed: of(self.delayed, other.delayed),
            over: of(self.over, other.over),
            bypassed: of(self.bypassed, other.bypassed),
            unknown: of(self.unknown, other.unknown),
        }
    }
}

impl Meters {
    /// Passes all totals to `each`.
    pub fn totals(&self, mut each: impl FnMut(Total<'_>)) {
        self.no_route.each_answer(&mut each);
        for (route, meters) in self.ruleset.matcher.all().iter().zip(&self.routes) {
            meters.each_answer(&mut each);
            for (place, plan, outcomes) in meters.outcomes.made() {
                let limit = &self.ruleset.limits[route.limits[place].0];
                let counted = Counted::Outcomes { limit: &limit.name, plan: plan_label(&self.ruleset, plan) };
                let (denies, counts) = (limit.enforces(), outcomes.counts());
                each(Total { route: &route.name, counted, denies, counts });
            }
        }
    }
}
