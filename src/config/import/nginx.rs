//! nginx's configuration: servers and locations that proxy, with `limit_req` and `limit_conn`.
//!
//! Every directive is carried over, or describes what tollgate does anyway, or gets a note.

use std::collections::{BTreeSet, HashMap};

use self::access::{GUARDS, refusal, refuses, refusing};
use self::listeners::{defaults, listens};
use self::real_ip::RealIp;
use self::syntax::Directive;
use self::zones::Zone;
use super::front::rules::{Effects, Rule, ScopedAccess, VirtualHost};
use super::front::{GUARD, ProxyConfig, Upstream, Url, node, time};
use super::matches::{Match, PathMatch, Prefix, ScopedLimit, open_prefix_note};
use crate::config::findings::Findings;
use crate::config::problem::Problem;
use crate::units::Nanos;

mod access;
mod include;
mod listeners;
mod real_ip;
mod syntax;
mod zones;

/// The status of denials where the configuration names none.
const DENIED: u64 = 503;

/// Directives that need no note: tollgate does the same anyway, or differs only in ways that requests do not show.
const UNNEEDED: [&str; 14] = [
    "events", "worker_processes", "worker_rlimit_nofile", "pid", "user", "daemon", "master_process", "sendfile",
    "tcp_nopush", "tcp_nodelay", "keepalive", "proxy_http_version", "limit_req_log_level", "limit_conn_log_level",
];

/// Directives that other functions of this module read.
const READ: [&str; 28] = [
    "server", "upstream", "location", "map", "geo", "listen", "server_name", "ssl_certificate", "ssl_certificate_key",
    "proxy_pass", "limit_req", "limit_req_zone", "limit_req_status", "limit_req_dry_run", "limit_conn",
    "limit_conn_zone", "limit_conn_status", "limit_conn_dry_run", "client_max_body_size", "allow", "deny", "internal",
    "return", "set_real_ip_from", "real_ip_header", "real_ip_recursive", "proxy_connect_timeout", "proxy_read_timeout",
];

/// How long nginx waits for an upstream by default.
const READ_TIMEOUT: &str = "60s";

/// The settings about limits that apply at a level (`http`, `server` or `location`), its own or inherited ones.
#[derive(Clone, Default)]
struct Limits<'d> {
    requests: Vec<&'d Directive>,
    connections: Vec<&'d Directive>,
    /// The `allow` and `deny` directives.
    access: Vec<&'d Directive>,
    /// The statuses of denials, if they are not [`DENIED`].
    request_status: Option<u64>,
    connection_status: Option<u64>,
    request_dry_run: bool,
    connection_dry_run: bool,
    real_ip: RealIp<'d>,
    /// Whether upstreams get the host that the client asks for.
    keeps_host: bool,
    /// The largest body of a request, if the level bounds it.
    max_body: Option<String>,
    /// How long to wait for a connection to an upstream, and for its answer, if they are not nginx's defaults.
    connect_timeout: Option<String>,
    read_timeout: Option<String>,
    /// The first name of the server around it.
    server_name: &'d str,
}

struct Reader<'d, 'f> {
    findings: &'f Findings,
    zones: HashMap<String, Zone>,
    /// The directives `map` and `geo`, by the variable that they set.
    variables: HashMap<&'d str, &'d Directive>,
    /// The upstreams that `upstream` blocks define, by their names.
    upstreams: HashMap<&'d str, (&'d Directive, Upstream)>,
    /// The settings of the locations that proxy about the proxies in front of nginx.
    real_ips: Vec<RealIp<'d>>,
    /// Whether a server so far takes any host.
    has_default: bool,
    front: ProxyConfig,
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

