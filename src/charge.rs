//! The values that ruleset and store exchange: the charges of a request and their results.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::algorithm::{Decision, Denial, Headroom, Rule};
use crate::units::{ClockOffset, Cost, LimitKey, Nanos};

/// One limit's part in a request: `cost` tokens from the bucket `key`.
#[derive(Clone, Debug, PartialEq)]
pub struct Charge {
    /// The limit's position in the ruleset.
    pub limit: usize,
    /// The parameters that apply.
    pub rule: RuleRef,
    /// The bucket.
    pub key: LimitKey,
    /// The buckets with the same tag are kept on one server, where states are spread over several servers.
    pub tag: LimitKey,
    /// How many tokens.
    pub cost: Cost,
    /// How many tokens have to be left for other plans after the charge.
    pub floor: Cost,
    /// Whether the limit enforces its decision, and when it consumes tokens.
    pub enforcement: Enforcement,
    /// Where it was charged. The store sets this, to correct the charge in the same place.
    pub taken_from: ChargeSource,
    /// How far the clock of the states is ahead of this gateway's, to the nanosecond at the time of the charge. The store
    /// sets this too: a later correction names the window or the log entry of the charge by a time.
    pub clock_offset: ClockOffset,
    /// The slot that the request holds while it runs, where gateways divide keys. The store sets this too.
    pub slot: Option<Slot>,
}

/// Identifies a slot that a request holds of a limit while it runs, among all slots of all gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Slot {
    /// The process that the request goes through.
    pub process: u64,
    /// The slot's number in that process, which is never reused.
    pub number: u64,
}

impl Charge {
    /// A charge that no store has taken yet, of a bucket that shares its tag with no other one.
    pub const fn new(limit: usize, rule: RuleRef, key: LimitKey, cost: Cost, enforcement: Enforcement) -> Self {
        Self {
            limit,
            rule,
            key,
            tag: key,
            cost,
            floor: 0,
            enforcement,
            taken_from: ChargeSource::LimitStore,
            clock_offset: ClockOffset::ZERO,
            slot: None,
        }
    }

    /// The same charge as a question, which changes nothing.
    pub fn dry_run(&self) -> Self {
        Self { enforcement: Enforcement::DRY_RUN, ..self.clone() }
    }

    /// Whether two charges are of the same key of the same limit.
    pub fn is_same_key(&self, other: &Self) -> bool {
        (self.limit, self.key) == (other.limit, other.key)
    }

    /// Whether two charges are of the same key of the same limit, under the same parameters.
    pub fn is_same_bucket(&self, other: &Self) -> bool {
        self.is_same_key(other) && self.rule == other.rule
    }

    /// How many tokens an admitted request takes on its arrival.
    pub const fn taken_cost(&self) -> Cost {
        if self.enforcement.consumes { self.cost } else { 0 }
    }
}

/// A charge to refund.
#[derive(Clone, Debug, PartialEq)]
pub struct Refund {
    /// The charge, with the tokens to refund as its cost.
    pub charge: Charge,
    /// When its key was going to be full again, as known right after the charge. This identifies the window of the charge.
    pub full_at: Nanos,
}

impl Refund {
    /// The refund of a charge that was made at `charged_at` and left this headroom.
    pub const fn of(charge: Charge, headroom: Headroom, charged_at: Nanos) -> Self {
        Self { charge, full_at: charged_at.saturating_add(headroom.until_full) }
    }
}

/// Where a charge was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChargeSource {
    /// Where the limit's states are kept.
    #[default]
    LimitStore,
    /// Where the limit's states are kept, through the count that this gateway keeps and synchronises.
    Counted {
        /// The number of the synchronisation that will take the charge.
        sync: u64,
    },
    /// Where the limit's states are kept, as the slot of this number.
    Slot(u64),
    /// From a lease: tokens that this gateway had taken ahead.
    Lease {
        /// When the lease expires; this time identifies the lease.
        expires_at: Nanos,
    },
    /// From a bucket of this gateway's own, because Redis was unavailable.
    Fallback {
        /// The bucket.
        key: LimitKey,
        /// How many tokens the charge took for each token, because every gateway has only a share of them.
        cost_multiplier: u64,
        /// When the tokens that this gateway has to reconcile were going to be refilled, at this gateway's part of the
        /// rate and at the whole rate, by Redis's clock.
        refill_times: [Nanos; 2],
    },
    /// At the gateway that owns its key, by a number that this process gave it. Its states go by its wall clock.
    Owner(u32),
    /// Nowhere: the request passed because Redis was unavailable.
    FailedOpen,
}

