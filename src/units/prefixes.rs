//! The prefix lengths of the networks by which limits count clients.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The number of leading bits of an address that identify a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefixes {
    /// Of an IPv4 address, up to 32.
    pub ipv4: u8,
    /// Of an IPv6 address, up to 128.
    pub ipv6: u8,
}

impl Prefixes {
    /// The address by which limits count a client: the address of its network.
    pub fn network(self, address: IpAddr) -> IpAddr {
        match address {
            IpAddr::V4(v4) => {
                let hidden = u32::MAX.checked_shr(self.ipv4.into()).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & !hidden))
            }
            IpAddr::V6(v6) => {
                let hidden = u128::MAX.checked_shr(self.ipv6.into()).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & !hidden))
            }
        }
    }
}
