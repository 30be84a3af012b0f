//! Where states are that are not where they belong: on their way, or with whoever owned them before.
//!
//! The state of a key is in one place, and moves to whoever has to decide. When the members change, each node pushes what
//! others own now ([`Walk`]); a node that has to decide before that has come to it takes the state of that key from where
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

use super::Moved;
use super::members::{BEAT, Peer};
use super::ring::Ring;
use crate::units::{LimitKey, Nanos};

/// How far a store has been searched for states that belong elsewhere.
#[derive(Debug, Default)]
pub struct Walk {
    /// The part of the store that comes next.
    pub next: usize,
    /// Whether there is none.
    pub is_over: bool,
}

/// What became of states that came in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// They are here now.
    pub kept: u64,
    /// They are merged into those that were here.
    pub merged: u64,
    /// This program does not understand them.
    pub unknown: u64,
}

/// Where states may be that are not here. See the module.
#[derive(Default)]
pub(super) struct Moving {
    past: Mutex<Past>,
    /// Whether anything may be elsewhere: read for every request.
    is_going_on: AtomicBool,
    /// How often the members have changed.
    turns: AtomicU64,
    /// Keys whose states are on their way out, and not known to have arrived.
    leaving: Mutex<HashSet<LimitKey>>,
    /// Keys whose states are being asked for.
    coming: Mutex<HashSet<LimitKey>>,
    departures: Departures,
    /// One of these has ended, or more is known of where states may be.
    moved: Notify,
    /// There may be something to push.
    pub(super) push: Notify,
    /// Something is held that who owns its key has not been told of.
    pub(super) speak: Notify,
    pub(super) counts: Counts,
}

/// How often states were given away, by some bits of their keys: who decides on one sees whether it went meanwhile.
struct Departures(Box<[AtomicU64]>);