/// A reference to the parameters of a charge's limit.
#[derive(Clone, Debug, PartialEq)]
pub enum RuleRef {
    /// The parameters at this position in the limit's list, which are the same for all customers of a plan.
    Listed(usize),
    /// The parameters of one customer, one group or one request.
    Own(Arc<Rule>),
}

/// Whether a limit enforces its decision, and when it consumes tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Enforcement {
    /// Whether a denial by this limit denies the request. Off for limits that watch, mark or divert: those are charged
    /// when the request is admitted by the others and they would admit it too.
    pub enforces: bool,
    /// Whether an admitted request takes its tokens; otherwise the limit is only asked whether it would admit it.
    pub consumes: bool,
    /// Whether a denied request takes its tokens too, even where the bucket has too few.
    pub counts_denied: bool,
}

impl Enforcement {
    /// Denies requests over the limit, and takes tokens for the others.
    pub const DEFAULT: Self = Self { enforces: true, consumes: true, counts_denied: false };
    /// Asks for the decision on a request, and changes nothing.
    pub const DRY_RUN: Self = Self { enforces: false, consumes: false, counts_denied: false };

    /// Whether the limit's own `decision` denies the request.
    pub const fn denies(self, decision: Decision) -> bool {
        self.enforces && !decision.is_admitted()
    }

    /// Whether a request that is admitted in the end takes its tokens, given the limit's own decision.
    pub const fn takes(self, decision: Decision) -> bool {
        self.consumes && decision.is_admitted()
    }

    /// Whether a charge that got this decision is refunded when another limit denies the request.
    pub const fn refunds_if_denied(self, decision: Decision) -> bool {
        self.takes(decision) && !self.counts_denied
    }
}

/// Whether an enforcing limit denies `batch`, whose results are `charged`.
pub fn is_denied(batch: &[Charge], charged: &[Charged]) -> bool {
    batch.iter().zip(charged).any(|(charge, charged)| charge.enforcement.denies(charged.decision))
}

/// The results of a batch of charges, in its order. Most requests are under few limits.
pub type AllCharged = smallvec::SmallVec<[Charged; 2]>;

/// The result of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Charged {
    /// This limit's decision on the request. If any limit of the request denies, none has been charged.
    pub decision: Decision,
    /// The key's headroom afterwards.
    pub headroom: Headroom,
}

impl Charged {
    /// The same result after `time` has passed.
    pub fn after(self, time: Nanos) -> Self {
        let decision = match self.decision {
            Decision::Admit { wait } => Decision::Admit { wait: wait.saturating_sub(time) },
            Decision::Deny(denial) => Decision::Deny(denial),
        };
        let until_more = self.headroom.until_more.saturating_sub(time);
        let until_full = self.headroom.until_full.saturating_sub(time);
        Self { decision, headroom: Headroom { until_more, until_full, ..self.headroom } }
    }

    /// The same result, of a key that is fresh after `time` if the request is denied.
    pub fn or_fresh_after(self, time: Nanos) -> Self {
        let Decision::Deny(Denial::Later { retry_after }) = self.decision else { return self };
        let Headroom { until_more, until_full, .. } = self.headroom;
        Self {
            decision: Decision::later(retry_after.min(time)),
            headroom: Headroom { until_more: until_more.min(time), until_full: until_full.min(time), ..self.headroom },
        }
    }

