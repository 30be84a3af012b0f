//! One request from its head to its end: decided on, sent to an upstream, answered.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use super::body::Framing;
use super::client::{Client, ClientHead};
use super::connection::Presence;
use super::head::{RequestHead, Version};
use super::pace::Pace;
use super::service::{ConnectError, Exchange, Failure, Peer, Response, Service};
use super::timer::Timer;
use super::transfer::{Outcome, Transfer};
use super::tunnel;
use super::upstream::{Destination, Upstream, open};
use super::worker::Worker;
use crate::units::Nanos;

/// How long a client may take to read an answer of the gateway's own.
const ANSWER_TIME: Nanos = Nanos::from_secs(10);

/// How an exchange ended, for the connection that it was on.
#[derive(Debug)]
pub(super) enum Ended {
    /// The client was sent a whole response. What it still sends of its request's body is owed `patience`.
    Answered {
        /// How long the rest of the body may take.
        patience: Option<Pace>,
    },
    /// The connection or the stream ends at once, without an answer or within one.
    CutOff,
}

/// Serves one request.
pub(super) async fn serve<S: Service>(
    worker: &Worker<S>,
    client: &mut Client<'_>,
    request: &RequestHead,
    peer: &Arc<Peer>,
    presence: &mut Presence,
    timer: &mut Timer,
) -> Ended {
    let _request = worker.traffic.request();
    let mut exchange = worker.service.begin(peer, request.version);
    let decided = unless_gone(client, exchange.decide(request)).await;
    presence.set(None);
    match decided {
        None => return Ended::CutOff,
        Some(Err(response)) => return answer(worker, client, &response, timer).await,
        Some(Ok(())) => {}
    }
    let timing = exchange.timing();
    let (mut fresh_only, mut sent_before) = (false, Vec::new());
    loop {
        let destination = match exchange.destination() {
            Ok(destination) => destination,
            Err(response) => return answer(worker, client, &response, timer).await,
        };
        let kept = if fresh_only { None } else { worker.pool.borrow_mut().take(&destination.server, timer.now()) };
        let is_reused = kept.is_some();
        let connection = match kept {
            Some(connection) => connection,
            None => {
                let due = earlier(timer.after(timing.connect), timing.due);
                let connecting = unless_gone(client, open(&destination.server));
                let connected = match timer.run(due, connecting).await {
                    Ok(None) => return Ended::CutOff,
                    Ok(Some(connected)) => connected.map_err(ConnectError::Failed),
                    Err(_) => Err(ConnectError::TimedOut),
                };
                match connected {
                    Ok(connection) => {
                        worker.pool.borrow_mut().share(&destination.server, &connection, timer.now());
                        connection
                    }
                    Err(error) => match exchange.connect_failed(&error) {
                        Ok(()) => continue,
                        Err(response) => return answer(worker, client, &response, timer).await,
                    },
                }
            }
        };
        let outgoing = match exchange.request_head(request) {
            Ok(outgoing) => outgoing,
            Err(response) => return answer(worker, client, &response, timer).await,
        };
        let upgrade = wanted_upgrade(request, &destination);
        let beginning = Upstream::begin(connection, &destination.server, request, &outgoing, upgrade);
        let due = earlier(timer.after(timing.connect), timing.due);
        let transferred = match timer.run(due, beginning).await {
            Ok(Ok(upstream)) => {
                let mut transfer = Transfer::new(client, upstream, request, timing, timer.now());
                transfer.resend = (is_reused && is_idempotent(&request.method)).then(Vec::new);
                transfer.begin_with(std::mem::take(&mut sent_before));
                let ended = transfer.run(&mut exchange, timer, upgrade.is_some(), || worker.traffic.is_leaving()).await;
                transfer.into_outcome(ended)
            }
            // nothing of the request was sent
            Ok(Err(error)) => Outcome::Failed {
                failure: Failure::UpstreamBroke(error),
                is_begun: false,
                resend: is_reused.then(|| std::mem::take(&mut sent_before)),
            },
            Err(_) => Outcome::Failed { failure: Failure::UpstreamTimeout, is_begun: false, resend: None },
        };
        match transferred {
            Outcome::Over { upstream, patience } => {
                if let Some((socket, kept_for)) = upstream.and_then(Upstream::into_kept) {
                    let keep_alive = kept_for.map_or(destination.keep_alive, |kept| kept.min(destination.keep_alive));
                    worker.pool.borrow_mut().keep(&destination.server, socket, keep_alive, timer.now());
                }
                return Ended::Answered { patience };
            }
            Outcome::Tunnel(upstream) => {
                tunnel::run(client, upstream, &mut exchange, timing, timer).await;
                return Ended::CutOff;
            }
            Outcome::Answer(response) => return answer(worker, client, &response, timer).await,
            Outcome::Failed { failure: Failure::UpstreamBroke(_), is_begun: false, resend: Some(sent) } => {
                exchange.resent();
                (fresh_only, sent_before) = (true, sent);
            }
            Outcome::Failed { failure, is_begun, .. } => {
                let response = exchange.failed(&failure);
                return match (is_begun, &failure) {
                    (true, _) | (_, Failure::ClientGone) => Ended::CutOff,
                    // a stream whose body does not come is reset: the client is not waiting for an answer
                    (false, Failure::BodyTimeout) if matches!(client, Client::Http2(_)) => Ended::CutOff,
                    (false, _) => answer(worker, client, &response, timer).await,
                };
            }
        }
    }
}

