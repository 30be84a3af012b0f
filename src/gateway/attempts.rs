//! The attempts of a request at its upstream: the node it goes to, what is tried again, what is reported.

use std::sync::Arc;

use crate::gateway::request_context::RequestContext;
use crate::gateway::respond::Answer;
use crate::gateway::upstream::{Chosen, Pool};
use crate::http::service::{ConnectError, Failure};
use crate::http::upstream::Destination;

fn pool(context: &RequestContext) -> Option<&Pool> {
    context.active.pools.get(context.upstream()?.0).map(|pool| &**pool)
}

/// Where the request goes next: to the node that was chosen when it was charged, or to one that was not tried yet.
pub(super) fn destination(context: &mut RequestContext) -> Result<Destination, Answer> {
    let now = context.gateway.clock.now();
    let was_tried = |chosen: &Chosen| context.tried.iter().any(|tried| Arc::ptr_eq(tried, &chosen.instance));
    let charged = context.chosen.take().filter(|chosen| !was_tried(chosen));
    let pool = pool(context).ok_or(Answer::NoNode)?;
    let hash = context.balance_hashes.iter().find(|(upstream, _)| Some(*upstream) == context.upstream());
    let hash = hash.map(|(_, hash)| *hash);
    let chosen = charged.or_else(|| pool.choose(&context.tried, hash, now)).or_else(|| pool.choose(&[], hash, now));
    let Some(chosen) = chosen else {
        tracing::warn!(upstream = pool.upstream.name, "no healthy upstream node");
        return Err(Answer::NoNode);
    };
    let server = pool.server_at(&chosen.instance.address, chosen.node);
    let keep_alive = pool.upstream.timeouts.keep_alive;
    let allows_upgrade = context.matched().is_some_and(|route| route.upgrades_to_websocket);
    context.chosen = Some(chosen);
    context.chosen_at = now;
    Ok(Destination { server, allows_upgrade, keep_alive })
}

/// A connection could not be made: the node is left alone for a moment. Whether another is to be tried.
pub(super) fn connect_failed(context: &mut RequestContext, error: &ConnectError) -> bool {
    let now = context.gateway.clock.now();
    let chosen = context.chosen.take();
    let Some((pool, chosen)) = pool(context).zip(chosen) else { return false };
    let first = chosen.instance.eject(now);
    let retries = pool.upstream.retries;
    let failed = u32::try_from(context.tried.len()).unwrap_or(u32::MAX);
    if first {
        let node = &pool.upstream.nodes[chosen.node].address;
        tracing::warn!(upstream = pool.upstream.name, node, %error, "cannot connect to upstream node");
    }
    context.tried.push(Arc::clone(&chosen.instance));
    failed < retries.attempts
}

/// The head of the response is there.
pub(super) fn answered(context: &mut RequestContext) {
    let now = context.gateway.clock.now();
    context.upstream_answered = true;
    if let Some(upstream) = context.upstream() {
        context.active.meters.observe_upstream(upstream, now.saturating_sub(context.chosen_at));
    }
}

/// A request failed for good.
pub(super) fn log_failure(context: &RequestContext, failure: &Failure) {
    let upstream = pool(context).map(|pool| pool.upstream.name.as_str());
    let node = context.chosen.as_ref().map(|chosen| tracing::field::display(&chosen.instance.address));
    match failure {
        Failure::UpstreamTimeout | Failure::UpstreamBroke(_) | Failure::Unreadable(_) => {
            tracing::warn!(upstream, node, error = %failure, "request to upstream failed");
        }
        Failure::HeadTimeout
        | Failure::BodyTimeout
        | Failure::BodyTooLarge
        | Failure::ClientGone
        | Failure::Refused(_) => {
            tracing::debug!(error = %failure, "client broke off or sent what cannot be read");
        }
    }
}
