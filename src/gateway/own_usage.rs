//! The usage page, where customers see their plan, their limits and what is left of each. Takes no tokens.

use std::collections::BTreeMap;
use std::rc::Rc;

use http::Method;
use serde::Serialize;

use crate::customers::Customer;
use crate::gateway::early;
use crate::gateway::identify::Identity;
use crate::gateway::request_context::RequestContext;
use crate::gateway::respond::Answer;
use crate::gateway::shown_headroom::ShownHeadroom;
use crate::ruleset::Ruleset;
use crate::ruleset::access::preflight_method;
use crate::ruleset::charges::Bucket;
use crate::ruleset::key::{Facts, Resolved};
use crate::ruleset::matcher::RouteId;
use crate::ruleset::words::LimitTerms;
use crate::units::Nanos;

/// The JSON body of the response.
#[derive(Serialize)]
struct UsageReport<'a> {
    customer: &'a str,
    plan: Option<&'a str>,
    /// The customer's groups by their levels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    groups: BTreeMap<&'a str, &'a str>,
    limits: Vec<LimitUsage<'a>>,
}

/// The customer's standing under one limit. A limit that does not apply to the customer is left out.
#[derive(Serialize)]
struct LimitUsage<'a> {
    limit: &'a str,
    /// The routes whose requests are counted.
    routes: Vec<&'a str>,
    /// The parameters that apply, in words.
    terms: String,
    quota: u64,
    /// The time in which a used-up quota becomes full again.
    #[serde(skip_serializing_if = "Option::is_none")]
    window_seconds: Option<f64>,
    /// The largest cost that would be admitted now; absent if any cost would.
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining: Option<u64>,
    /// The time until more tokens are available; 0 if none are missing, absent if it is unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    more_in_seconds: Option<f64>,
    /// The time until all tokens are available again; absent if it is unknown, or if requests in flight have to end first.
    #[serde(skip_serializing_if = "Option::is_none")]
    full_in_seconds: Option<f64>,
    /// The time for which this gateway still bans the customer's key, whatever is left; absent if it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    banned_for_seconds: Option<f64>,
}

/// Whether a request for `path` asks for the usage page.
pub fn is_usage_request(context: &RequestContext, path: &str) -> bool {
    context.active.ruleset.usage.as_deref() == Some(path)
}

/// Checks whether anyone may ask for the page in this way. `Err` is the response that the request gets instead.
pub fn check_before_identification(ruleset: &Ruleset, facts: &Facts<'_>) -> Result<(), Answer> {
    if ruleset.cors.is_some() && preflight_method(facts).is_some() {
        Err(Answer::Preflight)
    } else if facts.method != Method::GET && facts.method != Method::HEAD {
        Err(Answer::MethodNotAllowed { allow: "GET, HEAD" })
    } else if ruleset.access.denies_address(facts.address) {
        Err(Answer::AccessDenied)
    } else {
        Ok(())
    }
}

/// The customer who sees the page. `Err` is the response that another caller gets.
pub fn reader<'i>(ruleset: &Ruleset, facts: &Facts<'_>, identity: &'i Identity) -> Result<&'i Customer, Answer> {
    let customer = identity.customer().ok_or(Answer::CredentialMissing)?;
    match ruleset.access.denies(facts.address, Some(&customer.name)) {
        true => Err(Answer::AccessDenied),
        false => Ok(&**customer),
    }
}

/// Answers the customer whose credential the request carries.
///
/// Every request is charged before its caller is known, like one on the route of this path, or else on the first route with
/// limits that can be charged. A customer gets the charge refunded, unless one of these limits denies.
pub async fn answer(context: &mut RequestContext, facts: &Facts<'_>) -> Answer {
    let active = Rc::clone(&context.active);
    if let Err(answer) = check_before_identification(&active.ruleset, facts) {
        return answer;
    }
    let route = early::route_of_usage(&active.ruleset, facts, &active.hashers);
    match report(context, route, facts).await {
        Ok(report) => Answer::Usage(report),
        Err(answer) => early::refuse(context, route, facts, answer).await,
    }
}

async fn report(context: &mut RequestContext, route: Option<RouteId>, facts: &Facts<'_>) -> Result<String, Answer> {
    let active = Rc::clone(&context.active);
    let ruleset = &active.ruleset;
    let identity = early::identify(context, route, facts).await?;
    let customer = reader(ruleset, facts, &identity)?;
    early::check(context, route, facts).await?;
    let plan_id = ruleset.proxy_plan(facts).unwrap_or(customer.plan);
    let plan = ruleset.named_plan(Some(plan_id));
    let resolved = Resolved {
        customer: Some(&customer.name),
        plan,
        own: customer.own.as_deref(),
        groups: customer.groups.as_deref(),
        claims: identity.claims(),
        ..Resolved::default()
    };
    let now = context.gateway.time().now();
    let mut limits = Vec::new();
    for bucket in ruleset.buckets(facts, &resolved, &active.hashers) {
        limits.extend(limit_usage(context, bucket, now).await);
    }
    let groups = customer.groups.iter().flat_map(|groups| &groups.0);
    let groups = groups.map(|group| (&*group.level, &*group.name)).collect();
    let report = UsageReport { customer: &customer.name, plan: plan.map(|(_, name)| name), groups, limits };
    serde_json::to_string(&report).map_err(|_| Answer::Internal)
}

/// The customer's standing in a bucket. Charges nothing.
async fn limit_usage<'a>(context: &'a RequestContext, bucket: Bucket<'a>, now: Nanos) -> Option<LimitUsage<'a>> {
    let Bucket { charge, routes } = bucket;
    let (active, gateway) = (&context.active, &context.gateway);
    let limit = active.ruleset.limits.get(charge.limit)?;
    let banned = gateway.bans.remaining(&active.ruleset, &charge, now);
    let mut asked = [charge];
    let receipt = gateway.store.charge(&active.binding, &mut asked, now).await;
    let headroom = receipt.charged.first()?.headroom;
    let [charge] = asked;
    let rule = limit.rule(&charge.rule);
    let shown = ShownHeadroom::of(headroom, &charge, rule.policy());
    let LimitTerms { words, quota, window } = LimitTerms::of(limit, rule, charge.floor);
    Some(LimitUsage {
        limit: &limit.name,
        routes,
        terms: words,
        quota,
        window_seconds: window.map(Nanos::as_secs_f64),
        remaining: shown.remaining,
        more_in_seconds: shown.more_in_seconds,
        full_in_seconds: shown.full_in_seconds,
        banned_for_seconds: banned.map(Nanos::as_secs_f64),
    })
}
