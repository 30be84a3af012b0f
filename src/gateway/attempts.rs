//! The attempts of a request at its upstream: the choice of a node, the retries, and the reports of failures.

use std::rc::Rc;
use std::sync::Arc;

use crate::gateway::request_context::{Admission, RequestContext, UpstreamAttempts};
use crate::gateway::respond::Answer;
use crate::gateway::upstream::{ChosenInstance, Instance, Pool, UpstreamLimiter};
use crate::http::service::{ConnectError, Exchange, Failure};
use crate::http::upstream::{Destination, EXHAUSTED};
use crate::units::{LimitKey, Nanos};

fn pool(context: &RequestContext) -> Option<&Pool> {
    context.active.pools.get(context.upstream()?.0).map(|pool| &**pool)
}

/// The next destination of the request: the node that was chosen when it was charged, or one that was not tried yet.
pub(super) fn destination(context: &mut RequestContext) -> Result<Destination, Answer> {
    let now = context.gateway.time().now();
    let UpstreamAttempts { chosen, tried, .. } = &mut context.attempts;
    let charged = chosen.take().filter(|chosen| !tried.iter().any(|tried| Arc::ptr_eq(tried, &chosen.instance)));
    let pool = pool(context).ok_or(Answer::NoHealthyNode)?;
    let hash = context.upstream().and_then(|upstream| context.attempts.balance_hash(upstream));
    let chosen = match charged {
        Some(chosen) => chosen,
        None => choose(pool, (&context.attempts.tried, hash), now)?,
    };
    let server = pool.server_at(&chosen.instance.address, chosen.node);
    let keep_alive = pool.upstream.timeouts.keep_alive;
    let allows_upgrade = context.matched_route().is_some_and(|route| route.upgrades_to_websocket);
    (context.attempts.chosen, context.attempts.chosen_at) = (Some(chosen), now);
    Ok(Destination { server, allows_upgrade, keep_alive })
}

/// Chooses an instance for a request, preferably one that was not tried yet.
pub(super) fn choose(
    pool: &Pool,
    (tried, hash): (&[Arc<Instance>], Option<LimitKey>),
    now: Nanos,
) -> Result<ChosenInstance, Answer> {
    let chosen = pool.choose(tried, hash, now);
    let again = || if tried.is_empty() { None } else { pool.choose(&[], hash, now) };
    chosen.or_else(again).ok_or_else(|| {
        tracing::warn!(upstream = pool.upstream.name, "no healthy upstream node");
        Answer::NoHealthyNode
    })
}

/// Takes a place at the upstream for a request that its limits admit, if the places there are bounded. The request may wait
/// for one; a request that gets none is not charged.
pub(super) async fn acquire_upstream_permit(context: &mut RequestContext) -> Result<(), Answer> {
    let Some(limiter) = pool(context).and_then(|pool| pool.limiter.clone()) else { return Ok(()) };
    context.attempts.permit = limiter.try_acquire();
    match context.attempts.permit {
        Some(_) => Ok(()),
        // rare, so the future is boxed
        None => Box::pin(wait_for_upstream_permit(context, &limiter)).await,
    }
}

async fn wait_for_upstream_permit(context: &mut RequestContext, limiter: &Arc<UpstreamLimiter>) -> Result<(), Answer> {
    let active = Rc::clone(&context.active);
    let Some(pool) = context.upstream().and_then(|upstream| active.pools.get(upstream.0)) else { return Ok(()) };
    let upstream = &pool.upstream;
    let (now, due) = (context.gateway.time().now(), context.timing().due);
    let patience = upstream.timeouts.pending.min(due.map_or(Nanos::MAX, |due| due.saturating_sub(now)));
    let passed = matches!(context.admission, Admission::Passed { .. });
    if passed {
        // the charge is refunded if the request goes no further
        context.admission = Admission::Pending;
    }
    context.attempts.permit = limiter.acquire(upstream.max_pending, patience).await;
    if context.attempts.permit.is_none() {
        tracing::warn!(
            upstream = upstream.name,
            "the upstream has reached its `max_requests`: the request is answered with 503"
        );
        active.meters.count_upstream_full(&upstream.name);
        if passed {
            // the response tells the client what is left after the refund
            context.refund_as_failed(context.gateway.time().now());
        }
        return Err(Answer::UpstreamFull);
    }
    if passed {
        context.admission = Admission::Passed { at: context.gateway.time().now() };
    }
    Ok(())
}

