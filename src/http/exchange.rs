//! An exchange: one request from its head to its end, with the decision, the upstream and the response.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use ::http::HeaderMap;

use super::body::Framing;
use super::body_rate::BodyRateCredit;
use super::client::{Client, ClientHead};
use super::head::{RequestHead, Version, has_no_content};
use super::held_body::HeldBody;
use super::listener::Peer;
use super::presence::ConnectionTracker;
use super::service::{ConnectError, Exchange, Failure, Response, Service, Timing};
use super::syntax::Refused;
use super::timer::{Timer, earlier};
use super::transfer::{MAX_RESENT, Resend, Transfer, TransferOutcome};
use super::tunnel;
use super::upstream::{Connection, Destination, Http2Connection, OutgoingRequest, Upstream, open};
use super::worker::Worker;
use crate::units::Nanos;

/// How long a client may take to read a response that the gateway itself made.
const ANSWER_TIME: Nanos = Nanos::from_secs(10);

/// How an exchange ended, for its connection.
#[derive(Debug)]
pub(super) enum ExchangeOutcome {
    /// The client received a whole response.
    Answered {
        /// The connection then waits for the rest of the request's body while this credit lasts; `None` for no minimum rate.
        rate_credit: Option<BodyRateCredit>,
    },
    /// The connection or the stream ends at once, without a response or in the middle of one.
    Aborted,
}

/// Serves one request.
pub(super) async fn serve<S: Service>(
    worker: &Worker<S>,
    client: &mut Client<'_>,
    request: &mut RequestHead,
    peer: &Rc<Peer>,
    tracker: &mut ConnectionTracker,
    timer: &mut Timer,
) -> ExchangeOutcome {
    let _request = worker.traffic.request();
    let mut exchange = worker.service.begin(peer, request.version, timer.now());
    exchange.remove_untrusted_fields(request);
    let (decided, held) = {
        let body = HeldBody::new(client, timer);
        let decided = body.run(pin!(exchange.decide(request, &body))).await;
        (decided, body.into_held())
    };
    tracker.set(None);
    let served = match decided {
        Ok(Ok(())) => pin!(forward(worker, client, request, &mut exchange, held, timer)).await,
        Ok(Err(response)) => Err(response),
        Err(failure) => {
            let response = exchange.failed(&failure);
            if !awaits_answer(client, &failure) {
                return ExchangeOutcome::Aborted;
            }
            Err(response)
        }
    };
    match served {
        Ok(ended) => ended,
        Err(response) => answer(worker, client, &response, timer).await,
    }
}

/// Waits for the `delay` of a part of a body that is not sent yet, at most until the deadline of the request.
async fn wait_for<E: Exchange>(delay: Nanos, exchange: &mut E, timer: &mut Timer) -> Result<(), Box<Response>> {
    if delay == Nanos::ZERO {
        return Ok(());
    }
    let (until, due) = (timer.after(delay), exchange.timing().due);
    poll_fn(|task| timer.poll(task, earlier(until, due))).await;
    if due.is_some_and(|due| due < until) {
        return Err(exchange.failed(&Failure::UpstreamTimeout));
    }
    exchange.delay_ended();
    Ok(())
}

