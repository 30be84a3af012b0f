//! What a limit counts by: the parts of a key, read from a request and hashed injectively.

use std::borrow::Cow;
use std::fmt;
use std::hash::Hasher;
use std::net::IpAddr;

use sha2::{Digest, Sha256};
use siphasher::sip::SipHasher13 as SipHasher13Short;
use siphasher::sip128::{Hasher128, SipHasher13};

use crate::ruleset::limit::{LimitId, OwnTerms, PlanId};
use crate::units::LimitKey;

mod named;

pub use named::Values;

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
}

/// One thing about a request that can be counted by.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum KeyPart {
    /// Who is calling: the customer, or the address of a caller without a credential.
    Customer,
    /// The caller's plan.
    Plan,
    /// The client's address (an IPv6 client is its network).
    ClientAddress,
    /// The host asked for.
    Host,
    /// The route that matched.
    Route,
    /// The path pattern of the route that matched (never the raw path).
    Path,
    /// The method.
    Method,
    /// The upstream node that the request goes to first.
    UpstreamNode,
    /// The value of this header; several lines count as one value, joined by commas.
    Header(http::HeaderName),
    /// The value of this query parameter, percent-decoded; the first if there are several.
    Query(String),
    /// The value of this cookie; the first if there are several.
    Cookie(String),
    /// This claim of the caller's token, or a way through nested ones: text, a whole number, `true` or `false`.
    JwtClaim(String),
}

impl Key {
    /// Tells what keys are made of: equal for equal keys, in every process and version.
    pub fn kind(&self) -> u64 {
        let mut hash = SipHasher13Short::new();
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
            Self::ClientAddress => "client_address".to_owned(),
            Self::Host => "host".to_owned(),
            Self::Route => "route".to_owned(),
            Self::Path => "path".to_owned(),
            Self::Method => "method".to_owned(),
            Self::UpstreamNode => "upstream_node".to_owned(),
            Self::Header(name) => format!("header {name}"),
            Self::Query(name) => format!("query {name}"),
            Self::Cookie(name) => format!("cookie {name}"),
            Self::JwtClaim(name) => format!("token claim {name}"),
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
    pub headers: &'a http::HeaderMap,
    /// The address that the client is counted by; `None` where a trusted proxy said nothing usable.
    pub client: Option<IpAddr>,
    /// The client's own address, of which `client` may be the network.
    pub address: Option<IpAddr>,
    /// The common name in the certificate that the client showed, if it showed one.
    pub certificate: Option<&'a str>,
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
    pub own: Option<&'a OwnTerms>,
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

/// Makes [`LimitKey`]s, which tell nothing about what they are made of and at which nobody outside can aim.
///
/// Keys of this node, and those that nodes divide among themselves, are a fast hash under a seed that nobody else knows.
/// Keys that nodes share in Redis must be the same for
/// all of them, so they are a cryptographic hash (SHA-256, cut to 128 bits), under a secret where the nodes have one.
#[derive(Clone)]
pub struct KeyHasher {
    own: SipHasher13,
    /// Whether nodes divide the keys of sticky limits among themselves.
    divided: bool,
    shared: Sha256,
}

/// A [`KeyHasher`] that knows the limits of a ruleset, whose names are hashed already.
#[derive(Clone)]
pub struct LimitHashers {
    hasher: KeyHasher,
    /// What this node's keys begin with, by the limit's position.
    begun: Vec<SipHasher13>,
}

/// The name of a bucket that nodes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedKey {
    /// The bucket.
    pub key: LimitKey,
    /// The same for all buckets of a customer; otherwise the bucket's own.
    pub tag: LimitKey,
}

impl fmt::Debug for KeyHasher {
    /// The seed is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHasher")
    }
}

impl fmt::Debug for LimitHashers {
    /// So is what follows from it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LimitHashers")
    }
}

impl KeyHasher {
    /// A hasher with this seed for keys of this node, and without a secret for those that nodes share.
    pub fn new(seed: &[u8; 16]) -> Self {
        Self { own: SipHasher13::new_with_key(seed), divided: false, shared: Sha256::new() }
    }

    /// With all keys of a customer at one home, for nodes that have the same seed and divide keys among themselves.
    pub fn divided(self) -> Self {
        Self { divided: true, ..self }
    }

    /// With this secret for keys that nodes share.
    pub fn with_secret(mut self, secret: &[u8]) -> Self {
        write(&mut self.shared, TAG_SECRET, secret);
        self
    }

    /// The same hashes in every process, for what nodes and restarts have to agree on. Nothing that matters may hang on
    /// it: everybody can find keys for it.
    pub fn stable() -> Self {
        Self::new(&[0; 16])
    }

