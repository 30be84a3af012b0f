//! Limits on the number of connections: in total, per listener and per client.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::units::Nanos;

/// The number of shards of the clients, each with its own lock.
const SHARDS: usize = 16;
/// The least time between two log lines about connections that are closed at once.
const WARN_INTERVAL: Nanos = Nanos::from_secs(10);

/// The counters of all connections.
#[derive(Debug, Default)]
pub struct ConnectionLimiter {
    taken: AtomicUsize,
    /// The connections at each listener.
    at: Vec<AtomicUsize>,
    clients: [Mutex<HashMap<IpAddr, usize>>; SHARDS],
    hasher: RandomState,
    /// The time of the last log line about a connection that was closed at once.
    warned: Mutex<Option<Nanos>>,
}

/// The permit for one connection, which is returned when dropped.
#[derive(Debug)]
pub struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    listener: usize,
    client: Option<IpAddr>,
}

/// The limit that is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitReached {
    /// The limit of the whole gateway.
    All,
    /// The limit of the listener.
    Listener,
}

impl LimitReached {
    /// The limit as one word for metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Listener => "listener",
        }
    }
}

/// The maximum numbers of connections; `None` for no maximum.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectionBounds {
    /// In all.
    pub total: Option<usize>,
    /// At the listener of the new connection.
    pub per_listener: Option<usize>,
}

impl ConnectionLimiter {
    /// A limiter for this many `listeners`.
    pub fn new(listeners: usize) -> Self {
        Self { at: (0..listeners).map(|_| AtomicUsize::new(0)).collect(), ..Self::default() }
    }

    /// Takes a permit at `listener`, if there are fewer connections than the bounds.
    pub fn take(self: &Arc<Self>, listener: usize, bounds: ConnectionBounds) -> Result<ConnectionPermit, LimitReached> {
        // dropped, and so returned, if it turns out to be one too many
        let permit = ConnectionPermit { limiter: Arc::clone(self), listener, client: None };
        let before = self.taken.fetch_add(1, Ordering::Relaxed);
        let before_there = self.at.get(listener).map_or(0, |there| there.fetch_add(1, Ordering::Relaxed));
        if bounds.total.is_some_and(|max| before >= max) {
            Err(LimitReached::All)
        } else if bounds.per_listener.is_some_and(|max| before_there >= max) {
            Err(LimitReached::Listener)
        } else {
            Ok(permit)
        }
    }

    /// Whether a connection that is closed at `now` is worth a log line: true at most once in ten seconds.
    pub(super) fn may_warn(&self, now: Nanos) -> bool {
        let mut warned = self.warned.lock();
        let is_due = warned.is_none_or(|at| now.saturating_sub(at) >= WARN_INTERVAL);
        if is_due {
            *warned = Some(now);
        }
        is_due
    }

    fn of_clients(&self, client: IpAddr) -> Option<&Mutex<HashMap<IpAddr, usize>>> {
        let position = usize::try_from(self.hasher.hash_one(client) % SHARDS as u64).unwrap_or_default();
        self.clients.get(position)
    }
}

impl ConnectionPermit {
    /// Counts the connection for `client`. Returns false if that client already has `max` connections.
    pub fn belongs_to(&mut self, client: IpAddr, max: Option<usize>) -> bool {
        let Some(clients) = self.limiter.of_clients(client) else { return true };
        let mut clients = clients.lock();
        let count = clients.entry(client).or_default();
        if max.is_some_and(|max| *count >= max) {
            return false;
        }
        *count = count.saturating_add(1);
        self.client = Some(client);
        true
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.limiter.taken.fetch_sub(1, Ordering::Relaxed);
        if let Some(there) = self.limiter.at.get(self.listener) {
            there.fetch_sub(1, Ordering::Relaxed);
        }
        let Some(client) = self.client else { return };
        let Some(clients) = self.limiter.of_clients(client) else { return };
        let mut clients = clients.lock();
        match clients.get_mut(&client) {
            Some(count) if *count > 1 => *count = count.saturating_sub(1),
            _ => drop(clients.remove(&client)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_connections_are_worth_a_line_in_ten_seconds() {
        let limiter = ConnectionLimiter::new(1);
        let said = [5, 5, 14, 15, 16, 25].map(|second| limiter.may_warn(Nanos::from_secs(second)));
        assert_eq!(said, [true, false, false, true, false, true]);
    }

    #[test]
    fn places_are_counted_in_all_at_each_listener_and_of_each_client_and_come_back() {
        let limiter = Arc::new(ConnectionLimiter::new(2));
        let take = |listener, (total, per_listener)| limiter.take(listener, ConnectionBounds { total, per_listener });
        let mut held = vec![take(0, (Some(3), Some(1))).unwrap()];
        assert_eq!(take(0, (Some(3), Some(1))).unwrap_err(), LimitReached::Listener);
        held.push(take(1, (Some(3), None)).unwrap());
        held.push(take(1, (Some(3), None)).unwrap());
        assert_eq!(take(1, (Some(3), None)).unwrap_err(), LimitReached::All);
        held.push(take(1, (None, None)).unwrap());
        let client = |last| IpAddr::from([192, 0, 2, last]);
        assert!(held[0].belongs_to(client(1), Some(1)));
        assert!(!held[1].belongs_to(client(1), Some(1)));
        assert!(held[2].belongs_to(client(2), Some(1)));
        drop(held);
        assert_eq!(limiter.taken.load(Ordering::Relaxed), 0);
        assert!(limiter.at.iter().all(|there| there.load(Ordering::Relaxed) == 0));
        assert!(limiter.clients.iter().all(|clients| clients.lock().is_empty()));
    }
}