/// Sends a request, which begins with the `held` part of its body, to an upstream (again if that is safe), and the
/// response to the client. `Err` is a response of the gateway's own, to send instead.
async fn forward<S: Service>(
    worker: &Worker<S>,
    client: &mut Client<'_>,
    request: &RequestHead,
    exchange: &mut S::Exchange,
    held: Vec<u8>,
    timer: &mut Timer,
) -> Result<ExchangeOutcome, Box<Response>> {
    if !held.is_empty() {
        let Some(admitted) = admit_held(client, request, exchange, &held, timer).await else {
            return Ok(ExchangeOutcome::Aborted);
        };
        admitted?;
    }
    let (timing, is_idempotent) = (exchange.timing(), is_idempotent(&request.method));
    let mut forwarding = Forwarding {
        worker,
        client,
        request,
        exchange,
        timer,
        timing,
        is_idempotent,
        needs_new_connection: false,
        body_so_far: held,
    };
    loop {
        let destination = forwarding.exchange.destination()?;
        let (connection, is_reused) = match forwarding.acquire(&destination).await {
            Acquired::Connection { connection, is_reused } => (connection, is_reused),
            Acquired::Failed(error) => {
                forwarding.exchange.connect_failed(&error)?;
                continue;
            }
            Acquired::ClientGone => return Ok(ExchangeOutcome::Aborted),
        };
        let attempted = forwarding.attempt(&destination, connection, is_reused).await?;
        let Some(Attempt { outcome, is_safe }) = attempted else { return Ok(ExchangeOutcome::Aborted) };
        let Forwarding { client, exchange, timer, .. } = &mut forwarding;
        let resend = match outcome {
            TransferOutcome::Over { upstream, rate_credit } => {
                if let Some(upstream) = upstream {
                    keep(worker, &destination, upstream, timer.now());
                }
                return Ok(ExchangeOutcome::Answered { rate_credit });
            }
            TransferOutcome::Tunnel(upstream) => {
                Box::pin(tunnel::run(client, upstream, *exchange, timing, timer)).await;
                return Ok(ExchangeOutcome::Answered { rate_credit: None });
            }
            TransferOutcome::Answer(response) => return Err(response),
            TransferOutcome::Failed { failure, is_begun: false, resend: Some(resend) }
                if may_be_resent(&failure, is_safe) =>
            {
                resend
            }
            TransferOutcome::Failed { failure, is_begun, .. } => {
                let response = exchange.failed(&failure);
                return match !is_begun && awaits_answer(client, &failure) {
                    true => Err(response),
                    false => Ok(ExchangeOutcome::Aborted),
                };
            }
        };
        let delay = resend.delayed_until.saturating_sub(timer.now());
        // boxed because it is rare
        let waited = unless_disconnected(client, Box::pin(wait_for(delay, *exchange, timer)).as_mut()).await;
        let Some(waited) = waited else { return Ok(ExchangeOutcome::Aborted) };
        waited?;
        exchange.resent();
        (forwarding.needs_new_connection, forwarding.body_so_far) = (true, resend.content);
    }
}

/// Has the exchange admit the `held` part of a request's body, and waits as long as it says; `None` if the client goes away
/// before.
async fn admit_held<E: Exchange>(
    client: &mut Client<'_>,
    request: &RequestHead,
    exchange: &mut E,
    held: &[u8],
    timer: &mut Timer,
) -> Option<Result<(), Box<Response>>> {
    // boxed because it is rare
    let admitting = Box::pin(async {
        let delay = exchange.request_body(request, held, false).await?;
        wait_for(delay, exchange, timer).await
    });
    unless_disconnected(client, pin!(admitting)).await
}

/// A request on its way to an upstream, by as many attempts as it takes.
struct Forwarding<'f, 'c, S: Service> {
    worker: &'f Worker<S>,
    client: &'f mut Client<'c>,
    request: &'f RequestHead,
    exchange: &'f mut S::Exchange,
    timer: &'f mut Timer,
    timing: Timing,
    is_idempotent: bool,
    /// Whether the request failed on a connection and may not take a kept one again.
    needs_new_connection: bool,
    /// The part of the request's body that was read: for the decision, or by the attempt before.
    body_so_far: Vec<u8>,
}

/// The connection for an attempt.
enum Acquired {
    Connection { connection: Connection, is_reused: bool },
    Failed(ConnectError),
    ClientGone,
}

/// An attempt that is over.
struct Attempt {
    outcome: TransferOutcome,
    /// Whether the request may be sent again even if the upstream has perhaps processed it.
    is_safe: bool,
}

impl<S: Service> Forwarding<'_, '_, S> {
    /// Takes a kept connection, or opens a new one.
    async fn acquire(&mut self, destination: &Destination) -> Acquired {
        let Self { worker, client, request, timer, timing, .. } = self;
        let can_be_resent = self.is_idempotent && request.framing.is_at_most(MAX_RESENT);
        let kept = match self.needs_new_connection {
            true => None,
            false => worker.pool.borrow_mut().take(destination, can_be_resent, timer.now()),
        };
        if let Some(connection) = kept {
            return Acquired::Connection { connection, is_reused: true };
        }
        // boxed because it is rare and large: the memory is there only while it is needed
        match Box::pin(connect(worker, client, destination, *timing, timer)).await {
            Some(Ok(connection)) => Acquired::Connection { connection, is_reused: false },
            Some(Err(error)) => Acquired::Failed(error),
            None => Acquired::ClientGone,
        }
    }

