//! The engine: sockets, TLS, framing, connections, deadlines. It knows nothing of limits; [`service`] is the border to what
//! decides.
//!
//! Each core has a [`worker::Worker`], a thread that serves its connections by itself: a task for each connection of a client,
//! which does one thing after the other, with connections to upstreams of its own.

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
