//! Envoy's static configuration: routes of HTTP listeners, clusters, and local rate limits.

use std::collections::BTreeSet;

use super::front::rules::{Effects, Rule, VirtualHost};
use super::front::{GUARD, LimitSettings, Listener, PASS, ProxyConfig, Upstream, denial};
use super::matches::{HeaderValue, Match, PathMatch, ScopedLimit, open_prefix_note};
use super::output::scalar;
use super::yaml::{flag, get, left_out, list, name_others, note, notes, number, section, settings, text, texts};
use crate::config::read::{Field, Section};

const LOCAL: &str = "envoy.filters.http.local_ratelimit";
/// The filter that asks a rate limit service. `tollgate import` reads that service's own files.
const GLOBAL: &str = "envoy.filters.http.ratelimit";
/// Filters that refuse requests. tollgate does not carry them over, so more requests pass.
const GUARDS: [&str; 13] = [
    "http.ext_authz", "http.jwt_authn", "http.rbac", "http.basic_auth", "http.oauth2", "http.csrf",
    "http.admission_control", "http.rate_limit_quota", "network.rbac", "network.ext_authz", "network.ratelimit",
    "network.local_ratelimit", "network.connection_limit",
];

/// Whether a file is a configuration of Envoy.
pub(super) fn is_of_this_format(top: &Section<'_>) -> bool {
    top.has("static_resources")
}

/// The names of the filters that limit, each with its limit, if it has one.
type Limits = Vec<(String, Option<String>)>;

struct Reader<'a> {
    clusters: Vec<Section<'a>>,
    /// The address of the listener that is read.
    listener: String,
    front: ProxyConfig,
}

pub(super) fn read(top: &Field<'_>) -> Option<ProxyConfig> {
    let file = settings(top, &["static_resources", "admin", "node"])?;
    let resources = settings(&get(&file, "static_resources")?, &["listeners", "clusters"])?;
    let clusters = list(&resources, "clusters").iter().filter_map(|cluster| cluster.mapping("a mapping")).collect();
    let mut reader = Reader { clusters, listener: String::new(), front: ProxyConfig::default() };
    for listener in list(&resources, "listeners") {
        reader.listener(&listener);
    }
    reader.front.finish(top.findings(), "route to a cluster")
}

/// The kind of a filter: Envoy goes by the type of its settings, and its name is free.
fn filter_kind(name: &str, settings: Option<&Section<'_>>) -> String {
    let of_type = settings.and_then(|settings| text(settings, "@type"));
    let kind =
        of_type.as_deref().and_then(|of_type| of_type.split_once(".filters.")?.1.rsplit_once(".v")).map(|of| of.0);
    kind.map_or_else(|| name.to_owned(), |kind| format!("envoy.filters.{kind}"))
}

fn is_guard(kind: &str) -> bool {
    kind.strip_prefix("envoy.filters.").is_some_and(|kind| GUARDS.contains(&kind))
}

