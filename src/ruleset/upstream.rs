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
    /// At least one.
    pub nodes: Vec<UpstreamNode>,
    /// Whether its nodes speak HTTP/2; HTTP/1.1 otherwise.
    pub http2: bool,
    /// How a node is chosen.
    pub balance: Balance,
    /// How a node's health is found out; `None` takes every node for healthy until a connection to it fails.
    pub health_check: Option<HealthCheck>,
    /// How long things may take.
    pub timeouts: Timeouts,
    /// What is tried again.
    pub retries: Retries,
    /// How long a node that comes back takes to get its full share; zero for at once.
    pub slow_start: Nanos,
    /// How many requests may be at its nodes at the same time; `None` for any number.
    pub max_requests: Option<u64>,
    /// How many may wait until there are fewer.
    pub max_pending: u64,
    /// When a node is left alone because its requests fail; `None` only for a moment after a failed connection.
    pub ejection: Option<Ejection>,
}

/// When a node is left alone because its requests fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// So many failures in a row: a status of 500 or more, or no answer.
    pub after: u32,
    /// For how long the first time; each further time in a row it is so much longer, up to ten times as long.
    pub time: Nanos,
    /// The most nodes that are left alone at the same time, in percent.
    pub max_percent: usize,
}

/// Several upstreams that share the requests of a route.
#[derive(Clone, Debug, PartialEq)]
pub struct Split {
    /// At least one, with weights above zero.
    pub shares: Vec<(UpstreamId, u32)>,
    /// The part of a request whose value always goes to the same one; at random without it.
    pub by: Option<KeyPart>,
}

impl Split {
    /// The upstream at a point that is spread evenly. Where weights change, only so many points go to another upstream as it
    /// takes.
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
    /// `host:port`; a host name is resolved again and again while tollgate runs, and stands for all its addresses.
    pub address: String,
    /// Its share, 1 to 1000.
    pub weight: u32,
}

/// How a node is chosen among the healthy ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Balance {
    /// Each in turn, as often as its weight says.
    RoundRobin,
    /// At random, by weight.
    Random,
    /// The one with the fewest requests in flight for its weight.
    LeastRequests,
    /// By a hash of this part of the request (weighted rendezvous): the same value meets the same node while that is healthy.
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
    /// Failures in a row that make it unhealthy.
    pub unhealthy_after: u32,
}

/// How long an upstream may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// Until there are fewer requests at its nodes than there may be.
    pub pending: Nanos,
    /// To accept a connection.
    pub connect: Nanos,
    /// From the request having been sent to the head of the response being complete.
    pub first_byte: Nanos,
    /// Between two parts of a body, in either direction; the upstream gets `first_byte` if that is longer.
    pub idle: Nanos,
    /// From the request's arrival to the response's end; `None` for as long as it takes (streams).
    pub total: Option<Nanos>,
    /// How long an idle connection is kept for the next request; zero for not at all.
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
            // less than the 5 s after which common servers close
            keep_alive: Nanos::from_secs(4),
        }
    }
}

/// What is tried again on another node: a connection that could not be made, which is safe for every request. (A kept
/// connection that turns out to be closed is replaced by a new one, once, for idempotent methods whatever is said here.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retries {
    /// How many times beyond the first, 0 to 5.
    pub attempts: u32,
}

impl Default for Retries {
    fn default() -> Self {
        Self { attempts: 1 }
    }
}
