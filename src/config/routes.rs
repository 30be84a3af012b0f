//! `routes:`: the conditions, upstreams and limits of each route.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{HashMap, HashSet};
use std::hash::BuildHasher;
use std::num::NonZeroU64;

use http::header::HOST;
use regex::bytes::Regex;

use crate::config::decisions::RequiredSections;
use crate::config::limits::ReadLimits;
use crate::config::names::Names;
use crate::config::problem::Problem;
use crate::config::read::{Field, Section, all_or_none, unique_items};
use crate::config::scalar::{InvalidValue, invalid};
use crate::config::settings::{MATCH, REWRITE, ROUTE, SHARE, VALUE_MATCH};
use crate::config::values::{check_ascii, dropped_problem, method, path};
use crate::config::{access, denied, key, scalar, words};
use crate::ruleset::access::{Access, Bypass};
use crate::ruleset::denied::Denied;
use crate::ruleset::host::HostPattern;
use crate::ruleset::key::KeyPart;
use crate::ruleset::limit::Limit;
use crate::ruleset::matcher::{HeaderEdits, HeaderMatch, Matcher, QueryMatch, Rewrite, Route, ValueMatch};
use crate::ruleset::path::{PathPattern, names_segment};
use crate::ruleset::upstream::{Split, UpstreamId};
use crate::ruleset::{LimitId, is_dropped};

/// The pattern of a route that names no path.
const EVERY_PATH: &str = "/**";

/// The names to which routes refer, and other sections that concern routes.
pub(super) struct RouteContext<'r> {
    pub(super) needs: RequiredSections,
    pub(super) upstreams: &'r Names,
    pub(super) limits: &'r ReadLimits,
    /// The `bypass` of the whole file.
    pub(super) bypass: &'r Bypass,
    /// Whether the file has `cors`.
    pub(super) has_cors: bool,
    /// Whether routes take paths in any case of ASCII letters.
    pub(super) ignores_case: bool,
}

/// Reads `routes:`; returns the routes without errors.
pub(super) fn read(top: &Section<'_>, context: &RouteContext<'_>) -> Vec<Route> {
    const EXPECTED: &str = "a list of routes";
    let mut names = Names::none("a route");
    let mut routes = Vec::new();
    let mut unreachable = ShadowedRoutes::default();
    let field = match context.needs.routes {
        true => top.required("routes", EXPECTED),
        false => top.get("routes"),
    };
    let items = field.and_then(|field| field.nonempty_list(EXPECTED));
    for item in items.unwrap_or_default() {
        let errors = item.findings().error_count();
        let Some(section) = item.section(&ROUTE) else {
            continue;
        };
        let name = name(&section, &mut names);
        let route = route(&section, context);
        if let (Some(name), Some(route)) = (name, route) {
            let route = Route { name, ..route };
            // with an unknown name in it, the route may be meant for fewer requests
            if item.findings().error_count() == errors {
                unreachable.check_route(&route, &item);
            }
            routes.push(route);
        }
    }
    add_head_to_get(&mut routes);
    routes
}

/// Lets routes for GET take HEAD too, since most servers answer it with their handler of GET: otherwise HEAD could fall to a
/// route without their limits. A route stays as it is where others, without conditions, name HEAD for its hosts and path.
fn add_head_to_get(routes: &mut [Route]) {
    let names = |route: &Route, method: &str| route.methods.iter().any(|name| name == method);
    let places = |route: &Route| {
        let path = route.path.to_string();
        or_any(route.hosts.iter().map(ToString::to_string)).into_iter().map(move |host| (host, path.clone()))
    };
    let for_head = routes.iter().filter(|route| names(route, "HEAD") && !route.has_conditions());
    let taken: HashSet<(Option<String>, String)> = for_head.flat_map(places).collect();
    for route in routes.iter_mut().filter(|route| names(route, "GET") && !names(route, "HEAD")) {
        if !places(route).all(|place| taken.contains(&place)) {
            route.methods.push("HEAD".to_owned());
        }
    }
}

fn name(section: &Section<'_>, names: &mut Names) -> Option<String> {
    let field = section.required("name", "a name for logs and metrics, like `orders`")?;
    let name = field.scalar_value("the name of the route")?.text.into_owned();
    names.define(&name, &field, field.place())?;
    Some(name)
}

