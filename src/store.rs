//! Where the states of all keys are kept, and how requests are charged: all of a request's limits, or none.
//!
//! Knows nothing of routes, HTTP or metrics: limits are positions, keys are hashes, and what happened is returned or
//! read off [`Store::usage`].

pub mod local;
pub mod redis;

pub use local::snapshot::{Head, Written};
pub use local::{Binding, LocalStore};

use std::io::{self, Write};

use crate::algorithm::{AlgorithmName, AllCharged, Charge, Completion, Rule};
use crate::units::Nanos;

/// A limit as a store has to know it. Its states belong to `name`, `algorithm` and `key`: a limit that comes back with
/// other rules finds them again.
#[derive(Clone, Copy, Debug)]
pub struct LimitSpec<'a> {
    /// The limit's name.
    pub name: &'a str,
    /// Its algorithm.
    pub algorithm: AlgorithmName,
    /// What its keys are made of: keys of another kind mean somebody else.
    pub key: u64,
    /// Whether states that it left are forgotten.
    pub afresh: bool,
    /// All parameters that charges may refer to.
    pub rules: &'a [Rule],
    /// How many keys may be remembered.
    pub max_keys: u64,
}

/// How full one limit's table is, and what was done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The limit's name.
    pub name: String,
    /// Keys remembered.
    pub keys: u64,
    /// Keys that may be remembered.
    pub max_keys: u64,
    /// Keys forgotten because they were as good as new.
    pub evicted_expired: u64,
    /// Keys forgotten early because the table was full.
    pub evicted_full: u64,
    /// Charges of new keys that went to the common bucket because the table was full.
    pub overflowed: u64,
}

/// The stores there are.
#[derive(Debug)]
pub enum Store {
    /// In this process's memory.
    Local(LocalStore),
}

impl Store {
    /// Makes `limits` known; charges refer to them by their position. States of limits that were known before stay.
    ///
    /// States of limits that no binding knows any more are kept until they are as good as new, in case the limit comes
    /// back; those of a bounded number of limits.
    pub fn bind(&self, limits: &[LimitSpec<'_>]) -> Binding {
        match self {
            Self::Local(store) => store.bind(limits),
        }
    }

    /// Charges every entry of `batch` or none: none if any limit that binds denies. See [`crate::algorithm::Manner`] for
    /// those that go by other rules. Answers in the order of `batch`, in which no limit may appear twice, and leaves in it
    /// the keys that were charged: a new key for which there is no room is charged to a common bucket, and has to be
    /// given back there.
    pub async fn charge(&self, binding: &Binding, batch: &mut [Charge], now: Nanos) -> AllCharged {
        match self {
            Self::Local(store) => store.charge(binding, batch, now),
        }
    }

    /// Takes back charges, as far as the algorithms allow. Beside each stands when its key was going to be whole again,
    /// as [`crate::algorithm::Headroom::until_full`] told right after the charge.
    pub fn refund(&self, binding: &Binding, batch: &[(Charge, Nanos)], now: Nanos) {
        match self {
            Self::Local(store) => store.refund(binding, batch, now),
        }
    }

    /// Charges whatever the limits say, each by itself: of a request that was admitted before its cost was known.
    pub fn debit(&self, binding: &Binding, batch: &[Charge], now: Nanos) {
        match self {
            Self::Local(store) => store.debit(binding, batch, now),
        }
    }

    /// A request whose batch was charged has ended: gives back what limits hold while a request runs.
    pub fn complete(&self, binding: &Binding, batch: &[Charge], end: Completion, now: Nanos) {
        match self {
            Self::Local(store) => store.complete(binding, batch, end, now),
        }
    }

    /// Forgets keys that are as good as new, in the `part`-th of `parts` equal parts of the store.
    pub fn sweep(&self, part: usize, parts: usize, now: Nanos) {
        match self {
            Self::Local(store) => store.sweep(part, parts, now),
        }
    }

    /// Writes what outlives the process: see [`local::snapshot`].
    pub fn write_snapshot(&self, head: &Head, out: &mut dyn Write) -> io::Result<Written> {
        match self {
            Self::Local(store) => store.write_snapshot(head, out),
        }
    }

    /// Whether the states that there are for a limit are from a process that knew it with other parameters.
    pub fn was_bound_otherwise(&self, spec: &LimitSpec<'_>) -> bool {
        match self {
            Self::Local(store) => store.was_bound_otherwise(spec),
        }
    }

    /// How full the tables of `binding` are, in the order of its limits.
    pub fn usage(&self, binding: &Binding) -> Vec<Usage> {
        match self {
            Self::Local(store) => store.usage(binding),
        }
    }

    /// How many tables there are, those included that are kept for limits that may come back.
    pub fn tables(&self) -> usize {
        match self {
            Self::Local(store) => store.tables(),
        }
    }
}
