//! The settings of the Redis that gateways share.

use ring::digest;

use crate::redis_client::{Credentials, Servers};
use crate::units::Nanos;

/// The Redis servers that gateways share, and the rules for calling them.
#[derive(Clone)]
pub struct StoreSettings {
    /// The server or servers.
    pub servers: Servers,
    /// The credentials for the servers, in force once they are applied.
    pub credentials: Credentials,
    /// The prefix of all key names.
    pub prefix: String,
    /// How long a request waits for Redis.
    pub timeout: Nanos,
    /// The interval in which a gateway syncs its counts with Redis, for `eventual` limits.
    pub sync_every: Nanos,
    /// The configured number of gateways.
    pub nodes: Option<u64>,
    /// The secret for hashing values in key names, if the configuration sets one: the same for all gateways.
    pub key_secret: Option<KeySecret>,
}

/// A secret that all gateways share.
#[derive(Clone, PartialEq, Eq)]
pub struct KeySecret([u8; 16]);

impl StoreSettings {
    /// Puts the credentials in force for new connections.
    pub fn apply_credentials(&self) {
        self.servers.set_credentials(self.credentials.clone());
    }
}

impl KeySecret {
    /// The secret of a text of any length; it is as strong as the text.
    pub fn of(text: &[u8]) -> Self {
        let digest = digest::digest(&digest::SHA256, &[b"tollgate keys", text].concat());
        let mut seed = [0; 16];
        seed.iter_mut().zip(digest.as_ref()).for_each(|(byte, hashed)| *byte = *hashed);
        Self(seed)
    }

    /// The key of the hashes.
    pub const fn seed(&self) -> &[u8; 16] {
        &self.0
    }
}
