//! From a request's head to its verdict: canonical facts, route, caller, charges, store.

use std::cell::LazyCell;
use std::rc::Rc;
use std::sync::Arc;

use http::Method;

use crate::algorithm::{Decision, Denial};
use crate::charge::Charge;
use crate::gateway::active_config::ActiveConfig;
use crate::gateway::awaited_body::{BodyFields, BodySource};
use crate::gateway::caller::{self, Caller};
use crate::gateway::cost_meter::CostMeter;
use crate::gateway::facts::{Head, Refused, Target};
use crate::gateway::identify::Identity;
use crate::gateway::queue::{self, QueuePlace};
use crate::gateway::request_context::{Admission, RequestContext};
use crate::gateway::respond::{self, Answer};
use crate::gateway::{attempts, bans, charging, denials, early, own_usage, trace};
use crate::http::head::RequestHead;
use crate::http::service::Exchange as _;
use crate::panics::failpoint;
use crate::ruleset::cors::AllowedOrigin;
use crate::ruleset::key::{Facts, KeyHasher};
use crate::ruleset::matcher::{Route, RouteId};
use crate::ruleset::request_field::RequestFields;
use crate::ruleset::{AccessLog, ListenerService, PlanId, Ruleset};
use crate::units::{LimitKey, Nanos};

/// Decides whether a request may pass, except under limits that depend on a body that is still arriving, and makes it wait
/// if it has to. `Err` is the response to a request that may not pass.
pub async fn admit(context: &mut RequestContext, head: &Head<'_>, body: BodySource<'_>) -> Result<(), Answer> {
    let active = Rc::clone(&context.active);
    let ruleset = &active.ruleset;
    context.method = Method::from_bytes(head.method.as_bytes()).ok();
    if ruleset.access_log != AccessLog::Off || ruleset.traces.is_some() {
        context.trace = trace::of(ruleset, head.headers, head.peer);
    }
    let is_proxied = context.serves == ListenerService::Proxy;
    // other proxies expect the result as an HTTP status, also for gRPC requests
    context.grpc_type = if is_proxied { respond::grpc_type(head.headers) } else { None };
    context.cors = AllowedOrigin::of(ruleset, head.headers);
    let rules = &ruleset.client_address;
    let target = match read_target(head, ruleset) {
        Ok(target) => target,
        Err(answer) => {
            context.client = head.address(rules).map(|address| rules.prefixes.network(address));
            context.set_route(None);
            return Err(answer);
        }
    };
    let facts = head.facts(rules, &target, head.address(rules));
    context.client = facts.client;
    let asks_usage = is_proxied && own_usage::is_usage_request(context, facts.path);
    context.set_route(if asks_usage { None } else { ruleset.route_of(&facts) });
    let resolved_charges = match context.route {
        // rare steps are boxed: the engine moves the future of each request, and boxes keep it small
        _ if asks_usage => Err(Box::pin(own_usage::answer(context, &facts)).await),
        Some(route) => {
            let found = ruleset.matcher.route(route);
            match caller::check_route(found, target.has_parameters, body, &facts) {
                Ok(()) => {
                    context.body_left = found.max_request_body;
                    resolve_charges(context, &active, route, &facts, body).await
                }
                Err(answer) => Err(answer),
            }
        }
        None => Err(Answer::NoRoute),
    };
    context.target = Some(target);
    let (caller, resolved_charges) = resolved_charges?;
    match &mut context.awaited_body {
        None => charge_and_wait(context, &caller, head, resolved_charges).await,
        Some(body) => {
            (body.caller, body.head_charges) = (Some((caller.identity, caller.proxy_plan)), resolved_charges.charges);
            Ok(())
        }
    }
}

/// Charges a request under the limits that do not depend on its body, before the gateway waits for the body.
pub async fn admit_before_body(context: &mut RequestContext, request: &RequestHead) -> Result<(), Answer> {
    let peer = Rc::clone(&context.peer);
    let caller =
        context.awaited_body.as_ref().and_then(|body| caller_of(body.caller.clone())).ok_or(Answer::Internal)?;
    charge_head_limits(context, &caller, &Head::of(request, &peer)).await
}

/// The caller of a request whose limits depend on its body: not an exempt one, because such a request waits for no body.
fn caller_of(identified: Option<(Identity, Option<PlanId>)>) -> Option<Caller> {
    identified.map(|(identity, proxy_plan)| Caller { identity, proxy_plan, bypassed: false })
}

