//! The side that is asked: what other gateways want of the states that this one keeps.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::connection::{self, Connection, Failed, Own};
use super::desk::{Desk, Guest};
use super::gate::Inside;
use super::handshake::Hello;
use super::members::Beat;
use super::processes::{GONE_AFTER, Processes};
use super::ring::RingHash;
use super::session::Outgoing;
use super::wire::{Answer, Ask, Change, Identity, Items, States, Taken, Told, Wanted};
use crate::clock::Clock;
use crate::units::{LimitKey, Nanos};

/// What the members make of beats.
pub(super) trait Listener: Send + Sync {
    /// The peer at `from` said something; what to say to it.
    fn beat(&self, from: SocketAddr, beat: Beat) -> Beat;

    /// Charges came from a gateway that sees other members.
    fn asked_under(&self, ring: RingHash);

    /// Somebody is going to be answered, if this gateway still answers.
    fn enter(&self) -> Option<Inside<'_>>;

    /// Whether a gateway of the cluster is at `ip`.
    fn is_neighbour(&self, ip: IpAddr) -> bool;
}

/// Carries states to and fro.
#[async_trait]
pub(super) trait Carrier: Send + Sync {
    /// Whether the state of a key may be elsewhere that is not here, when asked by who sees the members like that.
    fn may_be_elsewhere(&self, ring: RingHash) -> bool;

    /// Brings states here, from wherever they are.
    async fn gather(&self, wanted: Vec<(Arc<Identity>, LimitKey)>);

    /// Another number whenever the state of `key` has been given away.
    fn departures(&self, key: LimitKey) -> u64;

    /// Waits a moment for all to tell what they hold of `key`, if one is gone who may have counted it.
    async fn hear_all(&self, key: LimitKey);

    /// Gives the state of `key` to `to`, which decides about it now.
    async fn give(&self, to: SocketAddr, limit: &Identity, key: LimitKey) -> Taken;

    /// States came from a gateway that sees the members like that.
    fn receive(&self, all: &[States], ring: RingHash);
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

/// How many connections may be at their handshake, and how long that may take.
const MOST_STRANGERS: usize = 64;
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
                let Some(_inside) = self.listener.enter() else { return };
                let now = self.clock.now();
                let mut told = Vec::new();
                let mut charges = false;
                for item in asks {
                    let Some((number, ask)) = item else { return };
                    charges |= matches!(ask, Ask::Charge { .. });
                    let ask = match self.needs_time(ask, &*guest, ring) {
                        Ok(later) => {
                            let (serving, guest, answers) = (Arc::clone(self), Arc::clone(&guest), answers.clone());
                            tokio::spawn(async move {
                                answers.push([(number, serving.answer_later(later, other.from, &*guest).await)]);
                            });
                            continue;
                        }
                        Err(ask) => ask,
                    };
                    match self.answer(ask, (&other, ring), &*guest, now) {
                        Answered::Now(answer) => told.push((number, answer)),
                        Answered::Never => {}
                    }
                }
                if charges {
                    self.listener.asked_under(ring);
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

    /// What has to be waited for before it can be answered, if anything has.
    fn needs_time(&self, ask: Ask, guest: &dyn Guest, ring: RingHash) -> Result<Later, Ask> {
        match ask {
            Ask::Take { limit, key } => Ok(Later::Take(limit, key)),
            Ask::Charge { wanted, as_is: false } if self.carrier.may_be_elsewhere(ring) => {
                match guest.unknown(&wanted) {
                    unknown if unknown.is_empty() => Err(Ask::Charge { wanted, as_is: false }),
                    unknown => Ok(Later::Charge { wanted, unknown }),
                }
            }
            // what is held is told by all who hold some, once they know that the owner is gone
            Ask::Charge { wanted, as_is: true } if wanted.iter().any(|wanted| wanted.slot > 0) => {
                Ok(Later::StandIn(wanted))
            }
            ask => Err(ask),
        }
    }

    async fn answer_later(&self, later: Later, from: SocketAddr, guest: &dyn Guest) -> Answer {
        match later {
            Later::Take(limit, key) => Answer::Taken(self.carrier.give(from, &limit, key).await),
            Later::Charge { wanted, unknown } => {
                for _ in 0..MOST_TRIES {
                    let before = self.departures(&wanted);
                    self.carrier.gather(unknown.clone()).await;
                    let now = self.clock.now();
                    let told = guest.charge(&wanted, now);
                    // others were served before this went on
                    match told {
                        Some(told) if before != self.departures(&wanted) => guest.take_back(&wanted, &told, now),
                        told => return charged(told, now),
                    }
                }
                charge(guest, &wanted, self.clock.now())
            }
            Later::StandIn(wanted) => {
                for held in wanted.iter().filter(|wanted| wanted.slot > 0) {
                    self.carrier.hear_all(held.key).await;
                }
                charge(guest, &wanted, self.clock.now())
            }
        }
    }

    /// Another number whenever a state that counts what runs, of a key of `wanted`, has been given away.
    fn departures(&self, wanted: &[Wanted]) -> u64 {
        let held = wanted.iter().filter(|wanted| wanted.slot > 0);
        held.fold(0, |sum, wanted| sum.wrapping_add(self.carrier.departures(wanted.key)))
    }

    fn answer(&self, ask: Ask, (other, ring): (&Hello, RingHash), guest: &dyn Guest, now: Nanos) -> Answered {
        match ask {
            Ask::Learn { limit, parameters } => {
                guest.learn(&limit, &parameters);
                Answered::Never
            }
            Ask::Charge { wanted, .. } => Answered::Now(charge(guest, &wanted, now)),
            Ask::Change { number, change } => {
                if self.processes.is_new(other.boot, number) {
                    make(&change, guest, now);
                }
                Answered::Now(Answer::Done)
            }
            Ask::Beat(beat) => Answered::Now(Answer::Beat(self.listener.beat(other.from, beat))),
            Ask::Put(states) => {
                self.carrier.receive(&states, ring);
                Answered::Now(Answer::Done)
            }
            Ask::Spoken => {
                self.processes.spoke(other.boot, now);
                Answered::Now(Answer::Done)
            }
            // see `needs_time`
            Ask::Take { .. } => Answered::Never,
        }
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
}

/// What is answered once states have moved.
enum Later {
    Take(Identity, LimitKey),
    Charge {
        wanted: Vec<Wanted>,
        unknown: Vec<(Arc<Identity>, LimitKey)>,
    },
    /// In place of an owner that the asker cannot ask.
    StandIn(Vec<Wanted>),
}

fn charge(guest: &dyn Guest, wanted: &[Wanted], now: Nanos) -> Answer {
    charged(guest.charge(wanted, now), now)
}

fn charged(told: Option<Vec<Told>>, now: Nanos) -> Answer {
    match told {
        Some(told) => Answer::Charged { at: now, told },
        None => Answer::Unknown,
    }
}

fn make(change: &Change, guest: &dyn Guest, now: Nanos) {
    match change {
        Change::Refund { rule, key, cost, full_at } => guest.refund(*rule, *key, *cost, *full_at, now),
        Change::Debit { rule, key, cost } => guest.debit(*rule, *key, *cost, now),
        Change::Complete { rule, key, slot, end } => guest.complete(*rule, *key, *slot, *end, now),
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
