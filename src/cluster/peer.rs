//! Another gateway of the cluster, as the target of this gateway's requests.
//!
//! Each thread has its own connection, so that no thread wakes another one. The control connection carries heartbeats
//! and corrections, for which no request waits. A gateway that does not answer in time is *suspected*: this gateway
//! sends it no charges until it answers a heartbeat.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot};
use tokio::time::{sleep, timeout};

use super::connection::{self, ConnectError, Connection, OwnIdentity};
use super::corrections::{Correction, Pending};
use super::members::Heartbeat;
use super::platform::Platform;
use super::session::{PeerCharge, ReplyCallback, Session, WireRule};
use super::wire::{Answer, Ask, ChargeReply};
use crate::algorithm::Completion;
use crate::clock::Clock;
use crate::stripes::thread_number;
use crate::units::Nanos;

/// Called for every request for charges, with the gateway, the outcome and how long it took.
pub type PeerObserver = Box<dyn Fn(SocketAddr, Outcome, Nanos) + Send + Sync>;

/// The outcome of a request for charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The other gateway answered.
    Ok,
    /// No answer came in time.
    TimedOut,
    /// The connection ended.
    Cut,
    /// There was no connection.
    Unreachable,
    /// The other gateway does not understand the limit's parameters.
    UnknownParameters,
    /// The other gateway does not own the key. It names the owner.
    NotOwner(SocketAddr),
}

impl Outcome {
    /// The outcome as one word for metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::TimedOut => "timeout",
            Self::Cut => "cut",
            Self::Unreachable => "unreachable",
            Self::UnknownParameters => "unknown",
            Self::NotOwner(_) => "not_owner",
        }
    }
}

/// The parts that this gateway needs to send requests to others.
pub(super) struct PeerContext {
    pub(super) own: OwnIdentity,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) platform: Arc<dyn Platform>,
    pub(super) timeout: Nanos,
    pub(super) observer: PeerObserver,
    /// The hash of the ring that this gateway sees.
    pub(super) ring: Arc<AtomicU64>,
    /// How many threads send requests.
    pub(super) threads: usize,
}

/// Another gateway.
pub struct Peer {
    /// Its address in the cluster.
    pub address: SocketAddr,
    /// Identifies it among all gateways that this process ever knew.
    pub number: u32,
    context: Arc<PeerContext>,
    connections: Box<[Mutex<ThreadConnection>]>,
    control_connection: Mutex<Option<Arc<Session>>>,
    pub(super) pending: Mutex<Pending>,
    /// Notified when a correction waits or this peer becomes suspected.
    pub(super) wake: Notify,
    /// Notified when a heartbeat must be sent before its regular time.
    pub(super) beat: Notify,
    is_suspected: AtomicBool,
    /// The time of its last answer.
    heard: AtomicU64,
    /// The reason why the last try to open its control connection failed; `None` after a success.
    pub(super) failure: Mutex<Option<String>>,
    /// Corrections that were discarded because too many waited.
    pub(super) lost: AtomicU64,
}

/// The connection of one thread.
#[derive(Clone, Default)]
enum ThreadConnection {
    #[default]
    None,
    Opening,
    Open(Arc<Session>),
    /// The connection could not be opened at this time.
    Closed(Nanos),
}

/// The interval at which to check whether a gateway can be reached.
const REACHABLE_CHECK: Nanos = Nanos::new(5_000_000);
/// The timeout for opening a connection, and the pause before the next try.
pub(super) const CONNECT_TIME: Nanos = Nanos::SECOND;
const RETRY_PAUSE: Nanos = Nanos::new(250_000_000);

impl Peer {
    pub(super) fn new(address: SocketAddr, number: u32, context: Arc<PeerContext>) -> Arc<Self> {
        let connections = (0..context.threads.max(1)).map(|_| Mutex::default()).collect();
        let pending = Mutex::new(Pending::new(context.clock.now()));
        Arc::new(Self {
            address,
            number,
            context,
            connections,
            control_connection: Mutex::default(),
            pending,
            wake: Notify::new(),
            beat: Notify::new(),
            is_suspected: AtomicBool::new(false),
            heard: AtomicU64::new(0),
            failure: Mutex::default(),
            lost: AtomicU64::new(0),
        })
    }

    /// Whether this gateway sends it no charges until it answers a heartbeat.
    pub fn is_suspected(&self) -> bool {
        self.is_suspected.load(Ordering::Relaxed)
    }

    /// Whether its control connection is open.
    pub(super) fn is_connected(&self) -> bool {
        self.control_connection().is_some()
    }

    /// Waits until its control connection is open, or until `is_coming` no longer holds.
    pub(super) async fn connected(&self, is_coming: impl Fn() -> bool) {
        while !self.is_connected() && is_coming() {
            sleep(REACHABLE_CHECK.to_duration()).await;
        }
    }

    /// Whether this gateway can send requests to it.
    pub fn is_reachable(&self) -> bool {
        self.control_connection().is_some() && !self.is_suspected()
    }

