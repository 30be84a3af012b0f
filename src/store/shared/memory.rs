//! The replies of Redis that this gateway remembers: enough to repeat a denial without a call, to report the state of a
//! key, and to continue from it when Redis is unavailable or has lost the key.
//!
//! Bounded: the state of a key may be dropped at any time, which costs a call.

use std::sync::Arc;

use quick_cache::sync::Cache;

use crate::algorithm::{Decision, State};
use crate::charge::Charged;
use crate::store::cached_denial::{CachedDenial, SETTLING};
use crate::store::redis::{KeyState, SharedRule};
use crate::store::shared::limit::ChargePart;
use crate::units::{Cost, LimitKey, Nanos};

/// How many keys are remembered: about 30 MB.
const MAX_KEYS: usize = 200_000;

/// The last states seen. All times are on Redis's clock.
pub(super) struct StateCache(Cache<LimitKey, CachedState>);

/// The last known state of one key.
#[derive(Clone)]
pub(super) struct CachedState {
    /// The parameters of the state: under others it does not apply.
    form: Arc<SharedRule>,
    /// The time of the state.
    at: Nanos,
    /// Since when the states that Redis told deny requests like the last one.
    denied_since: Nanos,
    /// The cost that the last call was to charge.
    cost: Cost,
    state: KeyState,
}

impl StateCache {
    pub(super) fn new() -> Self {
        Self(Cache::new(MAX_KEYS))
    }

    /// Remembers that a call at `at` left the key of `part` in this `state`.
    pub(super) fn remember(&self, part: &ChargePart, state: KeyState, at: Nanos) {
        let denied = self.known(part).filter(|before| !before.predict(part, at).decision.is_admitted());
        let denied_since = denied.map_or(at, |before| before.denied_since);
        self.0.insert(part.key, CachedState { form: Arc::clone(&part.form), at, denied_since, cost: part.cost, state });
    }

    /// Records the refund of `part`, a charge after which the key was going to be full at `full_at`.
    pub(super) fn record_refund(&self, part: &ChargePart, full_at: Nanos, now: Nanos) {
        let Some(mut known) = self.known(part) else { return };
        match &mut known.state {
            KeyState::State(state) => {
                *state = state.take().and_then(|state| part.rule().refund(state, part.cost, full_at, now));
            }
            // only a key that Redis has lost altogether is repaired from this count
            KeyState::Log { counted, .. } => *counted = counted.saturating_sub(part.cost),
        }
        self.0.insert(part.key, known);
    }

    /// Drops the state of `key`.
    pub(super) fn forget(&self, key: LimitKey) {
        self.0.remove(&key);
    }

    /// The denial of `part` at `now`, if it is certain without a call.
    pub(super) fn denial(&self, part: &ChargePart, now: Nanos) -> Option<Charged> {
        if !part.denial_holds() {
            return None;
        }
        if let Some(largest) = part.rule().largest_cost().filter(|largest| part.cost > *largest) {
            // this holds for every state
            return Some(Charged { decision: Decision::never(largest), ..self.predict(part, now) });
        }
        let known = self.known(part)?;
        // Another gateway may refund tokens at any time that its requests or its lease do not need, and soon after
        // those of requests that went away or were denied by another limit.
        let is_settled = known.at.saturating_sub(known.denied_since) >= SETTLING;
        let may_come_back = part.may_refund || part.max_lease > 0 || !is_settled;
        if may_come_back && now.saturating_sub(known.at) >= SETTLING {
            return None;
        }
        let charged = known.predict(part, now);
        (!charged.decision.is_admitted()).then_some(charged)
    }

    /// The expected result for `part` by the last known state, for reports.
    pub(super) fn predict(&self, part: &ChargePart, now: Nanos) -> Charged {
        match self.known(part) {
            Some(known) => known.predict(part, now),
            None => Charged {
                decision: part.rule().decide(None, part.cost, now).0,
                headroom: part.rule().headroom(None, now),
            },
        }
    }

    /// The number of used tokens of the key of `part` at `now`, as far as this gateway knows.
    pub(super) fn used(&self, part: &ChargePart, now: Nanos) -> Cost {
        let known = self.0.get(&part.key).filter(|known| known.form.rule().name() == part.rule().name());
        known.map_or(0, |known| known.used(part, now))
    }

