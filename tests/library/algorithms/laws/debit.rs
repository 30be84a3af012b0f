//! Debits: costs that are charged whatever the limit allows.

use tollgate::algorithm::{Decision, Denial, MAX_DEBT, Rule, State};
use tollgate::units::{Cost, Nanos};

use super::probes::admits_no_more;
use crate::algorithms::laws::HORIZON;
use crate::algorithms::limit::Limit;
use crate::algorithms::random::Random;
use crate::algorithms::walk::{Law, Step, Walk};

pub(super) const WHAT: &str = "what is debited is charged as if admitted, and made good in time";

pub(super) fn watch(limit: &Limit, _rule: &Rule) -> Option<Box<dyn Law>> {
    let name = limit.algorithm.as_str();
    Some(Box::new(Debit { begins: ["quota_reset", "smooth_bursty", "cycle"].contains(&name) }))
}

struct Debit {
    /// Whether a key's first charge starts something, like a window, that a fresh key has not started.
    begins: bool,
}

impl Law for Debit {
    fn before(&mut self, walk: &Walk<'_>, step: Step) -> Result<(), String> {
        let (rule, now) = (walk.rule, Nanos::new(step.at()));
        let mut random = Random::new(step.at() ^ 7);
        let remaining = walk.remaining(now.get()).unwrap_or(1);
        let quota = rule.policy().quota;
        let costs = [0, 1, remaining, remaining.saturating_add(1), quota, quota.saturating_mul(5), Cost::MAX];
        let cost = random.one_of(&costs);
        let owing = rule.debit(walk.state.clone(), cost, now);
        self.check(walk, cost, owing.as_ref(), now)
            .map_err(|why| format!("{cost} debited at {}, {:?} becomes {owing:?}: {why}", now.get(), walk.state))
    }
}

impl Debit {
    fn check(&self, walk: &Walk<'_>, cost: Cost, owing: Option<&State>, now: Nanos) -> Result<(), String> {
        let rule = walk.rule;
        if cost == 0 || rule.holds_slots() {
            return if owing == walk.state.as_ref() { Ok(()) } else { Err("it changes something".to_owned()) };
        }
        let (decision, admitted) = walk.decide(cost, now.get());
        let bounded = !rule.can_delay() || rule.headroom(admitted.as_ref(), now).until_full <= MAX_DEBT;
        if decision.is_admitted() && bounded && owing != admitted.as_ref() {
            return Err(format!("{admitted:?} if it had been admitted"));
        }
        if walk.state.is_some() || !self.begins {
            admits_no_more(walk.limit, rule, owing, walk.state.as_ref(), now.get(), 0)?;
        }
        made_good(walk, owing, now)?;
        retried(rule, owing, now)
    }
}

fn made_good(walk: &Walk<'_>, owing: Option<&State>, now: Nanos) -> Result<(), String> {
    let rule = walk.rule;
    let windows = if walk.limit.algorithm.as_str() == "exponential" { 45 } else { 3 };
    let window = rule.policy().window.unwrap_or_default().get();
    let times = window.saturating_mul(windows).saturating_add(walk.limit.max_wait()).saturating_add(2_000);
    let before = rule.headroom(walk.state.as_ref(), now).until_full;
    let longest = before.max(MAX_DEBT.saturating_add(Nanos::new(times)));
    let takes = rule.headroom(owing, now).until_full;
    match takes <= longest {
        true => Ok(()),
        false => Err(format!("whole again after {takes:?}, not {longest:?}")),
    }
}

/// Checks that the denial of a key with debts ends at its retry time.
fn retried(rule: &Rule, owing: Option<&State>, now: Nanos) -> Result<(), String> {
    for cost in [1, rule.largest_cost().unwrap_or(1)] {
        let (decision, after) = rule.decide(owing.cloned(), cost, now);
        let admits = |at: u64| rule.decide(after.clone(), cost, Nanos::new(at)).0.is_admitted();
        match decision {
            Decision::Deny(Denial::Later { retry_after }) => {
                let retry = now.saturating_add(retry_after).get();
                if retry < HORIZON && (admits(retry - 1) || !admits(retry)) {
                    return Err(format!("cost {cost} is not admitted first at its retry time {retry}"));
                }
            }
            Decision::Deny(denial) => return Err(format!("cost {cost} is denied: {denial:?}")),
            Decision::Admit { .. } => {}
        }
    }
    Ok(())
}
