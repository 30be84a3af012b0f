//! What a limit counts by: the parts of a key, read from a request and hashed injectively.

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
pub use named::{Entries, Values, entry};
pub use value::{Value, ValueFault, cookies, query_values, value};

/// The parts that together make a limit's key; empty for `all` (one bucket for everybody).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Key {
    /// In the order of the configuration.
    pub parts: Vec<KeyPart>,
}

impl Key {
    /// Whether it depends on the node that a request goes to.
    pub fn counts_by_node(&self) -> bool {
        self.parts.contains(&KeyPart::UpstreamNode)
    }

    /// Whether it depends on what the request's body says.
    pub fn counts_by_body(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, KeyPart::RequestField(_)))
    }
}

/// One thing about a request that can be counted by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyPart {
    /// Who is calling: the customer, or the address of a caller without a credential.
    Customer,
    /// The caller's plan.
    Plan,
    /// The caller's group of this level.
    Group(String),
    /// The client's address (an IPv6 client is its network).
    ClientAddress,
    /// The host asked for.
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
    /// The segment of the path to which the pattern of the route gives this name, percent-encoded as in canonical paths.
    PathSegment(String),
    /// This claim of the caller's token, or a way through nested ones: text, a whole number, `true` or `false`.
    JwtClaim(String),
    /// What this field of the request's body says: a text, or a whole number.
    RequestField(FieldPath),
    /// The value of this entry of a descriptor; requests have none.
    Descriptor(String),
}

/// What is taken of a header, a query parameter or a cookie that a request carries more than once. An upstream may take
/// another value than tollgate does, so a client could choose its bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Repeated {
    /// Nothing: the request is refused.
    #[default]
    Deny,
    /// The first value.
    First,
    /// The last value.
    Last,
}

/// A request has no key, because of one of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyFault<'k> {
    /// The part.
    pub part: &'k KeyPart,
    /// What is wrong with it.
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
    /// Tells what keys are made of: equal for equal keys, in every process and version.
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
    /// As the configuration writes it.
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

/// The facts of a request that keys, matches and hashes are made of.
#[derive(Clone, Debug)]
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
    /// The address that the client is counted by; `None` where a trusted proxy said nothing usable.
    pub client: Option<IpAddr>,
    /// The client's own address, of which `client` may be the network.
    pub address: Option<IpAddr>,
    /// The common name in the certificate that the client showed, if it showed one.
    pub certificate: Option<&'a str>,
    /// Whether a trusted proxy sent it, whose header fields are believed where clients' are not.
    pub from_trusted_proxy: bool,
    /// Whether a body follows, whatever its length: over HTTP/2 no field has to tell.
    pub streams_body: bool,
    /// What the body says; `None` as long as it is not read. No limit that goes by it applies then.
    pub body: Option<&'a RequestFields>,
}

impl<'a> Facts<'a> {
    /// Of a request with these fields, of which nothing else is known: a GET of `/` from nobody.
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

/// What became known of a request on the way: which route it takes and who is calling.
#[derive(Clone, Copy, Debug)]
pub struct Resolved<'a> {
    /// The name of the route.
    pub route: &'a str,
    /// The path pattern of the route.
    pub path_pattern: &'a str,
    /// Who is calling.
    pub caller: Caller<'a>,
    /// The caller's plan.
    pub plan: Option<(PlanId, &'a str)>,
    /// The upstream node that the request goes to, as configured; known only where a limit counts by it.
    pub upstream_node: Option<&'a str>,
    /// What the caller has in place of what its plan has.
    pub own: Option<&'a Overrides>,
    /// The groups that the caller belongs to.
    pub groups: Option<&'a Groups>,
    /// What the caller's token says, if it has one.
    pub claims: Option<&'a dyn Claims>,
}

/// The claims of a verified token.
pub trait Claims: fmt::Debug + Sync {
    /// The claim of this name, or at the end of this way through nested claims; `None` if it is nothing to count by.
    fn text(&self, name: &str) -> Option<Cow<'_, str>>;
}

/// Who is calling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller<'a> {
    /// A customer, by the name in the directory.
    Customer(&'a str),
    /// Somebody without a credential.
    Anonymous,
}
