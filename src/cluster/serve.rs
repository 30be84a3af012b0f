//! The answering side: serves other gateways' requests about the states that this gateway keeps.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::slice;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;

use super::Cluster;
use super::connection::{self, ConnectError, Connection};
use super::corrections::Correction;
use super::drain_latch::InFlight;
use super::handshake::Hello;
use super::migration::OwnershipEpoch;
use super::platform::Stream;
use super::processes::GONE_AFTER;
use super::ring::RingHash;
use super::session::Outgoing;
use super::state_service::{ChargeError, PeerSession, StateService};
use super::wire::{Answer, Ask, ChargeRequest, CorrectionRequest, Items, LimitIdentity};
use crate::units::{LimitKey, Nanos};

/// The server for the requests of other gateways.
pub(super) struct PeerServer {
    cluster: Arc<Cluster>,
    service: Arc<dyn StateService>,
    unknown_handshakes: Semaphore,
    /// The limit of concurrent handshakes from addresses of known gateways, like the one for other addresses.
    known_handshakes: Semaphore,
    quiet: Mutex<HashMap<Option<SocketAddr>, Nanos>>,
}

/// The maximum number of concurrent handshakes: one half for addresses of known gateways, the other half for all others.
pub const MAX_HANDSHAKES: usize = 2 * MAX_PER_ORIGIN;
const MAX_PER_ORIGIN: usize = 64;
/// The timeout of a handshake.
const HANDSHAKE_TIME: Nanos = Nanos::SECOND;
/// How long a correction may wait for a state that moves. No request waits for the correction.
const CHANGE_PATIENCE: Nanos = Nanos::from_secs(10);
/// The time in which refused connections of the same gateway are logged only once.
const QUIET: Nanos = Nanos::from_secs(10);

impl PeerServer {
    pub(super) fn new(cluster: Arc<Cluster>, service: Arc<dyn StateService>) -> Self {
        Self {
            cluster,
            service,
            unknown_handshakes: Semaphore::new(MAX_PER_ORIGIN),
            known_handshakes: Semaphore::new(MAX_PER_ORIGIN),
            quiet: Mutex::default(),
        }
    }

    /// Serves a connection until either side ends it.
    pub(super) async fn serve(self: Arc<Self>, stream: Stream, from: SocketAddr) {
        // connections from other addresses, however many, never block a known gateway
        let places =
            if self.cluster.is_known_address(from.ip()) { &self.known_handshakes } else { &self.unknown_handshakes };
        // a connection beyond the maximum is dropped without an answer
        let Ok(place) = places.try_acquire() else { return };
        let accepting = connection::accept(&self.cluster.context.own, stream);
        let accepted = timeout(HANDSHAKE_TIME.to_duration(), accepting).await;
        drop(place);
        match accepted {
            Ok(Ok(connection)) => self.talk(connection).await,
            Ok(Err((peer, failed))) => self.complain(peer, from, &failed),
            Err(_) => self.complain(None, from, &ConnectError::Foreign),
        }
    }

    fn complain(&self, peer: Option<SocketAddr>, from: SocketAddr, failed: &ConnectError) {
        let now = self.cluster.context.clock.now();
        let mut quiet = self.quiet.lock();
        quiet.retain(|_, until| now < *until);
        // all connections without a known address count as one
        if quiet.len() < MAX_PER_ORIGIN && quiet.insert(peer, now.saturating_add(QUIET)).is_none() {
            let peer = peer.map(tracing::field::display);
            tracing::warn!(peer, %from, reason = %failed, "refused a connection to the cluster's port");
        }
    }

    async fn talk(self: &Arc<Self>, connection: Connection) {
        let Connection { mut reader, writer, other } = connection;
        let arrived = Arrived::new(self, other.process, other.from);
        let session = Arc::clone(&self.service).open_session(other.process);
        let gone = arrived.gone.notified();
        let (answers, queued) = Outgoing::new();
        let answers = Arc::new(answers);
        let reading = async {
            while let Ok(frame) = reader.frame().await {
                let Some((ring, asks)) = Items::<Ask>::asked(frame) else { return };
                let Some(in_flight) = self.cluster.enter() else { return };
                let now = self.cluster.context.clock.now();
                for item in asks {
                    let Some((number, ask)) = item else { return };
                    self.cluster.asked_under(ring, other.from, matches!(ask, Ask::Charge { .. }));
                    match self.answer(ask, &other, ring, &*session, now) {
                        Disposition::Now(answer) => {
                            answers.push(Reply { number, answer, _in_flight: in_flight.clone() })
                        }
                        Disposition::Never => {}
                        Disposition::Later(later) => {
                            let (server, session, answers) =
                                (Arc::clone(self), Arc::clone(&session), Arc::clone(&answers));
                            let _in_flight = in_flight.clone();
                            tokio::spawn(async move {
                                let answer = server.answer_later(later, other.from, &*session).await;
                                answers.push(Reply { number, answer, _in_flight });
                            });
                        }
                    }
                }
            }
        };
        tokio::select! {
            biased;
            () = gone => {}
            () = queued.serve(writer, None, reading) => {}
        }
    }

