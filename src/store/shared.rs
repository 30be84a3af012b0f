//! The gateway's side of limits that all nodes share: what is asked of Redis, when, and what is done without it.

pub mod link;

use crate::units::Nanos;

/// Where what is shared is kept, and how it is asked for.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The server or servers.
    pub servers: link::Servers,
    /// What the names of all keys begin with.
    pub prefix: String,
    /// How long a request waits for Redis.
    pub timeout: Nanos,
    /// How often what was counted here and what was counted elsewhere are put together, where that is eventual.
    pub sync_every: Nanos,
    /// How many gateways there are, as far as the configuration says.
    pub nodes: Option<u64>,
}