/// The address in `address: { socket_address: ... }`, or the path in `address: { pipe: ... }`.
fn address(of: &Section<'_>) -> Option<String> {
    let address = section(of, "address")?;
    if let Some(pipe) = section(&address, "pipe") {
        return text(&pipe, "path").filter(|path| path.starts_with('/')).map(|path| format!("unix:{path}"));
    }
    let socket = section(&address, "socket_address")?;
    let (host, port) = (text(&socket, "address")?, number(&socket, "port_value")?);
    Some(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
}

impl Reader<'_> {
    fn listener(&mut self, field: &Field<'_>) -> Option<()> {
        let listener = settings(field, &["name", "address", "filter_chains"])?;
        let Some(own) = address(&listener) else {
            return left_out(field, "it has no socket_address or pipe");
        };
        let before = self.front.rules.len();
        self.listener.clone_from(&own);
        for chain in list(&listener, "filter_chains") {
            let chain = settings(&chain, &["filters", "name", "filter_chain_match", "transport_socket"])?;
            get(&chain, "filter_chain_match").iter().for_each(|field| note(field, GUARD));
            let tls = section(&chain, "transport_socket").and_then(|socket| section(&socket, "typed_config"));
            let asks = tls.is_some_and(|tls| flag(&tls, "require_client_certificate", false));
            let what = if asks { GUARD } else { "is not carried over" };
            get(&chain, "transport_socket").iter().for_each(|field| note(field, what));
            for filter in list(&chain, "filters") {
                let of = filter.mapping("a mapping")?;
                let is_manager = |settings: &Section<'_>| {
                    text(&of, "name").is_some_and(|name| name.ends_with("http_connection_manager"))
                        || text(settings, "@type").is_some_and(|of_type| of_type.ends_with(".HttpConnectionManager"))
                };
                let config = section(&of, "typed_config");
                let kind = filter_kind(&text(&of, "name").unwrap_or_default(), config.as_ref());
                match config.filter(is_manager) {
                    Some(manager) => _ = self.manager(&filter, &manager),
                    None if is_guard(&kind) => note(&filter, &format!("{kind} {GUARD}")),
                    None => note(&filter, "is left out: only HTTP is carried over"),
                }
            }
        }
        if self.front.rules.iter().skip(before).any(|rule| !rule.upstreams.is_empty()) {
            if before > 0 {
                note(field, "has routes that other listeners take, too: tell them apart by hosts");
            }
            notes(field, self.front.listen(Listener::at(own)));
        }
        Some(())
    }

    fn manager(&mut self, field: &Field<'_>, manager: &Section<'_>) -> Option<()> {
        const READ: [&str; 9] = [
            "@type", "stat_prefix", "codec_type", "route_config", "http_filters", "access_log", "use_remote_address",
            "generate_request_id", "server_name",
        ];
        name_others(manager, &READ);
        let limits = self.filters(manager)?;
        let Some(routes) = get(manager, "route_config") else {
            return left_out(field, "its routes are not in this file");
        };
        for host in list(&settings(&routes, &["name", "virtual_hosts"])?, "virtual_hosts") {
            self.virtual_host(&host, &limits);
        }
        Some(())
    }

    /// The limits of the HTTP filters.
    fn filters(&mut self, manager: &Section<'_>) -> Option<Limits> {
        let mut limits = Limits::new();
        for filter in list(manager, "http_filters") {
            let of = filter.mapping("a mapping")?;
            let (name, settings) = (text(&of, "name").unwrap_or_default(), section(&of, "typed_config"));
            let kind = filter_kind(&name, settings.as_ref());
            let is_disabled = flag(&of, "disabled", false);
            if is_disabled {
                note(&filter, "is left out: it is disabled");
            }
            match kind.as_str() {
                // a virtual host or a route may enable it
                LOCAL if is_disabled => limits.push((name, None)),
                LOCAL => limits.push((name, self.limit(&filter, &settings?))),
                "envoy.filters.http.router" => {}
                _ if is_disabled => {}
                GLOBAL => {
                    note(&filter, "is not carried over: import the files of its service, or ask tollgate in its place")
                }
                kind if is_guard(kind) => note(&filter, &format!("{kind} {GUARD}")),
                kind => note(&filter, &format!("{kind} is not carried over")),
            }
        }
        Some(limits)
    }

    fn virtual_host(&mut self, field: &Field<'_>, limits: &Limits) -> Option<()> {
        let host = settings(field, &["name", "domains", "routes", "typed_per_filter_config", "require_tls"])?;
        if text(&host, "require_tls").is_some_and(|required| required != "NONE") {
            host.get("require_tls").iter().for_each(|field| note(field, GUARD));
        }
        let limits = self.own_limits(&host, limits);
        let Some(hosts) = hosts_of(&texts(&host, "domains")) else {
            return left_out(field, "of hosts with `*`, only those that begin with `*.` are carried over");
        };
        let name = text(&host, "name").unwrap_or_default();
        for route in list(&host, "routes") {
            self.route(&route, &name, &hosts, &limits, &field.place().path);
        }
        self.front.virtual_hosts.push(VirtualHost {
            place: field.key_place(),
            name,
            listeners: BTreeSet::from([self.listener.clone()]),
            takes_any: hosts.is_empty(),
            hosts,
        });
        Some(())
    }

    /// The limits of a virtual host or a route, which may set others in place of the outer limits.
    fn own_limits(&mut self, of: &Section<'_>, outer: &Limits) -> Limits {
        let mut limits = outer.clone();
        for (name, field) in section(of, "typed_per_filter_config").iter().flat_map(Section::fields) {
            let Some(outer) = field.mapping("a mapping") else { continue };
            let is_wrapped = text(&outer, "@type").is_some_and(|of_type| of_type.ends_with(".FilterConfig"));
            let is_disabled = is_wrapped && flag(&outer, "disabled", false);
            let settings = if is_wrapped { section(&outer, "config") } else { Some(outer) };
            let is_local = filter_kind(name, settings.as_ref()) == LOCAL;
            let is_limit = limits.iter().any(|(filter, _)| filter == name);
            match settings {
                _ if is_disabled && is_limit => set(&mut limits, name, None),
                Some(settings) if is_local && is_limit => set(&mut limits, name, self.limit(&field, &settings)),
                Some(_) if is_local => note(&field, "is left out: no HTTP filter has its name"),
                _ => note(&field, "is not carried over"),
            }
        }
        limits
    }

    fn route(
        &mut self,
        field: &Field<'_>,
        host: &str,
        hosts: &[String],
        limits: &Limits,
        sequence: &str,
    ) -> Option<()> {
        let route =
            settings(field, &["name", "match", "route", "direct_response", "typed_per_filter_config", "metadata"])?;
        let status = section(&route, "direct_response").and_then(|response| number(&response, "status"));
        let is_refused = status.is_some_and(|status| (400..600).contains(&status));
        let action = section(&route, "route").filter(|_| !is_refused);
        let condition = section(&route, "match").filter(|_| is_refused || action.is_some());
        let Some(condition) = condition else { return left_out(field, "it leads to no cluster") };
        let Some(matches) = matches(&condition, hosts) else {
            let own = section(&route, "typed_per_filter_config");
            let lost: Vec<&str> = own.iter().flat_map(Section::fields).map(|(name, _)| name).collect();
            let passes = match lost.as_slice() {
                _ if is_refused => PASS.to_owned(),
                [] => String::new(),
                lost => format!(": its requests pass here without its {}", lost.join(", ")),
            };
            let message = "of `match`, only prefixes, exact paths and exact headers are carried over";
            return left_out(field, format_args!("{message}{passes}"));
        };
        let rewrite = action.as_ref().and_then(|action| get(action, "prefix_rewrite"));
        if let Some(rewrite) = rewrite.filter(|_| get(&condition, "path").is_some()) {
            note(&rewrite, "is left out with its route: of rewrites, only those of prefixes are carried over");
            return None;
        }
        if is_refused && status != Some(403) {
            note(field, "refuses requests with 403 here");
        }
        notes(field, text(&condition, "prefix").and_then(|prefix| open_prefix_note(&prefix)));
        let (upstreams, effects) = match action {
            None => (Vec::new(), Effects::refusal()),
            Some(action) => {
                name_unread(&action);
                let limits = self
                    .own_limits(&route, limits)
                    .into_iter()
                    .filter_map(|(_, limit)| limit)
                    .map(ScopedLimit::always)
                    .collect();
                let rewrite = rewrite_of(&condition, &action);
                (self.upstreams_of(field, &action)?, Effects { limits, rewrite, ..Effects::default() })
            }
        };
        self.front.rules.push(Rule {
            place: field.key_place(),
            listeners: BTreeSet::from([self.listener.clone()]),
            name: text(&route, "name").unwrap_or_else(|| host.to_owned()),
            matches,
            order: Some((sequence.to_owned(), Vec::new())),
            upstreams,
            effects,
        });
        Some(())
    }

    /// The upstreams of a route's action with their weights. `None` if one of them is left out.
    fn upstreams_of(&mut self, field: &Field<'_>, action: &Section<'_>) -> Option<Vec<(String, u64)>> {
        let Some(weighted) = section(action, "weighted_clusters") else {
            let Some(name) = text(action, "cluster") else {
                return left_out(field, "it names no `cluster` or `weighted_clusters`");
            };
            return Some(vec![(self.cluster(field, &name)?, 1)]);
        };
        let mut upstreams = Vec::new();
        for share in list(&weighted, "clusters") {
            let of = settings(&share, &["name", "weight"])?;
            let weight = number(&of, "weight").unwrap_or(0);
            let upstream = self.cluster(&share, &text(&of, "name").unwrap_or_default())?;
            upstreams.extend((weight > 0).then_some((upstream, weight)));
        }
        Some(upstreams)
    }

    /// The name of the cluster's upstream, which this function adds if it is new.
    fn cluster(&mut self, from: &Field<'_>, name: &str) -> Option<String> {
        let Some(cluster) = self.clusters.iter().find(|cluster| text(cluster, "name").as_deref() == Some(name)) else {
            return left_out(from, format_args!("there is no cluster {name}"));
        };
        name_others(
            cluster,
            &[
                "name", "type", "connect_timeout", "load_assignment", "lb_policy", "transport_socket",
                "dns_lookup_family",
            ],
        );
        let mut upstream = Upstream { name: name.to_owned(), nodes: nodes(cluster), ..Upstream::default() };
        if upstream.nodes.is_empty() {
            return left_out(from, format_args!("the cluster {name} has no addresses in this file"));
        }
        upstream.tls = get(cluster, "transport_socket").map(|_| String::new());
        let balance = match text(cluster, "lb_policy").as_deref() {
            Some("LEAST_REQUEST") => Some("least_requests"),
            Some("RANDOM") => Some("random"),
            Some("RING_HASH" | "MAGLEV") => Some("consistent_hash, hash_on: client_address"),
            _ => None,
        };
        upstream.balance = balance.map(str::to_owned);
        upstream.timeout("connect", text(cluster, "connect_timeout").map(|time| scalar(&time)));
        Some(self.front.upstream(upstream))
    }

    /// Adds the limit of a local rate limit filter; `None` where the filter limits nothing.
    fn limit(&mut self, field: &Field<'_>, config: &Section<'_>) -> Option<String> {
        const EACH: &str = "local_rate_limit_per_downstream_connection";
        const READ: [&str; 7] =
            ["@type", "stat_prefix", "token_bucket", "filter_enabled", "filter_enforced", "status", EACH];
        name_others(config, &READ);
        if flag(config, EACH, false) {
            return left_out(field, "it limits each connection by itself");
        }
        let bucket = section(config, "token_bucket")?;
        let max = number(&bucket, "max_tokens")?;
        let fill = number(&bucket, "tokens_per_fill").unwrap_or(1);
        let every = text(&bucket, "fill_interval").unwrap_or_default();
        let percent = |name: &str| section(config, name).and_then(|of| fraction(&of)).unwrap_or(0.0);
        let (enabled, enforced) = (percent("filter_enabled"), percent("filter_enforced"));
        if enabled == 0.0 {
            return left_out(field, "its filter_enabled is 0 %");
        }
        if enabled < 100.0 || (enforced > 0.0 && enforced < 100.0) {
            note(field, "holds for all requests: `enabled_percent` goes by keys");
        }
        let shadow = (enforced == 0.0).then(|| ("shadow", "true".to_owned()));
        let name = text(config, "stat_prefix").unwrap_or_else(|| "local".to_owned());
        let algorithm = format!("algorithm: token_bucket, rate: {fill}/{every}, burst: {max}");
        let more = [shadow, denial(status_of(config))].into_iter().flatten().collect();
        let settings = LimitSettings { algorithm, key: Vec::new(), more };
        // each filter has its own bucket
        let mark = field.mark();
        Some(self.front.limit(&name, &format!("{}:{}", mark.line, mark.column), settings))
    }
}

