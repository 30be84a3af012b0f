//! One client connection: its phase, its deadline, and what is said on it without a request being known.
//!
//! pingora bounds single reads, not the time until a request's head is complete, and from the second request of a
//! connection on not even those; nor has it a bound for the head of an upstream's response. So every connection has
//! one deadline, and [`Edge`] drives the connection's future and ends it when the deadline passes.
//!
//! Of HTTP/2 every stream is a [`Connection`] too, which begins with a request and ends with it; the one below them has
//! the deadline for what comes before and between them.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::task::Poll;

use parking_lot::Mutex;

pub mod announcement;
mod arrival;
mod edge;
mod frames;
mod head;
mod http2;
mod pace;
mod requests;
mod room;
mod state;
mod stream;
mod transport;

pub use arrival::{Entrance, Secured};
pub use edge::Edge;
pub use state::Late;

use self::pace::Pace;
use self::requests::{HeadBounds, Requests};
use self::state::{Phase, State};
use crate::proxy::Gateway;
use crate::proxy::facts::network;
use crate::proxy::respond::{Answer, raw_answer};
use crate::proxy::seats::Seat;
use crate::proxy::spare::Spot;
use crate::ruleset::LeastRate;
use crate::units::Nanos;

/// How long a closing connection waits for a further byte, so that a client that still sends can read its answer.
const LINGER: Nanos = Nanos::from_secs(2);
/// How long it is read in all.
const LONGEST_LINGER: Nanos = Nanos::from_secs(30);
/// For how long a head may come in before its connection counts as one without a request.
const HEAD_PATIENCE: Nanos = Nanos::SECOND;
/// How much longer than its target the first line of a request may be, in bytes.
const BESIDE_TARGET: usize = 256;

tokio::task_local! {
    static CURRENT: Arc<Connection>;
}

/// What is known of a connection.
pub struct Connection {
    gateway: Gateway,
    /// Known once the client has spoken TLS.
    secured: OnceLock<Arc<Secured>>,
    /// Whom the connection said that it is for.
    announced: OnceLock<IpAddr>,
    /// Under which it can make room for another one; a stream cannot.
    spot: Option<Arc<Spot>>,
    state: Mutex<State>,
}

// === impl Connection ===

impl Connection {
    /// A connection at the listener with this position.
    fn new(gateway: Gateway, listener: usize) -> Self {
        let head = gateway.live.load().ruleset.request_head.timeout;
        let now = gateway.clock.now();
        let spot = gateway.spare.spot(listener);
        let connection = Self::in_phase(gateway, Phase::New, Some(now.saturating_add(head)), Some(spot));
        connection.spare(&mut connection.state.lock(), Some(now));
        connection
    }

    /// A stream of `self`, on which a request has come.
    fn stream(&self) -> Self {
        let stream = Self::in_phase(self.gateway.clone(), Phase::Undecided, None, None);
        if let Some(secured) = self.secured.get() {
            stream.secured.get_or_init(|| Arc::clone(secured));
        }
        if let Some(client) = self.announced.get() {
            stream.announced.get_or_init(|| *client);
        }
        stream
    }

    fn in_phase(gateway: Gateway, phase: Phase, deadline: Option<Nanos>, spot: Option<Arc<Spot>>) -> Self {
        phase.stage().into_iter().for_each(|stage| gateway.traffic.enter(stage));
        let patience = gateway.live.load().ruleset.connections.idle;
        Self {
            gateway,
            secured: OnceLock::new(),
            announced: OnceLock::new(),
            spot,
            state: Mutex::new(State::new(phase, deadline, patience)),
        }
    }

    /// Whom the connection said that it is for, in front of everything else.
    pub fn announced(&self) -> Option<IpAddr> {
        self.announced.get().copied()
    }

    /// What TLS said; `None` of a connection in the clear.
    pub fn secured(&self) -> Option<&Secured> {
        self.secured.get().map(|secured| &**secured)
    }

    /// Counts the connection as one of `client`, unless that has as many as it may have.
    fn take_seat(&self, seat: &mut Seat, client: IpAddr) -> io::Result<()> {
        let live = self.gateway.live.load();
        let rules = &live.ruleset;
        let client = network(client.to_canonical(), rules.client_address.ipv6_prefix);
        match seat.belongs_to(client, rules.connections.per_client) {
            true => Ok(()),
            false => {
                live.meters.shed("client");
                Err(io::Error::other("the client has as many connections as it may have"))
            }
        }
    }

