//! What time it is at Redis, as far as this node knows.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::units::{ClockOffset, Nanos};

/// How far Redis's clock is ahead of this node's, in nanoseconds; behind if negative. Right to half the time of a call.
#[derive(Debug, Default)]
pub(super) struct RedisClock(AtomicI64);

impl RedisClock {
    /// Redis said `theirs`, at some time between `sent` and `received`.
    pub(super) fn learn(&self, sent: Nanos, received: Nanos, theirs: Nanos) {
        let ours = sent.saturating_add(Nanos::new(received.saturating_sub(sent).get() / 2));
        self.0.store(ClockOffset::between(theirs, ours).get(), Ordering::Relaxed);
    }

    /// How far it is ahead.
    pub(super) fn nanoseconds(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }

    /// The time at Redis when it is `ours` here.
    pub(super) fn theirs(&self, ours: Nanos) -> Nanos {
        ours.shifted(ClockOffset::new(self.nanoseconds()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_elsewhere_is_ahead_or_behind() {
        let ahead = RedisClock::default();
        let at = Nanos::from_secs;
        assert_eq!(ahead.theirs(at(5)), at(5));
        ahead.learn(at(10), at(12), at(41));
        assert_eq!(ahead.theirs(at(20)), at(50));
        ahead.learn(at(50), at(50), at(20));
        assert_eq!(ahead.theirs(at(60)), at(30));
        assert_eq!(ahead.theirs(at(10)), Nanos::ZERO);
    }
}
