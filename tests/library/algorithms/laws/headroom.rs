//! The laws of headroom: the remaining tokens, and the time until more refill.

use tollgate::algorithm::{Decision, Headroom, Rule};
use tollgate::units::Nanos;

use crate::algorithms::laws::HORIZON;
use crate::algorithms::limit::Limit;
use crate::algorithms::walk::{Law, Step, Walk};

pub(super) const WHAT: &str = "remaining is the largest cost that is admitted at once";
pub(super) const GROWTH: &str = "remaining grows and is full when headroom says";

pub(super) fn watch(_limit: &Limit, _rule: &Rule) -> Option<Box<dyn Law>> {
    Some(Box::new(Remaining))
}

struct Remaining;

impl Law for Remaining {
    fn before(&mut self, walk: &Walk<'_>, step: Step) -> Result<(), String> {
        let Some(remaining) = walk.remaining(step.at()) else { return Ok(()) };
        let told = |cost| walk.decide(cost, step.at()).0;
        if told(remaining) != Decision::ADMIT {
            return Err(format!("before {step}: {remaining} remain, but that much gets {:?}", told(remaining)));
        }
        match remaining.checked_add(1) {
            Some(more) if told(more) == Decision::ADMIT => {
                Err(format!("before {step}: {remaining} remain, but {more} are admitted; in state {:?}", walk.state))
            }
            _ => Ok(()),
        }
    }
}

pub(super) fn watch_growth(limit: &Limit, rule: &Rule) -> Option<Box<dyn Law>> {
    let slack = if limit.algorithm.as_str() == "exponential" { 1_000 } else { 0 };
    (!rule.holds_slots()).then(|| Box::new(Growth { slack }) as Box<dyn Law>)
}

struct Growth {
    slack: u64,
}

impl Law for Growth {
    fn before(&mut self, walk: &Walk<'_>, step: Step) -> Result<(), String> {
        let at = step.at();
        let headroom = |at| walk.rule.headroom(walk.state.as_ref(), Nanos::new(at));
        let remaining = |at| headroom(at).remaining.unwrap_or(u64::MAX);
        let now = headroom(at);
        let Headroom { until_more, until_full, .. } = now;
        let left = remaining(at);
        let later = |wait: Nanos| at.saturating_add(wait.get()).saturating_add(self.slack);
        let sooner = |wait: Nanos| at.saturating_add(wait.get()).saturating_sub(self.slack + 1).max(at);
        let wrong = |what: &str| Err(format!("before {step}: {what}: {now:?} in state {:?}", walk.state));
        let full = walk.rule.headroom(None, Nanos::new(at)).remaining.unwrap_or(u64::MAX);
        if later(until_full) < HORIZON && remaining(later(until_full)) < full {
            return wrong("not full when it should be");
        }
        if until_full > Nanos::ZERO && remaining(sooner(until_full)) >= full {
            return wrong("full sooner than it should be");
        }
        if until_more == Nanos::ZERO && until_full > Nanos::ZERO && left < full {
            return wrong("it will be full, but never more");
        }
        if until_more > Nanos::ZERO {
            if later(until_more) < HORIZON && remaining(later(until_more)) <= left {
                return wrong("no more when it should be");
            }
            if remaining(sooner(until_more)) > left {
                return wrong("more sooner than it should be");
            }
        }
        Ok(())
    }
}
