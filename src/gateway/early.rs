//! Limits that need nothing about the caller are charged before the gateway looks up its credential, so that guessing
//! credentials costs tokens and, over a limit, starts no look-up.
//!
//! A request is still charged under all its limits or under none. If the gateway has to wait for a look-up, it charges the
//! early limits in a call of their own, and refunds them when another limit denies, and when the caller turns out to be
//! exempt or to have parameters of its own. If the result is known without a look-up, a request with a good credential is
//! charged under all limits in one call, and one with a bad credential under the early limits alone. The charges of a
//! request that goes away, or that the gateway refuses for its credential, stay.

use std::rc::Rc;

use crate::charge::Charge;
use crate::gateway::active_config::ActiveConfig;
use crate::gateway::caller::Caller;
use crate::gateway::charging::refund_early;
use crate::gateway::cost_meter::CostMeter;
use crate::gateway::identify::{self, Identity};
use crate::gateway::request_context::{Admission, RequestContext};
use crate::gateway::respond::Answer;
use crate::gateway::{charging, denials};
use crate::ruleset::Ruleset;
use crate::ruleset::key::{Facts, LimitHashers};
use crate::ruleset::matcher::{Route, RouteId};

/// Identifies the customer whose credential a request for `route` carries. If a look-up has to be waited for, the request is
/// charged under the early limits first; `Err` is the response that it gets instead.
pub async fn identify(
    context: &mut RequestContext,
    route: Option<RouteId>,
    facts: &Facts<'_>,
) -> Result<Identity, Answer> {
    let (active, gateway) = (Rc::clone(&context.active), context.gateway.clone());
    let lookup = active.lookup(&gateway.clock);
    if let Some(known) = identify::identify_cached(&active.ruleset, facts, lookup, gateway.time()) {
        return known;
    }
    if has_early_limits(&active, route) {
        Box::pin(charge(context, route, facts)).await?;
    }
    Box::pin(identify::identify(&active.ruleset, facts, lookup)).await
}

/// Checks whether the early limits would let a request for `route` pass that costs nothing: charges it, and refunds it. Bans
/// deny it, too, so a good credential gets the denial that a bad one gets. `Err` is the response that it gets instead.
pub async fn check(context: &mut RequestContext, route: Option<RouteId>, facts: &Facts<'_>) -> Result<(), Answer> {
    charge(context, route, facts).await?;
    refund_early(context);
    Ok(())
}

/// The route under whose early limits a request for the usage page is charged: that of its path, or else the first one
/// where it can be charged.
pub fn route_of_usage(ruleset: &Ruleset, facts: &Facts<'_>, hashers: &LimitHashers) -> Option<RouteId> {
    let is_charging = |route: &Route| !usage_charges(ruleset, route, facts, hashers).is_empty();
    ruleset.matcher.find(facts).or_else(|| ruleset.matcher.routes().iter().position(is_charging).map(RouteId))
}

/// The charges of a request for the usage page under the early limits of `route`, except those whose keys it lacks.
fn usage_charges(ruleset: &Ruleset, route: &Route, facts: &Facts<'_>, hashers: &LimitHashers) -> Vec<Charge> {
    let resolved = ruleset.resolve_unidentified(route);
    let limits = route.early.iter().filter(|_| !route.bypass.covers(facts, None));
    limits.filter_map(|id| ruleset.charge(*id, facts, &resolved, hashers).ok()).collect()
}

fn has_early_limits(active: &ActiveConfig, route: Option<RouteId>) -> bool {
    route.is_some_and(|route| !active.ruleset.matcher.route(route).early.is_empty())
}

/// The response to a request that is refused with `answer` before all its limits are known: the request is charged under the
/// early limits, and these may deny it.
pub async fn refuse(context: &mut RequestContext, route: Option<RouteId>, facts: &Facts<'_>, answer: Answer) -> Answer {
    match answer {
        Answer::Limited | Answer::StoreUnavailable => return answer,
        // the client is not to blame, so the request is not charged
        Answer::NoHealthyNode | Answer::UpstreamFull => {
            refund_early(context);
            return answer;
        }
        _ => {}
    }
    if let Err(denied) = charge(context, route, facts).await {
        return denied;
    }
    if let Admission::PartlyCharged { route, .. } = context.admission
        && denials::must_record(context)
    {
        denials::record(context, context.active.ruleset.matcher.route(route), &facts, &Caller::UNKNOWN);
    }
    answer
}

/// Charges a request for `route` under the early limits, at most once. `Err` is the response that it gets instead.
async fn charge(context: &mut RequestContext, route: Option<RouteId>, facts: &Facts<'_>) -> Result<(), Answer> {
    let active = Rc::clone(&context.active);
    let ruleset = &active.ruleset;
    let Some(id) = route.filter(|_| has_early_limits(&active, route) && !context.is_early_charged) else {
        return Ok(());
    };
    context.is_early_charged = true;
    let (route, hashers) = (ruleset.matcher.route(id), &active.hashers);
    let charges = match context.route {
        Some(_) => Caller::early_charges(ruleset, route, facts, hashers)?,
        // only the usage page is charged without a route of its own
        None => usage_charges(ruleset, route, facts, hashers),
    };
    if charges.is_empty() {
        return Ok(());
    }
    let cost_meter = CostMeter::new(ruleset, &charges, facts);
    let charged = charging::charge_ahead(context, id, charges, cost_meter).await;
    if charged == Err(Answer::Limited) {
        denials::record(context, route, &facts, &Caller::UNKNOWN);
    }
    charged
}