/// Reads all settings of a route but its name.
fn route(section: &Section<'_>, context: &RouteContext<'_>) -> Option<Route> {
    const UPSTREAM: &str = "the name of an upstream";
    let RouteContext { needs, upstreams, bypass, has_cors, ignores_case, .. } = *context;
    let every_request = Route { path_pattern: EVERY_PATH.to_owned(), ..Route::default() };
    let matched = section.get_or("match", every_request, |field| read_match(field, ignores_case));
    let upstream = match section.get("upstream") {
        None if !needs.upstreams => Some(None),
        _ => {
            section.required("upstream", UPSTREAM).and_then(|field| read_upstream(&field, section, upstreams)).map(Some)
        }
    };
    let limits = section.value_or("limits", Vec::new(), |field| read_limits(field, context, matched.as_ref()));
    let preflights = section.value_or("cors", bypass.preflights, |field| access::route_cors(field, has_cors));
    let bypass = section.value_or("bypass", bypass.clone(), |field| access::bypass(field, bypass));
    let upgrade = section.optional("upgrade", |field| {
        let items = field.nonempty_list("a list of `websocket`")?;
        unique_items(&items, |item| item.choice(&[("websocket", ())]), |()| ())
    });
    let rewrite = section.optional("rewrite", |field| read_rewrite(field, matched.as_ref(), ignores_case));
    let parameters = [("refuse", false), ("allow", true)];
    let response_rate = section.optional("response_bytes_per_second", |field| {
        field.parsed("bytes in each second, like `100KiB/s`", |text| {
            NonZeroU64::new(scalar::byte_rate(text)?).ok_or_else(|| invalid("must be more than nothing".to_owned()))
        })
    });
    let edits = |key| section.value_or(key, HeaderEdits::default(), Field::header_edits);
    let (upstream, split) = upstream.map(Option::unzip).unzip();
    let split = split.map(Option::flatten);
    if let (Some(None), Some(field)) = (&split, section.get("split_by")) {
        let problem = field.key_error("means nothing with one upstream");
        let hint = "write `upstream: [{name: v1, weight: 95}, {name: v2, weight: 5}]`, or leave it out";
        field.findings().add(problem.hint(hint));
    }
    Some(Route {
        limits,
        denied: section.value_or("denied", Denied::default(), denied::read),
        access: section.value_or("access", Access::default(), access::access),
        bypass: Bypass { preflights, ..bypass },
        path_parameters: section.value_or("path_parameters", false, |field| field.choice(&parameters)),
        upgrades_to_websocket: upgrade.is_some(),
        rewrite,
        max_request_body: section.optional("max_request_body", Field::bytes),
        response_rate,
        request_headers: edits("request_headers"),
        response_headers: edits("response_headers"),
        upstream: upstream?,
        split: split?,
        ..matched?
    })
}

/// Reads `upstream`: one upstream, or several with their weights.
fn read_upstream(field: &Field<'_>, section: &Section<'_>, upstreams: &Names) -> Option<(UpstreamId, Option<Split>)> {
    if !field.is_list() {
        return upstreams.resolve(field).map(|id| (UpstreamId(id), None));
    }
    let share = |item: &Field<'_>| {
        let share = item.section(&SHARE)?;
        let upstream = share.must("name", |name| upstreams.resolve(name));
        let weight = share.must("weight", Field::whole);
        Some((UpstreamId(upstream?), weight?))
    };
    let items = field.nonempty_list("a list of upstreams, like `{name: v1, weight: 95}`")?;
    let shares = unique_items(&items, share, |(upstream, _)| *upstream);
    let by = section.optional("split_by", |field| match key::part(field)? {
        part @ (KeyPart::Customer | KeyPart::ClientAddress | KeyPart::Header(..) | KeyPart::Cookie(..)) => Some(part),
        _ => field.fail(
            field.error("is nothing to share out by").expected("`customer`, `client_address`, a header or a cookie"),
        ),
    });
    let shares = shares?;
    let (first, _) = *shares.first()?;
    Some((first, Some(Split { shares, by })))
}

