//! Plays histories, each defined by a seed: `SEED=7 HISTORIES=1000` plays seed 7 and the 999 after it; a single history is
//! logged in full.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// A history: the events that happen to some gateways, and the checks that have to hold.
pub(crate) trait History {
    /// The history of `seed`; it is logged if `is_verbose` is set.
    fn new(seed: u64, is_verbose: bool) -> Self;

    /// A hash that distinguishes this history from others.
    fn digest(&self) -> u64;

    /// The story of the events so far.
    fn event_log(&self) -> &str;
}

/// Plays a history with `how`. Returns its digest, or the failure.
pub(crate) fn play<H: History>(seed: u64, is_verbose: bool, how: fn(&mut H, u64)) -> Result<u64, String> {
    if is_verbose {
        let logs = tracing_subscriber::fmt().without_time().with_ansi(false).with_target(false);
        drop(logs.with_writer(std::io::stderr).try_init());
    }
    let mut history = H::new(seed, is_verbose);
    let played = catch_unwind(AssertUnwindSafe(|| how(&mut history, seed)));
    let digest = history.digest();
    played.map(|()| digest).map_err(|panic| {
        let said = panic.downcast_ref::<String>().map_or("it panicked", String::as_str);
        format!("SEED={seed} HISTORIES=1: {said}\n{}", history.event_log())
    })
}

fn number_from(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().unwrap())
}

/// Plays `histories` histories, or those that the environment names.
pub(crate) fn play_all<H: History>(histories: u64, how: fn(&mut H, u64)) {
    let (first, count) = (number_from("SEED", 1), number_from("HISTORIES", histories));
    let (next, failed) = (AtomicU64::new(first), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..2.min(count) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count {
                        return;
                    }
                    let played = play(seed, count == 1, how);
                    failed.lock().extend(played.err());
                }
            });
        }
    });
    let failed = failed.into_inner();
    assert!(
        failed.is_empty(),
        "{} of {count} histories failed; replay one as it says\n{}",
        failed.len(),
        failed.join("\n")
    );
}
