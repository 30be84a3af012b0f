//! What makes one arithmetic into several algorithms: the same rule under other names, parameters and words.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::algorithm::{Algorithm, Arguments, Decision, Headroom, Idle, InvalidParameter, Parameter, Policy, bytes_of};
use crate::units::{ClockOffset, Cost, Nanos};

/// The arithmetic of several algorithms. Each function is that of [`Algorithm`], and keeps its laws.
#[expect(missing_docs, reason = "documented at Algorithm")]
pub trait Core {
    type State: Clone + Default + PartialEq + Debug + Send + Serialize + DeserializeOwned + 'static;

    fn reserves(&self) -> bool {
        false
    }
    fn denials_count(&self) -> bool {
        false
    }
    fn decide(&self, state: Option<Self::State>, cost: Cost, now: Nanos) -> (Decision, Option<Self::State>);
    fn refund(&self, state: Self::State, cost: Cost, full_at: Nanos, now: Nanos) -> Option<Self::State>;
    fn debit(&self, state: Option<Self::State>, cost: Cost, now: Nanos) -> Option<Self::State>;
    fn headroom(&self, state: Option<&Self::State>, now: Nanos) -> Headroom;
    fn idle(&self, state: &Self::State) -> Idle;
    fn carry(&self, old: &Self, state: Self::State, now: Nanos) -> Option<Self::State>;
    fn merge(&self, one: Self::State, other: Self::State) -> Self::State;

    fn shift(&self, state: Self::State, by: ClockOffset) -> Self::State;
    fn own_offset(&self, _wall: ClockOffset) -> ClockOffset {
        ClockOffset::ZERO
    }
    fn after_step_back(&self, state: Self::State, _now: Nanos) -> Self::State {
        state
    }
    fn largest_cost(&self) -> Option<Cost>;
    fn largest_state(&self) -> u64 {
        bytes_of::<Self::State>()
    }
    fn policy(&self) -> Policy;
}

/// An algorithm that gives a [`Core`] its name, its parameters and its words; an [`Algorithm`] thereby.
pub trait Named: Clone + PartialEq + Debug + Send + Sync + 'static {
    /// [`Algorithm::NAME`]
    const NAME: &'static str;
    /// [`Algorithm::PARAMETERS`]
    const PARAMETERS: &'static [Parameter];

    /// What decides.
    type Core: Core;

    /// [`Algorithm::from_arguments`]
    fn from_arguments(arguments: &Arguments) -> Result<Self, InvalidParameter>;

    /// [`Algorithm::arguments`]
    fn arguments(&self) -> Arguments;

    /// What decides.
    fn core(&self) -> &Self::Core;

    /// [`Algorithm::describe`]
    fn description(&self) -> String;
}

impl<N: Named> Algorithm for N {
    const NAME: &'static str = <Self as Named>::NAME;
    const PARAMETERS: &'static [Parameter] = <Self as Named>::PARAMETERS;

    type State = <N::Core as Core>::State;

    fn from_arguments(arguments: &Arguments) -> Result<Self, InvalidParameter> {
        <Self as Named>::from_arguments(arguments)
    }

    fn arguments(&self) -> Arguments {
        Named::arguments(self)
    }

    fn reserves(&self) -> bool {
        self.core().reserves()
    }

    fn denials_count(&self) -> bool {
        self.core().denials_count()
    }

    fn decide(&self, state: Option<Self::State>, cost: Cost, now: Nanos) -> (Decision, Option<Self::State>) {
        self.core().decide(state, cost, now)
    }

    fn refund(&self, state: Self::State, cost: Cost, full_at: Nanos, now: Nanos) -> Option<Self::State> {
        self.core().refund(state, cost, full_at, now)
    }

    fn debit(&self, state: Option<Self::State>, cost: Cost, now: Nanos) -> Option<Self::State> {
        self.core().debit(state, cost, now)
    }

    fn headroom(&self, state: Option<&Self::State>, now: Nanos) -> Headroom {
        self.core().headroom(state, now)
    }

    fn idle(&self, state: &Self::State) -> Idle {
        self.core().idle(state)
    }

    fn carry(&self, old: &Self, state: Self::State, now: Nanos) -> Option<Self::State> {
        self.core().carry(old.core(), state, now)
    }

    fn merge(&self, one: Self::State, other: Self::State) -> Self::State {
        self.core().merge(one, other)
    }

    fn shift(&self, state: Self::State, by: ClockOffset) -> Self::State {
        self.core().shift(state, by)
    }

    fn own_offset(&self, wall: ClockOffset) -> ClockOffset {
        self.core().own_offset(wall)
    }

    fn after_step_back(&self, state: Self::State, now: Nanos) -> Self::State {
        self.core().after_step_back(state, now)
    }

    fn largest_cost(&self) -> Option<Cost> {
        self.core().largest_cost()
    }

    fn largest_state(&self) -> u64 {
        self.core().largest_state()
    }

    fn policy(&self) -> Policy {
        self.core().policy()
    }

    fn describe(&self) -> String {
        self.description()
    }
}
