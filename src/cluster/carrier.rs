//! Carries states to where they belong, and from where they may be to where they are needed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use tokio::sync::oneshot;
use tokio::task::{JoinSet, yield_now};
use tokio::time::{sleep, timeout};

use super::members::BEAT;
use super::moving::{Received, Walk};
use super::peer::Peer;
use super::ring::RingHash;
use super::serve::{Carrier, Desk};
use super::wire::{Answer, Ask, Identity, States, Taken};
use super::{Node, View};
use crate::units::{LimitKey, Nanos};

/// A key of which a state is wanted, and the limit that it belongs to.
pub(super) type Wanted = (Arc<Identity>, LimitKey);

/// How long a part of what is pushed may take to arrive.
const ARRIVES_WITHIN: Nanos = Nanos::SECOND;

#[async_trait]
impl Carrier for Node {
    fn may_be_elsewhere(&self, ring: RingHash) -> bool {
        self.moving.is_going_on() || ring.0 != self.asking.ring.load(Ordering::Relaxed)
    }

    async fn gather(&self, wanted: Vec<Wanted>) {
        for (limit, key) in wanted {
            self.fetch(limit, key).await;
        }
    }

    async fn give(&self, to: SocketAddr, limit: &Identity, key: LimitKey) -> Taken {
        let own = self.asking.own.address;
        self.moving.rests(key, own < to, self.asking.timeout).await;
        let Some(states) = self.desk().and_then(|desk| desk.take(limit, key)) else { return Taken::Nothing };
        if self.view.load().ring.owner(key) != Some(to) {
            self.moving.lend(key, to, self.asking.clock.now());
        }
        self.moving.counts.given.fetch_add(states.count, Ordering::Relaxed);
        Taken::State(states)
    }

    fn receive(&self, all: &[States], ring: RingHash) {
        let Some(desk) = self.desk() else { return };
        all.iter().for_each(|states| self.note(&desk.put(states)));
        if ring.0 != self.asking.ring.load(Ordering::Relaxed) {
            // some of them may belong elsewhere in this node's eyes
            self.members.lock().untidied();
            self.moving.push.notify_one();
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
        counts.stale.fetch_add(received.known, Ordering::Relaxed);
        counts.unknown.fetch_add(received.unknown, Ordering::Relaxed);
    }

    /// Brings the state of `key` here, from wherever it is. Waits for each who may have it as long as for a decision.
    async fn fetch(&self, limit: Arc<Identity>, key: LimitKey) {
        let Some(_coming) = self.moving.comes(key, self.asking.timeout).await else { return };
        let view = self.view.load_full();
        for source in self.moving.sources(key, self.asking.own.address, &view.ring) {
            let Some(peer) = view.peers.get(&source).filter(|peer| peer.is_reachable()) else { continue };
            if self.take(peer, &limit, key).await {
                return;
            }
        }
    }

    /// Whether the state was there. It is put in as soon as it comes, whoever still waits for it.
    async fn take(&self, peer: &Arc<Peer>, limit: &Arc<Identity>, key: LimitKey) -> bool {
        let (sender, receiver) = oneshot::channel();
        let Some(node) = self.this.upgrade() else { return false };
        let told = move |answer| {
            let received = match answer {
                Some(Answer::Taken(Taken::State(states))) => node.desk().map(|desk| desk.put(&states)),
                _ => None,
            };
            received.iter().for_each(|received| node.note(received));
            drop(sender.send(received));
        };
        let limit = Identity::clone(limit);
        let asked = peer.ask(&|| Ask::Take { limit: limit.clone(), key }, Box::new(told));
        asked && matches!(timeout(self.asking.timeout.to_duration(), receiver).await, Ok(Ok(Some(_))))
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
        let mut walk = Walk::default();
        let mut is_all = true;
        while !walk.is_over {
            if self.view.load().ring.hash() != view.ring.hash() {
                return false;
            }
            is_all &= self.push_some(&desk, &view, &mut walk).await;
            // others have something to do too
            yield_now().await;
        }
        if is_all {
            self.members.lock().tidied(view.ring.hash(), self.asking.clock.now());
            self.look();
        }
        is_all
    }

    /// The same for a part of the store.
    async fn push_some(&self, desk: &Arc<dyn Desk>, view: &View, walk: &mut Walk) -> bool {
        let own = self.asking.own.address;
        let peers: Vec<&Arc<Peer>> = view.peers.values().filter(|peer| peer.is_reachable()).collect();
        let is_all = AtomicBool::new(true);
        let to = |key: LimitKey| {
            let owner = view.ring.owner(key).filter(|owner| *owner != own)?;
            let place = peers.iter().position(|peer| peer.address == owner);
            match place {
                Some(_) => self.moving.leaves(key),
                // until it can be reached, or is no member any more
                None => is_all.store(false, Ordering::Relaxed),
            }
            place
        };
        let parts = desk.take_moved(walk, &to, self.asking.clock.now());
        let mut sending = JoinSet::new();
        for (place, states) in parts {
            let Some(peer) = peers.get(place).map(|peer| Arc::clone(peer)) else { continue };
            sending.spawn(async move {
                let has_arrived = put(&peer, &states).await;
                (states, has_arrived)
            });
        }
        while let Some(sent) = sending.join_next().await {
            match sent {
                Ok((states, true)) => {
                    self.moving.counts.pushed.fetch_add(states.count, Ordering::Relaxed);
                }
                Ok((states, false)) => {
                    desk.put(&states);
                    is_all.store(false, Ordering::Relaxed);
                }
                Err(_) => is_all.store(false, Ordering::Relaxed),
            }
        }
        self.moving.left();
        is_all.into_inner()
    }
}

/// Whether `peer` has the states now.
async fn put(peer: &Arc<Peer>, states: &States) -> bool {
    let (sender, receiver) = oneshot::channel();
    let told = move |answer| drop(sender.send(answer));
    let asked = peer.ask(&|| Ask::Put(vec![states.clone()]), Box::new(told));
    asked && matches!(timeout(ARRIVES_WITHIN.to_duration(), receiver).await, Ok(Ok(Some(Answer::Done))))
}
