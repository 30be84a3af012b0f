//! The migration of states: which gateway has the state of a key while ownership changes.
//!
//! The state of a key is in one place, and moves to the gateway that has to decide. When the members change, each
//! gateway pushes the states that it no longer owns to the new owners ([`StoreCursor`]). A gateway that has to decide
//! before a state has arrived fetches it from each gateway that may have it: the earlier owners, the owner in its own
//! view, the gateway that it lent the state to, and each gateway that sees other members. A gateway that has just given
//! the state away says so, and to which gateways. So gateways that see a change one after the other still decide on one
//! state, and a change of owners makes no key start afresh.
//!
//! Fetches stop once all gateways have reported that they keep no state of others.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::members::{HEARTBEAT_INTERVAL, PeerRecord};
use super::ring::Ring;
use crate::units::{LimitKey, Nanos};

/// The progress of a search through a store for states that other gateways own.
#[derive(Debug, Default)]
pub struct StoreCursor {
    /// The next part of the store to search.
    pub next: usize,
    /// Whether the whole store has been searched.
    pub is_over: bool,
}

/// The numbers of states that arrived and were kept, merged or not understood.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportCounts {
    /// States whose keys had no state here.
    pub kept: u64,
    /// States that were merged into the states here.
    pub merged: u64,
    /// States whose algorithm or parameters this program does not know.
    pub unknown: u64,
}

/// The gateways that may have states that are not here. See the module's documentation.
#[derive(Default)]
pub(super) struct MigrationState {
    past: Mutex<Past>,
    /// Whether another gateway may have a state that this one owns. Each request reads it.
    is_active: AtomicBool,
    /// The number of changes of the members.
    ring_changes: AtomicU64,
    /// Locked while a part of the store is pushed: its states are neither in the store nor at their owners.
    pub(super) part: tokio::sync::Mutex<()>,
    /// Fingerprints of keys whose states are being pushed and have not arrived yet.
    pushing: Mutex<HashSet<u64>>,
    /// The fetches by the fingerprints of their keys.
    fetching: Mutex<HashMap<u64, Fetching>>,
    last_fetch: AtomicU64,
    departures: KeyEpochs,
    /// Notified when a push or a fetch ends, when states arrive, and when the sources of states change.
    pub(super) moved: Notify,
    /// Notified when there may be states to push.
    pub(super) push: Notify,
    /// Notified when a request here holds a slot that the owner of its key does not know of.
    pub(super) announce: Notify,
    pub(super) counts: Counts,
}

/// The requests that wait for the state of one key to be fetched, or are about to use it.
#[derive(Default)]
struct Fetching {
    /// The numbers of their [`Fetch`]es.
    requests: SmallVec<[u64; 4]>,
    /// The number of the one that asks other gateways.
    asks: Option<u64>,
    /// How many rounds of asking all gateways have ended.
    ended: u64,
    /// The number of ring changes when the fetch began; `None` once a state of the key has been given away.
    began: Option<u64>,
}

/// The numbers of states that were given away, per group of keys: a decision sees whether its state left in the meantime.
struct KeyEpochs(Box<[GivenAway]>);

#[derive(Default)]
struct GivenAway {
    count: AtomicU64,
    /// The time when a state was last given away.
    last: AtomicU64,
}

impl Default for KeyEpochs {
    fn default() -> Self {
        Self((0..KEY_EPOCHS).map(|_| GivenAway::default()).collect())
    }
}

impl KeyEpochs {
    fn of(&self, key: LimitKey) -> Option<&GivenAway> {
        self.0.get(usize::try_from(key.0 % KEY_EPOCHS).ok()?)
    }
}

/// The changes of ownership of some keys up to one moment.
#[derive(Debug, Default)]
pub struct OwnershipEpoch {
    ring_changes: u64,
    /// Each key, with the number of times that its state had been given away.
    keys: SmallVec<[(LimitKey, u64); 4]>,
}

#[derive(Default)]
struct Past {
    /// Earlier rings whose owners may not have pushed all states yet; the latest one last.
    rings: Vec<Arc<Ring>>,
    /// The time of the last change of the members.
    ring_changed: Nanos,
    /// Gateways that fetched a key that they do not own, and now decide about it, whether there was a state or not.
    lent: HashMap<LimitKey, SmallVec<[Lent; 1]>>,
    /// Gateways that see other members or keep states of others: they may decide about keys that this gateway owns.
    differing: Vec<SocketAddr>,
    /// Gateways that sent a request while they saw other members, with the time.
    asked: BTreeMap<SocketAddr, Nanos>,
}

