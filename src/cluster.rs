//! Several gateways whose sticky limits are one: each key has one owner among them, and the others ask it.
//!
//! A gateway that is asked for something decides by itself where it owns all of a request's keys, and otherwise asks their
//! owners over connections that the gateways keep to each other ([`handshake`], [`wire`]). Requests themselves are never
//! sent on: what moves is a decision, some tens of bytes each way.
//!
//! Who owns a key ([`ring`]) follows from who is a member ([`members`]) and from the key's upper bits, its
//! [`LimitKey::home`], which all keys of one customer have in common. Keys and the states behind them are names without
//! meaning to this module; who keeps them comes in as a [`desk::Desk`].

mod carrier;
mod connection;
mod corrections;
pub mod desk;
mod discovery;
mod gate;
pub mod handshake;
pub mod members;
pub mod moving;
pub mod peer;
mod processes;
mod report;
pub mod ring;
pub mod serve;
mod session;
pub mod settings;
mod touch;
mod view;
pub mod wire;

pub use corrections::Correction;
use corrections::OwnCorrections;
pub use handshake::Secret;
pub use peer::{Heard, Observer, Outcome, Part, Peer};
pub use report::{Moved, PeerReport, Report};
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
use tokio::time::{MissedTickBehavior, interval, timeout};

use self::connection::Own;
use self::desk::Desk;
use self::gate::Gate;
use self::members::{ALONE_AFTER, BEAT, Members, Standing};
use self::moving::{Moving, Seen};
use self::peer::Asking;
use self::ring::Member;
use self::serve::{Carrier, Listener, Serving};
use self::settings::{Peers, Settings};
use self::view::View;
use crate::clock::Clock;
use crate::panics::restart_on_panic;
use crate::units::LimitKey;

/// This gateway as one of several.
pub struct Cluster(Arc<Node>);

struct Node {
    this: Weak<Self>,
    asking: Arc<Asking>,
    members: Mutex<Members>,
    view: ArcSwap<View>,
    moving: Moving,
    gate: Arc<Gate>,
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
    /// See [`Cluster::waits_for`].
    is_ready: watch::Sender<bool>,
    /// Gateways at which nobody listens.
    refusing: Mutex<HashSet<SocketAddr>>,
    /// Whether a key was charged here since the last beat that another gateway owns.
    stands_in: AtomicBool,
    /// Of what was charged here, whose states are elsewhere.
    corrections: OwnCorrections,
    counts: Counts,
}

