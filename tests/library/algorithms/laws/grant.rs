//! Grants: tokens of a key that an operator refunds.

use tollgate::algorithm::{Decision, Rule, State};
use tollgate::units::Nanos;

use crate::algorithms::laws::HORIZON;
use crate::algorithms::limit::Limit;
use crate::algorithms::walk::{Law, Step, Walk};

pub(super) const WHAT: &str =
    "a grant gives no more than was asked for or charged, and never more than a fresh key has";

/// Algorithms whose decisions jump after a grant: a log without charges keeps no gap, and a quota that is no longer spent
/// is bursty again.
const JUMPING: [&str; 2] = ["sliding_log", "quota_linear"];

pub(super) fn watch(limit: &Limit, rule: &Rule) -> Option<Box<dyn Law>> {
    let is_exact = !JUMPING.contains(&limit.algorithm.as_str());
    (!rule.holds_slots()).then(|| Box::new(Granted { is_exact }) as Box<dyn Law>)
}

struct Granted {
    is_exact: bool,
}

impl Law for Granted {
    fn after(&mut self, walk: &Walk<'_>, step: Step, _decision: Option<Decision>) -> Result<(), String> {
        let (rule, now) = (walk.rule, Nanos::new(step.at()));
        if step.at() >= HORIZON {
            return Ok(());
        }
        let remaining = |state: Option<&State>| rule.headroom(state, now).remaining;
        let (Some(before), Some(fresh)) = (remaining(walk.state.as_ref()), remaining(None)) else { return Ok(()) };
        for tokens in [1, 3, u64::MAX] {
            let state = rule.grant(walk.state.clone(), tokens, now);
            let Some(after) = remaining(state.as_ref()) else { return Ok(()) };
            let most = if self.is_exact { before.saturating_add(tokens) } else { u64::MAX };
            if after < before || after > fresh.max(before) || after > most {
                return Err(format!(
                    "after {step}: {tokens} given to a key with {before} of {fresh} make {after}; {:?} became {state:?}",
                    walk.state
                ));
            }
        }
        let charged = rule.debit(rule.debit(walk.state.clone(), 1, now), 1, now);
        let granted = rule.grant(charged.clone(), 2, now);
        match remaining(granted.as_ref()) {
            Some(after) if after > before && self.is_exact => Err(format!(
                "after {step}: 2 given to {charged:?}, a key with {before} after which 2 were charged, make {after}: {granted:?}"
            )),
            _ => Ok(()),
        }
    }
}
