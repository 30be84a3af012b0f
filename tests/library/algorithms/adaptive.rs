//! `adaptive_concurrency` by experiment: an upstream answers up to `capacity` requests at once in 10 ms, and proportionally
//! slower beyond that. Every admitted client sends its next request as soon as it has the response.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tollgate::algorithm::{Completion, Rule, State};
use tollgate::units::Nanos;

use crate::algorithms::limit::Limit;

const LATENCY: u64 = 10_000_000;

struct Experiment {
    rule: Rule,
    state: Option<State>,
    /// The number of requests that the upstream answers at once without getting slower.
    capacity: u64,
    now: u64,
    /// The end and the beginning of each request in flight.
    running: BinaryHeap<Reverse<(u64, u64)>>,
}

impl Experiment {
    fn new(limit: &str, capacity: u64) -> Self {
        let limit: Limit = format!("adaptive_concurrency {limit}").parse().expect("a limit");
        let rule = limit.build().expect("a limit that is not refused");
        Self { rule, state: None, capacity, now: 1_000_000_000, running: BinaryHeap::new() }
    }

    /// Runs as many requests as are admitted for this time; returns their mean number in the second half.
    fn run(&mut self, clients: usize, seconds: u64) -> u64 {
        let (start, end) = (self.now, self.now + seconds * 1_000_000_000);
        let (mut sum, mut samples) = (0, 0);
        while self.now < end {
            while self.running.len() < clients {
                let (decision, state) = self.rule.decide(self.state.take(), 1, Nanos::new(self.now));
                self.state = state;
                if !decision.is_admitted() {
                    break;
                }
                let load = self.running.len() as u64 + 1;
                let latency = LATENCY * load.max(self.capacity) / self.capacity;
                self.running.push(Reverse((self.now + latency, self.now)));
            }
            if self.now > start.midpoint(end) {
                sum += self.running.len() as u64;
                samples += 1;
            }
            let Some(Reverse((ends, began))) = self.running.pop() else { panic!("nothing is admitted") };
            self.now = ends;
            let end = Completion { latency: Nanos::new(ends - began), measured: true };
            self.state = self.state.take().and_then(|state| self.rule.complete(state, 1, end, Nanos::new(self.now)));
        }
        sum / samples
    }
}

#[test]
fn the_limit_grows_to_what_the_upstream_takes_and_not_far_beyond() {
    let settled = Experiment::new("min=2 max=2000", 200).run(5_000, 50);
    assert!((190..=400).contains(&settled), "{settled} in flight, where 200 are answered at once");
}

#[test]
fn the_limit_falls_when_the_upstream_gets_slower() {
    let mut experiment = Experiment::new("min=2 max=2000", 400);
    let before = experiment.run(5_000, 50);
    experiment.capacity = 100;
    let after = experiment.run(5_000, 20);
    assert!(after * 2 < before, "{before} before, {after} after");
}

#[test]
fn a_target_keeps_latency_at_it() {
    // the upstream answers 100 in 10 ms, so 200 in 20 ms
    let settled = Experiment::new("min=2 max=2000 target=20ms", 100).run(5_000, 50);
    assert!((190..=260).contains(&settled), "{settled} in flight, where 200 meet the target");
}

#[test]
fn the_limit_stays_within_its_bounds() {
    assert_eq!(Experiment::new("min=2 max=50", 10_000).run(5_000, 20), 50);
    let starved = Experiment::new("min=40 max=2000 target=1ms", 1).run(5_000, 200);
    assert_eq!(starved, 40);
}

#[test]
fn a_limit_that_nobody_meets_does_not_grow() {
    let mut experiment = Experiment::new("min=10 max=2000 target=1s", 10_000);
    experiment.run(4, 20);
    let busy = experiment.running.len();
    while experiment.running.len() < 100 {
        let (decision, state) = experiment.rule.decide(experiment.state.take(), 1, Nanos::new(experiment.now));
        experiment.state = state;
        if !decision.is_admitted() {
            break;
        }
        experiment.running.push(Reverse((experiment.now, experiment.now)));
    }
    assert_eq!((busy, experiment.running.len()), (3, 10));
}