    /// Sends the request on `connection`, and the response to the client. `None` if the client has gone.
    async fn attempt(
        &mut self,
        destination: &Destination,
        connection: Connection,
        is_reused: bool,
    ) -> Result<Option<Attempt>, Box<Response>> {
        let Self { worker, client, request, exchange, timer, timing, .. } = self;
        let outgoing = exchange.request_head(request)?;
        let upgrade = wanted_upgrade(request, destination);
        let beginning = match connection {
            Connection::Http1(connection) => Ok(Upstream::begin_http1(connection, request, &outgoing, upgrade)),
            Connection::Http2(connection) => {
                let due = earlier(timer.after(timing.connect), timing.due);
                let has_tls = destination.server.tls.is_some();
                Box::pin(begin_http2(&connection, request, &outgoing, has_tls, due, timer)).await
            }
        };
        let upstream = match beginning {
            Ok(upstream) => upstream,
            // nothing of the request was sent
            Err(failure) => {
                let content = is_reused.then(|| std::mem::take(&mut self.body_so_far));
                let resend = content.map(|content| Resend { content, delayed_until: Nanos::ZERO });
                let outcome = TransferOutcome::Failed { failure, is_begun: false, resend };
                return Ok(Some(Attempt { outcome, is_safe: is_reused }));
            }
        };
        // a client that sends `expect` sends no body before the upstream agrees
        let expects_continue = outgoing.fields.contains("expect");
        // if the gateway does not forward the field, the upstream sends no 100 (Continue)
        if !expects_continue && client.expects_continue() && client.send_continue(timer.wall()).is_err() {
            return Ok(None);
        }
        let mut transfer = Transfer::new(client, upstream, (request, expects_continue), *timing, timer.now());
        let is_safe = is_reused && self.is_idempotent;
        let may_refuse = destination.server.http2 && !self.needs_new_connection;
        transfer.resend = (is_safe || may_refuse).then(|| self.body_so_far.clone());
        transfer.begin_with(std::mem::take(&mut self.body_so_far));
        let ended = transfer.run(*exchange, timer, upgrade, || worker.traffic.is_draining()).await;
        Ok(Some(Attempt { outcome: transfer.into_outcome(ended), is_safe }))
    }
}

/// Keeps the connection of a transfer that is over for another request, if that is possible.
fn keep<S: Service>(worker: &Worker<S>, destination: &Destination, upstream: Upstream, now: Nanos) {
    let Some((connection, kept_for)) = upstream.into_reusable() else { return };
    let keep_alive = kept_for.map_or(destination.keep_alive, |kept| kept.min(destination.keep_alive));
    worker.pool.borrow_mut().keep(&destination.server, connection, keep_alive, now);
}

/// Whether a request that failed without a response may be sent again. `is_safe` says whether it may be where the upstream
/// has perhaps processed it.
fn may_be_resent(failure: &Failure, is_safe: bool) -> bool {
    matches!(failure, Failure::UpstreamRefused(_)) || (is_safe && matches!(failure, Failure::UpstreamBroke(_)))
}

/// Whether the client of a request that failed without a response waits for one. A stream whose body does not arrive is
/// reset.
fn awaits_answer(client: &Client<'_>, failure: &Failure) -> bool {
    !matches!((failure, client), (Failure::ClientGone, _) | (Failure::BodyTimeout, Client::Http2(_)))
}

/// Begins a request on an HTTP/2 connection. If the connection does not take it, the pool gives it to no later request.
async fn begin_http2(
    connection: &Http2Connection,
    request: &RequestHead,
    outgoing: &OutgoingRequest,
    has_tls: bool,
    due: Nanos,
    timer: &mut Timer,
) -> Result<Upstream, Failure> {
    let beginning = pin!(Upstream::begin_http2(connection, request, outgoing, has_tls));
    let failure = match timer.run(due, beginning).await {
        Ok(Ok(upstream)) => return Ok(upstream),
        Ok(Err(error)) if error.kind() == io::ErrorKind::InvalidInput => {
            return Err(Refused::Malformed("the upstream's version of HTTP cannot express the request").into());
        }
        Ok(Err(error)) => Failure::UpstreamBroke(error),
        Err(_) => Failure::UpstreamTimeout,
    };
    connection.retire();
    Err(failure)
}

