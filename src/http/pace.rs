//! How long a client may be waited for while the body of its request comes in.
//!
//! A client has some time to lose, its credit. Each moment in which the gateway could read and nothing is there takes as
//! much away, and each byte gives back what it takes at the least rate, up to the credit there was at first. So an upload
//! faster than the least rate goes on for ever, pauses included that are no longer than the credit; a slower one ends when
//! it has lost it. Time in which nothing is read, because the upstream takes nothing, is nobody's.

pub use crate::ruleset::MinBodyRate;
use crate::units::Nanos;

/// The credit of one client for one body.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    rate: MinBodyRate,
    credit: Nanos,
    awaited_since: Option<Nanos>,
}

impl Pace {
    /// A client with all of its credit, that is not waited for yet.
    pub(super) const fn new(rate: MinBodyRate) -> Self {
        Self { rate, credit: rate.grace, awaited_since: None }
    }

    /// From `now` on, or from earlier if that was said before, nothing is there to be read.
    pub(super) fn awaits(&mut self, now: Nanos) {
        self.awaited_since.get_or_insert(now);
    }

    /// So many bytes came.
    pub(super) fn came(&mut self, bytes: usize, now: Nanos) {
        let lost = self.awaited_since.take().map_or(Nanos::ZERO, |since| now.saturating_sub(since));
        let left = self.credit.saturating_sub(lost);
        self.credit = left.saturating_add(self.rate.time_for(bytes)).min(self.rate.grace);
    }

    /// When the client is waited for no longer, if nothing comes; `None` while it is not waited for.
    pub(super) fn runs_out(&self) -> Option<Nanos> {
        self.awaited_since.map(|since| since.saturating_add(self.credit))
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    const MILLI: u64 = 1_000_000;

    /// When a client is cut off that sends `bytes` every `every` milliseconds, in seconds; at most a day is looked at.
    fn ends_after(bytes: usize, every: u64) -> Option<u64> {
        let rate = MinBodyRate { bytes_per_second: NonZeroU64::new(100).unwrap(), grace: Nanos::from_secs(20) };
        let mut pace = Pace::new(rate);
        let mut now = Nanos::ZERO;
        while now < Nanos::from_secs(86_400) {
            pace.awaits(now);
            let next = now.saturating_add(Nanos::new(every * MILLI));
            match pace.runs_out() {
                Some(end) if end <= next => return Some(end.secs_ceil()),
                _ => now = next,
            }
            pace.came(bytes, now);
        }
        None
    }

    #[test]
    fn who_sends_at_the_least_rate_is_waited_for_and_who_is_slower_is_not() {
        assert_eq!(ends_after(0, 1000), Some(20), "nothing");
        assert_eq!(ends_after(1, 5000), Some(21), "a byte in five seconds");
        assert_eq!(ends_after(50, 1000), Some(39), "half the rate");
        assert_eq!(ends_after(99, 1000), Some(1901), "almost the rate");
        assert_eq!(ends_after(100, 1000), None, "the rate");
        assert_eq!(ends_after(1990, 19_900), None, "the rate, in large pieces");
        assert_eq!(ends_after(1 << 20, 20_001), Some(20), "a pause that is too long, whatever came before");
        assert_eq!(ends_after(usize::MAX, 1000), None, "any more than the rate");
    }

    #[test]
    fn time_in_which_nothing_is_read_costs_nothing() {
        let rate = MinBodyRate { bytes_per_second: NonZeroU64::MIN, grace: Nanos::SECOND };
        let mut pace = Pace::new(rate);
        assert_eq!(pace.runs_out(), None);
        pace.came(0, Nanos::from_secs(1000));
        pace.awaits(Nanos::from_secs(2000));
        pace.awaits(Nanos::from_secs(2001));
        assert_eq!(pace.runs_out(), Some(Nanos::from_secs(2001)));
    }
}
