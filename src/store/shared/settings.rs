//! What the configuration says of a place that nodes share.

use std::fmt;

use ring::digest;

use crate::store::shared::link::Servers;
use crate::units::Nanos;

/// Where what is shared is kept, and how it is asked for.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The server or servers.
    pub servers: Servers,
    /// What the names of all keys begin with.
    pub prefix: String,
    /// How long a request waits for Redis.
    pub timeout: Nanos,
    /// How often what was counted here and what was counted elsewhere are put together, where that is eventual.
    pub sync_every: Nanos,
    /// How many gateways there are, as far as the configuration says.
    pub nodes: Option<u64>,
    /// What the values in the names of keys are hashed with, if the configuration says so: the same for all nodes.
    pub key_secret: Option<KeySecret>,
}

/// A secret that all nodes share.
#[derive(Clone, PartialEq, Eq)]
pub struct KeySecret([u8; 16]);

impl KeySecret {
    /// From a text of any length; the secret is as good as the text.
    pub fn of(text: &[u8]) -> Self {
        let digest = digest::digest(&digest::SHA256, &[b"tollgate keys", text].concat());
        let mut seed = [0; 16];
        seed.iter_mut().zip(digest.as_ref()).for_each(|(byte, hashed)| *byte = *hashed);
        Self(seed)
    }

    /// What hashes are keyed with.
    pub const fn seed(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for KeySecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeySecret")
    }
}
