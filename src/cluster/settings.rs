//! What the configuration says of a cluster.

use std::net::SocketAddr;

use crate::cluster::handshake::Secret;
use crate::cluster::members::Founding;
use crate::cluster::ring::Member;
use crate::units::Nanos;

/// A cluster as one of its nodes is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where the others reach this node: its name among them. Cannot change.
    pub own: SocketAddr,
    /// Where it listens for them. Cannot change.
    pub listen: SocketAddr,
    /// Who the others are.
    pub peers: Peers,
    /// What all nodes know. Cannot change: it is in the names of keys.
    pub secret: Secret,
    /// What this node waits for when it starts.
    pub founding: Founding,
    /// How long a request waits for an answer of the node that it asks. Cannot change.
    pub timeout: Nanos,
}

/// Which nodes there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peers {
    /// These, of which the node itself is one.
    Listed(Vec<Member>),
    /// Those that a name stands for.
    Named(Name),
}

/// A name in DNS that stands for nodes of equal weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// The name.
    pub host: String,
    /// The port that all nodes listen on.
    pub port: u16,
    /// How often it is looked up.
    pub every: Nanos,
}