/// Notes whether the chosen node answered the request well.
fn record_result(context: &RequestContext, is_success: bool) {
    let (Some(pool), Some(chosen)) = (pool(context), &context.attempts.chosen) else { return };
    if pool.upstream.ejection.is_none() {
        return;
    }
    if let Some(time) = pool.record_result(&chosen.instance, is_success, context.gateway.time().now()) {
        let (upstream, node) = (&pool.upstream.name, chosen.instance.name());
        tracing::warn!(upstream, node, seconds = time.as_secs_f64(), "upstream node is ejected: its requests fail");
        context.active.meters.count_ejection(upstream);
    }
}

/// Ejects the node for a moment after a failed connection, unless the gateway is at fault or the node had less time than it
/// may take. `Ok`: another attempt follows.
pub(super) fn connect_failed(context: &mut RequestContext, error: &ConnectError) -> Result<(), Answer> {
    let answer = match error {
        ConnectError::Overdue => return Err(Answer::UpstreamTimeout),
        ConnectError::Failed(error) if error.kind() == EXHAUSTED => {
            tracing::warn!(%error, "the gateway has no room for another connection");
            return Err(Answer::UpstreamFailed);
        }
        ConnectError::TimedOut => Answer::UpstreamTimeout,
        ConnectError::Failed(_) => Answer::UpstreamFailed,
    };
    let now = context.gateway.time().now();
    record_result(context, false);
    let chosen = context.attempts.chosen.take();
    let Some((pool, chosen)) = pool(context).zip(chosen) else { return Err(answer) };
    let first = chosen.instance.eject(now);
    let retries = pool.upstream.retries;
    let failed = u32::try_from(context.attempts.tried.len()).unwrap_or(u32::MAX);
    if first {
        let node = &pool.upstream.nodes[chosen.node].address;
        tracing::warn!(upstream = pool.upstream.name, node, %error, "cannot connect to upstream node");
    }
    context.attempts.tried.push(Arc::clone(&chosen.instance));
    match context.timing().due {
        Some(due) if due <= now => Err(Answer::UpstreamTimeout),
        _ if failed < retries.attempts => Ok(()),
        _ => Err(answer),
    }
}

/// Notes that the upstream has sent the head of the response, and returns the present time.
pub(super) fn record_response(context: &mut RequestContext, status: u16) -> Nanos {
    record_result(context, status < 500);
    let now = context.gateway.time().now();
    context.attempts.is_answered = true;
    if let Some(upstream) = context.upstream() {
        context.active.meters.observe_upstream(upstream, now.saturating_sub(context.attempts.chosen_at));
    }
    now
}

/// Logs that a request failed for good; a failure before the response counts against the node, unless the node only closes
/// its connection or has no room for another request on it, or a limit delays the body that the node waits for.
pub(super) fn log_failure(context: &RequestContext, failure: &Failure) {
    let upstream = pool(context).map(|pool| pool.upstream.name.as_str());
    let node = context.attempts.chosen.as_ref().map(|chosen| tracing::field::display(&chosen.instance.address));
    let route = context.matched_route().map(|route| route.name.as_str());
    match failure {
        Failure::UpstreamTimeout
        | Failure::UpstreamBroke(_)
        | Failure::UpstreamReset(_)
        | Failure::UpstreamRefused(_)
        | Failure::Unreadable(_) => {
            tracing::warn!(route, upstream, node, error = %failure, "request to upstream failed");
            let is_delayed = context.cost_meter.as_ref().is_some_and(|cost_meter| cost_meter.delayed_bytes > 0);
            if !context.attempts.is_answered && !is_delayed && !matches!(failure, Failure::UpstreamRefused(_)) {
                record_result(context, false);
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
