//! Traefik's dynamic configuration: routers, their middlewares, and services.

use std::collections::{HashMap, HashSet};

use super::add_new;
use super::front::rules::{Access, Effects, Rule, ScopedAccess};
use super::front::{GUARD, KeyPart, LimitSettings, Listener, PASS, ProxyConfig, Upstream, Url, node, time};
use super::matches::{PathMatch, ScopedLimit};
use super::output::scalar;
use super::yaml::{flag, get, left_out, list, name_others, note, notes, number, section, settings, text, texts, whole};
use crate::config::read::{Field, Section};
use crate::units::Nanos;

mod rule;

/// Middlewares that refuse requests. tollgate does not carry them over, so more requests pass.
const GUARDS: [&str; 5] = ["basicAuth", "circuitBreaker", "digestAuth", "forwardAuth", "plugin"];

/// Ends a chain or a service that contains itself.
const MAX_DEPTH: usize = 8;

/// Whether a file is a configuration of Traefik.
pub(super) fn is_of_this_format(top: &Section<'_>) -> bool {
    let http = top.get("http").and_then(|http| http.as_mapping());
    http.is_some_and(|http| ["routers", "services", "middlewares"].iter().any(|name| http.has(name)))
}

struct Reader<'a> {
    middlewares: HashMap<&'a str, Field<'a>>,
    services: HashMap<&'a str, Field<'a>>,
    /// The names of the file's entry points, each with its middlewares.
    points: Vec<(&'a str, Vec<String>)>,
    /// The names of the middlewares and services that routers use.
    used: HashSet<String>,
    /// The smallest of the bodies' bounds that the middlewares of the router set.
    max_body: Option<u64>,
    front: ProxyConfig,
}

pub(super) fn read(top: &Field<'_>) -> Option<ProxyConfig> {
    let file = settings(top, &["http", "entryPoints"])?;
    let http = settings(&get(&file, "http")?, &["routers", "services", "middlewares"])?;
    let (routers, services, middlewares) =
        (section(&http, "routers"), section(&http, "services"), section(&http, "middlewares"));
    let points = section(&file, "entryPoints");
    let mut reader = Reader {
        middlewares: middlewares.iter().flat_map(Section::fields).collect(),
        services: services.iter().flat_map(Section::fields).collect(),
        points: points.iter().flat_map(Section::fields).map(|(name, field)| (name, middlewares_of(&field))).collect(),
        used: HashSet::new(),
        max_body: None,
        front: ProxyConfig::default(),
    };
    for (name, router) in routers.iter().flat_map(Section::fields) {
        reader.router(name, &router);
    }
    for (name, field) in reader.middlewares.iter().chain(&reader.services) {
        if !reader.used.contains(*name) {
            note(field, "is left out: no router leads to it");
        }
    }
    for (_, field) in points.iter().flat_map(Section::fields) {
        let point = settings(&field, &["address", "http"]);
        let Some(address) = point.and_then(|point| text(&point, "address")) else { continue };
        let why = match address.rsplit_once('/') {
            Some((_, "udp")) => Some("is left out: only TCP is carried over".to_owned()),
            of_protocol => {
                let (address, _) = of_protocol.unwrap_or((address.as_str(), ""));
                reader.front.listen(Listener::at(node(address, 80)))
            }
        };
        notes(&field, why);
    }
    if reader.front.has_no_listeners() {
        note(top, "names no entry points: those of Traefik's static configuration belong in `listeners`");
        reader.front.listen(Listener::at("0.0.0.0:8080".to_owned()));
    }
    reader.front.finish(top.findings(), "router that leads to servers")
}

/// A name without its provider, like `@file`.
fn bare(name: &str) -> &str {
    name.strip_suffix("@file").unwrap_or(name)
}

/// The names of the middlewares of an entry point.
fn middlewares_of(point: &Field<'_>) -> Vec<String> {
    let http = point.as_mapping().and_then(|point| settings(&get(&point, "http")?, &["middlewares"]));
    http.map(|http| texts(&http, "middlewares")).unwrap_or_default()
}

