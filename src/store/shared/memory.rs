//! What this node remembers of what Redis said: enough to repeat a denial without asking, to say where a key stands, and
//! to go on from there when Redis is gone or has forgotten.
//!
//! Bounded: what is remembered of a key may be dropped at any time, which costs a call.

use std::sync::Arc;

use quick_cache::sync::Cache;

use crate::algorithm::{Decision, State};
use crate::charge::Charged;
use crate::store::redis::Shared;
use crate::store::shared::limit::Part;
use crate::store::told::{SETTLING, Told};
use crate::units::{Cost, LimitKey, Nanos};

/// How many keys are remembered: about 30 MB.
const MOST_KEYS: usize = 200_000;

/// The last states seen. All times are on Redis's clock.
pub(super) struct Memory(Cache<LimitKey, Known>);

#[derive(Clone)]
struct Known {
    /// The parameters under which it was seen: under others it says nothing.
    form: Arc<Shared>,
    /// When it was seen.
    at: Nanos,
    seen: Seen,
}

#[derive(Clone)]
enum Seen {
    State(Option<State>),
    /// Of a log, which stays in Redis.
    Log(Told),
}

impl Memory {
    pub(super) fn new() -> Self {
        Self(Cache::new(MOST_KEYS))
    }

    /// The key of `part` was in `state` after a call at `at`, whose request heard `charged`.
    pub(super) fn remember(&self, part: &Part, state: Option<State>, charged: Option<&Charged>, at: Nanos) {
        let seen = match charged {
            Some(charged) if part.form.is_log() => Seen::Log(Told::new(charged, part.cost, at)),
            _ if part.form.is_log() => return self.forget(part.key),
            _ => Seen::State(state),
        };
        self.0.insert(part.key, Known { form: Arc::clone(&part.form), at, seen });
    }

    /// Nothing is known of `key` any more.
    pub(super) fn forget(&self, key: LimitKey) {
        self.0.remove(&key);
    }

    /// The denial of `part` at `now`, if it is certain without asking.
    pub(super) fn denial(&self, part: &Part, now: Nanos) -> Option<Charged> {
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
    pub(super) fn standing(&self, part: &Part, now: Nanos) -> Charged {
        let fresh = Known { form: Arc::clone(&part.form), at: now, seen: Seen::State(None) };
        self.known(part).unwrap_or(fresh).told(part, now)
    }

    /// The last state of the key of `part`; `None` where it is fresh or not known.
    pub(super) fn state(&self, part: &Part) -> Option<State> {
        match self.known(part)?.seen {
            Seen::State(state) => state,
            Seen::Log(_) => None,
        }
    }

    /// How many tokens of the key of `part` were used at `now`, as far as is known. Where some pass only after a wait, a
    /// fresh key has fewer left than its quota.
    pub(super) fn used(&self, part: &Part, now: Nanos) -> Cost {
        let fresh = part.rule().headroom(None, now).remaining;
        let left = self.standing(part, now).headroom.remaining;
        fresh.zip(left).map_or(0, |(fresh, left)| fresh.saturating_sub(left))
    }

    fn known(&self, part: &Part) -> Option<Known> {
        self.0.get(&part.key).filter(|known| known.form.parameters() == part.form.parameters())
    }
}

impl Known {
    fn told(&self, part: &Part, now: Nanos) -> Charged {
        let rule = part.rule();
        match &self.seen {
            Seen::State(state) => Charged {
                decision: rule.decide(state.clone(), part.cost, now).0,
                headroom: rule.headroom(state.as_ref(), now),
            },
            Seen::Log(log) => log.again(rule, part.cost, now),
        }
    }
}
