//! Live data as JSON: routes and limits with their rates, the keys denied most, and the last denials, delays and the like.

use serde_json::{Value, json};

use super::Admin;
use crate::gateway::active_config::ActiveConfig;
use crate::ruleset::key::KeyPart;
use crate::ruleset::limit::{Limit, OverLimit};
use crate::ruleset::words::{LimitTerms, UNLIMITED};
use crate::ruleset::{LimitId, PlanId};
use crate::telemetry::history::{Activity, History, RequestRate};
use crate::telemetry::meters::RequestTotals;
use crate::telemetry::offenders::{LimitedKey, Offender, TopOffenders};
use crate::telemetry::recent::RecentDecision;
use crate::units::Nanos;

/// The most offenders in a response.
const MAX_OFFENDERS: usize = 100;

/// Routes, in the order of the configuration.
pub(super) fn routes(active: &ActiveConfig, history: &History) -> Value {
    let ruleset = &active.ruleset;
    let routes = ruleset.matcher.routes().iter().map(|route| {
        let limits: Vec<&str> =
            route.limits.iter().map(|id| &ruleset.limits[id.0]).filter(is_shown).map(name).collect();
        let activity = history.of_route(&route.name);
        json!({
            "name": route.name,
            "path": route.path_pattern,
            "hosts": route.hosts.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "methods": route.methods.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "upstream": ruleset.upstream_name(route),
            "limits": limits,
            "rates": rates(&activity, of_route),
            "series": json!({
                "requests": series(&activity, |counts| counts.answered),
                "denied": series(&activity, |counts| counts.over),
            }),
        })
    });
    json!({ "routes": routes.collect::<Vec<_>>() })
}

/// Limits, in the order of the configuration.
pub(super) fn limits(admin: &Admin, active: &ActiveConfig) -> Value {
    let Admin { gateway, records, .. } = admin;
    let replays = records.access.replays();
    let ruleset = &active.ruleset;
    let usage = gateway.store.usage(&active.binding);
    let limits = ruleset.limits.iter().enumerate().zip(usage).filter(|((_, limit), _)| is_shown(limit));
    let limits = limits.map(|((id, limit), usage)| {
        let routes = ruleset.matcher.all().iter().filter(|route| route.limits.contains(&LimitId(id)));
        let activity = records.history.of_limit(&limit.name);
        json!({
            "name": limit.name,
            "algorithm": limit.algorithm.as_str(),
            "mode": if limit.mode.is_shared() { "shared" } else { "sticky" },
            "key": limit.key.parts.iter().map(KeyPart::describe).collect::<Vec<_>>(),
            "routes": routes.map(|route| route.name.as_str()).collect::<Vec<_>>(),
            "over_limit": over(limit),
            "plans": plans(limit, &ruleset.plans),
            "keys": usage.keys,
            "max_keys": limit.max_keys,
            "settings": replays.as_ref().and_then(|replays| replays.settings.get(&limit.name)),
            "rates": rates(&activity, of_limit),
            "series": json!({
                "admitted": series(&activity, |counts| counts.admitted.saturating_add(counts.delayed)),
                "over": series(&activity, |counts| counts.over),
            }),
        })
    });
    json!({ "limits": limits.collect::<Vec<_>>() })
}

/// The keys that were denied most in the last whole minute and in the current one.
pub(super) fn offenders(top: &TopOffenders) -> Value {
    let shown = top.offenders.iter().take(MAX_OFFENDERS).map(|offender| {
        let Offender { subject, denied, error } = offender;
        let mut shown = subject_json(subject);
        shown["denied"] = json!(denied);
        shown["error"] = json!(error);
        shown
    });
    json!({
        "from_seconds": top.from.as_secs_f64(),
        "until_seconds": top.until.as_secs_f64(),
        "denied": top.denials,
        "error": top.error,
        "offenders": shown.collect::<Vec<_>>(),
    })
}