    fn answer(&self, ask: Ask, other: &Hello, ring: RingHash, session: &dyn PeerSession, now: Nanos) -> Disposition {
        match ask {
            Ask::Learn { limit, parameters } => {
                session.learn(&limit, &parameters);
                return Disposition::Never;
            }
            Ask::Take { limit, key } => return Disposition::Later(Later::Take(limit, key)),
            Ask::Charge { wanted, stands_in } => {
                return self.work(Work::Charge { wanted, stands_in }, ring, session, now);
            }
            Ask::Change { number, change } => {
                if self.cluster.processes.is_new(other.process, number) {
                    return self.work(Work::Change(change), ring, session, now);
                }
            }
            Ask::Heartbeat(beat) => {
                self.cluster.processes.record_heartbeat(other.process);
                return Disposition::Now(Answer::Heartbeat(self.cluster.handle_heartbeat(other.from, beat)));
            }
            Ask::Put { ring, states } => self.cluster.receive(&states, ring),
            Ask::SlotsAnnounced => self.cluster.processes.announced(other.process, now),
        }
        Disposition::Now(Answer::Done)
    }

    /// Does `work` at once unless another gateway may have the states.
    fn work(&self, work: Work, ring: RingHash, session: &dyn PeerSession, now: Nanos) -> Disposition {
        if let Some(owner) = self.redirects(&work) {
            return Disposition::Now(Answer::NotOwner(owner));
        }
        let (epoch, foreign) = (self.ownership_epoch(&work), self.foreign(&work));
        if (self.cluster.may_be_elsewhere(ring) || foreign > 0) && !session.unknown(work.parts()).is_empty() {
            return Disposition::Later(Later::Work(work));
        }
        match self.attempt(&work, session, &|position| self.cluster.may_have_moved(&epoch, position), now) {
            Some(answer) => Disposition::Now(self.note_stand_in(answer, foreign)),
            None => Disposition::Later(Later::Work(work)),
        }
    }

    fn ownership_epoch(&self, work: &Work) -> OwnershipEpoch {
        self.cluster.ownership_epoch(work.parts().iter().map(|part| part.key))
    }

    /// How many keys of `work` other gateways own.
    fn foreign(&self, work: &Work) -> u64 {
        work.parts().iter().map(|part| u64::from(!self.cluster.owns(part.key))).sum()
    }

    /// Counts the charges in `answer` of as many keys as are `foreign`, and has states that changed here pushed to the owners.
    fn note_stand_in(&self, answer: Answer, foreign: u64) -> Answer {
        match answer {
            Answer::Charged { .. } if foreign > 0 => self.cluster.count_stand_ins(foreign),
            _ if foreign > 0 => self.cluster.note_stand_in(),
            _ => {}
        }
        answer
    }

    /// The reachable gateway that owns a key of `work`, unless this gateway must decide regardless of the owner.
    fn redirects(&self, work: &Work) -> Option<SocketAddr> {
        match work {
            Work::Charge { wanted, stands_in: false } => {
                wanted.iter().find_map(|part| self.cluster.reachable_owner(part.key))
            }
            Work::Charge { stands_in: true, .. } | Work::Change(_) => None,
        }
    }

    async fn answer_later(&self, later: Later, from: SocketAddr, session: &dyn PeerSession) -> Answer {
        match later {
            Later::Take(limit, key) => Answer::TakenState(self.cluster.give(from, &limit, key).await),
            Later::Work(work) => self.work_later(&work, session).await,
        }
    }

    /// Does `work` once the states have been fetched, or with the states that are here if that takes too long.
    async fn work_later(&self, work: &Work, session: &dyn PeerSession) -> Answer {
        // the gateway that sent the charge has a timeout as well
        let patience = match work {
            Work::Charge { .. } => Nanos::new(self.cluster.context.timeout.get() / 4 * 3),
            Work::Change(_) => CHANGE_PATIENCE,
        };
        let done = timeout(patience.to_duration(), self.work_where_states_are(work, session)).await;
        done.unwrap_or_else(|_| {
            let answer = self.attempt(work, session, &|_| false, self.cluster.context.clock.now());
            self.note_stand_in(answer.unwrap_or(Answer::UnknownParameters), self.foreign(work))
        })
    }

