//! The owners of keys: rendezvous hashing with weights.
//!
//! Each member draws a number for each hash partition (the upper bits of a key, which all keys of a customer share),
//! from its address and the partition alone. The smallest draw owns the partition. So all gateways that know the same
//! members agree without communication, and the order of the draws is the order of the stand-ins. A member that joins
//! or leaves moves only the keys that it then owns or owned before.
//!
//! With u between 0 and 1, −ln(u)/w is exponentially distributed with rate w, and the draw of member i is the smallest
//! one with probability wᵢ/Σw: the logarithmic method of C. Schindelhauer and G. Schomaker, "Weighted Distributed Hash
//! Tables", SPAA 2005.
//!
//! A logarithm may differ in its last bit between two machines. Two draws of 53 bits are that close once in about 2⁵⁰
//! partitions; two gateways then keep such a key, as under a split view.

use std::cmp::Ordering;
use std::fmt;
use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use smallvec::SmallVec;

use crate::units::LimitKey;

/// A gateway that owns keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Member {
    /// The address at which other gateways reach it, which is also its name.
    pub address: SocketAddr,
    /// Its share of the keys, relative to the other members' weights. At least 1.
    pub weight: u32,
}

/// Identifies a ring: the same for the same members with the same weights, on all gateways and in all versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RingHash(pub u64);

impl fmt::Display for RingHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The members that keys are divided among.
#[derive(Clone, Debug)]
pub struct Ring {
    /// The members in the order of their addresses, each once.
    seats: Box<[Seat]>,
    hash: RingHash,
}

#[derive(Clone, Debug)]
struct Seat {
    member: Member,
    /// A hasher that has already hashed the member's address.
    draw: SipHasher13,
}

/// The addresses of the members in the order of their draws for a partition.
pub type Order = SmallVec<[SocketAddr; 4]>;

// === impl Ring ===

impl Ring {
    /// The ring of `members`. Of several members with one address, the one with the largest weight counts.
    pub fn new(members: impl IntoIterator<Item = Member>) -> Self {
        let mut members: Vec<Member> = members.into_iter().collect();
        members.sort_unstable_by_key(|member| (member.address, std::cmp::Reverse(member.weight)));
        members.dedup_by_key(|member| member.address);
        let mut hash = SipHasher13::new();
        for member in &members {
            write_address(&mut hash, member.address);
            hash.write_u32(member.weight);
        }
        let seats = members.into_iter().map(Seat::of).collect();
        Self { seats, hash: RingHash(hash.finish()) }
    }

    /// The hash that identifies this ring.
    pub const fn hash(&self) -> RingHash {
        self.hash
    }

    /// Its members, in the order of their addresses.
    pub fn members(&self) -> impl ExactSizeIterator<Item = Member> {
        self.seats.iter().map(|seat| seat.member)
    }

    /// Whether the gateway at `address` is a member.
    pub fn has(&self, address: SocketAddr) -> bool {
        self.seats.binary_search_by_key(&address, |seat| seat.member.address).is_ok()
    }

    /// The owner of `key`; `None` if there are no members.
    pub fn owner(&self, key: LimitKey) -> Option<SocketAddr> {
        let draws = self.draws(key);
        draws.min_by(compare).map(|(_, address)| address)
    }

    /// The owner of `key`, then the gateway that stands in for the owner, then the next stand-in, and so on.
    pub fn order(&self, key: LimitKey) -> Order {
        let mut draws: SmallVec<[(f64, SocketAddr); 4]> = self.draws(key).collect();
        draws.sort_unstable_by(compare);
        draws.into_iter().map(|(_, address)| address).collect()
    }

    fn draws(&self, key: LimitKey) -> impl Iterator<Item = (f64, SocketAddr)> {
        self.seats.iter().map(move |seat| (seat.draw(key.hash_partition()), seat.member.address))
    }
}

/// Orders draws; equal draws, which are very rare, by the address.
fn compare((a, at_a): &(f64, SocketAddr), (b, at_b): &(f64, SocketAddr)) -> Ordering {
    a.total_cmp(b).then_with(|| at_a.cmp(at_b))
}

impl Seat {
    fn of(member: Member) -> Self {
        let mut draw = SipHasher13::new();
        write_address(&mut draw, member.address);
        Self { member, draw }
    }

    #[expect(clippy::cast_precision_loss, reason = "the number has 53 bits")]
    fn draw(&self, hash_partition: u32) -> f64 {
        let mut hash = self.draw;
        hash.write_u32(hash_partition);
        // strictly between 0 and 1
        let uniform = ((hash.finish() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -uniform.ln() / f64::from(self.member.weight.max(1))
    }
}

/// Hashes an address; an IPv4 address as its IPv4-mapped IPv6 address.
fn write_address(hash: &mut SipHasher13, address: SocketAddr) {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    hash.write(&ip.octets());
    hash.write(&address.port().to_le_bytes());
}

#[cfg(test)]
mod tests;
