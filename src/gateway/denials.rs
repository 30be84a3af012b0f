//! Records requests that are denied, delayed or over a limit that lets them pass: operators see the most denied keys and the
//! last events. Also notifies the webhook of keys that have reached a mark.

use std::cell::LazyCell;
use std::ops::Deref;
use std::sync::Arc;

use http::Method;

use crate::algorithm::{Decision, Denial};
use crate::fields::Fields;
use crate::gateway::caller::Caller;
use crate::gateway::crossings;
use crate::gateway::request_context::RequestContext;
use crate::gateway::subject::{bucket, subject};
use crate::ruleset::PlanId;
use crate::ruleset::charges::TermsOwner;
use crate::ruleset::key::{self, Facts, KeyPart, Resolved, Value};
use crate::ruleset::limit::Limit;
use crate::ruleset::matcher::Route;
use crate::ruleset::outcome::{OutcomeKind, OutcomeSummary};
use crate::ruleset::verdict::Verdict;
use crate::telemetry::recent::RecentDecision;

/// Whether there is something to record of a request.
pub(super) fn must_record(context: &RequestContext) -> bool {
    !simply_passes(&context.verdict) || crossings::has_notification(context)
}

fn simply_passes(verdict: &Verdict) -> bool {
    verdict.outcome == Decision::ADMIT && verdict.unenforced_violations().next().is_none()
}

/// Records the outcome of a request of `caller`, which was charged under the limits of `route`. Reads `facts` only to describe
/// a key, which most denials of a busy gateway do not need.
pub(super) fn record<'f>(
    context: &RequestContext,
    route: &Route,
    facts: &impl Deref<Target = Facts<'f>>,
    caller: &Caller,
) {
    let resolved = LazyCell::new(|| Resolved {
        upstream_node: context.attempts.node_name(),
        ..caller.resolved(&context.active.ruleset, route)
    });
    let plan = |_, limit: &Limit| TermsOwner::of(limit, &resolved).plan;
    record_with(context, route, |_, part| key::value(part, facts, &resolved).ok(), plan);
}

/// Records the outcome of a request whose head is not at hand. Parts of keys that come from header fields, claims or groups
/// have no value in the record.
pub(super) fn record_without_head(context: &RequestContext) {
    let (Some(route), Some(target)) = (context.matched_route(), &context.target) else { return };
    let (ruleset, headers) = (&context.active.ruleset, Fields::default());
    let facts = Facts {
        method: context.method.as_ref().map_or("", Method::as_str),
        host: target.host(),
        path: target.matched_path(),
        query: target.query.as_deref(),
        client: context.client,
        ..Facts::of(&headers)
    };
    let resolved = Resolved {
        customer: context.customer.as_deref(),
        plan: ruleset.named_plan(context.plan),
        upstream_node: context.attempts.node_name(),
        ..Resolved::default()
    };
    let resolved = resolved.on(route);
    let plan = |_, limit: &Limit| TermsOwner::of(limit, &resolved).plan;
    record_with(context, route, |_, part| key::value(part, &facts, &resolved).ok(), plan);
}

/// Records the outcome of a request or a question that was charged under the limits of `route`; `value` gives the values for
/// the parts of the key of the charge at a position, and `plan` the plan by which its limit goes.
pub(super) fn record_with<'v>(
    context: &RequestContext,
    route: &Route,
    value: impl Fn(usize, &KeyPart) -> Option<Value<'v>>,
    plan: impl Fn(usize, &Limit) -> Option<PlanId>,
) {
    crossings::notify_reached(context, &value, plan);
    let (active, gateway) = (&context.active, &context.gateway);
    let ruleset = &active.ruleset;
    let OutcomeSummary { kind: outcome, standing: Some(position), wait } =
        context.verdict.summary(ruleset, context.bypassed)
    else {
        return;
    };
    let Some(charge) = context.charges.get(position) else { return };
    let Some(limit) = ruleset.limits.get(charge.limit).filter(|_| outcome != OutcomeKind::Admitted) else { return };
    let subject = || subject(active, limit, charge, |part| value(position, part));
    let retry_after = match context.verdict.outcome {
        Decision::Deny(Denial::Later { retry_after }) => Some(retry_after),
        Decision::Deny(_) | Decision::Admit { .. } => None,
    };
    let now = context.charged_at;
    if context.verdict.is_denied() {
        gateway.denial_recorder.offenders.denied(bucket(limit, charge), now, subject);
    }
    gateway.denial_recorder.recent.record(now, || RecentDecision {
        at: gateway.clock.wall_at(now),
        outcome,
        route: route.name.clone(),
        plan: ruleset.plan_name(context.plan_of(position)).map(str::to_owned),
        subject: Arc::new(subject()),
        wait,
        retry_after,
    });
}
