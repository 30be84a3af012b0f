//! Carries states to where they belong, and from where they may be to where they are needed.

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_trait::async_trait;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::{sleep, timeout};

use super::desk::Desk;
use super::members::BEAT;
use super::moving::{Received, Seen, Walk};
use super::peer::Peer;
use super::ring::RingHash;
use super::serve::{Carrier, MOST_TRIES};
use super::wire::{Answer, Ask, Identity, SPEAKS_WITHIN, States, Taken};
use super::{Node, View};
use crate::units::{LimitKey, Nanos};

/// A key of which a state is wanted, and the limit that it belongs to.
pub(super) type Wanted = (Arc<Identity>, LimitKey);

/// How long a part of what is pushed may take to arrive.
const ARRIVES_WITHIN: Nanos = Nanos::SECOND;
/// How often gateways tell each other what their requests still hold: each slot once in one or two of these times.
const SPEAKS_EVERY: Nanos = Nanos::new(SPEAKS_WITHIN.get() / 2);

#[async_trait]
impl Carrier for Node {
    fn may_be_elsewhere(&self, ring: RingHash) -> bool {
        self.moving.is_going_on() || ring.0 != self.asking.ring.load(Ordering::Relaxed)
    }

    async fn gather(&self, wanted: Vec<Wanted>) {
        for (limit, key) in wanted {
            let holds = limit.holds();
            self.fetch(limit, key).await;
            if holds {
                self.hear_all(key).await;
            }
        }
    }

    async fn hear_all(&self, key: LimitKey) {
        let own = self.asking.own.address;
        let waits = self.moving.has_just_turned(self.asking.clock.now());
        let have_told = || {
            let view = self.view.load();
            let mut sources = self.moving.sources(key, own, &view.ring);
            // of those before, a gateway that can tell nobody what it holds keeps none waiting for good
            sources.retain(|source| waits || view.ring.owner(key) == Some(*source));
            sources.iter().all(|source| view.peers.get(source).is_some_and(|peer| peer.is_reachable()))
        };
        // who asked this gateway waits too
        self.moving.once(have_told, Nanos::new(self.asking.timeout.get() / 2)).await;
    }

    fn stands_in(&self) {
        self.stands_in.store(true, Ordering::Relaxed);
    }

    fn owns(&self, key: LimitKey) -> bool {
        self.view.load().ring.owner(key) == Some(self.asking.own.address)
    }

    fn seen(&self, keys: &[(u32, LimitKey)]) -> Seen {
        self.moving.seen(keys.iter().map(|(_, key)| *key))
    }

    fn has_left(&self, seen: &Seen, position: usize) -> bool {
        self.moving.has_left(seen, position)
    }

    async fn give(&self, to: SocketAddr, limit: &Identity, key: LimitKey) -> Taken {
        let own = self.asking.own.address;
        let mut taken = Taken::Nothing;
        // it may be pushed just before it is taken
        for _ in 0..MOST_TRIES {
            self.moving.rests(key, own < to, self.asking.timeout).await;
            taken = self.take_out(to, limit, key);
            if matches!(taken, Taken::State(_)) || !self.moving.is_leaving(key) {
                break;
            }
        }
        taken
    }

    fn receive(&self, states: &States, ring: RingHash) {
        let Some(desk) = self.desk() else { return };
        let now = self.asking.clock.now();
        self.note(&desk.put(states, now));
        if ring.0 != self.asking.ring.load(Ordering::Relaxed) {
            // some of them may belong elsewhere in this node's eyes, and go there with the next beat
            self.members.lock().untidied();
        }
    }
}

impl Node {
    fn desk(&self) -> Option<Arc<dyn Desk>> {
        self.desk.get()?.upgrade()
    }

    fn note(&self, received: &Received) {
        let counts = &self.moving.counts;
        counts.received.fetch_add(received.kept, Ordering::Relaxed);
        counts.merged.fetch_add(received.merged, Ordering::Relaxed);
        counts.unknown.fetch_add(received.unknown, Ordering::Relaxed);
    }

