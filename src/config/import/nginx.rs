//! nginx's configuration: servers and locations that proxy, with `limit_req` and `limit_conn`.
//!
//! Every directive is carried over, or describes what tollgate does anyway, or gets a note.

use std::collections::{BTreeSet, HashMap, HashSet};

use self::access::{GUARDS, refusal, refuses, refusing};
use self::listeners::{defaults, listens};
use self::real_ip::RealIp;
use self::syntax::Directive;
use self::zones::Zone;
use super::front::rules::{Effects, Rule, ScopedAccess, VirtualHost};
use super::front::{GUARD, ProxyConfig, Upstream, Url, node, time};
use super::matches::{Match, PathMatch, Prefix, ScopedLimit, open_prefix_note};
use super::parsed;
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

/// The settings that hold at a level (`http`, `server` or `location`): a level without a directive inherits those of the
/// level around it.
#[derive(Clone, Default)]
struct Scope<'d> {
    /// The directives of each level, of the innermost first.
    levels: Vec<Vec<&'d Directive>>,
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
    /// The names of the servers so far, each with an address of its server.
    names: HashSet<(String, String)>,
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
    let (directives, unused) = parsed(include::parse(text), findings)?;
    for mark in unused {
        findings.add(Problem::warning(findings.place(mark, ""), "is left out: no `include` names this file"));
    }
    let mut reader = Reader {
        findings,
        zones: HashMap::new(),
        variables: HashMap::new(),
        upstreams: HashMap::new(),
        real_ips: Vec::new(),
        names: HashSet::new(),
        has_default: false,
        front: ProxyConfig::default(),
    };
    let http: Vec<&Directive> = directives
        .iter()
        .flat_map(|top| if top.name() == "http" { top.block().iter().collect() } else { vec![top] })
        .collect();
    reader.define(&http);
    reader.note_others(http.iter().copied());
    let scope = Scope { levels: vec![http.clone()] };
    let servers: Vec<&Directive> = http.iter().copied().filter(|one| one.name() == "server").collect();
    let defaults = defaults(&servers);
    let mut carried = Vec::new();
    for (position, server) in servers.iter().enumerate() {
        let own = listens(server);
        let is_default = |(_, address): &(_, String)| defaults.get(address) == Some(&position);
        let (any, all) = (own.iter().any(is_default), own.iter().all(is_default));
        if reader.server(server, &scope, any, all) {
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

    /// Adds notes about all directives of a level that are not carried over.
    fn note_others<'o>(&self, level: impl IntoIterator<Item = &'o Directive>) {
        for one in level {
            match one.name() {
                "listen" | "server_name" | "proxy_pass" if one.block.is_some() => {
                    self.error(one, "has no `;` at its end");
                }
                "client_max_body_size" if size(one.argument()).is_none() => self.error(one, "is no size"),
                "return" if refusal([one]).is_none() => self.note(one, "is not carried over"),
                "proxy_connect_timeout" | "proxy_read_timeout" if timeout(one.argument()).is_none() => {
                    self.note(one, "is not carried over");
                }
                name if READ.contains(&name) || UNNEEDED.contains(&name) => {}
                "satisfy" if one.argument() == "all" => {}
                "satisfy" => self.note(one, "is carried over as `all`: networks that `deny` names are refused here"),
                name if GUARDS.contains(&name) && one.argument() != "off" => self.note(one, GUARD),
                "if" if refusal(one.block()).is_some() => self.note(one, GUARD),
                "proxy_set_header" if keeps_host(one) || is_told_anyway(one) => {}
                "include" => self.note(one, "is not followed: import what `nginx -T` prints"),
                _ => self.note(one, "is not carried over"),
            }
        }
    }

    /// Reads a server. It is the default at one of its addresses (`is_default`), or at all of them (`is_default_at_all`).
    /// Returns whether it proxies.
    fn server(&mut self, server: &'d Directive, outer: &Scope<'d>, is_default: bool, is_default_at_all: bool) -> bool {
        self.note_others(server.block());
        let scope = outer.inner(server.block());
        let addresses: BTreeSet<String> = listens(server).into_iter().map(|(_, address)| address).collect();
        let hosts = self.hosts(server, &addresses);
        let takes_any = hosts.is_empty() || (is_default_at_all && !self.has_default);
        if hosts.is_empty() && !is_default {
            self.note(server, "is left out: it names no host, and is the default at none of its addresses");
            return false;
        }
        let is_refused = refusal(server.block()).is_some();
        let locations: Vec<&Directive> = server.all("location").filter(|_| !is_refused).collect();
        let any = if takes_any { Vec::new() } else { hosts.clone() };
        let rules = locations.iter().filter_map(|location| self.location(location, &scope, &addresses, &any));
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
        if takes_any && locations.iter().all(|one| one.arguments() != ["/"]) && !server.has("proxy_pass") {
            self.note(server, "has no `location /`: what its other locations do not take is answered 404");
        }
        self.has_default |= takes_any;
        if self.front.rules.iter().any(|other| other.listeners != addresses) {
            self.note(server, "has routes that listeners of other servers take, too: tell them apart by hosts");
        }
        self.front.rules.extend(rules);
        true
    }

    /// The hosts that a server at these addresses names, without those that nginx ignores.
    fn hosts(&mut self, server: &Directive, addresses: &BTreeSet<String>) -> Vec<String> {
        let (mut hosts, mut taken) = (Vec::new(), HashSet::new());
        for name in server.all("server_name").flat_map(Directive::arguments) {
            let own = match name.strip_prefix('.') {
                _ if name == "_" || name.is_empty() => continue,
                _ if name.starts_with('~') || name.ends_with(".*") => {
                    self.note(server, &format!("the name {name} is left out"));
                    continue;
                }
                Some(domain) => vec![domain.to_owned(), format!("*.{domain}")],
                None => vec![name.clone()],
            };
            let at = |address: &String| own.iter().map(|host| (address.clone(), host.to_ascii_lowercase())).collect();
            let mut named: Vec<Vec<(String, String)>> = addresses.iter().map(at).collect();
            named.retain(|all| !all.iter().any(|one| self.names.contains(one)));
            if named.is_empty() && !addresses.is_empty() {
                let why = "nginx ignores it, because a server before has it at the same address";
                self.note(server, &format!("the name {name} is left out: {why}"));
                continue;
            }
            taken.extend(named.into_iter().flatten());
            hosts.extend(own);
        }
        self.names.extend(taken);
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
        for inner in location.all("location") {
            self.leave_out::<()>(inner, inner, "it stands in another location");
            self.leave_out_inner(inner);
        }
    }

    /// The rule of a location; `None` where it is left out.
    fn location(
        &mut self,
        location: &'d Directive,
        outer: &Scope<'d>,
        listeners: &BTreeSet<String>,
        hosts: &[String],
    ) -> Option<Rule> {
        self.leave_out_inner(location);
        let is_refused = refuses(location);
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
            self.note_refusal(location);
            return Some(rule);
        }
        let Some(to) = location.all("proxy_pass").next() else {
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
        self.note_others(location.block());
        let scope = outer.inner(location.block());
        upstream.timeout("connect", scope.find("proxy_connect_timeout", timeout));
        upstream
            .timeout("first_byte", scope.find("proxy_read_timeout", timeout).or_else(|| Some(READ_TIMEOUT.to_owned())));
        let upstream = self.front.upstream(upstream);
        self.real_ips.push(RealIp::of(&scope));
        if !scope.all(&["proxy_set_header"]).into_iter().any(keeps_host) {
            self.note(to, "upstreams see the host that the client asks for, not the name of the upstream");
        }
        Some(Rule { upstreams: vec![(upstream, 1)], effects: self.effects_of(&scope, rewrite), ..rule })
    }

    /// Adds the notes about a location that refuses all requests.
    fn note_refusal(&self, location: &Directive) {
        self.note_others(location.block().iter().filter(|one| !GUARDS.contains(&one.name())));
        if location.has("internal") || refusal(location.block()).is_some_and(|status| status != 403) {
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

    fn effects_of(&mut self, scope: &Scope<'d>, rewrite: (String, String)) -> Effects {
        let connections = scope.all(&["limit_conn"]);
        let requests = scope.all(&["limit_req"]);
        let mut limits: Vec<ScopedLimit> = requests.iter().filter_map(|one| self.limit(one, scope)).collect();
        if let Some(first) = connections.first().filter(|_| !limits.is_empty()) {
            let message = "requests that it refuses take nothing from the limits of `limit_req`: nginx charges them";
            self.note(first, message);
        }
        limits.extend(connections.iter().filter_map(|one| self.limit(one, scope)));
        let denied =
            (!limits.is_empty()).then(|| ("denied", format!("{{ status: {} }}", scope.status("limit_req_status"))));
        // 0 stands for no bound
        let max_body =
            scope.find("client_max_body_size", |text| Some(size(text).filter(|size| !size.starts_with('0'))));
        let max_body = max_body.flatten().map(|size| ("max_request_body", size));
        Effects {
            limits,
            access: self.access(&scope.all(&["allow", "deny"])).map(ScopedAccess::always).into_iter().collect(),
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

impl<'d> Scope<'d> {
    fn inner(&self, level: &'d [Directive]) -> Self {
        Self { levels: std::iter::once(level.iter().collect()).chain(self.levels.iter().cloned()).collect() }
    }

    /// The directives with these names, of the innermost level that has any.
    fn all(&self, names: &[&str]) -> Vec<&'d Directive> {
        let of_level = |level: &Vec<&'d Directive>| -> Vec<&'d Directive> {
            level.iter().copied().filter(|one| names.contains(&one.name())).collect()
        };
        self.levels.iter().map(of_level).find(|all| !all.is_empty()).unwrap_or_default()
    }

    /// The argument of the last directive with this name that `read` accepts, of the innermost level that has one.
    fn find<T>(&self, name: &str, read: impl Fn(&'d str) -> Option<T>) -> Option<T> {
        let last = |level: &Vec<&'d Directive>| level.iter().rfind(|one| one.name() == name).map(|one| one.argument());
        self.levels.iter().filter_map(last).find_map(read)
    }

    fn is_on(&self, name: &str) -> bool {
        self.find(name, Some) == Some("on")
    }

    /// The status of denials that the directive `name` sets.
    fn status(&self, name: &str) -> u64 {
        self.find(name, |status| status.parse().ok()).unwrap_or(DENIED)
    }
}

/// Formats a length of time for tollgate.
fn timeout(text: &str) -> Option<String> {
    time(&text.replace(' ', "")).map(Nanos::to_exact_string)
}

/// Formats a size for tollgate.
fn size(text: &str) -> Option<String> {
    let digits = text.trim_end_matches(|unit: char| unit.is_ascii_alphabetic());
    let unit = match text.get(digits.len()..)?.to_ascii_lowercase().as_str() {
        "" => "B",
        "k" => "KiB",
        "m" => "MiB",
        "g" => "GiB",
        _ => return None,
    };
    Some(format!("{}{unit}", digits.parse::<u64>().ok()?))
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

/// Whether a `proxy_set_header` sends upstreams the host that the client asks for.
fn keeps_host(one: &Directive) -> bool {
    let value = one.arguments().last().map_or("", String::as_str);
    one.argument().eq_ignore_ascii_case("host") && ["$host", "$http_host"].contains(&value)
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
