//! Everything that differs between two rulesets, in words: what a change does to customers in flight.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{LimitChange, asks, of_limits};
use crate::algorithm::Rule;
use crate::ruleset::limit::{Limit, PlanId};
use crate::ruleset::matcher::{Rewrite, Route};
use crate::ruleset::words::{self, Line};
use crate::ruleset::{CredentialSource, JwtRules, Ruleset, Upstream};
use crate::units::{Cost, Nanos};

/// What differs between two rulesets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// What changes: limits first, then routes, then the rest.
    pub changes: Vec<Change>,
    /// How many limits and their states nothing happens to.
    pub untouched_limits: usize,
}

/// One thing that changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What kind of thing.
    pub kind: &'static str,
    /// Its name.
    pub name: String,
    /// What becomes of it, to be read after its name.
    pub words: String,
    /// In detail: what it is about, and how that was and will be.
    pub details: Vec<Line>,
}

/// What is set aside for limits that are gone, in words.
const GONE: &str = "is gone; what is used is kept until it would be whole again, in case the limit comes back";

impl Account {
    /// What changes when `after` takes the place of `before`.
    pub fn of(before: &Ruleset, after: &Ruleset) -> Self {
        let (mut changes, untouched_limits) = limits(before, after);
        let common = [
            named(
                Kind::Route,
                routes(before),
                routes(after),
                |old, new| route((before, old), (after, new)),
                |new| new_route(after, new),
            ),
            named(Kind::Plan, plans(before), plans(after), |_, _| Vec::new(), |new| new_plan(after, new)),
            named(Kind::Upstream, upstreams(before), upstreams(after), upstream, |new| {
                vec![detail("nodes", nodes(new))]
            }),
        ];
        changes.extend(common.into_iter().flatten());
        changes.extend(settings(before, after));
        Self { changes, untouched_limits }
    }
}

fn detail(what: &str, words: impl Into<String>) -> Line {
    (what.to_owned(), words.into())
}

/// Notes how `what` was and will be, if that is not the same.
fn differs(details: &mut Vec<Line>, what: &str, old: String, new: String) {
    if old != new {
        details.push((what.to_owned(), format!("{old} -> {new}")));
    }
}

/// Notes that `what` is another one, if it is.
fn differs_somehow<T: PartialEq>(details: &mut Vec<Line>, what: &str, old: &T, new: &T) {
    if old != new {
        details.push(detail(what, "changes"));
    }
}

/// A kind of things with names.
#[derive(Clone, Copy)]
enum Kind {
    Route,
    Plan,
    Upstream,
}

impl Kind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Route => "route",
            Self::Plan => "plan",
            Self::Upstream => "upstream",
        }
    }

    const fn gone(self) -> &'static str {
        match self {
            Self::Route => "is gone: its requests take another route that matches, or are answered 404",
            Self::Plan | Self::Upstream => "is gone",
        }
    }
}

/// What comes, what goes and what changes among things with names.
fn named<T: Copy>(
    kind: Kind,
    before: Vec<(&str, T)>,
    after: Vec<(&str, T)>,
    compare: impl Fn(T, T) -> Vec<Line>,
    describe: impl Fn(T) -> Vec<Line>,
) -> Vec<Change> {
    let old: HashMap<&str, T> = before.iter().copied().collect();
    let new: HashMap<&str, T> = after.iter().copied().collect();
    let change = |name: &str, words: &str, details| Change {
        kind: kind.as_str(),
        name: name.to_owned(),
        words: words.to_owned(),
        details,
    };
    let kept = after.iter().filter_map(|(name, now)| match old.get(name) {
        None => Some(change(name, "is new", describe(*now))),
        Some(was) => {
            let details = compare(*was, *now);
            (!details.is_empty()).then(|| change(name, "changes", details))
        }
    });
    let gone = before.iter().filter(|(name, _)| !new.contains_key(name));
    kept.chain(gone.map(|(name, _)| change(name, kind.gone(), Vec::new()))).collect()
}

// === limits ===

