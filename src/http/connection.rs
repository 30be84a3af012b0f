//! A client connection, from its first byte to its last.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use tokio::io::AsyncWriteExt;

use super::body_rate::BodyRateCredit;
use super::client::{Client, Http1Client};
use super::exchange::{self, ExchangeOutcome};
use super::head::{HeadReader, RequestHead, Version};
use super::http2;
use super::limiter::ConnectionPermit;
use super::listener::{Peer, Protocol, ReadyConnection, prepare_connection};
use super::presence::{ConnectionTracker, Interrupted, LINGER};
use super::service::{ConnectionSettings, Exchange, Failure, Service};
use super::socket::RawSocket;
use super::syntax::Refused;
use super::timer::Timer;
use super::traffic::{ArrivalGuard, Stage};
use super::worker::Worker;
use crate::lifecycle::PhaseWatch;
use crate::panics::catch_panic;
use crate::units::Nanos;

/// The limits of a lingering close: its total time and its total bytes.
const MAX_LINGER: Nanos = Nanos::from_secs(30);
const MAX_LINGER_BYTES: usize = 64 << 20;
/// How long the gateway reads the rest of a small request body after an answer.
const DRAIN_TIME: Nanos = Nanos::SECOND;
/// A connection counts as idle once its head has been arriving for longer than this.
const HEAD_PATIENCE: Nanos = Nanos::SECOND;

// === serving ===

/// Serves a connection that was accepted by the listener with this position.
pub(super) async fn serve<S: Service>(worker: Rc<Worker<S>>, listener: usize, raw: RawSocket, arriving: ArrivalGuard) {
    let Some(config) = worker.service.listener(listener) else { return };
    let Some(mut permit) = worker.permit(listener, config.max_connections) else { return };
    let mut tracker = ConnectionTracker::connection(&worker, listener);
    // from now on the connection is counted by its own tracker
    drop(arriving);
    let mut timer = Timer::new(Rc::clone(&worker.clock));
    let settings = worker.service.settings();
    let due = timer.after(settings.head_timeout);
    let admit = |address| admit(&worker, &mut permit, settings, address);
    // boxed: this memory is needed only until the handshake is over
    let mut arriving = Box::pin(prepare_connection(raw, &config, admit));
    let arrived = tracker.run(&mut timer, due, arriving.as_mut()).await;
    drop(arriving);
    let arrived = match arrived {
        Ok(Ok(arrived)) => arrived,
        Ok(Err(error)) => return tracing::debug!(%error, "a connection failed before its first request"),
        Err(interrupted) => return tracing::debug!(?interrupted, "a connection failed before its first request"),
    };
    let ReadyConnection { socket, mut peer, protocol, read_ahead } = arrived;
    peer.listener = listener;
    let peer = Rc::new(peer);
    // boxed: the memory to serve requests is needed only from the first request on
    match protocol {
        Protocol::Http1 => {
            let mut connection = Http1ClientConnection {
                worker: &worker,
                client: Http1Client::new(socket, &read_ahead),
                head: RequestHead::default(),
                peer: &peer,
                tracker: &mut tracker,
                timer: &mut timer,
                phases: worker.traffic.lifecycle.watch(),
                served: 0,
            };
            let first = connection.read_head().await;
            Box::pin(connection.run(first)).await;
        }
        Protocol::Http2 => {
            Box::pin(http2::serve(&worker, socket, read_ahead, &peer, &mut tracker, &mut timer)).await;
        }
    }
}

/// Counts the connection for its client, unless the client already has the maximum number of connections.
fn admit<S: Service>(
    worker: &Worker<S>,
    permit: &mut ConnectionPermit,
    settings: ConnectionSettings,
    address: Option<std::net::IpAddr>,
) -> io::Result<()> {
    let Some(address) = address else { return Ok(()) };
    let client = settings.prefixes.network(address.to_canonical());
    match permit.belongs_to(client, settings.max_per_client) {
        true => Ok(()),
        false => {
            worker.shed("client", settings.max_per_client);
            Err(io::Error::other("the client has as many connections as it may have"))
        }
    }
}

