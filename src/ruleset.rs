//! The compiled, immutable form of the configuration, by which the gateway decides about requests.
//!
//! It knows nothing of YAML, the proxy or time. Indices stand in place of names, so that no request looks up a name.

use std::collections::HashMap;
use std::net::IpAddr;
use std::num::{NonZeroU64, NonZeroUsize};
use std::sync::Arc;

use http::HeaderName;

use crate::algorithm::Rule;
use crate::charge::Charge;
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
pub mod outcome;
pub mod overrides;
pub mod path;
pub mod prices;
pub mod request_field;
pub mod request_overrides;
pub mod tokens;
pub mod upstream;
pub mod verdict;
pub mod words;

pub use crate::fields::is_hop_by_hop;
pub use access::{Access, Bypass, Callers};
pub use cors::{Cors, Origins};
pub use credential::{CredentialSource, JwtRules};
pub use domains::Domain;
pub use endpoint::{Endpoint, ListenerService, SocketPath, TrustedPeers};
pub use limit::{Limit, Share};
pub use matcher::{Matcher, Route, RouteId};
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
    /// The domains of the rate limit service, by name.
    pub domains: HashMap<String, Domain>,
    /// The names of the plans, indexed by [`PlanId`].
    pub plans: Vec<String>,
    /// Indexed by [`UpstreamId`].
    pub upstreams: Vec<Upstream>,
    /// The bounds on the number of connections.
    pub connections: ConnectionBounds,
    /// How the gateway finds the client's address.
    pub client_address: ClientAddress,
    /// How the gateway identifies customers; `None` where the configuration names none.
    pub customers: Option<CustomerRules>,
    /// The callers that are allowed or denied on every route.
    pub access: Access,
    /// The sites whose scripts may read tollgate's own responses; `None` where the configuration does not set them.
    pub cors: Option<Cors>,
    /// The path at which customers read their own usage; `None` where there is no such path.
    pub usage: Option<String>,
    /// The receiver of messages about keys that have reached a mark of `warn_at`, if configured.
    pub webhook: Option<Webhook>,
    /// The receiver of usage events, if configured.
    pub usage_events: Option<UsageEvents>,
    /// The collector of request spans, if configured.
    pub traces: Option<Traces>,
    /// The response headers that tell clients their quota and what is left.
    pub dialects: RateLimitHeaders,
    /// The request headers in which limits mark requests for upstreams. The gateway removes them from what clients send.
    pub marks: Vec<HeaderName>,
    /// How many requests are written to the access log.
    pub access_log: AccessLog,
    /// The bounds on a request's head.
    pub request_head: HeadLimits,
    /// The rules for a request's body.
    pub request_body: BodyRules,
}

/// The receiver of webhook messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Webhook {
    /// The receiver's upstream.
    pub upstream: UpstreamId,
    /// The target of the requests that deliver messages.
    pub path: String,
    /// How long the gateway tries to deliver a message.
    pub keep: Nanos,
}

/// The receiver of usage events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UsageEvents {
    /// The receiver's upstream.
    pub upstream: UpstreamId,
    /// The target of the requests that deliver events.
    pub path: String,
    /// The names of the limits, by [`LimitId`]; `None` for a limit whose usage is not reported.
    pub limits: Vec<Option<Arc<str>>>,
    /// The names of the plans, by [`PlanId`].
    pub plans: Vec<Arc<str>>,
}

/// The collector of request spans, and which requests get a span.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traces {
    /// The collector's upstream.
    pub upstream: UpstreamId,
    /// The target of the requests that deliver spans.
    pub path: String,
    /// The share of requests that get a span, among those for which no trusted proxy has decided that already.
    pub sample: Share,
    /// The most spans that may wait to be sent.
    pub max_spans: usize,
}

impl Ruleset {
    /// The parameters of `charge`.
    pub fn rule_of_charge<'a>(&'a self, charge: &'a Charge) -> &'a Rule {
        self.limits[charge.limit].rule(&charge.rule)
    }