impl Default for Departures {
    fn default() -> Self {
        Self((0..DEPARTURES).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Departures {
    fn of(&self, key: LimitKey) -> Option<&AtomicU64> {
        self.0.get(usize::try_from(key.0 % DEPARTURES).ok()?)
    }
}

/// What was to be seen at one time of where the states of some keys are.
#[derive(Debug, Default)]
pub struct Seen {
    turns: u64,
    /// How often each had been given away.
    keys: SmallVec<[(LimitKey, u64); 4]>,
}

impl Seen {
    /// Only the keys at these positions.
    pub fn only(&self, positions: &[usize]) -> Self {
        let keys = positions.iter().filter_map(|position| self.keys.get(*position).copied());
        Self { turns: self.turns, keys: keys.collect() }
    }
}

#[derive(Default)]
struct Past {
    /// The rings before, of whose states some may not have been pushed yet; the last one last.
    rings: Vec<Arc<Ring>>,
    /// When the last one was left.
    turned: Nanos,
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
    pub(super) fn read(&self) -> Moved {
        let [pushed, given, received, merged, unknown] =
            [&self.pushed, &self.given, &self.received, &self.merged, &self.unknown]
                .map(|count| count.load(Ordering::Relaxed));
        Moved { pushed, given, received, merged, unknown }
    }
}

/// So many are told apart.
const DEPARTURES: u128 = 4096;
/// So many changes of the members are remembered while states move. What an earlier owner still has comes by itself.
const MOST_RINGS: usize = 8;
/// How long what was lent, or is held, may not have been told of yet.
const LENT: Nanos = BEAT.saturating_add(BEAT).saturating_add(BEAT).saturating_add(BEAT);

/// Nodes that may have a state.
pub(super) type Sources = SmallVec<[SocketAddr; 2]>;

impl Moving {
    /// Whether a state that is not here may be elsewhere.
    pub(super) fn is_going_on(&self) -> bool {
        self.is_going_on.load(Ordering::Relaxed)
    }

    /// The members are others than in `before`. To be said before anybody sees who they are.
    pub(super) fn turned(&self, before: &Arc<Ring>, now: Nanos) {
        let mut past = self.past.lock();
        past.turned = now;
        if past.rings.len() >= MOST_RINGS {
            past.rings.remove(0);
        }
        past.rings.push(Arc::clone(before));
        self.is_going_on.store(true, Ordering::Relaxed);
        self.turns.fetch_add(1, Ordering::SeqCst);
        self.push.notify_one();
    }

    /// Whether the members changed so lately that all are about to tell what they hold.
    pub(super) fn has_just_turned(&self, now: Nanos) -> bool {
        let past = self.past.lock();
        !past.rings.is_empty() && now.saturating_sub(past.turned) < LENT
    }

    /// Forgets where states were before, once this node, if it `is_tidy`, and all `peers` that answer have said that they
    /// have none of others' any more.
    pub(super) fn settle<'p>(&self, ring: &Ring, peers: impl Iterator<Item = &'p Peer>, is_tidy: bool, now: Nanos) {
        let mut differing: HashSet<SocketAddr> = peers
            .filter(|peer| peer.state.answers() && !peer.said.is_some_and(|said| said.tidy && said.ring == ring.hash()))
            .map(|peer| peer.member.address)
            .collect();
        let mut past = self.past.lock();
        past.lent.retain(|_, (to, at)| differing.contains(to) || now.saturating_sub(*at) < LENT);
        past.asked.retain(|_, at| now.saturating_sub(*at) < LENT);
        differing.extend(past.asked.keys());
        if is_tidy && differing.is_empty() {
            past.rings.clear();
        }
        past.differing = differing.into_iter().collect();
        let is_going_on = !past.rings.is_empty() || !past.lent.is_empty() || !past.differing.is_empty();
        self.is_going_on.store(is_going_on, Ordering::Relaxed);
        drop(past);
        self.moved.notify_waiters();
    }

    /// The node at `from` asks something, and sees other members. To be said before it is answered.
    pub(super) fn asks_otherwise(&self, from: SocketAddr, now: Nanos) {
        let mut past = self.past.lock();
        if past.asked.insert(from, now).is_none() && !past.differing.contains(&from) {
            past.differing.push(from);
        }
        self.is_going_on.store(true, Ordering::Relaxed);
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
        self.is_going_on.store(true, Ordering::Relaxed);
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
    pub(super) fn departs(&self, key: LimitKey) {
        if let Some(count) = self.departures.of(key) {
            count.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Where the states of `keys` are, for [`Moving::has_left`].
    pub(super) fn seen(&self, keys: impl Iterator<Item = LimitKey>) -> Seen {
        let turns = self.turns.load(Ordering::SeqCst);
        Seen { turns, keys: keys.map(|key| (key, self.departures(key))).collect() }
    }

    /// Whether the state of the key at this position may be elsewhere since it was `seen`: it was given away, or the members
    /// changed, and this node may own now what another one has.
    pub(super) fn has_left(&self, seen: &Seen, position: usize) -> bool {
        let Some((key, before)) = seen.keys.get(position) else { return false };
        self.turns.load(Ordering::SeqCst) != seen.turns || self.departures(*key) != *before
    }

    fn departures(&self, key: LimitKey) -> u64 {
        self.departures.of(key).map_or(0, |count| count.load(Ordering::SeqCst))
    }

    /// The state of `key` is going to leave this node.
    pub(super) fn leaves(&self, key: LimitKey) {
        self.leaving.lock().insert(key);
        self.departs(key);
    }

    /// All that left has arrived, or is back.
    pub(super) fn left(&self) {
        self.leaving.lock().clear();
        self.moved.notify_waiters();
    }

    /// Asks for the state of `key`, unless somebody does; then returns when that has ended, and at the latest after
    /// `patience`.
    pub(super) async fn comes(&self, key: LimitKey, patience: Nanos) -> Option<Coming<'_>> {
        if self.coming.lock().insert(key) {
            return Some(Coming { moving: self, key });
        }
        self.once(|| !self.coming.lock().contains(&key), patience).await;
        None
    }

    /// Whether any state is being asked for.
    pub(super) fn is_bringing(&self) -> bool {
        !self.coming.lock().is_empty()
    }

    /// Returns once the state of `key` is not on its way any more, and at the latest after `patience`; `first`: well before
    /// that while it is being asked for, because of two nodes that ask each other one must not wait for the other.
    pub(super) async fn rests(&self, key: LimitKey, first: bool, patience: Nanos) {
        let has_come = || !self.coming.lock().contains(&key);
        let patience_with_coming = if first { Nanos::new(patience.get() / 8) } else { patience };
        self.once(has_come, patience_with_coming).await;
        self.once(|| !self.is_leaving(key) && (first || has_come()), patience).await;
    }

    /// Returns once the state of `key` is not on its way out any more, and at the latest after `patience`.
    pub(super) async fn has_arrived(&self, key: LimitKey, patience: Nanos) {
        self.once(|| !self.is_leaving(key), patience).await;
    }

    /// Whether the state of `key` is on its way out.
    pub(super) fn is_leaving(&self, key: LimitKey) -> bool {
        self.leaving.lock().contains(&key)
    }

    /// Returns once `holds`, which is looked at whenever something has moved or settled, and at the latest after
    /// `patience`.
    pub(super) async fn once(&self, holds: impl Fn() -> bool, patience: Nanos) {
        drop(timeout(patience.to_duration(), self.until(holds)).await);
    }

    async fn until(&self, holds: impl Fn() -> bool) {
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
pub(super) struct Coming<'m> {
    moving: &'m Moving,
    key: LimitKey,
}

impl Drop for Coming<'_> {
    fn drop(&mut self) {
        self.moving.coming.lock().remove(&self.key);
        self.moving.moved.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
