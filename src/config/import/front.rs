//! A proxy's configuration, written as listeners, upstreams, limits and routes of tollgate.

use super::matches::{Match, ScopedLimit, common, common_network, split};
use super::{Names, list, push, scalar};
use crate::ruleset::host::HostPattern;

/// A proxy that limits the requests that it forwards.
#[derive(Debug, Default)]
pub(super) struct ProxyConfig {
    /// The listeners: each an address, and further settings in YAML that begin with a comma.
    pub(super) listeners: Vec<(String, String)>,
    /// The settings of `connections`, in YAML.
    pub(super) connections: Vec<String>,
    /// Further sections of the file in YAML, one line each.
    pub(super) sections: Vec<String>,
    pub(super) upstreams: Vec<Upstream>,
    pub(super) limits: Vec<FrontLimit>,
    pub(super) routes: Vec<Route>,
}

#[derive(Debug, Default)]
pub(super) struct Upstream {
    pub(super) name: String,
    /// Addresses, each with its weight.
    pub(super) nodes: Vec<(String, u64)>,
    /// Settings in YAML, each with a comma in front of it.
    pub(super) more: String,
}

#[derive(Debug)]
pub(super) struct FrontLimit {
    pub(super) name: String,
    /// The table, zone or plugin that holds the counts in the proxy.
    pub(super) table: String,
    /// The settings, in YAML.
    pub(super) settings: String,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Route {
    pub(super) name: String,
    pub(super) matches: Match,
    /// Names of upstreams, each with its share of the requests.
    pub(super) upstreams: Vec<(String, u64)>,
    pub(super) limits: Vec<String>,
    /// Networks whose requests are not limited.
    pub(super) exempt: Vec<String>,
    /// The prefix that is removed from the path, and the one that is added then.
    pub(super) rewrite: (String, String),
    pub(super) access: Access,
    /// Further settings in YAML, one line each.
    pub(super) more: Vec<String>,
}

/// The networks that a route lets in and keeps out.
#[derive(Clone, Debug, Default)]
pub(super) struct Access {
    /// The networks that the route lets in; all where the list is empty.
    pub(super) allow: Vec<String>,
    pub(super) deny: Vec<String>,
}

impl Access {
    /// Lets in only the addresses that `other` lets in, too. `false` where both name other networks; then nothing changes.
    pub(super) fn narrow(&mut self, other: &Self) -> bool {
        let Some(allow) = common(&self.allow, &other.allow, common_network) else { return false };
        self.allow = allow;
        let new: Vec<String> = other.deny.iter().filter(|network| !self.deny.contains(network)).cloned().collect();
        self.deny.extend(new);
        true
    }

    fn write(&self, text: &mut String) {
        let part = |name: &str, networks: &[String]| {
            (!networks.is_empty()).then(|| format!("{name}: {{ addresses: {} }}", list(networks)))
        };
        let parts: Vec<String> = part("allow", &self.allow).into_iter().chain(part("deny", &self.deny)).collect();
        if !parts.is_empty() {
            push(text, format_args!("    access: {{ {} }}\n", parts.join(", ")));
        }
    }
}

impl ProxyConfig {
    /// The name of the limit with these settings that counts in `table`: an existing limit, or a new one.
    pub(super) fn limit(&mut self, name: &str, table: &str, settings: String, names: &mut Names) -> String {
        let known = self.limits.iter().find(|limit| limit.table == table && limit.settings == settings);
        if let Some(known) = known {
            return known.name.clone();
        }
        let name = names.of(name, std::iter::empty());
        self.limits.push(FrontLimit { name: name.clone(), table: table.to_owned(), settings });
        name
    }

    /// Adds a route for `route.matches`, and one for each part of it to which further limits apply. Returns notes about
    /// parts and hosts that are left out, and about limits that exempt different networks.
    pub(super) fn add(&mut self, route: &Route, scoped: &[ScopedLimit], names: &mut Names) -> Vec<String> {
        let cells = split(&route.matches, scoped);
        let mut notes = Vec::new();
        if cells.is_none() {
            notes.push("has more combinations of conditions than are carried over".to_owned());
        }
        for mut matches in cells.unwrap_or_else(|| vec![route.matches.clone()]) {
            let holding: Vec<&ScopedLimit> = scoped.iter().filter(|limit| limit.holds_for(&matches)).collect();
            let exempt = holding.first().map(|limit| limit.exempt.clone()).unwrap_or_default();
            let is_same = holding.iter().all(|limit| limit.exempt == exempt);
            if !is_same {
                notes.push("its limits exempt different networks: here they exempt none".to_owned());
            }
            let is_host = |host: &String| HostPattern::parse(host).is_ok();
            let (hosts, others): (Vec<String>, Vec<String>) = matches.hosts.into_iter().partition(is_host);
            notes.extend(others.iter().map(|host| format!("the host {host} is left out: no route has a host like it")));
            if hosts.is_empty() && !others.is_empty() {
                continue;
            }
            matches.hosts = hosts;
            let mut limits: Vec<String> = Vec::new();
            for ScopedLimit { limit, .. } in holding {
                if !limits.contains(limit) {
                    limits.push(limit.clone());
                }
            }
            let name = names.of(&route.name, std::iter::empty());
            let exempt = if is_same { exempt } else { Vec::new() };
            self.routes.push(Route { name, matches, limits, exempt, ..route.clone() });
        }
        notes
    }