    /// The name of a plan; `None` for no plan.
    pub fn plan_name(&self, plan: Option<PlanId>) -> Option<&str> {
        self.plans.get(plan?.0).map(String::as_str)
    }

    /// The plan with this name.
    pub fn plan_id(&self, name: &str) -> Option<PlanId> {
        self.plans.iter().position(|plan| plan == name).map(PlanId)
    }

    /// The name of the upstream of `route`; for a split, all names with their weights.
    pub fn upstream_name(&self, route: &Route) -> Option<String> {
        let name = |upstream: UpstreamId| self.upstreams.get(upstream.0).map(|upstream| upstream.name.as_str());
        let Some(split) = &route.split else { return route.upstream.and_then(name).map(str::to_owned) };
        let shares = split.shares.iter().filter_map(|(id, weight)| Some(format!("{} ({weight})", name(*id)?)));
        Some(shares.collect::<Vec<_>>().join(" or "))
    }

    /// The upstreams that requests of `route` may go to, also those to which limits divert.
    pub fn route_upstreams(&self, route: &Route) -> impl Iterator<Item = UpstreamId> {
        let diverted = route.limits.iter().filter_map(|id| match self.limits[id.0].over_limit {
            limit::OverLimit::Divert(upstream) => Some(upstream),
            _ => None,
        });
        route.upstreams().chain(diverted)
    }
}

/// How the client's address is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientAddress {
    /// The proxies whose header about the client's address is trusted.
    pub trusted_proxies: TrustedPeers,
    /// The header field in which they write the address.
    pub header: AddressHeader,
    /// The position of the client's address, counted from the one that the peer wrote; `None` for the first untrusted one.
    pub hops: Option<NonZeroUsize>,
    /// The prefix lengths of the networks by which limits count clients.
    pub prefixes: Prefixes,
}

/// The header field that has the client's address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AddressHeader {
    /// `X-Forwarded-For`, a list to which every proxy adds.
    #[default]
    XForwardedFor,
    /// `Forwarded`, the same kind of list (RFC 7239).
    Forwarded,
    /// A field that holds one address.
    Single(HeaderName),
}

impl AddressHeader {
    /// The name of the field.
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
            trusted_proxies: TrustedPeers::default(),
            header: AddressHeader::default(),
            hops: None,
            prefixes: Prefixes { ipv4: 32, ipv6: 64 },
        }
    }
}

impl ClientAddress {
    /// Whether `peer` is a trusted proxy; `None` is a peer without an address.
    pub fn is_trusted(&self, peer: Option<IpAddr>) -> bool {
        self.trusted_proxies.contains(peer)
    }

    /// Whether a field with this name makes a statement about earlier hops, which only trusted proxies may.
    pub fn is_hop_field(&self, name: &[u8]) -> bool {
        let begins = |prefix: &[u8]| name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
        let is_usual = matches!(name, [b'f' | b'F', ..] | [b'x' | b'X', _, b'f' | b'F' | b'r' | b'R', ..])
            && (begins(b"x-forwarded-")
                || name.eq_ignore_ascii_case(b"forwarded")
                || name.eq_ignore_ascii_case(b"x-real-ip"));
        is_usual
            || matches!(&self.header, AddressHeader::Single(own) if name.eq_ignore_ascii_case(own.as_str().as_bytes()))
    }
}

/// How the gateway identifies the customer of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomerRules {
    /// The places where a credential may be, tried in order.
    pub identify: Vec<CredentialSource>,
    /// The plan of callers without a credential; they are told apart by their address.
    pub anonymous: Option<PlanId>,
    /// How the gateway treats a credential that is not in the directory.
    pub unknown: UnknownCredential,
    /// The header field in which a trusted proxy names the caller's plan, if configured.
    pub plan_from: Option<PlanHeader>,
}

/// A header field in which a trusted proxy names the caller's plan. It takes precedence over the directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanHeader {
    /// The field.
    pub name: HeaderName,
    /// The plans that it may give, by their names in [`Ruleset::plans`].
    pub plans: Vec<PlanId>,
}

