//! Several gateways in one process, most of them in virtual time.

#![allow(clippy::unwrap_used, reason = "a test says by panicking what is wrong")]

mod client;
mod cluster;
mod node;
mod oracle;
mod play;
mod shared;
mod world;
