//! The only reader of time. Everything else takes `now`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::units::Nanos;

/// A source of `now`, in nanoseconds since the Unix epoch.
pub trait Clock: Send + Sync {
    /// The time. Never earlier than what an earlier call on the same clock returned, unless a [`ManualClock`] was set back.
    fn now(&self) -> Nanos;
}

/// The machine's time: read from the wall clock once, monotonic from then on.
///
/// A wall clock that is stepped while the process runs changes nothing; one that is slewed is followed after a restart.
#[derive(Debug)]
pub struct SystemClock {
    started: Instant,
    epoch: Nanos,
}

impl SystemClock {
    /// Reads the wall clock. A wall clock before 1970 counts as 1970.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads time")]
    pub fn new() -> Self {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: Instant::now(), epoch: epoch.into() }
    }

    /// The same, but it is not before `earliest`: it goes on from there where the wall clock has gone back.
    #[must_use]
    pub fn not_before(self, earliest: Nanos) -> Self {
        let behind = earliest.saturating_sub(self.now());
        Self { epoch: self.epoch.saturating_add(behind), ..self }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Nanos {
        self.epoch.saturating_add(self.started.elapsed().into())
    }
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
