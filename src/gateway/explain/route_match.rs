//! The route that a request takes, and the reasons why it takes no other.

use std::collections::HashSet;

use serde::Serialize;

use crate::ruleset::Ruleset;
use crate::ruleset::access::preflight_method;
use crate::ruleset::key::Facts;
use crate::ruleset::matcher::{Mismatch, Route, RouteId, ValueMatch};

/// The maximum number of routes in each list.
const MAX_ROUTES: usize = 20;

/// The route that a request takes, and the reasons why it takes no other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RouteMatch {
    /// The name of the route; null if nothing matches.
    pub name: Option<String>,
    /// The conditions of the route that the request meets.
    pub because: Vec<String>,
    /// The routes that are tried before it, and those that only the host excludes. If no route matches, all routes.
    pub passed_over: Vec<SkippedRoute>,
    /// The number of further routes of this kind.
    pub passed_over_more: usize,
    /// The routes that also match but come after it: less specific ones, or equally specific ones later in the file.
    pub shadowed: Vec<String>,
}

/// A route that a request does not take.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SkippedRoute {
    /// Its name.
    pub route: String,
    /// The condition that the request does not meet.
    pub why: String,
}

impl RouteMatch {
    /// Explains how a request that takes the route `taken` was matched.
    pub(super) fn of(ruleset: &Ruleset, taken: Option<RouteId>, facts: &Facts<'_>) -> Self {
        let matcher = &ruleset.matcher;
        let answered = taken.is_some_and(|taken| ruleset.answers_preflight(matcher.route(taken), facts));
        let asked = preflight_method(facts).filter(|_| answered);
        let facts = &Facts { method: asked.unwrap_or(facts.method), ..facts.clone() };
        let mut known: HashSet<RouteId> = HashSet::new();
        let tried: Vec<RouteId> = matcher.compared_routes(facts).filter(|id| known.insert(*id)).collect();
        let place = taken.and_then(|taken| tried.iter().position(|id| *id == taken));
        let (before, after) = tried.split_at(place.unwrap_or(tried.len()));
        let others = (0..matcher.routes().len()).map(RouteId).filter(|id| {
            let only_by_host = || matches!(matcher.mismatch(*id, facts), Some(Mismatch::Host { otherwise: true, .. }));
            !known.contains(id) && (taken.is_none() || only_by_host())
        });
        let name = |id: RouteId| matcher.route(id).name.clone();
        let passed = before.iter().copied().chain(others);
        let mut passed = passed.filter_map(|id| {
            let why = matcher.mismatch(id, facts)?.to_string();
            Some(SkippedRoute { route: name(id), why })
        });
        let passed_over = passed.by_ref().take(MAX_ROUTES).collect();
        let matching = after.iter().skip(1).copied().filter(|id| matcher.mismatch(*id, facts).is_none());
        Self {
            name: taken.map(name),
            because: taken.map(|id| because(matcher.route(id), facts)).unwrap_or_default(),
            passed_over,
            passed_over_more: passed.count(),
            shadowed: matching.take(MAX_ROUTES).map(name).collect(),
        }
    }
}

/// The conditions of its route that a request meets.
fn because(route: &Route, facts: &Facts<'_>) -> Vec<String> {
    let host = match route.hosts.iter().find(|host| host.matches(facts.host)) {
        Some(host) => format!("the host {} is {host}", facts.host),
        None => "any host is taken".to_owned(),
    };
    let path = format!("the path {} is {}", facts.path, route.path_pattern);
    let method = match route.methods.as_slice() {
        [] => "any method is taken".to_owned(),
        methods => format!("the method {} is {}", facts.method, methods.join(" or ")),
    };
    let has = |what: &str, name: &str, value: &ValueMatch| match value {
        ValueMatch::Any => format!("the {what} {name} is there"),
        ValueMatch::Is(_) | ValueMatch::Like(_) => format!("the {what} {name} has the value that is asked for"),
    };
    let headers = route.headers.iter().map(|of| has("header", of.name.as_str(), &of.value));
    let query = route.query.iter().map(|of| has("query parameter", &of.name, &of.value));
    [host, path, method].into_iter().chain(headers).chain(query).collect()
}
