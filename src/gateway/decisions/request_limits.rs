//! Limits that requests bring along, in place of the configured ones.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;

use crate::algorithm::Rule;
use crate::ruleset::limit::PlanTerms;
use crate::ruleset::{LimitId, PlanId, Ruleset, domains};
use crate::units::Nanos;

/// The maximum number of different limits that requests may bring along: each is kept until a reload.
const MAX_OVERRIDES: usize = 1_000;

/// The units of limits by their numbers in the protocol, with their lengths in seconds; the last one is the length of windows
/// that are calendar months.
pub(super) const UNITS: [(i32, u64); 8] =
    [(1, 1), (2, 60), (3, 3_600), (4, 86_400), (7, 604_800), (5, 30 * 86_400), (6, 365 * 86_400), (5, 31 * 86_400)];

/// The limits that requests brought along, each in place of a rule of the limit at a position in the ruleset. Requests read
/// them without a lock; only a new limit is written.
#[derive(Debug, Default)]
pub(in crate::gateway) struct RequestLimits {
    known: ArcSwap<HashMap<OverrideKey, Arc<Rule>>>,
    /// Whether a request brought one too many, and the log says so.
    is_full: AtomicBool,
}

/// The limit, the position of the rule, and the number of requests and the unit in place of those of the rule.
type OverrideKey = (LimitId, usize, u32, i32);

impl RequestLimits {
    /// The rule of a limit with the numbers that a request brought; `None` where the limit does not apply to the request, or
    /// applies as configured because too many are remembered.
    ///
    /// Errors: the problem with the request.
    pub(super) fn rule(
        &self,
        ruleset: &Ruleset,
        id: LimitId,
        plan: Option<PlanId>,
        (requests_per_unit, unit): (u32, i32),
    ) -> Result<Option<Arc<Rule>>, &'static str> {
        const NOT_REPLACEABLE: &str =
            "a limit of the request has no unit, or is none that the limit it replaces can be";
        let Some(limit) = ruleset.limits.get(id.0) else { return Ok(None) };
        // a candidate is tried with its configured parameters only
        let (PlanTerms::Rule(number), None) = (limit.terms(plan), limit.candidate_of) else { return Ok(None) };
        let key = (id, number, requests_per_unit, unit);
        {
            let known = self.known.load();
            if let Some(rule) = known.get(&key) {
                return Ok(Some(Arc::clone(rule)));
            }
            if known.len() >= MAX_OVERRIDES {
                self.warn_once();
                return Ok(None);
            }
        }
        let length = UNITS.iter().find(|(known, _)| *known == unit).map(|(_, seconds)| Nanos::from_secs(*seconds));
        let base = limit.rules.get(number);
        let rule = base.zip(length).and_then(|(rule, per)| domains::with_rate(rule, requests_per_unit.into(), per));
        let rule = Arc::new(rule.ok_or(NOT_REPLACEABLE)?);
        self.known.rcu(|known| {
            let mut known = HashMap::clone(known);
            if known.len() < MAX_OVERRIDES {
                known.entry(key).or_insert_with(|| Arc::clone(&rule));
            }
            known
        });
        // another worker may have been first with this limit, or with the last one that is remembered
        Ok(self.known.load().get(&key).map(Arc::clone))
    }

    fn warn_once(&self) {
        if !self.is_full.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                remembered = MAX_OVERRIDES,
                "requests bring too many different limits; until a reload, others are charged as configured"
            );
        }
    }
}
