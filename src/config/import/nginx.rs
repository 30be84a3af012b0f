//! nginx's configuration: servers and locations that proxy, with `limit_req` and `limit_conn`.
//!
//! Every directive is carried over, or describes what tollgate does anyway, or gets a note.

use std::collections::{HashMap, HashSet};

use self::syntax::Directive;
use self::zones::Zone;
use super::front::{ProxyConfig, Route, Upstream, node, upstream_name, url};
use super::matches::{Match, PathMatch, ScopedLimit};
use super::{Names, scalar};
use crate::config::findings::Findings;
use crate::config::problem::Problem;
use crate::config::values::check_name;

mod syntax;
mod zones;

/// Directives that need no note: tollgate does the same anyway, or differs only in ways that requests do not show.
const UNNEEDED: [&str; 14] = [
    "events",
    "worker_processes",
    "worker_rlimit_nofile",
    "pid",
    "user",
    "daemon",
    "master_process",
    "sendfile",
    "tcp_nopush",
    "tcp_nodelay",
    "keepalive",
    "proxy_http_version",
    "limit_req_log_level",
    "limit_conn_log_level",
];

/// Directives that other functions of this module read.
const READ: [&str; 18] = [
    "server",
    "upstream",
    "location",
    "map",
    "geo",
    "listen",
    "server_name",
    "ssl_certificate",
    "ssl_certificate_key",
    "proxy_pass",
    "limit_req",
    "limit_req_zone",
    "limit_req_status",
    "limit_req_dry_run",
    "limit_conn",
    "limit_conn_zone",
    "limit_conn_status",
    "client_max_body_size",
];

/// The settings about limits that apply at a level (`http`, `server` or `location`), its own or inherited ones.
#[derive(Clone)]
struct Limits<'d> {
    requests: Vec<&'d Directive>,
    connections: Vec<&'d Directive>,
    request_status: u64,
    connection_status: u64,
    dry_run: bool,
    /// Whether upstreams get the host that the client asks for.
    keeps_host: bool,
    /// The largest body of a request, if the level bounds it.
    max_body: Option<String>,
    /// The first name of the server around it.
    server_name: &'d str,
}

struct Reader<'d, 'f> {
    findings: &'f Findings,
    zones: HashMap<String, Zone>,
    /// The directives `map` and `geo`, by the variable that they set.
    variables: HashMap<&'d str, &'d Directive>,
    /// The addresses of each server with routes so far.
    addresses: Vec<HashSet<String>>,
    /// Whether a server so far takes any host.
    has_default: bool,
    front: ProxyConfig,
    names: &'f mut Names,
}

/// Whether a text is a configuration of nginx.
pub(super) fn is_of_this_format(text: &str) -> bool {
    const BLOCKS: [&str; 5] = ["http", "server", "upstream", "events", "limit_req_zone"];
    let words = text
        .lines()
        .filter_map(|line| line.split(|c: char| c.is_whitespace() || c == '{').find(|word| !word.is_empty()));
    let first = words.filter(|word| !word.starts_with('#'));
    let has_end = || text.contains(';') || text.contains('}');
    has_end() && first.into_iter().any(|word| BLOCKS.contains(&word))
}

pub(super) fn read(text: &str, findings: &Findings, names: &mut Names) -> Option<ProxyConfig> {
    let directives = match syntax::parse(text) {
        Ok(directives) => directives,
        Err((mark, message)) => {
            findings.add(Problem::error(findings.place(mark, ""), message));
            return None;
        }
    };
    let mut reader = Reader {
        findings,
        zones: HashMap::new(),
        variables: HashMap::new(),
        addresses: Vec::new(),
        has_default: false,
        front: ProxyConfig::default(),
        names,
    };
    let http: Vec<&Directive> = directives
        .iter()
        .flat_map(|top| if top.name() == "http" { top.block().iter().collect() } else { vec![top] })
        .collect();
    reader.define(&http);
    let limits = Limits {
        requests: Vec::new(),
        connections: Vec::new(),
        request_status: 503,
        connection_status: 503,
        dry_run: false,
        keeps_host: false,
        max_body: None,
        server_name: "",
    };
    let limits = reader.level(&http, &limits);
    let servers: Vec<&Directive> = http.iter().copied().filter(|one| one.name() == "server").collect();
    let defaults = defaults(&servers);
    for (position, server) in servers.iter().enumerate() {
        let own = listens(server);
        let is_default = |(_, address): &(_, String)| defaults.get(address) == Some(&position);
        let (any, all) = (own.iter().any(is_default), own.iter().all(is_default));
        reader.server(server, &limits, any, all);
    }
    if reader.front.routes.is_empty() {
        let message = "holds no location that proxies: there is nothing to limit";
        findings.add(Problem::error(findings.place(crate::config::Mark::START, ""), message));
        return None;
    }
    Some(reader.front)
}