fn limits(before: &Ruleset, after: &Ruleset) -> (Vec<Change>, usize) {
    let old: HashMap<&str, &Limit> = before.limits.iter().map(|limit| (limit.name.as_str(), limit)).collect();
    let mut changes = Vec::new();
    let mut untouched = 0_usize;
    for (limit, change) in after.limits.iter().zip(of_limits(before, after)) {
        let details = match old.get(limit.name.as_str()) {
            Some(was) => {
                [terms((before, was), (after, limit), change), limit_settings((before, was), (after, limit))].concat()
            }
            None => after.words(limit),
        };
        match change.words() {
            None if details.is_empty() => untouched = untouched.saturating_add(1),
            words => changes.push(Change {
                kind: "limit",
                name: limit.name.clone(),
                words: words.unwrap_or("keeps what is used").to_owned(),
                details,
            }),
        }
    }
    let gone = before.limits.iter().filter(|limit| !after.limits.iter().any(|other| other.name == limit.name));
    changes.extend(gone.map(|limit| Change {
        kind: "limit",
        name: limit.name.clone(),
        words: GONE.to_owned(),
        details: Vec::new(),
    }));
    (changes, untouched)
}

/// How the parameters of each plan that stays were and will be, and what that means for what was counted.
fn terms((before, was): (&Ruleset, &Limit), (after, limit): (&Ruleset, &Limit), change: LimitChange) -> Vec<Line> {
    let positions: HashMap<&str, usize> =
        before.plans.iter().enumerate().map(|(position, plan)| (plan.as_str(), position)).collect();
    let of_plans = after.plans.iter().enumerate().filter_map(|(position, plan)| {
        let old = PlanId(*positions.get(plan.as_str())?);
        Some((plan.as_str(), asks(was, Some(old)), asks(limit, Some(PlanId(position)))))
    });
    let planless = was.without_plan.and(limit.without_plan);
    let planless = planless.map(|_| (words::planless(&after.plans), asks(was, None), asks(limit, None)));
    let all: Vec<_> = of_plans.chain(planless).collect();
    let shown = |rule: Option<&Rule>| rule.map_or_else(|| words::UNLIMITED.to_owned(), Rule::words);
    let lines = all.iter().filter(|(_, old, new)| old != new).filter_map(|(who, old, new)| {
        let (was, is) = (shown(*old), shown(*new));
        let says_nothing = change == LimitChange::OtherAlgorithm && was == is;
        (!says_nothing).then(|| detail(who, format!("{was} -> {is}{}", carried(*old, *new, change))))
    });
    let lines: Vec<Line> = lines.collect();
    if lines.len() == all.len() { words::merged(lines) } else { lines }
}

/// What becomes of what was counted under `old`.
fn carried(old: Option<&Rule>, new: Option<&Rule>, change: LimitChange) -> String {
    match (old, new, change) {
        (Some(_), Some(new), LimitChange::Carried) if new.holds() => "; what is in flight stays counted".to_owned(),
        (Some(old), Some(new), LimitChange::Carried) => match left_of_spent(old, new) {
            Some(0) => "; a spent bucket stays spent".to_owned(),
            Some(left) => format!("; a spent bucket has {left} left at once"),
            None => "; what is used stays used".to_owned(),
        },
        (None, Some(_), LimitChange::Carried) => "; nothing was counted yet".to_owned(),
        _ => String::new(),
    }
}

/// What a bucket that has just been spent under `old` would admit under `new`; `None` where no number says so.
fn left_of_spent(old: &Rule, new: &Rule) -> Option<Cost> {
    // any time would do
    let now = Nanos::from_secs(1_700_000_000);
    let all = old.headroom(None, now).remaining?;
    let (_, spent) = old.decide(None, all, now);
    new.headroom(new.carry(old, spent?, now).as_ref(), now).remaining
}

/// What else differs between two limits of one name.
fn limit_settings((before, was): (&Ruleset, &Limit), (after, limit): (&Ruleset, &Limit)) -> Vec<Line> {
    let mut details = Vec::new();
    differs(&mut details, "algorithm", was.algorithm.as_str().to_owned(), limit.algorithm.as_str().to_owned());
    differs(&mut details, "key", was.key.words(), limit.key.words());
    let old: BTreeMap<String, String> = before.settings(was).into_iter().collect();
    let new: BTreeMap<String, String> = after.settings(limit).into_iter().collect();
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let usual = || "as usual".to_owned();
    for name in names {
        let [old, new] = [&old, &new].map(|settings| settings.get(name).cloned().unwrap_or_else(usual));
        differs(&mut details, name, old, new);
    }
    differs(&mut details, "max_keys", was.max_keys.to_string(), limit.max_keys.to_string());
    differs_somehow(&mut details, "missing_key", &was.missing_key, &limit.missing_key);
    if was.over_limit.denied() != limit.over_limit.denied() && details.iter().all(|(what, _)| what != "over the limit")
    {
        details.push(detail("over the limit", "the texts of the answer change"));
    }
    details
}

