//! From a request's head to its verdict: canonical facts, route, caller, charges, store.

use std::cell::LazyCell;
use std::rc::Rc;
use std::sync::Arc;

use http::Method;

use crate::charge::Charge;
use crate::gateway::active_config::ActiveConfig;
use crate::gateway::awaited_body::{AwaitedBody, BodyFields, BodySource};
use crate::gateway::caller::{self, Caller};
use crate::gateway::charging::QueueWait;
use crate::gateway::cost_meter::CostMeter;
use crate::gateway::facts::{Head, Refused, Target};
use crate::gateway::identify::Identity;
use crate::gateway::request_context::RequestContext;
use crate::gateway::respond::{self, Answer};
use crate::gateway::{attempts, charging, denials, early, own_usage, trace};
use crate::http::body::Framing;
use crate::http::service::{Exchange as _, IncomingBody};
use crate::panics::failpoint;
use crate::ruleset::cors::AllowedOrigin;
use crate::ruleset::key::{Facts, KeyHasher};
use crate::ruleset::matcher::{Route, RouteId};
use crate::ruleset::request_field::RequestFields;
use crate::ruleset::{AccessLog, ListenerService, Ruleset};
use crate::units::LimitKey;

/// Admits a request whose body may still be arriving. Waits until the request's turn comes. `framing` is the framing of
/// `body`. `Err` is the response to a request that may not pass.
pub async fn admit_incoming(
    context: &mut RequestContext,
    head: &Head<'_>,
    (framing, body): (Framing, &impl IncomingBody),
) -> Result<(), Answer> {
    let (caller, mut resolved) = identify_and_resolve(context, head, BodySource::Streaming(framing)).await?;
    if let Some(BodyFields::Awaited(awaited)) = resolved.body {
        // rare steps are boxed: the engine moves the future of each request, and boxes keep it small
        resolved = Box::pin(resolve_with_body(context, &caller, head, resolved.charges, (awaited, body))).await?;
    }
    charge_and_wait(context, &caller, head, resolved).await
}

/// Admits a request whose body was read already, or cannot be read here.
pub async fn admit(context: &mut RequestContext, head: &Head<'_>, body: BodySource<'_>) -> Result<(), Answer> {
    let (caller, resolved) = identify_and_resolve(context, head, body).await?;
    charge_and_wait(context, &caller, head, resolved).await
}

/// The charges of a request that are still to be made.
struct ResolvedCharges {
    charges: Vec<Charge>,
    cost_meter: Option<Box<CostMeter>>,
    /// The fields of the body, if a limit needs them. While they are awaited, `charges` lacks the charges under such limits.
    body: Option<BodyFields>,
}

/// Finds the route and the caller, and computes the charges that do not depend on an awaited body. `Err` is the response to a
/// request that may not pass.
async fn identify_and_resolve(
    context: &mut RequestContext,
    head: &Head<'_>,
    body: BodySource<'_>,
) -> Result<(Caller, ResolvedCharges), Answer> {
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
    let facts = head.facts(rules, &target);
    context.client = facts.client;
    let asks_usage = is_proxied && own_usage::is_usage_request(context, facts.path);
    context.set_route(if asks_usage { None } else { ruleset.route_of(&facts) });
    let resolved = match context.route {
        _ if asks_usage => Err(Box::pin(own_usage::answer(context, &facts)).await),
        Some(route) => resolve_charges(context, &active, route, &facts, (&target, body)).await,
        None => Err(Answer::NoRoute),
    };
    context.target = Some(target);
    resolved
}

