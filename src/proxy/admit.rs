//! From a request's head to its verdict: canonical facts, route, caller, charges, store.

use std::net::IpAddr;
use std::sync::Arc;

use pingora::http::RequestHeader;
use pingora::proxy::Session;

use crate::algorithm::Denial;
use crate::charge::Charge;
use crate::proxy::context::{Admission, Context};
use crate::proxy::facts::{self, Refused, Target};
use crate::proxy::identify::{self, Identity};
use crate::proxy::own_usage;
use crate::proxy::queue::{self, Place};
use crate::proxy::respond::{self, Answer};
use crate::proxy::tally::Tally;
use crate::proxy::upstream::deadline;
use crate::ruleset::Ruleset;
use crate::ruleset::key::{Facts, KeyPart};
use crate::ruleset::upstream::Balance;
use crate::ruleset::verdict::{Outcome, Verdict};
use crate::units::Nanos;

/// Decides whether a request may pass, and makes it wait if it has to. `Err` is what it is answered instead.
pub async fn admit(session: &Session, context: &mut Context) -> Result<(), Answer> {
    let live = Arc::clone(&context.live);
    let ruleset = &live.ruleset;
    let head = session.req_header();
    context.method = head.method.as_str().to_owned();
    context.is_grpc = respond::is_grpc(&head.headers);
    context.cors = respond::cors::Reader::of(ruleset, &head.headers);
    let found = read_target(session, context);
    let asks_usage = found.as_ref().is_ok_and(|(target, _)| own_usage::is_asked_for(context, &target.path));
    let routed = found.as_ref().ok().filter(|_| !asks_usage);
    let route_id = routed.and_then(|(target, address)| {
        ruleset.matcher.find(&facts_of(ruleset, head, &context.method, target, *address))
    });
    context.set_route(route_id);
    let (target, address) = found?;
    let facts = facts_of(ruleset, head, &context.method, &target, address);
    if asks_usage {
        return Err(own_usage::answer(context, &facts).await);
    }
    let route = context.matched().ok_or(Answer::NoRoute)?;

    if ruleset.keeps_out_address(route, address) {
        return Err(Answer::AccessDenied);
    }
    let is_preflight = route.bypass.covers_preflight(&context.method, &head.headers);
    let identity = match &ruleset.customers {
        Some(rules) if !is_preflight => identify::identify(rules, &facts, &live, &context.gateway.clock).await?,
        _ => Identity::Anonymous,
    };
    let customer = identity.customer().map(|customer| &**customer);
    let name = customer.map(|customer| &*customer.name);
    if !is_preflight && ruleset.keeps_out(route, address, name) {
        return Err(Answer::AccessDenied);
    }
    let mut resolved = ruleset.resolve(route, customer.map(|customer| customer.known()), identity.claims());
    let plan = resolved.plan.map(|(plan, _)| plan);
    let hasher = &context.gateway.hasher;
    let balance_hashes = ruleset.reachable(route).filter_map(|upstream| match &ruleset.upstreams[upstream.0].balance {
        Balance::ConsistentHash(part) => Some((upstream, hasher.part(part, &facts, &resolved)?)),
        _ => None,
    });
    let balance_hashes: Vec<_> = balance_hashes.collect();
    let pool = &live.pools[route.upstream.0];
    let balance_hash = balance_hashes.iter().find(|(upstream, _)| *upstream == route.upstream).map(|(_, hash)| *hash);
    let chosen = match ruleset.counts_by_node(route) {
        true => Some(pool.choose(&[], balance_hash, context.gateway.clock.now()).ok_or(Answer::NoNode)?),
        false => None,
    };
    resolved.upstream_node = chosen.as_ref().and_then(|chosen| pool.name(chosen));
    let bypassed = route.bypass.covers(&facts, name);
    let charges = match bypassed {
        true => Vec::new(),
        false => ruleset.charges(route, &facts, &resolved, hasher).map_err(|missing| match missing.part {
            KeyPart::Customer => Answer::CredentialMissing,
            part => Answer::KeyMissing(part.describe()),
        })?,
    };

    context.tally = Tally::new(ruleset, &charges, &facts);
    context.balance_hashes = balance_hashes;
    context.chosen = chosen;
    context.customer = customer.map(|customer| Arc::clone(&customer.name));
    context.plan = plan;
    context.client = facts.client;
    context.target = Some(target);
    context.charges = charges;
    context.bypassed = bypassed;
    charge(context).await
}

