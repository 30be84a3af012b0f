//! The common code of the benchmarks: keys, a stopwatch, and the memory of a separate process.

use std::hash::Hasher;
use std::hint::black_box;
use std::time::Duration;

use siphasher::sip128::{Hasher128, SipHasher13};
use tollgate::units::LimitKey;

/// A limiter that decides requests by a key.
pub(crate) trait Subject: Sync {
    /// Decides one request.
    fn decide(&self, key: u64) -> bool;
}

/// A key as the gateway makes it: a keyed 128-bit hash.
pub(crate) fn limit_key(key: u64) -> LimitKey {
    let mut hasher = SipHasher13::new_with_key(b"0123456789abcdef");
    hasher.write_u64(key);
    LimitKey(hasher.finish128().as_u128())
}

/// Pseudo-random keys, the same for every subject (splitmix64).
fn key(step: u64, keys: u64) -> u64 {
    let mut z = step.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)) % keys
}

/// Sends one request of every key.
pub(crate) fn fill(subject: &dyn Subject, keys: u64) {
    for key in 0..keys {
        black_box(subject.decide(key));
    }
}

/// The wall time of `rounds` decisions on each of `threads` threads.
#[expect(clippy::disallowed_methods, reason = "a stopwatch")]
pub(crate) fn measure(subject: &dyn Subject, keys: u64, threads: u64, rounds: u64) -> Duration {
    let start = std::time::Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                for step in 0..rounds {
                    black_box(subject.decide(key(step.wrapping_add(thread << 40), keys)));
                }
            });
        }
    });
    start.elapsed()
}

/// Runs this program once for each name and number of keys, to print its memory: in a separate process, so that nothing
/// else counts.
pub(crate) fn print_memory_of_each(names: &[&str], sizes: &[u64]) -> std::io::Result<()> {
    for name in names {
        for keys in sizes {
            std::process::Command::new(std::env::current_exe()?)
                .args(["--memory", name, &keys.to_string()])
                .status()?;
        }
    }
    Ok(())
}

/// Whether this process is such a run; if so, prints the memory of the subject from `make`.
#[expect(clippy::print_stdout, reason = "a figure of the benchmark")]
pub(crate) fn printed_memory(make: impl Fn(&str) -> Box<dyn Subject>) -> bool {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, flag, name, keys] = arguments.as_slice() else { return false };
    if flag != "--memory" {
        return false;
    }
    let keys: u64 = keys.parse().unwrap_or(1);
    let before = resident_bytes();
    let subject = make(name);
    fill(&*subject, keys);
    let grown = resident_bytes().saturating_sub(before);
    println!("{name}, {keys} keys: {} MB, {} bytes a key", grown / 1_000_000, grown / keys);
    true
}

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4096
}
