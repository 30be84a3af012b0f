//! The only reader of time. Everything else takes `now`.
//!
//! There are two times. The steady time is that of limits and deadlines: it never jumps, and goes on while the machine is
//! suspended. The wall clock is that of people and other programs, and can be set at any moment; how far it is ahead of
//! the steady time is read again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use crate::units::{ClockOffset, Nanos};

/// A source of time, in nanoseconds since the Unix epoch.
pub trait Clock: Send + Sync {
    /// The steady time: that of the wall clock when this clock began, and measured from there. Never earlier than what an
    /// earlier call on the same clock returned, unless a [`ManualClock`] was set back.
    fn now(&self) -> Nanos;

    /// How far the wall clock is ahead of the steady time.
    fn wall_offset(&self) -> ClockOffset {
        ClockOffset::ZERO
    }

    /// What the wall clock says when the steady time is `at`, as it is set now.
    fn wall_at(&self, at: Nanos) -> Nanos {
        at.shifted(self.wall_offset())
    }

    /// What the wall clock says.
    fn wall(&self) -> Nanos {
        self.wall_at(self.now())
    }
}

/// How far the wall clock is ahead of the steady time, as it was seen last. For those who are handed `now`.
#[derive(Debug, Default)]
pub struct WallOffset(AtomicI64);

/// How often it is looked whether the wall clock was set, at most.
const LOOK_EVERY: Nanos = Nanos::new(100_000_000);
/// The time within which both clocks have to be read for the reading to count.
const READ_WITHIN: Nanos = Nanos::new(1_000_000);
/// The least difference that is one. Both clocks are slewed alike, so that they differ by steps only, and by what reading
/// them takes.
const LEAST_STEP: u64 = 10_000_000;

impl WallOffset {
    /// The offset.
    pub fn get(&self) -> ClockOffset {
        ClockOffset::new(self.0.load(Ordering::Relaxed))
    }

    /// The wall clock is `offset` ahead from here on.
    pub fn set(&self, offset: ClockOffset) {
        self.0.store(offset.get(), Ordering::Relaxed);
    }

    /// The wall clock said `wall`, at some steady time between `before` and `after`.
    fn learn(&self, before: Nanos, wall: Nanos, after: Nanos) {
        let offset = ClockOffset::between(wall, before);
        let is_exact = after.saturating_sub(before) <= READ_WITHIN;
        if is_exact && offset.get().abs_diff(self.get().get()) >= LEAST_STEP {
            self.set(offset);
        }
    }
}

/// The machine's time. Its steady time is CLOCK_BOOTTIME.
#[derive(Debug)]
pub struct SystemClock {
    /// The steady time at the boot of the machine.
    boot: Nanos,
    offset: Arc<WallOffset>,
    /// When the wall clock was looked at last.
    looked: AtomicU64,
}

impl SystemClock {
    /// Reads both clocks. A wall clock before 1970 counts as 1970.
    pub fn new() -> Self {
        let boot = wall().saturating_sub(since_boot());
        Self { boot, offset: Arc::default(), looked: AtomicU64::new(0) }
    }

    /// The same, but its steady time is not before `earliest`: it goes on from there where the wall clock has gone back.
    #[must_use]
    pub fn not_before(self, earliest: Nanos) -> Self {
        let behind = earliest.saturating_sub(self.now());
        Self { boot: self.boot.saturating_add(behind), looked: AtomicU64::new(0), ..self }
    }

    /// Tells `offset` too from here on how far the wall clock is ahead.
    #[must_use]
    pub fn telling(self, offset: Arc<WallOffset>) -> Self {
        offset.set(self.offset.get());
        Self { offset, looked: AtomicU64::new(0), ..self }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Nanos {
        let now = self.boot.saturating_add(since_boot());
        let looked = self.looked.load(Ordering::Relaxed);
        if now.get().saturating_sub(looked) >= LOOK_EVERY.get()
            && self.looked.compare_exchange(looked, now.get(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            self.offset.learn(now, wall(), self.boot.saturating_add(since_boot()));
        }
        now
    }

    fn wall_offset(&self) -> ClockOffset {
        self.offset.get()
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads time")]
fn wall() -> Nanos {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().into()
}

/// The time since the boot of the machine, with that in which it was suspended.
#[expect(clippy::disallowed_methods, reason = "the one place that reads time")]
fn since_boot() -> Nanos {
    let time = clock_gettime(ClockId::Boottime);
    let part = |part: i64| u64::try_from(part).unwrap_or_default();
    Nanos::from_secs(part(time.tv_sec)).saturating_add(Nanos::new(part(time.tv_nsec)))
}

/// A clock that goes where it is told: for simulations and tests.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that shows `now`.
    pub fn new(now: Nanos) -> Self {
        Self(AtomicU64::new(now.get()))
    }

    /// Shows `now` from here on, also an earlier one.
    pub fn set(&self, now: Nanos) {
        self.0.store(now.get(), Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Nanos {
        Nanos::new(self.0.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(nanos: u64) -> Nanos {
        Nanos::new(nanos)
    }

    #[test]
    fn a_wall_clock_that_is_set_is_followed_and_what_reading_takes_is_not() {
        let offset = WallOffset::default();
        let (before, after) = (Nanos::from_secs(100), Nanos::from_secs(100).saturating_add(at(500)));
        let learned = |wall: Nanos, after| {
            offset.learn(before, wall, after);
            offset.get()
        };
        assert_eq!(learned(before.saturating_add(at(400)), after), ClockOffset::ZERO);
        assert_eq!(learned(Nanos::from_secs(160), after), ClockOffset::new(60_000_000_000));
        assert_eq!(learned(Nanos::from_secs(160).saturating_add(at(9_999_999)), after).get(), 60_000_000_000);
        assert_eq!(learned(Nanos::from_secs(40), after), ClockOffset::new(-60_000_000_000));
        // the thread was interrupted between the readings: they say nothing
        assert_eq!(learned(Nanos::from_secs(101), Nanos::from_secs(101)).get(), -60_000_000_000);
    }

    #[test]
    fn the_steady_time_goes_on_from_where_it_is_told_and_the_wall_clock_is_told_beside_it() {
        let told = Arc::<WallOffset>::default();
        let earliest = SystemClock::new().now().saturating_add(Nanos::from_secs(3600));
        let clock = SystemClock::new().not_before(earliest).telling(Arc::clone(&told));
        while told.get() == ClockOffset::ZERO {
            assert!(clock.now() >= earliest);
        }
        let behind = earliest.saturating_sub(clock.wall());
        assert!(behind <= Nanos::from_secs(3600) && behind > Nanos::from_secs(3000), "{behind}");
        assert_eq!(clock.wall_offset(), told.get());
    }
}
