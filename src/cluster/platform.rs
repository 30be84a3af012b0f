//! What a gateway of a cluster takes from the system that it runs on: connections, and threads for long work. A simulation
//! gives it others.

use std::io;
use std::net::SocketAddr;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;

/// Connects, and runs what takes long.
#[async_trait]
pub trait Platform: Send + Sync {
    /// Connects to another gateway.
    async fn connect(&self, to: SocketAddr) -> io::Result<Stream>;

    /// Begins work that takes long, so that other gateways are answered meanwhile.
    fn spawn_long(&self, work: Box<dyn FnOnce() + Send>);
}

/// The operating system.
#[derive(Debug)]
pub struct OsPlatform;

#[async_trait]
impl Platform for OsPlatform {
    async fn connect(&self, to: SocketAddr) -> io::Result<Stream> {
        Ok(TcpStream::connect(to).await?.into())
    }

    fn spawn_long(&self, work: Box<dyn FnOnce() + Send>) {
        drop(spawn_blocking(work));
    }
}

/// Both directions of a connection.
pub struct Stream {
    pub(super) reader: Box<dyn AsyncRead + Send + Unpin>,
    pub(super) writer: Box<dyn AsyncWrite + Send + Unpin>,
}

impl Stream {
    /// Of its two directions.
    pub fn new(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        Self { reader: Box::new(reader), writer: Box::new(writer) }
    }
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        // a connection that has ended fails when it is read
        drop(stream.set_nodelay(true));
        let (reader, writer) = stream.into_split();
        Self::new(reader, writer)
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").finish_non_exhaustive()
    }
}
