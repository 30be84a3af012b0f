//! Kong's declarative configuration: services, their routes, upstreams, and the plugins of each.

use std::collections::{BTreeSet, HashMap};

use super::add_new;
use super::front::rules::{Access, Effects, Rule, ScopedAccess};
use super::front::{GUARD, KeyPart, LimitSettings, Listener, PASS, ProxyConfig, Upstream, Url, denial, key, node};
use super::matches::{HeaderValue, Match, PathMatch, ScopedLimit, all_of, open_prefix_note};
use super::output::scalar;
use super::yaml::{flag, get, left_out, list, name_others, note, notes, number, section, settings, text, texts};
use crate::config::read::{Field, Section};

/// Plugins that refuse requests. tollgate does not carry them over, so more requests pass.
const GUARDS: [&str; 13] = [
    "acl", "basic-auth", "bot-detection", "hmac-auth", "jwt", "key-auth-enc", "ldap-auth", "mtls-auth", "oauth2",
    "opa", "openid-connect", "rate-limiting-advanced", "request-validator",
];

/// Plugins that find the consumer of a request. tollgate does not carry them over, so no limit counts by it.
const CONSUMERS: [&str; 8] =
    ["basic-auth", "hmac-auth", "jwt", "key-auth-enc", "ldap-auth", "mtls-auth", "oauth2", "openid-connect"];

const WINDOWS: [(&str, &str); 4] = [("second", "1s"), ("minute", "1m"), ("hour", "1h"), ("day", "1d")];

// The settings that are read.
const FILE: [&str; 7] = ["_format_version", "_transform", "services", "routes", "upstreams", "plugins", "consumers"];
const SERVICE: [&str; 13] = [
    "name", "id", "tags", "enabled", "url", "protocol", "host", "port", "path", "routes", "plugins", "connect_timeout",
    "read_timeout",
];
const ROUTE: [&str; 12] = [
    "name", "id", "tags", "service", "paths", "hosts", "methods", "headers", "strip_path", "preserve_host", "plugins",
    "protocols",
];
const PLUGIN: [&str; 10] =
    ["name", "id", "enabled", "config", "service", "route", "consumer", "consumer_group", "protocols", "tags"];
const RATE_LIMITING: [&str; 12] = [
    "second", "minute", "hour", "day", "limit_by", "header_name", "error_code", "hide_client_headers", "policy",
    "fault_tolerant", "sync_rate", "redis",
];

/// Whether a file is a configuration of Kong.
pub(super) fn is_of_this_format(top: &Section<'_>) -> bool {
    top.has("_format_version")
}

/// A plugin and its scope.
struct Plugin<'a> {
    name: String,
    field: Field<'a>,
    config: Option<Section<'a>>,
    /// The route or service that shares the plugin's counts; empty for a global plugin.
    scope: String,
}