    /// With the limits of these names, in their order.
    pub fn of_limits<'n>(self, names: impl IntoIterator<Item = &'n str>) -> LimitHashers {
        LimitHashers { begun: names.into_iter().map(|name| begun(self.own, name)).collect(), hasher: self }
    }

    /// The key of a request under the limit `limit`, or the part that it lacks.
    ///
    /// Injective up to the hash (128 bits): every part is preceded by its length, the limit's name comes first.
    pub fn key<'k>(
        &self,
        limit: &str,
        key: &'k Key,
        facts: &Facts<'_>,
        resolved: &Resolved<'_>,
    ) -> Result<LimitKey, &'k KeyPart> {
        self.own_by(begun(self.own, limit), key, |part| value(part, facts, resolved))
    }

    fn own_by<'k, 'f>(
        &self,
        begun: SipHasher13,
        key: &'k Key,
        value: impl Fn(&KeyPart) -> Option<Value<'f>>,
    ) -> Result<LimitKey, &'k KeyPart> {
        let hashed = hash_key(begun, key, &value)?;
        if self.divided
            && let Some(customer) = key.parts.iter().find(|part| **part == KeyPart::Customer)
        {
            let mut hash = self.own;
            write_value(&mut hash, value(customer));
            return Ok(hashed.at_home_of(hash.end()));
        }
        Ok(hashed)
    }

    /// The bucket that requests share which lack `part` of the key of `limit`.
    pub fn shared_key(&self, limit: &str, part: &KeyPart) -> LimitKey {
        hash_missing(self.own, limit, part)
    }

    /// The same as [`KeyHasher::key`] for a limit that nodes share.
    pub fn key_of_all_nodes<'k>(
        &self,
        limit: &str,
        key: &'k Key,
        facts: &Facts<'_>,
        resolved: &Resolved<'_>,
    ) -> Result<SharedKey, &'k KeyPart> {
        self.shared_by(limit, key, |part| value(part, facts, resolved))
    }

    fn shared_by<'k, 'f>(
        &self,
        limit: &str,
        key: &'k Key,
        value: impl Fn(&KeyPart) -> Option<Value<'f>>,
    ) -> Result<SharedKey, &'k KeyPart> {
        let hashed = hash_key(begun(self.shared.clone(), limit), key, &value)?;
        let customer = key.parts.iter().find(|part| **part == KeyPart::Customer);
        let tag = customer.map(|customer| {
            let mut hash = self.shared.clone();
            write_value(&mut hash, value(customer));
            hash.end()
        });
        Ok(SharedKey { key: hashed, tag: tag.unwrap_or(hashed) })
    }

    /// The same as [`KeyHasher::shared_key`] for a limit that nodes share.
    pub fn shared_key_of_all_nodes(&self, limit: &str, part: &KeyPart) -> SharedKey {
        let key = hash_missing(self.shared.clone(), limit, part);
        SharedKey { key, tag: key }
    }

    /// A hash of one part, for balancing; `None` if the request lacks it.
    pub fn part(&self, part: &KeyPart, facts: &Facts<'_>, resolved: &Resolved<'_>) -> Option<LimitKey> {
        let mut hash = self.own;
        write_value(&mut hash, value(part, facts, resolved)).then(|| hash.end())
    }
}

impl LimitHashers {
    /// The hasher, which knows no limits.
    pub const fn hasher(&self) -> &KeyHasher {
        &self.hasher
    }

    /// The same as [`KeyHasher::key`] for the limit at this position.
    pub fn key<'k>(
        &self,
        LimitId(limit): LimitId,
        key: &'k Key,
        facts: &Facts<'_>,
        resolved: &Resolved<'_>,
    ) -> Result<LimitKey, &'k KeyPart> {
        self.hasher.own_by(self.begun[limit], key, |part| value(part, facts, resolved))
    }
}

/// What the keys of a limit begin with.
fn begun<M: Mixer>(mut hash: M, limit: &str) -> M {
    write(&mut hash, TAG_LIMIT, limit.as_bytes());
    hash
}

fn hash_key<'k, 'f>(
    mut hash: impl Mixer,
    key: &'k Key,
    value: impl Fn(&KeyPart) -> Option<Value<'f>>,
) -> Result<LimitKey, &'k KeyPart> {
    for part in &key.parts {
        if !write_value(&mut hash, value(part)) {
            return Err(part);
        }
    }
    Ok(hash.end())
}

fn hash_missing(hash: impl Mixer, limit: &str, part: &KeyPart) -> LimitKey {
    let mut hash = begun(hash, limit);
    write(&mut hash, TAG_MISSING, part.describe().as_bytes());
    hash.end()
}

const TAG_LIMIT: u8 = 0;
const TAG_VALUE: u8 = 1;
const TAG_MISSING: u8 = 2;
const TAG_ADDRESS: u8 = 3;
const TAG_SECRET: u8 = 4;

/// A hash on its way.
trait Mixer {
    fn mix(&mut self, bytes: &[u8]);
    fn end(self) -> LimitKey;
}

impl Mixer for SipHasher13 {
    /// As few bytes as tags, lengths and addresses are make the same hash sooner as a number.
    #[inline]
    fn mix(&mut self, bytes: &[u8]) {
        match *bytes {
            [byte] => self.write_u8(byte),
            [a, b, c, d] => self.write_u32(u32::from_ne_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] => self.write_u64(u64::from_ne_bytes([a, b, c, d, e, f, g, h])),
            _ => self.write(bytes),
        }
    }