    /// Takes the state of `key` out of this node's for `to`.
    fn take_out(&self, to: SocketAddr, limit: &Identity, key: LimitKey) -> Taken {
        let is_lent = self.view.load().ring.owner(key) != Some(to);
        let before = if is_lent { self.moving.lend(key, to, self.asking.clock.now()) } else { None };
        self.moving.departs(key);
        let Some(states) = self.desk().and_then(|desk| desk.take(limit, key)) else {
            if is_lent {
                self.moving.keep(key, before);
            }
            return Taken::Nothing;
        };
        self.moving.counts.given.fetch_add(states.count, Ordering::Relaxed);
        Taken::State(states)
    }

    /// Brings the state of `key` here, from wherever it is. Waits for each who may have it as long as for a decision.
    async fn fetch(&self, limit: Arc<Identity>, key: LimitKey) {
        let Some(_coming) = self.moving.comes(key, self.asking.timeout).await else { return };
        if self.gate.is_closed() {
            return;
        }
        // what is on its way out has to arrive before it can come back
        self.moving.has_arrived(key, self.asking.timeout).await;
        let view = self.view.load_full();
        let mut taking = JoinSet::new();
        for source in self.moving.sources(key, self.asking.own.address, &view.ring) {
            // one that has just come can ask before it can be asked
            let is_coming = |peer: &Peer| !peer.is_connected() && self.moving.differs(source);
            let peer = view.peers.get(&source).filter(|peer| peer.is_reachable() || is_coming(peer));
            if let Some((peer, node)) = peer.cloned().zip(self.this.upgrade()) {
                let limit = Arc::clone(&limit);
                taking.spawn(async move { node.take(&peer, &limit, key).await });
            }
        }
        taking.join_all().await;
    }

    /// Puts in what `peer` has as soon as it comes, whoever still waits for it.
    async fn take(self: Arc<Self>, peer: &Arc<Peer>, limit: &Arc<Identity>, key: LimitKey) {
        let (sender, receiver) = oneshot::channel();
        let node = Arc::clone(&self);
        let told = move |answer| {
            let received = match answer {
                Some(Answer::Taken(Taken::State(states))) => {
                    let received = node.desk().map(|desk| desk.put(&states, node.asking.clock.now()));
                    if node.view.load().ring.owner(key) != Some(node.asking.own.address) {
                        // it was asked for by who sees other members, and goes on with the next beat
                        node.members.lock().untidied();
                    }
                    received
                }
                _ => None,
            };
            received.iter().for_each(|received| node.note(received));
            drop(sender.send(received));
        };
        let limit = Identity::clone(limit);
        let taking = async {
            peer.connected().await;
            if peer.ask(&|| Ask::Take { limit: limit.clone(), key }, Box::new(told)) {
                drop(receiver.await);
            }
        };
        drop(timeout(self.asking.timeout.to_duration(), taking).await);
    }

    // === what requests hold ===

    /// Tells the others from time to time what requests here hold, and that this is all, until dropped.
    pub(super) async fn speak_for_held(&self) {
        loop {
            drop(timeout(SPEAKS_EVERY.to_duration(), self.moving.speak.notified()).await);
            let since = self.asking.clock.now().saturating_sub(SPEAKS_EVERY);
            if self.tell_held(since).await {
                for peer in self.view.load().peers.values() {
                    // who is not reached believes what it was told before
                    peer.ask(&|| Ask::Spoken, Box::new(drop));
                }
            }
        }
    }

    /// Tells the owners of keys what requests here hold of these, unless they know since `since`. Whether all know now.
    async fn tell_held(&self, since: Nanos) -> bool {
        let Some(desk) = self.desk() else { return true };
        let ring = self.view.load().ring.hash();
        let mut telling = JoinSet::new();
        for (peer, states) in desk.running(since, self.asking.clock.now()) {
            telling.spawn(async move {
                let is_told = put(&peer, &states, ring).await;
                (peer.number, states, is_told)
            });
        }
        let mut all_know = true;
        while let Some(told) = telling.join_next().await {
            match told {
                Ok((peer, states, true)) => desk.told(peer, &states, self.asking.clock.now()),
                Ok((.., false)) | Err(_) => all_know = false,
            }
        }
        all_know
    }