/// Sets the limit of the filters with this name.
fn set(limits: &mut Limits, name: &str, limit: Option<String>) {
    limits.iter_mut().filter(|(filter, _)| filter == name).for_each(|(_, known)| known.clone_from(&limit));
}

/// Adds notes about the settings of a route's action that are not carried over.
fn name_unread(action: &Section<'_>) {
    const HOST: &str = "is not carried over: upstreams see the host that the client asks for";
    const UNREAD: [(&str, &str); 3] = [
        ("timeout", "is not carried over: write it into the `timeouts` of the upstream"),
        ("host_rewrite_literal", HOST),
        ("auto_host_rewrite", HOST),
    ];
    name_others(action, &[["cluster", "weighted_clusters", "prefix_rewrite"], UNREAD.map(|of| of.0)].concat());
    for (name, message) in UNREAD {
        get(action, name).iter().for_each(|field| note(field, message));
    }
}

/// The beginning of the paths that a route rewrites, and the one in its place; both are empty without a rewrite.
fn rewrite_of(condition: &Section<'_>, action: &Section<'_>) -> (String, String) {
    let prefix = text(action, "prefix_rewrite");
    let matched = text(condition, "prefix").or_else(|| text(condition, "path_separated_prefix"));
    let strip = prefix.as_ref().and(matched).unwrap_or_default();
    (strip.trim_end_matches('/').to_owned(), prefix.unwrap_or_default().trim_end_matches('/').to_owned())
}

