//! Where states are that are not where they belong: on their way, or with whoever owned them before.
//!
//! The state of a key is in one place, and moves to whoever has to decide. When the members change, each node pushes what
//! others own now ([`StoreCursor`]); a node that has to decide before that has come to it takes the state of that key from where
//! it may be: with who owned the key before, with who owns it in this node's eyes, or with whom it
//! was lent to, and with each node that sees other members. So nodes that see the members change one after the other still decide on one state, and nothing is as
//! good as new because its owner is another.
//!
//! Once all have said that they have nothing any more that belongs elsewhere, nobody is asked.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::MigrationCounts;
use super::members::{HEARTBEAT_INTERVAL, Peer};
use super::ring::Ring;
use crate::units::{LimitKey, Nanos};

/// How far a store has been searched for states that belong elsewhere.
#[derive(Debug, Default)]
pub struct StoreCursor {
    /// The part of the store that comes next.
    pub next: usize,
    /// Whether there is none.
    pub is_over: bool,
}

/// What became of states that came in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportCounts {
    /// They are here now.
    pub kept: u64,
    /// They are merged into those that were here.
    pub merged: u64,
    /// This program does not understand them.
    pub unknown: u64,
}

/// Where states may be that are not here. See the module.
#[derive(Default)]
pub(super) struct MigrationState {
    past: Mutex<Past>,
    /// Whether anything may be elsewhere: read for every request.
    is_active: AtomicBool,
    /// How often the members have changed.
    ring_changes: AtomicU64,
    /// Keys whose states are on their way out, and not known to have arrived.
    pushing: Mutex<HashSet<LimitKey>>,
    /// Keys whose states are being asked for.
    fetching: Mutex<HashSet<LimitKey>>,
    departure_count: KeyEpochs,
    /// One of these has ended, or more is known of where states may be.
    moved: Notify,
    /// There may be something to push.
    pub(super) push: Notify,
    /// Something is held that who owns its key has not been told of.
    pub(super) announce: Notify,
    pub(super) counts: Counts,
}

/// How often states were given away, by some bits of their keys: who decides on one sees whether it went meanwhile.
struct KeyEpochs(Box<[AtomicU64]>);

