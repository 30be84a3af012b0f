//! One client connection: its phase, its deadline, and what is said on it without a request being known.
//!
//! pingora bounds single reads, not the time until a request's head is complete, and from the second request of a
//! connection on not even those; nor has it a bound for the head of an upstream's response. So every connection has
//! one deadline, and [`Edge`] drives the connection's future and ends it when the deadline passes.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Poll, ready};

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::apps::ServerApp;
use pingora::protocols::{Shutdown, Stream};
use pingora::proxy::HttpProxy;
use pingora::server::ShutdownWatch;
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};

mod stream;

use stream::{Shared, WatchedStream};

use crate::proxy::Gateway;
use crate::proxy::respond::{Answer, raw_answer};
use crate::proxy::traffic::Stage;
use crate::units::Nanos;

/// How long a connection may stay silent between two requests.
pub const IDLE: Nanos = Nanos::from_secs(60);
/// How long a closing connection is still read so that the client can read its answer.
const LINGER: Nanos = Nanos::from_secs(2);

tokio::task_local! {
    static CURRENT: Arc<Connection>;
}

/// What is known of a connection.
pub struct Connection {
    gateway: Gateway,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    deadline: Option<Nanos>,
    /// Whether any byte of a response to the current request was sent.
    answering: bool,
    /// Bytes left to say once the deadline has passed.
    farewell: Option<Vec<u8>>,
    expired: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing has come yet.
    New,
    /// Nothing of a next request has come.
    Idle,
    /// A request's head is coming in.
    Head,
    /// A request is here, and not decided on yet.
    Undecided,
    /// A request is being handled.
    Busy,
    /// A request is held back; whether its client still waits is watched.
    Waiting,
}

/// How a connection's future ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Finished,
    Expired,
    ClientGone,
}

// === impl Connection ===

impl Connection {
    fn new(gateway: Gateway) -> Self {
        let head = gateway.live.load().ruleset.request_head.timeout;
        let deadline = Some(gateway.clock.now().saturating_add(head));
        gateway.traffic.enter(Stage::Fresh);
        let state = State { phase: Phase::New, deadline, answering: false, farewell: None, expired: false };
        Self { gateway, state: Mutex::new(state) }
    }

    /// The connection that the running task serves.
    pub fn current() -> Option<Arc<Self>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// A request's head is complete.
    pub fn request_began(&self) {
        let mut state = self.state.lock();
        self.enter(&mut state, Phase::Undecided);
        (state.deadline, state.answering) = (None, false);
    }

    /// The current request is charged, or will not be.
    pub fn decided(&self) {
        self.enter(&mut self.state.lock(), Phase::Busy);
    }

    /// The request is over; the next may come.
    pub fn request_ended(&self) {
        let idle = self.gateway.clock.now().saturating_add(IDLE);
        let mut state = self.state.lock();
        self.enter(&mut state, Phase::Idle);
        (state.deadline, state.answering) = (Some(idle), false);
    }

    fn enter(&self, state: &mut State, phase: Phase) {
        let before = std::mem::replace(&mut state.phase, phase);
        if before.stage() != phase.stage() {
            phase.stage().into_iter().for_each(|stage| self.gateway.traffic.enter(stage));
            before.stage().into_iter().for_each(|stage| self.gateway.traffic.leave_stage(stage));
        }
    }

    /// The current request has to be over by `deadline`.
    pub fn set_deadline(&self, deadline: Option<Nanos>) {
        self.state.lock().deadline = deadline;
    }

    /// The current request is held back, or not any more.
    pub fn set_waiting(&self, waiting: bool) {
        let phase = if waiting { Phase::Waiting } else { Phase::Busy };
        self.enter(&mut self.state.lock(), phase);
    }

    /// Whether the deadline has passed, and if so whether an answer can still be sent.
    pub fn expired(&self) -> Option<bool> {
        let state = self.state.lock();
        state.expired.then_some(!state.answering)
    }

    /// What is sent after the deadline has passed.
    pub fn set_farewell(&self, bytes: Vec<u8>) {
        self.state.lock().farewell = Some(bytes);
    }

    /// Bytes came from the client.
    fn received(&self) {
        let mut state = self.state.lock();
        if matches!(state.phase, Phase::New | Phase::Idle) {
            let head = self.gateway.live.load().ruleset.request_head.timeout;
            self.enter(&mut state, Phase::Head);
            state.deadline = Some(self.gateway.clock.now().saturating_add(head));
        }
    }

