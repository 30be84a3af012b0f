//! The cluster settings of the configuration.

use std::net::SocketAddr;

use crate::cluster::handshake::Secret;
use crate::cluster::members::Founding;
use crate::cluster::ring::Member;
use crate::units::Nanos;

/// The settings of one node of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The address at which other nodes reach this node, which is also its name. Cannot change.
    pub own: SocketAddr,
    /// The address on which it listens for them. Cannot change.
    pub listen: SocketAddr,
    /// The other nodes.
    pub peers: Peers,
    /// The secret of all nodes. Cannot change: keys are hashed with a seed derived from it.
    pub secret: Secret,
    /// The conditions under which this node forms a cluster when it starts.
    pub founding: Founding,
    /// How long a request waits for an answer of another node. Cannot change.
    pub timeout: Nanos,
}

/// The nodes of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peers {
    /// A list of all nodes, including this one.
    Listed(Vec<Member>),
    /// The nodes behind a DNS name.
    Named(Name),
}

impl Peers {
    /// How many other nodes there are; a guess for those behind a name.
    pub const fn others(&self) -> usize {
        const BEHIND_A_NAME: usize = 8;
        match self {
            Self::Listed(members) => members.len().saturating_sub(1),
            Self::Named(_) => BEHIND_A_NAME,
        }
    }
}

/// A DNS name that resolves to nodes of equal weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name.
    pub host: String,
    /// The port that all nodes listen on.
    pub port: u16,
    /// The interval of the lookups.
    pub every: Nanos,
}
