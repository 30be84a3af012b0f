//! An HTTP/2 connection: its streams, each with one request, and the limits on what a client may do with it.

use std::cell::Cell;
use std::future::poll_fn;
use std::io;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Reason, RecvStream};
use http::{Request, header};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::JoinSet;

use super::body::Framing;
use super::client::{Client, Http2Client};
use super::exchange::{self, ExchangeOutcome};
use super::frames::FrameTracker;
use super::head::{RequestHead, Version, content_length};
use super::listener::Peer;
use super::presence::{ConnectionTracker, LINGER};
use super::service::{ConnectionSettings, Exchange, Failure, Service};
use super::socket::Socket;
use super::syntax::Refused;
use super::timer::Timer;
use super::traffic::RequestGuard;
use super::worker::Worker;
use crate::clock::WorkerClock;
use crate::lifecycle::PhaseWatch;
use crate::panics::catch_panic;
use crate::units::Nanos;

/// The maximum number of concurrent requests on one connection.
const MAX_STREAMS: u32 = 100;
/// How many bytes of one request's body, and of all bodies of a connection, may wait to be forwarded.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// The bound for small frames of bodies that wait, of which each counts as 256 bytes less its content: enough for the whole
/// window of one request in frames of 16 bytes.
const FRAME_BUDGET: usize = 4 << 20;
/// How many bytes of a response may wait for a client that does not read.
const SEND_BUFFER: usize = 64 << 10;
/// A client may cancel this many more requests than the gateway has answered; a refusal is an answer, too. A browser that
/// leaves a page cancels all its requests at once. A trusted proxy has no such bound: it cancels a request for each of its
/// clients that goes away, and the end of its connection would fail the requests of all others.
const MAX_ABANDONED: u32 = 2 * MAX_STREAMS;
/// The status for a head that took too long.
const REQUEST_TIMEOUT: u16 = 408;

/// The event for which a connection waits.
enum ConnectionEvent {
    Ended(Option<bool>),
    Close,
    Accepted(Box<Accepted>),
    /// The client is gone, or the connection was evicted.
    Over,
}

type Accepted = (Request<RecvStream>, SendResponse<Bytes>);

/// Serves the requests on `socket` until the client or the gateway ends the connection.
pub(super) async fn serve<S: Service>(
    worker: &Rc<Worker<S>>,
    socket: Socket,
    read_ahead: Vec<u8>,
    peer: &Rc<Peer>,
    tracker: &mut ConnectionTracker,
    timer: &mut Timer,
) {
    let settings = worker.service.settings();
    let socket_state = Rc::<SocketState>::default();
    let watched = WatchedSocket {
        socket,
        read_ahead,
        frames: FrameTracker::new(),
        state: Rc::clone(&socket_state),
        head_timeout: settings.head_timeout,
        idle: settings.idle,
        clock: Rc::clone(&worker.clock),
    };
    let max_abandoned = if worker.service.is_trusted_proxy(peer) { u32::MAX } else { MAX_ABANDONED };
    let due = timer.after(settings.head_timeout);
    let h2 = match timer.run(due, pin!(options(settings, max_abandoned).handshake::<_, Bytes>(watched))).await {
        Ok(Ok(h2)) => h2,
        Ok(Err(error)) => return tracing::debug!(%error, "a client did not begin with HTTP/2"),
        Err(_) => return,
    };
    tracker.set(None);
    tracker.mark_idle_since(timer.now());
    let connection = Http2ClientConnection {
        worker,
        peer,
        idle: settings.idle,
        idle_since: timer.now(),
        tracker,
        timer,
        phases: worker.traffic.lifecycle.watch(),
        socket: socket_state,
        abandoned: 0,
        max_abandoned,
        is_closing: false,
        is_sent: true,
        unsent: None,
        streams: JoinSet::new(),
        h2,
    };
    connection.run().await;
}

