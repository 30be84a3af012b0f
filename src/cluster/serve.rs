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
use super::gate::Inside;
use super::handshake::Hello;
use super::members::Beat;
use super::moving::{Received, Walk};
use super::peer::Peer;
use super::ring::RingHash;
use super::session::Outgoing;
use super::wire::{Answer, Ask, Change, Identity, Items, States, Taken, Told, Wanted};
use crate::algorithm::{Completion, Parameters};
use crate::clock::Clock;
use crate::units::{Cost, LimitKey, Nanos};

/// Who keeps states, as other gateways' questions reach it.
pub trait Desk: Send + Sync {
    /// The side of one connection, from the process `boot`.
    fn receive(self: Arc<Self>, boot: u64) -> Arc<dyn Guest>;

    /// The process `boot` is gone: what it held while requests ran comes back.
    fn release(&self, boot: u64, now: Nanos);

    /// Takes out the state of a key, if there is one that may be moved.
    fn take(&self, limit: &Identity, key: LimitKey) -> Option<States>;

    /// Takes out states that belong elsewhere, where `to` says, in a part of what is kept. Those of one place together.
    /// `to` is asked while the key's place is locked: what it notes is known before anybody misses the state.
    fn take_moved(&self, walk: &mut Walk, to: &dyn Fn(LimitKey) -> Option<usize>, now: Nanos) -> Vec<(usize, States)>;

    /// Puts in states that came from elsewhere, and what requests hold. States that are here already stay.
    fn put(&self, states: &States, now: Nanos) -> Received;

    /// What requests of this process hold that those who own the keys now have not been told of at `since` or later, and
    /// to whom that is to be told. What is held of keys that this gateway owns is put in place.
    fn running(&self, since: Nanos, now: Nanos) -> Vec<(Arc<Peer>, States)>;

    /// The gateway of this number was told at `now` of what stands in `states`.
    fn told(&self, peer: u32, states: &States, now: Nanos);

    /// Gives back what was not told of since `until`, which says that of each process.
    fn release_unheard(&self, until: &dyn Fn(u64) -> Nanos, now: Nanos);
}

/// One connection's side of a [`Desk`]. Parameters are known by the order in which they were learnt.
pub trait Guest: Send + Sync {
    /// Makes parameters known, be they understood or not.
    fn learn(&self, limit: &Identity, parameters: &Parameters);

    /// The keys of `wanted` of which there is no state here.
    fn unknown(&self, wanted: &[Wanted]) -> Vec<(Arc<Identity>, LimitKey)>;

    /// Charges all of `wanted` or none. `None` where some parameters are not understood.
    fn charge(&self, wanted: &[Wanted], now: Nanos) -> Option<Vec<Told>>;

    /// Takes back what came of `wanted` at `now`.
    fn take_back(&self, wanted: &[Wanted], told: &[Told], now: Nanos);

    /// Takes back `cost` of what was charged to `key`, which was going to be whole at `full_at`.
    fn refund(&self, rule: u32, key: LimitKey, cost: Cost, full_at: Nanos, now: Nanos);

    /// Charges `cost` to `key` whatever the limit says.
    fn debit(&self, rule: u32, key: LimitKey, cost: Cost, now: Nanos);

    /// Gives back what the process holds of `key` under `slot`, or keeps it from being held if its charge comes later.
    fn complete(&self, rule: u32, key: LimitKey, slot: u64, end: Completion, now: Nanos);
}

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
    processes: Mutex<HashMap<u64, Process>>,
    quiet: Mutex<HashMap<Option<SocketAddr>, Nanos>>,
}

/// A process that has asked something.
struct Process {
    address: SocketAddr,
    connections: usize,
    /// When its last connection ended.
    left: Nanos,
    /// When it had told of all that it holds.
    spoke: Nanos,
    made: Made,
}