/// The addresses of a cluster with their weights: those that get requests while all servers are up.
fn nodes(cluster: &Section<'_>) -> Vec<(String, u64)> {
    let mut nodes = Vec::new();
    let assignment = get(cluster, "load_assignment").and_then(|of| settings(&of, &["cluster_name", "endpoints"]));
    for group in assignment.iter().flat_map(|of| list(of, "endpoints")) {
        let Some(group) = settings(&group, &["locality", "priority", "lb_endpoints"]) else { continue };
        let is_spare = number(&group, "priority").is_some_and(|priority| priority > 0);
        for field in list(&group, "lb_endpoints") {
            let Some(node) = field.mapping("a mapping") else { continue };
            let health = text(&node, "health_status");
            if is_spare || health.is_some_and(|health| !["HEALTHY", "UNKNOWN", "DEGRADED"].contains(&health.as_str())) {
                note(&field, "is left out: it gets no requests while others are up");
                continue;
            }
            name_others(&node, &["endpoint", "health_status", "load_balancing_weight"]);
            let endpoint = get(&node, "endpoint").and_then(|of| settings(&of, &["address"]));
            match endpoint.and_then(|of| address(&of)) {
                Some(address) => nodes.push((address, number(&node, "load_balancing_weight").unwrap_or(1))),
                None => note(&field, "is left out: it has no socket_address or pipe"),
            }
        }
    }
    nodes
}

