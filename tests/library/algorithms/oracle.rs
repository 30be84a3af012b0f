//! Every algorithm's definition once more, written from the definition alone: lists of what was admitted, summed up
//! anew for every question.

mod flight;
mod floats;
mod rates;
mod windows;

use crate::algorithms::limit::Limit;

/// The decision on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It passes after this many nanoseconds, rounded up.
    Admit { wait: u64 },
    /// It does not pass now.
    Later,
    /// It passes at no time.
    Never,
    /// Doubles cannot tell.
    Unsure,
}

impl Verdict {
    pub(crate) const ADMIT: Self = Self::Admit { wait: 0 };

    pub(crate) const fn is_admitted(self) -> bool {
        matches!(self, Self::Admit { .. })
    }
}

/// A definition, with what it remembers of one key. Cost 0 is never asked about.
pub(crate) trait Oracle {
    /// The decision that a request would get.
    fn verdict(&self, cost: u64, now: u64) -> Verdict;

    /// Remembers a request.
    fn settle(&mut self, cost: u64, now: u64, admitted: bool);

    /// An admitted request of this cost has ended.
    fn ended(&mut self, _cost: u64) {}

    /// The smallest time after which the request passes, where it may pass sooner and later again not.
    fn retry_after(&self, _cost: u64, _now: u64) -> Option<u64> {
        None
    }

    /// How far waits and retry times may be off, in nanoseconds.
    fn slack(&self) -> u64 {
        0
    }
}

/// The definition of this limit; `None` where the algorithm is defined by its bounds only.
pub(crate) fn definition(limit: &Limit) -> Option<Box<dyn Oracle>> {
    Some(match limit.algorithm.as_str() {
        "gcra" => Box::new(rates::Cells::new(limit)),
        "token_bucket" => Box::new(rates::Bucket::new(limit)),
        "leaky_bucket" => Box::new(rates::Meter::new(limit)),
        "leaky_queue" => Box::new(rates::Queue::new(limit)),
        "fixed_window" => Box::new(windows::Aligned::new(limit)),
        "quota_reset" => Box::new(windows::FromFirst::new(limit)),
        "quota_linear" => Box::new(windows::Finch::new(limit)),
        "sliding_log" => Box::new(windows::Log::new(limit)),
        "sliding_window" => Box::new(windows::Weighted::new(limit)),
        "sliding_counters" => Box::new(windows::Slots::new(limit)),
        "cycle" => Box::new(windows::Cycles::new(limit)),
        "exponential" => Box::new(floats::Average::new(limit)),
        "smooth_bursty" => Box::new(floats::Guava::bursty(limit)),
        "smooth_warming_up" => Box::new(floats::Guava::warming_up(limit)),
        "concurrency" => Box::new(flight::Slots::new(limit)),
        "adaptive_concurrency" => return None,
        other => panic!("`{other}` has no definition here"),
    })
}