    /// The client is on, and may send its first request, for which it has as long as if it had just come.
    fn arrived(&self) {
        let head = self.gateway.live.load().ruleset.request_head.timeout;
        self.state.lock().deadline = Some(self.gateway.clock.now().saturating_add(head));
    }

    /// There are streams, and none at the moment: the connection has to be over by `deadline` unless one comes.
    fn without_streams(&self, deadline: Nanos) {
        let mut state = self.state.lock();
        self.enter(&mut state, Phase::NoStreams);
        state.deadline = Some(deadline);
    }

    /// There is a stream, which has deadlines of its own.
    fn with_streams(&self) {
        let mut state = self.state.lock();
        self.enter(&mut state, Phase::Streams);
        state.deadline = None;
    }

    /// The client of a stream took its request back.
    pub fn abandon(&self) {
        self.state.lock().abandoned = true;
    }

    /// The connection that the running task serves.
    pub fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// A request's head is complete.
    pub fn request_began(&self) {
        let mut state = self.state.lock();
        self.enter(&mut state, Phase::Undecided);
        (state.deadline, state.pace, state.answering) = (None, None, false);
    }

    /// The current request is charged, or will not be.
    pub fn decided(&self) {
        self.enter(&mut self.state.lock(), Phase::Busy);
    }

    /// The request is over, with an answer or without one; the next may come.
    pub fn request_ended(&self, answered: bool) {
        let patience = self.gateway.live.load().ruleset.connections.idle;
        let idle = self.gateway.clock.now().saturating_add(patience);
        let mut state = self.state.lock();
        self.enter(&mut state, Phase::Idle);
        (state.deadline, state.pace, state.patience) = (Some(idle), None, patience);
        (state.answering, state.answered) = (false, answered);
    }

    /// Whether the last request that ended was answered.
    fn is_answered(&self) -> bool {
        self.state.lock().answered
    }

    fn enter(&self, state: &mut State, phase: Phase) {
        let before = std::mem::replace(&mut state.phase, phase);
        if before.stage() != phase.stage() {
            phase.stage().into_iter().for_each(|stage| self.gateway.traffic.enter(stage));
            before.stage().into_iter().for_each(|stage| self.gateway.traffic.leave_stage(stage));
        }
        let waits = matches!(phase, Phase::New | Phase::Idle | Phase::NoStreams);
        self.spare(state, waits.then(|| self.gateway.clock.now()));
    }

    /// Since when the connection can make room for another one; `None` while it cannot.
    fn spare(&self, state: &mut State, since: Option<Nanos>) {
        let Some(spot) = &self.spot else { return };
        if let Some(before) = std::mem::replace(&mut state.spare_since, since) {
            self.gateway.spare.leave(spot, before);
        }
        if let Some(since) = since {
            self.gateway.spare.enter(spot, since);
        }
    }

    /// The current request has to be over by `deadline`.
    pub fn set_deadline(&self, deadline: Option<Nanos>) {
        self.state.lock().deadline = deadline;
    }

    /// The client may take so long for each part of the response to the current request.
    pub fn set_patience(&self, patience: Nanos) {
        self.state.lock().patience = patience;
    }

    /// What is written waits for the client to read, or does no longer.
    fn is_held_up(&self, is_held_up: bool) {
        let mut state = self.state.lock();
        state.taken_due = is_held_up.then(|| self.gateway.clock.now().saturating_add(state.patience));
    }

    /// The current request is held back, or not any more.
    pub fn set_waiting(&self, waiting: bool) {
        let phase = if waiting { Phase::Waiting } else { Phase::Busy };
        self.enter(&mut self.state.lock(), phase);
    }

    /// The body of the current request comes in, at `rate` at least. Said again, it changes nothing.
    pub fn expect_body(&self, rate: LeastRate) {
        self.state.lock().pace.get_or_insert(Pace::new(rate));
    }

    /// A part of the body of a stream's request came, and the next one is waited for. Other connections see it where they
    /// are read.
    pub fn body_came(&self, bytes: usize) {
        if let Some(pace) = &mut self.state.lock().pace {
            let now = self.gateway.clock.now();
            pace.came(bytes, now);
            pace.awaits(now);
        }
    }

    /// The body of the current request is here.
    pub fn body_is_over(&self) {
        self.state.lock().pace = None;
    }

