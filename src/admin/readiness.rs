//! Whether the process takes requests: not before every listener accepts, not once it is told to stop.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// What the process is at, as `/readyz` tells it.
#[derive(Debug)]
pub struct Readiness {
    /// Services that do not accept yet.
    starting: AtomicUsize,
    stopping: AtomicBool,
}

impl Readiness {
    /// Of a process with this many services that have to accept.
    pub fn new(services: usize) -> Self {
        Self { starting: AtomicUsize::new(services), stopping: AtomicBool::new(false) }
    }

    /// One more service accepts, each says so once. Whether all do now.
    pub fn accepts(&self) -> bool {
        self.starting.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// The process is told to stop.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Whether the process was told to stop.
    pub fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Whether some service does not accept yet.
    pub fn is_starting(&self) -> bool {
        self.starting.load(Ordering::Acquire) > 0
    }
}
