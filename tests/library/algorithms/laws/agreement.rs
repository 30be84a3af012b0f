//! Agreement with the definition: decision, wait and retry time.

use tollgate::algorithm::{Decision, Denial, Rule};

use crate::algorithms::laws::HORIZON;
use crate::algorithms::limit::Limit;
use crate::algorithms::oracle::{Oracle, Verdict, definition};
use crate::algorithms::walk::{Law, Step, Walk};

pub(super) const WHAT: &str = "decisions are those of the definition";

pub(super) fn watch(limit: &Limit, _rule: &Rule) -> Option<Box<dyn Law>> {
    Some(Box::new(Agreement(definition(limit)?)))
}

struct Agreement(Box<dyn Oracle>);

impl Law for Agreement {
    fn before(&mut self, walk: &Walk<'_>, step: Step) -> Result<(), String> {
        if let Some(ending) = walk.ending(step) {
            self.0.ended(walk.running[ending]);
        }
        Ok(())
    }

    fn after(&mut self, walk: &Walk<'_>, step: Step, decision: Option<Decision>) -> Result<(), String> {
        let (Some(decision), Step::Ask { at, cost }) = (decision, step) else { return Ok(()) };
        if cost == 0 {
            return if decision == Decision::ADMIT { Ok(()) } else { Err(format!("cost 0 gets {decision:?}")) };
        }
        let expected = self.0.verdict(cost, at);
        let retry_after = self.0.retry_after(cost, at);
        self.0.settle(cost, at, decision.is_admitted());
        let wrong = || Err(format!("{decision:?}, and the definition says {expected:?}"));
        match (decision, expected) {
            (Decision::Admit { wait }, Verdict::Admit { wait: exact }) => {
                if wait.get().abs_diff(exact) > self.0.slack() {
                    return wrong();
                }
            }
            (Decision::Deny(Denial::Never { .. }), Verdict::Never) | (Decision::Admit { .. }, Verdict::Imprecise) => {}
            (Decision::Deny(Denial::Busy), Verdict::Later) if walk.rule.holds_slots() => {}
            (Decision::Deny(Denial::Later { retry_after: said }), Verdict::Later | Verdict::Imprecise) => {
                if retry_after.is_some_and(|exact| exact != said.get() && exact < HORIZON) {
                    return Err(format!("retry after {} ns, and the definition says {retry_after:?}", said.get()));
                }
                self.retry(cost, at, said.get())?;
            }
            _ => return wrong(),
        }
        Ok(())
    }
}

impl Agreement {
    /// Checks that the definition denies just before this time has passed, and admits after it.
    fn retry(&self, cost: u64, now: u64, retry_after: u64) -> Result<(), String> {
        let slack = if self.0.slack() == 999 { 0 } else { self.0.slack() };
        let late = now.saturating_add(retry_after).saturating_add(slack);
        if late >= HORIZON {
            return Ok(());
        }
        let early = retry_after.checked_sub(slack + 1);
        if retry_after == 0 || early.is_some_and(|early| self.0.verdict(cost, now + early).is_admitted()) {
            return Err(format!("to be retried after {retry_after} ns, but it passes sooner"));
        }
        if !matches!(self.0.verdict(cost, late), Verdict::Admit { .. } | Verdict::Imprecise) {
            return Err(format!("to be retried after {retry_after} ns, but it does not pass then"));
        }
        Ok(())
    }
}
