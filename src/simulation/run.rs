//! One limit on a virtual clock: state per key, the requests that wait, and those in flight.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::mem;
use std::num::NonZeroUsize;

use crate::algorithm::{Completion, Decision, Denial, Headroom, InvalidParameter, Rule, State};
use crate::simulation::{Arrival, KeyNumber, SimulatedLimit};
use crate::units::{Cost, Nanos, Rate};

/// The upstream of admitted requests. It matters only to limits that hold a slot while a request runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Upstream {
    /// How long the upstream works on a request.
    pub hold: Nanos,
    /// How many requests the upstream works on at the same time, while the others wait, first come, first served;
    /// `None` for no bound.
    pub servers: Option<NonZeroUsize>,
}

/// An admitted request on its way to the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pass {
    /// The time of passing: on admission, or at the end of the wait.
    pub at: Nanos,
    /// Counts the passes of a run, so that equal times stay in row order.
    order: u64,
    /// The key of the request.
    pub key: KeyNumber,
    /// How many tokens it took.
    pub cost: Cost,
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug)]
pub struct RequestOutcome<'r> {
    /// The decision. A denial until a request in flight ends has a retry time: a simulation knows when that ends.
    pub decision: Decision,
    /// The headroom of the request's key after the request.
    pub headroom: Headroom,
    /// The rate that the algorithm measures after the request, in tokens per its period.
    pub measured_rate: Option<f64>,
    /// How long the upstream will take for the request, if a limit that holds a slot for that long admitted it.
    pub latency: Option<Nanos>,
    /// How many requests wait now, over all keys.
    pub waiting: usize,
    /// The passes since the request before, in the order of passing, up to and including now.
    pub passes: &'r [Pass],
}

/// The reason why a run cannot continue.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunError {
    /// `set_rate` on a limit that has no `rate`.
    #[error("`set_rate` of {rate} cannot apply: limit `{limit}` ({algorithm}) has no `rate`")]
    NoRate {
        /// The limit.
        limit: String,
        /// Its algorithm.
        algorithm: &'static str,
        /// The rate of the `set_rate`.
        rate: Rate,
    },
    /// The limit cannot have this rate.
    #[error("`set_rate` of {rate} does not fit limit `{limit}`: {invalid}")]
    InvalidParameter {
        /// The limit.
        limit: String,
        /// The rate of the `set_rate`.
        rate: Rate,
        /// The error in the parameter.
        invalid: InvalidParameter,
    },
}

/// A limit on its virtual clock.
///
/// `max_waiting` is enforced outside the rule: a request that the rule would delay while that many others wait (over all
/// keys) is denied and changes no state. Its retry time stays exact: the time until one of the others passes, or until
/// the request would need no wait, whichever is shorter; never, if neither can happen.
#[derive(Clone, Debug)]
pub struct Run {
    subject: SimulatedLimit,
    rule: Rule,
    upstream: Upstream,
    keys: Vec<KeyState>,
    waiting: BinaryHeap<Reverse<Pass>>,
    busy: BinaryHeap<Reverse<Nanos>>,
    passes: Vec<Pass>,
    count: u64,
}

/// The state of one key and its requests in flight.
#[derive(Clone, Debug, Default)]
struct KeyState {
    state: Option<State>,
    /// The requests in flight, in the order of their ends.
    in_flight: VecDeque<InFlight>,
}

#[derive(Clone, Copy, Debug)]
struct InFlight {
    end: Nanos,
    latency: Nanos,
    cost: Cost,
}

// === impl Run ===

impl Run {
    /// A run in which all keys are fresh.
    pub fn new(subject: SimulatedLimit, upstream: Upstream) -> Result<Self, InvalidParameter> {
        let rule = subject.rule()?;
        Ok(Self {
            subject,
            rule,
            upstream,
            keys: Vec::new(),
            waiting: BinaryHeap::new(),
            busy: BinaryHeap::new(),
            passes: Vec::new(),
            count: 0,
        })
    }

    /// The limit of this run; its rate is the last one set.
    pub const fn subject(&self) -> &SimulatedLimit {
        &self.subject
    }

    /// The rule in force.
    pub const fn rule(&self) -> &Rule {
        &self.rule
    }

