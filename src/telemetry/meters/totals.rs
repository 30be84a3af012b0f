//! What was counted so far, read off the meters for those who look at rates.

use crate::ruleset::Ruleset;
use crate::ruleset::limit::Limit;
use crate::telemetry::meters::Meters;
use crate::telemetry::names::NO_PLAN;

/// Requests, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Answered, whatever the answer.
    pub answered: u64,
    /// Answered with 5xx.
    pub failed: u64,
    /// Admitted at once.
    pub admitted: u64,
    /// Admitted after a wait.
    pub delayed: u64,
    /// Over the limit: denied, or what is done instead.
    pub over: u64,
    /// Exempt.
    pub bypassed: u64,
    /// Admitted or denied because nobody could tell.
    pub unknown: u64,
}

/// Something that is counted, and its number so far.
#[derive(Clone, Copy, Debug)]
pub enum Total<'m> {
    /// The answers of a route with one status.
    Answers {
        /// The route's name.
        route: &'m str,
        /// The status.
        code: u16,
        /// How many.
        count: u64,
    },
    /// What a limit made of the requests of one route and plan.
    Outcomes {
        /// The route's name.
        route: &'m str,
        /// The limit's name.
        limit: &'m str,
        /// The plan's name.
        plan: &'m str,
        /// Whether what is over it is denied.
        denies: bool,
        /// How many.
        counts: Counts,
    },
}

impl Counts {
    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        self.with(other, true)
    }

    /// What came to it since it was `before`. Numbers that are lower than before began anew.
    #[must_use]
    pub const fn since(self, before: Self) -> Self {
        self.with(before, false)
    }

    const fn with(self, other: Self, plus: bool) -> Self {
        const fn one(a: u64, b: u64, plus: bool) -> u64 {
            match plus {
                true => a.saturating_add(b),
                false if a < b => a,
                false => a.saturating_sub(b),
            }
        }
        Self {
            answered: one(self.answered, other.answered, plus),
            failed: one(self.failed, other.failed, plus),
            admitted: one(self.admitted, other.admitted, plus),
            delayed: one(self.delayed, other.delayed, plus),
            over: one(self.over, other.over, plus),
            bypassed: one(self.bypassed, other.bypassed, plus),
            unknown: one(self.unknown, other.unknown, plus),
        }
    }
}

impl Meters {
    /// Everything that was counted under `ruleset`, whose meters these are.
    pub fn totals(&self, ruleset: &Ruleset, mut each: impl FnMut(Total<'_>)) {
        self.no_route.each_answer(|code, count| each(Total::Answers { route: self.no_route.name(), code, count }));
        for (route, meters) in ruleset.matcher.routes().iter().zip(&self.routes) {
            meters.each_answer(|code, count| each(Total::Answers { route: &route.name, code, count }));
            meters.each_outcome(|place, plan, counts| {
                let Some((id, label)) = route.limits.get(place).and_then(|id| Some((id, self.labels.get(id.0)?)))
                else {
                    return;
                };
                let plan = self.plan_names.get(plan).map_or(NO_PLAN, String::as_str);
                let (limit, denies) = (label.limit.as_str(), ruleset.limits.get(id.0).is_some_and(Limit::binds));
                each(Total::Outcomes { route: &route.name, limit, plan, denies, counts });
            });
        }
    }
}
