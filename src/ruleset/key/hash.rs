//! Hashes of keys: a key becomes a number that does not reveal its parts.

use std::hash::Hasher;
use std::net::IpAddr;

use ring::digest;
use siphasher::sip128::{Hasher128, SipHasher13};

use super::{Facts, Key, KeyFault, KeyPart, Resolved, Value, ValueFault, value};
use crate::charge::Mode;
use crate::ruleset::LimitId;
use crate::units::LimitKey;

/// Makes [`LimitKey`]s, which do not reveal their parts; no client can choose values to hit another key.
///
/// Keys of this gateway, and keys that gateways divide among themselves, are a fast hash under a secret seed. Keys that
/// gateways share in Redis must be the same for all of them, so they are a cryptographic hash (SHA-256, cut to 128
/// bits), under a secret where the gateways have one.
#[derive(Clone)]
pub struct KeyHasher {
    own: SipHasher13,
    /// Whether gateways divide the keys of sticky limits among themselves.
    divided: bool,
    shared: digest::Context,
}

/// A [`KeyHasher`] for the limits of a ruleset, whose names it has hashed in advance.
#[derive(Clone)]
pub struct LimitHashers {
    hasher: KeyHasher,
    /// The hashes of keys after the limit's name, by the limit's position.
    limits: Vec<LimitPrefix>,
}

/// The hashes of keys after a limit's name: of keys of this gateway, and of keys that gateways share.
#[derive(Clone)]
struct LimitPrefix {
    own: SipHasher13,
    shared: digest::Context,
}

/// The key of a bucket, and its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedKey {
    /// The bucket's key.
    pub key: LimitKey,
    /// The hash of the customer, the same for all its buckets that gateways share; the bucket's own key where the key
    /// has no customer, or where gateways do not share the bucket.
    pub tag: LimitKey,
}

impl KeyHasher {
    /// A hasher with this seed for keys of this gateway, and without a secret for keys that gateways share.
    pub fn new(seed: &[u8; 16]) -> Self {
        Self { own: SipHasher13::new_with_key(seed), divided: false, shared: digest::Context::new(&digest::SHA256) }
    }

    /// Puts all keys of a customer in one hash partition, for gateways with the same seed that divide keys among
    /// themselves.
    pub fn divided(self) -> Self {
        Self { divided: true, ..self }
    }

    /// Sets the secret for keys that gateways share.
    pub fn with_secret(mut self, secret: &[u8]) -> Self {
        write(&mut self.shared, TAG_SECRET, secret);
        self
    }

    /// A hasher with a public seed, the same in every process, for choices on which gateways and restarts have to
    /// agree. No protection may depend on it: everybody can find keys for a given hash.
    pub fn stable() -> Self {
        Self::new(&[0; 16])
    }

    /// Adds the limits of these names, in their order.
    pub fn of_limits<'n>(self, names: impl IntoIterator<Item = &'n str>) -> LimitHashers {
        let prefix =
            |name| LimitPrefix { own: limit_prefix(self.own, name), shared: limit_prefix(self.shared.clone(), name) };
        LimitHashers { limits: names.into_iter().map(prefix).collect(), hasher: self }
    }

    /// The key under the limit `limit` of a request with these values for its parts. Errors: a part without a value.
    ///
    /// Injective up to the hash (128 bits): every part is preceded by its length, the limit's name comes first.
    pub fn key<'k, 'f>(
        &self,
        limit: &str,
        mode: Mode,
        key: &'k Key,
        value: impl Fn(&KeyPart) -> Result<Value<'f>, ValueFault>,
    ) -> Result<SharedKey, KeyFault<'k>> {
        match mode {
            Mode::Sticky => self.node_key(limit_prefix(self.own, limit), key, value),
            Mode::Shared(_) => self.shared_key(&limit_prefix(self.shared.clone(), limit), key, value),
        }
    }

    /// The key of a bucket of this gateway, which is its own tag.
    fn node_key<'k, 'f>(
        &self,
        limit_prefix: SipHasher13,
        key: &'k Key,
        value: impl Fn(&KeyPart) -> Result<Value<'f>, ValueFault>,
    ) -> Result<SharedKey, KeyFault<'k>> {
        let mut hashed = hash_key(limit_prefix, key, &value)?;
        if self.divided
            && let Some(customer) = key.parts.iter().find(|part| **part == KeyPart::Customer)
        {
            let mut hash = self.own;
            write_value(&mut hash, value(customer).ok());
            hashed = hashed.in_partition_of(hash.end());
        }
        Ok(SharedKey { key: hashed, tag: hashed })
    }

    #[inline(never)] // this hash needs much stack space, which most requests do not need
    fn shared_key<'k, 'f>(
        &self,
        limit_prefix: &digest::Context,
        key: &'k Key,
        value: impl Fn(&KeyPart) -> Result<Value<'f>, ValueFault>,
    ) -> Result<SharedKey, KeyFault<'k>> {
        let hashed = hash_key(limit_prefix.clone(), key, &value)?;
        let customer = key.parts.iter().find(|part| **part == KeyPart::Customer);
        let tag = customer.map(|customer| {
            let mut hash = self.shared.clone();
            write_value(&mut hash, value(customer).ok());
            hash.end()
        });
        Ok(SharedKey { key: hashed, tag: tag.unwrap_or(hashed) })
    }

    /// The key of the bucket shared by all requests that have no key under `limit` because of `fault`.
    pub fn missing_part_key(&self, limit: &str, mode: Mode, fault: KeyFault<'_>) -> SharedKey {
        let key = match mode {
            Mode::Sticky => hash_missing(limit_prefix(self.own, limit), fault),
            Mode::Shared(_) => hash_missing(limit_prefix(self.shared.clone(), limit), fault),
        };
        SharedKey { key, tag: key }
    }

    /// The hash of one part, for load balancing.
    pub fn part(&self, part: &KeyPart, facts: &Facts<'_>, resolved: &Resolved<'_>) -> Result<LimitKey, ValueFault> {
        let mut hash = self.own;
        write_value(&mut hash, Some(value(part, facts, resolved)?));
        Ok(hash.end())
    }
}

