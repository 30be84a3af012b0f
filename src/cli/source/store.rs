//! The Redis store of what gateways share, from the configuration and the files that it names.

use std::path::Path;
use std::sync::Arc;

use super::directory::{bytes, resolve_path};
use super::{RestartRequired, decode, name, refuse};
use crate::config::{ClientTls, NamedFile, Place, Problem, Problems, RedisServers, RedisStore};
use crate::files::{self, FileVersion};
use crate::redis_client::{Address, Credentials, Layout, Servers};
use crate::runtime::reload::{KeySecret, StoreSettings};
use crate::tls::{self, ClientCertificate, TlsClient, TlsFault};

/// The longest password or secret that is read from a file, in bytes.
const MAX_SECRET: usize = 4 << 10;
/// The largest file of certificates that is read, in bytes.
const MAX_PEM: usize = 1 << 20;
/// The shortest secret that gateways share, in bytes.
const LEAST_SECRET: usize = 16;

/// The store in force, which cannot change while the gateway runs.
#[derive(Debug)]
pub(super) struct StoreInForce {
    /// The section `store:` of the configuration.
    configured: RedisStore,
    /// The settings that the gateway uses.
    pub(super) settings: StoreSettings,
}

/// The section `store:`, and the content of the files that it names.
#[derive(Debug)]
pub(super) struct StoreSource {
    configured: RedisStore,
    credentials: Credentials,
    key_secret: Option<KeySecret>,
}

impl StoreSource {
    /// Reads the files that `configured` names; their paths are relative to the configuration at `path`.
    pub(super) fn read(path: &Path, configured: &RedisStore, seen: &mut Vec<FileVersion>) -> Result<Self, Problems> {
        let mut problems = Problems { errors: Vec::new(), warnings: Vec::new(), more: 0 };
        let mut collect = |refused: Problems| problems.errors.extend(refused.errors);
        let password = configured.password_file.as_ref().map(|named| secret(path, named, seen)).transpose();
        let password = password.map_err(&mut collect).ok().flatten();
        let sentinel_password = match &configured.servers {
            RedisServers::Sentinel { password_file: Some(named), .. } => secret(path, named, seen).map(Some),
            RedisServers::Sentinel { .. } | RedisServers::Standalone { .. } | RedisServers::Cluster(_) => Ok(None),
        };
        let sentinel_password = sentinel_password.map_err(&mut collect).ok().flatten();
        let tls = configured.tls.as_ref().map(|tls| {
            let place = Place { path: "store.tls".to_owned(), ..configured.place.clone() };
            client(path, tls, &place, seen).map(|(client, _)| Arc::new(client))
        });
        let tls = tls.transpose();
        let tls = tls.map_err(&mut collect).ok().flatten();
        let key_secret = configured.key_file.as_ref().map(|named| secret_of_all_nodes(path, named, seen)).transpose();
        let key_secret = key_secret.map_err(&mut collect).ok().flatten().map(|text| KeySecret::of(text.as_bytes()));
        if !problems.errors.is_empty() {
            return Err(problems);
        }
        let password = password.or_else(|| configured.password.as_ref().map(|password| password.expose().to_owned()));
        let credentials =
            Credentials { password: password.map(Arc::from), sentinel_password: sentinel_password.map(Arc::from), tls };
        Ok(Self { configured: configured.clone(), credentials, key_secret })
    }

    /// The settings that cannot change while a gateway runs.
    pub(super) fn fixed_settings(&self) -> FixedSettings<'_> {
        (&self.configured, self.key_secret.as_ref())
    }

    /// The store that was `kept`, with new credentials, which a reload puts in force, or a new store.
    pub(super) fn settle(self, kept: Option<&StoreInForce>) -> StoreInForce {
        let Self { configured, credentials, key_secret } = self;
        let settings = match kept {
            Some(kept) => StoreSettings { credentials, ..kept.settings.clone() },
            None => {
                let settings = StoreSettings {
                    servers: Servers::new(layout(&configured.servers), configured.username.clone()),
                    credentials,
                    prefix: configured.prefix.clone(),
                    timeout: configured.timeout,
                    sync_every: configured.sync_every,
                    nodes: configured.nodes,
                    key_secret,
                };
                settings.apply_credentials();
                settings
            }
        };
        StoreInForce { configured, settings }
    }
}

impl StoreInForce {
    /// The settings that cannot change while a gateway runs.
    pub(super) fn fixed_settings(&self) -> FixedSettings<'_> {
        (&self.configured, self.settings.key_secret.as_ref())
    }
}

/// The section `store:`, and the secret for hashing keys.
type FixedSettings<'a> = (&'a RedisStore, Option<&'a KeySecret>);

/// The settings that differ between the store in force and `wanted`, but cannot change. Passwords and certificates can.
pub(super) fn changed(in_force: Option<FixedSettings<'_>>, wanted: Option<FixedSettings<'_>>) -> Vec<RestartRequired> {
    let pairs = compared_settings(in_force).into_iter().zip(compared_settings(wanted));
    let changed = pairs.filter(|(before, after)| before.compared != after.compared);
    let fixed = changed.map(|(before, after)| RestartRequired {
        path: after.path,
        before: before.shown,
        after: after.shown,
        what: "another store",
    });
    fixed.collect()
}

/// A setting that cannot change.
struct ComparedSetting {
    path: &'static str,
    compared: String,
    /// The value for messages, which hides secrets.
    shown: String,
}

