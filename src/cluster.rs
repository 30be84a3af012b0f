//! Sticky limits for a cluster of gateways: each key has one owning gateway, and the other gateways ask it.
//!
//! A gateway decides a request by itself if it owns all keys of the request. Otherwise it asks the owners over
//! connections that the gateways keep to each other ([`handshake`], [`wire`]). A gateway never forwards the request itself
//! to another gateway, only charges and decisions, some tens of bytes in each direction.
//!
//! The owner of a key ([`ring`]) follows from the members ([`members`]) and from the key's upper bits, its
//! [`LimitKey::hash_partition`], which all keys of one customer share. To this module, keys and their states are
//! opaque; the store that keeps them is passed in as a [`state_service::StateService`].

mod connection;
mod corrections;
mod discovery;
mod drain_latch;
pub mod handshake;
mod heartbeat;
pub mod members;
pub mod migration;
pub mod peer;
mod platform;
mod processes;
mod report;
pub mod ring;
pub mod serve;
mod session;
pub mod settings;
mod state_migrator;
pub mod state_service;
mod view;
pub mod wire;

pub use corrections::Correction;
use corrections::LocalCorrections;
pub use handshake::Secret;
pub use peer::{Outcome, Peer, PeerObserver, PeerReceipt};
pub use platform::{OsPlatform, Platform, Stream};
pub use report::{PeerReport, Report};
pub use session::{PeerCharge, WireRule};

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use self::connection::OwnIdentity;
use self::drain_latch::DrainLatch;
use self::members::{ALONE_AFTER, HEARTBEAT_INTERVAL, MemberState, Members};
use self::migration::{MigrationState, OwnershipEpoch};
use self::peer::PeerContext;
use self::processes::Processes;
use self::ring::Member;
use self::serve::PeerServer;
use self::settings::{ClusterSettings, Peers};
use self::state_service::StateService;
use self::view::View;
use crate::clock::Clock;
use crate::panics::restart_on_panic;
use crate::units::{LimitKey, Nanos};

/// This gateway's side of the cluster.
pub struct Cluster {
    context: Arc<PeerContext>,
    members: Mutex<Members>,
    view: ArcSwap<View>,
    migration: Arc<MigrationState>,
    latch: Arc<DrainLatch>,
    /// Kept while [`Cluster::run`] does not run: a process that comes back sends corrections again that were made before.
    processes: Processes,
    /// The store, once [`Cluster::run`] has begun.
    service: OnceLock<Weak<dyn StateService>>,
    /// The other gateways, as the configuration names them.
    peer_settings: watch::Sender<Peers>,
    /// The peers by their numbers, which are never used again.
    peers: RwLock<BTreeMap<u32, Arc<Peer>>>,
    last_peer: AtomicU64,
    last_slot: AtomicU64,
    /// See [`Cluster::waits_for`].
    is_ready: watch::Sender<bool>,
    /// Addresses that refuse connections at the moment.
    refusing: Mutex<HashSet<SocketAddr>>,
    /// Whether this gateway has charged a key of another owner since the last tick.
    note_stand_in: AtomicBool,
    /// Corrections of charges that this gateway made, where another gateway may have the state.
    corrections: LocalCorrections,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    asked_under_other_ring: AtomicU64,
    stood_in: AtomicU64,
    alone: AtomicU64,
    unfetched: AtomicU64,
    /// The time since when other gateways see another ring: zero if all agree, the maximum once this is logged.
    differs: AtomicU64,
    /// DNS lookups that failed or whose answer this gateway rejected.
    not_found: AtomicU64,
}

/// After so many redirects the next gateway decides, whoever owns the key.
const MAX_REDIRECTS: usize = 4;

/// The gateway that decides about a key.
#[derive(Clone)]
pub enum Decider {
    /// This gateway, which owns it, or stands in for an owner that cannot be asked.
    Local,
    /// This gateway, because it can ask no other gateway.
    Isolated,
    /// Another gateway.
    Peer {
        /// The gateway.
        peer: Arc<Peer>,
        /// Whether it decides although it may not own the key: the owner cannot be asked, or the peer is the owner in
        /// another gateway's view.
        stands_in: bool,
    },
}

