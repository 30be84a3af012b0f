//! The interface to the operating system for gateways of a cluster: connections, and threads for long work. A simulation
//! passes another implementation.

use std::io;
use std::net::SocketAddr;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::spawn_blocking;

/// Opens connections and runs long work.
#[async_trait]
pub trait Platform: Send + Sync {
    /// Connects to another gateway.
    async fn connect(&self, to: SocketAddr) -> io::Result<Stream>;

    /// Starts long work on another thread, so that this gateway still answers others in the meantime.
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
    /// A stream of its two directions.
    pub fn new(
        reader: impl AsyncRead + Send + Unpin + 'static,
        writer: impl AsyncWrite + Send + Unpin + 'static,
    ) -> Self {
        Self { reader: Box::new(reader), writer: Box::new(writer) }
    }
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        // an error here means that the connection has ended, which the next read reports
        drop(stream.set_nodelay(true));
        let (reader, writer) = stream.into_split();
        Self::new(reader, writer)
    }
}
