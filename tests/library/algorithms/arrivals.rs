//! The times and costs of requests: mostly close to the points where decisions change.

use tollgate::algorithm::{Decision, Denial, Rule};
use tollgate::units::Nanos;

use crate::algorithms::limit::Limit;
use crate::algorithms::limits::Domain;
use crate::algorithms::random::Random;
use crate::algorithms::walk::{Step, Walk};

/// The latest time of a walk; up to it all answers have to be exact.
const HORIZON: u64 = 1 << 61;
/// The start of 2026, in nanoseconds since the Unix epoch.
const NOWADAYS: u64 = 1_767_225_600_000_000_000;

const HOUR: u64 = 3_600_000_000_000;
const DAY: u64 = 24 * HOUR;

/// The way in which time passes on a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// Time never goes back.
    Forward,
    /// Time sometimes steps back.
    StepsBack,
    /// Any time may come next.
    Anything,
}

/// Chooses the steps of one walk from the decisions so far.
#[derive(Debug)]
pub(crate) struct Arrivals {
    random: Random,
    clock: Clock,
    now: u64,
    spans: Vec<u64>,
    /// Times at which decisions may change.
    marks: Vec<u64>,
    quota: u64,
    mixed_costs: bool,
    /// One request in this number follows at once after the last.
    dense: u64,
    holds: bool,
}

impl Arrivals {
    pub(crate) fn new(limit: &Limit, rule: &Rule, clock: Clock, domain: Domain, mut random: Random) -> Self {
        let mut spans = limit.spans();
        if spans.is_empty() {
            spans.push(1_000_000);
        }
        if limit.is("align", "calendar") {
            spans.extend([HOUR, DAY, 7 * DAY, 30 * DAY]);
        }
        let start = match domain {
            Domain::Ordinary => random.one_of(&[0, 1, 5_000_000_000, NOWADAYS, NOWADAYS + 123_456_789]),
            Domain::Extreme => random.one_of(&[0, NOWADAYS, HORIZON / 2, HORIZON - 1_000_000_000]),
        };
        let (mixed_costs, dense) = (random.once_in(2), random.one_of(&[2, 3, 8]));
        let (quota, holds) = (rule.policy().quota, rule.holds_slots());
        Self { random, clock, now: start, spans, marks: Vec::new(), quota, mixed_costs, dense, holds }
    }

    /// Records a decision.
    pub(crate) fn learn(&mut self, walk: &Walk<'_>, decision: Option<Decision>) {
        let random = &mut self.random;
        match decision {
            Some(Decision::Deny(Denial::Later { retry_after })) => {
                self.marks.push(self.now.saturating_add(retry_after.get()));
            }
            Some(Decision::Admit { wait }) if wait > Nanos::ZERO => {
                self.marks.push(self.now.saturating_add(wait.get()))
            }
            _ => {}
        }
        if random.once_in(4) {
            let headroom = walk.rule.headroom(walk.state.as_ref(), Nanos::new(self.now));
            self.marks.push(self.now.saturating_add(headroom.until_more.get()));
            self.marks.push(self.now.saturating_add(headroom.until_full.get()));
        }
        if random.once_in(3) {
            let span = random.one_of(&self.spans);
            self.marks.push(self.now.saturating_add(span));
            self.marks.push((self.now / span).saturating_add(1).saturating_mul(span));
        }
        let now = self.now;
        self.marks.retain(|mark| *mark >= now);
        if self.marks.len() > 12 {
            self.marks.drain(..6);
        }
    }

    /// The next step.
    pub(crate) fn next(&mut self, walk: &Walk<'_>) -> Step {
        let at = self.time();
        self.now = at;
        if self.holds && !walk.running.is_empty() && self.random.once_in(2) {
            let latency = self.random.one_of(&[0, 1, 1_000, 1_000_000, 1_000_000, 1_500_000, 20_000_000, u64::MAX]);
            let of = usize::try_from(self.random.from(0, 9)).expect("an index");
            return Step::End { at, of, latency, measured: !self.random.once_in(5) };
        }
        Step::Ask { at, cost: self.cost(walk) }
    }

    fn time(&mut self) -> u64 {
        let random = &mut self.random;
        match self.clock {
            Clock::Anything if random.once_in(4) => {
                return random.one_of(&[0, 1, 1 << 61, 1 << 62, 1 << 63, u64::MAX - 1, u64::MAX]);
            }
            Clock::StepsBack if random.once_in(6) => {
                let span = random.one_of(&self.spans);
                let back = random.one_of(&[1, span / 3, span, span.saturating_mul(3), u64::MAX]);
                return self.now.saturating_sub(back);
            }
            _ => {}
        }
        if random.once_in(self.dense) {
            return self.now;
        }
        let span = random.one_of(&self.spans);
        let next = match random.from(0, 9) {
            0..=4 if !self.marks.is_empty() => {
                let mark = random.one_of(&self.marks);
                random.one_of(&[mark.saturating_sub(1), mark, mark, mark.saturating_add(1)])
            }
            0..=5 => self.now.saturating_add(random.from(0, span.saturating_mul(2))),
            6 => self.now.saturating_add(1),
            7 => {
                let edge = (self.now / span).saturating_add(random.from(1, 2)).saturating_mul(span);
                random.one_of(&[edge.saturating_sub(1), edge, edge.saturating_add(1)])
            }
            8 => {
                let part = span / random.from(2, 10);
                self.now.saturating_add(part.saturating_mul(random.from(1, 3)))
            }
            _ => self.now.saturating_add(random.from(0, span.saturating_mul(20))),
        };
        match self.clock {
            Clock::Anything => next,
            _ => next.max(self.now).min(HORIZON),
        }
    }

    fn cost(&mut self, walk: &Walk<'_>) -> u64 {
        let random = &mut self.random;
        let choice = if self.mixed_costs { random.from(0, 13) } else { random.from(0, 40) };
        match choice {
            0 => 0,
            1 => self.quota,
            2 => self.quota.saturating_add(1),
            3 => random.from(1, self.quota.max(1)),
            4 | 5 => walk.remaining(self.now).unwrap_or(1),
            6 => walk.remaining(self.now).unwrap_or(1).saturating_add(1),
            7 => random.one_of(&[u64::MAX, 1 << 63, self.quota.saturating_mul(2), self.quota.saturating_mul(3)]),
            8 | 9 => random.from(1, 4),
            _ => 1,
        }
    }
}
