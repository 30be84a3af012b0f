//! The processes that have asked something: which of them are gone, and what of theirs was done already.

use std::collections::HashMap;
use std::net::SocketAddr;

use parking_lot::Mutex;

use crate::units::Nanos;

/// How long a process that has no connection is believed to live, and what it holds that it does not name.
pub(super) const GONE_AFTER: Nanos = Nanos::from_secs(15);

/// By the numbers that processes have of themselves.
#[derive(Default)]
pub(super) struct Processes(Mutex<HashMap<u64, Process>>);

/// A process that has asked something.
struct Process {
    address: SocketAddr,
    connections: usize,
    /// When its last connection ended.
    disconnected: Nanos,
    /// When it had told of all that it holds.
    announced: Nanos,
    made: AppliedChanges,
}

impl Processes {
    /// The process `process`, which is at `address`, has another connection.
    pub(super) fn arrived(&self, process: u64, address: SocketAddr) {
        let fresh = || Process {
            address,
            connections: 0,
            disconnected: Nanos::ZERO,
            announced: Nanos::ZERO,
            made: AppliedChanges::default(),
        };
        let mut processes = self.0.lock();
        let process = processes.entry(process).or_insert_with(fresh);
        process.connections = process.connections.saturating_add(1);
    }

    /// One of its connections ended.
    pub(super) fn disconnected(&self, process: u64, now: Nanos) {
        if let Some(process) = self.0.lock().get_mut(&process) {
            process.connections = process.connections.saturating_sub(1);
            process.disconnected = now;
        }
    }

    /// Whether the process did not ask for the change of this number before; from here on it did.
    pub(super) fn is_new(&self, process: u64, number: u64) -> bool {
        self.0.lock().get_mut(&process).is_some_and(|process| process.made.is_new(number))
    }

    /// The process has told of all that it holds.
    pub(super) fn announced(&self, process: u64, now: Nanos) {
        if let Some(process) = self.0.lock().get_mut(&process) {
            process.announced = now;
        }
    }

    /// When each told of all that it holds.
    pub(super) fn all_announced(&self) -> HashMap<u64, Nanos> {
        self.0.lock().iter().map(|(id, process)| (*id, process.announced)).collect()
    }

    /// Takes out those that are gone. Nobody listens at those addresses for which `refuses` holds.
    pub(super) fn take_gone(&self, refuses: impl Fn(SocketAddr) -> bool, now: Nanos) -> Vec<u64> {
        let mut gone = Vec::new();
        self.0.lock().retain(|id, process| {
            let waited = now.saturating_sub(process.disconnected) >= GONE_AFTER;
            let stays = process.connections > 0 || !(waited || refuses(process.address));
            if !stays {
                gone.push(*id);
            }
            stays
        });
        gone
    }
}

/// Which changes of a process were made: the last ones by their numbers, and all before those.
#[derive(Default)]
struct AppliedChanges {
    largest: u64,
    /// A bit for each of the last numbers, at its rest by their count.
    last: Vec<u64>,
}

/// So many numbers are told apart; more than that are never under way at once.
const TOLD_APART: u64 = 1 << 17;

impl AppliedChanges {
    /// Whether the change of this number was not made before; from here on it was.
    fn is_new(&mut self, number: u64) -> bool {
        if self.last.is_empty() {
            self.last = vec![0; usize::try_from(TOLD_APART / 64).unwrap_or_default()];
        }
        if number.saturating_add(TOLD_APART) <= self.largest {
            return false;
        }
        if number > self.largest {
            let passed = number.saturating_sub(self.largest).min(TOLD_APART);
            for skipped in number.saturating_sub(passed).saturating_add(1)..=number {
                let (word, bit) = place(skipped);
                self.last[word] &= !bit;
            }
            self.largest = number;
        }
        let (word, bit) = place(number);
        let is_new = self.last[word] & bit == 0;
        self.last[word] |= bit;
        is_new
    }
}

/// Where the bit of a number stands.
fn place(number: u64) -> (usize, u64) {
    let rest = number % TOLD_APART;
    (usize::try_from(rest / 64).unwrap_or_default(), 1 << (rest % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_made_once_whatever_order_they_come_in() {
        let mut made = AppliedChanges::default();
        assert!([3, 1, 2, 70].into_iter().all(|number| made.is_new(number)));
        assert!([3, 1, 2, 70].into_iter().all(|number| !made.is_new(number)));
        assert!(made.is_new(TOLD_APART + 70));
        // too old to be told apart: as if it had been made
        assert!(!made.is_new(69) && !made.is_new(70));
        assert!(made.is_new(71) && !made.is_new(71));
        assert!(made.is_new(10 * TOLD_APART) && made.is_new(10 * TOLD_APART - 1));
    }
}
