//! Several gateways whose sticky limits are one: each key has one owner among them, and the others ask it.
//!
//! A gateway that is asked for something decides by itself where it owns all of a request's keys, and otherwise asks their
//! owners over connections that the gateways keep to each other ([`handshake`], [`wire`]). Requests themselves are never
//! sent on: what moves is a decision, some tens of bytes each way.
//!
//! Who owns a key ([`ring`]) follows from who is a member ([`members`]) and from the key's upper bits, its
//! [`LimitKey::home`], which all keys of one customer have in common. Keys and the states behind them are names without
//! meaning to this module; who keeps them comes in as a [`serve::Desk`].

mod carrier;
mod connection;
mod discovery;
pub mod handshake;
pub mod members;
pub mod moving;
pub mod peer;
pub mod ring;
pub mod serve;
mod session;
pub mod settings;
pub mod wire;

pub use handshake::Secret;
pub use peer::{Correction, Heard, Observer, Outcome, Part, Peer};
pub use session::Form;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwap;
use parking_lot::{Mutex, RwLock};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use self::connection::{Failed, Own};
use self::members::{ALONE_AFTER, BEAT, Beat, Members, PeerState, Standing};
use self::moving::Moving;
use self::peer::Asking;
use self::ring::{Member, Ring, RingHash};
use self::serve::{Carrier, Desk, Listener, Serving};
use self::session::Session;
use self::settings::{Peers, Settings};
use crate::clock::Clock;
use crate::units::{LimitKey, Nanos};

/// This gateway as one of several.
pub struct Cluster(Arc<Node>);

struct Node {
    this: Weak<Self>,
    asking: Arc<Asking>,
    members: Mutex<Members>,
    view: ArcSwap<View>,
    moving: Moving,
    /// Who keeps the states, once that is known.
    desk: OnceLock<Weak<dyn Desk>>,
    /// Who the others are, as told.
    told: watch::Sender<Peers>,
    /// Counted up when there is something to say before the next beat.
    news: watch::Sender<u64>,
    /// By their numbers, which are never used again.
    peers: RwLock<HashMap<u32, Arc<Peer>>>,
    last_peer: AtomicU64,
    last_slot: AtomicU64,
    /// Whether it is known who owns keys.
    is_settled: watch::Sender<bool>,
    /// Gateways at which nobody listens.
    refusing: Mutex<HashSet<SocketAddr>>,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    asked_under_other_ring: AtomicU64,
    stood_in: AtomicU64,
    alone: AtomicU64,
    differs: AtomicBool,
    /// Answers of DNS that were none, or were not believed.
    not_found: AtomicU64,
}

/// The members, and how to reach them.
struct View {
    ring: Arc<Ring>,
    peers: HashMap<SocketAddr, Arc<Peer>>,
}

/// Who decides about a key.
#[derive(Clone, Debug)]
pub enum Place {
    /// This gateway, which owns it.
    Here,
    /// This gateway, because the owner cannot be asked.
    StandIn,
    /// This gateway, because nobody can be asked.
    Alone,
    /// That one, which owns it.
    There(Arc<Peer>),
    /// That one, because the owner cannot be asked.
    StandInThere(Arc<Peer>),
}

/// How things stand, for reports.
#[derive(Clone, Debug)]
pub struct Report {
    /// This gateway's address.
    pub own: SocketAddr,
    /// How it stands.
    pub standing: Standing,
    /// What the members are known by.
    pub ring: RingHash,
    /// The members.
    pub members: Vec<Member>,
    /// The others, members or not.
    pub peers: Vec<PeerReport>,
    /// Frames of questions from gateways that saw other members.
    pub asked_under_other_ring: u64,
    /// Charges decided here for an owner that could not be asked.
    pub stood_in: u64,
    /// Charges decided here because nobody could be asked.
    pub alone: u64,
    /// How many states went and came.
    pub moved: Moved,
    /// Answers of DNS that named nobody or were not believed, and looks that had none.
    pub not_found: u64,
}

/// How many states went to other gateways and came from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Sent to those who own them now.
    pub pushed: u64,
    /// Given to those who asked for them.
    pub given: u64,
    /// Came, and are in force here.
    pub received: u64,
    /// Came, and were dropped because there was a newer one.
    pub stale: u64,
    /// Came, and were not understood.
    pub unknown: u64,
}