impl LimitHashers {
    /// The hasher without limits.
    pub const fn hasher(&self) -> &KeyHasher {
        &self.hasher
    }

    /// The same as [`KeyHasher::key`] for the limit at this position.
    pub fn key<'k, 'f>(
        &self,
        LimitId(limit): LimitId,
        mode: Mode,
        key: &'k Key,
        value: impl Fn(&KeyPart) -> Result<Value<'f>, ValueFault>,
    ) -> Result<SharedKey, KeyFault<'k>> {
        let LimitPrefix { own, shared } = &self.limits[limit];
        match mode {
            Mode::Sticky => self.hasher.node_key(*own, key, value),
            Mode::Shared(_) => self.hasher.shared_key(shared, key, value),
        }
    }
}

/// The hash of keys after the limit's name.
fn limit_prefix<M: Mixer>(mut hash: M, limit: &str) -> M {
    write(&mut hash, TAG_LIMIT, limit.as_bytes());
    hash
}

fn hash_key<'k, 'f>(
    mut hash: impl Mixer,
    key: &'k Key,
    value: impl Fn(&KeyPart) -> Result<Value<'f>, ValueFault>,
) -> Result<LimitKey, KeyFault<'k>> {
    for part in &key.parts {
        let value = value(part).map_err(|fault| KeyFault { part, fault })?;
        write_value(&mut hash, Some(value));
    }
    Ok(hash.end())
}

fn hash_missing(mut hash: impl Mixer, KeyFault { part, fault }: KeyFault<'_>) -> LimitKey {
    let tag = if fault == ValueFault::Unreadable { TAG_UNREADABLE } else { TAG_MISSING };
    write(&mut hash, tag, part.describe().as_bytes());
    hash.end()
}

const TAG_LIMIT: u8 = 0;
const TAG_VALUE: u8 = 1;
const TAG_MISSING: u8 = 2;
const TAG_ADDRESS: u8 = 3;
const TAG_SECRET: u8 = 4;
const TAG_UNREADABLE: u8 = 5;

/// A hash in progress.
trait Mixer {
    fn mix(&mut self, bytes: &[u8]);
    fn end(self) -> LimitKey;
}

impl Mixer for SipHasher13 {
    /// Few bytes (a tag, a length, an IPv4 address) give the same hash faster if written as one number.
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

impl Mixer for digest::Context {
    fn mix(&mut self, bytes: &[u8]) {
        self.update(bytes);
    }

    fn end(self) -> LimitKey {
        LimitKey(self.finish().as_ref().iter().take(16).fold(0, |key, byte| key << 8 | u128::from(*byte)))
    }
}

/// The SHA-256 of `bytes`.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    hash
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

/// Adds the value of one part, if there is one.
fn write_value(hash: &mut impl Mixer, value: Option<Value<'_>>) {
    match value {
        Some(Value::Address(address)) => write_address(hash, address),
        Some(Value::Bytes(bytes)) => write(hash, TAG_VALUE, &bytes),
        None => {}
    }
}
