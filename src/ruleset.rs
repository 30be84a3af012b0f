//! The compiled, immutable form of the configuration: what a request meets.
//!
//! Knows nothing of YAML, of the proxy or of time. Names are resolved to indices here, so that a request resolves none.

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;

use http::HeaderName;

use crate::units::{Nanos, Prefixes};

pub mod access;
pub mod ban;
pub mod changes;
pub mod charges;
pub mod cors;
pub mod cost;
pub mod credential;
pub mod denied;
pub mod domains;
pub mod endpoint;
pub mod graphql;
pub mod groups;
pub mod host;
pub mod key;
pub mod limit;
pub mod matcher;
pub mod overrides;
pub mod path;
pub mod prices;
pub mod request_field;
pub mod request_overrides;
pub mod serves;
pub mod tokens;
pub mod upstream;
pub mod verdict;
pub mod words;

pub use access::{Access, Bypass, Callers};
pub use cors::{Cors, Origins};
pub use credential::{CredentialSource, JwtRules};
pub use domains::Domain;
pub use endpoint::{Endpoint, Peers, SocketPath};
pub use limit::{Limit, Share};
pub use matcher::{Matcher, Route, RouteId};
pub use serves::Serves;
pub use upstream::{Upstream, UpstreamId};

/// Index into [`Ruleset::limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LimitId(pub usize);

/// Index into [`Ruleset::plans`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PlanId(pub usize);

/// Everything that one version of the configuration says about requests.
#[derive(Debug)]
pub struct Ruleset {
    /// The routes and the order in which they are tried.
    pub matcher: Matcher,
    /// Indexed by [`LimitId`].
    pub limits: Vec<Limit>,
    /// What the rate limit service is asked by, by the names of the domains.
    pub domains: HashMap<String, Domain>,
    /// The names of the plans, indexed by [`PlanId`].
    pub plans: Vec<String>,
    /// Indexed by [`UpstreamId`].
    pub upstreams: Vec<Upstream>,
    /// How many connections there may be.
    pub connections: ConnectionBounds,
    /// Whose word about the client's address is believed.
    pub client_address: ClientAddress,
    /// Who is calling; absent where the configuration names no customers.
    pub customers: Option<CustomerRules>,
    /// Who is let in, whatever the route.
    pub access: Access,
    /// Which sites may read tollgate's own answers; none where the configuration does not say.
    pub cors: Option<Cors>,
    /// The path at which customers see where they stand; absent where they do not.
    pub usage: Option<String>,
    /// Who is told of keys that have reached a mark of `warn_at`, if anybody.
    pub webhook: Option<Webhook>,
    /// Who is sent what customers use, if anybody.
    pub usage_events: Option<UsageEvents>,
    /// Who is sent spans of requests, if anybody.
    pub traces: Option<Traces>,
    /// The response headers that tell where a client stands.
    pub dialects: Dialects,
    /// The request headers in which upstreams are told of limits that mark: what clients write there is taken away.
    pub marks: Vec<HeaderName>,
    /// What is written about each request.
    pub access_log: AccessLog,
    /// How large a request's head may be.
    pub request_head: HeadLimits,
    /// How a request's body may come in.
    pub request_body: BodyRules,
}

/// Who is told of what happens here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// Where its receiver is.
    pub upstream: UpstreamId,
    /// The target of the requests that tell it.
    pub path: String,
    /// How long a message is tried to be delivered.
    pub keep: Nanos,
}

/// Who is sent what customers use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageEvents {
    /// Where the receiver is.
    pub upstream: UpstreamId,
    /// The target of the requests that tell it.
    pub path: String,
    /// The names of the limits whose usage is told, by [`LimitId`].
    pub limits: Vec<Option<Arc<str>>>,
    /// The names of the plans, by [`PlanId`].
    pub plans: Vec<Arc<str>>,
}

/// Who is sent spans of requests, and of which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traces {
    /// Where the collector is.
    pub upstream: UpstreamId,
    /// The target of the requests that send them.
    pub path: String,
    /// The share of the requests that have a span, of those for which no trusted proxy has decided.
    pub sample: Share,
    /// How many spans may wait until they are sent.
    pub max_spans: usize,
}

impl Ruleset {
    /// The name of the upstream of `route`; of several with their weights.
    pub fn upstream_name(&self, route: &Route) -> Option<String> {
        let name = |upstream: UpstreamId| self.upstreams.get(upstream.0).map(|upstream| upstream.name.as_str());
        let Some(split) = &route.split else { return route.upstream.and_then(name).map(str::to_owned) };
        let shares = split.shares.iter().filter_map(|(id, weight)| Some(format!("{} ({weight})", name(*id)?)));
        Some(shares.collect::<Vec<_>>().join(" or "))
    }

    /// The upstreams that requests of `route` may go to.
    pub fn reachable(&self, route: &Route) -> impl Iterator<Item = UpstreamId> {
        let diverted = route.limits.iter().filter_map(|id| match self.limits[id.0].over_limit {
            limit::OverLimit::Divert(upstream) => Some(upstream),
            _ => None,
        });
        let shares = route.split.iter().flat_map(|split| &split.shares).skip(1).map(|(upstream, _)| *upstream);
        route.upstream.into_iter().chain(shares).chain(diverted)
    }
}

/// How the client's address is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientAddress {
    /// What these write about clients is believed.
    pub trusted_proxies: Peers,
    /// Where they write it.
    pub header: AddressHeader,
    /// The client is so many hops away, counted from the one that the peer wrote; `None` is the first that is not trusted.
    pub hops: Option<NonZeroUsize>,
    /// Clients are counted by their networks.
    pub prefixes: Prefixes,
}

