//! Pushes states to their owners, and fetches states about which this gateway has to decide.

use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::{MutexGuard, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::members::HEARTBEAT_INTERVAL;
use super::migration::{Fetch, StoreCursor};
use super::peer::Peer;
use super::ring::RingHash;
use super::state_service::StateService;
use super::wire::{Answer, Ask, LimitIdentity, SLOTS_ANNOUNCED_WITHIN, StateBatch, TakenState};
use super::{Cluster, View};
use crate::units::{LimitKey, Nanos};

/// A limit, and a key of it whose state is not here.
pub(super) type MissingState = (Arc<LimitIdentity>, LimitKey);

/// The maximum time for one part of a push to arrive.
const ARRIVES_WITHIN: Nanos = Nanos::SECOND;
/// How often `give` looks for a state that a push has taken out and may put back.
const MAX_TRIES: usize = 4;
/// How often a gateway reports its slots: each slot once in one or two of these intervals.
const ANNOUNCE_SLOTS_EVERY: Nanos = Nanos::new(SLOTS_ANNOUNCED_WITHIN.get() / 2);

impl Cluster {
    /// Whether another gateway may have a state that is not here, for a request of a gateway that sees `ring`.
    pub(super) fn may_be_elsewhere(&self, ring: RingHash) -> bool {
        self.migration.is_active() || ring.0 != self.context.ring.load(Ordering::Relaxed)
    }

    /// Fetches states from the gateways that may have them. The states stay here until the caller drops the result.
    pub async fn fetch_states(self: &Arc<Self>, wanted: Vec<MissingState>) -> Vec<Fetch> {
        let (mut fetches, mut gathering, count) = (Vec::new(), JoinSet::new(), wanted.len());
        for (limit, key) in wanted {
            let cluster = Arc::clone(self);
            gathering.spawn(async move {
                let holds = limit.holds_slots();
                let fetch = cluster.fetch(limit, key).await;
                if holds {
                    cluster.wait_for_reports(key).await;
                }
                fetch
            });
        }
        let fetching = async {
            while let Some(fetch) = gathering.join_next().await {
                fetches.extend(fetch);
            }
        };
        // the gateway that sent this request has a timeout as well
        if timeout(self.context.timeout.to_duration() / 2, fetching).await.is_err() {
            let unfetched = u64::try_from(count.saturating_sub(fetches.len())).unwrap_or(u64::MAX);
            self.counts.unfetched.fetch_add(unfetched, Ordering::Relaxed);
        }
        fetches
    }

    /// Counts charges that this gateway decides in place of the owners of their keys.
    pub(super) fn count_stand_ins(&self, charges: u64) {
        self.counts.stood_in.fetch_add(charges, Ordering::Relaxed);
        self.note_stand_in();
    }

    /// Notes that this gateway charges a key that another gateway owns: the state is pushed there.
    pub(super) fn note_stand_in(&self) {
        self.note_stand_in.store(true, Ordering::Relaxed);
    }

    /// Whether this gateway owns `key`.
    pub fn owns(&self, key: LimitKey) -> bool {
        self.view.load().ring.owner(key) == Some(self.context.own.address)
    }

    /// The owner of `key`, if that is another gateway that this one can reach.
    pub(super) fn reachable_owner(&self, key: LimitKey) -> Option<SocketAddr> {
        let view = self.view.load();
        let owner = view.ring.owner(key).filter(|owner| *owner != self.context.own.address)?;
        view.peers.get(&owner).is_some_and(|peer| peer.is_reachable()).then_some(owner)
    }

    /// Gives the state of `key` to `to`, which decides about the key from now on.
    pub(super) async fn give(&self, to: SocketAddr, limit: &LimitIdentity, key: LimitKey) -> TakenState {
        let own = self.context.own.address;
        let mut taken = TakenState::Nothing;
        for _ in 0..MAX_TRIES {
            self.migration.wait_until_at_rest(key, own < to, self.context.timeout).await;
            taken = self.take_out(to, limit, key);
            if matches!(taken, TakenState::State(_)) || !self.migration.is_being_pushed(key) {
                break;
            }
        }
        let since = self.context.clock.now().saturating_sub(self.context.timeout);
        if matches!(taken, TakenState::Nothing) && self.migration.has_left(key, since) {
            let sources = self.migration.sources(key, own, &self.view.load().ring);
            return TakenState::Moved(sources.into_iter().filter(|source| *source != to).collect());
        }
        taken
    }

    /// Stores the states that another gateway pushed because this one owns them under `ring`, the ring that
    /// the sender sees.
    pub(super) fn receive(&self, states: &StateBatch, ring: RingHash) {
        self.put(states);
        if ring.0 != self.context.ring.load(Ordering::Relaxed) {
            // in this gateway's view other gateways may own some of the states: the next push sends them there
            self.members.lock().set_undrained();
        }
    }
}

impl Cluster {
    /// Waits briefly for all gateways to report their slots of `key`, in case a gateway that has counted them is gone.
    async fn wait_for_reports(&self, key: LimitKey) {
        let own = self.context.own.address;
        let waits = self.migration.has_just_changed(self.context.clock.now());
        let have_told = || {
            let view = self.view.load();
            let mut sources = self.migration.sources(key, own, &view.ring);
            // an unreachable earlier owner must not delay decisions indefinitely
            sources.retain(|source| waits || view.ring.owner(key) == Some(*source));
            sources.iter().all(|source| view.peers.get(source).is_some_and(|peer| peer.is_reachable()))
        };
        // the gateway that sent this request has a timeout as well
        self.migration.wait_until(have_told, Nanos::new(self.context.timeout.get() / 2)).await;
    }

    pub(super) fn service(&self) -> Option<Arc<dyn StateService>> {
        self.service.get()?.upgrade()
    }

    /// Stores the states that another gateway sent.
    fn put(&self, states: &StateBatch) {
        let Some(service) = self.service() else { return };
        let received = service.put(states, self.context.clock.now());
        let counts = &self.migration.counts;
        counts.received.fetch_add(received.kept, Ordering::Relaxed);
        counts.merged.fetch_add(received.merged, Ordering::Relaxed);
        counts.unknown.fetch_add(received.unknown, Ordering::Relaxed);
        self.migration.moved.notify_waiters();
    }

    /// Takes the state of `key` out of the store for `to`.
    fn take_out(&self, to: SocketAddr, limit: &LimitIdentity, key: LimitKey) -> TakenState {
        if self.view.load().ring.owner(key) != Some(to) {
            self.migration.lend(key, to, self.context.clock.now());
        }
        self.migration.count_departure(key);
        let leaves = || self.migration.note_gone(key, self.context.clock.now());
        let Some(states) = self.service().and_then(|service| service.take(limit, key, &leaves)) else {
            return TakenState::Nothing;
        };
        self.migration.counts.given.fetch_add(states.count, Ordering::Relaxed);
        TakenState::State(states)
    }

    /// Fetches the state of `key` from all gateways that may have it, until it has arrived from one of them or by a
    /// push. Waiting for the others as well would risk that another gateway fetches the state back in the meantime.
    /// But for a limit with slots, it waits for all, because each of them may have counted slots; for each as long
    /// as for a decision.
    async fn fetch(self: &Arc<Self>, limit: Arc<LimitIdentity>, key: LimitKey) -> Fetch {
        let fetch = self.migration.begin_fetch(key);
        if self.latch.is_closed() || !fetch.has_to_ask().await {
            return fetch;
        }
        // a pushed state has to arrive before the new owner can give it
        self.migration.wait_until_pushed(key, self.context.timeout).await;
        let view = self.view.load_full();
        let mut taking = JoinSet::new();
        for source in self.migration.sources(key, self.context.own.address, &view.ring) {
            // a gateway that has just started can send requests before this one has connected to it
            let is_coming = |peer: &Peer| !peer.is_connected() && self.migration.differs(source);
            let peer = view.peers.get(&source).filter(|peer| peer.is_reachable() || is_coming(peer));
            if let Some(peer) = peer.cloned() {
                let (cluster, limit) = (Arc::clone(self), Arc::clone(&limit));
                taking.spawn(async move { cluster.take(&peer, &limit, key).await });
            }
        }
        let has_come = || !limit.holds_slots() && self.service().is_some_and(|service| service.has_state(&limit, key));
        tokio::select! {
            () = self.migration.wait(has_come) => {}
            _ = taking.join_all() => {}
        }
        fetch.end();
        fetch
    }

    /// Asks `peer` for its state and stores it as soon as it arrives, whether a request still waits for it or not.
    async fn take(self: Arc<Self>, peer: &Arc<Peer>, limit: &Arc<LimitIdentity>, key: LimitKey) {
        let (sender, receiver) = oneshot::channel::<()>();
        let (cluster, wanted) = (Arc::clone(&self), Arc::clone(limit));
        let on_reply = move |answer| {
            match answer {
                Some(Answer::TakenState(TakenState::State(states))) => {
                    cluster.put(&states);
                    if cluster.view.load().ring.owner(key) != Some(cluster.context.own.address) {
                        // the gateway that needed it sees other members: the next push sends it to the owner
                        cluster.members.lock().set_undrained();
                    }
                }
                // unless the state has moved to this gateway
                Some(Answer::TakenState(TakenState::Moved(to)))
                    if !cluster.service().is_some_and(|service| service.has_state(&wanted, key)) =>
                {
                    cluster.migration.note_moved(key, &to, cluster.context.clock.now());
                }
                _ => {}
            }
            drop(sender);
        };
        let limit = LimitIdentity::clone(limit);
        let taking = async {
            peer.connected(|| self.migration.differs(peer.address)).await;
            if peer.ask(Ask::Take { limit, key }, Box::new(on_reply)) {
                drop(receiver.await);
            }
        };
        drop(timeout(self.context.timeout.to_duration(), taking).await);
    }

    // === slots of requests in flight ===

    /// Reports this process's slots to the other gateways regularly, and that the reports are complete, until dropped.
    pub(super) async fn announce_slots(self: Arc<Self>) {
        loop {
            drop(timeout(ANNOUNCE_SLOTS_EVERY.to_duration(), self.migration.announce.notified()).await);
            let since = self.context.clock.now().saturating_sub(ANNOUNCE_SLOTS_EVERY);
            if self.report_slots(since, ARRIVES_WITHIN).await {
                for peer in self.view.load().peers.values() {
                    // an unreachable gateway keeps the slots that were reported before
                    peer.ask(Ask::SlotsAnnounced, Box::new(drop));
                }
            }
        }
    }

    /// Reports this process's slots to the owners of their keys, except slots that were reported at `since` or later.
    /// Returns whether every owner now knows all of them.
    async fn report_slots(&self, since: Nanos, patience: Nanos) -> bool {
        let Some(service) = self.service() else { return true };
        let ring = self.view.load().ring.hash();
        let reported = |peer: &Peer, states: &StateBatch, has_arrived: bool| {
            if has_arrived {
                service.slots_reported(peer.number, states, self.context.clock.now());
            }
        };
        let slots = service.unreported_slots(since, self.context.clock.now());
        put_all(slots, ring, patience, reported).await
    }

    // === pushing ===

    /// Pushes states to the gateways that own them, whenever there may be some, until dropped.
    pub(super) async fn push(self: Arc<Self>) {
        loop {
            self.migration.push.notified().await;
            // at first half a timeout: a request may need a state that is on its way to a gateway that hangs
            let mut patience = Nanos::new(self.context.timeout.get() / 2);
            while !self.push_all(patience).await {
                sleep(HEARTBEAT_INTERVAL.to_duration()).await;
                patience = patience.saturating_add(patience).min(ARRIVES_WITHIN);
            }
        }
    }

    /// Waits until every pushed state is at its owner or back in the store. No further state is pushed until the result is
    /// dropped.
    pub async fn hold_pushes(&self) -> MutexGuard<'_, ()> {
        self.migration.part.lock().await
    }

    /// Searches the whole store and pushes states. Returns whether no state of another owner is left.
    async fn push_all(self: &Arc<Self>, patience: Nanos) -> bool {
        let Some(service) = self.service() else { return true };
        let view = self.view.load_full();
        let before = self.members.lock().undrained_count();
        let mut cursor = StoreCursor::default();
        // before the states that count these slots, so that an owner knows all requests in flight
        let mut is_all = self.report_slots(Nanos::ZERO, patience).await;
        while !cursor.is_over {
            if self.view.load().ring.hash() != view.ring.hash() {
                return false;
            }
            is_all &= self.push_some(&service, &view, &mut cursor, patience).await;
        }
        if is_all {
            self.members.lock().set_drained(view.ring.hash(), before, self.context.clock.now());
            self.apply_membership();
        }
        is_all
    }

    /// Pushes one part of the store, and puts states back that do not arrive within `patience`. Returns whether no state
    /// of another owner is left in it. Another thread searches it, so that this gateway still answers others in the
    /// meantime. Dropping this loses the states of the part: [`Cluster::hold_pushes`] waits for its end.
    async fn push_some(
        self: &Arc<Self>,
        service: &Arc<dyn StateService>,
        view: &Arc<View>,
        cursor: &mut StoreCursor,
        patience: Nanos,
    ) -> bool {
        let _part = self.migration.part.lock().await;
        let (cluster, searched, seen, mut at) =
            (Arc::clone(self), Arc::clone(service), Arc::clone(view), std::mem::take(cursor));
        let (sender, found) = oneshot::channel();
        self.context.platform.spawn_long(Box::new(move || {
            let (batches, is_all) = cluster.take_moved(&*searched, &seen, &mut at);
            drop(sender.send((at, batches, is_all)));
        }));
        let Ok((at, batches, is_all)) = found.await else { return false };
        *cursor = at;
        let sent = |_: &Peer, states: &StateBatch, has_arrived: bool| {
            if has_arrived {
                self.migration.counts.pushed.fetch_add(states.count, Ordering::Relaxed);
            } else {
                service.put(states, self.context.clock.now());
            }
        };
        let have_arrived = put_all(batches, view.ring.hash(), patience, sent).await;
        self.migration.end_push();
        is_all && have_arrived
    }

    /// Takes states out of one part of the store, for the gateways that own them in `view`. Also returns whether it took
    /// all: the states of an unreachable owner stay here until the owner is reachable or no longer a member.
    fn take_moved(
        &self,
        service: &dyn StateService,
        view: &View,
        cursor: &mut StoreCursor,
    ) -> (Vec<(Arc<Peer>, StateBatch)>, bool) {
        let (own, is_all) = (self.context.own.address, Cell::new(true));
        let peers: Vec<&Arc<Peer>> = view.peers.values().filter(|peer| peer.is_reachable()).collect();
        let to = |key: LimitKey| {
            let owner = view.ring.owner(key).filter(|owner| *owner != own)?;
            let place = peers.iter().position(|peer| peer.address == owner);
            match place {
                Some(_) => self.migration.begin_push(key, self.context.clock.now()),
                None => is_all.set(false),
            }
            place
        };
        let batches = service.take_moved(cursor, &to, self.context.clock.now()).into_iter();
        let batches = batches.filter_map(|(place, states)| Some((Arc::clone(peers.get(place)?), states)));
        (batches.collect(), is_all.get())
    }
}

