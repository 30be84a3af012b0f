//! The last result of a key whose state another gateway or Redis keeps: enough to repeat a denial without a call.

use crate::algorithm::{Decision, Denial, Headroom, Rule};
use crate::charge::{Charged, Enforcement};
use crate::units::{Cost, Nanos};

/// The last result of a key. All times are on one clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachedDenial {
    at: Nanos,
    headroom: Headroom,
    /// The denied cost, and the time from which it would be admitted.
    denied: Option<(Cost, Nanos)>,
}

/// How long a denial is repeated where refunds may return tokens sooner than time refills them.
pub(super) const SETTLING: Nanos = Nanos::SECOND;

/// Whether a denial can be repeated without a call until its retry time.
pub(super) fn denial_holds(rule: &Rule, enforcement: Enforcement) -> bool {
    !rule.holds_slots() && !rule.denials_count() && !enforcement.counts_denied
}

impl CachedDenial {
    /// The result at `at` of a charge of `cost`.
    pub(super) fn new(charged: &Charged, cost: Cost, at: Nanos) -> Self {
        let denied = match charged.decision {
            Decision::Deny(Denial::Later { retry_after }) => Some((cost, at.saturating_add(retry_after))),
            Decision::Deny(_) | Decision::Admit { .. } => None,
        };
        Self { at, headroom: charged.headroom, denied }
    }

    /// The time of the result.
    pub(super) const fn at(&self) -> Nanos {
        self.at
    }

    /// The result it predicts for a charge of `cost` under `rule` at `now`: a denial is certain, an admission is not.
    pub(super) fn predict(&self, rule: &Rule, cost: Cost, now: Nanos) -> Charged {
        let denial = self.denied.filter(|(denied, until)| cost >= *denied && now < *until);
        let since = now.saturating_sub(self.at);
        let headroom = match since < self.headroom.until_full {
            true => Headroom {
                until_more: self.headroom.until_more.saturating_sub(since),
                until_full: self.headroom.until_full.saturating_sub(since),
                ..self.headroom
            },
            false => rule.headroom(None, now),
        };
        let decision = denial.map_or(Decision::ADMIT, |(_, until)| Decision::later(until.saturating_sub(now)));
        Charged { decision, headroom }
    }
}