/// A connection after its handshake.
struct Http2ClientConnection<'c, S: Service> {
    worker: &'c Rc<Worker<S>>,
    peer: &'c Rc<Peer>,
    tracker: &'c mut ConnectionTracker,
    timer: &'c mut Timer,
    phases: PhaseWatch<'c>,
    socket: Rc<SocketState>,
    /// How long the connection may be without a request.
    idle: Nanos,
    idle_since: Nanos,
    /// How many more requests were cancelled than answered.
    abandoned: u32,
    max_abandoned: u32,
    is_closing: bool,
    /// Whether the socket has taken all responses; until then the shutdown of the gateway waits for them.
    is_sent: bool,
    unsent: Option<RequestGuard<'c>>,
    /// The requests in flight; each tells whether it was answered.
    streams: JoinSet<bool>,
    h2: Connection<WatchedSocket, Bytes>,
}

impl<S: Service> Http2ClientConnection<'_, S> {
    async fn run(mut self) {
        loop {
            let event = poll_fn(|task| self.poll_event(task)).await;
            if self.handle(event).is_break() {
                return;
            }
            if self.abandoned > self.max_abandoned {
                return self.abort().await;
            }
        }
    }

    fn poll_event(&mut self, task: &mut Context<'_>) -> Poll<ConnectionEvent> {
        match self.streams.poll_join_next(task) {
            Poll::Ready(Some(ended)) => return Poll::Ready(ConnectionEvent::Ended(ended.ok())),
            Poll::Ready(None) | Poll::Pending => {}
        }
        if !self.is_closing && self.phases.phase(task).drains() {
            return Poll::Ready(ConnectionEvent::Close);
        }
        if let Poll::Ready(accepted) = self.h2.poll_accept(task) {
            return Poll::Ready(match accepted {
                Some(Ok(accepted)) => ConnectionEvent::Accepted(Box::new(accepted)),
                Some(Err(_)) | None => ConnectionEvent::Over,
            });
        }
        let is_empty = self.streams.is_empty();
        if is_empty && !self.is_sent && !self.socket.is_writing.get() && !self.h2.has_streams() {
            (self.is_sent, self.idle_since) = (true, self.timer.now());
            self.tracker.mark_idle_since(self.idle_since);
            // a connection that closes may still have to wait for the client
            self.unsent = self.unsent.take().filter(|_| self.is_closing);
        }
        if is_empty && self.tracker.is_evicted(task.waker()) {
            return Poll::Ready(ConnectionEvent::Over);
        }
        // after GOAWAY and all responses a client has a short time to close the connection
        let patience = if self.is_closing && self.is_sent { LINGER } else { self.idle };
        let idle_due = is_empty.then(|| self.idle_since.saturating_add(patience));
        let dues = [self.socket.head_due.get(), self.socket.stuck_due.get(), self.socket.linger_due.get(), idle_due];
        let Some(due) = dues.into_iter().flatten().min() else { return Poll::Pending };
        self.timer.poll(task, due).map(|_| ConnectionEvent::Close)
    }

    /// Breaks where the connection ends.
    fn handle(&mut self, event: ConnectionEvent) -> ControlFlow<()> {
        match event {
            ConnectionEvent::Ended(answered) => {
                self.abandoned = match answered {
                    Some(true) => self.abandoned.saturating_sub(1),
                    // nor is a stream whose handling panicked answered
                    Some(false) | None => self.abandoned.saturating_add(1),
                };
                if self.streams.is_empty() {
                    self.idle_since = self.timer.now();
                    // the client has a moment to take the end of its response
                    self.tracker.mark_idle_since(self.timer.after(LINGER));
                }
            }
            ConnectionEvent::Close if self.is_due(&self.socket.linger_due) || self.is_due(&self.socket.stuck_due) => {
                return ControlFlow::Break(());
            }
            ConnectionEvent::Close if self.is_due(&self.socket.head_due) => {
                self.worker.service.count_refused(REQUEST_TIMEOUT);
                return ControlFlow::Break(());
            }
            ConnectionEvent::Close if self.is_closing => return ControlFlow::Break(()),
            ConnectionEvent::Close => {
                self.h2.graceful_shutdown();
                (self.is_closing, self.idle_since) = (true, self.timer.now());
            }
            ConnectionEvent::Accepted(accepted) => {
                let (request, respond) = *accepted;
                self.tracker.mark_busy();
                self.is_sent = false;
                self.unsent.get_or_insert_with(|| self.worker.traffic.request());
                let (worker, peer) = (Rc::clone(self.worker), Rc::clone(self.peer));
                let clock = Rc::clone(&worker.clock);
                let mut serving = Box::pin(serve_stream(worker, request, respond, peer));
                self.streams.spawn_local(async move { clock.run(serving.as_mut()).await });
            }
            // a client that is gone takes its requests with it
            ConnectionEvent::Over => return ControlFlow::Break(()),
        }
        ControlFlow::Continue(())
    }

    fn is_due(&self, due: &Cell<Option<Nanos>>) -> bool {
        due.get().is_some_and(|due| due <= self.timer.now())
    }

    /// Ends the connection of a client that cancels too many of its requests.
    async fn abort(mut self) {
        self.streams.abort_all();
        self.h2.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
        let closing = poll_fn(|task| self.h2.poll_closed(task));
        // an error makes no difference here: the connection ends anyway
        drop(self.timer.run(self.timer.after(LINGER), pin!(closing)).await);
    }
}