/// Reads the conditions of a route.
fn read_match(field: &Field<'_>, ignores_case: bool) -> Option<Route> {
    const A_HOST: &str = "a host name, like `api.example.com` or `*.example.com`";
    let section = field.section(&MATCH)?;
    let hosts = section.get_or("hosts", Vec::new(), |field| {
        let host = |item: &Field<'_>| item.parsed(A_HOST, parse_host);
        unique_items(&field.nonempty_list("a list of host names")?, host, HostPattern::clone)
    });
    let path = section.get_or("path", (PathPattern::everything(), EVERY_PATH.to_owned()), path);
    let methods = section.get_or("methods", Vec::new(), |field| {
        unique_items(&field.nonempty_list("a list of methods")?, method, String::clone)
    });
    let headers = section.get_or("headers", Vec::new(), |field| {
        let conditions = field.by_header("header fields, each with its value or `true`", |name, field| match name {
            name if is_dropped(name) => field.fail(dropped_problem(field.key_place(), name)),
            name if *name == HOST => {
                let problem = Problem::error(field.key_place(), "has several spellings for each host");
                field.fail(problem.hint("write `hosts`, beside `headers`"))
            }
            _ => value_match(field),
        })?;
        Some(conditions.into_iter().map(|(name, value)| HeaderMatch { name, value }).collect())
    });
    let query = section.get_or("query", Vec::new(), |field| {
        let parameters = field.mapping("query parameters, each with its value or `true`")?;
        let read =
            |(name, field): (&str, Field<'_>)| Some(QueryMatch { name: name.to_owned(), value: value_match(&field)? });
        all_or_none(parameters.fields().map(read))
    });
    let (path, path_pattern) = path?;
    let path = if ignores_case { path.in_lower_case() } else { path };
    let (hosts, methods, headers, query) = (hosts?, methods?, headers?, query?);
    Some(Route { hosts, path, path_pattern, methods, headers, query, ..Route::default() })
}

fn parse_host(text: &str) -> Result<HostPattern, InvalidValue> {
    check_ascii(text)?;
    if text.contains(',') {
        let names: Vec<&str> = text.split(',').map(str::trim).filter(|name| !name.is_empty()).collect();
        let hint = format!("write each host as an item of its own: `[{}]`", names.join(", "));
        return Err(invalid("must be one host name").hint(hint));
    }
    HostPattern::parse(text).map_err(invalid)
}

/// Reads `true` (the name must only be there), a value, or a regular expression.
fn value_match(field: &Field<'_>) -> Option<ValueMatch> {
    const EXPECTED: &str = "a value, `true` for any, or `{regex: EXPRESSION}`";
    let field = field.clone().secret();
    if !field.is_scalar() {
        let section = field.section_or(&VALUE_MATCH, EXPECTED)?;
        let expression = section.required("regex", "a regular expression, like `v[0-9]+`")?;
        return expression.parsed("a regular expression", whole_regex).map(ValueMatch::Like);
    }
    let word = field.scalar_value(EXPECTED)?;
    match (&*word.text, word.plain) {
        ("true", true) => Some(ValueMatch::Any),
        ("false", true) => field.fail(Problem::error(field.place(), "cannot be asked to be absent").expected(EXPECTED)),
        (text, _) if http::HeaderValue::from_str(text).is_err() => {
            field.fail(field.error("holds characters that no value may hold").expected(EXPECTED))
        }
        (text, _) => Some(ValueMatch::Is(text.to_owned())),
    }
}

/// An expression that must match the whole value.
fn whole_regex(text: &str) -> Result<Regex, InvalidValue> {
    let says = |error: regex::Error| match error {
        regex::Error::CompiledTooBig(_) => "is too large an expression".to_owned(),
        // the last line of several, of which the others repeat the expression
        error => match error.to_string().rsplit_once("error: ") {
            Some((_, why)) => format!("is not a regular expression: {why}"),
            None => "is not a regular expression".to_owned(),
        },
    };
    let anchored = |end: &str| Regex::new(&format!("^(?:{text}{end})$"));
    // the expression must be valid by itself: `a)(b` is valid only inside the added parentheses; in verbose mode it may end
    // in a comment, which a line break ends that means nothing else there
    let anchored = Regex::new(text).and_then(|_| anchored("").or_else(|_| anchored("\n")));
    anchored.map_err(|error| invalid(says(error)))
}

/// Checks the names in `defaults.routes.limits`, which a route may not take over.
pub(super) fn check_default_limits(top: &Section<'_>, context: &RouteContext<'_>) {
    let limits = top.at(&["defaults", "routes", "limits"]);
    limits.iter().for_each(|field| _ = read_limits(field, context, None));
}

fn read_limits(field: &Field<'_>, context: &RouteContext<'_>, matched: Option<&Route>) -> Option<Vec<LimitId>> {
    let items = field.list("a list of names of limits")?;
    let limit = |item: &Field<'_>| {
        let (id, read) = context.limits.resolve(item)?;
        for part in read.iter().flat_map(|read| &read.limit.key.parts) {
            if let (KeyPart::PathSegment(name), Some(matched)) = (part, matched)
                && !names_segment(&matched.path_pattern, name)
            {
                let problem = item
                    .error(format!("counts by the segment `{{{name}}}`, which the path of the route does not name"));
                return item.fail(problem.hint(format!("name it in `match`: `path: /v1/{{{name}}}/**`")));
            }
        }
        Some(id)
    };
    unique_items(&items, limit, LimitId::clone)
}

