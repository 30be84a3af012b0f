//! `concurrency`: a number of slots, held while a request runs.
//!
//! The state is the cost in flight. A request of cost c is denied iff in flight + c > limit. Its slots come back when it
//! ends, in whatever way; time alone brings nothing back, so a denial is [`Decision::BUSY`].
//!
//! State: 8 bytes; no state while nothing is in flight.

use crate::algorithm::shared::number;
use crate::algorithm::{
    Algorithm, Arguments, ChargeBatching, Completion, Core, Decision, Evictability, Headroom, InvalidParameter,
    Parameter, Policy, SharedForm, StateFields, Value,
};
use crate::units::{ClockOffset, Cost, Nanos};

/// The longest lifetime of a slot, in milliseconds: 1000 years.
const MAX_LIFETIME: u64 = 31_536_000_000_000;

/// The parameters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    limit: u64,
}

impl Concurrency {
    fn less(in_flight: u64, cost: Cost) -> Option<u64> {
        Some(in_flight.saturating_sub(cost)).filter(|in_flight| *in_flight > 0)
    }
}

impl Algorithm for Concurrency {
    const NAME: &'static str = "concurrency";
    const PARAMETERS: &'static [Parameter] = &[Parameter::tokens("limit")];

    type Core = Self;

    fn from_arguments(arguments: &Arguments) -> Result<Self, InvalidParameter> {
        Ok(Self { limit: arguments.required_whole("limit")? })
    }

    fn arguments(rule: &Self) -> Arguments {
        [("limit", Value::Whole(rule.limit))].into()
    }

    fn describe(rule: &Self) -> String {
        format!("{} in flight at once", rule.limit)
    }
}

impl Core for Concurrency {
    const HOLDS_SLOTS: bool = true;
    type State = u64;

    fn decide_charge(&self, state: Option<u64>, cost: Cost, _now: Nanos) -> (Decision, Option<u64>) {
        if cost > self.limit {
            return (Decision::never(self.limit), state);
        }
        match state.unwrap_or(0).checked_add(cost) {
            Some(in_flight) if in_flight <= self.limit => (Decision::ADMIT, Some(in_flight)),
            _ => (Decision::BUSY, state),
        }
    }

    fn refund(&self, state: u64, cost: Cost, _full_at: Nanos, _now: Nanos) -> Option<u64> {
        Self::less(state, cost)
    }

    fn complete(&self, state: u64, cost: Cost, _end: Completion, _now: Nanos) -> Option<u64> {
        Self::less(state, cost)
    }

    fn hold(&self, state: Option<u64>, cost: Cost) -> Option<u64> {
        Some(state.unwrap_or(0).saturating_add(cost)).filter(|in_flight| *in_flight > 0)
    }

    fn debit_charge(&self, state: Option<u64>, _cost: Cost, _now: Nanos) -> Option<u64> {
        state
    }

    fn headroom(&self, state: Option<&u64>, _now: Nanos) -> Headroom {
        Headroom {
            remaining: Some(self.limit.saturating_sub(state.copied().unwrap_or(0))),
            until_more: Nanos::ZERO,
            until_full: Nanos::ZERO,
        }
    }

    fn evictability(&self, state: &u64) -> Evictability {
        match state {
            0 => Evictability::Fresh(Nanos::ZERO),
            _ => Evictability::Held,
        }
    }

    /// Requests in flight count under any limit; if they exceed a lowered one, nothing is admitted until enough have ended.
    fn migrate_state(&self, _old: &Self, state: u64, _now: Nanos) -> Option<u64> {
        Some(state)
    }

    fn merge(&self, one: u64, other: u64) -> u64 {
        one.max(other)
    }

    fn shift(&self, state: u64, _by: ClockOffset) -> u64 {
        state
    }

    fn largest_cost(&self) -> Option<Cost> {
        Some(self.limit)
    }

    fn policy(&self) -> Policy {
        Policy { quota: self.limit, window: None }
    }

    const SCRIPT: &'static str = include_str!("concurrency.lua");

    fn shared_form(&self, slot_lifetime: Nanos) -> Result<SharedForm, String> {
        let lifetime = slot_lifetime.get().div_ceil(1_000_000).clamp(1, MAX_LIFETIME);
        Ok(SharedForm::new(format!("z {} {lifetime}", self.limit), ChargeBatching::OneByOne))
    }

    fn read_shared(&self, words: &mut StateFields<'_>) -> Option<u64> {
        number(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Value;

    const NOW: Nanos = Nanos::SECOND;
    const END: Completion = Completion { latency: Nanos::SECOND, measured: true };

    fn build(limit: u64) -> Result<Concurrency, InvalidParameter> {
        let mut arguments = Arguments::default();
        arguments.set("limit", Value::Whole(limit));
        Concurrency::build(&arguments)
    }

    #[test]
    fn slots_are_held_until_a_request_ends() {
        let rule = build(3).unwrap();
        let (decision, state) = rule.decide(None, 2, NOW);
        assert_eq!((decision, state), (Decision::ADMIT, Some(2)));
        assert_eq!(rule.decide(state, 2, NOW), (Decision::BUSY, Some(2)));
        assert_eq!(rule.decide(state, 2, Nanos::MAX), (Decision::BUSY, Some(2)));
        assert_eq!(rule.decide(state, 1, NOW), (Decision::ADMIT, Some(3)));
        assert_eq!(rule.complete(3, 1, END, NOW), Some(2));
        assert_eq!(rule.complete(2, 2, END, NOW), None);
        assert_eq!(rule.refund(3, 2, NOW, NOW), Some(1));
        assert_eq!((rule.evictability(&3), rule.headroom(Some(&1), NOW).remaining), (Evictability::Held, Some(2)));
    }

    #[test]
    fn a_cost_above_the_limit_never_fits_and_no_cost_always_does() {
        let rule = build(3).unwrap();
        assert_eq!(rule.decide(None, 4, NOW), (Decision::never(3), None));
        assert_eq!(rule.decide(Some(3), 0, NOW), (Decision::ADMIT, Some(3)));
    }

    #[test]
    fn the_largest_limit_and_a_lowered_one_keep_the_count() {
        let rule = build(u64::MAX).unwrap();
        assert_eq!(rule.decide(Some(1), u64::MAX, NOW), (Decision::BUSY, Some(1)));
        let lowered = build(1).unwrap();
        assert_eq!(lowered.migrate_state(&rule, 5, NOW), Some(5));
        assert_eq!(lowered.decide(Some(5), 1, NOW).0, Decision::BUSY);
        assert_eq!(lowered.headroom(Some(&5), NOW).remaining, Some(0));
        assert!(build(0).is_err());
    }
}
