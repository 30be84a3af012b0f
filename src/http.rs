//! The engine: sockets, TLS, framing, connections, deadlines. It knows nothing of limits; [`service`] is the border to what
//! decides.
//!
//! Each core has a [`worker::Worker`], a thread that serves its connections by itself: a task for each connection of a client,
//! which does one thing after the other, with connections to upstreams of its own.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::Ipv6Net;

pub mod body;
pub mod buffer;
pub mod client;
mod connection;
mod date;
pub mod dispatch;
pub mod encoder;
mod exchange;
mod frames;
pub mod head;
mod http2;
pub mod idle;
pub mod limiter;
pub mod listener;
pub mod pace;
mod pool;
mod presence;
pub mod proxy_protocol;
pub mod service;
pub mod socket;
pub mod syntax;
pub mod timer;
pub mod traffic;
mod transfer;
mod tunnel;
pub mod upstream;
pub mod worker;

/// The address that a client is counted by: an IPv6 client is its network of `ipv6_prefix` bits.
pub fn network(address: IpAddr, ipv6_prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(v6) => IpAddr::V6(Ipv6Net::new(v6, ipv6_prefix).map_or(v6, |net| -> Ipv6Addr { net.network() })),
    }
}
