//! The server that the gateway asks for customers, from the configuration and the files that it names.

use std::sync::Arc;

use http::uri::Scheme;

use super::directory::{LookupSource, ServerIdentity};
use super::named_files::{Files, Refused};
use crate::config::{HttpLookup, LookupCacheSettings, RedisHash};
use crate::customers::directory::{Contract, HttpService, LookupSettings, Server};
use crate::files::hash;
use crate::redis_client::{Pool, Servers};
use crate::runtime::descriptors;
use crate::units::Nanos;

/// The longest time that a request waits for Redis.
const REDIS_TIMEOUT: Nanos = Nanos::new(100_000_000);
/// The maximum number of concurrent calls to Redis, which share connections.
const MAX_REDIS_CALLS: usize = 10_000;

/// A Redis hash on the `servers` of the store.
pub(super) fn redis(RedisHash { key, remembered }: &RedisHash, servers: &Servers) -> LookupSource {
    LookupSource {
        identity: ServerIdentity::Redis(key.clone()),
        server: Server::Redis { pool: Pool::new(servers.clone()), key: key.clone() },
        settings: settings(REDIS_TIMEOUT, MAX_REDIS_CALLS, *remembered),
    }
}

/// An HTTP service.
pub(super) fn http(configured: &HttpLookup, files: &mut Files<'_>) -> Result<LookupSource, Refused> {
    let HttpLookup { url, is_unkey, token_file, tls, timeout, remembered } = configured;
    let token = token_file.as_ref().map(|named| files.token(named)).transpose()?;
    let client = (url.scheme() == Some(&Scheme::HTTPS)).then(|| files.tls_client(tls)).transpose()?;
    let (tls, tls_files) = client.map(|(client, hash)| (Arc::new(client), hash)).unzip();
    let parts =
        [tls_files.unwrap_or_default().to_le_bytes(), hash(format!("{is_unkey} {token:?}").as_bytes()).to_le_bytes()];
    let contract = if *is_unkey { Contract::Unkey } else { Contract::Plain };
    Ok(LookupSource {
        identity: ServerIdentity::Http(url.clone(), hash(&parts.concat())),
        server: Server::Http(HttpService { url: url.clone(), tls, token, contract }),
        // each call has a connection of its own
        settings: settings(*timeout, descriptors::for_lookups(descriptors::limit()), *remembered),
    })
}

const fn settings(
    patience: Nanos,
    max_calls: usize,
    LookupCacheSettings { ttl, negative_ttl, max_cached }: LookupCacheSettings,
) -> LookupSettings {
    LookupSettings { patience, ttl, negative_ttl, max_cached, max_calls }
}
