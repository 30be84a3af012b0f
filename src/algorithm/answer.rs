//! The results of an algorithm: decisions, headroom, policies.

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::Algorithm;
use crate::units::{Cost, Nanos};

/// The decision on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// The request may pass after `wait` (at once if zero); its cost is charged already.
    Admit {
        /// How long the request has to wait, rounded up to the next nanosecond.
        wait: Nanos,
    },
    /// The request may not pass.
    Deny(Denial),
}

impl Decision {
    /// An admission without a wait.
    pub const ADMIT: Self = Self::Admit { wait: Nanos::ZERO };

    /// A denial; the same request is admitted after `retry_after` if nothing else arrives.
    pub const fn later(retry_after: Nanos) -> Self {
        Self::Deny(Denial::Later { retry_after })
    }

    /// A denial until a request in flight has ended, at an unknown time.
    pub const BUSY: Self = Self::Deny(Denial::Busy);

    /// A denial for good: the cost can never fit.
    pub const fn never(max: Cost) -> Self {
        Self::Deny(Denial::Never { max })
    }

    /// Whether the request may pass, now or after its wait.
    pub const fn is_admitted(self) -> bool {
        matches!(self, Self::Admit { .. })
    }
}

/// The reason why a request may not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Denial {
    /// Not now: the same request is denied one nanosecond before `retry_after` has passed and admitted (perhaps
    /// after a wait that the limit allows) from then on, if nothing else arrives.
    Later {
        /// The smallest such whole number of nanoseconds; at least 1.
        retry_after: Nanos,
    },
    /// Not now, and for an unknown time: requests in flight have to end first. Only where
    /// [`Core::HOLDS_SLOTS`](crate::algorithm::Core::HOLDS_SLOTS).
    Busy,
    /// No wait helps.
    Never {
        /// The largest cost that this limit can ever admit.
        max: Cost,
    },
}

/// The headroom of a key between two requests; for headers, metrics and plots, never for decisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Headroom {
    /// The largest whole cost that would be admitted now without a wait; `None` where there is no such number
    /// (a reservation that lets the next caller pay).
    pub remaining: Option<Cost>,
    /// The time until `remaining` grows; zero where it will not grow any more.
    pub until_more: Nanos,
    /// The time until `remaining` is as large as it gets; zero where it is.
    pub until_full: Nanos,
}

impl Headroom {
    /// The headroom after a refund of `cost` tokens of `policy`; its times may be shorter than this says.
    pub fn after_refund(self, cost: Cost, policy: Policy) -> Self {
        let remaining = self.remaining.map(|remaining| remaining.saturating_add(cost).min(policy.quota));
        match remaining == Some(policy.quota) {
            true => Self { remaining, until_more: Nanos::ZERO, until_full: Nanos::ZERO },
            false => Self { remaining, ..self },
        }
    }

    /// The time until the key has all tokens of `policy` again; `None` where requests in flight have to end first.
    pub fn full_in(&self, policy: Policy) -> Option<Nanos> {
        (policy.window.is_some() || self.remaining == Some(policy.quota)).then_some(self.until_full)
    }
}

/// The policy of a limit, for the `RateLimit-Policy` header: `quota` tokens per `window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The most that can be admitted at once (burst, capacity, limit), at least 1.
    pub quota: Cost,
    /// The time in which a spent quota is full again; `None` where time does not bring it back (slots in flight).
    pub window: Option<Nanos>,
}

impl Policy {
    /// The policy for requests that have to leave `floor` tokens for others.
    pub fn above(self, floor: Cost) -> Self {
        Self { quota: self.quota.saturating_sub(floor).max(1), ..self }
    }
}

/// The longest time that a debt of a key lasts, beyond the times of its limit (see [`Core::debit`](super::Core::debit)).
pub const MAX_DEBT: Nanos = Nanos::from_secs(86_400);

/// When a state can be evicted, if nothing arrives until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evictability {
    /// From this time on the state decides exactly as a fresh one would.
    Fresh(Nanos),
    /// From this time on, a key without its state can only admit less than with it. The store evicts it when it needs room.
    Safe(Nanos),
    /// Never: an eviction would hand out tokens.
    Held,
}

impl Evictability {
    /// Whether the state decides as a fresh one would at `now`.
    pub fn is_fresh(self, now: Nanos) -> bool {
        matches!(self, Self::Fresh(from) if from <= now)
    }
}

/// The end of an admitted request; for algorithms that hold a slot while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    /// The time from admission to the end of the response.
    pub latency: Nanos,
    /// Whether the latency says something about the upstream (it answered, and not with an error).
    pub measured: bool,
}

impl Completion {
    /// The end of a request about which nothing is known.
    pub const UNMEASURED: Self = Self { latency: Nanos::ZERO, measured: false };
}