/// Decides on a request, also by the part of its body that was held back. If the gateway had to wait for this part, the
/// request was charged before under the limits that do not depend on it.
pub async fn admit_with_body(context: &mut RequestContext, request: &RequestHead) -> Result<(), Answer> {
    let active = Rc::clone(&context.active);
    let (ruleset, peer) = (&active.ruleset, Rc::clone(&context.peer));
    let head = Head::of(request, &peer);
    let (Some(id), Some(target), Some(body)) = (context.route, &context.target, &mut context.awaited_body) else {
        return Err(Answer::Internal);
    };
    let (read, caller) = (body.decide(), caller_of(body.caller.take()).ok_or(Answer::Internal)?);
    let resolved_charges = read.map_err(Answer::Malformed).and_then(|fields| {
        let rules = &ruleset.client_address;
        let facts = Facts { body: Some(&fields), ..head.facts(rules, target, head.address(rules)) };
        let route = ruleset.matcher.route(id);
        let mut resolved = caller.resolved(ruleset, route);
        resolved.upstream_node = context.attempts.node_name();
        let charges = ruleset.charges_with_body(route, &facts, &resolved, &active.hashers, &body.head_charges)?;
        let cost_meter = CostMeter::new(ruleset, &charges, &facts);
        Ok(ResolvedCharges { charges, cost_meter, fields: Some(fields) })
    });
    match resolved_charges {
        Ok(resolved_charges) => charge_and_wait(context, &caller, &head, resolved_charges).await,
        Err(answer) => {
            // the limits that do not depend on the body are charged all the same
            charge_head_limits(context, &caller, &head).await?;
            record_outcome(context, &caller, &head, None);
            Err(answer)
        }
    }
}

/// The charges of a request that are still to be made.
struct ResolvedCharges {
    charges: Vec<Charge>,
    cost_meter: Option<Box<CostMeter>>,
    /// The fields of its body, if they are known and a limit needs them.
    fields: Option<RequestFields>,
}

/// Identifies the caller and works out the charges. `Err` is the response to a request that may not pass.
async fn resolve_charges(
    context: &mut RequestContext,
    active: &ActiveConfig,
    id: RouteId,
    facts: &Facts<'_>,
    body: BodySource<'_>,
) -> Result<(Caller, ResolvedCharges), Answer> {
    let (ruleset, route) = (&active.ruleset, active.ruleset.matcher.route(id));
    Caller::check_before_identification(ruleset, route, facts)?;
    context.is_preflight = route.bypass.covers_preflight(facts);
    // a preflight has no caller
    let identity = match context.is_preflight {
        true => Ok(Identity::Anonymous),
        false => early::identify(context, Some(id), facts).await,
    };
    let resolved_charges = identity.and_then(|identity| {
        let caller = Caller::new(&active.ruleset, route, facts, identity);
        let resolved_charges = resolve(context, active, route, facts, (&caller, body))?;
        Ok((caller, resolved_charges))
    });
    match resolved_charges {
        Ok(resolved_charges) => Ok(resolved_charges),
        Err(answer) => Err(Box::pin(early::refuse(context, Some(id), facts, answer)).await),
    }
}

