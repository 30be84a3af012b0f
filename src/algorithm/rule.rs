//! All algorithms behind one type.

use std::any::Any;

use jiff::tz::TimeZone;

use super::calendar::Calendar;
use super::{
    Algorithm, Arguments, Completion, Core, Decision, Denial, Evictability, Headroom, InvalidParameter, Parameter,
    Policy, SharedForm,
};
use crate::algorithm::{self, match_algorithm};
use crate::for_each_algorithm;
use crate::units::{ClockOffset, Cost, Nanos};

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
        }

        impl Rule {
            /// The rule's algorithm.
            pub const fn name(&self) -> AlgorithmName {
                match self {
                    $(Self::$Variant(_) => AlgorithmName::$Variant,)*
                }
            }
        }
    };
}
for_each_algorithm!(define_rule);

impl AlgorithmName {
    /// The name in the configuration.
    pub const fn as_str(self) -> &'static str {
        match_algorithm!(self, |AlgorithmName| ThisAlgorithm::NAME)
    }

    /// [`Core::HOLDS_SLOTS`]
    pub const fn holds_slots(self) -> bool {
        match_algorithm!(self, |AlgorithmName| <ThisAlgorithm as Algorithm>::Core::HOLDS_SLOTS)
    }

    /// [`Core::SCRIPT`]
    pub const fn script(self) -> &'static str {
        match_algorithm!(self, |AlgorithmName| <ThisAlgorithm as Algorithm>::Core::SCRIPT)
    }

    /// [`Algorithm::PARAMETERS`]
    pub const fn parameters(self) -> &'static [Parameter] {
        match_algorithm!(self, |AlgorithmName| ThisAlgorithm::PARAMETERS)
    }

    /// [`Algorithm::build`]
    pub fn build(self, arguments: &Arguments) -> Result<Rule, InvalidParameter> {
        match_algorithm!(self, |AlgorithmName| ThisAlgorithm::build(arguments).map(ThisRule))
    }

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

    /// The rate that the algorithm measures, in tokens per its period; `None` where it measures none.
    pub fn measured_rate(&self, state: Option<&State>, now: Nanos) -> Option<f64> {
        let Self::Exponential(rule) = self else { return None };
        let state = if let Some(State::Exponential(state)) = state { Some(state) } else { None };
        Some(rule.measured_rate(state, now))
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

    /// [`Algorithm::arguments`]
    pub fn arguments(&self) -> Arguments {
        match_algorithm!(self, |Rule(rule)| ThisAlgorithm::arguments(rule))
    }

    /// [`Core::HOLDS_SLOTS`]
    pub const fn holds_slots(&self) -> bool {
        self.name().holds_slots()
    }

    /// [`Core::can_delay`]
    pub fn can_delay(&self) -> bool {
        match_algorithm!(self, |Rule(rule)| rule.can_delay())
    }

    /// [`Core::denials_count`]
    pub fn denials_count(&self) -> bool {
        match_algorithm!(self, |Rule(rule)| rule.denials_count())
    }

    /// [`Core::decide`]; a state of another algorithm counts as none.
    pub fn decide(&self, state: Option<State>, cost: Cost, now: Nanos) -> (Decision, Option<State>) {
        match_algorithm!(self, |Rule(rule)| {
            let state = if let Some(ThisState(state)) = state { Some(state) } else { None };
            let (decision, state) = rule.decide(state, cost, now);
            (decision, state.map(ThisState))
        })
    }

    /// [`Core::refund`]; a state of another algorithm counts as none.
    pub fn refund(&self, state: State, cost: Cost, full_at: Nanos, now: Nanos) -> Option<State> {
        match_algorithm!(self, |Rule(rule)| match state {
            ThisState(state) => rule.refund(state, cost, full_at, now).map(ThisState),
            _ => None,
        })
    }

    /// [`Core::counted`]; `None` for a state of another algorithm.
    pub fn counted(&self, state: &State, now: Nanos) -> Option<Cost> {
        match_algorithm!(self, |Rule(rule)| match state {
            ThisState(state) => rule.counted(state, now),
            _ => None,
        })
    }

    /// [`Core::debit`]; a state of another algorithm counts as none.
    pub fn debit(&self, state: Option<State>, cost: Cost, now: Nanos) -> Option<State> {
        match_algorithm!(self, |Rule(rule)| {
            let state = if let Some(ThisState(state)) = state { Some(state) } else { None };
            rule.debit(state, cost, now).map(ThisState)
        })
    }

    /// [`Core::complete`]; a state of another algorithm counts as none.
    pub fn complete(&self, state: State, cost: Cost, end: Completion, now: Nanos) -> Option<State> {
        match_algorithm!(self, |Rule(rule)| match state {
            ThisState(state) => rule.complete(state, cost, end, now).map(ThisState),
            _ => None,
        })
    }

    /// [`Core::hold`]; a state of another algorithm counts as none.
    pub fn hold(&self, state: Option<State>, cost: Cost) -> Option<State> {
        match_algorithm!(self, |Rule(rule)| {
            let state = if let Some(ThisState(state)) = state { Some(state) } else { None };
            rule.hold(state, cost).map(ThisState)
        })
    }

    /// [`Core::headroom`]; a state of another algorithm counts as none.
    pub fn headroom(&self, state: Option<&State>, now: Nanos) -> Headroom {
        match_algorithm!(self, |Rule(rule)| {
            let state = if let Some(ThisState(state)) = state { Some(state) } else { None };
            rule.headroom(state, now)
        })
    }

    /// [`Core::evictability`]; a state of another algorithm can be evicted at once.
    pub fn evictability(&self, state: &State) -> Evictability {
        match_algorithm!(self, |Rule(rule)| match state {
            ThisState(state) => rule.evictability(state),
            _ => Evictability::Fresh(Nanos::ZERO),
        })
    }

    /// [`Core::migrate_state`]; a state of another algorithm counts as none.
    pub fn migrate_state(&self, old: &Self, state: State, now: Nanos) -> Option<State> {
        match_algorithm!(self, |Rule(rule)| match (old, state) {
            (ThisRule(old), ThisState(state)) => rule.migrate_state(old, state, now).map(ThisState),
            _ => None,
        })
    }

    /// [`Core::keeps_old_parameters`]; a state of another algorithm does not stay.
    pub fn keeps_old_parameters(&self, old: &Self, state: &State, cost: Cost, now: Nanos) -> bool {
        match_algorithm!(self, |Rule(rule)| match (old, state) {
            (ThisRule(old), ThisState(state)) => rule.keeps_old_parameters(old, state, cost, now),
            _ => false,
        })
    }

    /// [`Core::merge`]; the second of two states of another algorithm stays.
    pub fn merge(&self, one: State, other: State) -> State {
        match_algorithm!(self, |Rule(rule)| match (one, other) {
            (ThisState(one), ThisState(other)) => ThisState(rule.merge(one, other)),
            (_, other) => other,
        })
    }

    /// [`Core::shift`]; a state of another algorithm stays.
    pub fn shift(&self, state: State, by: ClockOffset) -> State {
        match_algorithm!(self, |Rule(rule)| match state {
            ThisState(state) => ThisState(rule.shift(state, by)),
            other => other,
        })
    }

    /// [`Core::own_offset`]
    pub fn own_offset(&self, wall: ClockOffset) -> ClockOffset {
        match_algorithm!(self, |Rule(rule)| rule.own_offset(wall))
    }

    /// [`Core::largest_cost`]
    pub fn largest_cost(&self) -> Option<Cost> {
        match_algorithm!(self, |Rule(rule)| rule.largest_cost())
    }

    /// [`Core::largest_state`]
    pub fn largest_state(&self) -> u64 {
        match_algorithm!(self, |Rule(rule)| rule.largest_state())
    }

    /// [`Core::policy`]
    pub fn policy(&self) -> Policy {
        match_algorithm!(self, |Rule(rule)| rule.policy())
    }

    /// [`Algorithm::describe`]
    pub fn describe(&self) -> String {
        match_algorithm!(self, |Rule(rule)| ThisAlgorithm::describe(rule))
    }

    /// The same for requests that have to leave `floor` tokens for others.
    pub fn describe_above(&self, floor: Cost) -> String {
        let leaves = if floor > 0 { format!("; leaves {floor} to requests of other plans") } else { String::new() };
        self.describe() + &leaves
    }

    /// The parameters, if their type is `C`.
    pub fn core<C: Core>(&self) -> Option<&C> {
        let core: &dyn Any = match_algorithm!(self, |Rule(rule)| rule);
        core.downcast_ref()
    }

    /// [`Core::shared_form`]
    pub fn shared_form(&self, slot_lifetime: Nanos) -> Result<SharedForm, String> {
        match_algorithm!(self, |Rule(rule)| rule.shared_form(slot_lifetime))
    }

    /// [`Core::read_shared`]
    pub fn read_shared(&self, text: &str) -> Option<State> {
        let mut words = text.split(' ');
        let state = match_algorithm!(self, |Rule(rule)| ThisState(rule.read_shared(&mut words)?));
        words.next().is_none().then_some(state)
    }

    /// [`Core::charged_since`]; `None` for a state of another algorithm.
    pub fn charged_since(&self, state: &State, cost: Cost) -> Option<Nanos> {
        match_algorithm!(self, |Rule(rule)| match state {
            ThisState(state) => rule.charged_since(state, cost),
            _ => None,
        })
    }

    /// [`Core::repair_state`]; `None` for a state of another algorithm.
    pub fn repair_state(&self, state: &State) -> Option<String> {
        match_algorithm!(self, |Rule(rule)| match state {
            ThisState(state) => rule.repair_state(state),
            _ => None,
        })
    }

    /// [`Core::calendar`]
    pub fn calendar(&self) -> Option<&Calendar> {
        match_algorithm!(self, |Rule(rule)| rule.calendar())
    }
}