impl Cluster {
    /// This gateway's side. It knows no other gateway until [`Cluster::run`] runs. `threads` is how many
    /// threads send requests.
    pub fn new(
        settings: &ClusterSettings,
        threads: usize,
        clock: Arc<dyn Clock>,
        platform: Arc<dyn Platform>,
        observer: PeerObserver,
    ) -> Arc<Self> {
        let ClusterSettings { own: address, peers, secret, founding, timeout, .. } = settings;
        let listed = match peers {
            Peers::Listed(members) => members.as_slice(),
            Peers::Named(_) => &[],
        };
        let process = rand::random();
        let now = clock.now();
        let weight = listed.iter().find(|member| member.address == *address).map_or(1, |member| member.weight);
        let mut members = Members::new(Member { address: *address, weight }, *founding, process, now);
        if !listed.is_empty() {
            members.set_listed(listed, now);
        }
        let ring = Arc::clone(members.ring());
        let context = Arc::new(PeerContext {
            own: OwnIdentity { address: *address, process, secret: secret.clone() },
            clock,
            platform,
            timeout: *timeout,
            observer,
            ring: Arc::new(AtomicU64::new(ring.hash().0)),
            threads,
        });
        let cluster = Arc::new(Self {
            context,
            is_ready: watch::Sender::new(members.is_ready()),
            members: Mutex::new(members),
            view: ArcSwap::from_pointee(View { ring, peers: BTreeMap::new() }),
            migration: Arc::default(),
            latch: Arc::default(),
            processes: Processes::default(),
            service: OnceLock::new(),
            peer_settings: watch::Sender::new(peers.clone()),
            peers: RwLock::default(),
            last_peer: AtomicU64::new(0),
            last_slot: AtomicU64::new(0),
            refusing: Mutex::default(),
            note_stand_in: AtomicBool::new(false),
            corrections: LocalCorrections::default(),
            counts: Counts::default(),
        });
        cluster.apply_membership();
        cluster
    }

    /// This gateway's address.
    pub fn own(&self) -> SocketAddr {
        self.context.own.address
    }

    /// The owner of `key`.
    pub fn owner(&self, key: LimitKey) -> SocketAddr {
        self.view.load().ring.owner(key).unwrap_or(self.own())
    }

    /// The gateway that decides about `key`.
    pub fn decider(&self, key: LimitKey) -> Decider {
        let (view, own) = (self.view.load(), self.own());
        let reachable = |address| view.peers.get(&address).filter(|peer| !peer.is_suspected()).map(Arc::clone);
        match view.ring.owner(key) {
            Some(owner) if owner == own => return Decider::Local,
            Some(owner) => {
                if let Some(peer) = reachable(owner) {
                    return Decider::Peer { peer, stands_in: false };
                }
            }
            None => return Decider::Isolated,
        }
        for address in view.ring.order(key).into_iter().skip(1) {
            if address == own {
                self.count_stand_ins(1);
                return Decider::Local;
            }
            if let Some(peer) = reachable(address) {
                return Decider::Peer { peer, stands_in: true };
            }
        }
        self.decide_isolated()
    }

    /// The gateway that decides about a key that `asked` does not own. `asked` names `owner` as the owner. `owner` may
    /// name yet another one, unless `redirects`, the number of gateways that did not decide the charge, reaches the bound.
    pub fn redirected(&self, asked: &Arc<Peer>, owner: SocketAddr, redirects: usize) -> Decider {
        if owner == self.own() {
            return Decider::Local;
        }
        let view = self.view.load();
        let owner = view.peers.get(&owner).filter(|peer| !peer.is_suspected());
        Decider::Peer {
            peer: Arc::clone(owner.unwrap_or(asked)),
            stands_in: redirects >= MAX_REDIRECTS || owner.is_none(),
        }
    }