/// The `listen` directives of a server, each with its address; the server itself where it has none.
fn listens(server: &Directive) -> Vec<(&Directive, String)> {
    let listens = server.block().iter().filter(|one| one.name() == "listen");
    let listens: Vec<_> = listens.map(|one| (one, node(one.argument(), 80))).collect();
    if listens.is_empty() { vec![(server, "0.0.0.0:80".to_owned())] } else { listens }
}

/// The position of the default server of each address: the one that says so, else the first.
fn defaults(servers: &[&Directive]) -> HashMap<String, usize> {
    let mut defaults = HashMap::new();
    for (position, server) in servers.iter().enumerate() {
        for (listen, address) in listens(server) {
            match listen.arguments().iter().any(|word| word == "default_server" || word == "default") {
                true => _ = defaults.insert(address, position),
                false => _ = defaults.entry(address).or_insert(position),
            }
        }
    }
    defaults
}

impl<'d> Reader<'d, '_> {
    fn note(&self, of: &Directive, message: &str) {
        let place = self.findings.place(of.mark, of.name());
        self.findings.add(Problem::warning(place, message));
    }

    fn error(&self, of: &Directive, message: &str) {
        self.findings.add(Problem::error(self.findings.place(of.mark, of.name()), message));
    }

    /// Reads the variables, zones and upstreams that other directives refer to.
    fn define(&mut self, http: &[&'d Directive]) {
        for of in http.iter().filter(|of| matches!(of.name(), "map" | "geo")) {
            let set = of.arguments().last().map_or("", String::as_str);
            self.variables.insert(set.trim_start_matches('$'), of);
        }
        for of in http {
            match of.name() {
                "limit_req_zone" | "limit_conn_zone" => self.zone(of),
                "upstream" => self.upstream(of),
                _ => {}
            }
        }
    }

    fn upstream(&mut self, of: &Directive) {
        if let Err(invalid) = check_name(of.argument()) {
            return self.error(of, &invalid.message);
        }
        if self.front.upstreams.iter().any(|upstream| upstream.name == of.argument()) {
            return self.error(of, "has the name of another one before");
        }
        let (mut nodes, mut more) = (Vec::new(), String::new());
        for one in of.block() {
            match one.name() {
                "server" => {
                    let is_spare = |word: &String| ["backup", "down"].contains(&word.as_str());
                    if one.arguments().iter().any(is_spare) {
                        self.note(one, "is left out: it gets no requests while others are up");
                        continue;
                    }
                    let weight = one.arguments().iter().find_map(|word| word.strip_prefix("weight="));
                    let others = one.arguments().iter().skip(1).any(|word| !word.starts_with("weight="));
                    if others {
                        self.note(one, "only the address and the weight are carried over");
                    }
                    nodes.push((node(one.argument(), 80), weight.and_then(|weight| weight.parse().ok()).unwrap_or(1)));
                }
                "least_conn" => more = ", balance: least_requests".to_owned(),
                "ip_hash" => more = ", balance: consistent_hash, hash_on: client_address".to_owned(),
                "random" => more = ", balance: random".to_owned(),
                name if UNNEEDED.contains(&name) => {}
                _ => self.note(one, "is not carried over"),
            }
        }
        if nodes.is_empty() {
            return self.error(of, "has no server");
        }
        self.front.upstreams.push(Upstream { name: of.argument().to_owned(), nodes, more });
    }

    /// The settings of a level, which inherits from `outer`. Adds notes about all directives that are not carried over.
    fn level(&self, block: &[&'d Directive], outer: &Limits<'d>) -> Limits<'d> {
        let all = |name: &str| block.iter().copied().filter(|one| one.name() == name).collect::<Vec<_>>();
        let last = |name: &str| all(name).last().map(|one| one.argument());
        let status = |name: &str, outer: u64| last(name).and_then(|status| status.parse().ok()).unwrap_or(outer);
        let or = |own: Vec<&'d Directive>, outer: &Vec<&'d Directive>| if own.is_empty() { outer.clone() } else { own };
        let sets_headers = all("proxy_set_header");
        let is_kept = |one: &&Directive| {
            one.argument().eq_ignore_ascii_case("host")
                && ["$host", "$http_host"].contains(&one.arguments().last().map_or("", String::as_str))
        };
        for one in block {
            match one.name() {
                "listen" | "server_name" | "proxy_pass" if one.block.is_some() => {
                    self.error(one, "has no `;` at its end");
                }
                name if READ.contains(&name) || UNNEEDED.contains(&name) => {}
                "proxy_set_header" if is_kept(one) || is_told_anyway(one) => {}
                "include" => self.note(one, "is not followed: import what `nginx -T` prints"),
                _ => self.note(one, "is not carried over"),
            }
        }
        Limits {
            requests: or(all("limit_req"), &outer.requests),
            connections: or(all("limit_conn"), &outer.connections),
            request_status: status("limit_req_status", outer.request_status),
            connection_status: status("limit_conn_status", outer.connection_status),
            dry_run: last("limit_req_dry_run").map_or(outer.dry_run, |word| word == "on"),
            max_body: match last("client_max_body_size") {
                None => outer.max_body.clone(),
                Some(text) => self.size(text, &all("client_max_body_size")),
            },
            keeps_host: if sets_headers.is_empty() { outer.keeps_host } else { sets_headers.iter().any(is_kept) },
            server_name: outer.server_name,
        }
    }

    /// Formats a size for tollgate; `None` for 0, which stands for no bound.
    fn size(&self, text: &str, said: &[&Directive]) -> Option<String> {
        let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
        let unit = match text.get(digits.len()..)?.to_ascii_lowercase().as_str() {
            "" => "B",
            "k" => "KiB",
            "m" => "MiB",
            "g" => "GiB",
            _ => "",
        };
        match (digits.parse::<u64>(), unit) {
            (Ok(0), _) => None,
            (Ok(number), "B" | "KiB" | "MiB" | "GiB") => Some(format!("{number}{unit}")),
            _ => {
                said.iter().for_each(|one| self.error(one, "is no size"));
                None
            }
        }
    }

    /// Adds the listeners of a server.
    fn listeners(&mut self, server: &'d Directive) {
        let all = |name: &'static str| server.block().iter().filter(move |one| one.name() == name);
        let file = |name| all(name).next().map(|one| scalar(one.argument()));
        for (one, address) in listens(server) {
            let is_tls = one.name() == "listen" && one.arguments().iter().any(|word| word == "ssl");
            let more = match (is_tls, file("ssl_certificate"), file("ssl_certificate_key")) {
                (true, Some(cert), Some(key)) => format!(", tls: {{ certificates: [{{ cert: {cert}, key: {key} }}] }}"),
                (true, ..) => {
                    self.error(one, "speaks TLS, and the server names no ssl_certificate and ssl_certificate_key");
                    continue;
                }
                (false, ..) => String::new(),
            };
            match self.front.listeners.iter().find(|(known, _)| *known == address) {
                None => self.front.listeners.push((address, more)),
                Some((_, known)) if *known == more => {}
                Some(_) => self.note(one, "only the certificate of the first server at this address is carried over"),
            }
        }
    }

    /// Reads a server. It is the default at one of its addresses (`is_default`), or at all of them (`is_default_at_all`).
    fn server(&mut self, server: &'d Directive, outer: &Limits<'d>, is_default: bool, is_default_at_all: bool) {
        let block: Vec<&Directive> = server.block().iter().collect();
        let all = |name: &'static str| block.iter().copied().filter(move |one| one.name() == name);
        let limits = Limits {
            server_name: all("server_name").next().map_or("", Directive::argument),
            ..self.level(&block, outer)
        };
        let mut hosts = Vec::new();
        for name in all("server_name").flat_map(Directive::arguments) {
            match name.strip_prefix('.') {
                _ if name == "_" || name.is_empty() => {}
                _ if name.starts_with('~') || name.ends_with(".*") => {
                    self.note(server, &format!("the name {name} is left out"))
                }
                Some(domain) => hosts.extend([domain.to_owned(), format!("*.{domain}")]),
                None => hosts.push(name.clone()),
            }
        }
        let takes_any = hosts.is_empty() || (is_default_at_all && !self.has_default);
        if hosts.is_empty() && !is_default {
            return self.note(server, "is left out: it names no host, and is the default at none of its addresses");
        }
        if is_default && !takes_any {
            self.note(server, "is the default at an address of its own: here it takes only the hosts that it names");
        }
        if takes_any {
            hosts.clear();
        }
        let before = self.front.routes.len();
        let locations: Vec<&Directive> = all("location").collect();
        for location in &locations {
            self.location(location, &limits, &hosts);
        }
        if self.front.routes.len() == before {
            return self.note(server, "is left out: no location of it proxies");
        }
        if locations.iter().all(|one| one.arguments() != ["/"]) && all("proxy_pass").next().is_none() {
            self.note(server, "has no `location /`: what its other locations do not take is answered 404");
        }
        self.has_default |= takes_any;
        self.listeners(server);
        let own: HashSet<String> = listens(server).into_iter().map(|(_, address)| address).collect();
        if self.addresses.iter().any(|other| *other != own) {
            self.note(server, "has routes that listeners of other servers take, too: tell them apart by hosts");
        }
        self.addresses.push(own);
    }

    fn location(&mut self, location: &'d Directive, outer: &Limits<'d>, hosts: &[String]) {
        let block: Vec<&Directive> = location.block().iter().collect();
        let (is_exact, path) = match location.arguments() {
            [path] if path.starts_with('/') => (false, path.as_str()),
            [sign, path] if sign == "^~" => (false, path.as_str()),
            [sign, path] if sign == "=" => (true, path.as_str()),
            _ => return self.note(location, "is left out: only prefixes and exact paths are carried over"),
        };
        let Some(to) = block.iter().find(|one| one.name() == "proxy_pass") else {
            return self.note(location, "is left out: it does not proxy");
        };
        let path_match = match if is_exact { PathMatch::exact(path) } else { PathMatch::prefix(path) } {
            Ok(path) => path,
            Err(why) => return self.note(location, &format!("is left out: {why}")),
        };
        let Some((upstream, target)) = self.target(to) else { return };
        let limits = self.level(&block, outer);
        for inner in block.iter().filter(|one| one.name() == "location") {
            self.note(inner, "is left out: it stands in another location");
        }
        if !limits.keeps_host {
            self.note(to, "upstreams see the host that the client asks for, not the name of the upstream");
        }
        let bare = path.trim_end_matches('/');
        if !is_exact && !path.ends_with('/') {
            self.note(location, &format!("{path} and what is below it are taken, and not {path}x"));
        }
        let mut rewrite = (String::new(), String::new());
        if let Some(target) = target.filter(|target| target != path) {
            if is_exact || target.ends_with('/') != path.ends_with('/') {
                return self
                    .note(to, "is left out: only paths that both end with `/`, or both do not, are carried over");
            }
            rewrite = (bare.to_owned(), target.trim_end_matches('/').to_owned());
        }
        let uses = limits.requests.iter().chain(&limits.connections);
        let used: Vec<ScopedLimit> = uses.filter_map(|use_of| self.limit(use_of, &limits)).collect();
        let label = if bare.is_empty() { "root" } else { bare.trim_start_matches('/') };
        let denied = (!used.is_empty()).then(|| format!("denied: {{ status: {} }}", limits.request_status));
        let max_body = limits.max_body.as_ref().map(|size| format!("max_request_body: {size}"));
        let route = Route {
            name: format!("{}.{label}", hosts.first().map_or("all", String::as_str)),
            matches: Match { hosts: hosts.to_vec(), ..Match::of_path(path_match) },
            upstreams: vec![(upstream, 1)],
            more: denied.into_iter().chain(max_body).collect(),
            rewrite,
            ..Route::default()
        };
        if self.front.routes.iter().any(|known| known.matches == route.matches) {
            self.note(location, "is never reached: a location before it takes the same requests");
        }
        for why in self.front.add(&route, &used, self.names) {
            self.note(location, &why);
        }
    }

    /// The upstream of a `proxy_pass`, and the path that replaces the location's path.
    fn target(&mut self, to: &Directive) -> Option<(String, Option<String>)> {
        let told = url(to.argument())
            .filter(|(_, authority, _)| !to.argument().contains('$') && !authority.starts_with("unix:"));
        let Some((is_secure, authority, path)) = told else {
            self.note(to, "is left out: only URLs without variables are carried over");
            return None;
        };
        let path = path.map(str::to_owned);
        let tls = if is_secure { ", tls: {}" } else { "" };
        if is_secure {
            self.note(to, "certificates of upstreams are checked here");
        }
        let known = self.front.upstreams.iter_mut().find(|upstream| upstream.name == authority);
        let Some(known) = known else {
            let name = upstream_name(authority);
            let port = if is_secure { 443 } else { 80 };
            let node = (node(authority, port), 1);
            if !self.front.upstreams.iter().any(|upstream| upstream.name == name) {
                self.front.upstreams.push(Upstream { name: name.clone(), nodes: vec![node], more: tls.to_owned() });
            }
            return Some((name, path));
        };
        if !tls.is_empty() && !known.more.contains(tls) {
            known.more.push_str(tls);
        }
        Some((known.name.clone(), path))
    }
}

/// Whether tollgate already does what a `proxy_set_header` asks for.
fn is_told_anyway(one: &Directive) -> bool {
    let value = one.arguments().last().map_or("", String::as_str);
    match one.argument().to_ascii_lowercase().as_str() {
        "x-forwarded-for" => ["$proxy_add_x_forwarded_for", "$remote_addr"].contains(&value),
        "x-forwarded-proto" => value == "$scheme",
        "x-forwarded-host" => ["$host", "$http_host"].contains(&value),
        "connection" => value.is_empty(),
        _ => false,
    }
}