    /// Bytes are going to the client. Those sent before a request is known are an answer of pingora's own (a request
    /// that cannot be parsed, CONNECT), which no filter sees.
    fn sending(&self, bytes: &[u8]) {
        let mut state = self.state.lock();
        if state.answering {
            return;
        }
        let code: Option<u16> =
            bytes.get(9..12).and_then(|digits| str::from_utf8(digits).ok()).and_then(|digits| digits.parse().ok());
        // After an interim response the answer is still to come.
        state.answering = code.is_none_or(|code| code >= 200);
        let unasked = matches!(state.phase, Phase::New | Phase::Idle | Phase::Head);
        drop(state);
        if let (true, Some(code)) = (unasked, code) {
            self.gateway.live.load().meters.route(None).count(code);
        }
    }

    /// The deadline has passed: what the client is told, if it was in the middle of a request's head.
    fn expire(&self) {
        let mut state = self.state.lock();
        state.expired = true;
        if state.phase == Phase::Head {
            state.farewell = Some(raw_answer(&Answer::HeadTimeout));
            self.gateway.live.load().meters.route(None).count(Answer::HeadTimeout.status());
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.enter(&mut self.state.lock(), Phase::Idle);
    }
}

impl Phase {
    /// What the connection is counted as; requests that are handled count for themselves.
    const fn stage(self) -> Option<Stage> {
        match self {
            Self::New => Some(Stage::Fresh),
            Self::Head | Self::Undecided => Some(Stage::Undecided),
            Self::Idle | Self::Busy | Self::Waiting => None,
        }
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("state", &self.state).finish_non_exhaustive()
    }
}

// === Edge ===

/// Serves connections: pingora's proxy within a connection's deadline.
pub struct Edge {
    proxy: Arc<HttpProxy<Gateway>>,
    gateway: Gateway,
}

impl Edge {
    /// Serves with `proxy`, whose gateway is `gateway`.
    pub fn new(mut proxy: HttpProxy<Gateway>, gateway: Gateway) -> Self {
        proxy.handle_init_modules();
        Self { proxy: Arc::new(proxy), gateway }
    }
}

#[async_trait]
impl ServerApp for Edge {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let connection = Arc::new(Connection::new(self.gateway.clone()));
        let shared = Arc::new(Mutex::new(Shared::new(stream)));
        let watched = WatchedStream { shared: Arc::clone(&shared), connection: Arc::clone(&connection) };
        let end = {
            let serve = self.proxy.process_new(Box::new(watched), shutdown);
            drive(CURRENT.scope(Arc::clone(&connection), serve), &connection, &shared).await
        };
        let farewell = {
            let mut state = connection.state.lock();
            // Whoever left the farewell has counted it.
            state.answering = true;
            state.farewell.take()
        };
        if let (End::Expired, Some(bytes)) = (end, farewell) {
            let mut last = WatchedStream { shared, connection };
            connection_says(&mut last, &bytes).await;
        }
        None
    }
}

async fn connection_says(stream: &mut WatchedStream, bytes: &[u8]) {
    let say = async {
        stream.write_all(bytes).await?;
        stream.flush().await
    };
    if matches!(timeout(LINGER.to_duration(), say).await, Ok(Ok(()))) {
        Shutdown::shutdown(stream).await;
    }
}

/// Runs `serve` until it ends, the connection's deadline passes, the client of a request that waits is gone, or the
/// connection is to be closed and waits for a further request. When this returns, `serve` has been dropped.
async fn drive<F: Future>(serve: F, connection: &Connection, shared: &Mutex<Shared>) -> End {
    let (clock, traffic) = (&connection.gateway.clock, &connection.gateway.traffic);
    let mut leave = traffic.watch();
    let mut serve = pin!(serve);
    let mut timer = pin!(sleep(Nanos::ZERO.to_duration()));
    // The timer may ring early, never late: a deadline that moves away is noticed when it rings.
    let mut rings_at: Option<Nanos> = None;
    let end = poll_fn(|task| {
        if serve.as_mut().poll(task).is_ready() {
            return Poll::Ready(End::Finished);
        }
        let (phase, deadline) = {
            let state = connection.state.lock();
            (state.phase, state.deadline)
        };
        if phase == Phase::Waiting && shared.lock().client_is_gone(task) {
            return Poll::Ready(End::ClientGone);
        }
        leave.set(task);
        if phase == Phase::Idle && traffic.is_leaving() {
            return Poll::Ready(End::Finished);
        }
        let Some(deadline) = deadline else { return Poll::Pending };
        loop {
            if rings_at.is_none_or(|rings_at| rings_at > deadline) {
                let left = deadline.saturating_sub(clock.now());
                timer.set(sleep(left.to_duration()));
                rings_at = Some(deadline);
            }
            ready!(timer.as_mut().poll(task));
            if clock.now() >= deadline {
                connection.expire();
                return Poll::Ready(End::Expired);
            }
            rings_at = None;
        }
    });
    end.await
}
