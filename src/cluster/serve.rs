//! The side that is asked: what other gateways want of the states that this one keeps.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::connection::{self, Connection, Failed, Own};
use super::corrections::Correction;
use super::desk::{Desk, Guest, Refusal};
use super::gate::Inside;
use super::handshake::Hello;
use super::members::Beat;
use super::moving::Seen;
use super::processes::{GONE_AFTER, Processes};
use super::ring::RingHash;
use super::session::Outgoing;
use super::wire::{Answer, Ask, Change, Identity, Items, States, Taken, Wanted};
use crate::clock::Clock;
use crate::units::{LimitKey, Nanos};

/// What the members make of beats.
pub(super) trait Listener: Send + Sync {
    /// The peer at `from` said something; what to say to it.
    fn beat(&self, from: SocketAddr, beat: Beat) -> Beat;

    /// The gateway at `from`, which sees the members like that, asks something, and whether that is to charge.
    fn asked_under(&self, ring: RingHash, from: SocketAddr, charges: bool);

    /// Somebody is going to be answered, if this gateway still answers.
    fn enter(&self) -> Option<Inside>;

    /// Whether a gateway of the cluster is at `ip`.
    fn is_neighbour(&self, ip: IpAddr) -> bool;
}

/// Carries states to and fro.
#[async_trait]
pub(super) trait Carrier: Send + Sync {
    /// Whether the state of a key may be elsewhere that is not here, when asked by who sees the members like that.
    fn may_be_elsewhere(&self, ring: RingHash) -> bool;

    /// Whether this gateway owns `key`.
    fn owns(&self, key: LimitKey) -> bool;

    /// Brings states here, from wherever they are.
    async fn gather(&self, wanted: Vec<(Arc<Identity>, LimitKey)>);

    /// Where the states of `keys` are.
    fn seen(&self, keys: &[(u32, LimitKey)]) -> Seen;

    /// Whether the state of the key at this position may be with another gateway since it was `seen`.
    fn has_left(&self, seen: &Seen, position: usize) -> bool;

    /// Waits a moment for all to tell what they hold of `key`, if one is gone who may have counted it.
    async fn hear_all(&self, key: LimitKey);

    /// Gives the state of `key` to `to`, which decides about it now.
    async fn give(&self, to: SocketAddr, limit: &Identity, key: LimitKey) -> Taken;

    /// A key is charged here that another gateway owns.
    fn stands_in(&self);

    /// States came that this node owns in the eyes of who sees the members like that.
    fn receive(&self, states: &States, ring: RingHash);
}

/// Where other gateways are served.
pub(super) struct Serving {
    pub(super) own: Own,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) desk: Arc<dyn Desk>,
    pub(super) listener: Arc<dyn Listener>,
    pub(super) carrier: Arc<dyn Carrier>,
    strangers: Semaphore,
    /// The same for those who come from where a gateway is.
    neighbours: Semaphore,
    processes: Processes,
    quiet: Mutex<HashMap<Option<SocketAddr>, Nanos>>,
}

/// How many connections may be at their handshake: of gateways that are known, and as many of anybody else.
pub const MOST_HANDSHAKES: usize = 2 * MOST_STRANGERS;
const MOST_STRANGERS: usize = 64;
/// How long a handshake may take.
const HANDSHAKE_TIME: Nanos = Nanos::SECOND;
/// How often a request is decided at most because the state on which that was done went away meanwhile.
pub const MOST_TRIES: usize = 4;
/// The same complaint is made once in this time.
const QUIET: Nanos = Nanos::from_secs(10);

impl Serving {
    pub(super) fn new(
        own: Own,
        clock: Arc<dyn Clock>,
        desk: Arc<dyn Desk>,
        (listener, carrier): (Arc<dyn Listener>, Arc<dyn Carrier>),
    ) -> Self {
        Self {
            own,
            clock,
            desk,
            listener,
            carrier,
            strangers: Semaphore::new(MOST_STRANGERS),
            neighbours: Semaphore::new(MOST_STRANGERS),
            processes: Processes::default(),
            quiet: Mutex::default(),
        }
    }

    /// Serves who has connected, until either side ends it.
    pub(super) async fn serve(self: Arc<Self>, stream: TcpStream, from: SocketAddr) {
        // strangers, however many, keep no gateway out
        let places = if self.listener.is_neighbour(from.ip()) { &self.neighbours } else { &self.strangers };
        // one too many finds out by itself that nobody talks to it
        let Ok(place) = places.try_acquire() else { return };
        let accepting = connection::accept(&self.own, stream);
        let accepted = timeout(HANDSHAKE_TIME.to_duration(), accepting).await;
        drop(place);
        match accepted {
            Ok(Ok(connection)) => self.talk(connection).await,
            Ok(Err((peer, failed))) => self.complain(peer, from, &failed),
            Err(_) => self.complain(None, from, &Failed::Foreign),
        }
    }