fn read_target(session: &Session, context: &Context) -> Result<(Target, Option<IpAddr>), Answer> {
    let head = session.req_header();
    let raw_target = head.raw_path();
    facts::check_size(raw_target, &head.headers, &context.live.ruleset.request_head)?;
    if head.method == http::Method::TRACE {
        return Err(Answer::MethodNotAllowed);
    }
    facts::check_framing(&session.as_downstream().to_h1_raw(), &head.headers)?;
    let target = Target::new(head.method.as_str(), raw_target, &head.headers)?;
    let address =
        peer(session).and_then(|peer| facts::client_address(peer, &head.headers, &context.live.ruleset.client_address));
    Ok((target, address))
}

/// The other end of the connection.
pub fn peer(session: &Session) -> Option<IpAddr> {
    session.client_addr().and_then(|address| address.as_inet()).map(std::net::SocketAddr::ip)
}

fn facts_of<'a>(
    ruleset: &Ruleset,
    head: &'a RequestHeader,
    method: &'a str,
    target: &'a Target,
    address: Option<IpAddr>,
) -> Facts<'a> {
    Facts {
        method,
        host: &target.host,
        path: &target.path,
        query: target.query.as_deref(),
        headers: &head.headers,
        client: address.map(|address| facts::network(address, ruleset.client_address.ipv6_prefix)),
        address,
    }
}

/// Charges the request under all its limits, counts what came of it, and waits if that is what came of it.
async fn charge(context: &mut Context) -> Result<(), Answer> {
    let Some(route) = context.route else { return Ok(()) };
    let live = Arc::clone(&context.live);
    if context.bypassed {
        live.meters.observe_bypass(&live.ruleset, route, context.plan);
    }
    if context.charges.is_empty() {
        return Ok(());
    }
    let now = context.gateway.clock.now();
    let receipt = context.gateway.store.charge(&live.binding, &mut context.charges, now).await;
    context.charged_at = now;
    let took = context.gateway.clock.now().saturating_sub(now);
    context.verdict = Verdict::new(&live.ruleset, &context.charges, &receipt.charged);
    live.meters.observe_decision(receipt.source, took);
    if let Some(position) = receipt.refused {
        let limit = context.verdict.standings.get(position).map(|standing| standing.limit);
        if let Some(limit) = limit {
            live.meters.observe_refusal(&live.ruleset, route, context.plan, limit);
        }
        return Err(Answer::StoreAway);
    }
    let places = match context.verdict.outcome {
        Outcome::Admit { .. } => take_places(context, now),
        Outcome::Deny(_) => Vec::new(),
    };
    if let Some((position, alone)) = context.verdict.candidate_to_charge(&live.ruleset, &context.charges) {
        charge_candidate(context, position, alone, now).await;
    }
    context.diverted = context.verdict.diverting(&live.ruleset);
    if context.diverted.is_some() {
        // a node of the route's own upstream
        context.chosen = None;
    }
    live.meters.observe_verdict(&live.ruleset, route, context.plan, &context.charges, &context.verdict);
    match context.verdict.outcome {
        Outcome::Deny(_) => Err(Answer::Limited),
        Outcome::Admit { wait: Nanos::ZERO } => {
            context.admission = Admission::Passed { at: now };
            Ok(())
        }
        Outcome::Admit { wait } => {
            context.admission = Admission::Waiting;
            deadline::set_total(context);
            wait_for_turn(context, wait).await;
            drop(places);
            context.admission = Admission::Passed { at: context.gateway.clock.now() };
            Ok(())
        }
    }
}

/// Takes a place in the queue of every limit that makes an admitted request wait. Where a queue is full the request is denied,
/// and what it was charged is taken back.
fn take_places(context: &mut Context, now: Nanos) -> Vec<Place> {
    match queue::enter_all(&context.live.queues, &context.verdict, now) {
        Ok(places) => places,
        Err(full) => {
            // what counts although it is denied stays taken
            context.refund(now, |charge| charge.manner.counts_denied);
            context.verdict.deny(full.position, Denial::Later { retry_after: full.retry_after });
            Vec::new()
        }
    }
}

/// Charges the candidate at `position` of the standings, so that it goes on as if it were in force.
async fn charge_candidate(context: &mut Context, position: usize, alone: Charge, now: Nanos) {
    let receipt = context.gateway.store.charge(&context.live.binding, &mut [alone], now).await;
    if let [charged] = *receipt.charged {
        context.verdict.replace(position, charged);
    }
}

/// Holds the request back. A client that goes away ends this (see `connection`), and its charge is taken back.
async fn wait_for_turn(context: &Context, wait: Nanos) {
    if let Some(connection) = &context.connection {
        connection.set_waiting(true);
    }
    tokio::time::sleep(wait.to_duration()).await;
    if let Some(connection) = &context.connection {
        connection.set_waiting(false);
    }
}

impl From<Refused> for Answer {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Malformed(problem) => Self::Malformed(problem),
            Refused::TargetTooLong(_) => Self::TargetTooLong,
            Refused::HeadTooLarge(problem) => Self::HeadTooLarge(problem),
        }
    }
}
