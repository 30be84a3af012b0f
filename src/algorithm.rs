//! The contract that every limiting algorithm keeps, and the list of them.
//!
//! An algorithm is a pure function `(parameters, state, cost, now) -> (decision, new state)`: no clock, no I/O, no
//! locks, no randomness. The type that implements [`Algorithm`] holds the checked parameters of one limit; the state
//! of one key is a small value that belongs to whoever stores it. `None` is the state of a key never seen before.
//!
//! To add an algorithm: write its file, and add its line to [`for_each_algorithm!`](crate::for_each_algorithm).

#![deny(clippy::arithmetic_side_effects, clippy::float_arithmetic, clippy::as_conversions)]

use std::fmt::Debug;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::units::{Cost, Nanos};

pub mod arguments;
pub mod calendar;
pub mod counter;
pub mod grant;
pub mod parameters;
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

pub use arguments::{Arguments, Kind, MAX_WAIT, Parameter, Unfit, Value};
pub use parameters::Parameters;

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

// === what an algorithm answers ===

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
    /// Not now, and nobody can tell when: what is in flight has to end first. Only where [`Algorithm::HOLDS`].
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

/// How long a key may have to make good what it owes, beyond the times of its limit (see [`Algorithm::debit`]).
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

/// One limiting algorithm with its parameters.
///
/// Laws, each held by property tests: cost 0 is admitted and changes nothing; a denial leaves the state alone unless
/// the algorithm says that denials count; `retry_after` is exact; a `now` before the state's own time neither panics
/// nor admits more; nothing wraps; a debit never makes a later decision more generous.
pub trait Algorithm: Clone + PartialEq + Debug + Send + Sync + Sized + 'static {
    /// The name in the configuration.
    const NAME: &'static str;
    /// What can be set, for the configuration and its error messages.
    const PARAMETERS: &'static [Parameter];
    /// Whether a request holds its tokens until it ends (see [`Algorithm::complete`]).
    const HOLDS: bool = false;

    /// The state of one key. Its size is the memory that a key costs (plus 20 bytes of key and parameter number). Its
    /// serialized form is written to disk: another one needs another version of the snapshots.
    ///
    /// The default is what stands in its place while a state is decided about, and says nothing.
    type State: Clone + Default + PartialEq + Debug + Send + Serialize + DeserializeOwned + 'static;

    /// The parameters, checked. Every rule that a user can break ends in an [`Unfit`] that says what to write.
    fn build(arguments: &Arguments) -> Result<Self, Unfit> {
        arguments.check(Self::PARAMETERS)?;
        Self::from_arguments(arguments)
    }

    /// The second half of [`Algorithm::build`], which alone calls it: each value is within the bounds that
    /// [`Algorithm::PARAMETERS`] declares, and what is left to check is how they go together.
    fn from_arguments(arguments: &Arguments) -> Result<Self, Unfit>;

    /// Arguments of which [`Algorithm::build`] makes these parameters again.
    fn arguments(&self) -> Arguments;

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
    /// [`Algorithm::policy`], the longest wait and [`LONGEST_DEBT`], unless an algorithm says something else. What is
    /// held while a request runs cannot be owed: nothing changes where [`Algorithm::HOLDS`].
    fn debit(&self, state: Option<Self::State>, cost: Cost, now: Nanos) -> Option<Self::State>;

    /// A request that was admitted with `cost` has ended; only called where [`Algorithm::HOLDS`].
    fn complete(&self, state: Self::State, _cost: Cost, _end: Completion, _now: Nanos) -> Option<Self::State> {
        Some(state)
    }

    /// A request that runs already holds `cost` here too, whatever the limit says; only called where
    /// [`Algorithm::HOLDS`].
    fn hold(&self, state: Option<Self::State>, _cost: Cost) -> Option<Self::State> {
        state
    }

    /// Where the key stands.
    fn headroom(&self, state: Option<&Self::State>, now: Nanos) -> Headroom;

    /// From when on the state may be forgotten.
    fn idle(&self, state: &Self::State) -> Idle;

    /// The state under these parameters of a key that was counted under `old` until now: what was used stays used.
    fn carry(&self, old: &Self, state: Self::State, now: Nanos) -> Option<Self::State>;

    /// The largest cost that a fresh key would be admitted with (perhaps after a wait); `None` if any cost is.
    fn largest_cost(&self) -> Option<Cost>;

    /// The most bytes that a state takes, where it grows; what a collection keeps in reserve does not count.
    fn largest_state(&self) -> u64 {
        bytes_of::<Self::State>()
    }

    /// The numbers for the headers.
    fn policy(&self) -> Policy;

    /// The limit in plain words: `20 at once, then one every 100ms`.
    fn words(&self) -> String;
}

