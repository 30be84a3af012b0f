//! The way to Redis: which servers hold the data, what they are shown, and connections on which nothing gets out of step.
//!
//! Written for Redis 7 and tested with 7.0: one server, Sentinel and Cluster, each with TLS; users and passwords. Certificates
//! have to name the addresses that servers tell each other. `make valkey` runs the tests on Valkey, but for those of TLS.
//!
//! A user of Redis who may do no more than tollgate needs, for keys that begin with `tollgate:`:
//!
//! ```text
//! ACL SETUSER tollgate on >PASSWORD ~tollgate:* resetchannels -@all +select +hget
//! ```
//!
//! CallArgument it `+role` behind Sentinel, whose own users need `+sentinel|get-master-addr-by-name`; `+cluster|slots +asking`
//! in a cluster; and what scripts do ([`crate::store::shared::link`]).

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

pub use cluster::{SLOTS, slot_of};
pub use guard::{Guard, Progress};
pub use pool::Pool;

use cluster::Cluster;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Address {
    /// A name or an address, IPv6 without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

/// Which servers hold the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layout {
    /// One.
    Standalone {
        /// Where it is.
        server: Address,
        /// The number of the database.
        database: u32,
    },
    /// One that takes writes, and others that take its place when it ends.
    Sentinel {
        /// What the sentinels call them.
        master: String,
        /// Who knows which of them takes writes.
        sentinels: Vec<Address>,
        /// Who tollgate is for the sentinels; the default user, if absent.
        username: Option<String>,
    },
    /// Several, each with its share of the keys.
    Cluster {
        /// Some of them, which know the others.
        seeds: Vec<Address>,
    },
}

/// What servers are shown. May change while they are used: each connection takes what holds when it is opened.
#[derive(Clone, Default)]
pub struct Credentials {
    /// The password of the servers that hold the data.
    pub password: Option<Arc<str>>,
    /// The password of the sentinels.
    pub sentinel_password: Option<Arc<str>>,
    /// What TLS takes, if it is spoken.
    pub tls: Option<Arc<TlsClient>>,
}

/// The servers that hold what is shared, and how they are reached. All clones are one.
#[derive(Clone)]
pub struct Servers(Arc<Inner>);

struct Inner {
    layout: Layout,
    username: Option<String>,
    credentials: ArcSwap<Credentials>,
    /// Of no use for other layouts.
    cluster: Cluster,
}

/// Why there is no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// There is no connection, or it broke off.
    #[error("{0}")]
    Unreachable(String),
    /// The server will not do it now: it is read-only, loading, out of memory, or wants another password.
    #[error("{0}")]
    Refused(String),
    /// Some of the keys are on their way to another member of a cluster, and the others are not.
    #[error("{0}")]
    Moving(String),
    /// What came is no answer of Redis.
    #[error("{0}")]
    Nonsense(String),
}

/// How long a connection may take, until its server has said who it is.
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

// === impl Credentials ===

impl fmt::Debug for Credentials {
    /// They are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials")
    }
}

// === impl Servers ===

impl Servers {
    /// The servers of `layout`, where tollgate is `username`, the default user if that is absent. They are shown nothing
    /// until [`Servers::renew`] says what.
    pub fn new(layout: Layout, username: Option<String>) -> Self {
        Self(Arc::new(Inner { layout, username, credentials: ArcSwap::default(), cluster: Cluster::default() }))
    }

    /// One server without a password.
    pub fn at(host: &str, port: u16) -> Self {
        let server = Address { host: host.to_owned(), port };
        Self::new(Layout::Standalone { server, database: 0 }, None)
    }

    /// What the next connections show. Those that are open stay.
    pub fn renew(&self, credentials: Credentials) {
        self.0.credentials.store(Arc::new(credentials));
    }

    /// Whether keys lie in slots, of which each server has its share.
    pub fn is_cluster(&self) -> bool {
        matches!(self.0.layout, Layout::Cluster { .. })
    }

    /// What to say first to a server that holds data.
    fn login(&self, credentials: &Credentials) -> RedisConnectionInfo {
        let database = match self.0.layout {
            Layout::Standalone { database, .. } => database,
            Layout::Sentinel { .. } | Layout::Cluster { .. } => 0,
        };
        login(self.0.username.as_deref(), credentials.password.as_deref()).set_db(database.into())
    }
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Servers").field(&self.0.layout).finish()
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

/// The text in an answer.
fn word(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}
