//! Notes requests that do not simply pass, for those who look at the gateway: who is denied most, and the last ones.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use crate::algorithm::Denial;
use crate::charge::Charge;
use crate::gateway::caller::Caller;
use crate::gateway::explain::masked;
use crate::gateway::request_context::RequestContext;
use crate::ruleset::key::{self, Facts, KeyPart, Value};
use crate::ruleset::limit::Limit;
use crate::ruleset::verdict::{Outcome, Verdict};
use crate::ruleset::{LimitId, Ruleset};
use crate::store::local::is_overflow;
use crate::telemetry::offenders::Subject;
use crate::telemetry::recent::Happened;
use crate::units::{LimitKey, Nanos};

/// Longer values are cut: clients choose some of them.
const LONGEST: usize = 100;

/// Whether a request simply passes, so that nothing is noted of it.
pub(super) fn simply_passes(verdict: &Verdict) -> bool {
    verdict.outcome == Outcome::Admit { wait: Nanos::ZERO } && verdict.passed_over().next().is_none()
}

/// Notes what became of a request of `caller`.
pub(super) fn note(context: &RequestContext, facts: &Facts<'_>, caller: &Caller) {
    let Some(route) = context.matched() else { return };
    let mut resolved = caller.resolved(&context.active.ruleset, route);
    resolved.upstream_node = context.chosen.as_ref().map(|chosen| chosen.instance.name());
    note_of(context, |_, part| key::value(part, facts, &resolved).ok());
}

/// Notes what became of a question that has these values for the parts of a limit's key.
pub(super) fn note_of<'v>(context: &RequestContext, value: impl Fn(LimitId, &KeyPart) -> Option<Value<'v>>) {
    let (active, gateway) = (&context.active, &context.gateway);
    let ruleset = &active.ruleset;
    let (outcome, Some(id), wait) = context.verdict.summary(ruleset, context.bypassed) else { return };
    let standings = &context.verdict.standings;
    let charge = standings.iter().position(|standing| standing.limit == id).and_then(|at| context.charges.get(at));
    let (Some(route), Some(charge)) = (context.matched(), charge) else { return };
    let Some(limit) = ruleset.limits.get(id.0).filter(|_| outcome != "admitted") else { return };
    let subject = || subject(ruleset, limit, charge, |part| value(id, part));
    let retry_after = match context.verdict.outcome {
        Outcome::Deny(Denial::Later { retry_after }) => Some(retry_after),
        Outcome::Deny(_) | Outcome::Admit { .. } => None,
    };
    let now = context.charged_at;
    if context.verdict.is_denied() {
        gateway.denial_recorder.offenders.denied(bucket(limit, charge), now, subject);
    }
    gateway.denial_recorder.recent.note(now, || Happened {
        at: gateway.clock.wall_at(now),
        outcome,
        route: route.name.clone(),
        plan: context.plan.and_then(|plan| ruleset.plans.get(plan.0)).cloned(),
        subject: Arc::new(subject()),
        wait,
        retry_after,
    });
}

/// What a charge's bucket is counted under. The buckets that new keys share have one key under all limits.
fn bucket(limit: &Limit, charge: &Charge) -> LimitKey {
    match is_overflow(charge.key) {
        true => {
            let mut hash = DefaultHasher::new();
            limit.name.hash(&mut hash);
            LimitKey(hash.finish().into())
        }
        false => charge.key,
    }
}

fn subject<'v>(
    ruleset: &Ruleset,
    limit: &Limit,
    charge: &Charge,
    value: impl Fn(&KeyPart) -> Option<Value<'v>>,
) -> Subject {
    if is_overflow(charge.key) {
        let beyond = ("room for more keys".to_owned(), None);
        return Subject { limit: limit.name.clone(), key: vec![beyond] };
    }
    let parts = limit.key.parts.iter().map(|part| {
        (part.describe(), value(part).map(|value| cut(masked::shown(part, &value, ruleset.customers.as_ref()))))
    });
    Subject { limit: limit.name.clone(), key: parts.collect() }
}

fn cut(value: String) -> String {
    match value.char_indices().nth(LONGEST) {
        Some(_) => value.chars().take(LONGEST).chain(['.', '.', '.']).collect(),
        None => value,
    }
}