/// The last requests with another outcome than `admitted`, the newest first.
pub(super) fn decisions((happened, left_out): &(Vec<RecentDecision>, u64)) -> Value {
    let shown = happened.iter().map(|one| {
        let mut shown = subject_json(&one.subject);
        shown["timestamp_seconds"] = json!(one.at.as_secs_f64());
        shown["outcome"] = json!(one.outcome.as_str());
        shown["route"] = json!(one.route);
        shown["plan"] = json!(one.plan);
        shown["wait_seconds"] = json!((one.wait.get() > 0).then(|| one.wait.as_secs_f64()));
        shown["retry_after_seconds"] = json!(one.retry_after.map(Nanos::as_secs_f64));
        shown
    });
    json!({ "left_out": left_out, "decisions": shown.collect::<Vec<_>>() })
}

fn subject_json(subject: &LimitedKey) -> Value {
    let key = subject.key.iter().map(|(part, value)| json!({ "part": part, "value": value }));
    json!({ "limit": subject.limit, "key": key.collect::<Vec<_>>() })
}

/// Whether a limit is listed. A candidate is not listed: it is only compared with the limit in force.
fn is_shown(limit: &&Limit) -> bool {
    limit.candidate_of.is_none()
}

fn name(limit: &Limit) -> &str {
    &limit.name
}

/// The outcome of a request over the limit, as the metrics name it.
fn over(limit: &Limit) -> &'static str {
    match limit.over_limit {
        _ if limit.shadow => "shadow_denied",
        OverLimit::Deny(_) => "denied",
        OverLimit::Delay { .. } => "delayed, then denied",
        OverLimit::Divert(_) => "diverted",
        OverLimit::Mark(_) => "marked",
    }
}

/// The terms of each plan; one line without a plan if they are the same for all.
fn plans(limit: &Limit, plans: &[String]) -> Vec<Value> {
    let terms = |plan: Option<PlanId>| {
        let rule = limit.plan_rule(plan)?;
        Some(LimitTerms::of(limit, rule, limit.floor(plan, rule)))
    };
    let line = |plan: Option<&str>, terms: &Option<LimitTerms>| match terms {
        None => json!({ "plan": plan, "terms": UNLIMITED, "quota": null, "window_seconds": null }),
        Some(LimitTerms { words, quota, window }) => {
            json!({ "plan": plan, "terms": words, "quota": quota, "window_seconds": window.map(Nanos::as_secs_f64) })
        }
    };
    let all: Vec<Option<LimitTerms>> = (0..plans.len()).map(|plan| terms(Some(PlanId(plan)))).collect();
    let without_plan = terms(None);
    let mut others = all.iter().skip(1).chain(limit.without_plan.map(|_| &without_plan));
    match all.first() {
        None => vec![line(None, &without_plan)],
        Some(first) if others.all(|other| other == first) => vec![line(None, first)],
        Some(_) => plans.iter().zip(&all).map(|(plan, terms)| line(Some(plan), terms)).collect(),
    }
}

/// Rates of the last seconds and of the last minute.
fn rates(activity: &Activity, of: impl Fn(&RequestRate) -> Value) -> Value {
    let with_time = |pace: &RequestRate| {
        let mut rates = of(pace);
        rates["over_seconds"] = json!(pace.time.as_secs_f64());
        rates
    };
    json!({ "moment": with_time(&activity.moment), "minute": with_time(&activity.minute) })
}

fn of_route(pace: &RequestRate) -> Value {
    let per_second = |count| pace.per_second(count);
    json!({
        "requests_per_second": per_second(pace.counts.answered),
        "denied_per_second": per_second(pace.counts.over),
        "delayed_per_second": per_second(pace.counts.delayed),
        "failed_per_second": per_second(pace.counts.failed),
    })
}

fn of_limit(pace: &RequestRate) -> Value {
    let per_second = |count| pace.per_second(count);
    json!({
        "admitted_per_second": per_second(pace.counts.admitted),
        "delayed_per_second": per_second(pace.counts.delayed),
        "over_per_second": per_second(pace.counts.over),
        "bypassed_per_second": per_second(pace.counts.bypassed),
        "unknown_per_second": per_second(pace.counts.unknown),
    })
}

/// The count of each of the last seconds, the newest last; empty if all counts are 0.
fn series(activity: &Activity, of: impl Fn(&RequestTotals) -> u64) -> Vec<u64> {
    let samples: Vec<u64> = activity.samples.iter().map(of).collect();
    if samples.iter().all(|count| *count == 0) { Vec::new() } else { samples }
}
