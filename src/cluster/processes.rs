//! The processes that have sent requests: which of them are gone, and which of their corrections were made.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::members::HEARTBEAT_INTERVAL;
use crate::units::Nanos;

/// The time after which a process without heartbeats counts as gone, and a slot that its process does not
/// report is returned.
pub(super) const GONE_AFTER: Nanos = Nanos::from_secs(15);
/// The same as a number of calls of [`Processes::take_gone`]: silence while this gateway itself was stopped means nothing.
const GONE_AFTER_TICKS: u64 = GONE_AFTER.get() / HEARTBEAT_INTERVAL.get();
/// The time after which a silent process is forgotten, as a number of such calls. A process that returns earlier, after a cut,
/// sends corrections again that were made before.
const FORGOTTEN_AFTER_TICKS: u64 = Nanos::from_secs(600).get() / HEARTBEAT_INTERVAL.get();

/// Processes by the random number that each has chosen.
#[derive(Default)]
pub(super) struct Processes(Mutex<HashMap<u64, Process>>);

/// A process that has connected to this gateway.
struct Process {
    address: SocketAddr,
    connections: usize,
    /// Notified when the process is gone and its connections must be closed.
    gone: Arc<Notify>,
    /// Whether it counts as gone: only its applied changes are still needed, in case it returns.
    is_gone: bool,
    /// The number of ticks since its last heartbeat.
    silent_ticks: u64,
    /// The time when it last had reported all its slots.
    announced: Nanos,
    made: AppliedChanges,
}

impl Processes {
    /// Counts a connection of `process` at `address`. The result is notified when the connection must be closed.
    pub(super) fn arrived(&self, process: u64, address: SocketAddr) -> Arc<Notify> {
        let fresh = || Process {
            address,
            connections: 0,
            gone: Arc::default(),
            is_gone: false,
            silent_ticks: 0,
            announced: Nanos::ZERO,
            made: AppliedChanges::default(),
        };
        let mut processes = self.0.lock();
        let process = processes.entry(process).or_insert_with(fresh);
        if std::mem::take(&mut process.is_gone) {
            process.silent_ticks = 0;
        }
        process.connections = process.connections.saturating_add(1);
        Arc::clone(&process.gone)
    }

    /// Notes that one of the process's connections has ended.
    pub(super) fn disconnected(&self, process: u64) {
        if let Some(process) = self.0.lock().get_mut(&process) {
            process.connections = process.connections.saturating_sub(1);
        }
    }

    /// Notes that the process has sent a heartbeat.
    pub(super) fn record_heartbeat(&self, process: u64) {
        if let Some(process) = self.0.lock().get_mut(&process) {
            process.silent_ticks = 0;
        }
    }

    /// Whether the process sends the change with this number for the first time. Marks it as applied.
    pub(super) fn is_new(&self, process: u64, number: u64) -> bool {
        self.0.lock().get_mut(&process).is_some_and(|process| process.made.is_new(number))
    }

    /// Notes that the process has reported all its slots.
    pub(super) fn announced(&self, process: u64, now: Nanos) {
        if let Some(process) = self.0.lock().get_mut(&process) {
            process.announced = now;
        }
    }

    /// The time when each process last had reported all its slots.
    pub(super) fn all_announced(&self) -> HashMap<u64, Nanos> {
        let processes = self.0.lock();
        let present = processes.iter().filter(|(_, process)| !process.is_gone);
        present.map(|(id, process)| (*id, process.announced)).collect()
    }

    /// Finds the processes that are gone now, and closes their connections. Called once per [`HEARTBEAT_INTERVAL`].
    /// `refuses` says whether an address refuses connections.
    pub(super) fn take_gone(&self, refuses: impl Fn(SocketAddr) -> bool) -> Vec<u64> {
        let mut gone = Vec::new();
        self.0.lock().retain(|id, process| {
            process.silent_ticks = process.silent_ticks.saturating_add(1);
            let is_refused = process.connections == 0 && refuses(process.address);
            if !process.is_gone && (is_refused || process.silent_ticks >= GONE_AFTER_TICKS) {
                process.is_gone = true;
                process.gone.notify_waiters();
                gone.push(*id);
            }
            process.silent_ticks < FORGOTTEN_AFTER_TICKS
        });
        gone
    }
}

/// The changes of a process that were applied: a bit for each of the latest numbers. All older ones count as applied.
#[derive(Default)]
struct AppliedChanges {
    largest: u64,
    /// A bit for each of the latest numbers, at the number modulo their count.
    last: Vec<u64>,
}

/// How many of the latest numbers have a bit. Fewer changes than this are in flight at once.
const TOLD_APART: u64 = 1 << 17;

impl AppliedChanges {
    /// Whether the change with this number arrives for the first time. Marks it as applied.
    fn is_new(&mut self, number: u64) -> bool {
        if self.last.is_empty() {
            self.last = vec![0; usize::try_from(TOLD_APART / 64).unwrap_or_default()];
        }
        if number.saturating_add(TOLD_APART) <= self.largest {
            return false;
        }
        if number > self.largest {
            if number.saturating_sub(self.largest) >= TOLD_APART {
                self.last.fill(0);
            } else {
                for skipped in self.largest.saturating_add(1)..=number {
                    let (word, bit) = place(skipped);
                    self.last[word] &= !bit;
                }
            }
            self.largest = number;
        }
        let (word, bit) = place(number);
        let is_new = self.last[word] & bit == 0;
        self.last[word] |= bit;
        is_new
    }
}

/// The word and the bit of a number.
fn place(number: u64) -> (usize, u64) {
    let rest = number % TOLD_APART;
    (usize::try_from(rest / 64).unwrap_or_default(), 1 << (rest % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_a_process_that_returns_is_not_made_again() {
        let (processes, address) = (Processes::default(), SocketAddr::from(([10, 0, 0, 1], 7946)));
        processes.arrived(7, address);
        processes.announced(7, Nanos::SECOND);
        assert!(processes.is_new(7, 1));
        let gone: Vec<u64> = (0..2 * GONE_AFTER_TICKS).flat_map(|_| processes.take_gone(|_| false)).collect();
        assert_eq!((gone, processes.all_announced().len()), (vec![7], 0));
        processes.arrived(7, address);
        assert!(!processes.is_new(7, 1) && processes.is_new(7, 2));
        // it counts as gone again only after another silence
        assert!(processes.take_gone(|_| false).is_empty());
    }

    #[test]
    fn a_change_is_made_once_whatever_order_they_come_in() {
        let mut made = AppliedChanges::default();
        assert!([3, 1, 2, 70].into_iter().all(|number| made.is_new(number)));
        assert!([3, 1, 2, 70].into_iter().all(|number| !made.is_new(number)));
        assert!(made.is_new(TOLD_APART + 70));
        // too old to have a bit: counts as applied
        assert!(!made.is_new(69) && !made.is_new(70));
        assert!(made.is_new(71) && !made.is_new(71));
        assert!(made.is_new(10 * TOLD_APART) && made.is_new(10 * TOLD_APART - 1));
    }
}
