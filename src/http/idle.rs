//! Idle connections: when there is no room for a new connection, the gateway evicts the one that has been without a
//! request for longest.

use std::array;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

use crate::units::Nanos;

/// The number of shards of a listener's connections, each with its own lock.
const SHARDS: u64 = 8;
/// The maximum number of connections to examine for one that can be evicted.
const LOOKS: usize = 1024;
/// The value of `since` for a connection with a request.
const BUSY: u64 = u64::MAX;

/// All connections, ordered by the earliest time since when they may be idle.
///
/// A connection only notes when it gets a request or ends one; its position in the order is corrected when it is examined.
#[derive(Default)]
pub struct IdleConnections {
    at: Vec<[Shard; SHARDS as usize]>,
    next: AtomicU64,
}

type Shard = Mutex<BTreeMap<(u64, u64), Arc<IdleEntry>>>;

/// The entry of one connection in [`IdleConnections`].
pub struct IdleEntry {
    listener: usize,
    id: u64,
    /// The time since when the connection is idle, in nanoseconds; [`BUSY`] while it has a request.
    since: AtomicU64,
    /// Its position in the order, as a time.
    place: AtomicU64,
    is_evicted: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl IdleConnections {
    /// An empty set for this many `listeners`.
    pub fn new(listeners: usize) -> Self {
        Self { at: (0..listeners).map(|_| array::from_fn(|_| Shard::default())).collect(), next: AtomicU64::new(0) }
    }

    /// Adds a connection at `listener` that is idle since `now`.
    pub fn enter(&self, listener: usize, now: Nanos) -> Arc<IdleEntry> {
        let entry = Arc::new(IdleEntry {
            listener,
            id: self.next.fetch_add(1, Ordering::Relaxed),
            since: AtomicU64::new(now.get()),
            place: AtomicU64::new(now.get()),
            is_evicted: AtomicBool::new(false),
            waker: Mutex::new(None),
        });
        if let Some(shard) = self.shard(&entry) {
            shard.lock().insert((now.get(), entry.id), Arc::clone(&entry));
        }
        entry
    }

    /// Removes a connection that has ended.
    pub fn leave(&self, entry: &IdleEntry) {
        if let Some(shard) = self.shard(entry) {
            let mut shard = shard.lock();
            shard.remove(&(entry.place.load(Ordering::Relaxed), entry.id));
        }
    }

    /// Evicts the connection that has been idle for longest by `now`, at `listener` or at any. Returns false if
    /// none is idle.
    pub fn evict_longest_idle(&self, listener: Option<usize>, now: Nanos) -> bool {
        for _ in 0..LOOKS {
            let Some((place, shard)) = self.first(listener).filter(|(place, _)| place.0 <= now.get()) else {
                return false;
            };
            let mut shard = shard.lock();
            let Some(entry) = shard.remove(&place) else { continue };
            let since = entry.since.load(Ordering::Acquire);
            if since <= place.0 {
                entry.evict();
                return true;
            }
            // a connection with a request can become idle after `now` at the earliest
            let place = if since == BUSY { now.get().saturating_add(1) } else { since };
            entry.place.store(place, Ordering::Relaxed);
            shard.insert((place, entry.id), entry);
        }
        false
    }

    fn first(&self, listener: Option<usize>) -> Option<((u64, u64), &Shard)> {
        let listeners = self.at.iter().enumerate().filter(|(at, _)| listener.is_none_or(|listener| listener == *at));
        let shards = listeners.flat_map(|(_, shards)| shards);
        shards.filter_map(|shard| Some((*shard.lock().first_key_value()?.0, shard))).min_by_key(|(place, _)| *place)
    }

    fn shard(&self, entry: &IdleEntry) -> Option<&Shard> {
        self.at.get(entry.listener)?.get(usize::try_from(entry.id % SHARDS).unwrap_or_default())
    }
}

impl IdleEntry {
    /// Notes that the connection has a request.
    pub fn mark_busy(&self) {
        self.since.store(BUSY, Ordering::Release);
    }

    /// Notes that the connection is idle since `since`. A time in the future protects it from eviction until then.
    pub fn mark_idle_since(&self, since: Nanos) {
        self.since.store(since.get(), Ordering::Release);
    }

    /// Whether the connection is evicted. If not, `waker` is woken when that changes.
    pub fn is_evicted(&self, waker: &Waker) -> bool {
        {
            let mut known = self.waker.lock();
            match &mut *known {
                Some(known) => known.clone_from(waker),
                None => *known = Some(waker.clone()),
            }
        }
        self.is_evicted.load(Ordering::Acquire)
    }

    fn evict(&self) {
        self.is_evicted.store(true, Ordering::Release);
        if let Some(waker) = self.waker.lock().take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_connection_that_is_idle_for_longest_goes_first() {
        let idle = IdleConnections::new(2);
        let entries: Vec<_> =
            (0..20).map(|number| idle.enter(number % 2, Nanos::from_secs(number as u64 + 1))).collect();
        let gone = || -> Vec<usize> {
            let gone = entries.iter().enumerate().filter(|(_, entry)| entry.is_evicted(Waker::noop()));
            gone.map(|(position, _)| position).collect()
        };
        let now = Nanos::from_secs(15);
        assert!(idle.evict_longest_idle(None, now) && idle.evict_longest_idle(None, now));
        assert_eq!(gone(), [0, 1]);
        assert!(idle.evict_longest_idle(Some(1), now));
        assert_eq!(gone(), [0, 1, 3]);
        entries[2].mark_busy();
        entries[4].mark_busy();
        entries[4].mark_idle_since(Nanos::from_secs(14));
        idle.leave(&entries[5]);
        assert!(idle.evict_longest_idle(None, now));
        assert_eq!(gone(), [0, 1, 3, 6]);
        while idle.evict_longest_idle(None, now) {}
        let stays = [2, 5];
        assert_eq!(gone(), (0..15).filter(|position| !stays.contains(position)).collect::<Vec<_>>());
        assert!(!idle.evict_longest_idle(Some(0), now), "a connection that is to be idle later keeps its place");
        entries[2].mark_idle_since(now);
        assert!(idle.evict_longest_idle(None, Nanos::from_secs(16)) && gone().contains(&2));
    }
}
