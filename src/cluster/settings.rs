//! The cluster settings of the configuration.

use std::net::SocketAddr;

use crate::cluster::handshake::Secret;
use crate::cluster::members::Founding;
use crate::cluster::ring::Member;
use crate::units::Nanos;

/// The settings of one gateway of a cluster.
#[derive(Clone, PartialEq, Eq)]
pub struct ClusterSettings {
    /// The address at which other gateways reach this gateway, which is also its name. Cannot change.
    pub own: SocketAddr,
    /// The address on which it listens for them. Cannot change.
    pub listen: SocketAddr,
    /// The other gateways.
    pub peers: Peers,
    /// The secret of all gateways. Cannot change: keys are hashed with a seed derived from it.
    pub secret: Secret,
    /// The conditions under which this gateway forms a cluster when it starts.
    pub founding: Founding,
    /// How long a request waits for an answer of another gateway. Cannot change.
    pub timeout: Nanos,
}

/// The gateways of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peers {
    /// A list of all gateways, including this one.
    Listed(Vec<Member>),
    /// The gateways behind a DNS name.
    Named(Name),
}

impl Peers {
    /// How many other gateways there are; a guess for those behind a name.
    pub const fn others(&self) -> usize {
        const BEHIND_A_NAME: usize = 8;
        match self {
            Self::Listed(members) => members.len().saturating_sub(1),
            Self::Named(_) => BEHIND_A_NAME,
        }
    }
}

/// A DNS name that resolves to gateways of equal weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name.
    pub host: String,
    /// The port that all gateways listen on.
    pub port: u16,
    /// The interval of the lookups.
    pub every: Nanos,
}
