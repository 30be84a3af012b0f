//! One connection to one server.

use std::error::Error;
use std::io;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, ErrorKind, RedisConnectionInfo, RedisError, RedisResult, Value};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::guard::{Guard, Progress};
use super::{Address, CONNECT_TIME};
use crate::tls::TlsClient;
use crate::units::Nanos;

/// An open connection that many calls share; closed when the last clone is gone, or when it is cut.
#[derive(Clone)]
pub(super) struct Connection {
    connection: MultiplexedConnection,
    driver: Arc<Driver>,
}

/// The task that writes and reads.
struct Driver(AbortHandle);

/// The time between two checks: a connection on which commands wait and no reply came since the last check is cut.
const LOOK: Nanos = Nanos::new(500_000_000);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Ends when commands wait and no reply has come between two checks.
async fn silence(progress: Arc<Progress>) {
    let mut before = None;
    loop {
        sleep(LOOK.to_duration()).await;
        let now = progress.waits_behind();
        if now.is_some() && now == before {
            return;
        }
        before = now;
    }
}

impl Connection {
    /// Connects to `address`, over TLS if `tls` is set, and logs in. Ends within [`CONNECT_TIME`].
    pub(super) async fn open(
        address: &Address,
        tls: Option<Arc<TlsClient>>,
        login: &RedisConnectionInfo,
    ) -> RedisResult<Self> {
        let opening = timeout(CONNECT_TIME.to_duration(), Self::open_slowly(address, tls, login)).await;
        let opened = opening.unwrap_or_else(|_| Err(failed(format!("connecting to {address} timed out"))));
        opened.map_err(|error| match io_error(&error) {
            Some(error) => io::Error::new(error.kind(), format!("{address}: {error}")).into(),
            None => error,
        })
    }

    async fn open_slowly(
        address: &Address,
        tls: Option<Arc<TlsClient>>,
        login: &RedisConnectionInfo,
    ) -> RedisResult<Self> {
        let stream = TcpStream::connect((address.host.as_str(), address.port)).await?;
        stream.set_nodelay(true)?;
        let Some(tls) = tls else { return Self::log_in(stream, login).await };
        let name = ServerName::try_from(address.host.clone());
        let name = name.map_err(|_| failed("the host is not a valid server name for TLS".to_owned()))?;
        Self::log_in(TlsConnector::from(tls).connect(name, stream).await?, login).await
    }

    async fn log_in(
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        login: &RedisConnectionInfo,
    ) -> RedisResult<Self> {
        // no timeouts here: each caller has a deadline of its own
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let progress = Arc::new(Progress::default());
        let guard = Guard::new(stream, Arc::clone(&progress));
        let (connection, driver) = MultiplexedConnection::new_with_config(login, guard, config).await?;
        let driving = async move {
            tokio::select! {
                () = driver => {}
                () = silence(progress) => {}
            }
        };
        Ok(Self { connection, driver: Arc::new(Driver(tokio::spawn(driving).abort_handle())) })
    }

    /// The reply of the server at `address` to one command, over a connection of its own. Ends within [`CONNECT_TIME`].
    pub(super) async fn ask_once(
        address: &Address,
        tls: Option<Arc<TlsClient>>,
        login: &RedisConnectionInfo,
        command: &Cmd,
    ) -> RedisResult<Value> {
        within_connect_time(async { Self::open(address, tls, login).await?.ask(command).await }).await
    }

    /// The server's reply. The command stays sent if the caller drops the future.
    pub(super) async fn ask(&self, command: &Cmd) -> RedisResult<Value> {
        command.query_async(&mut self.connection.clone()).await
    }

    /// [`Connection::ask`] for a key that is moving to this server from another one (`ASKING`).
    pub(super) async fn ask_after_asking(&self, command: &Cmd) -> RedisResult<Value> {
        let mut both = redis::pipe();
        both.cmd("ASKING").ignore().add_command(command.clone());
        let (answer,) = both.query_async(&mut self.connection.clone()).await?;
        Ok(answer)
    }

    /// Closes the connection: callers that wait for replies get none.
    pub(super) fn cut(&self) {
        self.driver.0.abort();
    }

    /// Whether the connection is still open, as far as this process knows.
    pub(super) fn is_open(&self) -> bool {
        !self.driver.0.is_finished()
    }
}

/// The result of `work`, if it ends within [`CONNECT_TIME`].
pub(super) async fn within_connect_time<T>(work: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    let late = |_| Err(failed("it did not answer in time".to_owned()));
    timeout(CONNECT_TIME.to_duration(), work).await.unwrap_or_else(late)
}

pub(super) fn failed(detail: String) -> RedisError {
    RedisError::from((ErrorKind::Io, "no connection", detail))
}

/// The I/O error of the operating system, if that is the cause.
pub(super) fn io_error(error: &RedisError) -> Option<&io::Error> {
    error.source()?.downcast_ref::<Arc<dyn Error + Send + Sync>>()?.downcast_ref()
}