    fn end(self) -> LimitKey {
        LimitKey(self.finish128().as_u128())
    }
}

impl Mixer for Sha256 {
    fn mix(&mut self, bytes: &[u8]) {
        self.update(bytes);
    }

    fn end(self) -> LimitKey {
        let hash = self.finalize();
        LimitKey(hash.iter().take(16).fold(0, |key, byte| key << 8 | u128::from(*byte)))
    }
}

#[inline]
fn write(hash: &mut impl Mixer, tag: u8, bytes: &[u8]) {
    hash.mix(&[tag]);
    hash.mix(&u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_le_bytes());
    hash.mix(bytes);
}

fn write_address(hash: &mut impl Mixer, address: IpAddr) {
    match address {
        IpAddr::V4(address) => write(hash, TAG_ADDRESS, &address.octets()),
        IpAddr::V6(address) => write(hash, TAG_ADDRESS, &address.octets()),
    }
}

/// Adds the value of one part; false if there is none.
fn write_value(hash: &mut impl Mixer, value: Option<Value<'_>>) -> bool {
    match value {
        Some(Value::Address(address)) => write_address(hash, address),
        Some(Value::Bytes(bytes)) => write(hash, TAG_VALUE, &bytes),
        None => return false,
    }
    true
}

/// What a request has for a part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'f> {
    /// An address, or a network.
    Address(IpAddr),
    /// Anything else.
    Bytes(Cow<'f, [u8]>),
}

/// What a request is counted by under `part`; `None` if it lacks that.
pub fn value<'f>(part: &KeyPart, facts: &Facts<'f>, resolved: &Resolved<'f>) -> Option<Value<'f>> {
    let text = match part {
        KeyPart::ClientAddress => return facts.client.map(Value::Address),
        KeyPart::Customer => match resolved.caller {
            Caller::Customer(name) => Some(name),
            Caller::Anonymous => return facts.client.map(Value::Address),
        },
        KeyPart::Plan => resolved.plan.map(|(_, name)| name),
        KeyPart::Host => Some(facts.host),
        KeyPart::Route => Some(resolved.route),
        KeyPart::Path => Some(resolved.path_pattern),
        KeyPart::Method => Some(facts.method),
        KeyPart::UpstreamNode => resolved.upstream_node,
        KeyPart::Header(name) => return header_value(facts.headers, name).map(Value::Bytes),
        KeyPart::Query(name) => {
            return query_values(facts.query, name).next().map(|value| Value::Bytes(Cow::Owned(value)));
        }
        KeyPart::Cookie(name) => {
            return cookies(facts.headers, name).next().map(|value| Value::Bytes(Cow::Borrowed(value)));
        }
        KeyPart::JwtClaim(name) => {
            let claim = resolved.claims.and_then(|claims| claims.text(name))?;
            return Some(Value::Bytes(match claim {
                Cow::Borrowed(claim) => Cow::Borrowed(claim.as_bytes()),
                Cow::Owned(claim) => Cow::Owned(claim.into_bytes()),
            }));
        }
    };
    text.map(|text| Value::Bytes(Cow::Borrowed(text.as_bytes())))
}

/// Several lines are one value, joined by commas.
fn header_value<'f>(headers: &'f http::HeaderMap, name: &http::HeaderName) -> Option<Cow<'f, [u8]>> {
    let mut lines = headers.get_all(name).iter().map(http::HeaderValue::as_bytes);
    match (lines.next(), lines.next()) {
        (only, None) => only.map(Cow::Borrowed),
        (Some(first), Some(second)) => {
            let all: Vec<&[u8]> = [first, second].into_iter().chain(lines).collect();
            Some(Cow::Owned(all.join(&b","[..])))
        }
        (None, Some(_)) => None,
    }
}

/// The values of the query parameter `wanted`, percent-decoded (`+` is a space), in the order of the query.
pub fn query_values(query: Option<&str>, wanted: &str) -> impl Iterator<Item = Vec<u8>> {
    let decode = |text: &str| -> Vec<u8> { percent_encoding::percent_decode_str(&text.replace('+', " ")).collect() };
    query.unwrap_or_default().split('&').filter_map(move |pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (!pair.is_empty() && decode(name) == wanted.as_bytes()).then(|| decode(value))
    })
}

/// The values of the cookies of this name (RFC 6265), in the order of the request.
pub fn cookies<'a>(headers: &'a http::HeaderMap, wanted: &str) -> impl Iterator<Item = &'a [u8]> {
    let lines = headers.get_all(http::header::COOKIE).iter();
    lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';')).filter_map(move |pair| {
        let pair = pair.trim_ascii();
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        let (name, value) = pair.split_at(equals);
        (name == wanted.as_bytes()).then(|| value.split_first().map_or(&[][..], |(_, value)| value))
    })
}