/// The header field that has the client's address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AddressHeader {
    /// `X-Forwarded-For`, a list to which every proxy adds.
    #[default]
    XForwardedFor,
    /// `Forwarded`, the same as RFC 7239 has it.
    Forwarded,
    /// A field that holds one address.
    Single(HeaderName),
}

impl AddressHeader {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Self::XForwardedFor => "x-forwarded-for",
            Self::Forwarded => "forwarded",
            Self::Single(name) => name.as_str(),
        }
    }
}

impl Default for ClientAddress {
    fn default() -> Self {
        Self {
            trusted_proxies: Peers::default(),
            header: AddressHeader::default(),
            hops: None,
            prefixes: Prefixes { ipv4: 32, ipv6: 64 },
        }
    }
}

impl ClientAddress {
    /// Whether `peer` is a trusted proxy; `None` is one without an address.
    pub fn is_trusted(&self, peer: Option<IpAddr>) -> bool {
        self.trusted_proxies.contains(peer)
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
    /// Where a trusted proxy says which plan a caller has, if it does.
    pub plan_from: Option<PlanHeader>,
}

/// A header field in which a trusted proxy says which plan a caller has. It goes before what the directory says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanHeader {
    /// The field.
    pub name: HeaderName,
    /// The plans that it may give, by their names in [`Ruleset::plans`].
    pub plans: Vec<PlanId>,
}

impl CustomerRules {
    /// What tokens are held to, if there are any.
    pub fn jwt(&self) -> Option<&JwtRules> {
        self.identify.iter().find_map(|source| match source {
            CredentialSource::Jwt(rules) => Some(&**rules),
            _ => None,
        })
    }
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
    /// `RateLimit-Limit`, `-Remaining` and `-Reset` of the draft's numbers up to 06.
    pub ietf_06: bool,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, and how the last is counted.
    pub x_ratelimit: Option<Reset>,
    /// By how much `Retry-After` is spread, so that clients do not all come back at once.
    pub retry_after_jitter: Option<Jitter>,
}

/// The most that is added to a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jitter {
    /// This share of it.
    Share(Share),
    /// This much.
    Time(Nanos),
}

impl Jitter {
    /// `time` with a part of the most added: `roll` of 2^32.
    pub fn spread(self, time: Nanos, roll: u32) -> Nanos {
        let most = match self {
            Self::Share(share) => share.of(time.get()),
            Self::Time(most) => most.get(),
        };
        let added = u128::from(most).saturating_mul(u128::from(roll)) >> u32::BITS;
        time.saturating_add(Nanos::new(u64::try_from(added).unwrap_or(u64::MAX)))
    }
}

impl Default for Dialects {
    fn default() -> Self {
        Self { ietf: true, ietf_06: false, x_ratelimit: Some(Reset::Delta), retry_after_jitter: None }
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
pub struct HeadLimits {
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

/// Whether requests lose fields of this name when they come in: to servers of the CGI kind it is another one, with hyphens.
pub fn is_dropped(field: &HeaderName) -> bool {
    field.as_str().contains('_')
}

/// How a request's body may come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyRules {
    /// How slowly; absent where that does not matter.
    pub min_rate: Option<MinBodyRate>,
    /// How much is held back of one that limits go by, in bytes.
    pub max_held: usize,
}

impl Default for BodyRules {
    fn default() -> Self {
        Self { min_rate: Some(MinBodyRate::default()), max_held: 1 << 20 }
    }
}

/// How slowly a request's body may come in, while the gateway waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinBodyRate {
    /// What has to come in the long run.
    pub bytes_per_second: NonZeroU64,
    /// How far behind that a client may fall; the longest pause.
    pub grace: Nanos,
}

impl MinBodyRate {
    /// How long `bytes` take at the least rate, rounded down.
    pub fn time_for(self, bytes: usize) -> Nanos {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let time = u128::from(bytes).saturating_mul(u128::from(Nanos::SECOND.get()));
        let time = time.checked_div(u128::from(self.bytes_per_second.get())).unwrap_or(u128::MAX);
        Nanos::new(u64::try_from(time).unwrap_or(u64::MAX))
    }
}

impl Default for MinBodyRate {
    fn default() -> Self {
        // no link that works at all is slower, and who sends as little keeps a connection for little
        const HUNDRED: NonZeroU64 = NonZeroU64::MIN.saturating_add(99);
        Self { bytes_per_second: HUNDRED, grace: Nanos::from_secs(20) }
    }
}

/// How many connections there may be at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionBounds {
    /// In all; `None` for as many as there are descriptors for.
    pub most: Option<usize>,
    /// Of one client, as limits count clients; `None` for any number.
    pub per_client: Option<usize>,
    /// How long one may be without a request between two of them.
    pub idle: Nanos,
}

impl Default for ConnectionBounds {
    fn default() -> Self {
        Self { most: None, per_client: None, idle: Nanos::from_secs(60) }
    }
}

impl Default for HeadLimits {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_spread_from_what_they_are_to_the_most() {
        let hour = Nanos::from_secs(3600);
        let most = [(Jitter::Share(Share(100_000)), 360), (Jitter::Time(Nanos::from_secs(5)), 5)];
        for (jitter, most) in most {
            assert_eq!(jitter.spread(hour, 0), hour);
            let latest = jitter.spread(hour, u32::MAX);
            assert!(latest < Nanos::from_secs(3600 + most) && latest > Nanos::from_secs(3599 + most), "{latest}");
            assert_eq!(jitter.spread(hour, 1 << 31), hour.saturating_add(Nanos::new(most * 500_000_000)));
        }
        assert_eq!(Jitter::Time(Nanos::MAX).spread(Nanos::MAX, u32::MAX), Nanos::MAX);
    }
}