fn read_rewrite(field: &Field<'_>, matched: Option<&Route>, ignores_case: bool) -> Option<Rewrite> {
    let section = field.section(&REWRITE)?;
    if let Some(path) = section.get("path") {
        if section.has("strip_prefix") || section.has("add_prefix") {
            let problem = path.key_error("cannot stand beside `strip_prefix` and `add_prefix`");
            return path.fail(problem.expected("either the whole path or changes to its beginning"));
        }
        return path.plain_path().map(Rewrite::Path);
    }
    if section.is_empty() {
        return field.fail(field.error("is empty").expected("`strip_prefix` and `add_prefix`, or `path`"));
    }
    let prefix = |key: &str| {
        let path = section.get_or(key, String::new(), Field::plain_path)?;
        Some(path.strip_suffix('/').map(str::to_owned).unwrap_or(path))
    };
    let (strip, add) = (prefix("strip_prefix"), prefix("add_prefix"));
    let (strip, add) = (strip?, add?);
    if let (Some(field), Some(matched)) = (section.get("strip_prefix"), matched)
        && !matched.path.can_begin_with(&strip, ignores_case)
    {
        let paths = format!("a beginning of the route's paths, which are `{}`", matched.path_pattern);
        return field.fail(field.error("is the beginning of no path that the route takes").expected(paths));
    }
    Some(Rewrite::Prefix { strip, add, ignores_case })
}

/// Warns of routes whose path with a final slash falls to a route that lacks some of their limits: most upstreams take both
/// paths for one, so a client could dodge these limits. Leaves out routes with conditions on header fields and parameters.
pub(super) fn warn_of_final_slashes(top: &Section<'_>, matcher: &Matcher, limits: &[Limit]) {
    for (route, item) in matcher.routes().iter().zip(top.items("routes")) {
        let path = format!("{}/", route.path);
        if path.ends_with("//") || path.ends_with("/**/") || route.has_conditions() {
            continue;
        }
        let hosts = or_any(route.hosts.iter().map(ToString::to_string));
        let methods = or_any(route.methods.iter().cloned());
        let requests = hosts.iter().flat_map(|host| methods.iter().map(move |method| (host, method)));
        let dodged = requests.take(MAX_PAIRS).find_map(|(host, method)| {
            let (host, method) = (host.as_deref().unwrap_or_default(), method.as_deref().unwrap_or("GET"));
            let other = matcher.find_bare(method, host, &path)?;
            let lacking = route.limits.iter().filter(|id| !other.limits.contains(id)).filter_map(|id| limits.get(id.0));
            let names: Vec<&str> = lacking.filter(|limit| limit.acts()).map(|limit| limit.name.as_str()).collect();
            (!names.is_empty()).then(|| (other, words::all_of(names)))
        });
        if let Some((other, names)) = dodged {
            let pattern = &route.path_pattern;
            let other_case =
                if matcher.ignores_case() { "" } else { "; `path_case: ignore` is for other cases of its letters" };
            item.findings().add(
                Problem::warning(item.place(), format!("`{pattern}/` dodges {names} of `{}`", route.name))
                    .found(format!("`{}`, which takes `{pattern}/` without these limits", other.name))
                    .hint(format!("write `path: {pattern}/**`, or give `{pattern}/` a route of its own{other_case}")),
            );
        }
    }
}

/// Finds routes to which earlier routes leave no requests.
///
/// The gateway tries a more specific route first, whatever the order in the file. So an earlier route can hide a later one
/// only if the two have the same host, path and conditions.
#[derive(Default)]
struct ShadowedRoutes {
    hasher: RandomState,
    /// The first route with a host, path, conditions and method (by a hash of all four).
    taken: HashMap<u64, String>,
}

/// The maximum number of pairs of a host and a method that are checked; a route with more pairs is never called hidden.
const MAX_PAIRS: usize = 256;

impl ShadowedRoutes {
    fn check_route(&mut self, route: &Route, field: &Field<'_>) {
        let hosts = or_any(route.hosts.iter().map(ToString::to_string));
        let methods = or_any(route.methods.iter().cloned());
        if hosts.len().saturating_mul(methods.len()) > MAX_PAIRS {
            return;
        }
        let headers = route.headers.iter().map(|condition| format!("{condition:?}"));
        let mut conditions: Vec<String> =
            headers.chain(route.query.iter().map(|condition| format!("{condition:?}"))).collect();
        conditions.sort();
        // paths are the same whatever the names of their segments
        let path = route.path.to_string();
        let mut first = None;
        let mut reachable = false;
        for host in &hosts {
            for method in &methods {
                match self.taken.entry(self.hasher.hash_one((host, &path, &conditions, method))) {
                    Entry::Occupied(other) => first = Some(other.get().clone()),
                    Entry::Vacant(place) => {
                        place.insert(route.name.clone());
                        reachable = true;
                    }
                }
            }
        }
        if let Some(other) = first.filter(|_| !reachable) {
            field.findings().add(
                Problem::warning(field.place(), format!("`{}` is never reached", route.name))
                    .found(format!("`{other}`, which takes the same requests first")),
            );
        }
    }
}

fn or_any(words: impl Iterator<Item = String>) -> Vec<Option<String>> {
    let words: Vec<Option<String>> = words.map(Some).collect();
    if words.is_empty() { vec![None] } else { words }
}
