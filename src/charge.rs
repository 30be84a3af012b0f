//! The values that ruleset and store exchange: the charges of a request and their results.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::algorithm::{Decision, Headroom, Rule};
use crate::units::{Cost, LimitKey, Nanos};

/// One limit's part in a request: `cost` tokens from the bucket `key`.
#[derive(Clone, Debug, PartialEq)]
pub struct Charge {
    /// The limit's position in the ruleset.
    pub limit: usize,
    /// The parameters that apply.
    pub rule: RuleRef,
    /// Which bucket.
    pub key: LimitKey,
    /// What buckets have in common that are kept together, where states are spread over several servers.
    pub tag: LimitKey,
    /// How many tokens.
    pub cost: Cost,
    /// How many have to be left for others once they are taken.
    pub floor: Cost,
    /// Whether the limit enforces its decision, and when it consumes tokens.
    pub enforcement: Enforcement,
    /// Where it was charged. The store notes it, to correct the charge in the same place.
    pub taken: Taken,
    /// The slot that the request holds while it runs, where gateways divide keys. The store notes it too.
    pub slot: Option<Slot>,
}

/// Identifies a slot that a request holds of a limit while it runs, among all slots of all gateways.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Slot {
    /// The process that the request goes through.
    pub process: u64,
    /// Its number there, which is never used again.
    pub number: u64,
}

impl Charge {
    /// A charge that is taken nowhere yet, of a bucket that is kept wherever it falls.
    pub const fn new(limit: usize, rule: RuleRef, key: LimitKey, cost: Cost, enforcement: Enforcement) -> Self {
        Self { limit, rule, key, tag: key, cost, floor: 0, enforcement, taken: Taken::AsUsual, slot: None }
    }

    /// How many tokens an admitted request takes when it comes.
    pub const fn taken_cost(&self) -> Cost {
        if self.enforcement.consumes { self.cost } else { 0 }
    }
}

/// Where a charge was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Taken {
    /// Where the limit's states are kept.
    #[default]
    AsUsual,
    /// There too, when it was this time here and that time there.
    Elsewhere {
        /// As the charge was made with.
        here: Nanos,
        /// As its states know it.
        there: Nanos,
    },
    /// There too, by what this node counts of it, when it was this time here and that time there.
    Counted {
        /// As the charge was made with.
        here: Nanos,
        /// As its states know it.
        there: Nanos,
        /// How many tokens each token was, of which this node had only a share.
        times: u64,
    },
    /// There too, as the slot of this number.
    Slot(u64),
    /// From tokens that this node had taken ahead, when it was this time here and that time there.
    Lease {
        /// As the charge was made with.
        here: Nanos,
        /// As its states know it.
        there: Nanos,
        /// When those tokens lapse, by which they are known.
        lapses: Nanos,
    },
    /// From a bucket of this node's own, because Redis was unavailable.
    Fallback {
        /// Which bucket.
        key: LimitKey,
        /// How many tokens each token is there, of which every node has only a share.
        times: u64,
        /// When the tokens that this node has to reconcile were going to be refilled, at this node's part of the rate and at
        /// the whole rate, by Redis's clock.
        made_good: [Nanos; 2],
    },
    /// At the gateway that owns its key.
    Owner {
        /// Which one, by a number of this process's.
        node: u32,
        /// When it was charged, as this gateway has it.
        here: Nanos,
        /// The same as that one has it.
        there: Nanos,
    },
    /// Nowhere: the request passed because Redis was unavailable.
    FailedOpen,
}

/// The parameters that a charge goes by.
#[derive(Clone, Debug, PartialEq)]
pub enum RuleRef {
    /// Those at this position among the limit's, which are the same for all customers of a plan.
    Listed(usize),
    /// Those of one customer.
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
    /// Whether a denied request takes its tokens too, below what there is.
    pub counts_denied: bool,
}

impl Enforcement {
    /// Denies what is over the limit, and takes tokens from what is not.
    pub const USUAL: Self = Self { enforces: true, consumes: true, counts_denied: false };
    /// Asks what would become of a request, and changes nothing.
    pub const ASKS: Self = Self { enforces: false, consumes: false, counts_denied: false };
}

/// What came of a batch of charges, in its order. Most requests are under few limits.
pub type AllCharged = smallvec::SmallVec<[Charged; 2]>;

/// What came of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Charged {
    /// What this limit says of the request. If any limit of the request denies, none has been charged.
    pub decision: Decision,
    /// Where the key stands afterwards.
    pub headroom: Headroom,
}

impl Charged {
    /// The same as it looks when `time` has passed.
    pub fn after(self, time: Nanos) -> Self {
        let decision = match self.decision {
            Decision::Admit { wait } => Decision::Admit { wait: wait.saturating_sub(time) },
            Decision::Deny(denial) => Decision::Deny(denial),
        };
        let until_more = self.headroom.until_more.saturating_sub(time);
        let until_full = self.headroom.until_full.saturating_sub(time);
        Self { decision, headroom: Headroom { until_more, until_full, ..self.headroom } }
    }
}

// === how a limit's states are shared ===

/// Which nodes a limit's states belong to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Each node keeps its own.
    #[default]
    Sticky,
    /// All nodes share them.
    Shared(Sharing),
}

impl Mode {
    /// Whether nodes share the states.
    pub const fn is_shared(self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// What happens to requests while Redis is unavailable, if nodes share the states.
    pub const fn on_store_down(self) -> Option<OnStoreDown> {
        match self {
            Self::Sticky => None,
            Self::Shared(sharing) => Some(sharing.on_store_down),
        }
    }
}

/// How nodes share states.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sharing {
    /// How exactly.
    pub consistency: Consistency,
    /// What happens to requests while Redis is unavailable.
    pub on_store_down: OnStoreDown,
}

/// How exactly a shared limit is kept. A(w) is what all nodes together admit in a time w, B what they may at once, r the rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Consistency {
    /// Redis decides every request: A(w) is at most B + r w.
    #[default]
    Exact,
    /// Nodes lease tokens and spend them in memory: A(w) is at most B + r w and the tokens that nodes hold. `strict` lowers B
    /// by as many.
    Leased {
        /// Whether B is lowered by what nodes may hold.
        strict: bool,
    },
    /// Nodes decide by themselves and synchronise their counts: A(w) is at most B + r w and what the other nodes admit between
    /// two synchronisations.
    Eventual,
}

/// What happens to requests while Redis is unavailable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnStoreDown {
    /// Every node enforces its part of the limit.
    #[default]
    Divide,
    /// Every node enforces the limit by itself.
    Local,
    /// They pass.
    Allow,
    /// They are refused with a 503: the gateway cannot know whether the limit admits them.
    Deny,
}

/// Where a batch was decided: of several places the furthest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DecisionSource {
    /// In memory.
    Local,
    /// In memory, by a cached denial of Redis or of the key's owner.
    DenialCache,
    /// In memory, from tokens that were taken ahead.
    Lease,
    /// By the gateway that owns the key.
    Owner,
    /// In Redis.
    Store,
    /// In memory, because Redis or the owner did not answer.
    Fallback,
}

impl DecisionSource {
    /// All.
    pub const ALL: [Self; 6] = [Self::Local, Self::DenialCache, Self::Lease, Self::Owner, Self::Store, Self::Fallback];

    /// A word for metrics.
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
