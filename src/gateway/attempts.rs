//! The attempts of a request at its upstream: the node it goes to, what is tried again, what is reported.

use std::sync::Arc;

use crate::gateway::active_config::ActiveConfig;
use crate::gateway::request_context::RequestContext;
use crate::gateway::respond::Answer;
use crate::gateway::upstream::{Chosen, Instance, NoChoice, Pool};
use crate::http::service::{ConnectError, Failure};
use crate::http::upstream::Destination;
use crate::units::{LimitKey, Nanos};

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
    let chosen = match charged {
        Some(chosen) => chosen,
        None => choose(&context.active, pool, (&context.tried, hash), now)?,
    };
    let server = pool.server_at(&chosen.instance.address, chosen.node);
    let keep_alive = pool.upstream.timeouts.keep_alive;
    let allows_upgrade = context.matched().is_some_and(|route| route.upgrades_to_websocket);
    context.chosen = Some(chosen);
    context.chosen_at = now;
    Ok(Destination { server, allows_upgrade, keep_alive })
}

/// An instance for a request, rather none of those that were tried.
pub(super) fn choose(
    active: &ActiveConfig,
    pool: &Pool,
    (tried, hash): (&[Arc<Instance>], Option<LimitKey>),
    now: Nanos,
) -> Result<Chosen, Answer> {
    let chosen = match pool.choose(tried, hash, now) {
        Err(NoChoice::Unhealthy) if !tried.is_empty() => pool.choose(&[], hash, now),
        chosen => chosen,
    };
    let upstream = &pool.upstream.name;
    chosen.map_err(|why| match why {
        NoChoice::Unhealthy => {
            tracing::warn!(upstream, "no healthy upstream node");
            Answer::NoNode
        }
        NoChoice::Full => {
            tracing::warn!(upstream, "as many requests at the upstream as there may be: `max_requests`");
            active.meters.upstream_full(upstream);
            Answer::UpstreamFull
        }
    })
}

/// The request to the chosen node was answered well or not, or not at all.
fn judge(context: &RequestContext, is_well: bool) {
    let (Some(pool), Some(chosen)) = (pool(context), &context.chosen) else { return };
    if pool.upstream.ejection.is_none() {
        return;
    }
    if let Some(time) = pool.judge(&chosen.instance, is_well, context.gateway.clock.now()) {
        let (upstream, node) = (&pool.upstream.name, chosen.instance.name());
        tracing::warn!(upstream, node, seconds = time.as_secs_f64(), "upstream node is left alone: its requests fail");
        context.active.meters.upstream_ejected(upstream);
    }
}

/// A connection could not be made: the node is left alone for a moment. Whether another is to be tried.
pub(super) fn connect_failed(context: &mut RequestContext, error: &ConnectError) -> bool {
    let now = context.gateway.clock.now();
    judge(context, false);
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
pub(super) fn answered(context: &mut RequestContext, status: u16) {
    judge(context, status < 500);
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
            if !context.upstream_answered {
                judge(context, false);
            }
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