    // === pushing ===

    /// Pushes whatever belongs elsewhere, whenever there may be something, until dropped.
    pub(super) async fn push(&self) {
        loop {
            self.moving.push.notified().await;
            while !self.push_all().await {
                sleep(BEAT.to_duration()).await;
            }
        }
    }

    /// Searches the whole store. Whether nothing is left in it that belongs elsewhere.
    async fn push_all(&self) -> bool {
        let Some(desk) = self.desk() else { return true };
        let view = self.view.load_full();
        let before = self.members.lock().times_untidied();
        let mut walk = Walk::default();
        // before the states in which it is counted: whoever has heard of all this knows what runs
        let mut is_all = self.tell_held(Nanos::ZERO).await;
        while !walk.is_over {
            if self.view.load().ring.hash() != view.ring.hash() {
                return false;
            }
            is_all &= self.push_some(&desk, &view, &mut walk).await;
        }
        if is_all {
            self.members.lock().tidied(view.ring.hash(), before, self.asking.clock.now());
            self.look();
        }
        is_all
    }

    /// The same for a part of the store. It is searched on a thread of its own: others are answered meanwhile.
    async fn push_some(&self, desk: &Arc<dyn Desk>, view: &Arc<View>, walk: &mut Walk) -> bool {
        let peers: Arc<[Arc<Peer>]> = view.peers.values().filter(|peer| peer.is_reachable()).cloned().collect();
        let Some(node) = self.this.upgrade() else { return true };
        let (searched, seen, reachable, mut at) =
            (Arc::clone(desk), Arc::clone(view), Arc::clone(&peers), std::mem::take(walk));
        let search = move || {
            let (own, is_all) = (node.asking.own.address, Cell::new(true));
            let to = |key: LimitKey| {
                let owner = seen.ring.owner(key).filter(|owner| *owner != own)?;
                let place = reachable.iter().position(|peer| peer.address == owner);
                match place {
                    Some(_) => node.moving.leaves(key),
                    // until it can be reached, or is no member any more
                    None => is_all.set(false),
                }
                place
            };
            let parts = searched.take_moved(&mut at, &to, node.asking.clock.now());
            (at, parts, is_all.get())
        };
        let Ok((at, parts, mut is_all)) = spawn_blocking(search).await else { return false };
        *walk = at;
        let ring = view.ring.hash();
        let mut sending = JoinSet::new();
        for (place, states) in parts {
            let Some(peer) = peers.get(place).map(Arc::clone) else { continue };
            sending.spawn(async move {
                let has_arrived = put(&peer, &states, ring).await;
                (states, has_arrived)
            });
        }
        while let Some(sent) = sending.join_next().await {
            match sent {
                Ok((states, true)) => {
                    self.moving.counts.pushed.fetch_add(states.count, Ordering::Relaxed);
                }
                Ok((states, false)) => {
                    desk.put(&states, self.asking.clock.now());
                    is_all = false;
                }
                Err(_) => is_all = false,
            }
        }
        self.moving.left();
        is_all
    }
}

/// Whether `peer`, which owns them in the eyes of who sees `ring`, has the states now.
async fn put(peer: &Arc<Peer>, states: &States, ring: RingHash) -> bool {
    let (sender, receiver) = oneshot::channel();
    let told = move |answer| drop(sender.send(answer));
    let asked = peer.ask(&|| Ask::Put { ring, states: states.clone() }, Box::new(told));
    asked && matches!(timeout(ARRIVES_WITHIN.to_duration(), receiver).await, Ok(Ok(Some(Answer::Done))))
}