/// How many connections may be at their handshake, and how long that may take.
const MOST_STRANGERS: usize = 64;
const HANDSHAKE_TIME: Nanos = Nanos::SECOND;
/// How long a process that has no connection is believed to live.
const GONE_AFTER: Nanos = Nanos::from_secs(15);
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
            processes: Mutex::default(),
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
                let is_new =
                    self.processes.lock().get_mut(&other.boot).is_some_and(|process| process.made.is_new(number));
                if is_new {
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
                if let Some(process) = self.processes.lock().get_mut(&other.boot) {
                    process.spoke = now;
                }
                Answered::Now(Answer::Done)
            }
            // see `needs_time`
            Ask::Take { .. } => Answered::Never,
        }
    }

    /// Gives back what processes held that are gone. Nobody listens at those addresses for which `refuses` holds.
    pub(super) fn tidy(&self, refuses: impl Fn(SocketAddr) -> bool) {
        let now = self.clock.now();
        let mut gone = Vec::new();
        self.processes.lock().retain(|boot, process| {
            let waited = now.saturating_sub(process.left) >= GONE_AFTER;
            let stays = process.connections > 0 || !(waited || refuses(process.address));
            if !stays {
                gone.push(*boot);
            }
            stays
        });
        gone.into_iter().for_each(|boot| self.desk.release(boot, now));
        let spoke: HashMap<u64, Nanos> =
            self.processes.lock().iter().map(|(boot, process)| (*boot, process.spoke)).collect();
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
        let fresh =
            || Process { address, connections: 0, left: Nanos::ZERO, spoke: Nanos::ZERO, made: Made::default() };
        let mut processes = serving.processes.lock();
        let process = processes.entry(boot).or_insert_with(fresh);
        process.connections = process.connections.saturating_add(1);
        Self { serving, boot }
    }
}

impl Drop for Arrived<'_> {
    fn drop(&mut self) {
        if let Some(process) = self.serving.processes.lock().get_mut(&self.boot) {
            process.connections = process.connections.saturating_sub(1);
            process.left = self.serving.clock.now();
        }
    }
}

/// Which changes of a process were made: the last ones by their numbers, and all before those.
#[derive(Default)]
struct Made {
    largest: u64,
    /// A bit for each of the last numbers, at its rest by their count.
    last: Vec<u64>,
}

/// So many numbers are told apart; more than that are never under way at once.
const TOLD_APART: u64 = 1 << 17;

impl Made {
    /// Whether the change of this number was not made before; from here on it was.
    fn is_new(&mut self, number: u64) -> bool {
        if self.last.is_empty() {
            self.last = vec![0; usize::try_from(TOLD_APART / 64).unwrap_or_default()];
        }
        if number.saturating_add(TOLD_APART) <= self.largest {
            return false;
        }
        if number > self.largest {
            let passed = number.saturating_sub(self.largest).min(TOLD_APART);
            for skipped in number.saturating_sub(passed).saturating_add(1)..=number {
                let (word, bit) = place(skipped);
                self.last[word] &= !bit;
            }
            self.largest = number;
        }
        let (word, bit) = place(number);
        let is_new = self.last[word] & bit == 0;
        self.last[word] |= bit;
        is_new
    }
}

/// Where the bit of a number stands.
fn place(number: u64) -> (usize, u64) {
    let rest = number % TOLD_APART;
    (usize::try_from(rest / 64).unwrap_or_default(), 1 << (rest % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_made_once_whatever_order_they_come_in() {
        let mut made = Made::default();
        assert!([3, 1, 2, 70].into_iter().all(|number| made.is_new(number)));
        assert!([3, 1, 2, 70].into_iter().all(|number| !made.is_new(number)));
        assert!(made.is_new(TOLD_APART + 70));
        // too old to be told apart: as if it had been made
        assert!(!made.is_new(69) && !made.is_new(70));
        assert!(made.is_new(71) && !made.is_new(71));
        assert!(made.is_new(10 * TOLD_APART) && made.is_new(10 * TOLD_APART - 1));
    }
}