    /// Whether no correction waits that can still be made. Debits and refunds can always be made, by another gateway.
    pub(super) fn is_settled(&self) -> bool {
        let pending = self.pending.lock();
        pending.is_empty() || (!self.is_reachable() && !pending.has_transferable())
    }

    /// The time of its last answer.
    pub(super) fn heard(&self) -> Nanos {
        Nanos::new(self.heard.load(Ordering::Relaxed))
    }

    /// Queues `correction` for the other gateway.
    pub fn correct(&self, correction: Correction) {
        if self.pending.lock().push(correction) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        self.wake.notify_one();
    }

    /// Releases the slot of `part`, if it has one.
    pub(super) fn release_slot(&self, part: &PeerCharge, end: Completion) {
        if part.slot > 0 {
            self.correct(Correction::Complete(part.clone(), end));
        }
    }

    /// Sends the corrections that were not sent yet over `session`.
    pub(super) fn send_corrections(self: &Arc<Self>, session: &Session) {
        let on_reply = |number| -> ReplyCallback {
            let peer = Arc::clone(self);
            Box::new(move |answer| {
                if let Some(Answer::Done) = answer {
                    peer.pending.lock().confirm(number);
                }
            })
        };
        self.pending.lock().send(session, on_reply);
    }

    /// The number of corrections that were discarded.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Charges all of `parts` at this peer or none, if it answers in time.
    /// With `stands_in`, the peer decides even if it does not own the keys.
    pub async fn charge(self: &Arc<Self>, parts: Vec<PeerCharge>, stands_in: bool) -> Result<PeerReceipt, Outcome> {
        let PeerContext { clock, timeout: patience, observer, .. } = &*self.context;
        let began = clock.now();
        let session = self.session();
        let sent = session.as_ref().and_then(|session| self.send(session, parts.into(), stands_in));
        let outcome = match sent {
            None => Err(Outcome::Unreachable),
            Some(answer) => match timeout(patience.to_duration(), answer).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) => Err(Outcome::Cut),
                Err(_) => Err(Outcome::TimedOut),
            },
        };
        let result = outcome.as_ref().err().copied().unwrap_or(Outcome::Ok);
        observer(self.address, result, clock.now().saturating_sub(began));
        let is_suspect = match result {
            Outcome::Ok | Outcome::UnknownParameters | Outcome::NotOwner(_) => false,
            // a connection that this side has ended says nothing about the other side
            Outcome::Cut => !session.is_some_and(|session| session.is_full()),
            Outcome::TimedOut | Outcome::Unreachable => true,
        };
        if is_suspect {
            self.suspect();
        }
        outcome
    }

    fn send(
        self: &Arc<Self>,
        session: &Session,
        parts: Arc<[PeerCharge]>,
        stands_in: bool,
    ) -> Option<oneshot::Receiver<Result<PeerReceipt, Outcome>>> {
        let (sender, receiver) = oneshot::channel();
        let (peer, asked) = (Arc::clone(self), Arc::clone(&parts));
        let on_reply = move |answer| {
            let outcome = match answer {
                Some(Answer::Charged { at, replies }) if replies.len() == asked.len() => {
                    Ok(PeerReceipt { peer, parts: asked, replies, at, is_kept: false })
                }
                Some(Answer::UnknownParameters) => Err(Outcome::UnknownParameters),
                Some(Answer::NotOwner(owner)) => Err(Outcome::NotOwner(owner)),
                // the charge may have been made: release its slots in any case
                Some(_) | None => {
                    asked.iter().for_each(|part| peer.release_slot(part, Completion::UNMEASURED));
                    Err(Outcome::Cut)
                }
            };
            // if no request waits for the receipt any more, dropping it refunds the charges
            drop(sender.send(outcome));
        };
        let rules: SmallVec<[&WireRule; 4]> = parts.iter().map(|part| &*part.rule).collect();
        let ask = |numbers: &[u32]| Ask::Charge {
            wanted: parts.iter().zip(numbers).map(|(part, rule)| part.with_rule(*rule)).collect(),
            stands_in,
        };
        session.ask(&rules, ask, Box::new(on_reply)).then_some(receiver)
    }

    /// The connection to send over: this thread's, or another one while this thread's is not open.
    fn session(self: &Arc<Self>) -> Option<Arc<Session>> {
        if let Some(open) = self.thread_connection() {
            return Some(open);
        }
        let of_others = self.connections.iter().filter_map(|way| match &*way.lock() {
            ThreadConnection::Open(session) if session.is_open() => Some(Arc::clone(session)),
            _ => None,
        });
        of_others.into_iter().next().or_else(|| self.control_connection())
    }

    /// This thread's connection; begins to open one if there is none.
    fn thread_connection(self: &Arc<Self>) -> Option<Arc<Session>> {
        let now = self.context.clock.now();
        let number = thread_number() % self.connections.len().max(1);
        let mut way = self.connections.get(number)?.lock();
        match &*way {
            ThreadConnection::Open(session) if session.is_open() => return Some(Arc::clone(session)),
            ThreadConnection::Opening => return None,
            ThreadConnection::Closed(at) if now < at.saturating_add(RETRY_PAUSE) => return None,
            ThreadConnection::None | ThreadConnection::Open(_) | ThreadConnection::Closed(_) => {}
        }
        let runtime = tokio::runtime::Handle::try_current().ok()?;
        *way = ThreadConnection::Opening;
        let peer = Arc::clone(self);
        runtime.spawn(async move { peer.open(number).await });
        None
    }

    /// Opens the connection of the thread `number`.
    async fn open(self: &Arc<Self>, number: usize) {
        let opened = self.connect().await;
        let way = match opened {
            Ok(connection) => ThreadConnection::Open(Session::begin(connection, Arc::clone(&self.context.ring))),
            Err(_) => ThreadConnection::Closed(self.context.clock.now()),
        };
        if let Some(place) = self.connections.get(number) {
            *place.lock() = way;
        }
    }

    /// Opens the calling thread's connection as soon as the other side can be reached.
    pub(super) async fn open_when_reachable(self: &Arc<Self>) {
        while !self.is_reachable() {
            sleep(REACHABLE_CHECK.to_duration()).await;
        }
        self.open(thread_number() % self.connections.len().max(1)).await;
    }

    pub(super) async fn connect(&self) -> Result<Connection, ConnectError> {
        let connecting = connection::connect(&self.context.own, &*self.context.platform, self.address);
        match timeout(CONNECT_TIME.to_duration(), connecting).await {
            Ok(connected) => connected,
            Err(_) => Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into()),
        }
    }

    /// Suspects a peer that was silent for too long. The membership code logs that already.
    pub(super) fn suspect_unlogged(&self) {
        self.is_suspected.store(true, Ordering::Relaxed);
    }

    fn suspect(&self) {
        if !self.is_suspected.swap(true, Ordering::Relaxed) {
            tracing::warn!(peer = %self.address, "a gateway of the cluster does not answer; other gateways decide its keys");
            self.wake.notify_one();
        }
    }

    // === control connection ===

    /// The control connection, if it is open.
    fn control_connection(&self) -> Option<Arc<Session>> {
        self.control_connection.lock().clone().filter(|session| session.is_open())
    }

    /// Sends a request over the control connection. Returns whether it was sent: otherwise `on_reply` is not called.
    pub(super) fn ask(&self, ask: Ask, on_reply: ReplyCallback) -> bool {
        self.control_connection().is_some_and(|session| session.ask(&[], |_| ask, on_reply))
    }

    /// Replaces the control connection. Returns the corrections that waited for an earlier process at this address.
    pub(super) fn arrived(&self, session: &Arc<Session>) -> Vec<Correction> {
        *self.control_connection.lock() = Some(Arc::clone(session));
        self.pending.lock().arrived(session.process)
    }

    /// Sends a heartbeat; calls `heard` with the answer when it arrives.
    pub(super) fn send_beat(
        self: &Arc<Self>,
        session: &Session,
        beat: &Heartbeat,
        heard: impl FnOnce(Heartbeat) + Send + 'static,
    ) {
        let peer = Arc::clone(self);
        let on_reply = move |answer| {
            if let Some(Answer::Heartbeat(beat)) = answer {
                peer.heard.store(peer.context.clock.now().get(), Ordering::Relaxed);
                if peer.is_suspected.swap(false, Ordering::Relaxed) {
                    tracing::info!(peer = %peer.address, "the gateway of the cluster answers again");
                }
                heard(beat);
            }
        };
        session.ask(&[], |_| Ask::Heartbeat(*beat), Box::new(on_reply));
    }
}

