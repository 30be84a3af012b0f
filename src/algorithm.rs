//! The contract that every limiting algorithm keeps, and the list of them.
//!
//! An algorithm is a pure function `(parameters, state, cost, now) -> (decision, new state)`: no clock, no I/O, no
//! locks, no randomness. The type that implements [`Core`] holds the checked parameters of one limit; the state of
//! one key is a small value that belongs to whoever stores it. `None` is the state of a key never seen before.
//!
//! To add an algorithm: write its file, and add its line to [`for_each_algorithm!`](crate::for_each_algorithm).

#![deny(clippy::arithmetic_side_effects, clippy::float_arithmetic, clippy::as_conversions)]

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::units::{ClockOffset, Cost, Nanos};
use calendar::Calendar;

mod answer;
pub mod arguments;
pub mod calendar;
pub mod counter;
pub mod grant;
pub mod parameters;
mod rule;
pub mod schedule;
pub mod shared;
pub mod sliding;
pub mod smooth;

pub mod adaptive_concurrency;
pub mod concurrency;
pub mod cycle;
pub mod exponential;
pub mod fixed_window;
pub mod gcra;
pub mod leaky_bucket;
pub mod leaky_queue;
pub mod quota_linear;
pub mod quota_reset;
pub mod sliding_counters;
pub mod sliding_log;
pub mod sliding_window;
pub mod token_bucket;

pub use answer::{Completion, Decision, Denial, Headroom, Idle, LONGEST_DEBT, Policy};
pub use arguments::{Arguments, InvalidParameter, Kind, MAX_WAIT, Parameter, Value};
pub use parameters::Parameters;
pub use rule::{AlgorithmName, Rule, State};
pub use shared::{Charges, KeptAs, SharedForm, Words};

/// Calls `$callback! { Variant module ... }` with every algorithm: the one list of them.
#[macro_export]
macro_rules! for_each_algorithm {
    ($callback:path) => {
        $callback! {
            TokenBucket token_bucket,
            LeakyBucket leaky_bucket,
            LeakyQueue leaky_queue,
            Gcra gcra,
            FixedWindow fixed_window,
            QuotaReset quota_reset,
            QuotaLinear quota_linear,
            Exponential exponential,
            SlidingLog sliding_log,
            SlidingWindow sliding_window,
            SlidingCounters sliding_counters,
            SmoothBursty smooth,
            SmoothWarmingUp smooth,
            Cycle cycle,
            Concurrency concurrency,
            AdaptiveConcurrency adaptive_concurrency,
        }
    };
}

/// One limiting algorithm: its name, its parameters and its words. Its [`Core`] decides; several algorithms may have the
/// same one.
pub trait Algorithm: 'static {
    /// The name in the configuration.
    const NAME: &'static str;
    /// The settings of the algorithm, for the configuration and its error messages.
    const PARAMETERS: &'static [Parameter];

    /// The checked parameters of one limit.
    type Core: Core;

    /// The parameters, checked. Every rule that a user can break ends in an [`InvalidParameter`] that says what to write.
    fn build(arguments: &Arguments) -> Result<Self::Core, InvalidParameter> {
        arguments.check(Self::PARAMETERS)?;
        Self::from_arguments(arguments)
    }

    /// The second half of [`Algorithm::build`], which alone calls it: each value is within the bounds that
    /// [`Algorithm::PARAMETERS`] declares, and this function checks how they go together.
    fn from_arguments(arguments: &Arguments) -> Result<Self::Core, InvalidParameter>;

    /// Arguments of which [`Algorithm::build`] makes these parameters again.
    fn arguments(rule: &Self::Core) -> Arguments;

    /// The limit in plain words: `20 at once, then one every 100ms`.
    fn describe(rule: &Self::Core) -> String;
}