/// The labels of services and routes, by their kind and by each of their names and ids.
type Labels = HashMap<(&'static str, String), String>;

struct Reader {
    front: ProxyConfig,
    labels: Labels,
    /// Whether paths with special characters are regular expressions, as they were before version 3.
    has_plain_expressions: bool,
    /// The names under which callers send keys, and the number of routes that need no key.
    key_names: Vec<String>,
    without_keys: usize,
}

pub(super) fn read(top: &Field<'_>) -> Option<ProxyConfig> {
    let file = settings(top, &FILE)?;
    let labels = labels(&file);
    let mut plugins = plugins_of(&file, "", &labels);
    for field in list(&file, "services") {
        let service = field.mapping("a mapping");
        plugins.extend(service.iter().flat_map(|of| plugins_of(of, &format!("service {}", label(&field)), &labels)));
    }
    let (front, key_names) = (ProxyConfig::default(), Vec::new());
    let version = text(&file, "_format_version").unwrap_or_default();
    let has_plain_expressions = version.starts_with(['1', '2']);
    let mut reader = Reader { front, labels, has_plain_expressions, key_names, without_keys: 0 };
    for service in list(&file, "services") {
        reader.service(&file, &service, &plugins);
    }
    for route in list(&file, "routes") {
        let service = route.as_mapping().and_then(|route| reference(&route, "service"));
        if service.is_none_or(|service| !reader.labels.contains_key(&("service", service))) {
            note(&route, "is left out: its service is not in this file");
        }
    }
    if let Some(field) = get(&file, "consumers") {
        note(
            &field,
            "is not carried over: list them in the file of `customers.directory`, with the limits of each as its plan",
        );
    }
    if !reader.key_names.is_empty() {
        if reader.without_keys > 0 {
            note(top, "asks for keys on some routes only: here all do, until `customers.anonymous` says otherwise");
        }
        let places = |name: &String| [KeyPart::of_header(name.clone()), KeyPart::Field("query", name.clone())];
        let places: Vec<KeyPart> = reader.key_names.iter().flat_map(places).collect();
        let customers = format!("{{ identify: {}, directory: {{ file: customers.csv }} }}", key(&places));
        reader.front.sections.push(("customers", customers));
    }
    note(top, "names no addresses to listen at: those of kong.conf belong in `listeners`");
    reader.front.listen(Listener::at("0.0.0.0:8080".to_owned()));
    reader.front.finish(top.findings(), "service with routes")
}

/// The name of a service, a route or an upstream: its place in the file where it has none.
fn label(of: &Field<'_>) -> String {
    names_of(of).into_iter().next().unwrap_or_else(|| of.place().path)
}

/// The labels of all services and routes of a file.
fn labels(file: &Section<'_>) -> Labels {
    let services = list(file, "services");
    let of_services = services.iter().filter_map(Field::as_mapping).flat_map(|service| list(&service, "routes"));
    let routes = list(file, "routes").into_iter().chain(of_services).map(|route| ("route", route));
    let all = services.iter().map(|service| ("service", service.clone())).chain(routes);
    all.flat_map(|(kind, of)| names_of(&of).into_iter().map(move |name| ((kind, name), label(&of)))).collect()
}

/// The name and the id of a service, a route or an upstream.
fn names_of(of: &Field<'_>) -> Vec<String> {
    let of = of.as_mapping();
    ["name", "id"].iter().filter_map(|name| text(of.as_ref()?, name)).collect()
}

/// The name or the id in a reference to a service, a route or a consumer.
fn reference(of: &Section<'_>, kind: &str) -> Option<String> {
    let of = get(of, kind)?;
    match of.as_mapping() {
        Some(_) => Some(names_of(&of).into_iter().next().unwrap_or_default()),
        None => Some(of.scalar_value("a name")?.text.into_owned()),
    }
}

/// The plugins in a section. A plugin has the section's `scope`, unless it names its own route or service.
fn plugins_of<'a>(of: &Section<'a>, scope: &str, labels: &Labels) -> Vec<Plugin<'a>> {
    let mut found = Vec::new();
    for field in list(of, "plugins") {
        let Some(plugin) = settings(&field, &PLUGIN) else { continue };
        let name = text(&plugin, "name").unwrap_or_default();
        let scopes = [("consumer", "consumer"), ("consumer_group", "group of consumers")];
        if let Some((_, of)) = scopes.iter().find(|(scope, _)| reference(&plugin, scope).is_some()) {
            note(&field, &format!("is left out: what holds for one {of} is a plan of its own here"));
            continue;
        }
        let own = |kind| reference(&plugin, kind).map(|name| (kind, name));
        let scope = match own("route").or_else(|| own("service")) {
            None => scope.to_owned(),
            Some(of) => match labels.get(&of) {
                Some(label) => format!("{} {label}", of.0),
                None => {
                    note(&field, "is left out: its service or route is not in this file");
                    continue;
                }
            },
        };
        if flag(&plugin, "enabled", true) {
            let protocols = texts(&plugin, "protocols");
            if !protocols.is_empty() && !["http", "https"].iter().all(|one| protocols.iter().any(|own| own == one)) {
                let message = "is not carried over: the plugin holds for all requests here";
                plugin.get("protocols").iter().for_each(|field| note(field, message));
            }
            found.push(Plugin { name, field, config: section(&plugin, "config"), scope });
        }
    }
    found
}

/// The plugins that apply to a route: of those with one name, the first in the first of these scopes.
fn nearest<'p, 'a>(plugins: &[&'p Plugin<'a>], scopes: &[String]) -> Vec<&'p Plugin<'a>> {
    let mut nearest: Vec<&Plugin<'a>> = Vec::new();
    for plugin in scopes.iter().flat_map(|scope| plugins.iter().filter(move |plugin| plugin.scope == *scope)) {
        if nearest.iter().all(|other| other.name != plugin.name) {
            nearest.push(plugin);
        }
    }
    nearest
}

