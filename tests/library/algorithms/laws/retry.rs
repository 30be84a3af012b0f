//! Denials: they end at their retry times and leave no trace.

use tollgate::algorithm::{Decision, Denial, Rule};
use tollgate::units::Nanos;

use crate::algorithms::laws::HORIZON;
use crate::algorithms::limit::Limit;
use crate::algorithms::walk::{Law, Step, Walk};

pub(super) const WHAT: &str = "a denied request is denied one nanosecond before its retry time and admitted at it";
pub(super) const UNMOVED: &str = "denials and cost 0 leave the state alone";
pub(super) const LARGEST: &str = "the largest cost is the largest that a key is ever admitted with";

pub(super) fn watch(_limit: &Limit, rule: &Rule) -> Option<Box<dyn Law>> {
    (!rule.holds_slots()).then_some(Box::new(Exact))
}

struct Exact;

impl Law for Exact {
    fn after(&mut self, walk: &Walk<'_>, step: Step, decision: Option<Decision>) -> Result<(), String> {
        let Step::Ask { at, cost } = step else { return Ok(()) };
        match decision {
            Some(Decision::Deny(Denial::Later { retry_after })) if at.saturating_add(retry_after.get()) < HORIZON => {
                let retry = at.saturating_add(retry_after.get());
                if retry_after == Nanos::ZERO || walk.admits(cost, retry - 1) {
                    return Err(format!("admitted one nanosecond before its retry time {retry}"));
                }
                if !walk.admits(cost, retry) {
                    return Err(format!("{:?} at its retry time {retry}", walk.decide(cost, retry).0));
                }
            }
            Some(Decision::Deny(Denial::Never { .. })) => {
                let spans = walk.limit.spans();
                let passes = |span: &u64| walk.admits(cost, at.saturating_add(*span).saturating_mul(2).min(HORIZON));
                if spans.iter().any(passes) {
                    return Err("admitted later, although it was never to be".to_owned());
                }
            }
            _ => {}
        }
        Ok(())
    }
}

pub(super) fn watch_unmoved(limit: &Limit, rule: &Rule) -> Option<Box<dyn Law>> {
    Some(Box::new(Unmoved {
        denials_count: rule.denials_count(),
        counts_from_first: limit.algorithm.as_str() == "cycle",
    }))
}

struct Unmoved {
    denials_count: bool,
    /// Whether the key's first request starts its cycles, even if it is denied.
    counts_from_first: bool,
}

impl Law for Unmoved {
    fn before(&mut self, walk: &Walk<'_>, step: Step) -> Result<(), String> {
        let Step::Ask { at, cost } = step else { return Ok(()) };
        let (decision, state) = walk.decide(cost, at);
        let unmoved = state == walk.state;
        match decision {
            _ if cost == 0 && (decision != Decision::ADMIT || !unmoved) => {
                Err(format!("cost 0: {decision:?}, {:?} becomes {state:?}", walk.state))
            }
            Decision::Deny(_) if self.counts_from_first && walk.state.is_none() => Ok(()),
            Decision::Deny(_) if !self.denials_count && !unmoved => {
                Err(format!("{decision:?}: {:?} becomes {state:?}", walk.state))
            }
            _ => Ok(()),
        }
    }
}

pub(super) fn watch_largest(_limit: &Limit, _rule: &Rule) -> Option<Box<dyn Law>> {
    Some(Box::new(Largest))
}

struct Largest;

impl Law for Largest {
    fn before(&mut self, walk: &Walk<'_>, step: Step) -> Result<(), String> {
        let now = Nanos::new(step.at());
        let fresh = |cost| walk.rule.decide(None, cost, now).0;
        let endless = |decision| match decision {
            Decision::Admit { wait } | Decision::Deny(Denial::Later { retry_after: wait }) => {
                now.saturating_add(wait).get() >= HORIZON
            }
            Decision::Deny(Denial::Busy | Denial::Never { .. }) => false,
        };
        let Some(largest) = walk.rule.largest_cost() else {
            let all = [1, 1 << 32, u64::MAX].into_iter().all(|cost| fresh(cost).is_admitted());
            return if all { Ok(()) } else { Err("there is no largest cost, and yet some are denied".to_owned()) };
        };
        if endless(fresh(largest)) {
            return Ok(());
        }
        // a large cost fits late in a cycle, and not early in it
        let (decision, state) = walk.rule.decide(None, largest, now);
        let retried = match decision {
            Decision::Deny(Denial::Later { retry_after }) => {
                walk.rule.decide(state, largest, now.saturating_add(retry_after)).0
            }
            decision => decision,
        };
        if largest > 0 && !retried.is_admitted() {
            return Err(format!("the largest cost {largest} gets {decision:?}, and then {retried:?}"));
        }
        let Some(above) = largest.checked_add(1) else { return Ok(()) };
        match fresh(above) {
            Decision::Deny(Denial::Never { max }) if max == largest => {}
            other => return Err(format!("{above} gets {other:?}, and the largest cost is {largest}")),
        }
        Ok(())
    }
}
