//! Two states of one key that were counted in two places, and are merged.

use tollgate::algorithm::{Completion, Decision, Evictability, Rule, State};
use tollgate::units::Nanos;

use super::probes::{decide_alike, probes};
use crate::algorithms::limit::Limit;
use crate::algorithms::random::Random;
use crate::algorithms::walk::{Law, Step, Walk};

pub(super) const WHAT: &str = "a merged state is no more generous than either";

pub(super) fn watch(_limit: &Limit, _rule: &Rule) -> Option<Box<dyn Law>> {
    Some(Box::new(Merge { elsewhere: None, earlier: None }))
}

struct Merge {
    /// The key's state in another place, with some of the walk's steps and some of its own.
    elsewhere: Option<State>,
    /// A state that the key had before.
    earlier: Option<State>,
}

impl Law for Merge {
    fn before(&mut self, walk: &Walk<'_>, step: Step) -> Result<(), String> {
        let (rule, at) = (walk.rule, step.at());
        self.walk_elsewhere(walk, step);
        self.remembers(walk, at)?;
        let (Some(one), Some(other)) = (&walk.state, &self.elsewhere) else { return Ok(()) };
        if [one, other].iter().any(|state| counts_until(rule, state) <= at) {
            return Ok(());
        }
        let merged = rule.merge(one.clone(), other.clone());
        let wrong = |what: &str| Err(format!("{what}: {one:?} and {other:?} become {merged:?}"));
        if rule.merge(other.clone(), one.clone()) != merged {
            return wrong("the other way round it is another");
        }
        for (again, of) in [(one, one), (&merged, one), (&merged, other)] {
            let twice = rule.merge(again.clone(), of.clone());
            decide_alike(walk.limit, rule, Some(&twice), Some(again), at)
                .map_err(|why| format!("{of:?} merged twice into {again:?} gives {twice:?}: {why}"))?;
        }
        for honest in [one, other] {
            admits_no_more(walk, &merged, honest, at)
                .and_then(|()| admits_no_more_in_a_row(walk, &merged, honest, at))
                .map_err(|why| format!("{one:?} and {other:?} become {merged:?}: {why}"))?;
        }
        Ok(())
    }
}

impl Merge {
    /// A rule whose states repair those of Redis gains nothing by a merge with a state that came before.
    fn remembers(&mut self, walk: &Walk<'_>, at: u64) -> Result<(), String> {
        let rule = walk.rule;
        if let (Some(state), Some(earlier)) = (&walk.state, &self.earlier)
            && rule.repair_state(earlier).is_some()
            && counts_until(rule, earlier) > at
        {
            let merged = rule.merge(state.clone(), earlier.clone());
            if merged != *state {
                return Err(format!("{state:?} came from {earlier:?}, and merged with it becomes {merged:?}"));
            }
        }
        if Random::new(at ^ 13).once_in(4) {
            self.earlier.clone_from(&walk.state);
        }
        Ok(())
    }

    fn walk_elsewhere(&mut self, walk: &Walk<'_>, step: Step) {
        let (rule, now) = (walk.rule, Nanos::new(step.at()));
        let mut random = Random::new(step.at() ^ 11);
        // until now the state was in one place only
        if random.once_in(6) {
            self.elsewhere.clone_from(&walk.state);
        }
        for _ in 0..random.from(0, 2) {
            let cost = random.one_of(&[1, 1, 2, 3, walk.remaining(step.at()).unwrap_or(1)]);
            let state = self.elsewhere.take();
            self.elsewhere = match (state, random.from(0, 3)) {
                (state, 0) => rule.debit(state, cost, now),
                (Some(state), 1) if rule.holds_slots() => {
                    let end = Completion { latency: Nanos::new(random.from(1, 1_000_000)), measured: true };
                    rule.complete(state, cost, end, now)
                }
                (state, _) => rule.decide(state, cost, now).1,
            };
        }
    }
}

/// The time at which a state is as good as fresh; later requests say nothing about it.
fn counts_until(rule: &Rule, state: &State) -> u64 {
    match rule.evictability(state) {
        Evictability::Fresh(from) => from.get(),
        Evictability::Safe(from) if !rule.holds_slots() => from.get(),
        Evictability::Safe(_) | Evictability::Held => u64::MAX,
    }
}

fn admits_no_more(walk: &Walk<'_>, merged: &State, honest: &State, start: u64) -> Result<(), String> {
    let probes = probes(walk.limit, walk.rule, [Some(merged), Some(honest)], start);
    for (at, cost) in probes.into_iter().filter(|(at, _)| *at < counts_until(walk.rule, honest)) {
        let told = |state: &State| walk.rule.decide(Some(state.clone()), cost, Nanos::new(at)).0;
        let is_fair = match (told(merged), told(honest)) {
            (Decision::Admit { wait }, Decision::Admit { wait: honest }) => wait >= honest,
            (Decision::Admit { .. }, Decision::Deny(_)) => false,
            (Decision::Deny(_), _) => true,
        };
        if !is_fair {
            return Err(format!("cost {cost} at {at}: {:?} instead of {:?}", told(merged), told(honest)));
        }
    }
    Ok(())
}

/// Checks that no more requests are admitted in total, one after the other. The rounding of prices to whole microseconds is
/// tolerated.
fn admits_no_more_in_a_row(walk: &Walk<'_>, merged: &State, honest: &State, start: u64) -> Result<(), String> {
    if walk.rule.denials_count() || walk.limit.algorithm.as_str().starts_with("smooth") {
        return Ok(());
    }
    let mut states = [Some(merged.clone()), Some(honest.clone())];
    let mut admitted = [0_u32; 2];
    let (mut random, mut at) = (Random::new(start ^ 12), start);
    let spans = walk.limit.spans();
    for _ in 0..24 {
        if states[1].as_ref().is_none_or(|honest| counts_until(walk.rule, honest) <= at) {
            return Ok(());
        }
        for (state, admitted) in states.iter_mut().zip(&mut admitted) {
            let (decision, after) = walk.rule.decide(state.take(), 1, Nanos::new(at));
            *state = after;
            *admitted += u32::from(decision.is_admitted());
        }
        if admitted[0] > admitted[1] {
            return Err(format!("{} instead of {} pass until {at}", admitted[0], admitted[1]));
        }
        if random.once_in(2) && !spans.is_empty() {
            at = at.saturating_add(random.one_of(&spans) / random.from(1, 9));
        }
    }
    Ok(())
}