impl Reader<'_> {
    fn router(&mut self, name: &str, field: &Field<'_>) -> Option<()> {
        let router = settings(field, &["rule", "service", "middlewares", "entryPoints", "priority"])?;
        let given = |name| text(&router, name).filter(|text| !text.trim().is_empty());
        let (Some(rule), Some(service)) = (given("rule"), given("service")) else {
            return left_out(field, "it has no rule, or no service");
        };
        let (matches, remarks) = match rule::read(&rule) {
            Ok(read) => read,
            Err(what) => return left_out(field, format_args!("{what} is not carried over")),
        };
        let upstreams = self.service(field, bare(&service), 0)?;
        let own_points = texts(&router, "entryPoints");
        let is_at_all =
            !self.points.is_empty() && self.points.iter().all(|(point, _)| own_points.iter().any(|own| own == point));
        if !own_points.is_empty() && !is_at_all {
            note(field, "is taken at all listeners, not only at its entryPoints");
        }
        notes(field, remarks);
        let mut effects = Effects::default();
        self.max_body = None;
        let listens = |point: &str| own_points.is_empty() || own_points.iter().any(|own| own == point);
        let of_points = self.points.iter().filter(|(point, _)| listens(point)).flat_map(|(_, of)| of.clone());
        let mut middlewares = Vec::new();
        add_new(&mut middlewares, of_points.chain(texts(&router, "middlewares")));
        for middleware in middlewares {
            self.middleware(field, name, bare(&middleware), &mut effects, 0);
        }
        effects.more.extend(self.max_body.map(|max| ("max_request_body", format!("{max}B"))));
        if upstreams.is_empty() {
            note(field, "refuses requests with 403 here: its service has no servers that are carried over");
            effects = Effects::refusal();
        }
        let given = whole(&router, "priority").filter(|priority| *priority != 0);
        let priority = given.unwrap_or_else(|| i64::try_from(rule.len()).unwrap_or(i64::MAX));
        for matches in matches {
            let mut effects = effects.clone();
            // Traefik strips the prefix from the paths that begin with it
            if PathMatch::below(&effects.rewrite.0).and(&matches.path).is_none() {
                effects.rewrite.0.clear();
            }
            self.front.rules.push(Rule {
                place: field.key_place(),
                listeners: own_points.iter().filter(|_| !is_at_all).cloned().collect(),
                name: name.to_owned(),
                matches,
                order: Some((String::new(), vec![priority])),
                upstreams: upstreams.clone(),
                effects,
            });
        }
        Some(())
    }

    fn middleware(&mut self, from: &Field<'_>, router: &str, name: &str, effects: &mut Effects, depth: usize) {
        if depth == MAX_DEPTH {
            return note(from, &format!("goes on without {name}, which contains itself"));
        }
        let of = self.middlewares.get(name).cloned();
        let Some(of) = of.and_then(|field| field.mapping("a mapping")) else {
            return note(from, &format!("goes on without {name}, which is not in this file"));
        };
        self.used.insert(name.to_owned());
        for (kind, field) in of.fields() {
            let Some(section) = field.mapping("a mapping") else { return };
            match kind {
                "rateLimit" => {
                    effects.limits.extend(rate(&field, &section).map(|limit| self.limit(name, router, limit)));
                }
                "inFlightReq" => {
                    effects.limits.extend(in_flight(&field, &section).map(|limit| self.limit(name, router, limit)));
                }
                "chain" => {
                    for inner in texts(&section, "middlewares") {
                        self.middleware(&field, router, bare(&inner), effects, depth.saturating_add(1));
                    }
                }
                "stripPrefix" => strip_prefix(&field, &section, &mut effects.rewrite),
                "addPrefix" => {
                    let prefix = text(&section, "prefix").unwrap_or_default();
                    effects.rewrite.1.insert_str(0, prefix.trim_end_matches('/'));
                }
                "ipAllowList" | "ipWhiteList" => {
                    name_others(&section, &["sourceRange"]);
                    let access = Access { allow: texts(&section, "sourceRange"), deny: Vec::new() };
                    effects.access.push(ScopedAccess::always(access));
                }
                "buffering" => {
                    name_others(&section, &["maxRequestBodyBytes"]);
                    let max = number(&section, "maxRequestBodyBytes").filter(|max| *max > 0);
                    self.max_body = self.max_body.into_iter().chain(max).min();
                }
                _ if GUARDS.contains(&kind) => note(&field, GUARD),
                _ => note(&field, "is not carried over"),
            }
        }
    }

    /// The limit of a middleware for a router: each router has its own counts.
    fn limit(&mut self, middleware: &str, router: &str, settings: LimitSettings) -> ScopedLimit {
        let name = format!("{middleware}.{router}");
        ScopedLimit::always(self.front.limit(&name, &name, settings))
    }

    /// The upstreams of a service with their weights, none where no server is carried over; `None` where the service is left
    /// out.
    fn service(&mut self, from: &Field<'_>, name: &str, depth: usize) -> Option<Vec<(String, u64)>> {
        if depth == MAX_DEPTH {
            return left_out(from, format_args!("its service {name} contains itself"));
        }
        let field = self.services.get(name).cloned();
        let Some(service) = field.as_ref().and_then(Field::as_mapping) else {
            return left_out(from, format_args!("its service {name} is not in this file"));
        };
        self.used.insert(name.to_owned());
        if let Some(weighted) = get(&service, "weighted") {
            return self.shares(&settings(&weighted, &["services"])?, depth);
        }
        let Some(balancer) = section(&service, "loadBalancer") else {
            return left_out(
                from,
                format_args!("of services, only `loadBalancer` and `weighted` are carried over, and {name} is neither"),
            );
        };
        let upstream = upstream_of(name, &balancer)?;
        let has_servers = !upstream.nodes.is_empty();
        Some(has_servers.then(|| (self.front.upstream(upstream), 1)).into_iter().collect())
    }

    /// The upstreams of a weighted service.
    fn shares(&mut self, weighted: &Section<'_>, depth: usize) -> Option<Vec<(String, u64)>> {
        let mut shares = Vec::new();
        for share in list(weighted, "services") {
            let of = share.mapping("a mapping")?;
            let target = text(&of, "name").unwrap_or_default();
            let weight = number(&of, "weight").unwrap_or(1);
            match self.service(&share, bare(&target), depth.saturating_add(1))?.as_slice() {
                [(upstream, _)] if weight > 0 => shares.push((upstream.clone(), weight)),
                [] | [_] => {}
                _ => note(&share, "is left out: it is shared among others itself"),
            }
        }
        Some(shares)
    }
}

