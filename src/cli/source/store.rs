//! The Redis store of what gateways share, from the configuration and the files that it names.

use std::sync::Arc;

use super::ComparedSetting;
use super::named_files::{Files, Refused};
use crate::config::{NamedFile, RedisStore};
use crate::redis_client::{Address, Credentials, Layout, Servers};
use crate::runtime::config_source::{KeySecret, StoreSettings};

/// The store of a configuration.
#[derive(Clone)]
pub(super) struct OpenStore {
    /// The section `store:` of the configuration.
    configured: RedisStore,
    /// The settings that the gateway uses.
    pub(super) settings: StoreSettings,
}

/// Reads the files that `configured` names.
pub(super) fn open(configured: RedisStore, files: &mut Files<'_>) -> Result<OpenStore, Refused> {
    let mut password_in = |named: &Option<NamedFile>| named.as_ref().map(|named| files.password(named)).transpose();
    let password = password_in(&configured.password_file);
    let sentinel_password = password_in(&configured.sentinel_password_file);
    let tls = configured.tls.as_ref().map(|tls| files.tls_client(tls)).transpose();
    let secret = configured.key_file.as_ref().map(|named| files.shared_secret(named)).transpose();
    let (password, sentinel_password, tls, secret) = (password?, sentinel_password?, tls?, secret?);
    let password = password.or_else(|| configured.password.as_ref().map(|password| password.expose().to_owned()));
    let settings = StoreSettings {
        servers: Servers::new(configured.servers.clone(), configured.username.clone()),
        credentials: Credentials {
            password: password.map(Arc::from),
            sentinel_password: sentinel_password.map(Arc::from),
            tls: tls.map(|(client, _)| Arc::new(client)),
        },
        prefix: configured.prefix.clone(),
        timeout: configured.timeout,
        sync_every: configured.sync_every,
        nodes: configured.nodes,
        key_secret: secret.map(|text| KeySecret::of(text.as_bytes())),
    };
    settings.apply_credentials();
    Ok(OpenStore { configured, settings })
}

impl OpenStore {
    /// Takes over the servers of the store that is in force; a reload then puts the new credentials in force.
    pub(super) fn take_over(&mut self, in_force: &Self) {
        self.settings.servers = in_force.settings.servers.clone();
    }
}

/// The settings that cannot change, in a fixed order. Passwords and certificates can change.
pub(super) fn compared_settings(store: Option<&OpenStore>) -> Vec<ComparedSetting> {
    let plain = ComparedSetting::plain;
    let hidden = |path, compared, shown: &str| ComparedSetting { path, compared, shown: Some(shown.to_owned()) };
    let Some(OpenStore { configured, settings }) = store else { return vec![plain("store", "no store".to_owned())] };
    let scheme = if configured.tls.is_some() { "rediss" } else { "redis" };
    let servers = match &configured.servers {
        Layout::Standalone { server, database } => format!("{scheme}://{server}/{database}"),
        Layout::Sentinel { master, sentinels, .. } => {
            let tls = if configured.tls.is_some() { " with TLS" } else { "" };
            format!("`{master}` of the sentinels {}{tls}", listed(sentinels))
        }
        Layout::Cluster { seeds } => format!("the cluster of {scheme}://{}", listed(seeds)),
    };
    let users = match &configured.servers {
        Layout::Sentinel { username, .. } => (&configured.username, username.as_ref()),
        Layout::Standalone { .. } | Layout::Cluster { .. } => (&configured.username, None),
    };
    let key = settings.key_secret.as_ref().map(|secret| format!("{:?}", secret.seed()));
    vec![
        plain("store", servers),
        hidden("store.username", format!("{users:?}"), if users.0.is_some() { "a user" } else { "the default user" }),
        plain("store.prefix", configured.prefix.clone()),
        plain("store.timeout", configured.timeout.to_string()),
        plain("store.sync_every", configured.sync_every.to_string()),
        plain("store.nodes", configured.nodes.map_or_else(|| "no number".to_owned(), |nodes| nodes.to_string())),
        hidden("store.key_file", key.clone().unwrap_or_default(), key.map_or("no secret", |_| "a secret")),
    ]
}

fn listed(addresses: &[Address]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