/// Checks the route, identifies the caller, and computes the charges. `Err` is the response to a request that may not pass.
async fn resolve_charges(
    context: &mut RequestContext,
    active: &ActiveConfig,
    id: RouteId,
    facts: &Facts<'_>,
    (target, body): (&Target, BodySource<'_>),
) -> Result<(Caller, ResolvedCharges), Answer> {
    let (ruleset, route) = (&active.ruleset, active.ruleset.matcher.route(id));
    caller::check_route(route, target.has_parameters, body, facts)?;
    context.body_left = route.max_request_body;
    Caller::check_before_identification(ruleset, route, facts)?;
    context.is_preflight = route.bypass.covers_preflight(facts);
    // a preflight has no caller
    let identity = match context.is_preflight {
        true => Ok(Identity::Anonymous),
        false => early::identify(context, Some(id), facts).await,
    };
    let resolved_charges = identity.and_then(|identity| {
        let caller = Caller::new(&active.ruleset, route, facts, identity);
        let resolved_charges = compute_charges(context, active, route, facts, (&caller, body))?;
        Ok((caller, resolved_charges))
    });
    match resolved_charges {
        Ok(resolved_charges) => Ok(resolved_charges),
        Err(answer) => Err(Box::pin(early::refuse(context, Some(id), facts, answer)).await),
    }
}

/// Checks the access of `caller`, and computes the charges of its request, which may depend on the node that it goes to.
fn compute_charges(
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
    let body = match !caller.bypassed && ruleset.depends_on_body(route, &resolved) {
        true => Some(BodyFields::of(facts.headers, body, route).map_err(Answer::Malformed)?),
        false => None,
    };
    let facts = &Facts { body: body.as_ref().and_then(BodyFields::known), ..facts.clone() };
    let charges = caller.charges(ruleset, route, facts, &resolved, hashers)?;
    let cost_meter = match &body {
        Some(BodyFields::Awaited(_)) => None,
        Some(BodyFields::Known(_)) | None => CostMeter::new(ruleset, &charges, facts),
    };
    context.bypassed = caller.bypassed;
    context.attempts.chosen = chosen;
    Ok(ResolvedCharges { charges, cost_meter, body })
}

/// The facts about a request whose head is read.
fn facts_of<'f>(context: &'f RequestContext, head: &Head<'f>) -> Result<Facts<'f>, Answer> {
    let target = context.target.as_ref().ok_or(Answer::Internal)?;
    Ok(head.facts(&context.active.ruleset.client_address, target))
}

/// Reads the body as far as limits need it, then computes all charges. If the gateway has to wait for the body, it first makes
/// `head_charges`, those under the limits that do not depend on the body.
async fn resolve_with_body(
    context: &mut RequestContext,
    caller: &Caller,
    head: &Head<'_>,
    head_charges: Vec<Charge>,
    (mut awaited, body): (Box<AwaitedBody>, &impl IncomingBody),
) -> Result<ResolvedCharges, Answer> {
    let active = Rc::clone(&context.active);
    let ruleset = &active.ruleset;
    let mut read = |part: &[u8]| awaited.read_held(part, ruleset.request_body.max_held);
    let has_arrived = body.read_arrived(&mut read).await;
    if !has_arrived {
        charge_head_limits(context, caller, head, &head_charges).await?;
        body.read_awaited(&context.timing(), &mut read).await;
    }
    failpoint("decide_by_body");
    let resolved = awaited.decide().map_err(Answer::Malformed).and_then(|fields| {
        let facts = Facts { body: Some(&fields), ..facts_of(context, head)? };
        let route = context.matched_route().ok_or(Answer::Internal)?;
        let mut resolved = caller.resolved(ruleset, route);
        resolved.upstream_node = context.attempts.node_name();
        let charges = ruleset.charges_with_body(route, &facts, &resolved, &active.hashers, &head_charges)?;
        let cost_meter = CostMeter::new(ruleset, &charges, &facts);
        Ok(ResolvedCharges { charges, cost_meter, body: Some(BodyFields::Known(fields)) })
    });
    context.awaited_body = Some(awaited);
    if resolved.is_err() {
        if has_arrived {
            // the limits that do not depend on the body are charged all the same
            charge_head_limits(context, caller, head, &head_charges).await?;
        }
        record_outcome(context, caller, head, None);
    }
    resolved
}

fn read_target(head: &Head<'_>, ruleset: &Ruleset) -> Result<Target, Answer> {
    let target = head.target(&ruleset.request_head)?;
    match head.tls_info.is_none_or(|tls_info| tls_info.is_for(target.host())) {
        true => Ok(target),
        false => Err(Answer::Misdirected),
    }
}

/// Makes `charges`, those under the limits that do not depend on the body of a request.
async fn charge_head_limits(
    context: &mut RequestContext,
    caller: &Caller,
    head: &Head<'_>,
    charges: &[Charge],
) -> Result<(), Answer> {
    let (Some(route), false) = (context.route, charges.is_empty()) else { return Ok(()) };
    let cost_meter = CostMeter::new(&context.active.ruleset, charges, &facts_of(context, head)?);
    let charged = charging::charge_ahead(context, route, charges.to_vec(), cost_meter).await;
    if charged.is_err() {
        record_outcome(context, caller, head, None);
    }
    charged
}

/// Charges a request of `caller` under all its limits, and holds it back until its turn.
async fn charge_and_wait(
    context: &mut RequestContext,
    caller: &Caller,
    head: &Head<'_>,
    ResolvedCharges { charges, cost_meter, body }: ResolvedCharges,
) -> Result<(), Answer> {
    let turn = charge_all_limits(context, charges, cost_meter).await;
    record_outcome(context, caller, head, body.as_ref().and_then(BodyFields::known));
    match turn? {
        Some(turn) => Box::pin(charging::wait_for(turn, context)).await,
        None => Ok(()),
    }
}

/// Records a request that was denied, delayed, or over a limit that let it pass.
fn record_outcome(context: &RequestContext, caller: &Caller, head: &Head<'_>, body: Option<&RequestFields>) {
    if let (true, Some(route), Some(target)) = (denials::must_record(context), context.matched_route(), &context.target)
    {
        let rules = &context.active.ruleset.client_address;
        let facts = LazyCell::new(|| Facts { body, ..head.facts(rules, target) });
        denials::record(context, route, &facts, caller);
    }
}

/// Charges the request under all its limits, and counts the outcome.
async fn charge_all_limits(
    context: &mut RequestContext,
    charges: Vec<Charge>,
    cost_meter: Option<Box<CostMeter>>,
) -> Result<Option<QueueWait>, Answer> {
    let Some(route) = context.route else { return Ok(None) };
    if context.bypassed {
        context.active.meters.count_bypass(route, context.plan);
    }
    if charges.is_empty() {
        charging::refund_early(context);
        return Ok(None);
    }
    let now = charging::charge(context, route, charges, cost_meter).await?;
    charging::conclude(context, route, now).await
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
