//! Connections without a request: whoever has been without one for longest goes when there is no place for a new one.

use std::array;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Waker;

use parking_lot::Mutex;

use crate::units::Nanos;

/// Into how many parts the connections of a listener are cut, with a lock each.
const SHARDS: u64 = 8;
/// How often it is looked again for one that can go, when another took what was found.
const LOOKS: usize = 4;

/// All connections without a request.
#[derive(Debug, Default)]
pub struct Spare {
    at: Vec<[Shard; SHARDS as usize]>,
    next: AtomicU64,
}

/// Ordered by since when they are without a request.
type Shard = Mutex<BTreeMap<(Nanos, u64), Arc<Spot>>>;

/// One connection, as those see it who look for a place.
pub struct Spot {
    listener: usize,
    id: u64,
    called_off: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Spare {
    /// Nobody yet, at so many `listeners`.
    pub fn new(listeners: usize) -> Self {
        Self { at: (0..listeners).map(|_| array::from_fn(|_| Shard::default())).collect(), next: AtomicU64::new(0) }
    }

    /// A connection at `listener`.
    pub fn spot(&self, listener: usize) -> Arc<Spot> {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        Arc::new(Spot { listener, id, called_off: AtomicBool::new(false), waker: Mutex::new(None) })
    }

    /// The connection is without a request since `since`; one that lies ahead keeps it until then.
    pub fn enter(&self, spot: &Arc<Spot>, since: Nanos) {
        if let Some(shard) = self.shard(spot) {
            shard.lock().insert((since, spot.id), Arc::clone(spot));
        }
    }

    /// The connection that was entered with `since` is not without a request any more.
    pub fn leave(&self, spot: &Spot, since: Nanos) {
        if let Some(shard) = self.shard(spot) {
            drop(shard.lock().remove(&(since, spot.id)));
        }
    }

    /// Calls off whoever has been without a request for longest by `now`, at `listener` or anywhere. False if there is
    /// nobody.
    pub fn make_room(&self, listener: Option<usize>, now: Nanos) -> bool {
        (0..LOOKS).map_while(|_| self.oldest(listener).filter(|((since, _), _)| *since <= now)).any(|(key, shard)| {
            let gone = shard.lock().remove(&key);
            gone.is_some_and(|spot| {
                spot.call_off();
                true
            })
        })
    }

    fn oldest(&self, listener: Option<usize>) -> Option<((Nanos, u64), &Shard)> {
        let listeners = self.at.iter().enumerate().filter(|(at, _)| listener.is_none_or(|listener| listener == *at));
        let shards = listeners.flat_map(|(_, shards)| shards);
        shards.filter_map(|shard| Some((*shard.lock().first_key_value()?.0, shard))).min_by_key(|(key, _)| *key)
    }

    fn shard(&self, spot: &Spot) -> Option<&Shard> {
        self.at.get(spot.listener)?.get(usize::try_from(spot.id % SHARDS).unwrap_or_default())
    }
}

impl Spot {
    /// Whether another connection has the place by now. If not, `waker` is woken when that changes.
    pub fn is_called_off(&self, waker: &Waker) -> bool {
        {
            let mut known = self.waker.lock();
            match &mut *known {
                Some(known) => known.clone_from(waker),
                None => *known = Some(waker.clone()),
            }
        }
        self.called_off.load(Ordering::Acquire)
    }

    fn call_off(&self) {
        self.called_off.store(true, Ordering::Release);
        if let Some(waker) = self.waker.lock().take() {
            waker.wake();
        }
    }
}

impl fmt::Debug for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spot").field("listener", &self.listener).field("called_off", &self.called_off).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_without_a_request_for_longest_goes_first() {
        let spare = Spare::new(2);
        let spots: Vec<Arc<Spot>> = (0..20).map(|number| spare.spot(number % 2)).collect();
        for (spot, since) in spots.iter().zip(1..) {
            spare.enter(spot, Nanos::from_secs(since));
        }
        let gone = || -> Vec<usize> {
            let gone = spots.iter().enumerate().filter(|(_, spot)| spot.is_called_off(Waker::noop()));
            gone.map(|(position, _)| position).collect()
        };
        let now = Nanos::from_secs(15);
        assert!(spare.make_room(None, now) && spare.make_room(None, now));
        assert_eq!(gone(), [0, 1]);
        assert!(spare.make_room(Some(1), now));
        assert_eq!(gone(), [0, 1, 3]);
        spare.leave(&spots[2], Nanos::from_secs(3));
        while spare.make_room(None, now) {}
        let ahead = |position: &usize| *position < 15;
        assert_eq!(gone(), (0..20).filter(|position| *position != 2).filter(ahead).collect::<Vec<_>>());
        assert!(!spare.make_room(Some(0), now), "who has its place for certain keeps it");
    }
}
