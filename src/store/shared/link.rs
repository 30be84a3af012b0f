//! The way to Redis: connections that are opened when they are needed and given up when they fail, and scripts that are
//! run on them.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, RedisError, ServerErrorKind, Value};
use smallvec::SmallVec;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::store::redis::{Encoded, Field};
use crate::units::{LimitKey, Nanos};

/// A script and its SHA-1, by which Redis knows it once it was run.
#[derive(Clone, Debug)]
pub struct Script {
    text: &'static str,
    sha1: String,
}

/// The server, or the servers, that hold what is shared.
#[derive(Clone, Debug)]
pub enum Servers {
    /// One server.
    Standalone(ConnectionInfo),
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
    /// What came is no answer of Redis.
    #[error("{0}")]
    Nonsense(String),
}

/// What a script answered.
#[derive(Clone, Debug, PartialEq)]
pub struct Reply(Value);

/// Connections to Redis: one for each thread that asks, so that no thread waits for another's. What several requests of a
/// thread ask at once goes out together.
pub struct Link {
    client: Client,
    open: Box<[Mutex<Option<MultiplexedConnection>>]>,
    generation: AtomicU64,
}

/// How long a connection may take, until its server has said who it is.
const CONNECT_TIME: Nanos = Nanos::new(250_000_000);

// === impl Script ===

impl Script {
    /// The script `text`.
    pub fn new(text: &'static str) -> Self {
        Self { text, sha1: redis::Script::new(text).get_hash().to_owned() }
    }
}

// === impl Reply ===

impl Reply {
    /// The fields of the answer; none where it is not a list.
    pub fn fields(&self) -> SmallVec<[Field<'_>; 6]> {
        let Value::Array(fields) = &self.0 else { return SmallVec::new() };
        fields
            .iter()
            .map(|field| match field {
                Value::Int(number) => Field::Integer(*number),
                Value::BulkString(bytes) => Field::Text(bytes),
                _ => Field::Other,
            })
            .collect()
    }
}

// === impl Link ===

impl Link {
    /// Connects when it is first asked. `threads` is how many threads ask. Errors: an address that makes no sense.
    pub fn new(servers: Servers, threads: usize) -> Result<Self, RedisError> {
        let Servers::Standalone(server) = servers;
        Ok(Self {
            client: Client::open(server)?,
            open: (0..threads.max(1)).map(|_| Mutex::default()).collect(),
            generation: AtomicU64::new(0),
        })
    }

    /// The slot in which the keys of a tag lie.
    pub fn slot(&self, _tag: LimitKey) -> u16 {
        0
    }

    /// Raised with each connection, and whenever a server turns out not to know a script any more: what it kept may be
    /// gone too.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Runs `script`. All keys lie in one slot. May take for ever; dropping the future does not undo what is sent.
    pub async fn call(&self, script: &Script, encoded: &Encoded) -> Result<Reply, CallError> {
        let mut connection = self.connect().await?;
        let asked = command("EVALSHA", &script.sha1, encoded).query_async(&mut connection).await;
        let asked = match asked {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                self.generation.fetch_add(1, Ordering::Relaxed);
                command("EVAL", script.text, encoded).query_async(&mut connection).await
            }
            asked => asked,
        };
        match asked {
            Ok(value) => Ok(Reply(value)),
            Err(error) => {
                if error.is_unrecoverable_error() {
                    self.give_up_own().await;
                }
                Err(failed(&error))
            }
        }
    }

    /// Forgets all connections: the next calls open others, and those that wait for answers get none.
    pub async fn give_up(&self) {
        for open in &self.open {
            *open.lock().await = None;
        }
    }

    async fn give_up_own(&self) {
        *self.own().lock().await = None;
    }

    fn own(&self) -> &Mutex<Option<MultiplexedConnection>> {
        &self.open[thread_number() % self.open.len()]
    }

    /// Those who come while one connects wait for it.
    async fn connect(&self) -> Result<MultiplexedConnection, CallError> {
        let mut open = self.own().lock().await;
        if let Some(connection) = &*open {
            return Ok(connection.clone());
        }
        // whoever calls has a deadline of its own
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let connecting = self.client.get_multiplexed_async_connection_with_config(&config);
        let connected = timeout(CONNECT_TIME.to_duration(), connecting).await;
        let slow = |_| CallError::Unreachable("it takes too long to connect".to_owned());
        let connection = connected.map_err(slow)?.map_err(|error| failed(&error))?;
        self.generation.fetch_add(1, Ordering::Relaxed);
        Ok(open.insert(connection).clone())
    }
}

fn failed(error: &RedisError) -> CallError {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => CallError::Refused(text),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => CallError::Nonsense(text),
        _ => CallError::Unreachable(text),
    }
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
