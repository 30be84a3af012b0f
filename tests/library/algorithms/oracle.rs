//! The oracles: every algorithm implemented again from its definition alone, as lists of admitted requests that are summed
//! up for every question.

mod flight;
mod floats;
mod rates;
mod windows;

use crate::algorithms::limit::Limit;

/// The decision on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The request passes after this many nanoseconds, rounded up.
    Admit { wait: u64 },
    /// The request is denied now.
    Later,
    /// The request can never pass.
    Never,
    /// The precision of doubles is too low for a verdict.
    Imprecise,
}

impl Verdict {
    pub(crate) const ADMIT: Self = Self::Admit { wait: 0 };

    pub(crate) const fn is_admitted(self) -> bool {
        matches!(self, Self::Admit { .. })
    }
}

/// A definition with its memory of one key. It is never asked about cost 0.
pub(crate) trait Oracle {
    /// The decision that a request would get.
    fn verdict(&self, cost: u64, now: u64) -> Verdict;

    /// Remembers a request.
    fn settle(&mut self, cost: u64, now: u64, admitted: bool);

    /// Records the end of an admitted request with this cost.
    fn ended(&mut self, _cost: u64) {}

    /// The shortest time after which the request passes, for algorithms in which it may be denied again later.
    fn retry_after(&self, _cost: u64, _now: u64) -> Option<u64> {
        None
    }

    /// The tolerance of waits and retry times in nanoseconds.
    fn slack(&self) -> u64 {
        0
    }
}

/// The definition of this limit's algorithm; `None` if the algorithm is defined by its bounds only.
pub(crate) fn definition(limit: &Limit) -> Option<Box<dyn Oracle>> {
    Some(match limit.algorithm.as_str() {
        "gcra" => Box::new(rates::Gcra::new(limit)),
        "token_bucket" => Box::new(rates::TokenBucket::new(limit)),
        "leaky_bucket" => Box::new(rates::LeakyBucket::new(limit)),
        "leaky_queue" => Box::new(rates::LeakyQueue::new(limit)),
        "fixed_window" => Box::new(windows::FixedWindow::new(limit)),
        "quota_reset" => Box::new(windows::QuotaReset::new(limit)),
        "quota_linear" => Box::new(windows::QuotaLinear::new(limit)),
        "sliding_log" => Box::new(windows::SlidingLog::new(limit)),
        "sliding_window" => Box::new(windows::SlidingWindow::new(limit)),
        "sliding_counters" => Box::new(windows::SlidingCounters::new(limit)),
        "cycle" => Box::new(windows::Cycle::new(limit)),
        "exponential" => Box::new(floats::Exponential::new(limit)),
        "smooth_bursty" => Box::new(floats::Guava::bursty(limit)),
        "smooth_warming_up" => Box::new(floats::Guava::warming_up(limit)),
        "concurrency" => Box::new(flight::Concurrency::new(limit)),
        "adaptive_concurrency" => return None,
        other => panic!("`{other}` has no definition here"),
    })
}
