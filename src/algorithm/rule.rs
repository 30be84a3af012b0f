//! All algorithms behind one type.

use std::any::Any;

use jiff::tz::TimeZone;

use super::calendar::Calendar;
use super::{
    Algorithm, Arguments, Completion, Core, Decision, Denial, Evictability, Headroom, InvalidParameter, Parameter,
    Policy, SharedForm,
};
use crate::algorithm;
use crate::for_each_algorithm;
use crate::units::{ClockOffset, Cost, Nanos};

impl AlgorithmName {
    /// The algorithm under which states are kept. `token_bucket` is another name for `gcra` without `delay_after`: its
    /// states are those of `gcra`, so that a limit keeps them when it changes from one to the other.
    pub const fn canonical(self) -> Self {
        match self {
            Self::TokenBucket => Self::Gcra,
            other => other,
        }
    }

    /// The algorithm under which the states of an algorithm of this name are kept.
    pub fn canonical_of(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|known| known.as_str() == name).map(|known| known.canonical())
    }
}

impl Rule {
    /// The same rule under its [`AlgorithmName::canonical`] algorithm.
    pub fn canonical(self) -> Self {
        match self {
            Self::TokenBucket(bucket) => Self::Gcra(bucket),
            other => other,
        }
    }

    /// This rule for a customer in `zone`; `None` where it does not depend on the customer's time zone.
    pub fn in_zone(&self, zone: &TimeZone) -> Option<Self> {
        self.name().build(&self.arguments().in_zone(zone)?).ok().map(Self::canonical)
    }

    /// [`Rule::migrate_state`] at a `set_rate`, after which a published rule may round even where the rate stays.
    pub fn set_rate(&self, old: &Self, state: State, now: Nanos) -> Option<State> {
        match (self, old, state) {
            (Self::SmoothBursty(rule), Self::SmoothBursty(old), State::SmoothBursty(state)) => {
                Some(State::SmoothBursty(rule.set_rate(old, state, now)))
            }
            (Self::SmoothWarmingUp(rule), Self::SmoothWarmingUp(old), State::SmoothWarmingUp(state)) => {
                Some(State::SmoothWarmingUp(rule.set_rate(old, state, now)))
            }
            (_, _, state) => self.migrate_state(old, state, now),
        }
    }

    /// The `denial` of a request of `cost` after a debit that left `state`: a client that waits as long as this says waits
    /// for the debited tokens too.
    pub fn after_debit(&self, denial: Decision, state: Option<&State>, cost: Cost, now: Nanos) -> Decision {
        match denial {
            Decision::Deny(Denial::Later { .. }) => match self.decide(state.cloned(), cost, now).0 {
                Decision::Deny(longer) => Decision::Deny(longer),
                Decision::Admit { .. } => denial,
            },
            other => other,
        }
    }
}