// === routes, plans, upstreams ===

fn routes(ruleset: &Ruleset) -> Vec<(&str, &Route)> {
    ruleset.matcher.routes().iter().map(|route| (route.name.as_str(), route)).collect()
}

fn plans(ruleset: &Ruleset) -> Vec<(&str, PlanId)> {
    ruleset.plans.iter().enumerate().map(|(position, plan)| (plan.as_str(), PlanId(position))).collect()
}

fn upstreams(ruleset: &Ruleset) -> Vec<(&str, &Upstream)> {
    ruleset.upstreams.iter().map(|upstream| (upstream.name.as_str(), upstream)).collect()
}

fn list(items: &[String], none: &str) -> String {
    if items.is_empty() { none.to_owned() } else { items.join(", ") }
}

fn hosts(route: &Route) -> String {
    list(&route.hosts.iter().map(ToString::to_string).collect::<Vec<_>>(), "any")
}

fn methods(route: &Route) -> String {
    list(&route.methods, "any")
}

/// The names of a route's limits, without what is only tried.
fn limits_of(ruleset: &Ruleset, route: &Route) -> Vec<String> {
    let limits = route.limits.iter().filter_map(|id| ruleset.limits.get(id.0));
    limits.filter(|limit| limit.candidate_of.is_none()).map(|limit| limit.name.clone()).collect()
}

fn upstream_name(ruleset: &Ruleset, route: &Route) -> String {
    ruleset.upstreams.get(route.upstream.0).map(|upstream| upstream.name.clone()).unwrap_or_default()
}

fn new_route(ruleset: &Ruleset, route: &Route) -> Vec<Line> {
    vec![
        detail("hosts", hosts(route)),
        detail("path", route.path_pattern.clone()),
        detail("methods", methods(route)),
        detail("upstream", upstream_name(ruleset, route)),
        detail("limits", list(&limits_of(ruleset, route), "none")),
    ]
}

/// What limits ask of a plan.
fn new_plan(ruleset: &Ruleset, plan: PlanId) -> Vec<Line> {
    let limits = ruleset.limits.iter().filter(|limit| limit.candidate_of.is_none());
    limits.map(|limit| detail(&limit.name, limit.words(limit.terms(Some(plan))))).collect()
}

fn nodes(upstream: &Upstream) -> String {
    let nodes = upstream.nodes.iter().map(|node| match node.weight {
        1 => node.address.clone(),
        weight => format!("{} (weight {weight})", node.address),
    });
    nodes.collect::<Vec<_>>().join(", ")
}

fn upstream(old: &Upstream, new: &Upstream) -> Vec<Line> {
    let mut details = Vec::new();
    differs(&mut details, "nodes", nodes(old), nodes(new));
    let version = |upstream: &Upstream| if upstream.http2 { "HTTP/2" } else { "HTTP/1.1" }.to_owned();
    differs(&mut details, "speaks", version(old), version(new));
    differs_somehow(&mut details, "balance", &old.balance, &new.balance);
    differs_somehow(&mut details, "health_check", &old.health_check, &new.health_check);
    differs_somehow(&mut details, "timeouts", &old.timeouts, &new.timeouts);
    differs_somehow(&mut details, "retries", &old.retries, &new.retries);
    differs_somehow(&mut details, "slow_start", &old.slow_start, &new.slow_start);
    details
}