/// The deciding part of an algorithm: the checked parameters of one limit, and the arithmetic.
///
/// Laws, each held by property tests: cost 0 is admitted and changes nothing; a denial leaves the state alone unless
/// the algorithm says that denials count; `retry_after` is exact; a `now` before the state's own time neither panics
/// nor admits more; nothing wraps; a debit never makes a later decision more generous.
pub trait Core: Clone + PartialEq + Debug + Send + Sync + Sized + 'static {
    /// Whether a request holds its tokens until it ends (see [`Core::complete`]).
    const HOLDS: bool = false;

    /// The state of one key. Its size is the memory that a key costs (plus nine bytes and a third of key and parameter number). Its
    /// serialized form is written to disk: another one needs another version of the snapshots.
    ///
    /// The default fills the place of a state while a decision about that state runs. Nothing reads it.
    type State: Clone + Default + PartialEq + Debug + Send + Serialize + DeserializeOwned + 'static;

    /// Decides one request and charges it if it is admitted.
    fn decide(&self, state: Option<Self::State>, cost: Cost, now: Nanos) -> (Decision, Option<Self::State>);

    /// Whether a request can be admitted with a wait, given a [`MAX_WAIT`].
    fn reserves(&self) -> bool {
        false
    }

    /// Whether a denial is remembered too.
    fn denials_count(&self) -> bool {
        false
    }

    /// Takes back `cost` of what one request was charged, as if that much had never been asked for, as far as the
    /// rule allows: never admits more than if it had not been charged.
    ///
    /// `full_at` is when the key was going to be whole again as seen right after the charge: the time of the charge
    /// plus [`Headroom::until_full`] then. It tells which window the charge was counted in, and how much of it time
    /// has made good since: without it, a charge that a full bucket has long forgotten would be paid out again.
    fn refund(&self, state: Self::State, cost: Cost, full_at: Nanos, now: Nanos) -> Option<Self::State>;

    /// Charges `cost` whatever the limit says: of a cost that was not known when the request was admitted, or of one
    /// that was denied and counts. Where the same request would have been admitted, this leaves the same state;
    /// otherwise the key owes. It is whole again at the latest after three times the window of its
    /// [`Core::policy`], the longest wait and [`LONGEST_DEBT`], unless an algorithm says something else. What is
    /// held while a request runs cannot be owed: nothing changes where [`Core::HOLDS`].
    fn debit(&self, state: Option<Self::State>, cost: Cost, now: Nanos) -> Option<Self::State>;

    /// A request that was admitted with `cost` has ended; only called where [`Core::HOLDS`].
    fn complete(&self, state: Self::State, _cost: Cost, _end: Completion, _now: Nanos) -> Option<Self::State> {
        Some(state)
    }

    /// A request that runs already holds `cost` here too, whatever the limit says; only called where
    /// [`Core::HOLDS`].
    fn hold(&self, state: Option<Self::State>, _cost: Cost) -> Option<Self::State> {
        state
    }

    /// Where the key stands.
    fn headroom(&self, state: Option<&Self::State>, now: Nanos) -> Headroom;

    /// When the state can be evicted.
    fn idle(&self, state: &Self::State) -> Idle;

    /// The state under these parameters of a key that was counted under `old` until now: what was used stays used.
    fn migrate_state(&self, old: &Self, state: Self::State, now: Nanos) -> Option<Self::State>;

    /// One state in place of two that were counted of the same key in two places, neither of them as good as new:
    /// commutative, idempotent, and at no time from their last charges on more generous than either.
    fn merge(&self, one: Self::State, other: Self::State) -> Self::State;

    /// The same state on a clock that is ahead by `by`: every time in it moves. Never admits more than before.
    fn shift(&self, state: Self::State, by: ClockOffset) -> Self::State;

    /// How far the time that this rule goes by is ahead of the steady time, where the wall clock is ahead by `wall`: it is
    /// not, but for windows that begin and end when the wall clock says so.
    fn own_offset(&self, _wall: ClockOffset) -> ClockOffset {
        ClockOffset::ZERO
    }

    /// The state where the wall clock may have been set back: `now` is the time that this rule goes by.
    fn after_step_back(&self, state: Self::State, _now: Nanos) -> Self::State {
        state
    }

    /// The largest cost that a fresh key would be admitted with (perhaps after a wait); `None` if any cost is.
    fn largest_cost(&self) -> Option<Cost>;

    /// The most bytes that a state takes, where it grows; the spare capacity of a collection does not count.
    fn largest_state(&self) -> u64 {
        bytes_of::<Self::State>()
    }

    /// The numbers for the headers.
    fn policy(&self) -> Policy;

    /// This family of rules as the script in Redis has it (see [`SharedForm`]); none where it cannot be shared.
    const SCRIPT: &'static str = "";

    /// The rule as the script takes it. A slot of a request in flight lapses `slot_lifetime` after it was taken or renewed.
    ///
    /// Errors: there is no shared form. The text gives the reason and the remedy, and is read after the algorithm's name.
    fn shared_form(&self, _slot_lifetime: Nanos) -> Result<SharedForm, String> {
        Err("cannot be shared; use it with `mode: sticky`".to_owned())
    }

    /// A state as the script writes it; `None` where it does not read like one.
    fn read_shared(&self, _words: &mut Words<'_>) -> Option<Self::State> {
        None
    }

    /// A state, to be said to a Redis that may have forgotten it. `None` where that has no use for it.
    fn hint(&self, _state: &Self::State) -> Option<String> {
        None
    }

    /// The calendar whose units are counted in.
    fn calendar(&self) -> Option<&Calendar> {
        None
    }
}

/// The size of a `T` without what it refers to.
pub fn bytes_of<T>() -> u64 {
    u64::try_from(size_of::<T>()).unwrap_or(u64::MAX)
}