/// How another gateway stands.
#[derive(Clone, Debug)]
pub struct PeerReport {
    /// Its address.
    pub address: SocketAddr,
    /// How it stands.
    pub state: PeerState,
    /// Whether it can be asked.
    pub is_reachable: bool,
    /// The members as it sees them, if it said so.
    pub ring: Option<RingHash>,
    /// When it was last heard of.
    pub heard: Nanos,
    /// Corrections for it that were given up.
    pub lost: u64,
}

impl Cluster {
    /// Knows of nobody until [`Cluster::run`] runs. `threads` is how many threads ask.
    pub fn new(settings: &Settings, threads: usize, clock: Arc<dyn Clock>, observer: Observer) -> Self {
        let Settings { own: address, peers, secret, timeout, .. } = settings;
        let told = match peers {
            Peers::Listed(members) => members.as_slice(),
            Peers::Named(_) => &[],
        };
        let boot = rand::random();
        let now = clock.now();
        let weight = told.iter().find(|member| member.address == *address).map_or(1, |member| member.weight);
        let mut members = Members::new(Member { address: *address, weight }, boot, now);
        if !told.is_empty() {
            members.told(told, now);
        }
        let ring = Arc::clone(members.ring());
        let asking = Arc::new(Asking {
            own: Own { address: *address, boot, secret: secret.clone() },
            clock,
            timeout: *timeout,
            observer,
            ring: Arc::new(AtomicU64::new(ring.hash().0)),
            threads,
        });
        let node = Arc::new_cyclic(|this| Node {
            this: this.clone(),
            asking,
            is_settled: watch::Sender::new(members.is_settled()),
            members: Mutex::new(members),
            view: ArcSwap::from_pointee(View { ring, peers: HashMap::new() }),
            moving: Moving::default(),
            desk: OnceLock::new(),
            told: watch::Sender::new(peers.clone()),
            news: watch::Sender::new(0),
            peers: RwLock::default(),
            last_peer: AtomicU64::new(0),
            last_slot: AtomicU64::new(0),
            refusing: Mutex::default(),
            counts: Counts::default(),
        });
        node.look();
        Self(node)
    }

    /// This gateway's address.
    pub fn own(&self) -> SocketAddr {
        self.0.asking.own.address
    }

    /// Whether it is this gateway that decides about `key`, as its owner.
    pub fn owns(&self, key: LimitKey) -> bool {
        self.0.view.load().ring.owner(key) == Some(self.own())
    }

    /// The owner of `key`.
    pub fn owner(&self, key: LimitKey) -> SocketAddr {
        self.0.view.load().ring.owner(key).unwrap_or(self.own())
    }

    /// Who decides about `key`.
    pub fn place(&self, key: LimitKey) -> Place {
        let (view, own) = (self.0.view.load(), self.own());
        let reachable = |address| view.peers.get(&address).filter(|peer| !peer.is_suspected()).map(Arc::clone);
        match view.ring.owner(key) {
            Some(owner) if owner == own => return Place::Here,
            Some(owner) => {
                if let Some(peer) = reachable(owner) {
                    return Place::There(peer);
                }
            }
            None => return Place::Alone,
        }
        for address in view.ring.order(key).into_iter().skip(1) {
            if address == own {
                self.0.counts.stood_in.fetch_add(1, Ordering::Relaxed);
                return Place::StandIn;
            }
            if let Some(peer) = reachable(address) {
                return Place::StandInThere(peer);
            }
        }
        self.alone()
    }

    /// Nobody can be asked.
    pub fn alone(&self) -> Place {
        self.0.counts.alone.fetch_add(1, Ordering::Relaxed);
        Place::Alone
    }

    /// The gateway of this number.
    pub fn peer(&self, number: u32) -> Option<Arc<Peer>> {
        self.0.peers.read().get(&number).map(Arc::clone)
    }

