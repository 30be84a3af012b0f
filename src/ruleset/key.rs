//! The keys by which limits count: their parts, read from a request and hashed injectively.

use std::borrow::Cow;
use std::fmt;
use std::hash::Hasher;
use std::net::IpAddr;

use siphasher::sip::SipHasher13;

use crate::fields::Fields;
use crate::ruleset::PlanId;
use crate::ruleset::groups::Groups;
use crate::ruleset::overrides::Overrides;
use crate::ruleset::request_field::{FieldPath, RequestFields};

mod hash;
mod named;
mod value;

pub use hash::{KeyHasher, LimitHashers, SharedKey, sha256};
pub use named::{Entries, Values, entry, named_value};
pub use value::{Value, ValueFault, cookies, header_value, may_have_parameter, query_values, value};

/// The parts that together make a limit's key; empty for `all` (one bucket for all requests).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Key {
    /// The parts in the order of the configuration.
    pub parts: Vec<KeyPart>,
}

impl Key {
    /// Whether the key depends on the upstream node that a request goes to.
    pub fn counts_by_node(&self) -> bool {
        self.parts.contains(&KeyPart::UpstreamNode)
    }

    /// Whether the key depends on the request's body.
    pub fn counts_by_body(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, KeyPart::RequestField(_)))
    }
}

/// One property of a request by which a limit can count.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyPart {
    /// The customer, or the address of a caller without a credential.
    Customer,
    /// The caller's plan.
    Plan,
    /// The caller's group of this level.
    Group(String),
    /// The client's address, or its network (by default the /64 of an IPv6 address).
    ClientAddress,
    /// The host of the request.
    Host,
    /// The route that matched.
    Route,
    /// The path pattern of the route that matched (never the raw path).
    RoutePattern,
    /// The method.
    Method,
    /// The upstream node that the request goes to first.
    UpstreamNode,
    /// The value of this header.
    Header(http::HeaderName, Repeated),
    /// The value of this query parameter, percent-decoded.
    Query(String, Repeated),
    /// The value of this cookie.
    Cookie(String, Repeated),
    /// The segment of the path to which the route's pattern gives this name, percent-encoded as in canonical paths.
    PathSegment(String),
    /// This claim of the caller's token, or a path through nested ones: text, a whole number, `true` or `false`.
    JwtClaim(String),
    /// The value of this field of the request's body: a text, or a whole number.
    RequestField(FieldPath),
    /// The value of this entry of a descriptor; proxied requests have none.
    Descriptor(String),
}

/// The value that counts where a request carries a header, a query parameter or a cookie more than once. An upstream may
/// take another value than tollgate does, so a client could choose its bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Repeated {
    /// None: the request is refused.
    #[default]
    Deny,
    /// The first value.
    First,
    /// The last value.
    Last,
}

/// The reason why a request has no key: one part has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyFault<'k> {
    /// The part.
    pub part: &'k KeyPart,
    /// The problem with it.
    pub fault: ValueFault,
}

impl fmt::Display for KeyFault<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = self.part.describe();
        match self.fault {
            ValueFault::Missing => write!(f, "lacks its {part}"),
            ValueFault::Repeated => write!(f, "carries its {part} more than once"),
            ValueFault::Unreadable => write!(f, "carries a {part} that cannot be read"),
        }
    }
}

impl Key {
    /// A hash of the key's parts: equal for equal keys, in every process and version.
    pub fn kind(&self) -> u64 {
        let mut hash = SipHasher13::new();
        for part in &self.parts {
            let part = part.describe();
            hash.write_u64(u64::try_from(part.len()).unwrap_or(u64::MAX));
            hash.write(part.as_bytes());
        }
        hash.finish()
    }
}

impl KeyPart {
    /// The part in words, close to the configuration's syntax: `header x-user`.
    pub fn describe(&self) -> String {
        match self {
            Self::Customer => "customer".to_owned(),
            Self::Plan => "plan".to_owned(),
            Self::Group(level) => format!("group {level}"),
            Self::ClientAddress => "client_address".to_owned(),
            Self::Host => "host".to_owned(),
            Self::Route => "route".to_owned(),
            Self::RoutePattern => "route_pattern".to_owned(),
            Self::Method => "method".to_owned(),
            Self::UpstreamNode => "upstream_node".to_owned(),
            Self::Header(name, _) => format!("header {name}"),
            Self::Query(name, _) => format!("query {name}"),
            Self::Cookie(name, _) => format!("cookie {name}"),
            Self::PathSegment(name) => format!("path segment {name}"),
            Self::JwtClaim(name) => format!("token claim {name}"),
            Self::RequestField(path) => format!("request field {path}"),
            Self::Descriptor(name) => format!("descriptor {name}"),
        }
    }
}

/// The facts about a request from which the gateway derives its route, its keys and its hashes.
#[derive(Clone)]
pub struct Facts<'a> {
    /// The method, as sent.
    pub method: &'a str,
    /// The canonical host: lower case, without a port or a final dot.
    pub host: &'a str,
    /// The canonical path.
    pub path: &'a str,
    /// The query string, without its question mark.
    pub query: Option<&'a str>,
    /// The header fields.
    pub headers: &'a Fields,
    /// The address by which limits count the client; `None` where a trusted proxy sent no usable one.
    pub client: Option<IpAddr>,
    /// The client's own address, of which `client` may be the network.
    pub address: Option<IpAddr>,
    /// The common name in the client's certificate, if it presented one.
    pub certificate: Option<&'a str>,
    /// Whether a trusted proxy sent the request. Some header fields are accepted only from trusted proxies.
    pub from_trusted_proxy: bool,
    /// Whether a body follows, whatever its length: over HTTP/2 no header field has to announce it.
    pub streams_body: bool,
    /// The fields of the body; `None` as long as it is not read. Limits that depend on it do not apply then.
    pub body: Option<&'a RequestFields>,
}

impl<'a> Facts<'a> {
    /// The facts about a request with these header fields and nothing else: a GET of `/` without a client address.
    pub const fn of(headers: &'a Fields) -> Self {
        Self {
            method: "GET",
            host: "",
            path: "/",
            query: None,
            headers,
            client: None,
            address: None,
            certificate: None,
            from_trusted_proxy: false,
            streams_body: false,
            body: None,
        }
    }
}

/// The facts about a request that the gateway finds out: its route and its caller. By default an anonymous caller without a
/// plan, on no route.
#[derive(Clone, Copy, Default)]
pub struct Resolved<'a> {
    /// The name of the route.
    pub route: &'a str,
    /// The path pattern of the route.
    pub path_pattern: &'a str,
    /// The customer that the caller is, by its name in the directory; `None` is a caller without a credential.
    pub customer: Option<&'a str>,
    /// The caller's plan.
    pub plan: Option<(PlanId, &'a str)>,
    /// The upstream node that the request goes to, as configured; set only where a limit counts by it.
    pub upstream_node: Option<&'a str>,
    /// The caller's own terms, in place of its plan's.
    pub own: Option<&'a Overrides>,
    /// The groups that the caller belongs to.
    pub groups: Option<&'a Groups>,
    /// The claims of the caller's token, if it has one.
    pub claims: Option<&'a dyn Claims>,
}

/// The claims of a verified token.
pub trait Claims: Sync {
    /// The claim of this name, or at this path through nested claims; `None` if it is missing or cannot be part of a key.
    fn text(&self, name: &str) -> Option<Cow<'_, str>>;

    /// The same for a claim that is a number: also whole ones that are too large to be a part of a key, about as they are.
    fn number(&self, name: &str) -> Option<Cow<'_, str>>;
}
