//! The walk of one key through a sequence of requests, and the laws that watch it.

use std::fmt;
use std::str::FromStr;

use tollgate::algorithm::{Completion, Decision, Rule, State};
use tollgate::units::{Cost, Nanos};

use crate::algorithms::limit::Limit;

/// An event of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Step {
    /// A request arrives: `12:3` is cost 3 at 12 ns.
    Ask { at: u64, cost: Cost },
    /// An admitted request ends: `20!0/8` ends the oldest at 20 ns after 8 ns; `20!0/8?` carries no measurement of the
    /// upstream.
    End { at: u64, of: usize, latency: u64, measured: bool },
}

impl Step {
    pub(crate) const fn at(self) -> u64 {
        match self {
            Self::Ask { at, .. } | Self::End { at, .. } => at,
        }
    }

    /// The same step at another time.
    pub(crate) const fn moved_to(self, time: u64) -> Self {
        match self {
            Self::Ask { cost, .. } => Self::Ask { at: time, cost },
            Self::End { of, latency, measured, .. } => Self::End { at: time, of, latency, measured },
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask { at, cost } => write!(f, "{at}:{cost}"),
            Self::End { at, of, latency, measured } => {
                write!(f, "{at}!{of}/{latency}{}", if *measured { "" } else { "?" })
            }
        }
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |digits: &str| digits.parse().map_err(|error| format!("`{text}`: {error}"));
        if let Some((at, cost)) = text.split_once(':') {
            return Ok(Self::Ask { at: number(at)?, cost: number(cost)? });
        }
        let (at, end) = text.split_once('!').ok_or_else(|| format!("`{text}` is no step"))?;
        let (of, latency) = end.split_once('/').ok_or_else(|| format!("`{text}` has no latency"))?;
        let of = usize::try_from(number(of)?).map_err(|error| error.to_string())?;
        let measured = !latency.ends_with('?');
        Ok(Self::End { at: number(at)?, of, latency: number(latency.trim_end_matches('?'))?, measured })
    }
}

/// A request that was admitted and charged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub(crate) at: u64,
    pub(crate) cost: Cost,
    pub(crate) wait: u64,
}

/// A key under a limit, between two steps.
#[derive(Clone, Debug)]
pub(crate) struct Walk<'a> {
    pub(crate) limit: &'a Limit,
    pub(crate) rule: &'a Rule,
    pub(crate) state: Option<State>,
    /// The admissions so far, without those of cost 0.
    pub(crate) admitted: Vec<Admitted>,
    /// The costs of admitted requests that have not ended, for algorithms in which a request holds its tokens.
    pub(crate) running: Vec<Cost>,
}

impl<'a> Walk<'a> {
    pub(crate) const fn new(limit: &'a Limit, rule: &'a Rule) -> Self {
        Self { limit, rule, state: None, admitted: Vec::new(), running: Vec::new() }
    }

    /// The decision on a request, and the state after it.
    pub(crate) fn decide(&self, cost: Cost, now: u64) -> (Decision, Option<State>) {
        self.rule.decide(self.state.clone(), cost, Nanos::new(now))
    }

    /// Whether a request would be admitted.
    pub(crate) fn admits(&self, cost: Cost, now: u64) -> bool {
        self.decide(cost, now).0.is_admitted()
    }

    /// The largest cost that is admitted now, according to the algorithm.
    pub(crate) fn remaining(&self, now: u64) -> Option<Cost> {
        self.rule.headroom(self.state.as_ref(), Nanos::new(now)).remaining
    }

    /// The index of the running request that `step` ends.
    pub(crate) fn ending(&self, step: Step) -> Option<usize> {
        match step {
            Step::End { of, .. } => of.checked_rem(self.running.len()),
            Step::Ask { .. } => None,
        }
    }

    /// Takes a step; returns the decision on a request, `None` for other steps.
    pub(crate) fn take(&mut self, step: Step) -> Option<Decision> {
        match step {
            Step::Ask { at, cost } => {
                let (decision, state) = self.decide(cost, at);
                self.state = state;
                if let (Decision::Admit { wait }, 1..) = (decision, cost) {
                    self.admitted.push(Admitted { at, cost, wait: wait.get() });
                    if self.rule.holds_slots() {
                        self.running.push(cost);
                    }
                }
                Some(decision)
            }
            Step::End { at, latency, measured, .. } => {
                let ending = self.ending(step)?;
                let cost = self.running.remove(ending);
                let end = Completion { latency: Nanos::new(latency), measured };
                let state = self.state.take();
                self.state = state.and_then(|state| self.rule.complete(state, cost, end, Nanos::new(at)));
                None
            }
        }
    }
}

/// A property of every walk. Each walk has its own watcher.
pub(crate) trait Law {
    /// Called before a step.
    fn before(&mut self, _walk: &Walk<'_>, _step: Step) -> Result<(), String> {
        Ok(())
    }

    /// Called after a step; with a decision if it was a request.
    fn after(&mut self, _walk: &Walk<'_>, _step: Step, _decision: Option<Decision>) -> Result<(), String> {
        Ok(())
    }

    /// Called at the end of the walk.
    fn end(&mut self, _walk: &Walk<'_>) -> Result<(), String> {
        Ok(())
    }
}

/// Makes the watcher of a walk under this limit; `None` if the law does not apply to it.
pub(crate) type Watch = fn(&Limit, &Rule) -> Option<Box<dyn Law>>;

/// Takes `steps` on a walk, and checks the law at each.
pub(crate) fn follow(
    limit: &Limit,
    rule: &Rule,
    law: &mut dyn Law,
    steps: &mut dyn FnMut(&Walk<'_>, Option<Decision>) -> Option<Step>,
) -> Result<(), String> {
    let mut walk = Walk::new(limit, rule);
    let mut decision = None;
    while let Some(step) = steps(&walk, decision) {
        law.before(&walk, step)?;
        decision = walk.take(step);
        law.after(&walk, step, decision).map_err(|what| format!("at {step}: {what}"))?;
    }
    law.end(&walk)
}