    /// The owner of `key`, if it is another gateway, whether it is reachable or not.
    pub fn owner_peer(&self, key: LimitKey) -> Option<Arc<Peer>> {
        let view = self.view.load();
        view.peers.get(&view.ring.owner(key)?).map(Arc::clone)
    }

    /// Notes that a request here holds a slot that the owner of its key does not count yet.
    pub fn announce(&self) {
        self.migration.announce.notify_one();
    }

    /// The time.
    pub fn now(&self) -> Nanos {
        self.context.clock.now()
    }

    /// The wall clock's time at the steady time `at`.
    pub fn wall_at(&self, at: Nanos) -> Nanos {
        self.context.clock.wall_at(at)
    }

    /// Identifies this process among all others.
    pub fn process(&self) -> u64 {
        self.context.own.process
    }

    /// Notes that this gateway has charged `keys` while ownership changed: other gateways may own them by now.
    pub fn note_charged(&self, mut keys: impl Iterator<Item = LimitKey>) {
        if keys.any(|key| !self.owns(key)) {
            self.note_stand_in();
        }
    }

    /// Counts a charge that this gateway decides because no other can be reached.
    pub fn decide_isolated(&self) -> Decider {
        self.counts.alone.fetch_add(1, Ordering::Relaxed);
        self.note_stand_in();
        Decider::Isolated
    }

    /// The gateway with this number, if it is a member.
    pub fn member(&self, number: u32) -> Option<Arc<Peer>> {
        self.peer(number).filter(|peer| self.view.load().ring.has(peer.address))
    }

    /// The gateway with this number.
    pub fn peer(&self, number: u32) -> Option<Arc<Peer>> {
        self.peers.read().get(&number).map(Arc::clone)
    }