    /// The same result of a key that is denied for `time`, whatever its state says.
    pub fn denied_for(self, time: Nanos) -> Self {
        let decision = match self.decision {
            Decision::Admit { .. } => Decision::later(time),
            Decision::Deny(Denial::Later { retry_after }) => Decision::later(retry_after.max(time)),
            Decision::Deny(Denial::Never { .. } | Denial::Busy) => return self,
        };
        let [until_more, until_full] =
            [self.headroom.until_more, self.headroom.until_full].map(|until| until.max(time));
        Self { decision, headroom: Headroom { remaining: Some(0), until_more, until_full } }
    }
}

// === how a limit's states are shared ===

/// Which gateways a limit's states belong to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Each gateway keeps states of its own.
    #[default]
    Sticky,
    /// All gateways share them.
    Shared(Sharing),
}

impl Mode {
    /// Whether gateways share the states.
    pub const fn is_shared(self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// The part of a `burst` that can be admitted at once.
    pub fn admitted(self, burst: Cost) -> Cost {
        match self {
            Self::Sticky => burst,
            Self::Shared(sharing) => sharing.consistency.admitted(burst),
        }
    }

    /// How the limit treats requests while Redis is unavailable, if gateways share the states.
    pub const fn on_store_down(self) -> Option<OnStoreDown> {
        match self {
            Self::Sticky => None,
            Self::Shared(sharing) => Some(sharing.on_store_down),
        }
    }
}

/// How gateways share states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sharing {
    /// How exact the shared limit is.
    pub consistency: Consistency,
    /// How the limit treats requests while Redis is unavailable.
    pub on_store_down: OnStoreDown,
}

/// How exact a shared limit is. A(w) is what all gateways together admit in a time w, B the burst, r the rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Consistency {
    /// Redis decides every request: A(w) is at most B + r w.
    #[default]
    Exact,
    /// Gateways lease tokens and spend them in memory: A(w) is at most B + r w plus the tokens that gateways hold.
    /// `strict` lowers B by as many.
    Leased {
        /// The configured number of gateways, where B is lowered by the tokens that these may hold.
        strict: Option<u64>,
    },
    /// Gateways decide by themselves and synchronise their counts: A(w) is at most B + r w plus what the other gateways
    /// admit between two synchronisations.
    Eventual,
}

impl Consistency {
    /// The most tokens that each gateway may hold of a `burst` that is lowered by them: together they hold an eighth of it.
    pub fn strict_lease(self, burst: Cost) -> Cost {
        const SHARE: u64 = 8;
        let Self::Leased { strict: Some(nodes) } = self else { return 0 };
        burst.checked_div(nodes.saturating_mul(SHARE)).unwrap_or(0)
    }

    /// The part of a `burst` that can be admitted at once.
    pub fn admitted(self, burst: Cost) -> Cost {
        let Self::Leased { strict: Some(nodes) } = self else { return burst };
        burst.saturating_sub(self.strict_lease(burst).saturating_mul(nodes))
    }
}

/// How a limit treats requests while Redis is unavailable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreDown {
    /// Every gateway enforces its part of the limit.
    #[default]
    Divide,
    /// Every gateway enforces the limit by itself.
    Local,
    /// All requests pass.
    Allow,
    /// All requests are refused with a 503: the gateway cannot know whether the limit admits them.
    Deny,
}

/// The place where a batch was decided; the furthest one if there are several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DecisionSource {
    /// In memory.
    Local,
    /// In memory, by a cached denial of Redis or of the key's owner.
    DenialCache,
    /// In memory, from a lease: tokens that were taken ahead.
    Lease,
    /// By the gateway that owns the key.
    Owner,
    /// In Redis.
    Store,
    /// In memory, because Redis or the owner did not answer.
    Fallback,
}

impl DecisionSource {
    /// All sources, in the order of their declaration.
    pub const ALL: [Self; 6] = [Self::Local, Self::DenialCache, Self::Lease, Self::Owner, Self::Store, Self::Fallback];

    /// The label value in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::DenialCache => "denial_cache",
            Self::Lease => "lease",
            Self::Owner => "owner",
            Self::Store => "store",
            Self::Fallback => "fallback",
        }
    }
}
