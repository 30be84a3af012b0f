//! The tools of the tests: the gateway as a process, an upstream, and a client that sees bytes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

mod authority;
pub mod browser;
pub mod client;
pub mod cluster;
pub mod distance;
pub mod folder;
pub mod gateway;
pub mod http2;
pub mod metrics;
pub mod origin;
mod ports;
pub mod postgres;
pub mod process;
pub mod prometheus;
pub mod redis;
pub mod servers;
pub mod shared;
pub mod tls;
pub mod tokens;
pub mod wall_clock;
pub mod wire;

pub use client::{Client, Response};
pub use distance::{DelayProxy, LossyProxy};
pub use folder::Folder;
pub use gateway::Gateway;
pub use origin::{Exchange, Origin, RefusingNode, SilentNode};
pub use ports::free_port;
pub use process::Process;

/// The longest time that a test waits for a condition, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The current time.
#[expect(clippy::disallowed_methods, reason = "tests of a real process live in real time; the one reader of it")]
pub fn now() -> Instant {
    Instant::now()
}

/// Calls `probe` until it returns a value; fails after [`PATIENCE`].
pub fn wait_for<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    let end = now() + PATIENCE;
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(now() < end, "waited {PATIENCE:?} in vain for {what}");
        std::thread::park_timeout(Duration::from_millis(3));
    }
}

/// Calls `probe` until it returns true.
pub fn wait_until(what: &str, mut probe: impl FnMut() -> bool) {
    wait_for(what, || probe().then_some(()));
}

pub fn wait_for_time(at: Instant) {
    wait_until("the time to come", || now() >= at);
}

/// Runs `work` in `count` threads that start together, and returns their results.
pub fn together<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let start = std::sync::Barrier::new(count);
    std::thread::scope(|scope| {
        let (start, work) = (&start, &work);
        let run = |number| {
            scope.spawn(move || {
                start.wait();
                work(number)
            })
        };
        let threads: Vec<_> = (0..count).map(run).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Sets a flag when dropped, also by a panic: otherwise threads that wait for the flag would keep a failed test from
/// ending.
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Bytes in which a missing, doubled or misplaced part shows.
pub fn pattern(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_u32;
    let mut bytes = Vec::with_capacity(length + 4);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
