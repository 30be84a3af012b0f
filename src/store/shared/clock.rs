//! The clocks of the Redis servers, as far as this gateway knows them.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::units::{ClockOffset, Nanos};

/// How far the clock of each slot's server is ahead of this gateway's, in nanoseconds; behind if negative. Accurate to
/// half the duration of a call. An unknown slot has the offset of the last server that answered.
#[derive(Debug)]
pub(super) struct RedisClocks {
    by_slot: Box<[AtomicI64]>,
    latest: AtomicI64,
}

/// The offset of a slot whose server has not answered yet.
const UNKNOWN: i64 = i64::MIN;

impl RedisClocks {
    /// The clocks of this many slots, all of them unknown.
    pub(super) fn new(slots: usize) -> Self {
        let by_slot = (0..slots).map(|_| AtomicI64::new(UNKNOWN)).collect();
        Self { by_slot, latest: AtomicI64::new(0) }
    }

    /// Records that the server of `slot` had the time `redis_time` at some time between `sent` and `received`.
    pub(super) fn learn(&self, slot: u16, (sent, received): (Nanos, Nanos), redis_time: Nanos) {
        let local_time = sent.saturating_add(Nanos::new(received.saturating_sub(sent).get() / 2));
        let ahead = ClockOffset::between(redis_time, local_time).get();
        for clock in self.by_slot.get(usize::from(slot)).into_iter().chain([&self.latest]) {
            clock.store(ahead, Ordering::Relaxed);
        }
    }

    /// How far the clock of the last server that answered is ahead, in nanoseconds.
    pub(super) fn nanoseconds(&self) -> i64 {
        self.latest.load(Ordering::Relaxed)
    }

    /// The time at the server of `slot` when it is `local_time` on this gateway.
    pub(super) fn redis_time(&self, slot: u16, local_time: Nanos) -> Nanos {
        let known = self.by_slot.get(usize::from(slot)).map(|clock| clock.load(Ordering::Relaxed));
        let ahead = known.filter(|ahead| *ahead != UNKNOWN).unwrap_or_else(|| self.nanoseconds());
        local_time.shifted(ClockOffset::new(ahead))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_elsewhere_is_ahead_or_behind() {
        let clocks = RedisClocks::new(2);
        let at = Nanos::from_secs;
        assert_eq!(clocks.redis_time(0, at(5)), at(5));
        clocks.learn(0, (at(10), at(12)), at(41));
        assert_eq!(clocks.redis_time(0, at(20)), at(50));
        assert_eq!(clocks.redis_time(1, at(20)), at(50), "nothing else is known");
        clocks.learn(1, (at(50), at(50)), at(20));
        assert_eq!([0, 1].map(|slot| clocks.redis_time(slot, at(60))), [at(90), at(30)]);
        assert_eq!(clocks.redis_time(1, at(10)), Nanos::ZERO);
    }
}
