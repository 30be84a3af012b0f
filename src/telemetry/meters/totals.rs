//! The totals of the meters so far, from which rates are computed.

use crate::ruleset::Ruleset;
use crate::ruleset::limit::Limit;
use crate::telemetry::meters::Meters;
use crate::telemetry::names::NO_PLAN;

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
    /// Passes all totals to `each`; `ruleset` is the ruleset of these meters.
    pub fn totals(&self, ruleset: &Ruleset, mut each: impl FnMut(Total<'_>)) {
        self.no_route.each_answer(|code, count| each(Total::Answers { route: self.no_route.name(), code, count }));
        for (route, meters) in ruleset.matcher.all().iter().zip(&self.routes) {
            meters.each_answer(|code, count| each(Total::Answers { route: &route.name, code, count }));
            meters.each_outcome(|place, plan, counts| {
                let Some((id, label)) = route.limits.get(place).and_then(|id| Some((id, self.labels.get(id.0)?)))
                else {
                    return;
                };
                let plan = self.plan_names.get(plan).map_or(NO_PLAN, String::as_str);
                let (limit, denies) = (label.limit.as_str(), ruleset.limits.get(id.0).is_some_and(Limit::enforces));
                each(Total::Outcomes { route: &route.name, limit, plan, denies, counts });
            });
        }
    }
}
