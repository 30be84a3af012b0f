//! Ejects the instances whose requests fail (outlier detection).
//!
//! All workers share the state of an instance without a lock: each number changes on its own, and the worker that writes the
//! end of an ejection is the one that makes it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::ruleset::upstream::Ejection;
use crate::units::Nanos;

/// The largest factor by which ejections in a row become longer.
const MAX_TIMES: u32 = 10;

/// The failures and ejections of an instance.
#[derive(Debug, Default)]
pub(super) struct OutlierState {
    /// Failed requests in a row.
    failures: AtomicU32,
    /// Ejections in a row: a success resets the number if the last ejection ended at least as long ago as a first one lasts.
    ejections: AtomicU32,
    until: AtomicU64,
}

impl OutlierState {
    pub(super) fn is_ejected(&self, now: Nanos) -> bool {
        self.until.load(Ordering::Relaxed) > now.get()
    }

    /// Notes that a request was answered well.
    pub(super) fn record_success(&self, rule: Ejection, now: Nanos) {
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

    /// Notes that a request failed. Returns the duration of the ejection, if this ejects the instance. `is_within` says,
    /// after the instance is marked, whether no more instances are ejected than allowed.
    pub(super) fn record_failure(&self, rule: Ejection, now: Nanos, is_within: impl FnOnce() -> bool) -> Option<Nanos> {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let before = self.until.load(Ordering::Relaxed);
        if failures < rule.after || before > now.get() {
            return None;
        }
        let times = self.ejections.load(Ordering::Relaxed).saturating_add(1).min(MAX_TIMES);
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
        let fail = |now| (0..3).map(|_| state.record_failure(RULE, now, || true)).collect::<Vec<_>>();
        assert_eq!(fail(now), [None, None, Some(Nanos::from_secs(10))]);
        assert_eq!(fail(now), [None; 3], "those that were on their way");
        now = now.saturating_add(Nanos::from_secs(10));
        assert!(!state.is_ejected(now));
        // the failures during the ejection count, too
        assert_eq!(state.record_failure(RULE, now, || true), Some(Nanos::from_secs(20)));
        now = now.saturating_add(Nanos::from_secs(21));
        state.record_success(RULE, now);
        assert_eq!(fail(now), [None, None, Some(Nanos::from_secs(30))]);
        now = now.saturating_add(Nanos::from_secs(40));
        state.record_success(RULE, now);
        assert_eq!(fail(now), [None, None, Some(Nanos::from_secs(10))], "it was well for long enough");
    }

    #[test]
    fn no_more_are_ejected_than_may_be() {
        let state = OutlierState::default();
        let now = Nanos::from_secs(1000);
        assert!((0..5).all(|_| state.record_failure(RULE, now, || false).is_none()));
        assert!(!state.is_ejected(now));
    }
}
