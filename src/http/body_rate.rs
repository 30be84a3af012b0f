//! The minimum rate at which a client must send the body of its request.
//!
//! A client has a credit of time. While the gateway waits for bytes, the credit decreases; each byte that arrives adds
//! the time that it takes at the minimum rate, up to the initial credit. So an upload at the minimum rate or faster can
//! go on forever, with pauses no longer than the credit; a slower one ends when its credit is used up. Time in which
//! the gateway does not read, because the upstream takes nothing, does not count.

use std::num::NonZeroU64;

pub use crate::ruleset::MinBodyRate;
use crate::units::Nanos;

/// The credit of one client for one body.
#[derive(Clone, Copy, Debug)]
pub struct BodyRateCredit {
    rate: MinBodyRate,
    credit: Nanos,
    awaited_since: Option<Nanos>,
}

impl BodyRateCredit {
    /// A client with its full credit, for which the gateway does not wait yet.
    pub(super) const fn new(rate: MinBodyRate) -> Self {
        Self { rate, credit: rate.grace, awaited_since: None }
    }

    /// Notes that the gateway waits for bytes from `now` on, or from an earlier call on.
    pub(super) fn start_waiting(&mut self, now: Nanos) {
        self.awaited_since.get_or_insert(now);
    }

    /// Notes that this many bytes arrived.
    pub(super) fn record_bytes(&mut self, bytes: usize, now: Nanos) {
        let lost = self.awaited_since.take().map_or(Nanos::ZERO, |since| now.saturating_sub(since));
        let left = self.credit.saturating_sub(lost);
        self.credit = left.saturating_add(self.rate.time_for(bytes)).min(self.rate.grace);
    }

    /// The time when the credit runs out if nothing arrives; `None` while the gateway does not wait.
    pub(super) fn exhausted_at(&self) -> Option<Nanos> {
        self.awaited_since.map(|since| since.saturating_add(self.credit))
    }
}

/// The size of one slice of a throttled response, as a length of time.
const SLICE: Nanos = Nanos::new(50_000_000);

/// Limits the body of a response to a rate: each slice is sent when the time of the slices before it has passed. A
/// slice that is sent late makes up for at most one slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Throttle {
    rate: NonZeroU64,
    /// The time from which on the next slice may be sent; zero before the first.
    pub(super) next: Nanos,
}

impl Throttle {
    pub(super) const fn new(rate: NonZeroU64) -> Self {
        Self { rate, next: Nanos::ZERO }
    }

    /// How many bytes may be sent now.
    pub(super) fn allowance(&self, now: Nanos) -> usize {
        if now < self.next {
            return 0;
        }
        let slice = u128::from(self.rate.get()).saturating_mul(SLICE.get().into()) / u128::from(Nanos::SECOND.get());
        usize::try_from(slice).unwrap_or(usize::MAX).max(1)
    }

    /// Notes that this many bytes were sent.
    pub(super) fn sent(&mut self, bytes: usize, now: Nanos) {
        let bytes = u128::try_from(bytes).unwrap_or(u128::MAX);
        let took = bytes.saturating_mul(Nanos::SECOND.get().into()).div_ceil(u128::from(self.rate.get()));
        let took = Nanos::new(u64::try_from(took).unwrap_or(u64::MAX));
        let begun = match self.next {
            Nanos::ZERO => now,
            next => next.max(now.saturating_sub(SLICE)),
        };
        self.next = begun.saturating_add(took);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_throttled_body_takes_its_time_however_late_it_is_looked_at() {
        for (rate, late) in [(1, 0), (1000, 7), (1_000_000, 30), (u64::MAX / 2, 0)] {
            let mut throttle = Throttle::new(NonZeroU64::new(rate).unwrap());
            let (mut now, mut sent) = (Nanos::from_secs(1000), 0_u128);
            let begin = now;
            for _ in 0..1000 {
                let allowed = throttle.allowance(now);
                assert!(allowed > 0);
                throttle.sent(allowed, now);
                sent += allowed as u128;
                now = now.max(throttle.next).saturating_add(Nanos::new(late * MILLI));
            }
            let took = u128::from(now.saturating_sub(begin).get());
            let exact = sent * 1_000_000_000 / u128::from(rate);
            assert!(took >= exact, "{rate}: {took} for {exact}");
            assert!(took <= exact + exact / 1000 + 51 * u128::from(MILLI), "{rate}: {took} for {exact}");
        }
    }

    const MILLI: u64 = 1_000_000;

    /// The time, in seconds, when a client is cut off that sends `bytes` every `every` milliseconds. Simulates at
    /// most a day.
    fn ends_after(bytes: usize, every: u64) -> Option<u64> {
        let rate = MinBodyRate { bytes_per_second: NonZeroU64::new(100).unwrap(), grace: Nanos::from_secs(20) };
        let mut credit = BodyRateCredit::new(rate);
        let mut now = Nanos::ZERO;
        while now < Nanos::from_secs(86_400) {
            credit.start_waiting(now);
            let next = now.saturating_add(Nanos::new(every * MILLI));
            match credit.exhausted_at() {
                Some(end) if end <= next => return Some(end.secs_ceil()),
                _ => now = next,
            }
            credit.record_bytes(bytes, now);
        }
        None
    }

    #[test]
    fn a_client_at_the_minimum_rate_is_never_cut_off_and_a_slower_one_is() {
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
        let mut credit = BodyRateCredit::new(rate);
        assert_eq!(credit.exhausted_at(), None);
        credit.record_bytes(0, Nanos::from_secs(1000));
        credit.start_waiting(Nanos::from_secs(2000));
        credit.start_waiting(Nanos::from_secs(2001));
        assert_eq!(credit.exhausted_at(), Some(Nanos::from_secs(2001)));
    }
}