/// The size of a `T` without what it refers to.
pub fn bytes_of<T>() -> u64 {
    u64::try_from(size_of::<T>()).unwrap_or(u64::MAX)
}

// === all of them behind one type ===

/// The way back from [`Rule`] to one algorithm.
pub trait Typed: Algorithm {
    /// The parameters, if `rule` is of this algorithm.
    fn of(rule: &Rule) -> Option<&Self>;
}

macro_rules! define_rule {
    ($($Variant:ident $module:ident,)*) => {
        /// Any algorithm with its parameters.
        #[derive(Clone, Debug, PartialEq, Hash)]
        #[expect(missing_docs, reason = "each variant is documented at its module")]
        pub enum Rule {
            $($Variant($module::$Variant),)*
        }

        /// The state of a key under any algorithm.
        #[derive(Clone, Debug, PartialEq)]
        #[expect(missing_docs, reason = "each variant is documented at its module")]
        pub enum State {
            $($Variant(<$module::$Variant as Algorithm>::State),)*
        }

        /// An algorithm's name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "each variant is documented at its module")]
        pub enum AlgorithmName {
            $($Variant,)*
        }

        impl AlgorithmName {
            /// Every algorithm there is, in the order of the list.
            pub const ALL: &'static [Self] = &[$(Self::$Variant,)*];

            /// The name in the configuration.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$Variant => <$module::$Variant as Algorithm>::NAME,)*
                }
            }

            /// [`Algorithm::HOLDS`]
            pub const fn holds(self) -> bool {
                match self {
                    $(Self::$Variant => <$module::$Variant as Algorithm>::HOLDS,)*
                }
            }

            /// What can be set.
            pub const fn parameters(self) -> &'static [Parameter] {
                match self {
                    $(Self::$Variant => <$module::$Variant as Algorithm>::PARAMETERS,)*
                }
            }

            /// The parameters, checked.
            pub fn build(self, arguments: &Arguments) -> Result<Rule, Unfit> {
                match self {
                    $(Self::$Variant => <$module::$Variant as Algorithm>::build(arguments).map(Rule::$Variant),)*
                }
            }
        }

        $(
            impl Typed for $module::$Variant {
                fn of(rule: &Rule) -> Option<&Self> {
                    match rule {
                        Rule::$Variant(rule) => Some(rule),
                        #[allow(unreachable_patterns, reason = "reachable from two algorithms on")]
                        _ => None,
                    }
                }
            }
        )*

        impl Rule {
            /// Which algorithm this is.
            pub const fn name(&self) -> AlgorithmName {
                match self {
                    $(Self::$Variant(_) => AlgorithmName::$Variant,)*
                }
            }

            /// [`Algorithm::arguments`]
            pub fn arguments(&self) -> Arguments {
                match self {
                    $(Self::$Variant(rule) => rule.arguments(),)*
                }
            }

            /// [`Algorithm::HOLDS`]
            pub const fn holds(&self) -> bool {
                self.name().holds()
            }

            /// [`Algorithm::reserves`]
            pub fn reserves(&self) -> bool {
                match self {
                    $(Self::$Variant(rule) => rule.reserves(),)*
                }
            }

            /// [`Algorithm::denials_count`]
            pub fn denials_count(&self) -> bool {
                match self {
                    $(Self::$Variant(rule) => rule.denials_count(),)*
                }
            }

            /// [`Algorithm::decide`]; a state of another algorithm counts as none.
            pub fn decide(&self, state: Option<State>, cost: Cost, now: Nanos) -> (Decision, Option<State>) {
                match self {
                    $(Self::$Variant(rule) => {
                        let state = match state { Some(State::$Variant(state)) => Some(state), _ => None };
                        let (decision, state) = rule.decide(state, cost, now);
                        (decision, state.map(State::$Variant))
                    })*
                }
            }

            /// [`Algorithm::refund`]; a state of another algorithm counts as none.
            pub fn refund(&self, state: State, cost: Cost, full_at: Nanos, now: Nanos) -> Option<State> {
                match (self, state) {
                    $((Self::$Variant(rule), State::$Variant(state)) => {
                        rule.refund(state, cost, full_at, now).map(State::$Variant)
                    })*
                    #[allow(unreachable_patterns, reason = "reachable from two algorithms on")]
                    _ => None,
                }
            }

            /// [`Algorithm::debit`]; a state of another algorithm counts as none.
            pub fn debit(&self, state: Option<State>, cost: Cost, now: Nanos) -> Option<State> {
                match self {
                    $(Self::$Variant(rule) => {
                        let state = match state { Some(State::$Variant(state)) => Some(state), _ => None };
                        rule.debit(state, cost, now).map(State::$Variant)
                    })*
                }
            }

            /// [`Algorithm::complete`]; a state of another algorithm counts as none.
            pub fn complete(&self, state: State, cost: Cost, end: Completion, now: Nanos) -> Option<State> {
                match (self, state) {
                    $((Self::$Variant(rule), State::$Variant(state)) => rule.complete(state, cost, end, now).map(State::$Variant),)*
                    #[allow(unreachable_patterns, reason = "reachable from two algorithms on")]
                    _ => None,
                }
            }

            /// [`Algorithm::hold`]; a state of another algorithm counts as none.
            pub fn hold(&self, state: Option<State>, cost: Cost) -> Option<State> {
                match self {
                    $(Self::$Variant(rule) => {
                        let state = match state { Some(State::$Variant(state)) => Some(state), _ => None };
                        rule.hold(state, cost).map(State::$Variant)
                    })*
                }
            }

            /// [`Algorithm::headroom`]; a state of another algorithm counts as none.
            pub fn headroom(&self, state: Option<&State>, now: Nanos) -> Headroom {
                match self {
                    $(Self::$Variant(rule) => {
                        let state = match state { Some(State::$Variant(state)) => Some(state), _ => None };
                        rule.headroom(state, now)
                    })*
                }
            }

            /// [`Algorithm::idle`]; a state of another algorithm is forgotten at once.
            pub fn idle(&self, state: &State) -> Idle {
                match (self, state) {
                    $((Self::$Variant(rule), State::$Variant(state)) => rule.idle(state),)*
                    #[allow(unreachable_patterns, reason = "reachable from two algorithms on")]
                    _ => Idle::Fresh(Nanos::ZERO),
                }
            }

            /// [`Algorithm::carry`]; from another algorithm nothing is carried.
            pub fn carry(&self, old: &Self, state: State, now: Nanos) -> Option<State> {
                match (self, old, state) {
                    $((Self::$Variant(rule), Self::$Variant(old), State::$Variant(state)) => {
                        rule.carry(old, state, now).map(State::$Variant)
                    })*
                    #[allow(unreachable_patterns, reason = "reachable from two algorithms on")]
                    _ => None,
                }
            }

            /// [`Algorithm::largest_cost`]
            pub fn largest_cost(&self) -> Option<Cost> {
                match self {
                    $(Self::$Variant(rule) => rule.largest_cost(),)*
                }
            }

            /// [`Algorithm::largest_state`]
            pub fn largest_state(&self) -> u64 {
                match self {
                    $(Self::$Variant(rule) => rule.largest_state(),)*
                }
            }

            /// [`Algorithm::policy`]
            pub fn policy(&self) -> Policy {
                match self {
                    $(Self::$Variant(rule) => rule.policy(),)*
                }
            }

            /// [`Algorithm::words`]
            pub fn words(&self) -> String {
                match self {
                    $(Self::$Variant(rule) => rule.words(),)*
                }
            }
        }
    };
}
for_each_algorithm!(define_rule);