/// The limits on what a client may do with its connection.
fn options(settings: ConnectionSettings, max_abandoned: u32) -> Builder {
    let mut options = Builder::new();
    options
        .max_concurrent_streams(MAX_STREAMS)
        // those that a client cancels before the gateway has seen them
        .max_pending_accept_reset_streams(usize::try_from(max_abandoned).unwrap_or(usize::MAX))
        .max_header_list_size(settings.max_list)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .data_frame_budget(FRAME_BUDGET)
        .max_send_buffer_size(SEND_BUFFER);
    options
}

/// Serves the request of one stream. Returns whether it was answered.
async fn serve_stream<S: Service>(
    worker: Rc<Worker<S>>,
    request: Request<RecvStream>,
    respond: SendResponse<Bytes>,
    peer: Rc<Peer>,
) -> bool {
    let mut tracker = ConnectionTracker::stream(&worker);
    let mut timer = Timer::new(Rc::clone(&worker.clock));
    let (mut head, read) = request_head(&request);
    let mut client = Client::Http2(Box::new(Http2Client::new(&head, request.into_body(), respond)));
    let ended = match read {
        Ok(()) => {
            let served = {
                let serving = pin!(exchange::serve(&worker, &mut client, &mut head, &peer, &mut tracker, &mut timer));
                catch_panic(serving).await
            };
            match served {
                Ok(ended) => ended,
                Err(_) if client.is_answered() => ExchangeOutcome::Aborted,
                Err(_) => exchange::answer(&worker, &mut client, &worker.service.internal_error(), &mut timer).await,
            }
        }
        Err(refused) => {
            let mut exchange = worker.service.begin(&peer, Version::Http2, timer.now());
            let response = exchange.failed(&Failure::Refused(refused));
            exchange::answer(&worker, &mut client, &response, &mut timer).await
        }
    };
    let is_answered = client.is_answered();
    if matches!(ended, ExchangeOutcome::Aborted) {
        client.reset();
    }
    is_answered
}

/// The head of a request in the form of HTTP/1.1: the host as a field, and all cookies in one field (RFC
/// 9113, section 8.2.3).
fn request_head(request: &Request<RecvStream>) -> (RequestHead, Result<(), Refused>) {
    let mut head = RequestHead { version: Version::Http2, ..RequestHead::default() };
    head.method.push_str(request.method().as_str());
    let target = request.uri().path_and_query().map_or("", http::uri::PathAndQuery::as_str);
    head.target.extend_from_slice(target.as_bytes());
    let fields = request.headers();
    let authority = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    let mut hosts = fields.get_all(header::HOST).iter().map(header::HeaderValue::as_bytes);
    let mut lengths = fields.get_all(header::CONTENT_LENGTH).iter();
    let length = match (lengths.next().map(|first| content_length(first.as_bytes())), lengths.next()) {
        (Some(_), Some(_)) => Err(Refused::LENGTH_TWICE),
        (only, _) => only.transpose(),
    };
    let is_padded = |value: &header::HeaderValue| value.as_bytes().trim_ascii().len() < value.len();
    let agrees = match (authority, hosts.next(), hosts.next()) {
        // HTTP/1.1 servers do not see this white space, and so read another value (RFC 9113, section 8.2.1)
        _ if fields.values().any(is_padded) => {
            Err(Refused::Malformed("the value of a header field begins or ends with white space"))
        }
        (_, _, Some(_)) => Err(Refused::Malformed("the request has more than one host header")),
        (Some(authority), Some(host), None) if !authority.eq_ignore_ascii_case(host) => {
            Err(Refused::Malformed("the host header names another host than the request target"))
        }
        (authority, host, None) => {
            authority.or(host).into_iter().for_each(|host| head.fields.push("host", host));
            Ok(())
        }
    };
    let crumbs: Vec<&[u8]> = fields.get_all(header::COOKIE).iter().map(header::HeaderValue::as_bytes).collect();
    if !crumbs.is_empty() {
        head.fields.push("cookie", crumbs.join(&b"; "[..]));
    }
    for (name, value) in fields {
        // CGI-like servers read an underscore in a name as a hyphen, and so as another field
        if name != header::HOST && name != header::COOKIE && !name.as_str().contains('_') {
            head.fields.push(name, value);
        }
    }
    head.framing = match length {
        _ if request.body().is_end_stream() => Framing::Empty,
        Ok(Some(0)) => Framing::Empty,
        Ok(Some(length)) => Framing::Length(length),
        Ok(None) | Err(_) => Framing::Chunked,
    };
    (head, length.and(agrees))
}