    /// The last known state of the key of `part`, for a call that restores what Redis has lost.
    pub(super) fn repair_state(&self, part: &ChargePart) -> Option<String> {
        self.known(part)?.repair_state()
    }

    /// The last known state of the key of `part`, if its parameters are the same.
    pub(super) fn known(&self, part: &ChargePart) -> Option<CachedState> {
        self.0.get(&part.key).filter(|known| known.form.parameters() == part.form.parameters())
    }
}

impl CachedState {
    fn predict(&self, part: &ChargePart, now: Nanos) -> Charged {
        let rule = part.rule();
        // Redis's clock has passed this time, though the estimate of its time may be too early by a part of a call's duration
        let now = now.max(self.at);
        match &self.state {
            KeyState::State(state) => Charged {
                decision: rule.decide(state.clone(), part.cost, now).0,
                headroom: rule.headroom(state.as_ref(), now),
            },
            KeyState::Log { retry_after, headroom, .. } => {
                let decision = retry_after.map_or(Decision::ADMIT, Decision::later);
                let last = Charged { decision, headroom: *headroom };
                CachedDenial::new(&last, self.cost, self.at).predict(rule, part.cost, now)
            }
        }
    }

    /// The state for a call that restores what Redis has lost, if Redis can merge it.
    pub(super) fn repair_state(&self) -> Option<String> {
        self.form.rule().repair_state(self.state()?)
    }

    /// The last state; `None` if the key was fresh, or has a log.
    pub(super) const fn state(&self) -> Option<&State> {
        match &self.state {
            KeyState::State(state) => state.as_ref(),
            KeyState::Log { .. } => None,
        }
    }

    /// The number of used tokens of the key of `part` at `now`, also if the state is of other parameters. For a log, the
    /// number includes tokens that have left its window since.
    pub(super) fn used(&self, part: &ChargePart, now: Nanos) -> Cost {
        match &self.state {
            KeyState::Log { counted, headroom, .. } => match now.saturating_sub(self.at) < headroom.until_full {
                true => *counted,
                false => 0,
            },
            KeyState::State(state) => {
                let state = state.clone();
                let state = state.and_then(|state| part.rule().migrate_state(self.form.rule(), state, now));
                part.used_in(state.as_ref(), now)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::shared::fallback::test_part;

    #[test]
    fn the_last_tokens_are_not_denied_by_a_clock_that_seems_to_be_before_the_last_charge() {
        let part = ChargePart { cost: 60, ..test_part() };
        let memory = StateCache::new();
        let (at, early) = (Nanos::from_secs(10), Nanos::new(9_995_000_000));
        let rest = part.rule().policy().quota - part.cost;
        memory.remember(&part, KeyState::State(part.rule().debit(None, rest, at)), at);
        assert!(memory.denial(&part, early).is_none());
        memory.remember(&part, KeyState::State(part.rule().debit(None, rest + 1, at)), at);
        assert!(memory.denial(&part, early).is_some());
    }

    #[test]
    fn a_denial_is_repeated_until_its_end_once_it_was_confirmed_and_no_tokens_come_back() {
        let whole = ChargePart { cost: 60, ..test_part() };
        let spent = whole.rule().debit(None, 600, Nanos::SECOND);
        for (max_lease, may_refund) in [(0, false), (Cost::MAX, false), (0, true)] {
            let part = ChargePart { max_lease, may_refund, ..whole.clone() };
            let memory = StateCache::new();
            let tell = |at| memory.remember(&part, KeyState::State(spent.clone()), at);
            let is_repeated = |at: Nanos| memory.denial(&part, at).is_some();
            tell(Nanos::SECOND);
            let later = Nanos::SECOND.saturating_add(SETTLING);
            assert!(is_repeated(later.saturating_sub(Nanos::new(1))) && !is_repeated(later));
            tell(later);
            let much_later = later.saturating_add(SETTLING);
            assert_eq!(is_repeated(much_later), max_lease == 0 && !may_refund, "{max_lease} {may_refund}");
        }
    }
}