    /// Does `work` once the states have been fetched. Tries again while they move.
    async fn work_where_states_are(&self, work: &Work, session: &dyn PeerSession) -> Answer {
        loop {
            if let Some(owner) = self.redirects(work) {
                return Answer::NotOwner(owner);
            }
            let epoch = self.ownership_epoch(work);
            let _fetches = self.cluster.fetch_states(session.unknown(work.parts())).await;
            let may_have_moved = |position| self.cluster.may_have_moved(&epoch, position);
            if let Some(answer) = self.attempt(work, session, &may_have_moved, self.cluster.context.clock.now()) {
                return self.note_stand_in(answer, self.foreign(work));
            }
            // yield, so that the timeout is checked
            tokio::task::yield_now().await;
        }
    }

    /// Does `work`. Returns `None` if a state is missing that another gateway may have: `may_have_moved` says
    /// so by position.
    fn attempt(
        &self,
        work: &Work,
        session: &dyn PeerSession,
        may_have_moved: &dyn Fn(usize) -> bool,
        now: Nanos,
    ) -> Option<Answer> {
        let done = match work {
            Work::Charge { wanted, .. } => session
                .charge(wanted, may_have_moved, now)
                .map(|replies| Answer::Charged { at: self.cluster.context.clock.wall_at(now), replies }),
            Work::Change(change) => session.change(change, &|| may_have_moved(0), now).map(|()| Answer::Done),
        };
        match done {
            Ok(answer) => Some(answer),
            Err(ChargeError::StateElsewhere) => None,
            // under unknown parameters nothing was charged, so there is nothing to correct
            Err(ChargeError::UnknownParameters) if matches!(work, Work::Change(_)) => Some(Answer::Done),
            Err(ChargeError::UnknownParameters) => Some(Answer::UnknownParameters),
        }
    }

    /// Makes the corrections of charges that this gateway made, or another one that is gone, until dropped.
    pub(super) async fn make_corrections(self: Arc<Self>) {
        self.cluster.corrections.make(|correction| Arc::clone(&self).correct(correction)).await;
    }

    /// Makes a correction, once this gateway has fetched the state.
    async fn correct(self: Arc<Self>, correction: Correction) {
        let session = Arc::clone(&self.service).open_session(self.cluster.context.own.process);
        let rule = &correction.part().rule;
        session.learn(rule.limit(), rule.parameters());
        self.work_later(&Work::Change(correction.with_rule(0)), &*session).await;
    }

    /// Releases the slots of processes that are gone, and slots that are no longer reported. `refuses` says whether an
    /// address refuses connections.
    pub(super) fn release_gone(&self, refuses: impl Fn(SocketAddr) -> bool) {
        let now = self.cluster.context.clock.now();
        self.cluster
            .processes
            .take_gone(refuses)
            .into_iter()
            .for_each(|process| self.service.release_process(process, now));
        let announced = self.cluster.processes.all_announced();
        // slots of an unknown process arrived with states: it reports them soon, or it is gone
        let until = |process| announced.get(&process).copied().unwrap_or(now).saturating_sub(GONE_AFTER);
        self.service.release_stale_slots(&until, now);
    }
}

/// An answer in the queue. Its request stays in flight until the answer is written: if this gateway ended before, a
/// state that it gives away would be lost with it.
#[derive(Serialize)]
struct Reply {
    number: u64,
    answer: Answer,
    #[serde(skip)]
    _in_flight: InFlight,
}

enum Disposition {
    Now(Answer),
    Never,
    Later(Later),
}

/// A request that this gateway answers after states have moved.
enum Later {
    Take(LimitIdentity, LimitKey),
    Work(Work),
}

/// A request that changes the states of keys.
enum Work {
    /// See [`Ask::Charge`].
    Charge {
        wanted: Vec<ChargeRequest>,
        stands_in: bool,
    },
    Change(CorrectionRequest),
}

impl Work {
    /// The charges whose keys' states the work needs. Returning a slot needs no state.
    const fn parts(&self) -> &[ChargeRequest] {
        match self {
            Self::Charge { wanted, .. } => wanted.as_slice(),
            Self::Change(CorrectionRequest::Refund { part, .. } | CorrectionRequest::Debit(part)) => {
                slice::from_ref(part)
            }
            Self::Change(CorrectionRequest::Complete(..)) => &[],
        }
    }
}

/// Counts a connection for its process, until dropped.
struct Arrived<'a> {
    server: &'a PeerServer,
    process: u64,
    /// Notified when the process is gone.
    gone: Arc<Notify>,
}

impl<'a> Arrived<'a> {
    fn new(server: &'a PeerServer, process: u64, address: SocketAddr) -> Self {
        let gone = server.cluster.processes.arrived(process, address);
        Self { server, process, gone }
    }
}

impl Drop for Arrived<'_> {
    fn drop(&mut self) {
        self.server.cluster.processes.disconnected(self.process);
    }
}
