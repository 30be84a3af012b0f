//! One connection to Redis, opened when it is needed and given up when it fails.

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, RedisError};
use tokio::sync::Mutex;

/// A connection that many calls share.
pub(super) struct Connection {
    client: Client,
    open: Mutex<Option<MultiplexedConnection>>,
}

impl Connection {
    pub(super) fn new(server: ConnectionInfo) -> Result<Self, RedisError> {
        Ok(Self { client: Client::open(server)?, open: Mutex::default() })
    }

    /// The value of `field` in the hash `key`. May take for ever.
    pub(super) async fn get(&self, key: &str, field: &str) -> Result<Option<Vec<u8>>, RedisError> {
        let mut connection = self.connect().await?;
        let asked = redis::cmd("HGET").arg(key).arg(field).query_async(&mut connection).await;
        if asked.as_ref().is_err_and(|error: &RedisError| error.is_unrecoverable_error()) {
            self.give_up().await;
        }
        asked
    }

    /// Forgets the connection: the next call opens another. Calls that wait on it still get their answers.
    pub(super) async fn give_up(&self) {
        *self.open.lock().await = None;
    }

    /// Those who come while one connects wait for it.
    async fn connect(&self) -> Result<MultiplexedConnection, RedisError> {
        let mut open = self.open.lock().await;
        if let Some(connection) = &*open {
            return Ok(connection.clone());
        }
        // whoever calls has a deadline of its own
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let connection = self.client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(open.insert(connection).clone())
    }
}