/// Sends states to the gateways that own them under `ring`. Calls `ended` for each batch with whether it arrived within
/// `patience`. Returns whether all have arrived.
async fn put_all(
    batches: Vec<(Arc<Peer>, StateBatch)>,
    ring: RingHash,
    patience: Nanos,
    ended: impl Fn(&Peer, &StateBatch, bool),
) -> bool {
    let mut sending = JoinSet::new();
    for (peer, states) in batches {
        sending.spawn(async move {
            let has_arrived = put(&peer, &states, ring, patience).await;
            (peer, states, has_arrived)
        });
    }
    let mut is_all = true;
    while let Some(sent) = sending.join_next().await {
        is_all &= sent.is_ok_and(|(peer, states, has_arrived)| {
            ended(&peer, &states, has_arrived);
            has_arrived
        });
    }
    is_all
}

/// Sends `states` to `peer`, which owns them under `ring`. Returns whether they arrived within `patience`.
async fn put(peer: &Arc<Peer>, states: &StateBatch, ring: RingHash, patience: Nanos) -> bool {
    let (sender, receiver) = oneshot::channel();
    let on_reply = move |answer| drop(sender.send(answer));
    let asked = peer.ask(Ask::Put { ring, states: states.clone() }, Box::new(on_reply));
    asked && matches!(timeout(patience.to_duration(), receiver).await, Ok(Ok(Some(Answer::Done))))
}