impl Reader {
    fn service(&mut self, file: &Section<'_>, field: &Field<'_>, plugins: &[Plugin<'_>]) -> Option<()> {
        let service = settings(field, &SERVICE)?;
        if !flag(&service, "enabled", true) {
            return left_out(field, "it is not enabled");
        }
        let name = label(field);
        let address = text(&service, "url").unwrap_or_else(|| {
            let part = |of: &str, default: &str| text(&service, of).unwrap_or_else(|| default.to_owned());
            let port = text(&service, "port").map(|port| format!(":{port}")).unwrap_or_default();
            format!("{}://{}{port}{}", part("protocol", "http"), part("host", ""), part("path", ""))
        });
        let Some(url) = Url::parse(&address).filter(|url| !url.authority.is_empty()) else {
            return left_out(field, "only services of http and https are carried over");
        };
        let upstream = self.upstream(file, &service, &url);
        if upstream.is_none() {
            note(field, "refuses requests with 403 here: its upstream has no targets");
        }
        let is_own = |route: &Field<'_>| {
            let of = route.as_mapping().and_then(|route| reference(&route, "service"));
            of.is_some_and(|of| self.labels.get(&("service", of)) == Some(&name))
        };
        let routes: Vec<Field<'_>> =
            list(&service, "routes").into_iter().chain(list(file, "routes").into_iter().filter(is_own)).collect();
        if routes.is_empty() {
            note(field, "is left out: it has no routes");
        }
        for route in &routes {
            self.route(route, &name, upstream.as_deref(), url.path.unwrap_or_default(), plugins);
        }
        Some(())
    }

    /// The upstream of a service; none where it has no targets.
    fn upstream(&mut self, file: &Section<'_>, service: &Section<'_>, url: &Url<'_>) -> Option<String> {
        let host = url.authority.rsplit_once(':').map_or(url.authority, |(host, _)| host);
        let upstreams = list(file, "upstreams");
        let known = upstreams.iter().find(|of| label(of) == host);
        let mut upstream = Upstream::at(url);
        if let Some(known) = known.and_then(|of| settings(of, &["name", "id", "tags", "targets", "algorithm", "slots"]))
        {
            host.clone_into(&mut upstream.name);
            upstream.nodes = list(&known, "targets")
                .iter()
                .filter_map(|target| target.mapping("a mapping"))
                .map(|of| (node(&text(&of, "target").unwrap_or_default(), 8000), number(&of, "weight").unwrap_or(100)))
                .filter(|(_, weight)| *weight > 0)
                .collect();
            let balance = match text(&known, "algorithm").as_deref() {
                Some("least-connections" | "latency") => Some("least_requests"),
                Some("consistent-hashing") => Some("consistent_hash, hash_on: client_address"),
                _ => None,
            };
            upstream.balance = balance.map(str::to_owned);
        }
        let time = |name: &str| number(service, name).map(|time| format!("{time}ms"));
        upstream.timeout("connect", time("connect_timeout"));
        upstream.timeout("first_byte", time("read_timeout"));
        (!upstream.nodes.is_empty()).then(|| self.front.upstream(upstream))
    }

