//! One request's dealings with an upstream: the node it goes to, what is tried again, what is reported.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use http::HeaderValue;
use pingora::proxy::Session;
use pingora::upstreams::peer::{HttpPeer, HttpUpstreamRequestPolicy, PeerOptions};
use pingora::{Error, ErrorSource, ErrorType, Result};

use super::{Chosen, NodeAddress, Pool, deadline};
use crate::proxy::context::Context;
use crate::proxy::no_node;
use crate::proxy::respond;
use crate::units::Nanos;

/// How many requests share a connection to an upstream that speaks HTTP/2, if the upstream allows so many.
const STREAMS: usize = 100;
/// How much of one response, and of all on a connection, may wait for clients, in bytes.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 4 << 20;

fn pool(context: &Context) -> Option<&Pool> {
    Some(&context.live.pools[context.upstream()?.0])
}

/// Where the request goes next: to the node that was chosen when it was charged, or to one that was not tried yet.
pub fn peer(context: &mut Context) -> Result<Box<HttpPeer>> {
    let now = context.gateway.clock.now();
    let was_tried = |chosen: &Chosen| context.tried.iter().any(|tried| Arc::ptr_eq(tried, &chosen.instance));
    let charged = context.chosen.take().filter(|chosen| !was_tried(chosen));
    let pool = pool(context).ok_or_else(no_node)?;
    let hash = context.balance_hashes.iter().find(|(upstream, _)| Some(*upstream) == context.upstream());
    let hash = hash.map(|(_, hash)| *hash);
    let chosen = charged
        .or_else(|| pool.choose(&context.tried, hash, now))
        .or_else(|| pool.choose(&[], hash, now))
        .ok_or_else(no_node)?;
    let timeouts = pool.upstream.timeouts;
    let mut peer = peer_at(pool, &chosen)?;
    let connect = timeouts.connect.to_duration();
    peer.options.connection_timeout = Some(connect);
    peer.options.total_connection_timeout = Some(connect);
    let idle = timeouts.idle.max(timeouts.first_byte).to_duration();
    peer.options.read_timeout = Some(idle);
    peer.options.write_timeout = Some(timeouts.idle.to_duration());
    keep_for(&mut peer, chosen.instance.keep_alive(timeouts.keep_alive), pool.upstream.http2, context.tried.is_empty());
    if pool.upstream.http2 {
        speak_http2(&mut peer.options);
    }
    // A tunnel carries what it likes past the limits.
    peer.options.http_upstream_request_policy = match context.matched().is_some_and(|route| route.upgrades_to_websocket)
    {
        true => HttpUpstreamRequestPolicy::standard(),
        false => HttpUpstreamRequestPolicy::deny_upgrades(),
    };
    context.chosen = Some(chosen);
    context.chosen_at = now;
    Ok(Box::new(peer))
}

/// Says for how long the connection is kept when it is idle, and which ones may be used: of those only that were to be kept
/// for as long, and none at all for a request that is tried again.
fn keep_for(peer: &mut HttpPeer, keep_alive: Nanos, http2: bool, is_first_try: bool) {
    peer.options.idle_timeout = Some(if is_first_try { keep_alive } else { Nanos::ZERO }.to_duration());
    // requests of HTTP/2 share a connection that is in use, also where none is kept
    let may_share = is_first_try && (http2 || keep_alive > Nanos::ZERO);
    let mut terms = DefaultHasher::new();
    (peer.group_key, keep_alive.get()).hash(&mut terms);
    peer.group_key = if may_share { terms.finish() } else { rand::random() };
}

fn peer_at(pool: &Pool, chosen: &Chosen) -> Result<HttpPeer> {
    let address = match &chosen.instance.address {
        NodeAddress::Inet(address) => *address,
        NodeAddress::Unix(path) => {
            return HttpPeer::new_uds(path.to_str().unwrap_or_default(), false, String::new());
        }
    };
    let name = &pool.upstream.nodes[chosen.node].address;
    Ok(match &pool.securing {
        None => HttpPeer::new(address, false, String::new()),
        Some(securing) => securing.way_to(address, name, pool.upstream.http2).peer(),
    })
}

