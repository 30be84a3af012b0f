//! What an algorithm answers.

use serde::{Deserialize, Serialize};

#[cfg(doc)]
use super::Algorithm;
use crate::units::{Cost, Nanos};

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// It may pass once `wait` is over (at once if zero); its cost is charged already.
    Admit {
        /// How long the request has to wait, rounded up to the next nanosecond.
        wait: Nanos,
    },
    /// It may not pass.
    Deny(Denial),
}

impl Decision {
    /// Admitted without a wait.
    pub const ADMIT: Self = Self::Admit { wait: Nanos::ZERO };

    /// Denied, and admitted again after `retry_after` if nothing else arrives.
    pub const fn later(retry_after: Nanos) -> Self {
        Self::Deny(Denial::Later { retry_after })
    }

    /// Denied until a request in flight has ended, whenever that is.
    pub const BUSY: Self = Self::Deny(Denial::Busy);

    /// Denied for good: the cost can never fit.
    pub const fn never(max: Cost) -> Self {
        Self::Deny(Denial::Never { max })
    }

    /// Whether the request may pass, now or after its wait.
    pub const fn is_admitted(self) -> bool {
        matches!(self, Self::Admit { .. })
    }
}

/// Why a request may not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Denial {
    /// Not now: the same request is denied one nanosecond before `retry_after` has passed and admitted (perhaps
    /// after a wait that the limit allows) from then on, if nothing else arrives.
    Later {
        /// The smallest such whole number of nanoseconds; at least 1.
        retry_after: Nanos,
    },
    /// Not now, and nobody can tell when: what is in flight has to end first. Only where [`Core::HOLDS`](crate::algorithm::Core::HOLDS).
    Busy,
    /// No wait helps.
    Never {
        /// The largest cost that this limit can ever admit.
        max: Cost,
    },
}

/// Where a key stands between two requests; for headers, metrics and pictures, never for decisions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Headroom {
    /// The largest whole cost that would be admitted now without a wait; `None` where there is no such number
    /// (a reservation that lets the next caller pay).
    pub remaining: Option<Cost>,
    /// The time until `remaining` grows; zero where it will not grow any more.
    pub until_more: Nanos,
    /// The time until `remaining` is as large as it gets; zero where it is.
    pub until_full: Nanos,
    /// The algorithm's measured rate in tokens per its period, where it measures one (`exponential`).
    pub measured_rate: Option<f64>,
}

/// What a limit promises, for the `RateLimit-Policy` header: `quota` tokens per `window`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The most that can be admitted at once (burst, capacity, limit), at least 1.
    pub quota: Cost,
    /// The time in which a spent quota is whole again; `None` where time does not bring it back (slots in flight).
    pub window: Option<Nanos>,
}

impl Policy {
    /// The policy for requests that have to leave `floor` tokens for others.
    pub fn above(self, floor: Cost) -> Self {
        Self { quota: self.quota.saturating_sub(floor).max(1), ..self }
    }
}

/// How long a key may have to make good what it owes, beyond the times of its limit (see [`Core::debit`](super::Core::debit)).
pub const LONGEST_DEBT: Nanos = Nanos::from_secs(86_400);

/// From when on a state may be forgotten, if nothing arrives until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// From this time on the state decides exactly as a fresh one would.
    Fresh(Nanos),
    /// From this time on forgetting the state can only admit less than keeping it: done when room is needed.
    Safe(Nanos),
    /// Never: forgetting it would hand out tokens.
    Held,
}

impl Idle {
    /// Whether the state decides as a fresh one would at `now`.
    pub fn is_fresh(self, now: Nanos) -> bool {
        matches!(self, Self::Fresh(from) if from <= now)
    }
}

/// How an admitted request ended; for algorithms that hold a slot while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Completion {
    /// From admission to the end of the response.
    pub latency: Nanos,
    /// Whether the latency says something about the upstream (it answered, and not with an error).
    pub measured: bool,
}

impl Completion {
    /// Of a request of which nothing is known.
    pub const UNMEASURED: Self = Self { latency: Nanos::ZERO, measured: false };
}
