//! The totals of the meters so far, from which rates are computed.

use crate::telemetry::meters::{Meters, plan_name};

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

/// A counter's total so far.
#[derive(Clone, Copy, Debug)]
pub enum Total<'m> {
    /// The responses of a route with one status.
    Answers {
        /// The route's name.
        route: &'m str,
        /// The status.
        code: u16,
        /// The number of responses.
        count: u64,
    },
    /// The outcomes of one route's and plan's requests under a limit.
    Outcomes {
        /// The route's name.
        route: &'m str,
        /// The limit's name.
        limit: &'m str,
        /// The plan's name.
        plan: &'m str,
        /// Whether the limit denies requests over it.
        denies: bool,
        /// The number of requests by outcome.
        counts: RequestTotals,
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
    pub fn most(self, other: Self) -> Self {
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
                each(Total::Outcomes {
                    route: &route.name,
                    limit: &limit.name,
                    plan: plan_name(&self.ruleset, plan),
                    denies: limit.enforces(),
                    counts: outcomes.counts(),
                });
            }
        }
    }
}
