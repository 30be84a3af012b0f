//! Who owns a key: rendezvous hashing with weights.
//!
//! Every member draws a number for each hash partition (the upper bits of a key, which all keys of a customer share) from its
//! address and that partition alone, and the smallest draw owns. So all who know the same members agree without a word, the
//! order of the draws is who stands in for whom, and a member that comes or goes moves the keys that are or were its own,
//! and no other.
//!
//! With u between 0 and 1, −ln(u)/w is exponentially distributed with rate w, and of such draws the one of member i is the
//! smallest with probability wᵢ/Σw: the logarithmic method of C. Schindelhauer and G. Schomaker, "Weighted Distributed
//! Hash Tables", SPAA 2005.
//!
//! A logarithm may differ in its last bit between two machines. Draws of 53 bits are that close once in about 2⁵⁰ partitions;
//! such a key is then kept in two places as under a split view.

use std::cmp::Ordering;
use std::fmt;
use std::hash::Hasher;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use smallvec::SmallVec;

use crate::units::LimitKey;

/// A node that owns keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Member {
    /// Where other nodes reach it: its name.
    pub address: SocketAddr,
    /// Its share of the keys, against the others'. At least 1.
    pub weight: u32,
}

impl Member {
    /// The largest weight.
    pub const MOST_WEIGHT: u32 = 1000;
}

/// Tells rings apart: the same for the same members with the same weights, on all nodes and in all versions.
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
    /// In the order of their addresses, each once.
    seats: Box<[Seat]>,
    hash: RingHash,
}

#[derive(Clone, Debug)]
struct Seat {
    member: Member,
    /// Has taken in the member's address.
    draw: SipHasher13,
}

/// Members by their order for a partition.
pub type Order = SmallVec<[SocketAddr; 4]>;

// === impl Ring ===

impl Ring {
    /// Of these members. Of several with one address the heaviest counts, whatever their order.
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

    /// What it is known by.
    pub const fn hash(&self) -> RingHash {
        self.hash
    }

    /// Its members, in the order of their addresses.
    pub fn members(&self) -> impl ExactSizeIterator<Item = Member> {
        self.seats.iter().map(|seat| seat.member)
    }

    /// Whether the node at `address` is a member.
    pub fn has(&self, address: SocketAddr) -> bool {
        self.seats.binary_search_by_key(&address, |seat| seat.member.address).is_ok()
    }

    /// Who decides about `key`; `None` where there is no member.
    pub fn owner(&self, key: LimitKey) -> Option<SocketAddr> {
        let draws = self.draws(key);
        draws.min_by(compare).map(|(_, address)| address)
    }

    /// The owner of `key`, then who stands in for it, then who stands in for that one, and so on.
    pub fn order(&self, key: LimitKey) -> Order {
        let mut draws: SmallVec<[(f64, SocketAddr); 4]> = self.draws(key).collect();
        draws.sort_unstable_by(compare);
        draws.into_iter().map(|(_, address)| address).collect()
    }

    fn draws(&self, key: LimitKey) -> impl Iterator<Item = (f64, SocketAddr)> {
        self.seats.iter().map(move |seat| (seat.draw(key.hash_partition()), seat.member.address))
    }
}

/// Equal draws, which hardly exist, go by the address.
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
        // between 0 and 1, and neither
        let uniform = ((hash.finish() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        -uniform.ln() / f64::from(self.member.weight.max(1))
    }
}

/// An address of IPv4 is written as IPv6 writes it.
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