    /// Whose deadline has passed, if any, and whether an answer can still be sent.
    pub fn expired(&self) -> Option<(Late, bool)> {
        let state = self.state.lock();
        state.expired.map(|late| (late, !state.answering))
    }

    /// What is sent after the deadline has passed.
    pub fn set_farewell(&self, bytes: Vec<u8>) {
        self.state.lock().farewell = Some(bytes);
    }

    /// The client is read from, and nothing is there.
    fn awaits(&self) {
        let mut state = self.state.lock();
        if let Some(pace) = &mut state.pace {
            pace.awaits(self.gateway.clock.now());
        }
        // most heads come in one piece
        if state.phase == Phase::Head && state.spare_since.is_none() {
            self.spare(&mut state, Some(self.gateway.clock.now().saturating_add(HEAD_PATIENCE)));
        }
    }

    /// So many bytes came from the client.
    fn received(&self, bytes: usize) {
        let mut state = self.state.lock();
        if let Some(pace) = &mut state.pace {
            pace.came(bytes, self.gateway.clock.now());
        }
        if matches!(state.phase, Phase::New | Phase::Idle) {
            let head = self.gateway.live.load().ruleset.request_head.timeout;
            self.enter(&mut state, Phase::Head);
            state.deadline = Some(self.gateway.clock.now().saturating_add(head));
        }
    }

    /// Whether a head of HTTP/2 is begun and not over.
    fn is_in_frame(&self, is_in_frame: bool) {
        let mut state = self.state.lock();
        if is_in_frame != state.head_due.is_some() {
            let head = || self.gateway.live.load().ruleset.request_head.timeout;
            state.head_due = is_in_frame.then(|| self.gateway.clock.now().saturating_add(head()));
        }
    }

    /// The connection becomes a tunnel: what the client sends is no request any more.
    pub fn become_tunnel(&self) {
        self.state.lock().tunnel = true;
    }

    /// What comes behind a request that is over; `None` as long as it is being handled.
    fn next_requests(&self) -> Option<Requests> {
        let state = self.state.lock();
        match state.phase {
            _ if state.tunnel => Some(Requests::unframed()),
            Phase::New | Phase::Idle => Some(self.first_request()),
            _ => None,
        }
    }

    /// What comes on a connection that begins with a request.
    fn first_request(&self) -> Requests {
        let bounds = self.gateway.live.load().ruleset.request_head;
        Requests::new(HeadBounds {
            first_line: bounds.max_target.saturating_add(BESIDE_TARGET),
            fields: bounds.max_headers_total,
        })
    }

    /// What the client sent is no request.
    fn refuse(&self, answer: Answer) {
        self.state.lock().refusal.get_or_insert(answer);
    }

    /// What the client is answered that did not send a request.
    fn take_refusal(&self) -> Option<Answer> {
        self.state.lock().refusal.take()
    }

    /// Bytes are going to the client. Those sent before a request is known are an answer of pingora's own to a request
    /// that it cannot parse, which no filter sees: they are not sent, and the client is answered as by tollgate.
    fn sending(&self, bytes: &[u8]) -> Poll<()> {
        let mut state = self.state.lock();
        if state.answering {
            return Poll::Ready(());
        }
        if matches!(state.phase, Phase::New | Phase::Idle | Phase::Head) {
            state.refusal.get_or_insert(Answer::Malformed("the request cannot be read"));
            return Poll::Pending;
        }
        // After an interim response the answer is still to come.
        state.answering = bytes.get(9) != Some(&b'1');
        Poll::Ready(())
    }

    /// The deadline has passed: what the client is told, if it was in the middle of a request's head.
    fn expire(&self) {
        let now = self.gateway.clock.now();
        let mut state = self.state.lock();
        let has_passed = |due: Option<Nanos>| due.is_some_and(|due| due <= now);
        state.expired = Some(match state.pace.and_then(|pace| pace.runs_out()) {
            _ if has_passed(state.taken_due) => Late::Reader,
            body if has_passed(body) => Late::Client,
            _ => Late::Upstream,
        });
        if state.phase == Phase::Head {
            state.farewell = Some(raw_answer(&Answer::HeadTimeout));
        }
        if state.phase == Phase::Head || has_passed(state.head_due) {
            self.gateway.live.load().meters.route(None).count(Answer::HeadTimeout.status());
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // in which it counts as nothing
        self.enter(&mut self.state.lock(), Phase::Busy);
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("state", &self.state).finish_non_exhaustive()
    }
}
