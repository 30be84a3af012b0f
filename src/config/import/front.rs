//! A proxy's configuration, written as listeners, upstreams, limits and routes of tollgate.

use std::fmt;
use std::net::SocketAddr;

use self::rules::{Route, Rule, VirtualHost};
use super::Names;
use super::output::{Settings, block, lines, list, mapping, scalar, sections};
use crate::config::findings::Findings;
use crate::config::listeners::{Server, collide};
use crate::config::problem::{Mark, Problem};
use crate::config::scalar::duration;
use crate::ruleset::ClientAddress;
use crate::units::Nanos;

pub(super) mod rules;

/// A note about a setting that refuses requests.
pub(super) const GUARD: &str = "is not carried over: requests that it refuses pass here";
/// The end of a note about a setting that refuses requests.
pub(super) const PASS: &str = ": requests that it refuses pass here";

/// The setting of a limit that says what happens to requests over it.
const OVER_LIMIT: &str = "over_limit";

/// The largest weight of a node.
const MAX_WEIGHT: u64 = 1_000;
/// The largest share of an upstream in the requests of a route.
const MAX_SHARE: u64 = 1_000_000;
/// A number of waiting requests that is never reached.
const ANY_NUMBER: u64 = 1_000_000;

/// A proxy that limits the requests that it forwards.
#[derive(Debug, Default)]
pub(super) struct ProxyConfig {
    listeners: Vec<Listener>,
    /// The settings of `client_address` about proxies in YAML, with a comma in front; empty where the gateway believes none.
    pub(super) client_address: String,
    pub(super) connections: Settings,
    /// Further sections of the file.
    pub(super) sections: Settings,
    /// The upstreams by their names here, which are unique.
    upstreams: Vec<(String, Upstream)>,
    upstream_names: Names,
    /// The names of limits and routes that are taken.
    names: Names,
    pub(super) limits: Vec<NamedLimit>,
    pub(super) rules: Vec<Rule>,
    pub(super) virtual_hosts: Vec<VirtualHost>,
    /// The routes that the rules become.
    routes: Vec<Route>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listener {
    pub(super) address: String,
    /// The files of the certificates, each with that of its key; a listener without any speaks no TLS.
    pub(super) certificates: Vec<(String, String)>,
    /// Whether every connection begins with the PROXY protocol.
    pub(super) proxy_protocol: bool,
    pub(super) max_connections: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Upstream {
    /// The name in the proxy's configuration, or the address.
    pub(super) name: String,
    /// Addresses, each with its weight.
    pub(super) nodes: Vec<(String, u64)>,
    /// The settings of `tls` in YAML, where connections to the nodes speak TLS.
    pub(super) tls: Option<String>,
    /// The value of `balance` in YAML, with `hash_on` where there is one.
    pub(super) balance: Option<String>,
    pub(super) max_requests: Option<u64>,
    pub(super) timeouts: Settings,
    pub(super) health_check: Settings,
}

#[derive(Debug)]
pub(super) struct NamedLimit {
    pub(super) name: String,
    /// The table, zone or plugin that holds the counts in the proxy.
    pub(super) table: String,
    pub(super) settings: LimitSettings,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LimitSettings {
    /// The algorithm and its parameters, in YAML.
    pub(super) algorithm: String,
    pub(super) key: Vec<KeyPart>,
    pub(super) more: Settings,
}

/// A part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum KeyPart {
    /// A property that every request has, like `client_address`.
    Word(&'static str),
    /// A field that requests may lack: its kind, like `header`, and its name.
    Field(&'static str, String),
}

/// An `http` or `https` URL, also that of a socket in nginx, like `http://unix:/run/app.sock:/path/`.
pub(super) struct Url<'u> {
    /// Whether it is `https`.
    pub(super) is_secure: bool,
    pub(super) authority: &'u str,
    pub(super) path: Option<&'u str>,
}

impl ProxyConfig {
    /// The configuration, unless no rule leads to an upstream, so that there is nothing to limit.
    pub(super) fn finish(self, findings: &Findings, missing: &str) -> Option<Self> {
        if self.rules.iter().all(|rule| rule.upstreams.is_empty()) {
            let message = format!("holds no {missing}: there is nothing to limit");
            findings.add(Problem::error(findings.place(Mark::START, ""), message));
            return None;
        }
        Some(self)
    }

    pub(super) fn has_no_listeners(&self) -> bool {
        self.listeners.is_empty()
    }

    /// Adds a listener. Returns a note where it is left out, or where one of two listeners takes the connections of both.
    pub(super) fn listen(&mut self, mut new: Listener) -> Option<String> {
        if let Some(port) = new.address.strip_prefix("localhost:") {
            new.address = format!("127.0.0.1:{port}");
        }
        if new.inet().is_none() && !new.address.starts_with("unix:") {
            return Some(format!("is left out: no listener has an address like {}", new.address));
        }
        let takes = |one: &Listener, other: &Listener| match (one.inet(), other.inet()) {
            (Some(one), Some(other)) => one == other || (one.ip().is_unspecified() && collide(one, other)),
            _ => one.address == other.address,
        };
        if let Some(known) = self.listeners.iter().find(|known| takes(known, &new)) {
            return (*known != new).then(|| format!("is left out: {} takes its connections", known.address));
        }
        let before = self.listeners.len();
        self.listeners.retain(|known| !takes(&new, known));
        self.listeners.push(new);
        (self.listeners.len() <= before)
            .then(|| "takes the connections of listeners with its port: they are left out".to_owned())
    }

    /// The name of the upstream with these settings: an existing one, or a new one.
    pub(super) fn upstream(&mut self, mut made: Upstream) -> String {
        let mut nodes: Vec<(String, u64)> = Vec::new();
        for (address, weight) in made.nodes {
            match nodes.iter_mut().find(|(known, _)| *known == address) {
                Some((_, sum)) => *sum = sum.saturating_add(weight),
                None => nodes.push((address, weight)),
            }
        }
        made.nodes = nodes;
        if let Some((name, _)) = self.upstreams.iter().find(|(_, known)| *known == made) {
            return name.clone();
        }
        let plain = made.name.replace(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c), "-");
        let name = self.upstream_names.of(&plain, std::iter::empty());
        self.upstreams.push((name.clone(), made));
        name
    }

    /// Whether an upstream has this name in the proxy's configuration.
    pub(super) fn has_upstream(&self, name: &str) -> bool {
        self.upstreams.iter().any(|(_, known)| known.name == name)
    }

    /// The name of the limit with these settings that counts in `table`: an existing limit, or a new one.
    pub(super) fn limit(&mut self, name: &str, table: &str, settings: LimitSettings) -> String {
        let known = self.limits.iter().find(|limit| limit.table == table && limit.settings == settings);
        if let Some(known) = known {
            return known.name.clone();
        }
        let name = self.names.of(name, std::iter::empty());
        self.limits.push(NamedLimit { name: name.clone(), table: table.to_owned(), settings });
        name
    }

    /// The value of `over_limit` of a limit in YAML, if it has one.
    pub(super) fn over_limit(&self, limit: &str) -> Option<&str> {
        let limit = self.limits.iter().find(|known| known.name == limit)?;
        limit.settings.more.iter().find(|(name, _)| *name == OVER_LIMIT).map(|(_, value)| value.as_str())
    }

    /// Makes routes of the rules, and changes settings that tollgate would refuse. Adds notes about these changes.
    pub(super) fn settle(&mut self, findings: &Findings) {
        let note = |message: String| findings.add(Problem::warning(findings.place(Mark::START, ""), message));
        for (name, upstream) in &mut self.upstreams {
            if scale(&mut upstream.nodes, MAX_WEIGHT) {
                note(format!("the weights of {name} are scaled down: {MAX_WEIGHT} is the largest"));
            }
        }
        for rule in &mut self.rules {
            if scale(&mut rule.upstreams, MAX_SHARE) {
                note(format!("the weights of {} are scaled down: {MAX_SHARE} is the largest", rule.name));
            }
        }
        let is_free = |address: &SocketAddr| {
            !self.listeners.iter().filter_map(Listener::inet).any(|taken| collide(taken, *address))
        };
        if !is_free(&Server::DEFAULT_ADMIN) {
            let ports = Server::DEFAULT_ADMIN.port()..=u16::MAX;
            let mut addresses = ports.map(|port| SocketAddr::new(Server::DEFAULT_ADMIN.ip(), port));
            if let Some(address) = addresses.find(is_free) {
                note(format!("a listener has the port of the admin interface: that is at {address} here"));
                self.sections.push(("admin", format!("{{ address: \"{address}\" }}")));
            }
        }
        for NamedLimit { name, settings, .. } in &self.limits {
            let unbelieved = settings.key.iter().filter_map(|part| match part {
                KeyPart::Field("header", header) => self.unbelieved(header),
                _ => None,
            });
            unbelieved.for_each(|why| note(format!("the limit {name} {why}")));
        }
        self.repeat_shared_hosts();
        self.close_virtual_hosts(findings);
        self.add_routes(findings);
        for (is_missing, what) in [(self.listeners.is_empty(), "listener"), (self.routes.is_empty(), "route")] {
            if is_missing {
                let message = format!("holds no {what} that is carried over");
                findings.add(Problem::error(findings.place(Mark::START, ""), message));
            }
        }
    }

    /// The reason why no request has a header field here, if so: only trusted proxies may send it, and there are none.
    fn unbelieved(&self, header: &str) -> Option<String> {
        let is_removed = self.client_address.is_empty() && ClientAddress::default().is_hop_field(header.as_bytes());
        is_removed.then(|| {
            format!(
                "goes by {header}, which no request has here until `client_address: {{ trusted_proxies: [...] }}` names the proxies that send it"
            )
        })
    }

    /// The sections of the file.
    pub(super) fn to_yaml(&self) -> String {
        const COUNTS: &str = "# Each address of a client has counts of its own, in IPv6 too.";
        let client_address = format!("client_address: {{ ipv6_prefix: 128{} }}", self.client_address);
        let listeners = self.listeners.iter().map(|listener| format!("- {}", listener.to_yaml()));
        let connections = mapping(self.connections.clone()).map(|settings| ("connections", settings));
        let upstreams = lines(self.upstreams.iter().map(|(name, upstream)| (scalar(name), upstream.to_yaml())));
        let limits = match self.limits.as_slice() {
            [] => vec!["limits: {}".to_owned()],
            limits => block("limits", limits.iter().map(NamedLimit::line)),
        };
        let mut all = vec![block("listeners", listeners), vec![COUNTS.to_owned(), client_address]];
        all.extend(lines(connections.into_iter().chain(self.sections.clone())).map(|section| vec![section]));
        all.extend([block("upstreams", upstreams), limits]);
        all.push(block("routes", self.routes.iter().flat_map(Route::lines)));
        sections(all)
    }
}

impl Listener {
    pub(super) fn at(address: String) -> Self {
        Self { address, ..Self::default() }
    }

    fn inet(&self) -> Option<SocketAddr> {
        self.address.parse().ok()
    }

    fn to_yaml(&self) -> String {
        let file = |(cert, key): &(String, String)| mapping([("cert", scalar(cert)), ("key", scalar(key))]);
        let certificates: Vec<String> = self.certificates.iter().filter_map(file).collect();
        let tls = (!certificates.is_empty()).then(|| format!("{{ certificates: {} }}", list(certificates)));
        let proxies = if self.inet().is_some() { r#"["0.0.0.0/0", "::/0"]"# } else { "[unix]" };
        let settings = [
            ("address", Some(scalar(&self.address))),
            ("tls", tls),
            ("proxy_protocol", self.proxy_protocol.then(|| proxies.to_owned())),
            ("max_connections", self.max_connections.clone()),
        ];
        mapping(settings).unwrap_or_default()
    }
}

impl NamedLimit {
    /// A limit that counts separately by the values of these entries of descriptors.
    pub(super) fn of_descriptor(name: &str, algorithm: String, entries: &[String], more: Settings) -> Self {
        let key = entries.iter().map(|entry| KeyPart::Field("descriptor", entry.clone())).collect();
        Self { name: name.to_owned(), table: String::new(), settings: LimitSettings { algorithm, key, more } }
    }

    /// The limit, as a line of `limits`.
    pub(super) fn line(&self) -> String {
        let LimitSettings { algorithm, key: parts, more } = &self.settings;
        let key = [("key", key(parts))];
        let settings = std::iter::once(algorithm.clone()).chain(lines(key)).chain(lines(more.clone()));
        format!("{}: {{ {} }}", scalar(&self.name), settings.collect::<Vec<_>>().join(", "))
    }
}

impl KeyPart {
    pub(super) const CLIENT_ADDRESS: Self = Self::Word("client_address");

    /// A header field. That of the host has a word of its own.
    pub(super) fn of_header(name: String) -> Self {
        if name == "host" { Self::Word("host") } else { Self::Field("header", name) }
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Word(word) => f.write_str(word),
            Self::Field(kind, name) => write!(f, "{{ {kind}: {} }}", scalar(name)),
        }
    }
}

impl Upstream {
    /// The upstream that a URL names.
    pub(super) fn at(url: &Url<'_>) -> Self {
        let tls = url.is_secure.then(String::new);
        Self { name: url.authority.to_owned(), nodes: vec![(url.node(), 1)], tls, ..Self::default() }
    }

    /// Sets a timeout, if there is one; 0 stands for none.
    pub(super) fn timeout(&mut self, name: &'static str, time: Option<String>) {
        let is_some = |time: &String| time.contains(|c: char| ('1'..='9').contains(&c));
        self.timeouts.extend(time.filter(is_some).map(|time| (name, time)));
    }

    fn to_yaml(&self) -> String {
        let node = |(address, weight): &(String, u64)| match weight {
            1 => scalar(address),
            weight => format!("{{ address: {}, weight: {weight} }}", scalar(address)),
        };
        let settings = [
            ("nodes", Some(list(self.nodes.iter().map(node)))),
            ("tls", self.tls.clone().map(|settings| format!("{{{settings}}}"))),
            ("balance", self.balance.clone()),
            ("max_requests", self.max_requests.map(|max| max.to_string())),
            ("max_pending", self.max_requests.map(|_| ANY_NUMBER.to_string())),
            ("timeouts", mapping(self.timeouts.clone())),
            ("health_check", mapping(self.health_check.clone())),
        ];
        mapping(settings).unwrap_or_default()
    }
}

/// Scales weights so that none is above `max`. Returns whether one was.
fn scale(weights: &mut [(String, u64)], max: u64) -> bool {
    let largest = weights.iter().map(|(_, weight)| *weight).max().unwrap_or_default();
    if largest <= max {
        return false;
    }
    for (_, weight) in weights {
        *weight = weight.saturating_mul(max).checked_div(largest).unwrap_or(max).clamp(1, max);
    }
    true
}

/// Reads a length of time of Go or nginx: numbers with units one behind the other, like `1m30s`. A number alone is in
/// seconds.
pub(super) fn time(text: &str) -> Option<Nanos> {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let with_unit = if text.chars().all(is_number) { format!("{text}s") } else { text.to_owned() };
    let (mut sum, mut rest) = (0_u64, with_unit.as_str());
    while !rest.is_empty() {
        let next = rest.trim_start_matches(is_number).trim_start_matches(|c| !is_number(c));
        let part = duration(rest.strip_suffix(next)?).ok()?;
        sum = sum.checked_add(part.get())?;
        rest = next;
    }
    Some(Nanos::new(sum))
}

/// Formats a key as YAML.
pub(super) fn key(parts: &[KeyPart]) -> String {
    match parts {
        [] => "all".to_owned(),
        [one] => one.to_string(),
        several => list(several.iter().map(KeyPart::to_string)),
    }
}

/// The setting for the status of denials; none for 429.
pub(super) fn denial(status: u64) -> Option<(&'static str, String)> {
    (status != 429).then(|| denied_with(status))
}

/// The same, also for 429: for a limit of a route that sets a status of its own.
pub(super) fn denied_with(status: u64) -> (&'static str, String) {
    (OVER_LIMIT, format!("{{ deny: {{ status: {status} }} }}"))
}

impl<'u> Url<'u> {
    pub(super) fn parse(url: &'u str) -> Option<Self> {
        let secure = url.strip_prefix("https://");
        let rest = secure.or_else(|| url.strip_prefix("http://"))?;
        // the path of a socket ends with a colon, or with the URL
        let end =
            if rest.starts_with("unix:") { rest.match_indices(':').nth(1).map(|(at, _)| at) } else { rest.find('/') };
        let (authority, path) = end.and_then(|at| rest.split_at_checked(at)).unzip();
        let path = path.map(|path| path.trim_start_matches(':')).filter(|path| !path.is_empty());
        Some(Self { is_secure: secure.is_some(), authority: authority.unwrap_or(rest), path })
    }

    /// The authority, with a port.
    pub(super) fn node(&self) -> String {
        node(self.authority, if self.is_secure { 443 } else { 80 })
    }
}

/// Adds the default `port` to an address that has none.
pub(super) fn node(address: &str, port: u16) -> String {
    if address.starts_with("unix:") {
        return address.to_owned();
    }
    if !address.is_empty() && address.bytes().all(|byte| byte.is_ascii_digit()) {
        return format!("0.0.0.0:{address}");
    }
    let address = match address.strip_prefix('*') {
        Some(rest) => format!("0.0.0.0{rest}"),
        None if address.starts_with(':') => format!("0.0.0.0{address}"),
        None => address.to_owned(),
    };
    let has_port = address.rsplit_once(':').is_some_and(|(host, _)| !host.contains(':') || host.ends_with(']'));
    if has_port { address } else { format!("{address}:{port}") }
}