/// All settings that cannot change, in a fixed order.
fn compared_settings(store: Option<FixedSettings<'_>>) -> Vec<ComparedSetting> {
    let plain = |path, text: String| ComparedSetting { path, compared: text.clone(), shown: text };
    let hidden = |path, compared, shown: &str| ComparedSetting { path, compared, shown: shown.to_owned() };
    let Some((configured, secret)) = store else { return vec![plain("store", "no store".to_owned())] };
    let scheme = if configured.tls.is_some() { "rediss" } else { "redis" };
    let servers = match &configured.servers {
        RedisServers::Standalone { server, database } => format!("{scheme}://{server}/{database}"),
        RedisServers::Sentinel { master, nodes, .. } => {
            let tls = if configured.tls.is_some() { " with TLS" } else { "" };
            format!("`{master}` of the sentinels {}{tls}", nodes.join(", "))
        }
        RedisServers::Cluster(nodes) => format!("the cluster of {scheme}://{}", nodes.join(", ")),
    };
    let users = match &configured.servers {
        RedisServers::Sentinel { username, .. } => (&configured.username, username.as_ref()),
        RedisServers::Standalone { .. } | RedisServers::Cluster(_) => (&configured.username, None),
    };
    let key = secret.map(|secret| format!("{:?}", secret.seed()));
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

fn layout(servers: &RedisServers) -> Layout {
    match servers {
        RedisServers::Standalone { server, database } => {
            Layout::Standalone { server: address(server), database: *database }
        }
        RedisServers::Sentinel { master, nodes, username, .. } => Layout::Sentinel {
            master: master.clone(),
            sentinels: nodes.iter().map(|node| address(node)).collect(),
            username: username.clone(),
        },
        RedisServers::Cluster(nodes) => Layout::Cluster { seeds: nodes.iter().map(|node| address(node)).collect() },
    }
}

/// Splits `at` into host and port; the configuration has checked that it has both.
fn address(at: &str) -> Address {
    let (host, port) = at.rsplit_once(':').unwrap_or((at, ""));
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Address { host: host.to_owned(), port: port.parse().unwrap_or_default() }
}

/// The text of a file, without line breaks at its end.
pub(super) fn secret(path: &Path, named: &NamedFile, seen: &mut Vec<FileVersion>) -> Result<String, Problems> {
    let file = resolve_path(path, named);
    let (bytes, _) = bytes(named, &file, MAX_SECRET, seen)?;
    Ok(decode(bytes, &file)?.trim_end_matches(['\r', '\n']).to_owned())
}

/// The text of a file that holds a token: characters that a header field can hold, without blanks.
pub(super) fn token(path: &Path, named: &NamedFile, seen: &mut Vec<FileVersion>) -> Result<String, Problems> {
    let text = secret(path, named, seen)?.trim().to_owned();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(text);
    }
    let problem = Problem::error(named.place.clone(), "names a file that holds no token");
    let what = if text.is_empty() { "nothing" } else { "blanks or other characters" };
    let found = format!("{what} in {}", name(&resolve_path(path, named)));
    Err(refuse(problem.found(found).expected("one line of letters, digits and signs, as a header field can hold them")))
}

/// The text of a file that holds a secret of all gateways, which has a minimum length.
pub(super) fn secret_of_all_nodes(
    path: &Path,
    named: &NamedFile,
    seen: &mut Vec<FileVersion>,
) -> Result<String, Problems> {
    let text = secret(path, named, seen)?;
    if text.len() < LEAST_SECRET {
        let problem = Problem::error(named.place.clone(), "names a file that holds too short a secret");
        let found = format!("{} bytes in {}", text.len(), name(&resolve_path(path, named)));
        return Err(refuse(
            problem
                .found(found)
                .expected(format!("at least {LEAST_SECRET} bytes, the same on all gateways"))
                .hint("`openssl rand -hex 32` makes one"),
        ));
    }
    Ok(text)
}

/// The TLS settings for connections from the section `tls`, which is at `place`, and a hash of the files that it names.
pub(super) fn client(
    path: &Path,
    tls: &ClientTls,
    place: &Place,
    seen: &mut Vec<FileVersion>,
) -> Result<(TlsClient, u128), Problems> {
    let mut read = |named: &NamedFile| bytes(named, &resolve_path(path, named), MAX_PEM, seen).map(|(bytes, _)| bytes);
    let authorities = tls.ca.as_ref().map(&mut read).transpose()?;
    let identity = match &tls.identity {
        Some((certificates, key)) => Some((read(certificates)?, read(key)?)),
        None => None,
    };
    let identity = identity.as_ref().map(|(certificates, key)| ClientCertificate { certificates, key });
    let parts =
        [authorities.as_deref(), identity.map(|identity| identity.certificates), identity.map(|identity| identity.key)];
    let hash = files::hash(&parts.map(|part| files::hash(part.unwrap_or_default()).to_le_bytes()).concat());
    let client = tls::client(authorities.as_deref(), identity).map(|client| (client, hash));
    client.map_err(|fault| {
        let files = tls.identity.as_ref();
        let named = match fault {
            TlsFault::Authority => tls.ca.as_ref(),
            TlsFault::Certificate => files.map(|(certificates, _)| certificates),
            TlsFault::Key | TlsFault::OtherKey => files.map(|(_, key)| key),
            TlsFault::NoSystemRoots | TlsFault::Unusable => None,
        };
        let problem = match named {
            Some(named) => Problem::error(named.place.clone(), format!("names a file that {fault}"))
                .found(name(&resolve_path(path, named))),
            None => Problem::error(place.clone(), fault.to_string()),
        };
        refuse(match fault {
            TlsFault::NoSystemRoots => problem.hint("name them: `tls: {ca: ca.pem}`"),
            _ => problem,
        })
    })
}
