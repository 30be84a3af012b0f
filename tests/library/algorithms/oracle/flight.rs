//! Definitions of algorithms that count requests in flight.

use super::{Oracle, Verdict};
use crate::algorithms::limit::Limit;

/// `concurrency`.
pub(super) struct Concurrency {
    limit: u64,
    running: Vec<u64>,
}

impl Concurrency {
    pub(super) fn new(limit: &Limit) -> Self {
        Self { limit: limit.whole("limit").expect("a limit"), running: Vec::new() }
    }
}

impl Oracle for Concurrency {
    fn verdict(&self, cost: u64, _now: u64) -> Verdict {
        let running: u128 = self.running.iter().map(|cost| u128::from(*cost)).sum();
        if cost > self.limit {
            Verdict::Never
        } else if running + u128::from(cost) > u128::from(self.limit) {
            Verdict::Later
        } else {
            Verdict::ADMIT
        }
    }

    fn settle(&mut self, cost: u64, _now: u64, admitted: bool) {
        if admitted {
            self.running.push(cost);
        }
    }

    fn ended(&mut self, cost: u64) {
        let one = self.running.iter().position(|running| *running == cost).expect("it was running");
        self.running.swap_remove(one);
    }
}