/// The state of a [`WatchedSocket`], for the task that serves the connection.
#[derive(Default)]
struct SocketState {
    /// The deadline of the head that is arriving, regardless of other streams.
    head_due: Cell<Option<Nanos>>,
    /// Whether written bytes are not flushed.
    is_writing: Cell<bool>,
    /// The deadline of a client that takes none of the bytes that wait for it, regardless of streams.
    stuck_due: Cell<Option<Nanos>>,
    /// The deadline of a client to close the connection after the gateway has.
    linger_due: Cell<Option<Nanos>>,
}

/// The socket of a connection, which watches whether the client has begun a head and not finished it, and whether the
/// socket has taken all bytes.
struct WatchedSocket {
    socket: Socket,
    /// Bytes that were already read.
    read_ahead: Vec<u8>,
    frames: FrameTracker,
    state: Rc<SocketState>,
    head_timeout: Nanos,
    idle: Nanos,
    clock: Rc<WorkerClock>,
}

impl WatchedSocket {
    /// Notes whether the client takes bytes.
    fn note_written<T>(&self, written: Poll<T>) -> Poll<T> {
        let due = || self.state.stuck_due.get().unwrap_or_else(|| self.clock.now().saturating_add(self.idle));
        self.state.stuck_due.set(written.is_pending().then(due));
        written
    }
}

impl AsyncRead for WatchedSocket {
    fn poll_read(mut self: Pin<&mut Self>, task: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = room.filled().len();
        if self.read_ahead.is_empty() {
            ready!(Pin::new(&mut self.socket).poll_read(task, room))?;
        } else {
            let length = self.read_ahead.len().min(room.remaining());
            room.put_slice(self.read_ahead.get(..length).unwrap_or_default());
            self.read_ahead.drain(..length);
        }
        let came = room.filled().get(before..).unwrap_or_default();
        let has_ended = self.frames.take(came);
        match self.state.head_due.get() {
            _ if !self.frames.is_within() => self.state.head_due.set(None),
            Some(_) if !has_ended => {}
            // each head has the whole time, also one that begins in the read in which another one ends
            _ => self.state.head_due.set(Some(self.clock.now().saturating_add(self.head_timeout))),
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WatchedSocket {
    fn poll_write(mut self: Pin<&mut Self>, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.state.is_writing.set(true);
        let written = Pin::new(&mut self.socket).poll_write(task, bytes);
        self.note_written(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.state.is_writing.set(true);
        let written = Pin::new(&mut self.socket).poll_write_vectored(task, slices);
        self.note_written(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.socket).poll_flush(task);
        ready!(self.note_written(flushed))?;
        self.state.is_writing.set(false);
        Poll::Ready(Ok(()))
    }

    /// Closes the sending side, then reads and discards until the client closes its side: if the socket were closed while
    /// the client still sends, the system would discard what the client has not received yet.
    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.state.linger_due.get().is_none() {
            ready!(Pin::new(&mut self.socket).poll_shutdown(task))?;
            self.state.linger_due.set(Some(self.clock.now().saturating_add(LINGER)));
        }
        let mut bytes = [0; 1 << 10];
        loop {
            let mut room = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut self.socket).poll_read(task, &mut room))?;
            if room.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
