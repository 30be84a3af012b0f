//! Idle states, which can be evicted.

use tollgate::algorithm::{Decision, Evictability, Rule};

use super::probes::{admits_no_more, decide_alike};
use crate::algorithms::laws::HORIZON;
use crate::algorithms::limit::Limit;
use crate::algorithms::walk::{Law, Step, Walk};

pub(super) const WHAT: &str = "an idle state decides as a fresh one";

pub(super) fn watch(_limit: &Limit, _rule: &Rule) -> Option<Box<dyn Law>> {
    Some(Box::new(Forgotten))
}

struct Forgotten;

impl Law for Forgotten {
    fn after(&mut self, walk: &Walk<'_>, step: Step, _decision: Option<Decision>) -> Result<(), String> {
        let Some(state) = &walk.state else { return Ok(()) };
        match walk.rule.evictability(state) {
            Evictability::Fresh(from) | Evictability::Safe(from) if from.get() >= HORIZON => Ok(()),
            Evictability::Fresh(from) => {
                let from = from.get().max(step.at());
                decide_alike(walk.limit, walk.rule, Some(state), None, from)
                    .map_err(|why| format!("a state idle from {from} on and a fresh one differ: {why}"))
            }
            Evictability::Safe(from) => {
                let from = from.get().max(step.at());
                admits_no_more(walk.limit, walk.rule, None, Some(state), from, 0)
                    .map_err(|why| format!("a state that may be forgotten from {from} on admits less: {why}"))
            }
            Evictability::Held => Ok(()),
        }
    }
}