/// The gateway that a state was given to, with the time.
type Lent = (SocketAddr, Nanos);

/// Counters of the states that were sent and received.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Pushed to their owners.
    pub(super) pushed: AtomicU64,
    /// Given to gateways that fetched them.
    pub(super) given: AtomicU64,
    /// Received and kept.
    pub(super) received: AtomicU64,
    /// Received and merged with this gateway's own state of the key.
    pub(super) merged: AtomicU64,
    /// Received and not understood.
    pub(super) unknown: AtomicU64,
}

/// The number of groups of keys, each of which has its own counter.
const KEY_EPOCHS: u128 = 4096;
/// The maximum number of earlier rings to remember. An owner in an older ring pushes its states without being asked.
const MAX_RINGS: usize = 8;
/// The time in which other gateways report a lent state or a held slot, at the latest.
const LENT_FOR: Nanos = Nanos::new(4 * HEARTBEAT_INTERVAL.get());

/// Gateways that may have a state.
pub(super) type Sources = SmallVec<[SocketAddr; 2]>;

impl MigrationState {
    /// Whether another gateway may have a state that is not here.
    pub(super) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Notes that the members have changed and that `before` is the old ring. Must be called before the new
    /// ring is published.
    pub(super) fn ring_changed(&self, before: &Arc<Ring>, now: Nanos) {
        let mut past = self.past.lock();
        past.ring_changed = now;
        if past.rings.len() >= MAX_RINGS {
            past.rings.remove(0);
        }
        past.rings.push(Arc::clone(before));
        self.is_active.store(true, Ordering::Relaxed);
        self.ring_changes.fetch_add(1, Ordering::SeqCst);
        self.push.notify_one();
    }

    /// Whether the members changed so recently that gateways may not have announced all their slots yet.
    pub(super) fn has_just_changed(&self, now: Nanos) -> bool {
        let past = self.past.lock();
        !past.rings.is_empty() && now.saturating_sub(past.ring_changed) < LENT_FOR
    }