/// The results of charges at another gateway. Dropping it before [`PeerReceipt::keep`] refunds the charges.
pub struct PeerReceipt {
    peer: Arc<Peer>,
    parts: Arc<[PeerCharge]>,
    replies: Vec<ChargeReply>,
    at: Nanos,
    is_kept: bool,
}

impl PeerReceipt {
    /// The replies, and the time of the decision on the other side's wall clock. From now on the caller refunds the charges.
    pub fn keep(mut self) -> (Vec<ChargeReply>, Nanos) {
        self.is_kept = true;
        (std::mem::take(&mut self.replies), self.at)
    }
}

impl Drop for PeerReceipt {
    fn drop(&mut self) {
        let mut all = self.parts.iter().zip(&self.replies);
        if self.is_kept || all.any(|(part, reply)| part.enforcement.denies(reply.charged.decision)) {
            return;
        }
        for (part, reply) in self.parts.iter().zip(&self.replies) {
            if !part.enforcement.refunds_if_denied(reply.charged.decision) {
                continue;
            }
            let part = PeerCharge { key: reply.common.unwrap_or(part.key), ..part.clone() };
            if part.slot > 0 {
                self.peer.release_slot(&part, Completion::UNMEASURED);
            } else {
                let full_at = self.at.saturating_add(reply.charged.headroom.until_full);
                self.peer.correct(Correction::Refund { part, full_at });
            }
        }
    }
}
