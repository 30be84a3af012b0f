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
    /// Whether it counts as gone: only its last change is still needed, in case it returns.
    is_gone: bool,
    /// The number of ticks since its last heartbeat.
    silent_ticks: u64,
    /// The time when it last had reported all its slots.
    announced: Nanos,
    /// The largest number of its changes. All changes with smaller numbers came before: a process sends them in ascending
    /// order, and over a new connection again from the first that is not confirmed.
    last_change: u64,
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
            last_change: 0,
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
        self.0.lock().get_mut(&process).is_some_and(|process| {
            let before = process.last_change;
            process.last_change = before.max(number);
            number > before
        })
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
    fn a_change_is_made_once_whatever_connection_it_comes_over() {
        let processes = Processes::default();
        processes.arrived(7, SocketAddr::from(([10, 0, 0, 1], 7946)));
        let is_new = |numbers: &[u64]| numbers.iter().map(|number| processes.is_new(7, *number)).collect::<Vec<_>>();
        assert_eq!(is_new(&[1, 2, 70]), [true; 3]);
        // the new connection repeats what was not confirmed; the rest of the old one is read in between
        assert_eq!(is_new(&[2, 70, 71]), [false, false, true]);
        assert_eq!(is_new(&[70, 71]), [false; 2]);
        assert_eq!(is_new(&[72, 71, 73]), [true, false, true]);
    }
}
