//! Limits whose parameters change while a key has a state.

use tollgate::algorithm::{Rule, State};
use tollgate::units::Nanos;

use super::probes::decide_alike;
use crate::algorithms::laws::HORIZON;
use crate::algorithms::limit::Limit;
use crate::algorithms::limits::{Domain, random_limit};
use crate::algorithms::random::Random;
use crate::algorithms::walk::{Law, Step, Walk};

pub(super) const WHAT: &str = "what was used stays used when a limit changes";

pub(super) fn watch(_limit: &Limit, _rule: &Rule) -> Option<Box<dyn Law>> {
    Some(Box::new(Carry))
}

struct Carry;

impl Law for Carry {
    fn before(&mut self, walk: &Walk<'_>, step: Step) -> Result<(), String> {
        let Some(state) = &walk.state else { return Ok(()) };
        let now = Nanos::new(step.at());
        let unchanged = walk.rule.migrate_state(walk.rule, state.clone(), now);
        decide_alike(walk.limit, walk.rule, unchanged.as_ref(), Some(state), step.at())
            .map_err(|why| format!("carried to the same limit: {why}"))?;
        // A quota that cannot be spent at once is never fully spent.
        let fresh = walk.rule.headroom(None, now).remaining;
        let spendable = !walk.rule.holds_slots() && fresh == Some(walk.rule.policy().quota);
        if spendable && walk.limit.duration("min_gap").is_none() {
            changed(walk, state, now).map_err(|why| format!("before {step}: {why}"))?;
        }
        Ok(())
    }
}

/// Checks that a key that has spent everything is also spent under the changed limit, and by no more than that.
fn changed(walk: &Walk<'_>, state: &State, now: Nanos) -> Result<(), String> {
    let mut limit = random_limit(walk.limit.algorithm, Domain::Ordinary, &mut Random::new(now.get()));
    if let (true, Some(window)) = (walk.limit.algorithm.as_str().starts_with("sliding"), walk.limit.word("window")) {
        // Another window would drop the counts of this one.
        limit = limit.with("window", window);
    }
    let Ok(changed) = limit.build() else { return Ok(()) };
    let Some(spent) = spend(walk.rule, state.clone(), now) else { return Ok(()) };
    let carried = changed.migrate_state(walk.rule, spent.clone(), now);
    let wrong = |what: &str| Err(format!("{what} of `{limit}`: {spent:?} becomes {carried:?}"));

    let headroom = changed.headroom(carried.as_ref(), now);
    // Less than one token of the old quota was left. The same fraction of the new quota may be left, or the difference of
    // the quotas for algorithms that count tokens.
    let (old, new) = (walk.rule.policy().quota, changed.policy().quota);
    if headroom.remaining > Some(new.div_ceil(old).max(new.saturating_sub(old))) {
        return wrong(&format!("{:?} are left", headroom.remaining));
    }
    // A quota that was lent refills twice as late, an exponential one at most four times as late. What was going to count
    // for longer still does, and a window ends no earlier than before.
    let window = changed.policy().window.unwrap_or_default().get();
    let before = walk.rule.headroom(Some(&spent), now).until_full;
    let longest = window.saturating_mul(4).saturating_add(4).max(before.get());
    if ["fixed_window", "quota_reset"].contains(&walk.limit.algorithm.as_str()) {
        if headroom.until_full < before {
            return wrong(&format!("{:?} pass instead of {before:?} until it is full", headroom.until_full));
        }
        there_and_back(walk, &changed, &spent, now)?;
    }
    let more_than_all = walk.rule.denials_count() || walk.limit.max_wait() > 0;
    if !more_than_all && headroom.until_full.get() > longest && longest < HORIZON {
        return wrong(&format!("{:?} pass instead of {longest} until it is full", headroom.until_full));
    }
    Ok(())
}

/// Checks that a window that became longer ends there, whatever parameters are used until then.
fn there_and_back(walk: &Walk<'_>, changed: &Rule, state: &State, now: Nanos) -> Result<(), String> {
    let mut kept = (walk.rule, state.clone());
    let mut ends = Vec::new();
    for rule in [changed, walk.rule, changed, walk.rule] {
        let Some(carried) = rule.migrate_state(kept.0, kept.1.clone(), now) else { return Ok(()) };
        ends.push(rule.headroom(Some(&carried), now).until_full);
        if !rule.keeps_old_parameters(kept.0, &kept.1, 1, now) {
            kept = (rule, carried);
        }
    }
    match ends.iter().all(|end| *end == ends[0]) {
        true => Ok(()),
        false => Err(format!("there and back, {state:?} ends after {ends:?}")),
    }
}

/// The state in which even cost 1 is denied; `None` if it is not reached soon.
fn spend(rule: &Rule, state: State, now: Nanos) -> Option<State> {
    let mut state = Some(state);
    for _ in 0..64 {
        let remaining = rule.headroom(state.as_ref(), now).remaining.unwrap_or(1);
        let (decision, next) = rule.decide(state, remaining.max(1), now);
        state = next;
        if !decision.is_admitted() {
            return state;
        }
    }
    None
}