    fn complain(&self, peer: Option<SocketAddr>, from: SocketAddr, failed: &Failed) {
        let now = self.clock.now();
        let mut quiet = self.quiet.lock();
        quiet.retain(|_, until| now < *until);
        // strangers count as one
        if quiet.len() < MOST_STRANGERS && quiet.insert(peer, now.saturating_add(QUIET)).is_none() {
            let peer = peer.map(tracing::field::display);
            tracing::warn!(peer, %from, reason = %failed, "a connection to the cluster's port is refused");
        }
    }

    async fn talk(self: &Arc<Self>, connection: Connection) {
        let Connection { mut reader, writer, other } = connection;
        let arrived = Arrived::new(self, other.boot, other.from);
        let guest = Arc::clone(&self.desk).receive(other.boot);
        let answers = Outgoing::default();
        let sending = answers.clone();
        tokio::spawn(async move { sending.send_all(writer, None).await });
        let reading = async {
            while let Ok(frame) = reader.frame().await {
                let Some((ring, asks)) = Items::<Ask>::asked(frame) else { return };
                let Some(inside) = self.listener.enter() else { return };
                let now = self.clock.now();
                let mut told = Vec::new();
                for item in asks {
                    let Some((number, ask)) = item else { return };
                    self.listener.asked_under(ring, other.from, matches!(ask, Ask::Charge { .. }));
                    match self.answer(ask, (&other, ring), &*guest, now) {
                        Answered::Now(answer) => told.push((number, answer)),
                        Answered::Never => {}
                        Answered::Later(later) => {
                            let (serving, guest, answers) = (Arc::clone(self), Arc::clone(&guest), answers.clone());
                            let inside = inside.clone();
                            tokio::spawn(async move {
                                let _inside = inside;
                                answers.push([(number, serving.answer_later(later, other.from, &*guest).await)]);
                            });
                        }
                    }
                }
                answers.push(told);
            }
        };
        tokio::select! {
            () = reading => {}
            () = answers.ended() => {}
        }
        answers.end();
        drop(arrived);
    }

    fn answer(&self, ask: Ask, (other, ring): (&Hello, RingHash), guest: &dyn Guest, now: Nanos) -> Answered {
        match ask {
            Ask::Learn { limit, parameters } => {
                guest.learn(&limit, &parameters);
                return Answered::Never;
            }
            Ask::Take { limit, key } => return Answered::Later(Later::Take(limit, key)),
            Ask::Charge { wanted, as_is: false } => return self.work(Work::Charge(wanted), ring, guest, now),
            // what is held is told by all who hold some, once they know that the owner is gone
            Ask::Charge { wanted, as_is: true } if wanted.iter().any(|wanted| wanted.slot > 0) => {
                return Answered::Later(Later::StandIn(wanted));
            }
            Ask::Charge { wanted, as_is: true } => return Answered::Now(self.as_is(&Work::Charge(wanted), guest, now)),
            Ask::Change { number, change } => {
                if self.processes.is_new(other.boot, number) {
                    return self.work(Work::Change(change), ring, guest, now);
                }
            }
            Ask::Beat(beat) => return Answered::Now(Answer::Beat(self.listener.beat(other.from, beat))),
            Ask::Put { ring, states } => self.carrier.receive(&states, ring),
            Ask::Spoken => self.processes.spoke(other.boot, now),
        }
        Answered::Now(Answer::Done)
    }

    /// Does it at once where all states are here or nowhere.
    fn work(&self, work: Work, ring: RingHash, guest: &dyn Guest, now: Nanos) -> Answered {
        let keys = work.keys();
        let seen = self.carrier.seen(&keys);
        let is_moved = || matches!(work, Work::Change(_)) && keys.iter().any(|(_, key)| !self.carrier.owns(*key));
        if (self.carrier.may_be_elsewhere(ring) || is_moved()) && !guest.unknown(&keys).is_empty() {
            return Answered::Later(Later::Work(work));
        }
        match work.attempt(guest, &|position| self.carrier.has_left(&seen, position), now) {
            Some(answer) => Answered::Now(answer),
            None => Answered::Later(Later::Work(work)),
        }
    }

