//! Gateways of a cluster, each on its own loopback address.

use std::net::SocketAddr;

use super::{Gateway, Origin, free_port, wait_until};

/// The cluster secret of all gateways by default.
pub const SECRET: &str = "a secret of the cluster's, long enough";

/// The addresses of a cluster's gateways; not all of them need to run.
#[derive(Clone, Debug)]
pub struct Nodes(pub Vec<SocketAddr>);

impl Nodes {
    pub fn new(count: u8) -> Self {
        Self((1..=count).map(|last| SocketAddr::from(([127, 0, 0, last], free_port()))).collect())
    }

    /// The section `cluster:` of the gateway at this position.
    pub fn section(&self, position: usize, more: &str) -> String {
        let peers: Vec<String> = self.0.iter().map(|address| format!("\"{address}\"")).collect();
        let peers = peers.join(", ");
        // the gateways start one after the other
        let more = if more.contains("min_members") { more.to_owned() } else { format!("min_members: 1, {more}") };
        format!("cluster: {{ self: \"{}\", peers: [{peers}], secret_file: cluster.key, {more} }}\n", self.0[position])
    }

    /// Starts the gateway at this position with a limit `guard` by the field `x-key`.
    pub fn start(&self, position: usize, origin: &Origin, more: &str, limit: &str) -> Gateway {
        let rest = format!(
            "{}limits: {{ guard: {{ key: {{ header: x-key }}, {limit} }} }}
routes: [{{ name: all, upstream: origin, limits: [guard] }}]
",
            origin.upstream(),
        );
        self.start_with(position, more, &rest)
    }

    /// Starts the gateway at this position.
    pub fn start_with(&self, position: usize, more: &str, rest: &str) -> Gateway {
        let config = format!("{}{rest}", self.section(position, more));
        Gateway::start_with(&config, &[("cluster.key", SECRET)], &[])
    }

    /// Starts all gateways, and waits until they know each other. Calls between them have the longest timeout.
    pub fn start_all(&self, origin: &Origin, limit: &str) -> Vec<Gateway> {
        let gateways: Vec<Gateway> =
            (0..self.0.len()).map(|position| self.start(position, origin, "timeout: 1s", limit)).collect();
        wait_for_members(&gateways, self.0.len());
        gateways
    }
}

/// Waits until all `gateways` see the same members, and this number of them.
pub fn wait_for_members(gateways: &[Gateway], count: usize) {
    wait_until(&format!("{count} members"), || {
        let seen: Vec<Vec<String>> = gateways.iter().map(members).collect();
        seen.iter().all(|members| members.len() == count && seen.first() == Some(members))
    });
}

/// The members that a gateway sees.
pub fn members(gateway: &Gateway) -> Vec<String> {
    let status = gateway.admin_get("/status").json();
    let members = status["cluster"]["members"].as_array().cloned().unwrap_or_default();
    members.iter().map(|member| member["address"].as_str().unwrap_or_default().to_owned()).collect()
}

/// The number of keys that a gateway keeps.
pub fn keys(gateway: &Gateway) -> usize {
    let keys = gateway.metrics().value("tollgate_limit_keys", &[("limit", "guard")]).unwrap_or_default();
    format!("{keys}").parse().unwrap()
}