/// Reads a `stripPrefix` into a rewrite.
fn strip_prefix(field: &Field<'_>, section: &Section<'_>, rewrite: &mut (String, String)) {
    name_others(section, &["prefixes"]);
    match texts(section, "prefixes").as_slice() {
        [prefix] => notes(field, strip(rewrite, prefix.trim_end_matches('/'))),
        _ => note(field, "is not carried over: it has several prefixes"),
    }
}

/// Has a rewrite, which is a prefix to strip and one to add, strip a further prefix of its result. Returns a note where this
/// differs for some paths.
fn strip((stripped, added): &mut (String, String), prefix: &str) -> Option<String> {
    let below = |whole: &str, above: &str| {
        whole.strip_prefix(above).filter(|rest| rest.is_empty() || rest.starts_with('/')).map(str::to_owned)
    };
    if let Some(rest) = below(added, prefix) {
        *added = rest;
        return None;
    }
    // the path begins with `added`, which is not below `prefix`
    let rest = below(prefix, added)?;
    let is_first = stripped.is_empty() && added.is_empty();
    stripped.push_str(&rest);
    added.clear();
    (!is_first).then(|| format!("changes only paths that begin with {stripped}: others are not rewritten here"))
}

fn upstream_of(name: &str, balancer: &Section<'_>) -> Option<Upstream> {
    name_others(balancer, &["servers", "healthCheck", "passHostHeader"]);
    if let Some(field) = balancer.get("passHostHeader").filter(|_| !flag(balancer, "passHostHeader", true)) {
        note(&field, "upstreams see the host that the client asks for");
    }
    let mut upstream = Upstream { name: name.to_owned(), ..Upstream::default() };
    for server in list(balancer, "servers") {
        let of = server.mapping("a mapping")?;
        let address = text(&of, "url").unwrap_or_default();
        let Some(url) = Url::parse(&address) else {
            note(&server, "is left out: it is no http or https URL");
            continue;
        };
        if !matches!(url.path, None | Some("/")) {
            note(&server, "the path of its URL is not carried over");
        }
        let weight = number(&of, "weight").unwrap_or(1);
        if weight == 0 {
            note(&server, "is left out: it gets no requests");
            continue;
        }
        if url.is_secure {
            upstream.tls = Some(String::new());
        }
        upstream.nodes.push((url.node(), weight));
    }
    if let Some(check) = get(balancer, "healthCheck") {
        let check = settings(&check, &["path", "interval", "timeout"])?;
        upstream.health_check.push(("path", scalar(&text(&check, "path").unwrap_or_else(|| "/".to_owned()))));
        for (given, name) in [("interval", "every"), ("timeout", "timeout")] {
            let Some(field) = get(&check, given) else { continue };
            let length = field.scalar_value("a length of time")?.text;
            match time(&length) {
                Some(time) => upstream.health_check.push((name, time.to_exact_string())),
                None => note(&field, &format!("is left out: {length} is no length of time")),
            }
        }
    }
    Some(upstream)
}