/// Only HTTP/2, without asking first.
pub(super) fn speak_http2(options: &mut PeerOptions) {
    options.set_http_version(2, 2);
    options.max_h2_streams = STREAMS;
    options.h2_stream_window_size = Some(STREAM_WINDOW);
    options.h2_connection_window_size = Some(CONNECTION_WINDOW);
}

/// A connection could not be made: the node is left alone for a moment, and another tried if that is wanted.
pub fn connect_failed(context: &mut Context, mut error: Box<Error>) -> Box<Error> {
    let now = context.gateway.clock.now();
    let chosen = context.chosen.take();
    let Some((pool, chosen)) = pool(context).zip(chosen) else { return error };
    let first = chosen.instance.eject(now);
    let retries = pool.upstream.retries;
    let failed = u32::try_from(context.tried.len()).unwrap_or(u32::MAX);
    error.set_retry(failed < retries.attempts);
    error.esource = ErrorSource::Upstream;
    if first {
        let node = &pool.upstream.nodes[chosen.node].address;
        tracing::warn!(upstream = pool.upstream.name, node, %error, "cannot connect to upstream node");
    }
    context.tried.push(Arc::clone(&chosen.instance));
    error
}

/// The exchange broke off. It is begun again only where that is safe: on a kept connection that the upstream had closed
/// already, for an idempotent method, with a body that can be sent again; and once, on a new connection.
pub fn broke_off(session: &mut Session, context: &mut Context, mut error: Box<Error>, reused: bool) -> Box<Error> {
    // pingora waits for the upstream anew after each part of the request's body: where the body is not complete, it was
    // the client who kept silent for all that time.
    let silent = matches!(error.etype(), ErrorType::ReadTimedout) && !context.upstream_answered;
    if silent && !session.as_downstream_mut().is_body_done() {
        error.esource = ErrorSource::Downstream;
    }
    let instance = context.chosen.as_ref().map(|chosen| Arc::clone(&chosen.instance));
    let is_first = |instance: &Arc<_>| !context.tried.iter().any(|tried| Arc::ptr_eq(tried, instance));
    let again = error.esource() == &ErrorSource::Upstream
        && reused
        && session.req_header().method.is_idempotent()
        && !session.as_ref().retry_buffer_truncated()
        && instance.as_ref().is_some_and(is_first);
    match again {
        true => error.retry.decide_reuse(reused),
        false => error.set_retry(false),
    }
    context.tried.extend(instance);
    error
}

/// The upstream says how long it keeps its connections.
pub fn said_keep_alive(context: &Context, value: &HeaderValue) {
    if let Some(chosen) = &context.chosen {
        chosen.instance.said_keep_alive(value);
    }
}

/// The head of the response is there.
pub fn answered(context: &mut Context) {
    let now = context.gateway.clock.now();
    context.upstream_answered = true;
    deadline::set_total(context);
    if let Some(upstream) = context.upstream() {
        context.live.meters.observe_upstream(upstream, now.saturating_sub(context.chosen_at));
    }
}

/// A request failed for good.
pub fn log_failure(context: &Context, error: &Error) {
    let upstream = pool(context).map(|pool| pool.upstream.name.as_str());
    let node = context.chosen.as_ref().map(|chosen| tracing::field::display(&chosen.instance.address));
    let (source, etype, answer) = (error.esource(), error.etype(), respond::answer_to(error));
    let error = match etype {
        // The whole text holds the bytes that could not be read.
        ErrorType::InvalidHTTPHeader => "the head cannot be read".to_owned(),
        _ => error.to_string(),
    };
    match (source, answer) {
        (ErrorSource::Upstream, _) => tracing::warn!(upstream, node, error, "request to upstream failed"),
        (_, None) => tracing::debug!(error, "client went away"),
        (ErrorSource::Downstream, Some(_)) => tracing::debug!(error, "client broke off or sent what cannot be read"),
        (_, Some(_)) if matches!(etype, ErrorType::HTTPStatus(503)) => {
            tracing::warn!(upstream, "no healthy upstream node")
        }
        _ => tracing::error!(upstream, node, error, "request failed in the gateway"),
    }
}