    async fn answer_later(&self, later: Later, from: SocketAddr, guest: &dyn Guest) -> Answer {
        match later {
            Later::Take(limit, key) => Answer::Taken(self.carrier.give(from, &limit, key).await),
            Later::Work(work) => self.work_later(&work, guest).await,
            Later::StandIn(wanted) => {
                for held in wanted.iter().filter(|wanted| wanted.slot > 0) {
                    self.carrier.hear_all(held.key).await;
                }
                self.as_is(&Work::Charge(wanted), guest, self.clock.now())
            }
        }
    }

    /// Does it once the states are here, wherever they were.
    async fn work_later(&self, work: &Work, guest: &dyn Guest) -> Answer {
        let keys = work.keys();
        for _ in 0..MOST_TRIES {
            let seen = self.carrier.seen(&keys);
            self.carrier.gather(guest.unknown(&keys)).await;
            let has_left = |position| self.carrier.has_left(&seen, position);
            if let Some(answer) = work.attempt(guest, &has_left, self.clock.now()) {
                // what came here for a correction may belong elsewhere
                if matches!(work, Work::Change(_)) {
                    self.carrier.stands_in();
                }
                return answer;
            }
        }
        self.as_is(work, guest, self.clock.now())
    }

    /// Does it on the states that are here, whoever else may have some.
    fn as_is(&self, work: &Work, guest: &dyn Guest, now: Nanos) -> Answer {
        self.carrier.stands_in();
        work.attempt(guest, &|_| false, now).unwrap_or(Answer::Unknown)
    }

    /// Corrects what was charged here, once the state has come.
    pub(super) async fn correct(&self, correction: &Correction) {
        let guest = Arc::clone(&self.desk).receive(self.own.boot);
        let form = &correction.part().form;
        guest.learn(form.limit(), form.parameters());
        self.work_later(&Work::Change(correction.change(0)), &*guest).await;
    }

    /// Gives back what processes held that are gone. Nobody listens at those addresses for which `refuses` holds.
    pub(super) fn tidy(&self, refuses: impl Fn(SocketAddr) -> bool) {
        let now = self.clock.now();
        self.processes.take_gone(refuses, now).into_iter().for_each(|boot| self.desk.release(boot, now));
        let spoke = self.processes.all_spoke();
        // of one that is not known here something came with states: it speaks at once, or it is gone
        let until = |boot| spoke.get(&boot).copied().unwrap_or(now).saturating_sub(GONE_AFTER);
        self.desk.release_unheard(&until, now);
    }
}

enum Answered {
    Now(Answer),
    Never,
    Later(Later),
}

/// What is answered once states have moved.
enum Later {
    Take(Identity, LimitKey),
    Work(Work),
    /// In place of an owner that the asker cannot ask.
    StandIn(Vec<Wanted>),
}

/// What is done to the states of keys.
enum Work {
    Charge(Vec<Wanted>),
    Change(Change),
}

impl Work {
    /// Of which keys, each beside its parameters. What is held is given back wherever it is, and needs no state.
    fn keys(&self) -> SmallVec<[(u32, LimitKey); 4]> {
        match self {
            Self::Charge(wanted) => wanted.iter().map(|wanted| (wanted.rule, wanted.key)).collect(),
            Self::Change(Change::Refund { rule, key, .. } | Change::Debit { rule, key, .. }) => {
                SmallVec::from_slice(&[(*rule, *key)])
            }
            Self::Change(Change::Complete { .. }) => SmallVec::new(),
        }
    }

    /// `None` where a state is not here and, as `has_left` says by its position, may be elsewhere.
    fn attempt(&self, guest: &dyn Guest, has_left: &dyn Fn(usize) -> bool, now: Nanos) -> Option<Answer> {
        let done = match self {
            Self::Charge(wanted) => guest.charge(wanted, has_left, now).map(|told| Answer::Charged { at: now, told }),
            Self::Change(change) => guest.change(change, &|| has_left(0), now).map(|()| Answer::Done),
        };
        match done {
            Ok(answer) => Some(answer),
            Err(Refusal::Left) => None,
            // there is nothing to correct either
            Err(Refusal::Unknown) if matches!(self, Self::Change(_)) => Some(Answer::Done),
            Err(Refusal::Unknown) => Some(Answer::Unknown),
        }
    }
}

/// A connection that counts for its process.
struct Arrived<'a> {
    serving: &'a Serving,
    boot: u64,
}

impl<'a> Arrived<'a> {
    fn new(serving: &'a Serving, boot: u64, address: SocketAddr) -> Self {
        serving.processes.arrived(boot, address);
        Self { serving, boot }
    }
}

impl Drop for Arrived<'_> {
    fn drop(&mut self) {
        self.serving.processes.left(self.boot, self.serving.clock.now());
    }
}