/// Opens a connection; `None` if the client goes away before it is open.
async fn connect<S: Service>(
    worker: &Worker<S>,
    client: &mut Client<'_>,
    destination: &Destination,
    timing: Timing,
    timer: &mut Timer,
) -> Option<Result<Connection, ConnectError>> {
    let connect_due = timer.after(timing.connect);
    let opening = pin!(open(&destination.server));
    let opened = timer.run(earlier(connect_due, timing.due), pin!(unless_disconnected(client, opening))).await;
    let connected = match opened {
        Ok(None) => return None,
        Ok(Some(connected)) => connected.map_err(ConnectError::Failed),
        Err(_) if timing.due.is_some_and(|due| due < connect_due) => Err(ConnectError::Overdue),
        Err(_) => Err(ConnectError::TimedOut),
    };
    if let Ok(connection) = &connected {
        worker.pool.borrow_mut().share(&destination.server, connection, destination.keep_alive, timer.now());
    }
    Some(connected)
}

/// Sends a response that the gateway itself made.
pub(super) async fn answer<S: Service>(
    worker: &Worker<S>,
    client: &mut Client<'_>,
    response: &Response,
    timer: &mut Timer,
) -> ExchangeOutcome {
    if response.closes || worker.traffic.is_draining() || !client.can_be_drained() {
        client.close();
    }
    let framing = match response.body.len() {
        _ if response.trailers.is_some() => Framing::Chunked,
        0 => Framing::Empty,
        length => Framing::Length(u64::try_from(length).unwrap_or(u64::MAX)),
    };
    let (status, fields, wall) = (response.status, &response.fields, timer.wall());
    let has_body = client.has_response_body(status);
    // a response to HEAD declares the length that one to GET would have had
    let declares = !has_body && !has_no_content(status);
    let mut digits = itoa::Buffer::new();
    let declared = declares.then(|| digits.format(response.body.len()).as_bytes());
    if client.begin_response(&ClientHead { status, reason: b"", fields, framing, declared, wall }).is_err() {
        return ExchangeOutcome::Aborted;
    }
    let mut content = if has_body { &*response.body } else { &[] };
    let mut trailers = response.trailers.as_ref().map(|trailers| trailers.to_map());
    let (due, mut took) = (timer.after(ANSWER_TIME), timer.now());
    let sending = poll_fn(|task| {
        let before = content.len();
        if let Poll::Ready(sent) = poll_answer(client, task, &mut content, &mut trailers) {
            return Poll::Ready(sent);
        }
        if content.len() < before {
            took = timer.now();
        }
        let due = due.min(took.saturating_add(worker.service.settings().idle));
        timer.poll(task, due).map(|_| Err(io::ErrorKind::TimedOut.into()))
    });
    match sending.await {
        Ok(()) => ExchangeOutcome::Answered { rate_credit: None },
        Err(error) => {
            tracing::debug!(%error, "the client closed the connection before it received the response");
            ExchangeOutcome::Aborted
        }
    }
}

/// Sends the `content` that is left of a response, and its end.
fn poll_answer(
    client: &mut Client<'_>,
    task: &mut Context<'_>,
    content: &mut &[u8],
    trailers: &mut Option<HeaderMap>,
) -> Poll<io::Result<()>> {
    while !content.is_empty() {
        let sent = ready!(client.channel().poll_send(task, content, trailers.is_none()))?;
        *content = content.get(sent..).unwrap_or_default();
    }
    client.channel().poll_finish(task, trailers)
}

/// The result of `work`; `None` if the client goes away before.
async fn unless_disconnected<W: Future>(client: &mut Client<'_>, mut work: Pin<&mut W>) -> Option<W::Output> {
    poll_fn(|task| match work.as_mut().poll(task) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => client.poll_disconnect(task).map(|()| None),
    })
    .await
}

/// Whether a request with this method may be sent again if its arrival is uncertain (RFC 9110, section 9.2.2).
fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "PUT" | "DELETE" | "TRACE")
}

/// The protocol to which the request wants to switch, if that is allowed.
fn wanted_upgrade<'r>(request: &'r RequestHead, destination: &Destination) -> Option<&'r [u8]> {
    let wanted = request.fields.get("upgrade").filter(|protocol| protocol.eq_ignore_ascii_case(b"websocket"))?;
    let may = destination.allows_upgrade
        && !destination.server.http2
        && request.version == Version::Http11
        && request.method == "GET"
        && request.framing == Framing::Empty
        && request.fields.lists("connection", "upgrade");
    may.then_some(wanted)
}