    fn route(
        &mut self,
        field: &Field<'_>,
        service: &str,
        upstream: Option<&str>,
        base: &str,
        plugins: &[Plugin<'_>],
    ) -> Option<()> {
        let route = settings(field, &ROUTE)?;
        let protocols = texts(&route, "protocols");
        if !protocols.is_empty() && protocols.iter().all(|one| one != "http") {
            route.get("protocols").iter().for_each(|field| note(field, GUARD));
        }
        if !flag(&route, "preserve_host", false) {
            note(field, "upstreams see the host that the client asks for");
        }
        let name = label(field);
        let scopes = [format!("route {name}"), format!("service {service}"), String::new()];
        let [own_scope, ..] = &scopes;
        let own = plugins_of(&route, own_scope, &self.labels);
        let plugins: Vec<&Plugin<'_>> = own.iter().chain(plugins).collect();
        let effects = self.effects(&nearest(&plugins, &scopes), service);
        let rank = rank(&route);
        let mut paths = texts(&route, "paths");
        if paths.is_empty() {
            paths.push("/".to_owned());
        }
        for path in paths {
            let Some(matched) = self.prefix(&path) else {
                note(field, &format!("the path {path} is left out: only beginnings of paths are carried over"));
                continue;
            };
            notes(field, open_prefix_note(&path));
            let strip = if flag(&route, "strip_path", true) { path.trim_end_matches('/') } else { "" };
            let rewrite = (strip.to_owned(), base.trim_end_matches('/').to_owned());
            for matches in matches_of(&route, matched) {
                self.front.rules.push(Rule {
                    place: field.key_place(),
                    listeners: BTreeSet::new(),
                    name: names_of(field).into_iter().next().unwrap_or_else(|| service.to_owned()),
                    matches,
                    order: Some((String::new(), rank.clone())),
                    upstreams: upstream.iter().map(|upstream| ((*upstream).to_owned(), 1)).collect(),
                    effects: Effects { rewrite: rewrite.clone(), ..effects.clone() },
                });
            }
        }
        Some(())
    }

    /// The match of a path's beginning; `None` for a regular expression.
    fn prefix(&self, path: &str) -> Option<PathMatch> {
        let is_plain = || path.chars().all(|c| c.is_ascii_alphanumeric() || "-._~/%".contains(c));
        PathMatch::prefix(path).ok().filter(|_| !self.has_plain_expressions || is_plain())
    }

    fn effects(&mut self, plugins: &[&Plugin<'_>], service: &str) -> Effects {
        let mut effects = Effects::default();
        match plugins.iter().find(|plugin| plugin.name == "key-auth") {
            Some(keys) => self.keys(keys),
            None => self.without_keys = self.without_keys.saturating_add(1),
        }
        for plugin in plugins {
            match (plugin.name.as_str(), &plugin.config) {
                ("key-auth", _) => {}
                ("rate-limiting", Some(config)) => {
                    let limit = self.limit(plugin, config, plugins, service);
                    effects.limits.extend(limit.map(ScopedLimit::always));
                }
                ("request-size-limiting", config) => effects.more.push(largest_body(config.as_ref())),
                ("ip-restriction", Some(config)) => {
                    name_others(config, &["allow", "deny", "whitelist", "blacklist"]);
                    let both = |name: &str, former: &str| [texts(config, name), texts(config, former)].concat();
                    let access = Access { allow: both("allow", "whitelist"), deny: both("deny", "blacklist") };
                    effects.access.push(ScopedAccess::always(access));
                }
                ("request-termination", Some(config)) if get(config, "trigger").is_some() => {
                    note(&plugin.field, &format!("is left out: it goes by a header field or a parameter{PASS}"));
                }
                ("request-termination", _) => {
                    note(&plugin.field, "refuses requests with 403 here");
                    effects.access.push(ScopedAccess::always(Access::of_nobody()));
                }
                (name, _) if GUARDS.contains(&name) => note(&plugin.field, &format!("{name} {GUARD}")),
                (name, _) => note(&plugin.field, &format!("{name} is not carried over")),
            }
        }
        effects
    }

    /// The limit of a `rate-limiting` plugin, which applies beside the other `plugins` of a route.
    fn limit(
        &mut self,
        plugin: &Plugin<'_>,
        config: &Section<'_>,
        plugins: &[&Plugin<'_>],
        service: &str,
    ) -> Option<String> {
        let settings = rate_limiting(&plugin.field, config, plugins)?;
        let by_service = text(config, "limit_by").as_deref() == Some("service");
        let of = if by_service && plugin.scope.is_empty() { service } else { &plugin.scope };
        let name = format!("rate-limiting.{}", of.rsplit(' ').next().unwrap_or_default());
        let table = format!("{}/{}", plugin.scope, if by_service { service } else { "" });
        Some(self.front.limit(name.trim_end_matches('.'), &table, settings))
    }

    /// Reads the names under which callers send keys.
    fn keys(&mut self, plugin: &Plugin<'_>) {
        let mut names = Vec::new();
        if let Some(config) = &plugin.config {
            names = texts(config, "key_names");
            name_others(config, &["key_names", "anonymous"]);
            if let Some(anonymous) = get(config, "anonymous") {
                let message = "is not carried over: requests without a key are refused, until `customers.anonymous` says otherwise";
                note(&anonymous, message);
            }
        }
        if names.is_empty() {
            names.push("apikey".to_owned());
        }
        if self.key_names.is_empty() {
            let message =
                "key-auth asks for keys: write customers.csv with a line `credential,customer` for each of them";
            note(&plugin.field, message);
        } else if names != self.key_names {
            note(
                &plugin.field,
                "its key-auth takes keys under its own names only: here all routes take those of all plugins",
            );
        }
        add_new(&mut self.key_names, names);
    }
}

/// The rank of a route: the number of its kinds of conditions, whether it has each kind, whether it has names of hosts without
/// `*` only, the number of header fields, and the length of its longest path.
fn rank(route: &Section<'_>) -> Vec<i64> {
    let (paths, hosts) = (texts(route, "paths"), texts(route, "hosts"));
    let headers = section(route, "headers").map_or(0, |headers| headers.fields().count());
    let conditions = [hosts.len(), headers, paths.len(), texts(route, "methods").len()];
    let kinds = conditions.map(|number| usize::from(number > 0));
    let has_names_only = usize::from(!hosts.is_empty() && !hosts.iter().any(|host| host.contains('*')));
    let longest = paths.iter().map(String::len).max().unwrap_or_default();
    let rank = [&[kinds.iter().sum()][..], &kinds, &[has_names_only, headers, longest]].concat();
    rank.into_iter().map(|number| i64::try_from(number).unwrap_or(i64::MAX)).collect()
}

/// The matches of a route with this path.
fn matches_of(route: &Section<'_>, path: PathMatch) -> Vec<Match> {
    let methods = texts(route, "methods").iter().map(|name| name.to_uppercase()).collect();
    let mut matches = vec![Match { hosts: texts(route, "hosts"), methods, ..Match::of_path(path) }];
    // a request has one of the values of each field
    if let Some(headers) = section(route, "headers") {
        for (name, _) in headers.fields() {
            let of = |value: &String| Match::of_header(name, header_value(value));
            matches = all_of(&matches, &texts(&headers, name).iter().map(of).collect::<Vec<_>>());
        }
    }
    matches
}

/// The condition for a value of a route's header field. Kong compares without case, and searches for the expression behind `~*`.
fn header_value(value: &str) -> HeaderValue {
    match value.strip_prefix("~*") {
        Some(expression) => HeaderValue::Like(format!("(?i).*(?:{expression}).*")),
        None if value.contains(|c: char| c.is_ascii_alphabetic()) => {
            HeaderValue::Like(format!("(?i){}", regex::escape(value)))
        }
        None => HeaderValue::Is(value.to_owned()),
    }
}

/// The setting of a `request-size-limiting` plugin.
fn largest_body(config: Option<&Section<'_>>) -> (&'static str, String) {
    let size = config.and_then(|config| number(config, "allowed_payload_size")).unwrap_or(128);
    let unit = match config.and_then(|config| text(config, "size_unit")).as_deref() {
        Some("bytes") => "B",
        Some("kilobytes") => "KiB",
        _ => "MiB",
    };
    ("max_request_body", format!("{size}{unit}"))
}

/// The settings of a `rate-limiting` plugin, as a limit with fixed windows.
fn rate_limiting(field: &Field<'_>, config: &Section<'_>, plugins: &[&Plugin<'_>]) -> Option<LimitSettings> {
    name_others(config, &RATE_LIMITING);
    let window = |(name, window): &(&str, _)| Some(format!("limit: {}, window: {window}", number(config, name)?));
    let windows: Vec<String> = WINDOWS.iter().filter_map(window).collect();
    let windows = match windows.as_slice() {
        [] => return left_out(field, "of its windows, only `second`, `minute`, `hour` and `day` are carried over"),
        [one] => one.clone(),
        several => format!("windows: [{{ {} }}]", several.join(" }, { ")),
    };
    let key = key_of(field, config, plugins)?;
    if text(config, "policy").is_some_and(|policy| policy != "local") {
        note(field, "counts in this gateway: `mode: shared` counts in the `store` for all of them");
    }
    let hidden = flag(config, "hide_client_headers", false).then(|| ("headers", "hidden".to_owned()));
    let status = number(config, "error_code").filter(|status| (400..600).contains(status)).unwrap_or(429);
    let more = [hidden, denial(status)].into_iter().flatten().collect();
    Some(LimitSettings { algorithm: format!("algorithm: fixed_window, {windows}"), key, more })
}

/// The key of a `rate-limiting` plugin. Consumers are known by `key-auth`, or by a plugin that is not carried over.
fn key_of(field: &Field<'_>, config: &Section<'_>, plugins: &[&Plugin<'_>]) -> Option<Vec<KeyPart>> {
    let has_keys = plugins.iter().any(|plugin| plugin.name == "key-auth");
    Some(match text(config, "limit_by").as_deref().unwrap_or("consumer") {
        "consumer" | "credential" if has_keys => vec![KeyPart::Word("customer")],
        "consumer" | "credential" => {
            if let Some(Plugin { name, .. }) = plugins.iter().find(|plugin| CONSUMERS.contains(&plugin.name.as_str())) {
                note(field, &format!("counts by address: Kong counts by the consumers that {name} finds"));
            }
            vec![KeyPart::CLIENT_ADDRESS]
        }
        "ip" => vec![KeyPart::CLIENT_ADDRESS],
        "service" => Vec::new(),
        "header" => {
            note(field, "requests without the field share one count: Kong counts them by address");
            vec![KeyPart::of_header(text(config, "header_name").unwrap_or_default().to_ascii_lowercase())]
        }
        other => return left_out(field, format_args!("no key is like limit_by {}", scalar(other))),
    })
}
