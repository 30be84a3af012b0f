//! The endpoints that clients connect to, the kinds of service that they provide, and the peers of connections.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use ipnet::IpNet;

/// An endpoint that clients connect to.
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
    /// The absolute path; at most [`SocketPath::MAX_LENGTH`] bytes.
    pub path: PathBuf,
    /// The file mode: users with write permission may connect.
    pub mode: u32,
}

impl Endpoint {
    /// The address; `None` for a Unix-domain socket.
    pub const fn inet(&self) -> Option<SocketAddr> {
        match self {
            Self::Inet(address) => Some(*address),
            Self::Path(_) => None,
        }
    }

    /// The Unix-domain socket; `None` for an address and a port.
    pub const fn path(&self) -> Option<&SocketPath> {
        match self {
            Self::Inet(_) => None,
            Self::Path(at) => Some(at),
        }
    }
}

impl SocketPath {
    /// The longest path that the operating system accepts, in bytes.
    pub const MAX_LENGTH: usize = 107;
    /// The default mode: the user and the group that tollgate runs as may connect.
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

/// The peers whose statements about clients are trusted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedPeers {
    /// The networks of the trusted peers with an address.
    pub networks: Vec<IpNet>,
    /// Whether peers that connect to a Unix-domain socket, which have no address, are trusted.
    pub unix: bool,
}

impl TrustedPeers {
    /// Whether no peer is trusted.
    pub const fn is_empty(&self) -> bool {
        self.networks.is_empty() && !self.unix
    }

    /// Whether `peer` is trusted; `None` is a peer without an address.
    pub fn contains(&self, peer: Option<IpAddr>) -> bool {
        match peer {
            // the common case
            Some(_) if self.networks.is_empty() => false,
            Some(peer) => {
                let peer = peer.to_canonical();
                self.networks.iter().any(|network| network.contains(&peer))
            }
            None => self.unix,
        }
    }
}

/// Whether a listener proxies requests, or answers questions about requests that another proxy handles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListenerService {
    /// The gateway decides about requests and forwards them to an upstream.
    #[default]
    Proxy,
    /// Subrequests of a proxy that asks over HTTP, with the request's method, host and target in `X-Forwarded-` fields.
    ForwardAuth {
        /// The status of answers that are not 2xx, for proxies that understand few statuses; `None` for the answer's own.
        denied_status: Option<u16>,
    },
    /// Envoy's external authorization, version 3.
    ExtAuthz,
    /// Envoy's rate limit service, version 3.
    RateLimitService,
}

impl ListenerService {
    /// All kinds, with their names in the configuration.
    pub const ALL: [(&str, Self); 4] = [
        ("proxy", Self::Proxy),
        ("forward_auth", Self::ForwardAuth { denied_status: None }),
        ("ext_authz", Self::ExtAuthz),
        ("rate_limit_service", Self::RateLimitService),
    ];

    /// The name in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Proxy => "proxy",
            Self::ForwardAuth { .. } => "forward_auth",
            Self::ExtAuthz => "ext_authz",
            Self::RateLimitService => "rate_limit_service",
        }
    }

    /// Whether clients ask over gRPC, and so over HTTP/2.
    pub const fn speaks_grpc(self) -> bool {
        matches!(self, Self::ExtAuthz | Self::RateLimitService)
    }

    /// Whether the requests that it is asked about take routes.
    pub const fn uses_routes(self) -> bool {
        !matches!(self, Self::RateLimitService)
    }
}