    /// Decides one request. Its time must not be before that of an earlier one. On an error it decides nothing.
    pub fn step(&mut self, arrival: &Arrival) -> Result<RequestOutcome<'_>, RunError> {
        let now = arrival.at;
        self.passes.clear();
        self.pass_until(now);
        if let Some(rate) = arrival.set_rate {
            self.set_rate(rate, now)?;
        }
        let mut cell = self.keys.get_mut(arrival.key.0).map(mem::take).unwrap_or_default();
        cell.complete_until(now, &self.rule);
        let (decision, state) = self.decide(cell.state.take(), arrival.cost, now);
        cell.state = state;
        let decision = match decision {
            Decision::Deny(Denial::Busy) => {
                cell.retry_after_completions(arrival, &self.rule).map_or(decision, Decision::later)
            }
            decision => decision,
        };
        let mut latency = None;
        if let Decision::Admit { wait } = decision {
            let pass = self.admit(arrival, wait);
            if self.rule.holds_slots() {
                latency = Some(cell.hold(pass, self.upstream_end(pass.at)));
            }
        }
        let headroom = self.rule.headroom(cell.state.as_ref(), now);
        let measured_rate = self.rule.measured_rate(cell.state.as_ref(), now);
        let remaining = headroom.remaining.map(|remaining| remaining.saturating_sub(self.subject.floor));
        if arrival.key.0 >= self.keys.len() {
            self.keys.resize(arrival.key.0 + 1, KeyState::default());
        }
        if let Some(place) = self.keys.get_mut(arrival.key.0) {
            *place = cell;
        }
        Ok(RequestOutcome {
            decision,
            headroom: Headroom { remaining, ..headroom },
            measured_rate,
            latency,
            waiting: self.waiting.len(),
            passes: &self.passes,
        })
    }

    /// Ends the traffic: all requests that still wait pass, in order.
    pub fn finish(&mut self) -> &[Pass] {
        self.passes.clear();
        self.pass_until(Nanos::MAX);
        &self.passes
    }

    /// As stores charge: a request that has to leave tokens for others passes if one that costs as much more would, and a
    /// denied one may take its tokens all the same.
    fn decide(&self, state: Option<State>, cost: Cost, now: Nanos) -> (Decision, Option<State>) {
        let SimulatedLimit { floor, charges_denied, .. } = self.subject;
        let charges_denied = charges_denied && !self.rule.denials_count();
        if floor == 0 && !charges_denied && !self.is_queue_full() {
            return self.rule.decide(state, cost, now);
        }
        let above = cost.saturating_add(floor);
        let (decision, after) = match self.rule.decide(state.clone(), above, now) {
            (Decision::Admit { .. }, _) if floor > 0 => self.rule.decide(state.clone(), cost, now),
            (Decision::Deny(Denial::Never { max }), after) => (Decision::never(max.saturating_sub(floor)), after),
            decided => decided,
        };
        let full = self.queue_full_denial(decision, state.as_ref(), cost, now);
        let (decision, after) = full.map_or((decision, after), |denial| (denial, state.clone()));
        if decision.is_admitted() || !charges_denied {
            return (decision, after);
        }
        let after = self.rule.debit(state, cost, now);
        let denial = self.rule.after_debit(decision, after.as_ref(), above, now);
        (self.queue_full_denial(denial, after.as_ref(), cost, now).unwrap_or(denial), after)
    }

    fn is_queue_full(&self) -> bool {
        self.subject.max_waiting.is_some_and(|max| self.waiting.len() as u64 >= max)
    }

    /// The denial of a request on which the rule has this `decision`, and which has to wait from the time on at which the rule
    /// admits it, while all waiting places are taken; `None` if one is free by then.
    fn queue_full_denial(&self, decision: Decision, state: Option<&State>, cost: Cost, now: Nanos) -> Option<Decision> {
        let admitted = match decision {
            Decision::Admit { .. } => Nanos::ZERO,
            Decision::Deny(Denial::Later { retry_after }) => retry_after,
            Decision::Deny(_) => return None,
        };
        let place = self.waiting.peek().map(|Reverse(first)| first.at.saturating_sub(now));
        if !self.is_queue_full() || place.is_some_and(|place| place <= admitted) {
            return None;
        }
        let then = now.saturating_add(admitted);
        let wait = match self.rule.decide(state.cloned(), cost, then).0 {
            Decision::Admit { wait } if wait > Nanos::ZERO => wait,
            _ => return None,
        };
        let turn = self.time_until_no_wait(state, cost, then, wait).map(|turn| turn.saturating_add(admitted));
        Some(match place.into_iter().chain(turn).min() {
            Some(retry_after) => Decision::later(retry_after),
            None => Decision::never(self.rule.headroom(None, now).remaining.unwrap_or(0)),
        })
    }

    /// The shortest time, at most `wait`, after which the request would not have to wait; `None` if it always has to.
    fn time_until_no_wait(&self, state: Option<&State>, cost: Cost, now: Nanos, wait: Nanos) -> Option<Nanos> {
        let at_once = |after: u64| {
            let later = now.saturating_add(Nanos::new(after));
            self.rule.decide(state.cloned(), cost, later).0 == Decision::ADMIT
        };
        let (mut denied, mut admitted) = (0, wait.get());
        if !at_once(admitted) {
            return None;
        }
        while admitted - denied > 1 {
            let middle = denied + (admitted - denied) / 2;
            if at_once(middle) { admitted = middle } else { denied = middle }
        }
        Some(Nanos::new(admitted))
    }

    fn admit(&mut self, arrival: &Arrival, wait: Nanos) -> Pass {
        let at = arrival.at.saturating_add(wait);
        let pass = Pass { at, order: self.count, key: arrival.key, cost: arrival.cost };
        self.count += 1;
        if wait == Nanos::ZERO {
            self.passes.push(pass);
        } else {
            self.waiting.push(Reverse(pass));
        }
        pass
    }

    /// The time at which the upstream finishes a request that reaches it at `at`.
    fn upstream_end(&mut self, at: Nanos) -> Nanos {
        let Upstream { hold, servers } = self.upstream;
        let Some(servers) = servers else {
            return at.saturating_add(hold);
        };
        let free = if self.busy.len() < servers.get() { None } else { self.busy.pop() };
        let end = free.map_or(at, |Reverse(free)| free.max(at)).saturating_add(hold);
        self.busy.push(Reverse(end));
        end
    }

    fn pass_until(&mut self, now: Nanos) {
        while self.waiting.peek().is_some_and(|Reverse(next)| next.at <= now) {
            self.passes.extend(self.waiting.pop().map(|Reverse(next)| next));
        }
    }

    fn set_rate(&mut self, rate: Rate, now: Nanos) -> Result<(), RunError> {
        let mut subject = self.subject.clone();
        let limit = || self.subject.name.clone();
        if !subject.set_rate(rate) {
            return Err(RunError::NoRate { limit: limit(), algorithm: subject.algorithm.as_str(), rate });
        }
        let rule = subject.rule().map_err(|invalid| RunError::InvalidParameter { limit: limit(), rate, invalid })?;
        let rule = subject.rule_in_units_of(&self.rule).unwrap_or(rule);
        for cell in &mut self.keys {
            cell.complete_until(now, &self.rule);
            cell.state = cell.state.take().and_then(|state| rule.set_rate(&self.rule, state, now));
        }
        (self.subject, self.rule) = (subject, rule);
        Ok(())
    }
}

