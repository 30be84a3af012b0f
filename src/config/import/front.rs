//! What was read of a proxy's configuration, written as listeners, upstreams, limits and routes.

use super::{push, scalar};

/// A proxy that limits what it forwards.
#[derive(Debug, Default)]
pub(super) struct Front {
    /// Addresses, each with what else the listener says.
    pub(super) listeners: Vec<(String, String)>,
    pub(super) upstreams: Vec<Upstream>,
    pub(super) limits: Vec<FrontLimit>,
    pub(super) routes: Vec<Route>,
}

#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) name: String,
    /// Addresses, each with its weight.
    pub(super) nodes: Vec<(String, u64)>,
    /// Settings in YAML, each with a comma in front.
    pub(super) more: String,
}

#[derive(Debug)]
pub(super) struct FrontLimit {
    pub(super) name: String,
    /// What its states belong to in the proxy.
    pub(super) table: String,
    /// In YAML.
    pub(super) settings: String,
}

#[derive(Debug)]
pub(super) struct Route {
    pub(super) name: String,
    pub(super) hosts: Vec<String>,
    pub(super) path: String,
    pub(super) upstream: String,
    pub(super) limits: Vec<String>,
    /// The status of what is denied.
    pub(super) denied: u64,
    /// Networks whose requests are not limited.
    pub(super) exempt: Vec<String>,
    /// What is taken off the path's beginning, and put in front of the rest.
    pub(super) rewrite: (String, String),
}

impl Front {
    /// Without anything around it.
    pub(super) fn write(&self, text: &mut String) {
        text.push_str("\nlisteners:\n");
        for (address, more) in &self.listeners {
            push(text, format_args!("  - {{ address: {}{more} }}\n", scalar(address)));
        }
        text.push_str(
            "\n# Each address of a client has counts of its own, in IPv6 too.\nclient_address: { ipv6_prefix: 128 }\n",
        );
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
        let list = |texts: &[String]| texts.iter().map(|text| scalar(text)).collect::<Vec<_>>().join(", ");
        push(text, format_args!("  - name: {}\n", scalar(&self.name)));
        let hosts = if self.hosts.is_empty() { String::new() } else { format!("hosts: [{}], ", list(&self.hosts)) };
        push(text, format_args!("    match: {{ {hosts}path: {} }}\n", scalar(&self.path)));
        push(text, format_args!("    upstream: {}\n", scalar(&self.upstream)));
        if !self.limits.is_empty() {
            push(
                text,
                format_args!("    limits: [{}]\n    denied: {{ status: {} }}\n", list(&self.limits), self.denied),
            );
        }
        if !self.exempt.is_empty() {
            push(text, format_args!("    bypass: {{ addresses: [{}] }}\n", list(&self.exempt)));
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
    }
}