impl Default for KeyEpochs {
    fn default() -> Self {
        Self((0..KEY_EPOCHS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl KeyEpochs {
    fn of(&self, key: LimitKey) -> Option<&AtomicU64> {
        self.0.get(usize::try_from(key.0 % KEY_EPOCHS).ok()?)
    }
}

/// What was to be seen at one time of where the states of some keys are.
#[derive(Debug, Default)]
pub struct OwnershipEpoch {
    ring_changes: u64,
    /// How often each had been given away.
    keys: SmallVec<[(LimitKey, u64); 4]>,
}

impl OwnershipEpoch {
    /// Only the keys at these positions.
    pub fn only(&self, positions: &[usize]) -> Self {
        let keys = positions.iter().filter_map(|position| self.keys.get(*position).copied());
        Self { ring_changes: self.ring_changes, keys: keys.collect() }
    }
}

#[derive(Default)]
struct Past {
    /// The rings before, of whose states some may not have been pushed yet; the last one last.
    rings: Vec<Arc<Ring>>,
    /// When the last one was left.
    ring_changed: Nanos,
    /// States that were given to who does not own them.
    lent: HashMap<LimitKey, Lent>,
    /// Those who see other members, or have states that belong elsewhere: they may decide on keys that this node owns.
    differing: Vec<SocketAddr>,
    /// Who asked something while it saw other members, and when.
    asked: HashMap<SocketAddr, Nanos>,
}

/// To whom a state was given, and when.
type Lent = (SocketAddr, Nanos);

/// How many states went and came.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) pushed: AtomicU64,
    pub(super) given: AtomicU64,
    pub(super) received: AtomicU64,
    pub(super) merged: AtomicU64,
    pub(super) unknown: AtomicU64,
}

impl Counts {
    pub(super) fn read(&self) -> MigrationCounts {
        let [pushed, given, received, merged, unknown] =
            [&self.pushed, &self.given, &self.received, &self.merged, &self.unknown]
                .map(|count| count.load(Ordering::Relaxed));
        MigrationCounts { pushed, given, received, merged, unknown }
    }
}

/// So many are told apart.
const KEY_EPOCHS: u128 = 4096;
/// So many changes of the members are remembered while states move. What an earlier owner still has comes by itself.
const MAX_RINGS: usize = 8;
/// How long what was lent, or is held, may not have been told of yet.
const LENT_FOR: Nanos = HEARTBEAT_INTERVAL
    .saturating_add(HEARTBEAT_INTERVAL)
    .saturating_add(HEARTBEAT_INTERVAL)
    .saturating_add(HEARTBEAT_INTERVAL);

/// Nodes that may have a state.
pub(super) type Sources = SmallVec<[SocketAddr; 2]>;

impl MigrationState {
    /// Whether a state that is not here may be elsewhere.
    pub(super) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// The members are others than in `before`. To be said before anybody sees who they are.
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

    /// Whether the members changed so lately that all are about to tell what they hold.
    pub(super) fn has_just_changed(&self, now: Nanos) -> bool {
        let past = self.past.lock();
        !past.rings.is_empty() && now.saturating_sub(past.ring_changed) < LENT_FOR
    }

    /// Forgets where states were before, once this node, if it `is_drained`, and all `peers` that answer have said that they
    /// have none of others' any more.
    pub(super) fn settle<'p>(&self, ring: &Ring, peers: impl Iterator<Item = &'p Peer>, is_drained: bool, now: Nanos) {
        let mut differing: HashSet<SocketAddr> = peers
            .filter(|peer| {
                peer.state.answers() && !peer.said.is_some_and(|said| said.drained && said.ring == ring.hash())
            })
            .map(|peer| peer.member.address)
            .collect();
        let mut past = self.past.lock();
        past.lent.retain(|_, (to, at)| differing.contains(to) || now.saturating_sub(*at) < LENT_FOR);
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

    /// The node at `from` asks something, and sees other members. To be said before it is answered.
    pub(super) fn asked_under_other_ring(&self, from: SocketAddr, now: Nanos) {
        let mut past = self.past.lock();
        if past.asked.insert(from, now).is_none() && !past.differing.contains(&from) {
            past.differing.push(from);
        }
        self.is_active.store(true, Ordering::Relaxed);
    }

    /// Whether the node at `address` answers, and sees other members or has states that belong elsewhere.
    pub(super) fn differs(&self, address: SocketAddr) -> bool {
        self.past.lock().differing.contains(&address)
    }

    /// Who may have the state of `key`, of the node `own`, which sees `ring`: the most probable first.
    pub(super) fn sources(&self, key: LimitKey, own: SocketAddr, ring: &Ring) -> Sources {
        let past = self.past.lock();
        let lent = past.lent.get(&key).map(|(to, _)| *to);
        let before = past.rings.iter().rev().filter_map(|ring| ring.owner(key));
        let mut sources = Sources::new();
        for source in lent.into_iter().chain(ring.owner(key)).chain(before).chain(past.differing.iter().copied()) {
            if source != own && !sources.contains(&source) {
                sources.push(source);
            }
        }
        sources
    }

    /// The state of `key` is given to `to`, which does not own it in this node's eyes. Whom it was lent to before.
    pub(super) fn lend(&self, key: LimitKey, to: SocketAddr, now: Nanos) -> Option<Lent> {
        let before = self.past.lock().lent.insert(key, (to, now));
        self.is_active.store(true, Ordering::Relaxed);
        before
    }

    /// The state of `key` was not there to be lent: it is where it was before.
    pub(super) fn keep(&self, key: LimitKey, before: Option<Lent>) {
        let lent = &mut self.past.lock().lent;
        match before {
            Some(before) => lent.insert(key, before),
            None => lent.remove(&key),
        };
    }

    // === one at a time ===

    /// The state of `key` is going to be given away. To be said before it is taken out, and once it is known where to ask
    /// for it.
    pub(super) fn count_departure(&self, key: LimitKey) {
        if let Some(count) = self.departure_count.of(key) {
            count.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Where the states of `keys` are, for [`MigrationState::may_have_moved`].
    pub(super) fn ownership_epoch(&self, keys: impl Iterator<Item = LimitKey>) -> OwnershipEpoch {
        let ring_changes = self.ring_changes.load(Ordering::SeqCst);
        OwnershipEpoch { ring_changes, keys: keys.map(|key| (key, self.departure_count(key))).collect() }
    }

    /// Whether the state of the key at this position may be elsewhere since it was `epoch`: it was given away, or the members
    /// changed, and this node may own now what another one has.
    pub(super) fn may_have_moved(&self, epoch: &OwnershipEpoch, position: usize) -> bool {
        let Some((key, before)) = epoch.keys.get(position) else { return false };
        self.ring_changes.load(Ordering::SeqCst) != epoch.ring_changes || self.departure_count(*key) != *before
    }

    fn departure_count(&self, key: LimitKey) -> u64 {
        self.departure_count.of(key).map_or(0, |count| count.load(Ordering::SeqCst))
    }

    /// The state of `key` is going to leave this node.
    pub(super) fn begin_push(&self, key: LimitKey) {
        self.pushing.lock().insert(key);
        self.count_departure(key);
    }

    /// All that left has arrived, or is back.
    pub(super) fn end_push(&self) {
        self.pushing.lock().clear();
        self.moved.notify_waiters();
    }

    /// Asks for the state of `key`, unless somebody does; then returns when that has ended, and at the latest after
    /// `patience`.
    pub(super) async fn begin_fetch(&self, key: LimitKey, patience: Nanos) -> Option<Fetch<'_>> {
        if self.fetching.lock().insert(key) {
            return Some(Fetch { migration: self, key });
        }
        self.wait_until(|| !self.fetching.lock().contains(&key), patience).await;
        None
    }

    /// Whether any state is being asked for.
    pub(super) fn is_fetching(&self) -> bool {
        !self.fetching.lock().is_empty()
    }

    /// Returns once the state of `key` is not on its way any more, and at the latest after `patience`; `first`: well before
    /// that while it is being asked for, because of two nodes that ask each other one must not wait for the other.
    pub(super) async fn wait_until_at_rest(&self, key: LimitKey, first: bool, patience: Nanos) {
        let has_come = || !self.fetching.lock().contains(&key);
        let patience_with_coming = if first { Nanos::new(patience.get() / 8) } else { patience };
        self.wait_until(has_come, patience_with_coming).await;
        self.wait_until(|| !self.is_being_pushed(key) && (first || has_come()), patience).await;
    }

    /// Returns once the state of `key` is not on its way out any more, and at the latest after `patience`.
    pub(super) async fn wait_until_pushed(&self, key: LimitKey, patience: Nanos) {
        self.wait_until(|| !self.is_being_pushed(key), patience).await;
    }

    /// Whether the state of `key` is on its way out.
    pub(super) fn is_being_pushed(&self, key: LimitKey) -> bool {
        self.pushing.lock().contains(&key)
    }

    /// Returns once `holds`, which is looked at whenever something has moved or settled, and at the latest after
    /// `patience`.
    pub(super) async fn wait_until(&self, holds: impl Fn() -> bool, patience: Nanos) {
        drop(timeout(patience.to_duration(), self.wait(holds)).await);
    }

    async fn wait(&self, holds: impl Fn() -> bool) {
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

/// A state that is being asked for, until dropped.
pub(super) struct Fetch<'m> {
    migration: &'m MigrationState,
    key: LimitKey,
}

impl Drop for Fetch<'_> {
    fn drop(&mut self) {
        self.migration.fetching.lock().remove(&self.key);
        self.migration.moved.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