// === impl KeyState ===

impl KeyState {
    /// Holds a slot for `pass` until `end`, and returns how long that is.
    fn hold(&mut self, pass: Pass, end: Nanos) -> Nanos {
        let latency = end.saturating_sub(pass.at);
        let place = self.in_flight.partition_point(|earlier| earlier.end <= end);
        self.in_flight.insert(place, InFlight { end, latency, cost: pass.cost });
        latency
    }

    /// Completes the requests that end until `now`: a slot is free at the same instant at which its request ends.
    fn complete_until(&mut self, now: Nanos, rule: &Rule) {
        while self.in_flight.front().is_some_and(|first| first.end <= now) {
            if let (Some(first), Some(state)) = (self.in_flight.pop_front(), self.state.take()) {
                self.state = first.complete(state, rule);
            }
        }
    }

    /// The time after which a request that is denied because of requests in flight would be admitted, if nothing else
    /// arrives; `None` if it would still be denied after the end of all of these.
    fn retry_after_completions(&self, arrival: &Arrival, rule: &Rule) -> Option<Nanos> {
        let mut state = self.state.clone();
        let mut ends = self.in_flight.iter().peekable();
        while let Some(first) = ends.next() {
            state = state.and_then(|state| first.complete(state, rule));
            let last_at_this_time = ends.peek().is_none_or(|next| next.end > first.end);
            if last_at_this_time && rule.decide(state.clone(), arrival.cost, first.end).0.is_admitted() {
                return Some(first.end.saturating_sub(arrival.at));
            }
        }
        None
    }
}

impl InFlight {
    fn complete(&self, state: State, rule: &Rule) -> Option<State> {
        let completion = Completion { latency: self.latency, measured: true };
        rule.complete(state, self.cost, completion, self.end)
    }
}

#[cfg(test)]
mod tests;
