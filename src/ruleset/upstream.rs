//! Upstreams: named sets of nodes that requests are proxied to.

use crate::ruleset::key::KeyPart;
use crate::units::Nanos;

/// Index into [`super::Ruleset::upstreams`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamId(pub usize);

/// A named set of nodes.
#[derive(Clone, Debug, PartialEq)]
pub struct Upstream {
    /// The name in the configuration.
    pub name: String,
    /// The nodes, at least one.
    pub nodes: Vec<UpstreamNode>,
    /// Whether its nodes speak HTTP/2; HTTP/1.1 otherwise.
    pub http2: bool,
    /// How the gateway chooses a node.
    pub balance: Balance,
    /// The active health check; with `None` every node counts as healthy until a connection to it fails.
    pub health_check: Option<HealthCheck>,
    /// The timeouts.
    pub timeouts: Timeouts,
    /// The retries on other nodes.
    pub retries: Retries,
    /// The time in which a node that recovers reaches its full share of requests; zero for at once.
    pub slow_start: Nanos,
    /// The most requests in flight at its nodes; `None` for any number.
    pub max_requests: Option<u64>,
    /// The most requests that may wait while that number is reached.
    pub max_pending: u64,
    /// The ejection of nodes whose requests fail; with `None` a node is left out only briefly after a failed connection.
    pub ejection: Option<Ejection>,
}

/// The ejection of a node whose requests fail (outlier detection).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// The number of failures in a row that eject a node: statuses of 500 or more, or no answer.
    pub after: u32,
    /// The length of the first ejection; each further one in a row is longer by this time, up to ten times as long.
    pub time: Nanos,
    /// The most nodes that are ejected at the same time, in percent.
    pub max_percent: usize,
}

/// Several upstreams that share the requests of a route.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// The upstreams, at least one, with weights above zero.
    pub shares: Vec<(UpstreamId, u32)>,
    /// The part of a request whose value decides the upstream; the choice is random without it.
    pub by: Option<KeyPart>,
}

impl Split {
    /// The upstream for `point`, an evenly distributed number. Each upstream has a range of points, so that a change of
    /// weights within the same total moves few points.
    pub fn at(&self, point: u64) -> Option<UpstreamId> {
        let total: u64 = self.shares.iter().map(|(_, weight)| u64::from(*weight)).sum();
        let mut left = point.checked_rem(total)?;
        let is_reached = |(_, weight): &&(UpstreamId, u32)| {
            let weight = u64::from(*weight);
            let reached = left < weight;
            left = left.saturating_sub(weight);
            reached
        };
        self.shares.iter().find(is_reached).map(|(upstream, _)| *upstream)
    }
}

/// One node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamNode {
    /// `host:port`; tollgate resolves a host name repeatedly while it runs, and uses all its addresses.
    pub address: String,
    /// The weight, 1 to 1000.
    pub weight: u32,
}

/// How the gateway chooses a node among the healthy ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Balance {
    /// Each in turn, in proportion to its weight.
    RoundRobin,
    /// At random, by weight.
    Random,
    /// The one with the fewest requests in flight for its weight.
    LeastRequests,
    /// By a hash of this part of the request (weighted rendezvous): a value goes to the same node while that is healthy.
    ConsistentHash(KeyPart),
}

/// An HTTP request sent to each node at intervals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthCheck {
    /// The path asked for; healthy answers have a status of 200 to 299.
    pub path: String,
    /// The time between two checks of a node.
    pub every: Nanos,
    /// How long an answer may take.
    pub timeout: Nanos,
    /// Good answers in a row that make a node healthy again.
    pub healthy_after: u32,
    /// Failures in a row that make a node unhealthy.
    pub unhealthy_after: u32,
}

/// The timeouts of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// The longest wait until fewer requests than `max_requests` are in flight.
    pub pending: Nanos,
    /// The time to establish a connection.
    pub connect: Nanos,
    /// The time from the end of the request to the end of the response's head.
    pub first_byte: Nanos,
    /// The time between two parts of a body, in either direction; the upstream gets `first_byte` if that is longer.
    pub idle: Nanos,
    /// The time from the request's arrival to the response's end; `None` for no timeout (streams).
    pub total: Option<Nanos>,
    /// How long an idle connection is kept for the next request; zero closes it at once.
    pub keep_alive: Nanos,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            pending: Nanos::from_secs(1),
            connect: Nanos::from_secs(1),
            first_byte: Nanos::from_secs(30),
            idle: Nanos::from_secs(60),
            total: None,
            // less than the 5 s after which common servers close idle connections
            keep_alive: Nanos::from_secs(4),
        }
    }
}

/// Retries on another node after a failed connect, which is safe for every request. (For idempotent methods, the gateway
/// also replaces a pooled connection that turns out to be closed by a new one, once, whatever the setting.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// The number of attempts beyond the first, 0 to 5.
    pub attempts: u32,
}