/// The status of denials by a local rate limit filter.
fn status_of(config: &Section<'_>) -> u64 {
    let code = section(config, "status").and_then(|status| get(&status, "code"));
    let read = |code: &Field<'_>| {
        let status = status_code(&code.scalar_value("a status")?.text);
        if status.is_none() {
            note(code, "is not carried over: denials are answered 429");
        }
        status
    };
    code.as_ref().and_then(read).filter(|status| (400..600).contains(status)).unwrap_or(429)
}

/// Reads a status as a number, or by its name in Envoy, like `ServiceUnavailable`.
fn status_code(text: &str) -> Option<u64> {
    let has_name = |code: &u16| {
        let reason = http::StatusCode::from_u16(*code).ok().and_then(|status| status.canonical_reason());
        reason.is_some_and(|reason| reason.chars().filter(char::is_ascii_alphanumeric).eq(text.chars()))
    };
    text.parse().ok().or_else(|| (100..600).find(has_name).map(u64::from))
}

/// The percentage in `default_value: { numerator, denominator }`.
fn fraction(of: &Section<'_>) -> Option<f64> {
    let value = section(of, "default_value")?;
    let whole = match text(&value, "denominator").as_deref() {
        Some("TEN_THOUSAND") => 10_000,
        Some("MILLION") => 1_000_000,
        _ => 100_u32,
    };
    let part = u32::try_from(number(&value, "numerator")?).ok()?;
    Some(100.0 * f64::from(part) / f64::from(whole))
}

/// The match of a route; `None` where no tollgate route can match the same requests.
fn matches(condition: &Section<'_>, hosts: &[String]) -> Option<Match> {
    const READ: [&str; 4] = ["prefix", "path", "path_separated_prefix", "headers"];
    if condition.fields().any(|(name, _)| !READ.contains(&name)) {
        return None;
    }
    let prefix = text(condition, "prefix").or_else(|| text(condition, "path_separated_prefix"));
    let path = match (prefix, text(condition, "path")) {
        (Some(prefix), _) => PathMatch::prefix(&prefix).ok()?,
        (None, path) => PathMatch::exact(&path?).ok()?,
    };
    let (mut headers, mut methods) = (Vec::new(), Vec::new());
    for header in list(condition, "headers") {
        let of = header.mapping("a mapping")?;
        let name = text(&of, "name")?;
        let string = section(&of, "string_match");
        let others = |of: &Section<'_>, known: &[&str]| of.fields().any(|(name, _)| !known.contains(&name));
        // like `invert_match` or `ignore_case`, which match other requests
        if others(&of, &["name", "exact_match", "string_match", "present_match"])
            || string.as_ref().is_some_and(|string| others(string, &["exact"]))
        {
            return None;
        }
        let exact = text(&of, "exact_match").or_else(|| text(string.as_ref()?, "exact"));
        match (name.as_str(), exact, flag(&of, "present_match", false)) {
            (":method", Some(method), _) => methods.push(method),
            (name, None, true) => headers.push((name.to_ascii_lowercase(), HeaderValue::Any)),
            (name, Some(value), _) if !name.starts_with(':') => {
                headers.push((name.to_ascii_lowercase(), HeaderValue::Is(value)));
            }
            _ => return None,
        }
    }
    Some(Match { hosts: hosts.to_vec(), path, methods, headers })
}

/// The hosts of a virtual host, without ports; empty where it takes any. `None` where a route cannot have one of them.
fn hosts_of(domains: &[String]) -> Option<Vec<String>> {
    if domains.iter().any(|domain| domain == "*") {
        return Some(Vec::new());
    }
    let without_port = |domain: &String| domain.split(':').next().unwrap_or(domain).to_ascii_lowercase();
    let hosts: BTreeSet<String> = domains.iter().map(without_port).collect();
    let is_known = |host: &String| !host.ends_with('*') && (!host.starts_with('*') || host.starts_with("*."));
    hosts.iter().all(is_known).then(|| hosts.into_iter().collect())
}
