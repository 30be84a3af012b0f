//! The compiled, immutable form of the configuration: what a request meets.
//!
//! Knows nothing of YAML, of the proxy or of time. Names are resolved to indices here, so that a request resolves none.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::units::Nanos;

pub mod changes;
pub mod charges;
pub mod cost;
pub mod host;
pub mod key;
pub mod limit;
pub mod matcher;
pub mod own;
pub mod path;
pub mod upstream;
pub mod verdict;

pub use limit::{Limit, LimitId, PlanId};
pub use matcher::{Matcher, Route, RouteId};
pub use upstream::{Upstream, UpstreamId};

/// Everything that one version of the configuration says about requests.
#[derive(Debug)]
pub struct Ruleset {
    /// The routes and the order in which they are tried.
    pub matcher: Matcher,
    /// Indexed by [`LimitId`].
    pub limits: Vec<Limit>,
    /// The names of the plans, indexed by [`PlanId`].
    pub plans: Vec<String>,
    /// Indexed by [`UpstreamId`].
    pub upstreams: Vec<Upstream>,
    /// Whose word about the client's address is believed.
    pub client_address: ClientAddress,
    /// Who is calling; absent where the configuration names no customers.
    pub customers: Option<CustomerRules>,
    /// The path at which customers see where they stand; absent where they do not.
    pub usage: Option<String>,
    /// The response headers that tell where a client stands.
    pub dialects: Dialects,
    /// What is written about each request.
    pub access_log: AccessLog,
    /// How large a request's head may be.
    pub request_head: RequestHead,
}

/// How the client's address is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientAddress {
    /// `X-Forwarded-For` is believed as far as it was written by these.
    pub trusted_proxies: Vec<IpNet>,
    /// An IPv6 client is its network of this many bits, 48 to 128.
    pub ipv6_prefix: u8,
}

impl Default for ClientAddress {
    fn default() -> Self {
        Self { trusted_proxies: Vec::new(), ipv6_prefix: 64 }
    }
}

impl ClientAddress {
    /// Whether `address` belongs to a trusted proxy.
    pub fn is_trusted(&self, address: IpAddr) -> bool {
        self.trusted_proxies.iter().any(|network| network.contains(&address))
    }
}

/// How a caller becomes a customer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomerRules {
    /// Where a credential may be, tried in order.
    pub identify: Vec<CredentialSource>,
    /// The plan of callers without a credential; they are told apart by their address.
    pub anonymous: Option<PlanId>,
    /// What becomes of a credential that nobody knows.
    pub unknown: UnknownCredential,
}

/// Where a credential is read from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum CredentialSource {
    /// The value of this header.
    Header(http::HeaderName),
    /// The token of `Authorization: Bearer`.
    Bearer,
}

/// What becomes of a credential that is not in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownCredential {
    /// 401.
    Deny,
    /// As if there had been none.
    Anonymous,
}

/// Which header fields tell clients where they stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dialects {
    /// `RateLimit-Policy` and `RateLimit`.
    pub ietf: bool,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, and how the last is counted.
    pub x_ratelimit: Option<Reset>,
}

impl Default for Dialects {
    fn default() -> Self {
        Self { ietf: true, x_ratelimit: Some(Reset::Delta) }
    }
}

/// What `X-RateLimit-Reset` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reset {
    /// Seconds from now.
    Delta,
    /// Seconds since 1970.
    Epoch,
}

/// How many requests are written to the access log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessLog {
    /// None.
    #[default]
    Off,
    /// One in this many, and every denied or failed one.
    Sampled(u32),
    /// Every one.
    Full,
}

/// Bounds of a request's head, in bytes and fields; beyond them the answer is 414 or 431.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// The longest request target.
    pub max_target: usize,
    /// The longest single header line.
    pub max_header: usize,
    /// All header lines together.
    pub max_headers_total: usize,
    /// How many header lines.
    pub max_headers: usize,
    /// How long the head may take to arrive.
    pub timeout: Nanos,
}

impl Default for RequestHead {
    fn default() -> Self {
        Self {
            max_target: 8 << 10,
            max_header: 8 << 10,
            max_headers_total: 32 << 10,
            max_headers: 128,
            timeout: Nanos::from_secs(10),
        }
    }
}