pub(super) fn read(text: &str, findings: &Findings) -> Option<ProxyConfig> {
    let include::Configuration { directives, unused } = match include::parse(text) {
        Ok(configuration) => configuration,
        Err((mark, message)) => {
            findings.add(Problem::error(findings.place(mark, ""), message));
            return None;
        }
    };
    for mark in unused {
        findings.add(Problem::warning(findings.place(mark, ""), "is left out: no `include` names this file"));
    }
    let mut reader = Reader {
        findings,
        zones: HashMap::new(),
        variables: HashMap::new(),
        upstreams: HashMap::new(),
        real_ips: Vec::new(),
        has_default: false,
        front: ProxyConfig::default(),
    };
    let http: Vec<&Directive> = directives
        .iter()
        .flat_map(|top| if top.name() == "http" { top.block().iter().collect() } else { vec![top] })
        .collect();
    reader.define(&http);
    let limits = reader.level(&http, &Limits::default());
    let servers: Vec<&Directive> = http.iter().copied().filter(|one| one.name() == "server").collect();
    let defaults = defaults(&servers);
    let mut carried = Vec::new();
    for (position, server) in servers.iter().enumerate() {
        let own = listens(server);
        let is_default = |(_, address): &(_, String)| defaults.get(address) == Some(&position);
        let (any, all) = (own.iter().any(is_default), own.iter().all(is_default));
        if reader.server(server, &limits, any, all) {
            carried.push(position);
        }
    }
    reader.listeners(&http, &servers, &carried);
    reader.believe_proxies();
    reader.name_unused_upstreams();
    reader.front.finish(findings, "location that proxies")
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

    fn upstream(&mut self, of: &'d Directive) {
        if self.upstreams.contains_key(of.argument()) {
            return self.error(of, "has the name of another one before");
        }
        let mut upstream = Upstream { name: of.argument().to_owned(), ..Upstream::default() };
        for one in of.block() {
            match one.name() {
                "server" => {
                    let is_spare = |word: &String| ["backup", "down"].contains(&word.as_str());
                    if one.arguments().iter().any(is_spare) {
                        self.note(one, "is left out: it gets no requests while others are up");
                        continue;
                    }
                    if one.arguments().iter().skip(1).any(|word| !word.starts_with("weight=")) {
                        self.note(one, "only the address and the weight are carried over");
                    }
                    let weight = one.option("weight=").and_then(|weight| weight.parse().ok()).unwrap_or(1);
                    upstream.nodes.push((node(one.argument(), 80), weight));
                }
                "least_conn" => upstream.balance = Some("least_requests".to_owned()),
                "ip_hash" => upstream.balance = Some("consistent_hash, hash_on: client_address".to_owned()),
                "random" => upstream.balance = Some("random".to_owned()),
                name if UNNEEDED.contains(&name) => {}
                _ => self.note(one, "is not carried over"),
            }
        }
        if upstream.nodes.is_empty() {
            return self.error(of, "has no server");
        }
        self.upstreams.insert(of.argument(), (of, upstream));
    }

    fn name_unused_upstreams(&self) {
        let unused = self.upstreams.iter().filter(|(name, _)| !self.front.has_upstream(name));
        unused.for_each(|(_, (of, _))| self.note(of, "is left out: no location leads to it"));
    }

    /// The settings of a level, which inherits from `outer`. Adds notes about all directives that are not carried over.
    fn level(&self, block: &[&'d Directive], outer: &Limits<'d>) -> Limits<'d> {
        let all = |name: &str| block.iter().copied().filter(|one| one.name() == name).collect::<Vec<_>>();
        let last = |name: &str| all(name).last().map(|one| one.argument());
        let status = |name: &str, outer: Option<u64>| last(name).and_then(|status| status.parse().ok()).or(outer);
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
                "return" if refusal(&[*one]).is_none() => self.note(one, "is not carried over"),
                name if READ.contains(&name) || UNNEEDED.contains(&name) => {}
                "satisfy" if one.argument() == "all" => {}
                "satisfy" => self.note(one, "is carried over as `all`: networks that `deny` names are refused here"),
                name if GUARDS.contains(&name) && one.argument() != "off" => self.note(one, GUARD),
                "if" if refusal(&one.block().iter().collect::<Vec<_>>()).is_some() => self.note(one, GUARD),
                "proxy_set_header" if is_kept(one) || is_told_anyway(one) => {}
                "include" => self.note(one, "is not followed: import what `nginx -T` prints"),
                _ => self.note(one, "is not carried over"),
            }
        }
        Limits {
            requests: or(all("limit_req"), &outer.requests),
            connections: or(all("limit_conn"), &outer.connections),
            access: or(
                block.iter().copied().filter(|one| matches!(one.name(), "allow" | "deny")).collect(),
                &outer.access,
            ),
            request_status: status("limit_req_status", outer.request_status),
            connection_status: status("limit_conn_status", outer.connection_status),
            request_dry_run: last("limit_req_dry_run").map_or(outer.request_dry_run, |word| word == "on"),
            connection_dry_run: last("limit_conn_dry_run").map_or(outer.connection_dry_run, |word| word == "on"),
            real_ip: RealIp::of(block, &outer.real_ip),
            max_body: match last("client_max_body_size") {
                None => outer.max_body.clone(),
                Some(text) => self.size(text, &all("client_max_body_size")),
            },
            connect_timeout: self.time(&all("proxy_connect_timeout")).or_else(|| outer.connect_timeout.clone()),
            read_timeout: self.time(&all("proxy_read_timeout")).or_else(|| outer.read_timeout.clone()),
            keeps_host: if sets_headers.is_empty() { outer.keeps_host } else { sets_headers.iter().any(is_kept) },
            server_name: outer.server_name,
        }
    }

    /// Formats the last of these times for tollgate.
    fn time(&self, said: &[&Directive]) -> Option<String> {
        let last = said.last()?;
        let time = time(&last.argument().replace(' ', "")).map(Nanos::to_exact_string);
        if time.is_none() {
            self.note(last, "is not carried over");
        }
        time
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

    /// Reads a server. It is the default at one of its addresses (`is_default`), or at all of them (`is_default_at_all`).
    /// Returns whether it proxies.
    fn server(&mut self, server: &'d Directive, outer: &Limits<'d>, is_default: bool, is_default_at_all: bool) -> bool {
        let block: Vec<&Directive> = server.block().iter().collect();
        let all = |name: &'static str| block.iter().copied().filter(move |one| one.name() == name);
        let limits = Limits {
            server_name: all("server_name").next().map_or("", Directive::argument),
            ..self.level(&block, outer)
        };
        let hosts = self.hosts(server);
        let takes_any = hosts.is_empty() || (is_default_at_all && !self.has_default);
        if hosts.is_empty() && !is_default {
            self.note(server, "is left out: it names no host, and is the default at none of its addresses");
            return false;
        }
        let addresses: BTreeSet<String> = listens(server).into_iter().map(|(_, address)| address).collect();
        let is_refused = refusal(&block).is_some();
        let locations: Vec<&Directive> = all("location").filter(|_| !is_refused).collect();
        let any = if takes_any { Vec::new() } else { hosts.clone() };
        let rules = locations.iter().filter_map(|location| self.location(location, &limits, &addresses, &any));
        let rules: Vec<Rule> = rules.collect();
        self.front.virtual_hosts.push(VirtualHost {
            place: self.findings.place(server.mark, server.name()),
            name: rule_name(&hosts, &PathMatch::default()),
            listeners: addresses.clone(),
            hosts,
            takes_any,
        });
        if rules.iter().all(|rule| rule.upstreams.is_empty()) {
            self.front.rules.extend(rules.into_iter().filter(|rule| !rule.matches.hosts.is_empty()));
            self.note(server, "is left out: no location of it proxies");
            return false;
        }
        if is_default && !takes_any {
            self.note(server, "is the default at an address of its own: here it takes only the hosts that it names");
        }
        if takes_any && locations.iter().all(|one| one.arguments() != ["/"]) && all("proxy_pass").next().is_none() {
            self.note(server, "has no `location /`: what its other locations do not take is answered 404");
        }
        self.has_default |= takes_any;
        if self.front.rules.iter().any(|other| other.listeners != addresses) {
            self.note(server, "has routes that listeners of other servers take, too: tell them apart by hosts");
        }
        self.front.rules.extend(rules);
        true
    }

    /// The hosts that a server names.
    fn hosts(&self, server: &Directive) -> Vec<String> {
        let mut hosts = Vec::new();
        let names = server.block().iter().filter(|one| one.name() == "server_name").flat_map(Directive::arguments);
        for name in names {
            match name.strip_prefix('.') {
                _ if name == "_" || name.is_empty() => {}
                _ if name.starts_with('~') || name.ends_with(".*") => {
                    self.note(server, &format!("the name {name} is left out"))
                }
                Some(domain) => hosts.extend([domain.to_owned(), format!("*.{domain}")]),
                None => hosts.push(name.clone()),
            }
        }
        hosts
    }

    /// Adds a note that a location is left out, at the directive `at`. It names what refuses requests of the location: they
    /// are taken by another one.
    fn leave_out<T>(&self, location: &Directive, at: &Directive, why: &str) -> Option<T> {
        let lost: Vec<String> =
            refusing(location.block()).iter().map(|one| format!("`{}`", one.words.join(" "))).collect();
        let passes = match lost.as_slice() {
            [] => String::new(),
            lost => format!(": its requests pass here without {}", lost.join(", ")),
        };
        self.note(at, &format!("is left out: {why}{passes}"));
        None
    }

    fn leave_out_inner(&self, location: &Directive) {
        for inner in location.block().iter().filter(|one| one.name() == "location") {
            self.leave_out::<()>(inner, inner, "it stands in another location");
            self.leave_out_inner(inner);
        }
    }

    /// The rule of a location; `None` where it is left out.
    fn location(
        &mut self,
        location: &'d Directive,
        outer: &Limits<'d>,
        listeners: &BTreeSet<String>,
        hosts: &[String],
    ) -> Option<Rule> {
        let block: Vec<&Directive> = location.block().iter().collect();
        self.leave_out_inner(location);
        let is_refused = refuses(&block);
        let (path, path_match) = self.path_of(location)?;
        if is_refused && path_match == PathMatch::default() && hosts.is_empty() {
            self.note(location, "is left out: it does not proxy");
            return None;
        }
        let rule = Rule {
            place: self.findings.place(location.mark, location.name()),
            listeners: listeners.clone(),
            name: rule_name(hosts, &path_match),
            matches: Match { hosts: hosts.to_vec(), ..Match::of_path(path_match) },
            order: None,
            upstreams: Vec::new(),
            effects: Effects::refusal(),
        };
        if is_refused {
            self.note_refusal(location, &block, outer);
            return Some(rule);
        }
        let Some(to) = block.iter().find(|one| one.name() == "proxy_pass") else {
            let why = "it does not proxy. nginx answers its requests itself; here another route may take them";
            return self.leave_out(location, location, why);
        };
        let Some((mut upstream, target)) = self.target(to) else {
            return self.leave_out(location, to, "only URLs without variables are carried over");
        };
        let Some(rewrite) = rewrite(path, target.as_deref()) else {
            let why = "only paths that both end with `/`, or both do not, are carried over";
            return self.leave_out(location, to, why);
        };
        let limits = self.level(&block, outer);
        upstream.timeout("connect", limits.connect_timeout.clone());
        upstream.timeout("first_byte", Some(limits.read_timeout.clone().unwrap_or_else(|| READ_TIMEOUT.to_owned())));
        let upstream = self.front.upstream(upstream);
        self.real_ips.push(limits.real_ip.clone());
        if !limits.keeps_host {
            self.note(to, "upstreams see the host that the client asks for, not the name of the upstream");
        }
        Some(Rule { upstreams: vec![(upstream, 1)], effects: self.effects_of(&limits, rewrite), ..rule })
    }

    /// Adds the notes about a location that refuses all requests.
    fn note_refusal(&self, location: &Directive, block: &[&'d Directive], outer: &Limits<'d>) {
        let others: Vec<&Directive> = block.iter().copied().filter(|one| !GUARDS.contains(&one.name())).collect();
        self.level(&others, outer);
        let is_internal = block.iter().any(|one| one.name() == "internal");
        if is_internal || refusal(block).is_some_and(|status| status != 403) {
            self.note(location, "refuses requests with 403 here");
        }
    }

    /// The path of a location, and its match. `None` if the location is left out.
    fn path_of(&self, location: &'d Directive) -> Option<(&'d str, PathMatch)> {
        let (read, path): (fn(&str) -> _, _) = match location.arguments() {
            [path] if path.starts_with('/') => (PathMatch::prefix, path),
            [sign, path] if sign == "^~" => (PathMatch::prefix, path),
            [sign, path] if sign == "=" => (PathMatch::exact, path),
            _ => return self.leave_out(location, location, "only prefixes and exact paths are carried over"),
        };
        let path_match = match read(path) {
            Ok(path_match) => path_match,
            Err(why) => return self.leave_out(location, location, why),
        };
        if let (PathMatch::Below(_), Some(why)) = (&path_match, open_prefix_note(path)) {
            self.note(location, &why);
        }
        Some((path, path_match))
    }

    fn effects_of(&mut self, limits: &Limits<'d>, rewrite: (String, String)) -> Effects {
        let mut used: Vec<ScopedLimit> = limits.requests.iter().filter_map(|one| self.limit(one, limits)).collect();
        if let Some(first) = limits.connections.first().filter(|_| !used.is_empty()) {
            let message = "requests that it refuses take nothing from the limits of `limit_req`: nginx charges them";
            self.note(first, message);
        }
        used.extend(limits.connections.iter().filter_map(|one| self.limit(one, limits)));
        let denied =
            (!used.is_empty()).then(|| format!("denied: {{ status: {} }}", limits.request_status.unwrap_or(DENIED)));
        let max_body = limits.max_body.as_ref().map(|size| format!("max_request_body: {size}"));
        Effects {
            limits: used,
            access: self.access(&limits.access).map(ScopedAccess::always).into_iter().collect(),
            rewrite,
            more: denied.into_iter().chain(max_body).collect(),
        }
    }

    /// The upstream of a `proxy_pass`, and the path that replaces the location's path; `None` for a URL with variables.
    fn target(&self, to: &Directive) -> Option<(Upstream, Option<String>)> {
        let url = Url::parse(to.argument()).filter(|_| !to.argument().contains('$'))?;
        let mut upstream = Upstream::at(&url);
        if url.is_secure {
            self.note(to, "certificates of upstreams are checked here");
        }
        if let Some((_, known)) = self.upstreams.get(url.authority) {
            upstream = Upstream { tls: upstream.tls, ..known.clone() };
        }
        Some((upstream, url.path.map(str::to_owned)))
    }
}

/// The rewrite of a location's path to that of its `proxy_pass`; `None` where tollgate cannot rewrite so.
fn rewrite(path: &str, target: Option<&str>) -> Option<(String, String)> {
    let Some(target) = target.filter(|target| *target != path) else { return Some(Default::default()) };
    (target.ends_with('/') == path.ends_with('/'))
        .then(|| (path.trim_end_matches('/').to_owned(), target.trim_end_matches('/').to_owned()))
}

/// The name of the rule for these hosts and paths.
fn rule_name(hosts: &[String], path: &PathMatch) -> String {
    let (PathMatch::Exact(path) | PathMatch::Below(Prefix { path, .. })) = path;
    let path = Some(path.trim_matches('/')).filter(|path| !path.is_empty()).unwrap_or("root");
    format!("{}.{path}", hosts.first().map_or("all", String::as_str))
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