/// Checks the access of `caller`, and works out the charges of its request, which may depend on the node that it goes to.
fn resolve(
    context: &mut RequestContext,
    active: &ActiveConfig,
    route: &Route,
    facts: &Facts<'_>,
    (caller, body): (&Caller, BodySource<'_>),
) -> Result<ResolvedCharges, Answer> {
    let ruleset = &active.ruleset;
    let hashers = &active.hashers;
    let mut resolved = caller.resolved(ruleset, route);
    context.customer = caller.identity.customer().map(|customer| Arc::clone(&customer.name));
    context.plan = resolved.plan.map(|(plan, _)| plan);
    caller.check_access(ruleset, route, facts)?;
    context.attempts.balance_hashes = ruleset.balance_hashes(route, facts, &resolved, hashers.hasher())?;
    context.attempts.split = route.split.as_ref().and_then(|split| {
        let by = split.by.as_ref().and_then(|part| KeyHasher::stable().part(part, facts, &resolved).ok());
        split.at(by.map_or_else(rand::random, LimitKey::fingerprint))
    });
    // a request that another proxy forwards goes to no node of this gateway
    let counted =
        context.upstream().filter(|_| context.serves == ListenerService::Proxy && ruleset.counts_by_node(route));
    let chosen = match counted {
        Some(upstream) => {
            let (pool, hash) = (&active.pools[upstream.0], context.attempts.balance_hash(upstream));
            Some(attempts::choose(pool, (&[], hash), context.gateway.time().now())?)
        }
        None => None,
    };
    resolved.upstream_node = chosen.as_ref().map(|chosen| chosen.instance.name());
    let (fields, awaited) = match !caller.bypassed && ruleset.depends_on_body(route, &resolved) {
        false => (None, None),
        true => match BodyFields::of(facts.headers, body, route).map_err(Answer::Malformed)? {
            BodyFields::Known(fields) => (Some(fields), None),
            BodyFields::Awaited(awaited) => (None, Some(awaited)),
        },
    };
    let facts = &Facts { body: fields.as_ref(), ..facts.clone() };
    let charges = caller.charges(ruleset, route, facts, &resolved, hashers)?;
    let cost_meter = if awaited.is_none() { CostMeter::new(ruleset, &charges, facts) } else { None };

    context.bypassed = caller.bypassed;
    (context.attempts.chosen, context.awaited_body) = (chosen, awaited);
    Ok(ResolvedCharges { charges, cost_meter, fields })
}

fn read_target(head: &Head<'_>, ruleset: &Ruleset) -> Result<Target, Answer> {
    let target = head.target(&ruleset.request_head)?;
    match head.tls_info.is_none_or(|tls_info| tls_info.is_for(target.host())) {
        true => Ok(target),
        false => Err(Answer::Misdirected),
    }
}

/// The wait of an admitted request, and its places in the queues of the limits that delay it.
pub(super) struct QueueWait {
    wait: Nanos,
    places: Vec<QueuePlace>,
}

/// Charges a request of `caller` under the limits that do not depend on its body, at most once. Its marks and waits are for
/// all its limits to decide.
async fn charge_head_limits(context: &mut RequestContext, caller: &Caller, head: &Head<'_>) -> Result<(), Answer> {
    let active = Rc::clone(&context.active);
    let (Some(route), Some(target), Some(body)) = (context.route, &context.target, &mut context.awaited_body) else {
        return Err(Answer::Internal);
    };
    if body.head_charges.is_empty() || std::mem::replace(&mut body.is_head_charged, true) {
        return Ok(());
    }
    let charges = body.head_charges.clone();
    let rules = &active.ruleset.client_address;
    let cost_meter = CostMeter::new(&active.ruleset, &charges, &head.facts(rules, target, head.address(rules)));
    let mut resolved_charges = ResolvedCharges { charges, cost_meter, fields: None };
    let denied = match charge(context, route, &mut resolved_charges).await {
        Ok(now) if context.verdict.is_denied() => conclude(context, route, now).await.map(drop),
        Ok(at) => {
            context.admission = Admission::PartlyCharged { at, route };
            return Ok(());
        }
        Err(answer) => Err(answer),
    };
    record_outcome(context, caller, head, None);
    denied
}

/// Charges a request of `caller` under all its limits, and holds it back until its turn.
async fn charge_and_wait(
    context: &mut RequestContext,
    caller: &Caller,
    head: &Head<'_>,
    mut resolved_charges: ResolvedCharges,
) -> Result<(), Answer> {
    let turn = decide(context, &mut resolved_charges).await;
    record_outcome(context, caller, head, resolved_charges.fields.as_ref());
    match turn? {
        Some(turn) => Box::pin(wait_for(turn, context)).await,
        None => Ok(()),
    }
}

/// Records for operators the outcome of a request of `caller` that was not simply admitted.
fn record_outcome(context: &RequestContext, caller: &Caller, head: &Head<'_>, body: Option<&RequestFields>) {
    if let (true, Some(route), Some(target)) = (denials::must_record(context), context.matched_route(), &context.target)
    {
        let rules = &context.active.ruleset.client_address;
        let facts = LazyCell::new(|| Facts { body, ..head.facts(rules, target, head.address(rules)) });
        denials::record(context, route, &facts, caller);
    }
}

/// Charges the request under all its limits, and counts the outcome.
async fn decide(
    context: &mut RequestContext,
    resolved_charges: &mut ResolvedCharges,
) -> Result<Option<QueueWait>, Answer> {
    let Some(route) = context.route else { return Ok(None) };
    let active = Rc::clone(&context.active);
    if context.bypassed {
        active.meters.observe_bypass(route, context.plan);
    }
    if resolved_charges.charges.is_empty() {
        charging::refund_early(context);
        return Ok(None);
    }
    let now = charge(context, route, resolved_charges).await?;
    conclude(context, route, now).await
}

/// Makes the charges that are due now. `Err`: a limit cannot be checked, and denies in this case.
async fn charge(
    context: &mut RequestContext,
    route: RouteId,
    ResolvedCharges { charges, cost_meter, .. }: &mut ResolvedCharges,
) -> Result<Nanos, Answer> {
    let active = Rc::clone(&context.active);
    let now = context.gateway.time().now();
    if charging::deny_banned(context, charges, now) {
        return Ok(now);
    }
    let receipt = match charging::charge_in_memory(context, charges, now) {
        Some(receipt) => receipt,
        // this future is large, and moves with every future that contains it
        None => Box::pin(charging::charge_all(context, charges, now)).await,
    };
    (context.charged_at, context.cost_meter) = (now, cost_meter.take());
    context.verdict.set(&active.ruleset, charges, &receipt.charged);
    context.charges = std::mem::take(charges);
    charging::observe(context, route, &receipt)?;
    Ok(now)
}

/// Acts on the verdict on a request that was charged at `now`. `Err` is the response to a request that may not pass.
pub(super) async fn conclude(
    context: &mut RequestContext,
    route: RouteId,
    now: Nanos,
) -> Result<Option<QueueWait>, Answer> {
    let active = Rc::clone(&context.active);
    let places = match context.verdict.outcome {
        Decision::Admit { .. } => {
            // from here on the charges are refunded if the request ends before it has passed
            context.admission = Admission::Pending;
            failpoint("charged");
            take_places(context, now)
        }
        Decision::Deny(_) => {
            queue::await_places(&active.queues, &mut context.verdict, now);
            Vec::new()
        }
    };
    charging::charge_candidate(context, now).await;
    context.attempts.diverted = context.verdict.divert_upstream(&active.ruleset);
    if context.attempts.diverted.is_some() {
        // the chosen node belongs to the route's own upstream
        context.attempts.chosen = None;
    }
    // a ban decides which limit denies, and for how long
    bans::record_denials(context, now);
    let plan_of = |position| context.plan_of(position);
    active.meters.observe_verdict(route, plan_of, &context.charges, &context.verdict);
    match context.verdict.outcome {
        Decision::Deny(_) => Err(Answer::Limited),
        Decision::Admit { wait: Nanos::ZERO } => {
            context.admission = Admission::Passed { at: now };
            Ok(None)
        }
        Decision::Admit { wait } => Ok(Some(QueueWait { wait, places })),
    }
}

/// Takes a place in the queue of every limit that makes an admitted request wait. If a queue is full, the request is denied,
/// and its charges are refunded.
fn take_places(context: &mut RequestContext, now: Nanos) -> Vec<QueuePlace> {
    match queue::enter_all(&context.active.queues, &context.verdict, now) {
        Ok(places) => places,
        Err(full) => {
            context.refund_as_denied(now);
            context.verdict.deny(full.position, Denial::Later { retry_after: full.retry_after });
            context.verdict.await_kept_charges(&context.active.ruleset, &context.charges);
            Vec::new()
        }
    }
}

/// Holds the request back, at most until its deadline. A client that goes away meanwhile drops this future, and the charges
/// are refunded.
pub(super) async fn wait_for(
    QueueWait { wait, places }: QueueWait,
    context: &mut RequestContext,
) -> Result<(), Answer> {
    let now = context.gateway.time().now();
    let left = context.timing().due.map_or(Nanos::MAX, |due| due.saturating_sub(now));
    tokio::time::sleep(wait.min(left).to_duration()).await;
    failpoint("waiting");
    if wait > left {
        return Err(Answer::UpstreamTimeout);
    }
    drop(places);
    context.admission = Admission::Passed { at: context.gateway.time().now() };
    Ok(())
}

/// The methods that upstreams may serve, as far as the gateway knows (RFC 9110, section 9.3; RFC 5789).
const ALLOWED_METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

impl From<Refused> for Answer {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Malformed(problem) => Self::Malformed(problem),
            Refused::TargetTooLong(_) => Self::TargetTooLong,
            Refused::HeadTooLarge(problem) => Self::HeadTooLarge(problem),
            Refused::CodingUnknown => Self::CodingUnknown,
            Refused::MethodNotServed => Self::MethodNotAllowed { allow: ALLOWED_METHODS },
        }
    }
}