    /// Forgets the earlier rings once this gateway `is_drained` and all `peers` that answer have reported that they
    /// keep no state of others.
    pub(super) fn settle<'p>(
        &self,
        ring: &Ring,
        peers: impl Iterator<Item = &'p PeerRecord>,
        is_drained: bool,
        now: Nanos,
    ) {
        let mut differing: BTreeSet<SocketAddr> = peers
            .filter(|peer| {
                peer.state.answers()
                    && !peer
                        .last_heartbeat
                        .is_some_and(|last_heartbeat| last_heartbeat.drained && last_heartbeat.ring == ring.hash())
            })
            .map(|peer| peer.member.address)
            .collect();
        let mut past = self.past.lock();
        past.lent.retain(|_, lent| {
            // from then on a gateway that still keeps it is among the differing ones
            lent.retain(|(_, at)| now.saturating_sub(*at) < LENT_FOR);
            !lent.is_empty()
        });
        past.asked.retain(|_, at| now.saturating_sub(*at) < LENT_FOR);
        differing.extend(past.asked.keys());
        if is_drained && differing.is_empty() {
            past.rings.clear();
        }
        past.differing = differing.into_iter().collect();
        let is_active = !past.rings.is_empty() || !past.lent.is_empty() || !past.differing.is_empty();
        self.is_active.store(is_active, Ordering::Relaxed);
        drop(past);
        self.moved.notify_waiters();
    }

    /// Notes that the gateway at `from` sends a request under another ring. Must be called before the request is answered.
    pub(super) fn asked_under_other_ring(&self, from: SocketAddr, now: Nanos) {
        let mut past = self.past.lock();
        if past.asked.insert(from, now).is_none() && !past.differing.contains(&from) {
            past.differing.push(from);
        }
        self.is_active.store(true, Ordering::Relaxed);
    }

    /// Notes that a connection to `address`, tried at `since`, has failed: its earlier requests no longer prove that it
    /// is alive. Must be called before [`MigrationState::settle`].
    pub(super) fn unreachable(&self, address: SocketAddr, since: Nanos) {
        self.past.lock().asked.retain(|from, at| *from != address || *at > since);
    }

    /// Whether the gateway at `address` answers, and sees other members or keeps states of others.
    pub(super) fn differs(&self, address: SocketAddr) -> bool {
        self.past.lock().differing.contains(&address)
    }

    /// The gateways besides `own` that may have the state of `key`, the most probable first. `own` sees `ring`.
    pub(super) fn sources(&self, key: LimitKey, own: SocketAddr, ring: &Ring) -> Sources {
        let past = self.past.lock();
        let lent = past.lent.get(&key).into_iter().flatten().rev().map(|(to, _)| *to);
        let before = past.rings.iter().rev().filter_map(|ring| ring.owner(key));
        let mut sources = Sources::new();
        for source in lent.chain(ring.owner(key)).chain(before).chain(past.differing.iter().copied()) {
            if source != own && !sources.contains(&source) {
                sources.push(source);
            }
        }
        sources
    }

    /// Notes that `to`, which does not own `key` in this gateway's view, decides about it from now on.
    pub(super) fn lend(&self, key: LimitKey, to: SocketAddr, now: Nanos) {
        let mut past = self.past.lock();
        let lent = past.lent.entry(key).or_default();
        lent.retain(|(known, _)| *known != to);
        lent.push((to, now));
        self.is_active.store(true, Ordering::Relaxed);
    }

    // === pushes and fetches of one key ===

    /// Counts that the state of `key` is given away. Must be called before the state is taken out of the store, and
    /// after its new place is noted.
    pub(super) fn count_departure(&self, key: LimitKey) {
        if let Some(departures) = self.departures.of(key) {
            departures.count.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The current epoch of `keys`, for [`MigrationState::may_have_moved`].
    pub(super) fn ownership_epoch(&self, keys: impl Iterator<Item = LimitKey>) -> OwnershipEpoch {
        let ring_changes = self.ring_changes.load(Ordering::SeqCst);
        OwnershipEpoch { ring_changes, keys: keys.map(|key| (key, self.departure_count(key))).collect() }
    }

    /// Whether the state of the key at this position may have moved since `epoch`: it was given away, or the members changed
    /// and this gateway may now own a state that another one has.
    pub(super) fn may_have_moved(&self, epoch: &OwnershipEpoch, position: usize) -> bool {
        let Some((key, before)) = epoch.keys.get(position) else { return false };
        self.ring_changes.load(Ordering::SeqCst) != epoch.ring_changes || self.departure_count(*key) != *before
    }

    fn departure_count(&self, key: LimitKey) -> u64 {
        self.departures.of(key).map_or(0, |departures| departures.count.load(Ordering::SeqCst))
    }

    /// Notes that this gateway is about to push the state of `key`.
    pub(super) fn begin_push(&self, key: LimitKey, now: Nanos) {
        self.pushing.lock().insert(key.fingerprint());
        self.count_departure(key);
        self.note_gone(key, now);
    }

    /// Notes that this gateway gives away a state of `key`, for a running fetch of it and for gateways that ask for it
    /// later. Must be called while the state is still in the store.
    pub(super) fn note_gone(&self, key: LimitKey, now: Nanos) {
        if let Some(departures) = self.departures.of(key) {
            departures.last.fetch_max(now.get(), Ordering::SeqCst);
        }
        self.outdate_fetch(key);
    }

    /// Notes that the answers to a running fetch of `key` may be too old: a request that joins it fetches again.
    fn outdate_fetch(&self, key: LimitKey) {
        if let Some(fetching) = self.fetching.lock().get_mut(&key.fingerprint()) {
            fetching.began = None;
        }
    }

    /// Whether a state of `key` may have been given away at `since` or later.
    pub(super) fn has_left(&self, key: LimitKey, since: Nanos) -> bool {
        self.departures.of(key).is_some_and(|departures| departures.last.load(Ordering::SeqCst) >= since.get().max(1))
    }

    /// Notes that one of the gateways at `to` may have received the state of `key` while this gateway asked for it. A
    /// request that misses the state asks again.
    pub(super) fn note_moved(&self, key: LimitKey, to: &[SocketAddr], now: Nanos) {
        to.iter().for_each(|to| self.lend(key, *to, now));
        self.outdate_fetch(key);
        self.count_departure(key);
    }

    /// Notes that all pushed states have arrived or have been restored here.
    pub(super) fn end_push(&self) {
        self.pushing.lock().clear();
        self.moved.notify_waiters();
    }

    /// Notes that a request needs the state of `key`.
    pub(super) fn begin_fetch(self: &Arc<Self>, key: LimitKey) -> Fetch {
        let number = self.last_fetch.fetch_add(1, Ordering::SeqCst);
        self.fetching.lock().entry(key.fingerprint()).or_default().requests.push(number);
        Fetch { migration: Arc::clone(self), key, number }
    }

    /// Whether any state is being fetched.
    pub(super) fn is_fetching(&self) -> bool {
        !self.fetching.lock().is_empty()
    }

    /// Waits until the state of `key` is not being pushed and the requests that fetched it have used it, for at most
    /// `patience`. With `first`, waits for the requests only an eighth of that: of two gateways that fetch from each
    /// other, one must not wait for the other.
    pub(super) async fn wait_until_at_rest(&self, key: LimitKey, first: bool, patience: Nanos) {
        // not for later requests: they would delay the other gateway indefinitely
        let next = self.last_fetch.load(Ordering::SeqCst);
        let is_used = || {
            let all = self.fetching.lock();
            all.get(&key.fingerprint()).is_none_or(|fetching| fetching.requests.iter().all(|number| *number >= next))
        };
        let patience_with_requests = if first { Nanos::new(patience.get() / 8) } else { patience };
        self.wait_until(is_used, patience_with_requests).await;
        self.wait_until(|| !self.is_being_pushed(key) && (first || is_used()), patience).await;
    }

    /// Waits until the state of `key` is not being pushed, for at most `patience`.
    pub(super) async fn wait_until_pushed(&self, key: LimitKey, patience: Nanos) {
        self.wait_until(|| !self.is_being_pushed(key), patience).await;
    }

    /// Whether the state of `key` is being pushed.
    pub(super) fn is_being_pushed(&self, key: LimitKey) -> bool {
        self.pushing.lock().contains(&key.fingerprint())
    }

    /// Waits until `holds`, which is checked whenever a state has moved, for at most `patience`.
    pub(super) async fn wait_until(&self, holds: impl Fn() -> bool, patience: Nanos) {
        drop(timeout(patience.to_duration(), self.wait(holds)).await);
    }

    /// Waits until `holds`, without a timeout.
    pub(super) async fn wait(&self, holds: impl Fn() -> bool) {
        loop {
            let moved = self.moved.notified();
            let mut moved = std::pin::pin!(moved);
            moved.as_mut().enable();
            if holds() {
                return;
            }
            moved.await;
        }
    }
}

/// A request that fetches a state. While it exists, the state is not given to gateways that ask for it later.
pub struct Fetch {
    migration: Arc<MigrationState>,
    key: LimitKey,
    pub(super) number: u64,
}

impl Fetch {
    /// Waits while another request asks for the state. Returns whether this request has to ask: no other one asks, or
    /// the other one was dropped.
    pub(super) async fn has_to_ask(&self) -> bool {
        let before = self.with(|fetching| fetching.ended);
        let is_settled = |fetching: &mut Fetching| {
            if fetching.ended == before && fetching.asks.is_none() {
                fetching.asks = Some(self.number);
                fetching.began = Some(self.migration.ring_changes.load(Ordering::SeqCst));
            }
            fetching.ended != before || fetching.asks == Some(self.number)
        };
        self.migration.wait(|| self.with(is_settled)).await;
        self.with(|fetching| fetching.asks == Some(self.number))
    }

    /// Notes that the state has arrived, or that no gateway has it.
    pub(super) fn end(&self) {
        let changes = self.migration.ring_changes.load(Ordering::SeqCst);
        let is_early = self.with(|fetching| {
            fetching.asks = None;
            fetching.ended = fetching.ended.wrapping_add(1);
            fetching.began != Some(changes)
        });
        // the new place of the state may have been asked too early: a waiting request that misses the state fetches again
        if is_early {
            self.migration.count_departure(self.key);
        }
        self.migration.moved.notify_waiters();
    }

    fn with<T>(&self, what: impl Fn(&mut Fetching) -> T) -> T {
        what(self.migration.fetching.lock().entry(self.key.fingerprint()).or_default())
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        let mut all = self.migration.fetching.lock();
        if let Entry::Occupied(mut fetching) = all.entry(self.key.fingerprint()) {
            fetching.get_mut().requests.retain(|number| *number != self.number);
            if fetching.get().requests.is_empty() {
                fetching.remove();
            } else if fetching.get().asks == Some(self.number) {
                fetching.get_mut().asks = None;
            }
        }
        drop(all);
        self.migration.moved.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
