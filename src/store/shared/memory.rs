//! What this node remembers of what Redis said: enough to repeat a denial without asking, to say where a key stands, and
//! to go on from there when Redis is gone or has forgotten.
//!
//! Bounded: what is remembered of a key may be dropped at any time, which costs a call.

use std::sync::Arc;

use quick_cache::sync::Cache;

use crate::algorithm::{Decision, State};
use crate::charge::Charged;
use crate::store::cached_denial::{CachedDenial, SETTLING};
use crate::store::redis::{KeyState, SharedRule};
use crate::store::shared::limit::ChargePart;
use crate::units::{Cost, LimitKey, Nanos};

/// How many keys are remembered: about 30 MB.
const MOST_KEYS: usize = 200_000;

/// The last states seen. All times are on Redis's clock.
pub(super) struct Memory(Cache<LimitKey, Known>);

/// What is remembered of one key.
#[derive(Clone)]
pub(super) struct Known {
    /// The parameters under which it was seen: under others it says nothing.
    form: Arc<SharedRule>,
    /// When it was seen.
    at: Nanos,
    kept: Kept,
}

#[derive(Clone)]
enum Kept {
    State(Option<State>),
    /// Of a log, which stays in Redis: how many tokens count, and what was told.
    Log(Cost, CachedDenial),
}

impl Memory {
    pub(super) fn new() -> Self {
        Self(Cache::new(MOST_KEYS))
    }

    /// The key of `part` was `seen` after a call at `at`, whose request heard `charged`.
    pub(super) fn remember(&self, part: &ChargePart, seen: KeyState, charged: Option<&Charged>, at: Nanos) {
        let kept = match seen {
            KeyState::State(state) => Kept::State(state),
            KeyState::Log { counted, headroom } => {
                let decision = charged.map_or(Decision::ADMIT, |charged| charged.decision);
                Kept::Log(counted, CachedDenial::new(&Charged { decision, headroom }, part.cost, at))
            }
        };
        self.0.insert(part.key, Known { form: Arc::clone(&part.form), at, kept });
    }

    /// What `part` says is given back, of a charge after which the key was going to be whole at `full_at`.
    pub(super) fn give_back(&self, part: &ChargePart, full_at: Nanos, now: Nanos) {
        let Some(mut known) = self.known(part) else { return };
        match &mut known.kept {
            Kept::State(state) => {
                *state = state.take().and_then(|state| part.rule().refund(state, part.cost, full_at, now));
            }
            // nothing is sent to Redis of it but what it lacks altogether
            Kept::Log(counted, _) => *counted = counted.saturating_sub(part.cost),
        }
        self.0.insert(part.key, known);
    }

    /// Nothing is known of `key` any more.
    pub(super) fn forget(&self, key: LimitKey) {
        self.0.remove(&key);
    }

    /// The denial of `part` at `now`, if it is certain without asking.
    pub(super) fn denial(&self, part: &ChargePart, now: Nanos) -> Option<Charged> {
        if !part.denial_holds() {
            return None;
        }
        if let Some(largest) = part.rule().largest_cost().filter(|largest| part.cost > *largest) {
            // whatever is kept
            return Some(Charged { decision: Decision::never(largest), ..self.standing(part, now) });
        }
        let known = self.known(part)?;
        if part.gives_back && now.saturating_sub(known.at) >= SETTLING {
            // another node may have given tokens back
            return None;
        }
        let charged = known.told(part, now);
        (!charged.decision.is_admitted()).then_some(charged)
    }

    /// Where the key of `part` stands as far as is known, for reports.
    pub(super) fn standing(&self, part: &ChargePart, now: Nanos) -> Charged {
        match self.known(part) {
            Some(known) => known.told(part, now),
            None => Charged {
                decision: part.rule().decide(None, part.cost, now).0,
                headroom: part.rule().headroom(None, now),
            },
        }
    }

    /// The last state of the key of `part`; `None` where it is fresh or not known.
    pub(super) fn state(&self, part: &ChargePart) -> Option<State> {
        self.known(part)?.state().cloned()
    }

    /// How many tokens of the key of `part` were used at `now`, as far as is known.
    pub(super) fn used(&self, part: &ChargePart, now: Nanos) -> Cost {
        self.known(part).map_or(0, |known| known.used(part, now))
    }

    /// What is known of the key of `part` under its parameters.
    pub(super) fn known(&self, part: &ChargePart) -> Option<Known> {
        self.0.get(&part.key).filter(|known| known.form.parameters() == part.form.parameters())
    }
}

impl Known {
    fn told(&self, part: &ChargePart, now: Nanos) -> Charged {
        let rule = part.rule();
        match &self.kept {
            Kept::State(state) => Charged {
                decision: rule.decide(state.clone(), part.cost, now).0,
                headroom: rule.headroom(state.as_ref(), now),
            },
            Kept::Log(_, told) => told.again(rule, part.cost, now),
        }
    }

    /// The last state; `None` where the key was fresh, or has a log.
    pub(super) const fn state(&self) -> Option<&State> {
        match &self.kept {
            Kept::State(state) => state.as_ref(),
            Kept::Log(..) => None,
        }
    }

    /// How many tokens of the key of `part` were used at `now`. Where some pass only after a wait, a fresh key has fewer left
    /// than its quota. Of a log, those that have left its window since are among them.
    pub(super) fn used(&self, part: &ChargePart, now: Nanos) -> Cost {
        match &self.kept {
            Kept::Log(counted, told) => match told.again(part.rule(), part.cost, now).headroom.until_full {
                Nanos::ZERO => 0,
                _ => *counted,
            },
            Kept::State(state) => {
                let left = |state| part.rule().headroom(state, now).remaining;
                left(None).zip(left(state.as_ref())).map_or(0, |(fresh, left)| fresh.saturating_sub(left))
            }
        }
    }
}