fn route((before, was): (&Ruleset, &Route), (after, route): (&Ruleset, &Route)) -> Vec<Line> {
    let mut details = Vec::new();
    differs(&mut details, "hosts", hosts(was), hosts(route));
    differs(&mut details, "path", was.path_pattern.clone(), route.path_pattern.clone());
    differs(&mut details, "methods", methods(was), methods(route));
    differs_somehow(&mut details, "headers that are asked for", &was.headers, &route.headers);
    differs(&mut details, "upstream", upstream_name(before, was), upstream_name(after, route));
    let (old, new) = (limits_of(before, was), limits_of(after, route));
    let without = |names: &[String], others: &[String]| {
        let names: Vec<String> = names.iter().filter(|name| !others.contains(name)).cloned().collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    details.extend(without(&new, &old).map(|names| detail("limits, besides the others", names)));
    details.extend(without(&old, &new).map(|names| detail("limits, not any more", names)));
    let upgrade = |route: &Route| if route.upgrades_to_websocket { "websocket" } else { "none" }.to_owned();
    differs(&mut details, "upgrade", upgrade(was), upgrade(route));
    let parameters = |route: &Route| if route.path_parameters { "allow" } else { "refuse" }.to_owned();
    differs(&mut details, "path_parameters", parameters(was), parameters(route));
    differs(&mut details, "rewrite", rewrite(was), rewrite(route));
    differs_somehow(&mut details, "access", &was.access, &route.access);
    differs_somehow(&mut details, "bypass", &was.bypass, &route.bypass);
    differs_somehow(&mut details, "answer over a limit", &was.denied, &route.denied);
    differs_somehow(&mut details, "request_headers", &was.request_headers, &route.request_headers);
    differs_somehow(&mut details, "response_headers", &was.response_headers, &route.response_headers);
    details
}

fn rewrite(route: &Route) -> String {
    match &route.rewrite {
        None => "none".to_owned(),
        Some(Rewrite::Path(path)) => format!("to {path}"),
        Some(Rewrite::Prefix { strip, add }) => format!("strip {strip:?}, add {add:?}"),
    }
}

// === what holds for every request ===

fn settings(before: &Ruleset, after: &Ruleset) -> Vec<Change> {
    let change = |kind: &'static str, words: &str| Change {
        kind,
        name: String::new(),
        words: words.to_owned(),
        details: Vec::new(),
    };
    let pairs = [
        (
            before.client_address != after.client_address,
            change("client_address", "changes: keys of addresses that are read in another way start fresh"),
        ),
        (before.connections != after.connections, change("connections", "changes: those that are here stay")),
        (before.access != after.access, change("access", "changes: others are let in, or kept out")),
        (before.cors != after.cors, change("cors", "changes")),
        (before.usage != after.usage, change("usage", "changes")),
        (before.dialects != after.dialects, change("headers", "changes: clients read other header fields")),
        (before.access_log != after.access_log, change("access_log", "changes")),
        (before.request_head != after.request_head, change("request_head", "changes: other requests are refused")),
        (
            before.request_body != after.request_body,
            change("request_body", "changes: slow uploads end sooner or later"),
        ),
    ];
    let customers = customers(before, after);
    let customers = (!customers.is_empty()).then(|| Change {
        details: customers,
        ..change("customers", "changes: who becomes another customer, or anonymous, has other keys")
    });
    customers.into_iter().chain(pairs.into_iter().filter(|(differs, _)| *differs).map(|(_, change)| change)).collect()
}

/// How callers are known.
fn customers(before: &Ruleset, after: &Ruleset) -> Vec<Line> {
    let none = || "none".to_owned();
    let places = |ruleset: &Ruleset| {
        let rules = ruleset.customers.as_ref()?;
        Some(rules.identify.iter().map(CredentialSource::place).collect::<Vec<_>>().join(", "))
    };
    let anonymous = |ruleset: &Ruleset| {
        let plan = ruleset.customers.as_ref()?.anonymous?;
        ruleset.plans.get(plan.0).cloned()
    };
    // plans are positions, which mean something else elsewhere
    let tokens = |ruleset: &Ruleset| {
        let rules = ruleset.customers.as_ref()?.jwt()?.clone();
        let plan = rules.plan.and_then(|plan| ruleset.plans.get(plan.0).cloned());
        Some((JwtRules { plan: None, ..rules }, plan))
    };
    let unknown = |ruleset: &Ruleset| ruleset.customers.as_ref().map(|rules| rules.unknown);
    let mut details = Vec::new();
    let shown = |words: Option<String>| words.unwrap_or_else(none);
    differs(&mut details, "identify", shown(places(before)), shown(places(after)));
    differs(&mut details, "anonymous", shown(anonymous(before)), shown(anonymous(after)));
    differs_somehow(&mut details, "unknown", &unknown(before), &unknown(after));
    differs_somehow(&mut details, "tokens", &tokens(before), &tokens(after));
    details
}
