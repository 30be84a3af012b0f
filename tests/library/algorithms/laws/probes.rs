//! Comparisons of two states by their decisions.

use tollgate::algorithm::{Decision, Rule, State};
use tollgate::units::Nanos;

use crate::algorithms::limit::Limit;
use crate::algorithms::limits::{Domain, random_limit};
use crate::algorithms::random::Random;
use crate::algorithms::walk::{Law, Step, Walk};

/// Requests to try from `start` on: costs and times close to the limits of either state.
pub(super) fn probes(limit: &Limit, rule: &Rule, states: [Option<&State>; 2], start: u64) -> Vec<(u64, u64)> {
    let mut random = Random::new(start);
    let span = random.one_of(&limit.spans().into_iter().chain([1_000_000]).collect::<Vec<_>>());
    let mut probes = Vec::new();
    for at in [start, start.saturating_add(span / 3), start.saturating_add(random.from(0, span.saturating_mul(3)))] {
        for state in states {
            let remaining = rule.headroom(state, Nanos::new(at)).remaining.unwrap_or(1);
            probes.extend([(at, remaining.max(1)), (at, remaining.saturating_add(1))]);
        }
    }
    probes
}

/// Checks that both states decide alike from `start` on; the states themselves may differ.
pub(super) fn decide_alike(
    limit: &Limit,
    rule: &Rule,
    one: Option<&State>,
    other: Option<&State>,
    start: u64,
) -> Result<(), String> {
    for (at, cost) in probes(limit, rule, [one, other], start) {
        let at = Nanos::new(at);
        let (ours, theirs) = (rule.decide(one.cloned(), cost, at).0, rule.decide(other.cloned(), cost, at).0);
        if ours != theirs {
            return Err(format!(
                "cost {cost} at {}: {ours:?} and {theirs:?}, in states {one:?} and {other:?}",
                at.get()
            ));
        }
    }
    let (mut one, mut other) = (one.cloned(), other.cloned());
    let mut random = Random::new(start ^ 1);
    let mut at = start;
    let spans = limit.spans();
    for _ in 0..8 {
        let cost = random.one_of(&[1, 1, 1, 2, 3]);
        let (ours, our_next) = rule.decide(one.clone(), cost, Nanos::new(at));
        let (theirs, their_next) = rule.decide(other.clone(), cost, Nanos::new(at));
        if ours != theirs {
            return Err(format!("then cost {cost} at {at}: {ours:?} and {theirs:?}, in states {one:?} and {other:?}"));
        }
        (one, other) = (our_next, their_next);
        if random.once_in(2) && !spans.is_empty() {
            at = at.saturating_add(random.one_of(&spans) / random.from(1, 9));
        }
    }
    Ok(())
}

/// Checks that `suspect` admits nothing that `honest` would deny now and also `grace` nanoseconds later.
pub(super) fn admits_no_more(
    limit: &Limit,
    rule: &Rule,
    suspect: Option<&State>,
    honest: Option<&State>,
    start: u64,
    grace: u64,
) -> Result<(), String> {
    for (at, cost) in probes(limit, rule, [suspect, honest], start) {
        let (at, later) = (Nanos::new(at), Nanos::new(at.saturating_add(grace)));
        let (ours, theirs) = (rule.decide(suspect.cloned(), cost, at).0, rule.decide(honest.cloned(), cost, later).0);
        let fair = match (ours, theirs) {
            (Decision::Admit { wait }, Decision::Admit { wait: honest }) => wait >= honest,
            (Decision::Admit { .. }, Decision::Deny(_)) => false,
            (Decision::Deny(_), _) => true,
        };
        if !fair {
            return Err(format!(
                "cost {cost} at {}: {ours:?} instead of {theirs:?}, in states {suspect:?} and {honest:?}",
                at.get()
            ));
        }
    }
    Ok(())
}

/// Calls every function of a rule.
pub(super) struct AskEverything;

impl Law for AskEverything {
    fn after(&mut self, walk: &Walk<'_>, step: Step, _decision: Option<Decision>) -> Result<(), String> {
        let (rule, now) = (walk.rule, Nanos::new(step.at()));
        let mut random = Random::new(step.at());
        let other = random_limit(walk.limit.algorithm, Domain::Extreme, &mut random).build();
        rule.headroom(walk.state.as_ref(), now);
        assert!(rule.policy().quota > 0, "a quota of 0");
        assert!(!rule.describe().is_empty(), "no words");
        let cost = random.one_of(&[0, 1, u64::MAX, rule.policy().quota]);
        let owing = rule.debit(rule.debit(walk.state.clone(), cost, now), cost, now);
        rule.headroom(owing.as_ref(), now);
        rule.decide(owing.clone(), cost, Nanos::new(random.any()));
        for state in walk.state.iter().chain(&owing) {
            rule.evictability(state);
            let merged = walk.state.clone().map(|other| rule.merge(state.clone(), other));
            rule.headroom(merged.as_ref(), now);
            let full_at = random.one_of(&[Nanos::ZERO, now, Nanos::MAX]);
            rule.refund(state.clone(), cost, full_at, now);
            if let Ok(other) = &other {
                let carried = other.migrate_state(rule, state.clone(), now);
                other.decide(carried, 1, now);
            }
        }
        Ok(())
    }
}