macro_rules! define_rule {
    ($($Variant:ident $module:ident,)*) => {
        /// Any algorithm with its parameters.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "each variant is documented at its module")]
        pub enum Rule {
            $($Variant(<algorithm::$module::$Variant as Algorithm>::Core),)*
        }

        /// The state of a key under any algorithm.
        #[derive(Clone, Debug, PartialEq)]
        #[expect(missing_docs, reason = "each variant is documented at its module")]
        pub enum State {
            $($Variant(<<algorithm::$module::$Variant as Algorithm>::Core as Core>::State),)*
        }

        /// An algorithm's name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[expect(missing_docs, reason = "each variant is documented at its module")]
        pub enum AlgorithmName {
            $($Variant,)*
        }

        impl AlgorithmName {
            /// All algorithms, in the order of the list.
            pub const ALL: &'static [Self] = &[$(Self::$Variant,)*];

            /// The name in the configuration.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$Variant => <algorithm::$module::$Variant as Algorithm>::NAME,)*
                }
            }

            /// [`Core::HOLDS_SLOTS`]
            pub const fn holds_slots(self) -> bool {
                match self {
                    $(Self::$Variant => <<algorithm::$module::$Variant as Algorithm>::Core as Core>::HOLDS_SLOTS,)*
                }
            }

            /// [`Core::SCRIPT`]
            pub const fn script(self) -> &'static str {
                match self {
                    $(Self::$Variant => <<algorithm::$module::$Variant as Algorithm>::Core as Core>::SCRIPT,)*
                }
            }

            /// [`Algorithm::PARAMETERS`]
            pub const fn parameters(self) -> &'static [Parameter] {
                match self {
                    $(Self::$Variant => <algorithm::$module::$Variant as Algorithm>::PARAMETERS,)*
                }
            }

            /// [`Algorithm::build`]
            pub fn build(self, arguments: &Arguments) -> Result<Rule, InvalidParameter> {
                match self {
                    $(Self::$Variant => <algorithm::$module::$Variant as Algorithm>::build(arguments).map(Rule::$Variant),)*
                }
            }
        }

        impl Rule {
            /// The rule's algorithm.
            pub const fn name(&self) -> AlgorithmName {
                match self {
                    $(Self::$Variant(_) => AlgorithmName::$Variant,)*
                }
            }

            /// [`Algorithm::arguments`]
            pub fn arguments(&self) -> Arguments {
                match self {
                    $(Self::$Variant(rule) => <algorithm::$module::$Variant as Algorithm>::arguments(rule),)*
                }
            }

            /// [`Core::HOLDS_SLOTS`]
            pub const fn holds_slots(&self) -> bool {
                self.name().holds_slots()
            }

            /// [`Core::can_delay`]
            pub fn can_delay(&self) -> bool {
                match self {
                    $(Self::$Variant(rule) => rule.can_delay(),)*
                }
            }

            /// [`Core::denials_count`]
            pub fn denials_count(&self) -> bool {
                match self {
                    $(Self::$Variant(rule) => rule.denials_count(),)*
                }
            }

            /// [`Core::decide`]; a state of another algorithm counts as none.
            pub fn decide(&self, state: Option<State>, cost: Cost, now: Nanos) -> (Decision, Option<State>) {
                match self {
                    $(Self::$Variant(rule) => {
                        let state = match state { Some(State::$Variant(state)) => Some(state), _ => None };
                        let (decision, state) = rule.decide(state, cost, now);
                        (decision, state.map(State::$Variant))
                    })*
                }
            }

            /// [`Core::refund`]; a state of another algorithm counts as none.
            pub fn refund(&self, state: State, cost: Cost, full_at: Nanos, now: Nanos) -> Option<State> {
                match (self, state) {
                    $((Self::$Variant(rule), State::$Variant(state)) => {
                        rule.refund(state, cost, full_at, now).map(State::$Variant)
                    })*
                    #[allow(unreachable_patterns, reason = "reachable from two algorithms on")]
                    _ => None,
                }
            }

            /// [`Core::counted`]; `None` for a state of another algorithm.
            pub fn counted(&self, state: &State, now: Nanos) -> Option<Cost> {
                match (self, state) {
                    $((Self::$Variant(rule), State::$Variant(state)) => rule.counted(state, now),)*
                    #[allow(unreachable_patterns, reason = "reachable from two algorithms on")]
                    _ => None,
                }
            }

            /// [`Core::debit`]; a state of another algorithm counts as none.
            pub fn debit(&self, state: Option<State>, cost: Cost, now: Nanos) -> Option<State> {
                match self {
                    $(Self::$Variant(rule) => {
                        let state = match state { Some(State::$Variant(state)) => Some(state), _ => None };
                        rule.debit(state, cost, now).map(State::$Variant)
                    })*
                }
            }

            /// [`Core::complete`]; a state of another algorithm counts as none.
            pub fn complete(&self, state: State, cost: Cost, end: Completion, now: Nanos) -> Option<State> {
                match (self, state) {
                    $((Self::$Variant(rule), State::$Variant(state)) => rule.complete(state, cost, end, now).map(State::$Variant),)*
                    #[allow(unreachable_patterns, reason = "reachable from two algorithms on")]
                    _ => None,
                }
            }

            /// [`Core::hold`]; a state of another algorithm counts as none.
            pub fn hold(&self, state: Option<State>, cost: Cost) -> Option<State> {
                match self {
                    $(Self::$Variant(rule) => {
                        let state = match state { Some(State::$Variant(state)) => Some(state), _ => None };
                        rule.hold(state, cost).map(State::$Variant)
                    })*
                }
            }

            /// [`Core::headroom`]; a state of another algorithm counts as none.
            pub fn headroom(&self, state: Option<&State>, now: Nanos) -> Headroom {
                match self {
                    $(Self::$Variant(rule) => {
                        let state = match state { Some(State::$Variant(state)) => Some(state), _ => None };
                        rule.headroom(state, now)
                    })*
                }
            }

            /// [`Core::evictability`]; a state of another algorithm can be evicted at once.
            pub fn evictability(&self, state: &State) -> Evictability {
                match (self, state) {
                    $((Self::$Variant(rule), State::$Variant(state)) => rule.evictability(state),)*
                    #[allow(unreachable_patterns, reason = "reachable from two algorithms on")]
                    _ => Evictability::Fresh(Nanos::ZERO),
                }
            }

            /// [`Core::migrate_state`]; a state of another algorithm counts as none.
            pub fn migrate_state(&self, old: &Self, state: State, now: Nanos) -> Option<State> {
                match (self, old, state) {
                    $((Self::$Variant(rule), Self::$Variant(old), State::$Variant(state)) => {
                        rule.migrate_state(old, state, now).map(State::$Variant)
                    })*
                    #[allow(unreachable_patterns, reason = "reachable from two algorithms on")]
                    _ => None,
                }
            }

            /// [`Core::leaves_under`]; a state of another algorithm does not stay.
            pub fn leaves_under(&self, old: &Self, state: &State, cost: Cost, now: Nanos) -> bool {
                match (self, old, state) {
                    $((Self::$Variant(rule), Self::$Variant(old), State::$Variant(state)) => {
                        rule.leaves_under(old, state, cost, now)
                    })*
                    #[allow(unreachable_patterns, reason = "reachable from two algorithms on")]
                    _ => false,
                }
            }

            /// [`Core::merge`]; the second of two states of another algorithm stays.
            pub fn merge(&self, one: State, other: State) -> State {
                match (self, one, other) {
                    $((Self::$Variant(rule), State::$Variant(one), State::$Variant(other)) => State::$Variant(rule.merge(one, other)),)*
                    #[allow(unreachable_patterns, reason = "reachable from two algorithms on")]
                    (_, _, other) => other,
                }
            }

            /// [`Core::shift`]; a state of another algorithm stays.
            pub fn shift(&self, state: State, by: ClockOffset) -> State {
                match (self, state) {
                    $((Self::$Variant(rule), State::$Variant(state)) => State::$Variant(rule.shift(state, by)),)*
                    #[allow(unreachable_patterns, reason = "reachable from two algorithms on")]
                    (_, state) => state,
                }
            }

            /// [`Core::own_offset`]
            pub fn own_offset(&self, wall: ClockOffset) -> ClockOffset {
                match self {
                    $(Self::$Variant(rule) => rule.own_offset(wall),)*
                }
            }

            /// [`Core::largest_cost`]
            pub fn largest_cost(&self) -> Option<Cost> {
                match self {
                    $(Self::$Variant(rule) => rule.largest_cost(),)*
                }
            }

            /// [`Core::largest_state`]
            pub fn largest_state(&self) -> u64 {
                match self {
                    $(Self::$Variant(rule) => rule.largest_state(),)*
                }
            }

            /// [`Core::policy`]
            pub fn policy(&self) -> Policy {
                match self {
                    $(Self::$Variant(rule) => rule.policy(),)*
                }
            }

            /// [`Algorithm::describe`]
            pub fn describe(&self) -> String {
                match self {
                    $(Self::$Variant(rule) => <algorithm::$module::$Variant as Algorithm>::describe(rule),)*
                }
            }

            /// The same for requests that have to leave `floor` tokens for others.
            pub fn describe_above(&self, floor: Cost) -> String {
                let leaves = if floor > 0 { format!("; leaves {floor} to requests of other plans") } else { String::new() };
                self.describe() + &leaves
            }

            /// The parameters, if their type is `C`.
            pub fn core<C: Core>(&self) -> Option<&C> {
                let core: &dyn Any = match self {
                    $(Self::$Variant(rule) => rule,)*
                };
                core.downcast_ref()
            }

            /// [`Core::shared_form`]
            pub fn shared_form(&self, slot_lifetime: Nanos) -> Result<SharedForm, String> {
                match self {
                    $(Self::$Variant(rule) => rule.shared_form(slot_lifetime),)*
                }
            }

            /// [`Core::read_shared`]
            pub fn read_shared(&self, text: &str) -> Option<State> {
                let mut words = text.split(' ');
                let state = match self {
                    $(Self::$Variant(rule) => State::$Variant(rule.read_shared(&mut words)?),)*
                };
                words.next().is_none().then_some(state)
            }

            /// [`Core::charged_since`]; `None` for a state of another algorithm.
            pub fn charged_since(&self, state: &State, cost: Cost) -> Option<Nanos> {
                match (self, state) {
                    $((Self::$Variant(rule), State::$Variant(state)) => rule.charged_since(state, cost),)*
                    #[allow(unreachable_patterns, reason = "reachable from two algorithms on")]
                    _ => None,
                }
            }

            /// [`Core::hint`]; `None` for a state of another algorithm.
            pub fn hint(&self, state: &State) -> Option<String> {
                match (self, state) {
                    $((Self::$Variant(rule), State::$Variant(state)) => rule.hint(state),)*
                    #[allow(unreachable_patterns, reason = "reachable from two algorithms on")]
                    _ => None,
                }
            }

            /// [`Core::calendar`]
            pub fn calendar(&self) -> Option<&Calendar> {
                match self {
                    $(Self::$Variant(rule) => rule.calendar(),)*
                }
            }
        }
    };
}
for_each_algorithm!(define_rule);
