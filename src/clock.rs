//! The only code that reads the time. All other code takes `now` as an argument.
//!
//! There are two times. Limits and deadlines use the steady time: it never jumps, and goes on while the machine is
//! suspended. People and other programs use the wall clock, which can be set at any moment; its offset from the steady
//! time is measured again and again.

use std::cell::Cell;
use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

use crate::units::{ClockOffset, Nanos};

/// A source of time, in nanoseconds since the Unix epoch.
pub trait Clock: Send + Sync {
    /// The steady time: it starts at the wall clock's time when this clock is created. Never earlier than the result of an
    /// earlier call on the same clock, unless a [`ManualClock`] was set back.
    fn now(&self) -> Nanos;

    /// How far the wall clock is ahead of the steady time.
    fn wall_offset(&self) -> ClockOffset {
        ClockOffset::ZERO
    }

    /// The wall clock's time at the steady time `at`, with the current offset.
    fn wall_at(&self, at: Nanos) -> Nanos {
        at.shifted(self.wall_offset())
    }

    /// The wall clock's time now.
    fn wall(&self) -> Nanos {
        self.wall_at(self.now())
    }
}

/// How far the wall clock is ahead of the steady time, as last measured. For code that gets `now` as an argument.
#[derive(Debug, Default)]
pub struct WallOffset(AtomicI64);

/// The shortest time between two measurements of the offset.
const LOOK_EVERY: Nanos = Nanos::new(100_000_000);
/// The longest time in which both clocks have to be read for the measurement to count.
const READ_WITHIN: Nanos = Nanos::new(1_000_000);
/// The smallest difference that changes the offset. Both clocks are slewed alike, so that the offset changes only when the
/// wall clock is stepped, and by the time that the readings take.
const MIN_STEP: u64 = 10_000_000;

impl WallOffset {
    /// The offset.
    pub fn get(&self) -> ClockOffset {
        ClockOffset::new(self.0.load(Ordering::Relaxed))
    }

    /// Sets the offset.
    pub fn set(&self, offset: ClockOffset) {
        self.0.store(offset.get(), Ordering::Relaxed);
    }

    /// Takes a measurement: the wall clock was at `wall` at some steady time between `before` and `after`.
    fn learn(&self, before: Nanos, wall: Nanos, after: Nanos) {
        let offset = ClockOffset::between(wall, before);
        let is_exact = after.saturating_sub(before) <= READ_WITHIN;
        if is_exact && offset.get().abs_diff(self.get().get()) >= MIN_STEP {
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
    /// The steady time of the last measurement of the offset.
    looked: AtomicU64,
}

impl SystemClock {
    /// Reads both clocks. A wall clock before 1970 counts as 1970.
    pub fn new() -> Self {
        let boot = wall().saturating_sub(since_boot());
        Self { boot, offset: Arc::default(), looked: AtomicU64::new(0) }
    }

    /// The same clock, but its steady time is not before `earliest`, even if the wall clock was set back.
    #[must_use]
    pub fn not_before(self, earliest: Nanos) -> Self {
        let behind = earliest.saturating_sub(self.now());
        Self { boot: self.boot.saturating_add(behind), looked: AtomicU64::new(0), ..self }
    }

    /// The same clock, which stores its offset in `offset` from now on, so that other code can read it.
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

/// The time since the boot of the machine, including the time in which it was suspended.
#[expect(clippy::disallowed_methods, reason = "the one place that reads time")]
fn since_boot() -> Nanos {
    let time = clock_gettime(ClockId::Boottime);
    let part = |part: i64| u64::try_from(part).unwrap_or_default();
    Nanos::from_secs(part(time.tv_sec)).saturating_add(Nanos::new(part(time.tv_nsec)))
}

/// The time of one worker thread. It is read whenever a task of the worker is polled and after each decision, and stands still
/// in between.
pub struct WorkerClock {
    clock: Arc<dyn Clock>,
    now: Cell<Nanos>,
}

impl WorkerClock {
    /// A worker's clock that reads `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Rc<Self> {
        let now = Cell::new(clock.now());
        Rc::new(Self { clock, now })
    }

    /// The steady time when it was last read.
    pub fn now(&self) -> Nanos {
        self.now.get()
    }

    /// The wall clock's time at that moment.
    pub fn wall(&self) -> Nanos {
        self.clock.wall_at(self.now.get())
    }

    /// Reads the steady time.
    pub fn tick(&self) -> Nanos {
        self.now.set(self.clock.now());
        self.now.get()
    }

    /// The result of `task`. Reads the time whenever the task is polled.
    pub async fn run<T: Future>(&self, mut task: Pin<&mut T>) -> T::Output {
        poll_fn(|context| {
            self.tick();
            task.as_mut().poll(context)
        })
        .await
    }
}

/// A clock whose time the caller sets, for simulations and tests.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that shows `now`.
    pub fn new(now: Nanos) -> Self {
        Self(AtomicU64::new(now.get()))
    }

    /// Sets the time to `now`, which may be earlier than before.
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
        // the thread was interrupted between the readings, so they do not count
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