    /// A number for a slot that no other slot of this process has. Never 0.
    pub fn next_slot(&self) -> u64 {
        self.last_slot.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    /// Whether no correction waits that can still be made and, if this gateway leaves, no state is left to hand over.
    /// From then on, a leaving gateway answers no request of others: a state given to it would be lost.
    pub fn is_settled(&self) -> bool {
        let is_settled = || {
            // a fetch is noted before its state arrives
            !self.migration.is_fetching()
                && !self.note_stand_in.load(Ordering::Relaxed)
                && self.corrections.is_empty()
                && self.members.lock().is_ready_to_end()
                && self.peers.read().values().all(|peer| peer.is_settled())
        };
        let is_leaving_member = self.members.lock().member_state() == MemberState::Leaving;
        is_settled() && (!is_leaving_member || self.latch.close_if(is_settled))
    }

    /// Waits for a short time until the owners of keys are known, and opens the connections of the calling thread, so
    /// that its first requests do not wait for them.
    pub async fn connect(&self) {
        let mut ready = self.is_ready.subscribe();
        let connecting = async {
            // the sender lives as long as this value
            drop(ready.wait_for(|ready| *ready).await);
            let view = self.view.load_full();
            let members = view.ring.members().filter_map(|member| view.peers.get(&member.address).map(Arc::clone));
            let mut opening: JoinSet<()> =
                members.map(|peer| async move { peer.open_when_reachable().await }).collect();
            while opening.join_next().await.is_some() {}
        };
        // a gateway that has found no other gateway by then is alone
        drop(timeout(ALONE_AFTER.saturating_add(HEARTBEAT_INTERVAL).to_duration(), connecting).await);
    }

    /// How many members are known and how many this gateway needs, while it is not ready.
    pub fn waits_for(&self) -> Option<(usize, usize)> {
        let members = self.members.lock();
        (!members.is_ready()).then(|| members.waits_for())
    }

    /// Sets the other gateways, after a reload.
    pub fn set_peers(&self, peers: &Peers) {
        self.peer_settings.send_if_modified(|known| {
            let differs = known != peers;
            known.clone_from(peers);
            differs
        });
    }

    /// Leaves the cluster: this gateway owns nothing from now on, and pushes its states to the owners.
    pub fn leave(&self) {
        self.members.lock().leave(self.context.clock.now());
        self.apply_membership();
        self.heartbeat_now();
    }

    /// Whether all gateways know that this one leaves, and have its states.
    pub fn has_left(&self) -> bool {
        self.members.lock().is_ready_to_end() && !self.is_migrating()
    }

    /// Undoes [`Cluster::leave`].
    pub fn rejoin(&self) {
        self.members.lock().rejoin(self.context.clock.now());
        self.apply_membership();
        self.heartbeat_now();
    }

    /// Makes `correction` of a charge that was made here, once the state of its key has been fetched.
    pub fn correct_here(&self, correction: Correction) {
        self.corrections.push(correction);
    }

    /// Whether another gateway may still have states of keys that this gateway owns.
    pub fn is_migrating(&self) -> bool {
        self.migration.is_active()
    }

    /// The current epoch of `keys`, for [`Cluster::may_have_moved`].
    pub fn ownership_epoch(&self, keys: impl Iterator<Item = LimitKey>) -> OwnershipEpoch {
        self.migration.ownership_epoch(keys)
    }

    /// Whether the state of the key at this position may have moved since `epoch`.
    pub fn may_have_moved(&self, epoch: &OwnershipEpoch, position: usize) -> bool {
        self.migration.may_have_moved(epoch, position)
    }

    /// Whether a charge that began at `since` has waited for states as long as it may: two timeouts, of which an owner
    /// that did not answer has taken one.
    pub fn is_late(&self, since: Nanos) -> bool {
        let PeerContext { clock, timeout, .. } = &*self.context;
        clock.now().saturating_sub(since) >= timeout.saturating_add(*timeout)
    }

    /// Begins the tasks that last as long as this gateway serves.
    fn begin_tasks(self: &Arc<Self>, server: &Arc<PeerServer>) -> JoinSet<()> {
        let mut tasks = JoinSet::new();
        let (pushing, announcing, discovering) = (Arc::clone(self), Arc::clone(self), Arc::clone(self));
        tasks.spawn(restart_on_panic(move || Arc::clone(&pushing).push()));
        tasks.spawn(restart_on_panic(move || Arc::clone(&announcing).announce_slots()));
        tasks.spawn(restart_on_panic(move || Arc::clone(&discovering).discover()));
        let correcting = Arc::clone(server);
        tasks.spawn(restart_on_panic(move || Arc::clone(&correcting).make_corrections()));
        tasks
    }

    /// Exchanges heartbeats with the other gateways and serves the `accepted` connections, until dropped.
    pub async fn run(
        self: &Arc<Self>,
        service: Arc<dyn StateService>,
        mut accepted: tokio::sync::mpsc::Receiver<(impl Into<Stream>, SocketAddr)>,
    ) {
        let clock = &self.context.clock;
        self.service.get_or_init(|| Arc::downgrade(&service));
        let server = Arc::new(PeerServer::new(Arc::clone(self), service));
        let mut served = self.begin_tasks(&server);
        self.migration.push.notify_one();
        let mut kept: BTreeMap<SocketAddr, tokio::task::AbortHandle> = BTreeMap::new();
        let mut keeping = JoinSet::new();
        let mut beats = interval(HEARTBEAT_INTERVAL.to_duration());
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = beats.tick() => {
                    self.members.lock().tick(clock.now());
                    self.apply_membership();
                    self.push_if_undrained();
                    server.release_gone(|address| self.refusing.lock().contains(&address));
                    let peers = self.known();
                    kept.retain(|address, task| {
                        let stays = peers.contains_key(address);
                        if !stays {
                            task.abort();
                        }
                        stays
                    });
                    for (address, peer) in peers {
                        let cluster = Arc::clone(self);
                        let keep = restart_on_panic(move || heartbeat::run(Arc::clone(&cluster), Arc::clone(&peer)));
                        kept.entry(address).or_insert_with(|| keeping.spawn(keep));
                    }
                    while keeping.try_join_next().is_some() {}
                }
                Some(_) = served.join_next() => {}
                Some((stream, from)) = accepted.recv() => {
                    served.spawn(Arc::clone(&server).serve(stream.into(), from));
                }
            }
        }
    }
}