/// An HTTP/1.1 connection from its first request on.
struct Http1ClientConnection<'c, S: Service> {
    worker: &'c Worker<S>,
    client: Http1Client,
    /// The head of the current request.
    head: RequestHead,
    peer: &'c Rc<Peer>,
    tracker: &'c mut ConnectionTracker,
    timer: &'c mut Timer,
    phases: PhaseWatch<'c>,
    /// The number of requests that were served.
    served: u64,
}

/// The result of waiting for the head of a request.
enum HeadOutcome {
    Head,
    Refused(Refused),
    /// The client ended the connection.
    End,
}

impl<S: Service> Http1ClientConnection<'_, S> {
    /// Serves requests until the connection ends, beginning with the one whose head is `arrived`.
    async fn run(&mut self, mut arrived: Result<HeadOutcome, Interrupted>) {
        loop {
            let failure = match arrived {
                Ok(HeadOutcome::Head) => None,
                Ok(HeadOutcome::Refused(refused)) => Some(Failure::Refused(refused)),
                Err(Interrupted::Elapsed) if self.tracker.stage == Some(Stage::ReadingHead) => {
                    Some(Failure::HeadTimeout)
                }
                Ok(HeadOutcome::End) | Err(_) => return close(&mut self.client, self.timer).await,
            };
            let ended = self.serve_request(failure).await;
            let (client, timer) = (&mut self.client, &mut *self.timer);
            match ended {
                ExchangeOutcome::Aborted => return cut_off(client),
                ExchangeOutcome::Answered { .. } if client.keeps_alive && client.channel.body.is_over() => {}
                ExchangeOutcome::Answered { .. }
                    if client.channel.body.is_over() && client.channel.buffer.unread().is_empty() =>
                {
                    return close(client, timer).await;
                }
                ExchangeOutcome::Answered { rate_credit } => {
                    let may_go_on = client.keeps_alive && client.can_be_drained();
                    if !may_go_on || !matches!(timer.run(timer.after(DRAIN_TIME), pin!(drain(client))).await, Ok(true))
                    {
                        return self.linger(rate_credit).await;
                    }
                }
            }
            arrived = self.read_head().await;
        }
    }

    /// Waits for the head of the next request.
    async fn read_head(&mut self) -> Result<HeadOutcome, Interrupted> {
        let Self { worker, client, head, tracker, timer, phases, .. } = self;
        let (settings, is_first) = (worker.service.settings(), self.served == 0);
        let mut reader = HeadReader::default();
        let mut due = timer.after(if is_first { settings.head_timeout } else { settings.idle });
        let mut has_begun = false;
        poll_fn(|task| {
            loop {
                let unread = client.channel.buffer.unread();
                match reader.request(unread, settings.head, head) {
                    Ok(Some(length)) => {
                        client.channel.buffer.consume(length);
                        return Poll::Ready(Ok(HeadOutcome::Head));
                    }
                    Ok(None) => {}
                    Err(refused) => return Poll::Ready(Ok(HeadOutcome::Refused(refused))),
                }
                // an empty line before a request is not part of it
                if !has_begun && !matches!(unread, b"" | b"\r" | b"\r\n") {
                    has_begun = true;
                    due = timer.after(settings.head_timeout);
                    tracker.set(Some(Stage::ReadingHead));
                    tracker.mark_idle_since(timer.after(HEAD_PATIENCE));
                }
                match client.channel.buffer.poll_read(task, &mut client.channel.socket) {
                    Poll::Ready(Ok(0) | Err(_)) => return Poll::Ready(Ok(HeadOutcome::End)),
                    Poll::Ready(Ok(_)) => {}
                    Poll::Pending => break,
                }
            }
            if !is_first && !has_begun && phases.phase(task).drains() {
                return Poll::Ready(Err(Interrupted::Leaving));
            }
            if tracker.is_evicted(task.waker()) {
                return Poll::Ready(Err(Interrupted::Evicted));
            }
            timer.poll(task, due).map(|_| Err(Interrupted::Elapsed))
        })
        .await
    }

    /// Serves the request whose head has arrived, or answers one whose head cannot be read because of this `failure`.
    async fn serve_request(&mut self, failure: Option<Failure>) -> ExchangeOutcome {
        self.tracker.mark_busy();
        self.tracker.set(Some(Stage::Undecided));
        let ended = match failure {
            None => {
                self.client.begin(&self.head);
                let served = {
                    let mut request = Client::Http1(&mut self.client);
                    let (head, peer) = (&mut self.head, self.peer);
                    // part of the connection's own memory: an allocation for each request would cost more
                    let serving =
                        pin!(exchange::serve(self.worker, &mut request, head, peer, self.tracker, self.timer));
                    catch_panic(serving).await
                };
                match served {
                    Ok(ended) => ended,
                    Err(_) if self.client.is_answered => ExchangeOutcome::Aborted,
                    // boxed, like below, because it is rare and large: the memory is there only while it is needed
                    Err(_) => Box::pin(self.answer_panic()).await,
                }
            }
            Some(failure) => Box::pin(self.answer_unreadable(&failure)).await,
        };
        self.tracker.set(None);
        self.tracker.mark_idle_since(self.timer.now());
        self.served = self.served.saturating_add(1);
        ended
    }

    /// Answers a request during which the gateway panicked.
    async fn answer_panic(&mut self) -> ExchangeOutcome {
        self.client.keeps_alive = false;
        let response = self.worker.service.internal_error();
        exchange::answer(self.worker, &mut Client::Http1(&mut self.client), &response, self.timer).await
    }

    /// Answers a client whose request has an unreadable head.
    async fn answer_unreadable(&mut self, failure: &Failure) -> ExchangeOutcome {
        self.client.begin_unreadable();
        let mut exchange = self.worker.service.begin(self.peer, Version::Http11, self.timer.now());
        let response = exchange.failed(failure);
        exchange::answer(self.worker, &mut Client::Http1(&mut self.client), &response, self.timer).await
    }

    /// Closes the sending side, then reads and discards while bytes arrive: if the socket were closed with unread bytes, the
    /// client's system would discard the answer that the client has not read yet.
    async fn linger(&mut self, mut rate_credit: Option<BodyRateCredit>) {
        let Self { client, tracker, timer, .. } = self;
        close(client, timer).await;
        client.channel.buffer.consume(usize::MAX);
        let end = timer.after(MAX_LINGER);
        let mut drained = 0_usize;
        while drained < MAX_LINGER_BYTES {
            if let Some(credit) = &mut rate_credit {
                credit.start_waiting(timer.now());
            }
            let exhausted_at = rate_credit.and_then(|credit| credit.exhausted_at());
            let due = [Some(timer.after(LINGER)), Some(end), exhausted_at];
            let Some(due) = due.into_iter().flatten().min() else { return };
            let reading = poll_fn(|task| client.channel.buffer.poll_read(task, &mut client.channel.socket));
            match tracker.run(timer, due, pin!(reading)).await {
                Ok(Ok(came)) if came > 0 => {
                    client.channel.buffer.consume(came);
                    drained = drained.saturating_add(came);
                    if let Some(credit) = &mut rate_credit {
                        credit.record_bytes(came, timer.now());
                    }
                }
                _ => return,
            }
        }
    }
}

/// Reads the rest of a request's body. Returns whether it arrived completely.
async fn drain(client: &mut Http1Client) -> bool {
    poll_fn(|task| {
        loop {
            match ready!(client.channel.poll_body(task)) {
                Ok(true) => client.channel.consume_available(),
                Ok(false) => return Poll::Ready(true),
                Err(_) => return Poll::Ready(false),
            }
        }
    })
    .await
}

/// Ends a connection in the middle of a response. Sends the waiting bytes as far as the socket takes them at once.
fn cut_off(client: &mut Http1Client) {
    let mut task = Context::from_waker(Waker::noop());
    drop(client.channel.encoder.poll_flush(&mut task, &mut client.channel.socket));
}

/// Closes a connection between two requests.
async fn close(client: &mut Http1Client, timer: &mut Timer) {
    // an error makes no difference here: the connection ends anyway
    drop(timer.run(timer.after(LINGER), pin!(client.channel.socket.shutdown())).await);
}