impl CustomerRules {
    /// The rules for JSON Web Tokens, if the gateway accepts any.
    pub fn jwt(&self) -> Option<&JwtRules> {
        self.identify.iter().find_map(|source| match source {
            CredentialSource::Jwt(rules) => Some(&**rules),
            _ => None,
        })
    }
}

/// How the gateway treats a credential that is not in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownCredential {
    /// The gateway answers 401.
    Deny,
    /// The request counts as one without a credential.
    Anonymous,
}

/// The response header fields that tell clients their quota and what is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimitHeaders {
    /// `RateLimit-Policy` and `RateLimit`.
    pub ietf: bool,
    /// `RateLimit-Limit`, `-Remaining` and `-Reset` of the draft's numbers up to 06.
    pub ietf_06: bool,
    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset`, with the unit of the last one.
    pub x_ratelimit: Option<ResetFormat>,
    /// The random time that is added to the retry time in an answer, so that clients do not all retry at once.
    pub retry_after_jitter: Option<Jitter>,
}

/// The most random time that is added to a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jitter {
    /// This share of the time.
    Share(Share),
    /// This much, whatever the time.
    Time(Nanos),
}

impl Jitter {
    /// `time` plus `roll` / 2^32 of the most that may be added.
    pub fn spread(self, time: Nanos, roll: u32) -> Nanos {
        let max = match self {
            Self::Share(share) => share.of(time.get()),
            Self::Time(max) => max.get(),
        };
        let added = u128::from(max).saturating_mul(u128::from(roll)) >> u32::BITS;
        time.saturating_add(Nanos::new(u64::try_from(added).unwrap_or(u64::MAX)))
    }
}

/// The unit of `X-RateLimit-Reset`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetFormat {
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
    /// The most header lines.
    pub max_headers: usize,
    /// How long the head may take to arrive.
    pub timeout: Nanos,
}

/// Whether the gateway removes this field from requests: CGI servers cannot tell `_` in its name from `-`.
pub fn is_dropped(field: &HeaderName) -> bool {
    field.as_str().contains('_')
}

/// The rules for a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyRules {
    /// The minimum rate at which it has to arrive; `None` for any rate.
    pub min_rate: Option<MinBodyRate>,
    /// The most bytes of a body that the gateway holds back while limits depend on its content.
    pub max_held: usize,
}

/// The minimum rate at which a request's body has to arrive while the gateway waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MinBodyRate {
    /// The rate in the long run.
    pub bytes_per_second: NonZeroU64,
    /// The time by which a client may fall behind that rate; also the longest pause.
    pub grace: Nanos,
}

impl MinBodyRate {
    /// The time that `bytes` take at the minimum rate, rounded down.
    pub fn time_for(self, bytes: usize) -> Nanos {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let time = u128::from(bytes).saturating_mul(u128::from(Nanos::SECOND.get()));
        let time = time.checked_div(u128::from(self.bytes_per_second.get())).unwrap_or(u128::MAX);
        Nanos::new(u64::try_from(time).unwrap_or(u64::MAX))
    }
}

/// The bounds on the number of connections at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionBounds {
    /// The most connections in total; `None` for as many as there are file descriptors for.
    pub max: Option<usize>,
    /// The most connections of one client, as limits count clients; `None` for any number.
    pub per_client: Option<usize>,
    /// How long a connection may be idle between two requests.
    pub idle: Nanos,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_spread_from_what_they_are_to_the_most() {
        let hour = Nanos::from_secs(3600);
        let jitters = [(Jitter::Share(Share(100_000)), 360), (Jitter::Time(Nanos::from_secs(5)), 5)];
        for (jitter, max) in jitters {
            assert_eq!(jitter.spread(hour, 0), hour);
            let latest = jitter.spread(hour, u32::MAX);
            assert!(latest < Nanos::from_secs(3600 + max) && latest > Nanos::from_secs(3599 + max), "{latest}");
            assert_eq!(jitter.spread(hour, 1 << 31), hour.saturating_add(Nanos::new(max * 500_000_000)));
        }
        assert_eq!(Jitter::Time(Nanos::MAX).spread(Nanos::MAX, u32::MAX), Nanos::MAX);
    }
}