    /// A number that nothing else that this process holds has. Not 0.
    pub fn next_slot(&self) -> u64 {
        self.0.last_slot.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    /// Whether no correction is on its way that could still be made, and no state of a gateway that leaves.
    pub fn is_settled(&self) -> bool {
        self.0.members.lock().has_left() && self.0.peers.read().values().all(|peer| peer.is_settled())
    }

    /// Waits a moment until it is known who owns keys, and connects the thread that asks, so that its first requests need
    /// not wait for that.
    pub async fn connect(&self) {
        let mut settled = self.0.is_settled.subscribe();
        // who knows nobody by then is alone
        drop(timeout(ALONE_AFTER.saturating_add(BEAT).to_duration(), settled.wait_for(|settled| *settled)).await);
        let peers: Vec<Arc<Peer>> = self.0.view.load().peers.values().map(Arc::clone).collect();
        let mut opening = JoinSet::new();
        for peer in peers.into_iter().filter(|peer| peer.is_reachable()) {
            opening.spawn(async move { peer.open_own().await });
        }
        while opening.join_next().await.is_some() {}
    }

    /// Who the others are, from here on.
    pub fn follow(&self, peers: &Peers) {
        self.0.told.send_if_modified(|told| {
            let differs = told != peers;
            told.clone_from(peers);
            differs
        });
    }

    /// This gateway is about to end: it owns nothing from here on, and gives its states to those who do.
    pub fn leave(&self) {
        self.0.members.lock().leave(self.0.asking.clock.now());
        self.0.look();
        self.0.has_news();
    }

    /// Whether the state of a key may be with another gateway although this one owns it.
    pub fn is_moving(&self) -> bool {
        self.0.moving.is_going_on()
    }

    /// Brings states here, from wherever they are.
    pub async fn gather(&self, wanted: Vec<(Arc<wire::Identity>, LimitKey)>) {
        Carrier::gather(&*self.0, wanted).await;
    }

    /// Keeps in touch with the others, and serves who is `accepted`, until dropped.
    pub async fn run(&self, desk: Arc<dyn Desk>, mut accepted: tokio::sync::mpsc::Receiver<(TcpStream, SocketAddr)>) {
        let Asking { own, clock, .. } = &*self.0.asking;
        let (listener, carrier) = (Arc::clone(&self.0) as Arc<dyn Listener>, Arc::clone(&self.0) as Arc<dyn Carrier>);
        self.0.desk.get_or_init(|| Arc::downgrade(&desk));
        let serving = Arc::new(Serving::new(own.clone(), Arc::clone(clock), desk, (listener, carrier)));
        let mut served = JoinSet::new();
        let (pushing, discovering) = (Arc::clone(&self.0), Arc::clone(&self.0));
        served.spawn(async move { pushing.push().await });
        served.spawn(async move { discovering.discover().await });
        self.0.moving.push.notify_one();
        let mut kept: HashMap<SocketAddr, tokio::task::AbortHandle> = HashMap::new();
        let mut keeping = JoinSet::new();
        let mut beats = interval(BEAT.to_duration());
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = beats.tick() => {
                    self.0.members.lock().tick(clock.now());
                    self.0.look();
                    serving.tidy(|address| self.0.refusing.lock().contains(&address));
                    let peers = self.0.known();
                    kept.retain(|address, task| {
                        let stays = peers.contains_key(address);
                        if !stays {
                            task.abort();
                        }
                        stays
                    });
                    for (address, peer) in peers {
                        let node = &self.0;
                        kept.entry(address).or_insert_with(|| keeping.spawn(keep(Arc::clone(node), peer)));
                    }
                    while keeping.try_join_next().is_some() {}
                }
                Some((stream, from)) = accepted.recv() => {
                    served.spawn(Arc::clone(&serving).serve(stream, from));
                }
                Some(_) = served.join_next() => {}
            }
        }
    }

    /// How things stand.
    pub fn report(&self) -> Report {
        let node = &self.0;
        let view = node.view.load();
        let members = node.members.lock();
        let peers = members.peers().map(|peer| {
            let address = peer.member.address;
            let reached = node.find(address);
            PeerReport {
                address,
                state: peer.state,
                is_reachable: reached.as_ref().is_some_and(|peer| peer.is_reachable()),
                ring: peer.said.map(|said| said.ring),
                heard: reached.as_ref().map_or(Nanos::ZERO, |peer| peer.heard()),
                lost: reached.as_ref().map_or(0, |peer| peer.lost()),
            }
        });
        Report {
            own: self.own(),
            standing: members.standing(),
            ring: view.ring.hash(),
            members: view.ring.members().collect(),
            peers: peers.collect(),
            asked_under_other_ring: node.counts.asked_under_other_ring.load(Ordering::Relaxed),
            stood_in: node.counts.stood_in.load(Ordering::Relaxed),
            alone: node.counts.alone.load(Ordering::Relaxed),
            moved: node.moving.counts.read(),
            not_found: node.counts.not_found.load(Ordering::Relaxed),
        }
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("own", &self.own()).finish_non_exhaustive()
    }
}

