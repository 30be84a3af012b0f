//! Scripts that run on the Redis servers of shared limits; each thread has connections of its own.
//!
//! The user of Redis needs these rights in addition to those of [`crate::redis_client`]: `+evalsha +eval +time`, and
//! the commands of the scripts: `+get +set +del +pexpire +pttl +type +zadd +zcard +zrange +zrangebylex +zrangebyscore
//! +zrem +zremrangebyrank +zremrangebyscore`.

use async_trait::async_trait;
use redis::{Cmd, ErrorKind, RedisResult, ServerErrorKind, Value};
use smallvec::SmallVec;
use tokio::sync::Mutex;
use tokio::time::timeout;

pub use crate::redis_client::{CallError, Servers};

use crate::redis_client::{CONNECT_TIME, MAX_SERVERS, Pool, SLOTS, slot_of};
use crate::store::redis::codec::hash_tag;
use crate::store::redis::{Encoded, Field};
use crate::stripes::thread_number;
use crate::units::LimitKey;

/// A gateway's access to the Redis servers of shared limits. A simulation implements it without Redis.
#[async_trait]
pub trait Scripts: Send + Sync {
    /// Runs `script`, whose reply is a list. All keys must be in one slot. The call stays sent if the caller drops the
    /// future.
    async fn call(&self, script: &Script, encoded: &Encoded) -> Result<Reply, CallError>;

    /// The slot of the keys with this hash tag: keys of one slot can go in one call.
    fn slot_of(&self, hash_tag: &str) -> u16;

    /// The slot of the buckets of `tag`.
    fn slot(&self, tag: LimitKey) -> u16;

    /// The number of slots.
    fn slots(&self) -> usize;

    /// The number of the server that holds `slot`: below [`Scripts::servers`]. A cluster's servers begin with 1, and 0
    /// stands for the holder of a slot that no known server holds.
    fn server(&self, slot: u16) -> usize;

    /// One more than the largest number of a server: the length of a table with a place for each server.
    fn servers(&self) -> usize;

    /// The name of a server for logs and reports; `None` if no server has this number.
    fn server_name(&self, server: usize) -> Option<String>;

    /// Closes the connections to a server: the next calls open new ones, and callers that wait for replies get none.
    fn close(&self, server: usize);

    /// Connects this thread, if the server answers quickly.
    async fn open(&self);
}

/// A script and its SHA-1, by which Redis knows it after its first run.
#[derive(Debug)]
pub struct Script {
    text: &'static str,
    sha1: String,
    /// Locked while a call sends the text to a server.
    sending: Mutex<()>,
}

/// The reply of a script.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply(pub Vec<Value>);

/// Connections to Redis: each calling thread has its own, so that no thread waits for another. Simultaneous calls of
/// one thread go out together. While a thread's connection opens, the thread uses another thread's.
pub struct Link {
    servers: Servers,
    pools: Box<[Pool]>,
}

// === impl Script ===

impl Script {
    /// The script `text`.
    pub fn new(text: &'static str) -> Self {
        Self { text, sha1: redis::Script::new(text).get_hash().to_owned(), sending: Mutex::default() }
    }

    /// The script's text.
    pub const fn text(&self) -> &'static str {
        self.text
    }
}

// === impl Reply ===

impl Reply {
    /// The fields of the reply.
    pub fn fields(&self) -> SmallVec<[Field<'_>; 6]> {
        let fields = self.0.iter().map(|field| match field {
            Value::Int(number) => Field::Integer(*number),
            Value::BulkString(bytes) => Field::Text(bytes),
            _ => Field::Other,
        });
        fields.collect()
    }
}

// === impl Link ===

impl Link {
    /// A link that connects at its first call. `threads` is the number of calling threads.
    pub fn new(servers: Servers, threads: usize) -> Self {
        let pools = (0..threads.max(1)).map(|_| Pool::new(servers.clone())).collect();
        Self { servers, pools }
    }

    fn own(&self) -> &Pool {
        &self.pools[thread_number() % self.pools.len()]
    }

    /// The connections of this thread, or those of another thread while these open.
    fn pool_for(&self, key: &str) -> &Pool {
        let own = self.own();
        if own.is_connected_to(key) {
            return own;
        }
        own.start_connecting(key);
        self.pools.iter().find(|pool| pool.is_connected_to(key)).unwrap_or(own)
    }
}

#[async_trait]
impl Scripts for Link {
    /// Cuts the connection to a server that sends no reply to any caller for a second.
    async fn call(&self, script: &Script, encoded: &Encoded) -> Result<Reply, CallError> {
        let key = encoded.keys.first().map(String::as_str).unwrap_or_default();
        let pool = self.pool_for(key);
        let asked = loop {
            let asked = pool.run(key, &command("EVALSHA", &script.sha1, encoded)).await;
            if !is(&asked, ServerErrorKind::NoScript) {
                break asked;
            }
            // one call sends the text, which is long; the others wait until the server has it
            match script.sending.try_lock() {
                Ok(_sending) => break pool.run(key, &command("EVAL", script.text, encoded)).await,
                Err(_) => drop(script.sending.lock().await),
            }
        };
        match asked {
            Ok(Value::Array(fields)) => Ok(Reply(fields)),
            Ok(_) => Err(CallError::InvalidReply("the answer is no list".to_owned())),
            Err(error) => Err(CallError::from(&error)),
        }
    }

    /// Returns 0 for all hash tags without a cluster.
    fn slot_of(&self, hash_tag: &str) -> u16 {
        if self.servers.is_cluster() { slot_of(hash_tag) } else { 0 }
    }

    /// Returns 0 for all tags without a cluster.
    fn slot(&self, tag: LimitKey) -> u16 {
        if self.servers.is_cluster() { slot_of(&hash_tag(tag)) } else { 0 }
    }

    /// Returns 1 without a cluster.
    fn slots(&self) -> usize {
        if self.servers.is_cluster() { SLOTS.into() } else { 1 }
    }

    /// Returns 0 for all slots without a cluster.
    fn server(&self, slot: u16) -> usize {
        self.servers.holder_number(slot)
    }

    /// Returns 1 without a cluster.
    fn servers(&self) -> usize {
        if self.servers.is_cluster() { MAX_SERVERS.saturating_add(1) } else { 1 }
    }

    fn server_name(&self, server: usize) -> Option<String> {
        self.servers.name(server)
    }

    fn close(&self, server: usize) {
        for pool in &self.pools {
            pool.close(server);
        }
    }

    async fn open(&self) {
        drop(timeout(CONNECT_TIME.to_duration(), self.own().open()).await);
    }
}

fn is(asked: &RedisResult<Value>, kind: ServerErrorKind) -> bool {
    asked.as_ref().is_err_and(|error| error.kind() == ErrorKind::Server(kind))
}

fn command(name: &str, script: &str, encoded: &Encoded) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(script).arg(encoded.keys.len()).arg(&encoded.keys).arg(&encoded.arguments);
    command
}
