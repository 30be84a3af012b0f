//! Scripts that are run on the servers that hold what is shared, each thread with connections of its own.
//!
//! What a user of Redis has to be allowed for it, beside what [`crate::redis_client`] says: `+evalsha +eval +time`, and the
//! commands of the scripts: `+get +set +del +pexpire +pttl +type +zadd +zcard +zrange +zrangebylex +zrangebyscore +zrem
//! +zremrangebyrank +zremrangebyscore`.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use redis::{Cmd, ErrorKind, RedisResult, ServerErrorKind, Value};
use smallvec::SmallVec;
use tokio::sync::Mutex;
use tokio::time::timeout;

pub use crate::redis_client::{CallError, Servers};

use crate::redis_client::{CONNECT_TIME, Pool, SLOTS, slot_of};
use crate::store::redis::codec::hash_tag;
use crate::store::redis::{Encoded, Field};
use crate::units::LimitKey;

/// The servers that hold what is shared, as a node reaches them. A simulation has others.
#[async_trait]
pub trait Scripts: Send + Sync {
    /// Runs `script`, whose answer is a list. All keys lie in one slot. Dropping the future does not undo what is sent.
    async fn call(&self, script: &Script, encoded: &Encoded) -> Result<Reply, CallError>;

    /// Where the buckets of `tag` lie: those of one slot can go in one call.
    fn slot(&self, tag: LimitKey) -> u16;

    /// How many slots there are.
    fn slots(&self) -> usize;

    /// Forgets all connections: the next calls open others, and those that wait for answers get none.
    fn give_up(&self);

    /// Connects this thread, if that can be done in a moment.
    async fn open(&self);
}

/// A script and its SHA-1, by which Redis knows it once it was run.
#[derive(Debug)]
pub struct Script {
    text: &'static str,
    sha1: String,
    /// Held while a server is sent the text.
    sending: Mutex<()>,
}

/// What a script answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply(pub Vec<Value>);

/// Connections to Redis: some for each thread that asks, so that no thread waits for another's. What several requests of a
/// thread ask at once goes out together. A thread whose connection is being opened asks over another's meanwhile.
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

    /// The script.
    pub const fn text(&self) -> &'static str {
        self.text
    }
}

// === impl Reply ===

impl Reply {
    /// The fields of the answer.
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
    /// Connects when it is first asked. `threads` is how many threads ask.
    pub fn new(servers: Servers, threads: usize) -> Self {
        let pools = (0..threads.max(1)).map(|_| Pool::new(servers.clone())).collect();
        Self { servers, pools }
    }

    fn own(&self) -> &Pool {
        &self.pools[thread_number() % self.pools.len()]
    }

    /// The connections of this thread; those of another while these are opened.
    fn pool_for(&self, key: &str) -> &Pool {
        let own = self.own();
        if own.leads_to(key) {
            return own;
        }
        own.set_out(key);
        self.pools.iter().find(|pool| pool.leads_to(key)).unwrap_or(own)
    }
}

#[async_trait]
impl Scripts for Link {
    /// A server that says nothing to anybody for a second is given up.
    async fn call(&self, script: &Script, encoded: &Encoded) -> Result<Reply, CallError> {
        let key = encoded.keys.first().map(String::as_str).unwrap_or_default();
        let pool = self.pool_for(key);
        let asked = loop {
            let asked = pool.run(key, &command("EVALSHA", &script.sha1, encoded)).await;
            if !is(&asked, ServerErrorKind::NoScript) {
                break asked;
            }
            // one call sends the text, which is long; the others wait until it has
            match script.sending.try_lock() {
                Ok(_sending) => break pool.run(key, &command("EVAL", script.text, encoded)).await,
                Err(_) => drop(script.sending.lock().await),
            }
        };
        match asked {
            Ok(Value::Array(fields)) => Ok(Reply(fields)),
            Ok(_) => Err(CallError::Nonsense("the answer is no list".to_owned())),
            Err(error) => Err(CallError::from(&error)),
        }
    }

    /// 0 for all where there is no cluster.
    fn slot(&self, tag: LimitKey) -> u16 {
        if self.servers.is_cluster() { slot_of(&hash_tag(tag)) } else { 0 }
    }

    /// 1 where there is no cluster.
    fn slots(&self) -> usize {
        if self.servers.is_cluster() { SLOTS.into() } else { 1 }
    }

    fn give_up(&self) {
        for pool in &self.pools {
            pool.give_up();
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

/// A small number of this thread's own.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: Cell<Option<usize>> = const { Cell::new(None) };
    }
    NUMBER.with(|number| {
        let own = number.get().unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed));
        number.set(Some(own));
        own
    })
}