#[derive(Default)]
struct Counts {
    asked_under_other_ring: AtomicU64,
    stood_in: AtomicU64,
    alone: AtomicU64,
    /// Since when others see other members; none when they do not, the end of time when that was said.
    differs: AtomicU64,
    /// Answers of DNS that were none, or were not believed.
    not_found: AtomicU64,
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

impl Cluster {
    /// Knows of nobody until [`Cluster::run`] runs. `threads` is how many threads ask.
    pub fn new(settings: &Settings, threads: usize, clock: Arc<dyn Clock>, observer: Observer) -> Self {
        let Settings { own: address, peers, secret, founding, timeout, .. } = settings;
        let told = match peers {
            Peers::Listed(members) => members.as_slice(),
            Peers::Named(_) => &[],
        };
        let boot = rand::random();
        let now = clock.now();
        let weight = told.iter().find(|member| member.address == *address).map_or(1, |member| member.weight);
        let mut members = Members::new(Member { address: *address, weight }, *founding, boot, now);
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
            is_ready: watch::Sender::new(members.is_ready()),
            members: Mutex::new(members),
            view: ArcSwap::from_pointee(View { ring, peers: HashMap::new() }),
            moving: Moving::default(),
            gate: Arc::default(),
            desk: OnceLock::new(),
            told: watch::Sender::new(peers.clone()),
            news: watch::Sender::new(0),
            peers: RwLock::default(),
            last_peer: AtomicU64::new(0),
            last_slot: AtomicU64::new(0),
            refusing: Mutex::default(),
            stands_in: AtomicBool::new(false),
            corrections: OwnCorrections::default(),
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
        Carrier::owns(&*self.0, key)
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
                self.0.stands_in();
                return Place::StandIn;
            }
            if let Some(peer) = reachable(address) {
                return Place::StandInThere(peer);
            }
        }
        self.alone()
    }

    /// The owner of `key`, if it is another gateway, whether it can be asked or not.
    pub fn home(&self, key: LimitKey) -> Option<Arc<Peer>> {
        let view = self.0.view.load();
        view.peers.get(&view.ring.owner(key)?).map(Arc::clone)
    }

    /// Something is held here since now that is not counted by the key's owner.
    pub fn speak(&self) {
        self.0.moving.speak.notify_one();
    }

    /// Tells this process from all others.
    pub fn process(&self) -> u64 {
        self.0.asking.own.boot
    }

    /// Nobody can be asked.
    pub fn alone(&self) -> Place {
        self.0.counts.alone.fetch_add(1, Ordering::Relaxed);
        self.0.stands_in();
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

    /// Whether no correction is on its way that could still be made, and no state of a gateway that leaves. Once that is so
    /// a gateway that leaves answers nobody any more: what it was given would end with it.
    pub fn is_settled(&self) -> bool {
        let is_settled = || {
            // what comes is noted before it has come
            let node = &self.0;
            !node.moving.is_bringing()
                && node.corrections.is_empty()
                && node.members.lock().has_left()
                && node.peers.read().values().all(|peer| peer.is_settled())
        };
        let leaves = self.0.members.lock().standing() == Standing::Leaving;
        is_settled() && (!leaves || self.0.gate.close_if(is_settled))
    }

    /// Waits a moment until it is known who owns keys, and connects the thread that asks, so that its first requests need
    /// not wait for that.
    pub async fn connect(&self) {
        let mut ready = self.0.is_ready.subscribe();
        let connecting = async {
            // it only ends with this value
            drop(ready.wait_for(|ready| *ready).await);
            let view = self.0.view.load_full();
            let members = view.ring.members().filter_map(|member| view.peers.get(&member.address).map(Arc::clone));
            let mut opening: JoinSet<()> =
                members.map(|peer| async move { peer.open_when_reachable().await }).collect();
            while opening.join_next().await.is_some() {}
        };
        // who knows nobody by then is alone
        drop(timeout(ALONE_AFTER.saturating_add(BEAT).to_duration(), connecting).await);
    }

    /// How many members are known, and how many this gateway waits for, as long as it is not ready.
    pub fn waits_for(&self) -> Option<(usize, usize)> {
        let members = self.0.members.lock();
        (!members.is_ready()).then(|| members.waits_for())
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

    /// Makes `correction` of a charge here, once the state of its key has come from wherever it is.
    pub fn correct_here(&self, correction: Correction) {
        self.0.corrections.push(correction);
    }

    /// Whether the state of a key may be with another gateway although this one owns it.
    pub fn is_moving(&self) -> bool {
        self.0.moving.is_going_on()
    }

    /// Where the states of `keys` are, for [`Cluster::has_left`].
    pub fn seen(&self, keys: impl Iterator<Item = LimitKey>) -> Seen {
        self.0.moving.seen(keys)
    }

    /// Whether the state of the key at this position may be with another gateway since it was `seen`.
    pub fn has_left(&self, seen: &Seen, position: usize) -> bool {
        self.0.moving.has_left(seen, position)
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
        let (pushing, speaking, discovering) = (Arc::clone(&self.0), Arc::clone(&self.0), Arc::clone(&self.0));
        served.spawn(restart_on_panic(move || {
            let pushing = Arc::clone(&pushing);
            async move { pushing.push().await }
        }));
        served.spawn(restart_on_panic(move || {
            let speaking = Arc::clone(&speaking);
            async move { speaking.speak_for_held().await }
        }));
        served.spawn(restart_on_panic(move || Arc::clone(&discovering).discover()));
        let (correcting, made_by) = (Arc::clone(&self.0), Arc::clone(&serving));
        served.spawn(restart_on_panic(move || {
            let (correcting, made_by) = (Arc::clone(&correcting), Arc::clone(&made_by));
            async move { correcting.corrections.make(&made_by).await }
        }));
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
                    self.0.push_what_came();
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
                        let keep = |node: Arc<Node>| restart_on_panic(move || touch::keep(Arc::clone(&node), Arc::clone(&peer)));
                        kept.entry(address).or_insert_with(|| keeping.spawn(keep(Arc::clone(node))));
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
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("own", &self.own()).finish_non_exhaustive()
    }
}