/// Sends an answer of the gateway's own.
pub(super) async fn answer<S: Service>(
    worker: &Worker<S>,
    client: &mut Client<'_>,
    response: &Response,
    timer: &mut Timer,
) -> Ended {
    if response.closes || worker.traffic.is_leaving() || !client.can_be_drained() {
        client.close();
    }
    let framing = match response.body.len() {
        0 => Framing::Empty,
        length => Framing::Length(u64::try_from(length).unwrap_or(u64::MAX)),
    };
    let declared = itoa::Buffer::new().format(response.body.len()).to_owned();
    let declared = Some(declared.as_bytes()).filter(|_| !matches!(response.status, 204 | 304));
    let (status, fields, wall) = (response.status, &response.fields, timer.wall());
    let head = ClientHead { status, reason: b"", fields, framing, declared, wall };
    if client.begin_response(&head).is_err() {
        return Ended::CutOff;
    }
    let body = if client.takes_body(response.status) { &*response.body } else { &[] };
    let idle = worker.service.settings().idle;
    let (mut sent, mut blocked_since) = (0, timer.now());
    let due = timer.after(ANSWER_TIME);
    let sending = poll_fn(|task| {
        while sent < body.len() {
            match client.poll_send(task, body.get(sent..).unwrap_or_default(), true) {
                Poll::Ready(Ok(length)) => {
                    sent = sent.saturating_add(length);
                    blocked_since = timer.now();
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    return timer
                        .poll(task, due.min(blocked_since.saturating_add(idle)))
                        .map(|_| Err(io::ErrorKind::TimedOut.into()));
                }
            }
        }
        match client.poll_finish(task, &mut None) {
            Poll::Pending => timer
                .poll(task, due.min(blocked_since.saturating_add(idle)))
                .map(|_| Err(io::ErrorKind::TimedOut.into())),
            finished => finished,
        }
    });
    match sending.await {
        Ok(()) => Ended::Answered { patience: None },
        Err(error) => {
            tracing::debug!(%error, "a client went away before its answer");
            Ended::CutOff
        }
    }
}

/// What `work` comes to; `None` where the client goes away before.
async fn unless_gone<W: Future>(client: &mut Client<'_>, work: W) -> Option<W::Output> {
    let mut work = pin!(work);
    poll_fn(|task| match work.as_mut().poll(task) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => client.poll_gone(task).map(|()| None),
    })
    .await
}

/// Methods that may be sent again where nobody knows whether they arrived (RFC 9110, section 9.2.2).
fn is_idempotent(method: &str) -> bool {
    matches!(method, "GET" | "HEAD" | "OPTIONS" | "PUT" | "DELETE" | "TRACE")
}

/// The protocol that a request is to be switched to, where that may be.
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

fn earlier(due: Nanos, other: Option<Nanos>) -> Nanos {
    other.map_or(due, |other| other.min(due))
}