    /// Writes the sections, without the comments at the head of the file.
    pub(super) fn write(&self, text: &mut String) {
        text.push_str("\nlisteners:\n");
        for (address, more) in &self.listeners {
            push(text, format_args!("  - {{ address: {}{more} }}\n", scalar(address)));
        }
        text.push_str(
            "\n# Each address of a client has counts of its own, in IPv6 too.\nclient_address: { ipv6_prefix: 128 }\n",
        );
        if !self.connections.is_empty() {
            push(text, format_args!("\nconnections: {{ {} }}\n", self.connections.join(", ")));
        }
        self.sections.iter().for_each(|section| push(text, format_args!("\n{section}\n")));
        text.push_str("\nupstreams:\n");
        for Upstream { name, nodes, more } in &self.upstreams {
            let nodes = nodes.iter().map(|(address, weight)| match weight {
                1 => scalar(address),
                weight => format!("{{ address: {}, weight: {weight} }}", scalar(address)),
            });
            let nodes = nodes.collect::<Vec<_>>().join(", ");
            push(text, format_args!("  {}: {{ nodes: [{nodes}]{more} }}\n", scalar(name)));
        }
        text.push_str(if self.limits.is_empty() { "\nlimits: {}\n" } else { "\nlimits:\n" });
        for FrontLimit { name, settings, .. } in &self.limits {
            push(text, format_args!("  {}: {{ {settings} }}\n", scalar(name)));
        }
        text.push_str("\nroutes:\n");
        self.routes.iter().for_each(|route| route.write(text));
    }
}

impl Route {
    fn write(&self, text: &mut String) {
        push(text, format_args!("  - name: {}\n    match: {}\n", scalar(&self.name), self.matches.written()));
        let upstream = match self.upstreams.as_slice() {
            [(one, _)] => scalar(one),
            several => {
                let share = |(name, weight): &(String, u64)| format!("{{ name: {}, weight: {weight} }}", scalar(name));
                format!("[{}]", several.iter().map(share).collect::<Vec<_>>().join(", "))
            }
        };
        push(text, format_args!("    upstream: {upstream}\n"));
        if !self.limits.is_empty() {
            push(text, format_args!("    limits: {}\n", list(&self.limits)));
        }
        if !self.exempt.is_empty() {
            push(text, format_args!("    bypass: {{ addresses: {} }}\n", list(&self.exempt)));
        }
        let part = |name: &str, part: &str| match part {
            "" => None,
            part => Some(format!("{name}: {}", scalar(part))),
        };
        let (strip, add) = &self.rewrite;
        let parts: Vec<String> = part("strip_prefix", strip).into_iter().chain(part("add_prefix", add)).collect();
        if !parts.is_empty() {
            push(text, format_args!("    rewrite: {{ {} }}\n", parts.join(", ")));
        }
        self.access.write(text);
        self.more.iter().for_each(|line| push(text, format_args!("    {line}\n")));
    }
}

/// Formats the parts of a key as YAML.
pub(super) fn key(parts: &[String]) -> String {
    match parts {
        [] => "all".to_owned(),
        [one] => one.clone(),
        several => format!("[{}]", several.join(", ")),
    }
}

/// Formats a part of a key as YAML: a field that requests carry.
pub(super) fn key_field(kind: &str, name: &str) -> String {
    format!("{{ {kind}: {} }}", scalar(name))
}

/// The setting for the status of denials in YAML, with a comma in front; empty for 429.
pub(super) fn denial(status: u64) -> String {
    if status == 429 { String::new() } else { denied_with(status) }
}

/// The same, also for 429: for a limit of a route that sets a status of its own.
pub(super) fn denied_with(status: u64) -> String {
    format!(", over_limit: {{ deny: {{ status: {status} }} }}")
}

/// Splits an `http` or `https` URL: whether it is `https`, its authority, and its path.
pub(super) fn url(url: &str) -> Option<(bool, &str, Option<&str>)> {
    let secure = url.strip_prefix("https://");
    let rest = secure.or_else(|| url.strip_prefix("http://"))?;
    let (authority, path) = match rest.find('/') {
        Some(at) => (rest.get(..at)?, rest.get(at..)),
        None => (rest, None),
    };
    Some((secure.is_some(), authority, path))
}

/// Makes a valid upstream name out of a name or an address.
pub(super) fn upstream_name(text: &str) -> String {
    text.replace(|c: char| !c.is_ascii_alphanumeric() && !"-_.".contains(c), "-")
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
