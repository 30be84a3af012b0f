//! A simple model of the script, built from the rules in Rust.

use std::collections::HashMap;

use tollgate::algorithm::{AlgorithmName, Completion, Evictability, Headroom, Rule, State};
use tollgate::charge::{AllCharged, Charged, Enforcement};
use tollgate::units::{Cost, Nanos};

/// The state of each key, and the parameters under which it was written.
#[derive(Default)]
pub(crate) struct Model {
    states: HashMap<String, (Rule, State)>,
}

/// The charge of one limit in a request.
#[derive(Clone)]
pub(crate) struct Part {
    pub(crate) key: String,
    pub(crate) rule: Rule,
    pub(crate) cost: Cost,
    pub(crate) enforcement: Enforcement,
}

/// The time until `state` is fresh.
fn until_fresh(rule: &Rule, state: &State, now: Nanos) -> Nanos {
    match rule.evictability(state) {
        Evictability::Fresh(from) | Evictability::Safe(from) => from.saturating_sub(now),
        Evictability::Held => Nanos::MAX,
    }
}

impl Model {
    /// The parameters and the state that stay although `cost` is taken under those of `part`.
    pub(crate) fn keeper(&self, part: &Part, cost: Cost, now: Nanos) -> Option<(Rule, State)> {
        let kept = self.states.get(&part.key).filter(|(old, _)| *old != part.rule);
        kept.filter(|(old, state)| part.rule.keeps_old_parameters(old, state, cost, now)).cloned()
    }

    /// The state under the parameters of `part`.
    fn view(&self, part: &Part, now: Nanos) -> Option<State> {
        let (old, state) = self.states.get(&part.key)?.clone();
        if old == part.rule { Some(state) } else { part.rule.migrate_state(&old, state, now) }
    }

    /// The state under the parameters of `part`. Unless it stays under others, the model keeps it in this form from now on.
    fn state(&mut self, part: &Part, now: Nanos) -> Option<State> {
        let state = self.view(part, now);
        if self.keeper(part, 0, now).is_none() {
            self.put(part, state.clone());
        }
        state
    }

    /// Keeps the state after `cost` was taken.
    fn put_charged(&mut self, part: &Part, after: Option<State>, cost: Cost, now: Nanos) {
        match self.keeper(part, cost, now) {
            Some((rule, state)) => {
                let after = rule.debit(Some(state), cost, now);
                self.put(&Part { rule, ..part.clone() }, after);
            }
            None => self.put(part, after),
        }
    }

    fn put(&mut self, part: &Part, state: Option<State>) {
        match state {
            Some(state) => drop(self.states.insert(part.key.clone(), (part.rule.clone(), state))),
            None => drop(self.states.remove(&part.key)),
        }
    }

    /// Charges all parts or none; returns whether all were charged, and their results.
    pub(crate) fn charge(&mut self, parts: &[Part], now: Nanos) -> (bool, AllCharged) {
        let before = |part: &Part| match part.enforcement.consumes {
            true => self.state(part, now),
            false => self.view(part, now),
        };
        let before: Vec<_> = parts.iter().map(before).collect();
        let decided: Vec<_> =
            parts.iter().zip(&before).map(|(part, state)| part.rule.decide(state.clone(), part.cost, now)).collect();
        let passes = parts
            .iter()
            .zip(&decided)
            .all(|(part, (decision, _))| decision.is_admitted() || !part.enforcement.enforces);
        let mut all = AllCharged::new();
        for ((part, before), (mut decision, after)) in parts.iter().zip(before).zip(decided) {
            let enforcement = part.enforcement;
            let denied = !decision.is_admitted();
            let kept = denied && (part.rule.denials_count() || !enforcement.counts_denied);
            // a reply tells of a state that stays under other parameters as if these were those of the request
            let mut view = None;
            if enforcement.consumes && ((passes && !denied) || kept) {
                let taken = if denied { 0 } else { part.cost };
                view = self.keeper(part, taken, now).map(|_| after.clone());
                self.put_charged(part, after, taken, now);
            } else if enforcement.consumes && enforcement.counts_denied {
                let state = part.rule.debit(before, part.cost, now);
                decision = part.rule.after_debit(decision, state.as_ref(), part.cost, now);
                // for logs, the reply has the wait of a question as it was before the debit
                let is_log = matches!(part.rule.name(), AlgorithmName::SlidingLog | AlgorithmName::SlidingCounters);
                let is_question = |(asked, _): &(&Part, &mut Charged)| asked.key == part.key && !is_log;
                for (asked, charged) in parts.iter().zip(&mut all).filter(is_question) {
                    charged.decision = asked.rule.after_debit(charged.decision, state.as_ref(), asked.cost, now);
                }
                view = self.keeper(part, part.cost, now).map(|_| state.clone());
                self.put_charged(part, state, part.cost, now);
            }
            let headroom = match view {
                Some(view) => part.rule.headroom(view.as_ref(), now),
                None => self.headroom(part, now),
            };
            let charged = Charged { decision, headroom };
            all.push(
                match self.keeper(part, 0, now).filter(|_| !(enforcement.consumes && enforcement.counts_denied)) {
                    Some((rule, state)) => charged.or_fresh_after(until_fresh(&rule, &state, now)),
                    None => charged,
                },
            );
        }
        (passes, all)
    }

    /// Charges up to `want` times, until an enforcing limit denies; returns the number of charges, the result of each, and
    /// that of the next one.
    pub(crate) fn partial(&mut self, parts: &[Part], want: u64, now: Nanos) -> (u64, Vec<AllCharged>) {
        let mut each = Vec::new();
        for granted in 0..want {
            let (passes, charged) = self.charge(parts, now);
            each.push(charged);
            if !passes {
                return (granted, each);
            }
        }
        (want, each)
    }

    pub(crate) fn debit(&mut self, part: &Part, now: Nanos) -> Headroom {
        let state = self.state(part, now);
        self.put_charged(part, part.rule.debit(state, part.cost, now), part.cost, now);
        self.headroom(part, now)
    }

    pub(crate) fn refund(&mut self, part: &Part, full_at: Nanos, now: Nanos) -> Headroom {
        let rule = self.keeper(part, 0, now).map_or_else(|| part.rule.clone(), |(rule, _)| rule);
        let kept = Part { rule, ..part.clone() };
        if let Some(state) = self.state(&kept, now) {
            self.put(&kept, kept.rule.refund(state, part.cost, full_at, now));
        }
        self.headroom(part, now)
    }

    pub(crate) fn complete(&mut self, part: &Part, now: Nanos) -> Headroom {
        if let Some(state) = self.state(part, now) {
            let end = Completion { latency: Nanos::ZERO, measured: false };
            self.put(part, part.rule.complete(state, part.cost, end, now));
        }
        self.headroom(part, now)
    }

    /// Whether a shift of the time by less than `apart` would change the decision on a part.
    pub(crate) fn is_on_the_edge(&self, part: &Part, now: Nanos, apart: Nanos) -> bool {
        let state = self.view(part, now);
        if state.is_none() {
            return false;
        }
        let admits = |now| part.rule.decide(state.clone(), part.cost, now).0.is_admitted();
        admits(now.saturating_sub(apart)) != admits(now.saturating_add(apart))
    }

    pub(crate) fn headroom(&self, part: &Part, now: Nanos) -> Headroom {
        part.rule.headroom(self.view(part, now).as_ref(), now)
    }
}
