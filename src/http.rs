//! The engine: sockets, TLS, framing, connections, deadlines. It knows nothing about limits; [`service`] is its
//! interface to the code that decides.
//!
//! Each core has a [`worker::Worker`], a thread that serves its own connections. Each client connection is one task
//! that works sequentially and uses the worker's own connections to upstreams.

pub mod body;
pub mod body_rate;
pub mod buffer;
pub mod channel;
pub mod client;
mod connection;
mod date;
pub mod dispatch;
pub mod encoder;
mod exchange;
mod frames;
pub mod head;
mod held_body;
mod http2;
pub mod idle;
pub mod limiter;
pub mod listener;
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