impl Node {
    /// Takes up what the members are now.
    fn look(&self) {
        let members = self.members.lock();
        let ring = Arc::clone(members.ring());
        self.is_settled.send_if_modified(|settled| {
            let differs = *settled != members.is_settled();
            *settled = members.is_settled();
            differs
        });
        let differs =
            members.peers().any(|peer| peer.counts() && peer.said.is_some_and(|said| said.ring != ring.hash()));
        let known: HashSet<SocketAddr> = members.peers().map(|peer| peer.member.address).collect();
        if self.counts.differs.swap(differs, Ordering::Relaxed) != differs && differs {
            tracing::warn!(ring = %ring.hash(), "gateways of the cluster see other members than this one");
        }
        self.peers.write().retain(|_, peer| known.contains(&peer.address));
        let missing: Vec<SocketAddr> = known.into_iter().filter(|address| self.find(*address).is_none()).collect();
        for address in missing {
            let number = self.last_peer.fetch_add(1, Ordering::Relaxed).saturating_add(1);
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            self.peers.write().insert(number, Peer::new(address, number, Arc::clone(&self.asking)));
        }
        self.moving.settle(&ring, members.peers(), self.asking.clock.now());
        let before = self.view.load();
        let peers: HashMap<SocketAddr, Arc<Peer>> = self.known();
        if before.ring.hash() == ring.hash() && peers.keys().all(|address| before.peers.contains_key(address)) {
            return;
        }
        if before.ring.hash() != ring.hash() {
            self.moving.turned(&before.ring);
            self.has_news();
            let members: Vec<String> = ring.members().map(|member| member.address.to_string()).collect();
            tracing::info!(ring = %ring.hash(), members = members.join(", "), "the cluster's members are others");
        }
        self.asking.ring.store(ring.hash().0, Ordering::Relaxed);
        self.view.store(Arc::new(View { ring, peers }));
        // until here: what is seen is never older than what was seen before
        drop(members);
    }

    fn has_news(&self) {
        self.news.send_modify(|count| *count = count.wrapping_add(1));
    }

    fn known(&self) -> HashMap<SocketAddr, Arc<Peer>> {
        self.peers.read().values().map(|peer| (peer.address, Arc::clone(peer))).collect()
    }

    fn find(&self, address: SocketAddr) -> Option<Arc<Peer>> {
        self.peers.read().values().find(|peer| peer.address == address).map(Arc::clone)
    }

    fn says(&self, to: SocketAddr) -> Beat {
        self.members.lock().says(to)
    }

    fn heard(&self, from: SocketAddr, beat: Beat) {
        self.members.lock().heard(from, beat, self.asking.clock.now());
        self.look();
    }

    /// Sends beats and corrections for as long as the connection lasts.
    async fn talk(self: &Arc<Self>, peer: &Arc<Peer>, session: &Arc<Session>) {
        let mut beats = interval(BEAT.to_duration());
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut news = self.news.subscribe();
        loop {
            let is_time = tokio::select! {
                _ = beats.tick() => true,
                _ = news.changed() => true,
                () = peer.urgent.notified() => peer.is_suspected(),
                () = session.ended() => return,
            };
            if is_time {
                let (node, address) = (Arc::clone(self), peer.address);
                peer.beat(session, &self.says(address), move |beat| node.heard(address, beat));
            }
            peer.send_corrections(session);
        }
    }

    fn unreachable(&self, peer: &Peer, failed: &Failed) {
        let address = peer.address;
        if matches!(failed, Failed::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused) {
            self.refusing.lock().insert(address);
        }
        self.members.lock().unreachable(address, self.asking.clock.now());
        self.look();
    }
}

impl Listener for Node {
    fn beat(&self, from: SocketAddr, beat: Beat) -> Beat {
        self.heard(from, beat);
        self.says(from)
    }

    fn asked_under(&self, ring: RingHash) {
        if ring.0 != self.asking.ring.load(Ordering::Relaxed) {
            self.counts.asked_under_other_ring.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Keeps in touch with `peer`, until dropped.
async fn keep(node: Arc<Node>, peer: Arc<Peer>) {
    let mut was_told = None;
    loop {
        match peer.connect().await {
            Ok(connection) => {
                node.refusing.lock().remove(&peer.address);
                was_told = None;
                let session = Session::begin(connection, Arc::clone(&node.asking.ring));
                peer.arrived(&session);
                node.talk(&peer, &session).await;
            }
            Err(failed) => {
                let reason = failed.to_string();
                if was_told.as_ref() != Some(&reason) {
                    tracing::warn!(peer = %peer.address, reason, "cannot reach a gateway of the cluster");
                    was_told = Some(reason);
                }
                node.unreachable(&peer, &failed);
                sleep(BEAT.to_duration()).await;
            }
        }
    }
}