/// The settings of a `rateLimit`: a token bucket in which requests wait at most half of the time between two tokens.
fn rate(field: &Field<'_>, section: &Section<'_>) -> Option<LimitSettings> {
    const SECOND: u64 = 1_000_000_000;
    name_others(section, &["average", "burst", "period", "sourceCriterion"]);
    let average = number(section, "average").unwrap_or(0);
    let period = text(section, "period").unwrap_or_else(|| "1s".to_owned());
    let nanos = match time(&period) {
        // Traefik takes 0 for an absent period
        Some(zero) if zero.get() == 0 => Nanos::new(SECOND),
        Some(nanos) => nanos,
        None => return left_out(field, format_args!("its period {period} is no length of time")),
    };
    if average == 0 {
        return left_out(field, "an average of 0 limits nothing");
    }
    let burst = number(section, "burst").unwrap_or(1).max(1);
    let per_second = average.saturating_mul(SECOND).checked_div(nanos.get()).unwrap_or(0);
    let wait = SECOND.checked_div(per_second.saturating_mul(2)).unwrap_or(SECOND / 2);
    let (size, after) = (burst.saturating_add(1), burst.saturating_sub(1));
    let wait = Nanos::new(wait).to_exact_string();
    // writes `100/s` instead of `100/1s`
    let period = nanos.to_exact_string();
    let unit = period.strip_prefix('1').filter(|unit| unit.starts_with(char::is_alphabetic)).unwrap_or(&period);
    let over = format!("over_limit: {{ delay: {{ max_wait: {wait} }} }}");
    let algorithm = format!("algorithm: gcra, rate: {average}/{unit}, burst: {size}, delay_after: {after}, {over}");
    Some(LimitSettings { algorithm, key: vec![source(section, KeyPart::CLIENT_ADDRESS)], more: Vec::new() })
}

fn in_flight(field: &Field<'_>, section: &Section<'_>) -> Option<LimitSettings> {
    name_others(section, &["amount", "sourceCriterion"]);
    let Some(amount) = number(section, "amount").filter(|amount| *amount > 0) else {
        return left_out(field, format_args!("it has no amount above 0{PASS}"));
    };
    let algorithm = format!("algorithm: concurrency, limit: {amount}");
    Some(LimitSettings { algorithm, key: vec![source(section, KeyPart::Word("host"))], more: Vec::new() })
}

/// What a limit counts by.
fn source(of: &Section<'_>, default: KeyPart) -> KeyPart {
    let criterion = get(of, "sourceCriterion");
    let criterion = criterion.and_then(|of| settings(&of, &["ipStrategy", "requestHeaderName", "requestHost"]));
    let Some(criterion) = criterion else { return default };
    if let Some(strategy) = section(&criterion, "ipStrategy") {
        for (name, field) in strategy.fields() {
            let like = if name == "depth" { ": `client_address: { hops: ... }` is like it" } else { "" };
            note(&field, &format!("is not carried over{like}"));
        }
        return KeyPart::CLIENT_ADDRESS;
    }
    match text(&criterion, "requestHeaderName") {
        Some(header) => KeyPart::of_header(header.to_ascii_lowercase()),
        None if flag(&criterion, "requestHost", false) => KeyPart::Word("host"),
        None => default,
    }
}
