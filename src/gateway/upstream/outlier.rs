//! Which instances are left alone because their requests fail.
//!
//! All workers share what is known of an instance without a lock: each number is changed alone, and an ejection belongs to the
//! worker that writes its end.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::ruleset::upstream::Ejection;
use crate::units::Nanos;

/// The most times that the time of an ejection grows.
const MOST_TIMES: u32 = 10;

/// What is known of an instance's failures.
#[derive(Debug, Default)]
pub(super) struct OutlierState {
    /// In a row.
    failures: AtomicU32,
    /// In a row, without a time of good answers as long as the first of them.
    ejections: AtomicU32,
    until: AtomicU64,
}

impl OutlierState {
    pub(super) fn is_ejected(&self, now: Nanos) -> bool {
        self.until.load(Ordering::Relaxed) > now.get()
    }

    /// A request was answered well.
    pub(super) fn succeeded(&self, rule: Ejection, now: Nanos) {
        // written only where it changes: all workers read it
        if self.failures.load(Ordering::Relaxed) > 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
        let until = Nanos::new(self.until.load(Ordering::Relaxed));
        if until > Nanos::ZERO && until.saturating_add(rule.time) <= now {
            self.ejections.store(0, Ordering::Relaxed);
            self.until.store(0, Ordering::Relaxed);
        }
    }

    /// A request failed: for how long the instance is left alone from now on, if it is. `is_within` says, once it is marked,
    /// whether no more are left alone than may be.
    pub(super) fn failed(&self, rule: Ejection, now: Nanos, is_within: impl FnOnce() -> bool) -> Option<Nanos> {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let before = self.until.load(Ordering::Relaxed);
        if failures < rule.after || before > now.get() {
            return None;
        }
        let times = self.ejections.load(Ordering::Relaxed).saturating_add(1).min(MOST_TIMES);
        let time = Nanos::new(rule.time.get().saturating_mul(times.into()));
        let until = now.saturating_add(time).get();
        // sequentially consistent: of two workers that mark different instances, at least one sees both
        self.until.compare_exchange(before, until, Ordering::SeqCst, Ordering::Relaxed).ok()?;
        if !is_within() {
            self.until.store(before, Ordering::Relaxed);
            return None;
        }
        self.failures.store(0, Ordering::Relaxed);
        self.ejections.store(times, Ordering::Relaxed);
        Some(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: Ejection = Ejection { after: 3, time: Nanos::from_secs(10), max_percent: 50 };

    #[test]
    fn failures_in_a_row_eject_for_longer_each_time_until_all_is_well() {
        let state = OutlierState::default();
        let mut now = Nanos::from_secs(1000);
        let fail = |now| (0..3).map(|_| state.failed(RULE, now, || true)).collect::<Vec<_>>();
        assert_eq!(fail(now), [None, None, Some(Nanos::from_secs(10))]);
        assert_eq!(fail(now), [None; 3], "those that were on their way");
        now = now.saturating_add(Nanos::from_secs(10));
        assert!(!state.is_ejected(now));
        // those count, too
        assert_eq!(state.failed(RULE, now, || true), Some(Nanos::from_secs(20)));
        now = now.saturating_add(Nanos::from_secs(21));
        state.succeeded(RULE, now);
        assert_eq!(fail(now), [None, None, Some(Nanos::from_secs(30))]);
        now = now.saturating_add(Nanos::from_secs(40));
        state.succeeded(RULE, now);
        assert_eq!(fail(now), [None, None, Some(Nanos::from_secs(10))], "it was well for long enough");
    }

    #[test]
    fn no_more_are_ejected_than_may_be() {
        let state = OutlierState::default();
        let now = Nanos::from_secs(1000);
        assert!((0..5).all(|_| state.failed(RULE, now, || false).is_none()));
        assert!(!state.is_ejected(now));
    }
}
