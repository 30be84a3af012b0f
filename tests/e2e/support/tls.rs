//! TLS for the clients and servers of the tests.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;

pub use super::authority::{Authority, Signed};

/// A connection over TLS.
pub type Secure = TlsStream<TcpStream>;

/// Connects over TLS to the host `name`.
pub async fn connect(to: SocketAddr, config: ClientConfig, name: &str) -> io::Result<Secure> {
    let stream = TcpStream::connect(to).await?;
    stream.set_nodelay(true)?;
    let name = ServerName::try_from(name.to_owned()).map_err(io::Error::other)?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

/// The certificate of the other side, in DER.
pub fn shown(stream: &Secure) -> Vec<u8> {
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

/// Sends an HTTP/1.1 request, and returns all bytes until the connection ends.
pub async fn ask(stream: &mut Secure, target: &str, host: &str) -> io::Result<String> {
    let request = format!("GET {target} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await?;
    Ok(String::from_utf8_lossy(&response).into_owned())
}
