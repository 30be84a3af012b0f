//! The Redis client: the servers that hold the data, their credentials, and connections that match replies to commands.
//!
//! Written for Redis 7 and tested with 7.0: one server, Sentinel and Cluster, each with TLS; users and passwords.
//! Certificates have to name the addresses that servers report of each other. `make valkey` runs the tests on Valkey,
//! except the TLS tests.
//!
//! A Redis user with no more rights than tollgate needs, for keys that begin with `tollgate:`:
//!
//! ```text
//! ACL SETUSER tollgate on >PASSWORD ~tollgate:* resetchannels -@all +select +hget
//! ```
//!
//! In addition, the user needs `+role` behind Sentinel, whose own users need `+sentinel|get-master-addr-by-name`;
//! `+cluster|slots +asking` in a cluster; and the commands of the scripts ([`crate::store::shared::link`]).

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use redis::{RedisConnectionInfo, Value};

use crate::tls::TlsClient;
use crate::units::Nanos;

mod cluster;
mod connection;
mod guard;
mod pool;
mod sentinel;
mod shared_future;

pub use cluster::{MAX_SERVERS, SLOTS, slot_of};
pub use guard::{Guard, Progress};
pub use pool::Pool;

use cluster::Cluster;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// A name or an address, IPv6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// The servers that hold the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One server.
    Standalone {
        /// The server's address.
        server: Address,
        /// The number of the database.
        database: u32,
    },
    /// A primary, which takes writes, and replicas that replace it when it fails.
    Sentinel {
        /// The name by which the sentinels know this primary and its replicas.
        master: String,
        /// The sentinels, which know the current primary.
        sentinels: Vec<Address>,
        /// The user name of tollgate at the sentinels; the default user, if absent.
        username: Option<String>,
    },
    /// Several servers, each with its share of the keys.
    Cluster {
        /// Some of the servers, which know the others.
        seeds: Vec<Address>,
    },
}

/// The credentials for the servers. They may change at any time: each connection takes the credentials in force when it
/// opens.
#[derive(Clone, Default)]
pub struct Credentials {
    /// The password of the servers that hold the data.
    pub password: Option<Arc<str>>,
    /// The password of the sentinels.
    pub sentinel_password: Option<Arc<str>>,
    /// The TLS settings, if the connections use TLS.
    pub tls: Option<Arc<TlsClient>>,
}

/// The servers that hold shared states and customers, and the way to reach them. All clones share one set of credentials.
#[derive(Clone)]
pub struct Servers(Arc<Inner>);

struct Inner {
    layout: Layout,
    username: Option<String>,
    credentials: ArcSwap<Credentials>,
    /// The slots of a cluster; unused with other layouts.
    cluster: Cluster,
}

/// The reason why a call has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// There is no connection.
    #[error("{0}")]
    Unreachable(String),
    /// The connection broke: the server may have run the command.
    #[error("{0}")]
    Broken(String),
    /// The server refuses the command now: it is read-only, loading, out of memory, or wants another password.
    #[error("{0}")]
    Refused(String),
    /// Some of the keys are moving to another server of the cluster, and the others are not.
    #[error("{0}")]
    Moving(String),
    /// The server sent something that is no Redis reply.
    #[error("{0}")]
    InvalidReply(String),
    /// The server did not answer in time: it may have run the command, or may run it later.
    #[error("no answer in time")]
    TimedOut,
}

/// The time limit for opening a connection, login included; also for asking a server for addresses or slots.
pub(crate) const CONNECT_TIME: Nanos = Nanos::new(250_000_000);

// === impl Address ===

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

// === impl Servers ===

impl Servers {
    /// The servers of `layout`, where tollgate is `username`, the default user if that is absent. Connections carry no
    /// credentials until [`Servers::set_credentials`] sets them.
    pub fn new(layout: Layout, username: Option<String>) -> Self {
        Self(Arc::new(Inner { layout, username, credentials: ArcSwap::default(), cluster: Cluster::default() }))
    }

    /// One server without a password.
    pub fn at(host: &str, port: u16) -> Self {
        let server = Address { host: host.to_owned(), port };
        Self::new(Layout::Standalone { server, database: 0 }, None)
    }

    /// Sets the credentials for new connections. Open connections stay as they are.
    pub fn set_credentials(&self, credentials: Credentials) {
        self.0.credentials.store(Arc::new(credentials));
    }

    /// Whether the servers form a cluster, in which each server holds its share of the key slots.
    pub fn is_cluster(&self) -> bool {
        matches!(self.0.layout, Layout::Cluster { .. })
    }

    /// The number of the server that holds `slot`, as far as the client knows: 1 to [`MAX_SERVERS`] in a cluster; 0
    /// without a cluster, or if no known server holds the slot.
    pub fn holder_number(&self, slot: u16) -> usize {
        self.0.cluster.known().as_ref().map_or(0, |topology| topology.holder_number(slot))
    }

    /// The address of the server with this number, if the client knows it; the name of the primary behind Sentinel.
    pub fn name(&self, number: usize) -> Option<String> {
        match &self.0.layout {
            Layout::Standalone { server, .. } => Some(server.to_string()),
            Layout::Sentinel { master, .. } => Some(master.clone()),
            Layout::Cluster { .. } => self.0.cluster.numbered(number).map(|server| server.to_string()),
        }
    }

    /// The login for a server that holds data.
    fn login(&self, credentials: &Credentials) -> RedisConnectionInfo {
        let database = match self.0.layout {
            Layout::Standalone { database, .. } => database,
            Layout::Sentinel { .. } | Layout::Cluster { .. } => 0,
        };
        login(self.0.username.as_deref(), credentials.password.as_deref()).set_db(database.into())
    }
}

fn login(username: Option<&str>, password: Option<&str>) -> RedisConnectionInfo {
    let mut login = RedisConnectionInfo::default().set_skip_set_lib_name();
    if let Some(username) = username {
        login = login.set_username(username);
    }
    if let Some(password) = password {
        login = login.set_password(password);
    }
    login
}

/// The text of a reply.
fn word(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}
