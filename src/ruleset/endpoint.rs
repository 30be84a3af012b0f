//! Where clients connect to, and who the other ends of connections are.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use ipnet::IpNet;

/// Where clients connect to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Endpoint {
    /// An address and a port.
    Inet(SocketAddr),
    /// A path in the file system.
    Path(SocketPath),
}

/// A Unix-domain socket.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SocketPath {
    /// Where it is; at most [`SocketPath::LONGEST`] bytes, from the root on.
    pub path: PathBuf,
    /// Who may connect: who may write it.
    pub mode: u32,
}

impl Endpoint {
    /// The address; none where clients come over a path.
    pub const fn inet(&self) -> Option<SocketAddr> {
        match self {
            Self::Inet(address) => Some(*address),
            Self::Path(_) => None,
        }
    }

    /// The path; none where clients come to an address.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Inet(_) => None,
            Self::Path(at) => Some(&at.path),
        }
    }
}

impl SocketPath {
    /// How long its path may be, in bytes: what the system has room for.
    pub const LONGEST: usize = 107;
    /// The mode where none is said: the user and the group that tollgate runs as.
    pub const MODE: u32 = 0o660;
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet(address) => address.fmt(f),
            Self::Path(at) => write!(f, "unix:{}", at.path.display()),
        }
    }
}

/// Other ends of connections that are believed what they say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Peers {
    /// Those with an address.
    pub networks: Vec<IpNet>,
    /// Those that come over a path, and have none.
    pub unix: bool,
}

impl Peers {
    /// Nobody.
    pub const fn is_empty(&self) -> bool {
        self.networks.is_empty() && !self.unix
    }

    /// Whether `peer` is one of them; `None` is one without an address.
    pub fn contains(&self, peer: Option<IpAddr>) -> bool {
        match peer {
            // as mostly
            Some(_) if self.networks.is_empty() => false,
            Some(peer) => {
                let peer = peer.to_canonical();
                self.networks.iter().any(|network| network.contains(&peer))
            }
            None => self.unix,
        }
    }
}
