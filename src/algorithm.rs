//! The contract that every limiting algorithm keeps, and the list of them.
//!
//! An algorithm is a pure function `(parameters, state, cost, now) -> (decision, new state)`: no clock, no I/O, no
//! locks, no randomness. The type that implements [`Core`] holds the checked parameters of one limit; the state of
//! one key is a small value that the store owns. `None` is the state of a key never seen before.
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

pub use answer::{Completion, Decision, Denial, Evictability, Headroom, MAX_DEBT, Policy};
pub use arguments::{Arguments, InvalidParameter, MAX_WAIT, Parameter, ParameterKind, Value};
pub use parameters::Parameters;
pub use rule::{AlgorithmName, Rule, State};
pub use shared::{ChargeBatching, SharedForm, StateFields, StorageKind};

/// Calls `$callback! { arguments Variant module, ... }` with every algorithm: the one list of them.
#[macro_export]
macro_rules! for_each_algorithm {
    ($($callback:tt)::+ $(, $argument:tt)*) => {
        $($callback)::+! {
            $($argument)*
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

/// Matches `$value`, of the type `$Enum` that has a variant for each algorithm, and evaluates `$body` for the variant
/// that it is: `match_algorithm!(rule, |Rule(rule)| rule.policy())`. In `$body`, `ThisAlgorithm`, `ThisRule` and
/// `ThisState` are the algorithm and its variants of [`Rule`] and [`State`].
macro_rules! match_algorithm {
    ($value:expr, |$Enum:ident($inner:ident)| $body:expr) => {
        $crate::for_each_algorithm!($crate::algorithm::match_algorithm, [$value, $Enum ($inner), $body])
    };
    ($value:expr, |$Enum:ident| $body:expr) => {
        $crate::for_each_algorithm!($crate::algorithm::match_algorithm, [$value, $Enum {}, $body])
    };
    ([$value:expr, $Enum:ident $inner:tt, $body:expr] $($Variant:ident $module:ident,)*) => {
        match $value {
            $($Enum::$Variant $inner => {
                #[allow(unused_imports, reason = "few bodies need all of them")]
                use $crate::algorithm::{
                    $module::$Variant as ThisAlgorithm, Rule::$Variant as ThisRule, State::$Variant as ThisState,
                };
                $body
            })*
        }
    };
}
pub(crate) use match_algorithm;

/// One limiting algorithm: its name, its parameters and its description. Its [`Core`] decides; several algorithms may have
/// the same one.
pub trait Algorithm: 'static {
    /// The name in the configuration.
    const NAME: &'static str;
    /// The settings of the algorithm, for the configuration and its error messages.
    const PARAMETERS: &'static [Parameter];

    /// The checked parameters of one limit.
    type Core: Core;

    /// Checks the parameters. Every mistake of a user gives an [`InvalidParameter`] that says what to write.
    fn build(arguments: &Arguments) -> Result<Self::Core, InvalidParameter> {
        arguments.check(Self::PARAMETERS)?;
        Self::from_arguments(arguments)
    }

    /// The second half of [`Algorithm::build`], which alone calls it: each value is within the bounds that
    /// [`Algorithm::PARAMETERS`] declares, and this function checks how they go together.
    fn from_arguments(arguments: &Arguments) -> Result<Self::Core, InvalidParameter>;

    /// Arguments from which [`Algorithm::build`] makes these parameters again.
    fn arguments(rule: &Self::Core) -> Arguments;

    /// The limit in plain words: `20 at once, then one every 100ms`.
    fn describe(rule: &Self::Core) -> String;
}

/// The deciding part of an algorithm: the checked parameters of one limit, and the arithmetic.
///
/// Laws, each held by property tests: cost 0 is admitted and changes nothing; a denial leaves the state alone unless
/// the algorithm says that denials count; `retry_after` is exact; a `now` before the state's own time neither panics
/// nor admits more; nothing wraps; a debit never makes a later decision more generous.
pub trait Core: Clone + Eq + Debug + Send + Sync + Sized + 'static {
    /// Whether a request holds its tokens until it ends (see [`Core::complete`]).
    const HOLDS_SLOTS: bool = false;

    /// The state of one key. A key takes its size plus 9⅓ bytes of memory, for the key and the index of its parameters. The
    /// serialized form is written to disk: a change of it needs a new version of the snapshots.
    ///
    /// The default fills the place of a state while a decision about that state runs. Nothing reads it.
    type State: Clone + Default + PartialEq + Debug + Send + Serialize + DeserializeOwned + 'static;

    /// Decides one request and charges it if it is admitted.
    #[inline]
    fn decide(&self, state: Option<Self::State>, cost: Cost, now: Nanos) -> (Decision, Option<Self::State>) {
        if cost == 0 { (Decision::ADMIT, state) } else { self.decide_charge(state, cost, now) }
    }

    /// [`Core::decide`], which alone calls it, of a cost above 0.
    fn decide_charge(&self, state: Option<Self::State>, cost: Cost, now: Nanos) -> (Decision, Option<Self::State>);

    /// Whether the rule can admit a request after a wait (needs a [`MAX_WAIT`]).
    fn can_delay(&self) -> bool {
        false
    }

    /// Whether denied requests count in the state too.
    fn denials_count(&self) -> bool {
        false
    }

    /// Refunds `cost` of the charge of one request, as if the request had cost that much less, as far as the rule
    /// allows. The key never admits more than if that much had not been charged.
    ///
    /// `full_at` is the time at which the key was going to be full again, as seen right after the charge: the time of
    /// the charge plus [`Headroom::until_full`] then. It identifies the window of the charge, and tells how much time
    /// has refilled since: without it, a charge that a bucket has refilled long ago would be refunded again.
    fn refund(&self, state: Self::State, cost: Cost, full_at: Nanos, now: Nanos) -> Option<Self::State>;

    /// The tokens of charges that count at `now`, those beyond the limit included. `None` where one refund returns all that
    /// can be refunded; elsewhere a refund reaches one charge, and a grant measures by this number what it refunded.
    fn counted(&self, _state: &Self::State, _now: Nanos) -> Option<Cost> {
        None
    }

    /// Charges `cost` whatever the limit says: for a cost that was not known when the request was admitted, or for a
    /// denied request that counts. Where the request would have been admitted, the state is the same as after its
    /// admission; otherwise the key is in debt. It is full again at the latest after three times the window of its
    /// [`Core::policy`] plus the longest wait plus [`MAX_DEBT`], unless an algorithm says something else. A slot
    /// that is held while a request runs cannot be owed: nothing changes where [`Core::HOLDS_SLOTS`].
    #[inline]
    fn debit(&self, state: Option<Self::State>, cost: Cost, now: Nanos) -> Option<Self::State> {
        if cost == 0 { state } else { self.debit_charge(state, cost, now) }
    }

    /// [`Core::debit`], which alone calls it, of a cost above 0.
    fn debit_charge(&self, state: Option<Self::State>, cost: Cost, now: Nanos) -> Option<Self::State>;

    /// The state after the end of a request that was admitted with `cost`; only called where [`Core::HOLDS_SLOTS`].
    fn complete(&self, state: Self::State, _cost: Cost, _end: Completion, _now: Nanos) -> Option<Self::State> {
        Some(state)
    }

    /// The state after a request that runs already takes `cost` here too, whatever the limit says; only called where
    /// [`Core::HOLDS_SLOTS`].
    fn hold(&self, state: Option<Self::State>, _cost: Cost) -> Option<Self::State> {
        state
    }

    /// The key's headroom.
    fn headroom(&self, state: Option<&Self::State>, now: Nanos) -> Headroom;

    /// When the state can be evicted.
    fn evictability(&self, state: &Self::State) -> Evictability;

    /// The state under these parameters of a key that was counted under `old` until now: used tokens stay used.
    fn migrate_state(&self, old: &Self, state: Self::State, now: Nanos) -> Option<Self::State>;

    /// Whether the key's state stays under `old` when a request under these parameters takes `cost`. If so, these decide on
    /// the migrated state, the store debits the state of `old`, and a denial changes nothing: requests under a short window
    /// do not end a longer one. `state` and `now` are in the time of these parameters.
    fn keeps_old_parameters(&self, _old: &Self, _state: &Self::State, _cost: Cost, _now: Nanos) -> bool {
        false
    }

    /// Merges the states that two places counted for the same key, neither of them fresh. The merge is commutative and
    /// idempotent, and after the last charge of both it never admits more than either.
    fn merge(&self, one: Self::State, other: Self::State) -> Self::State;

    /// The same state on a clock that is ahead by `by`: every time in it moves. Never admits more than before.
    fn shift(&self, state: Self::State, by: ClockOffset) -> Self::State;

    /// How far this rule's time is ahead of the steady time, where the wall clock is ahead by `wall`: zero, except for
    /// windows that begin and end by the wall clock.
    fn own_offset(&self, _wall: ClockOffset) -> ClockOffset {
        ClockOffset::ZERO
    }

    /// The state after the wall clock may have been set back; `now` is this rule's time.
    fn after_step_back(&self, state: Self::State, _now: Nanos) -> Self::State {
        state
    }

    /// The largest cost that a key is ever admitted with, in whatever state (perhaps after a wait); `None` if any cost is.
    fn largest_cost(&self) -> Option<Cost>;

    /// The most bytes that a state takes, where it grows; the spare capacity of a collection does not count.
    fn largest_state(&self) -> u64 {
        bytes_of::<Self::State>()
    }

    /// The numbers for the headers.
    fn policy(&self) -> Policy;

    /// The Lua code of this family of rules in the script for Redis (see [`SharedForm`]); empty where it cannot be shared.
    const SCRIPT: &'static str = "";

    /// The rule in the script's form. A slot of a request in flight expires `slot_lifetime` after it was taken or renewed.
    ///
    /// Errors: there is no shared form. The text gives the reason and the remedy, and is read after the algorithm's name.
    fn shared_form(&self, _slot_lifetime: Nanos) -> Result<SharedForm, String> {
        Err("cannot be shared; use it with `mode: sticky`".to_owned())
    }

    /// Reads a state as the script writes it; `None` where the words are no state.
    fn read_shared(&self, _words: &mut StateFields<'_>) -> Option<Self::State> {
        None
    }

    /// The time since which charges of `cost` in all had to follow one another to lead from a fresh key to `state`. `None`
    /// where time does not refill charges one by one.
    fn charged_since(&self, _state: &Self::State, _cost: Cost) -> Option<Nanos> {
        None
    }

    /// The state in the script's form, from which Redis restores tokens that it has lost. `None` unless the merge of a state
    /// and one that it came from changes nothing.
    fn repair_state(&self, _state: &Self::State) -> Option<String> {
        None
    }

    /// The calendar of the rule's windows, if they follow one.
    fn calendar(&self) -> Option<&Calendar> {
        None
    }
}

/// The size of a `T` without what it refers to.
pub fn bytes_of<T>() -> u64 {
    u64::try_from(size_of::<T>()).unwrap_or(u64::MAX)
}
