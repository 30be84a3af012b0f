//! TLS to a database, with the same settings as other connections.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ring::digest::{SHA256, SHA384, SHA512, digest};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream as RustlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::tls::TlsClient;

/// The ALPN protocol, for servers where TLS starts without negotiation (`sslnegotiation=direct`).
const ALPN: &[u8] = b"postgresql";

/// The TLS connector; absent if no server was known to need TLS.
#[derive(Clone)]
pub(super) struct DatabaseTls(Option<TlsConnector>);

impl DatabaseTls {
    pub(super) fn new(client: Option<&TlsClient>) -> Self {
        Self(client.map(|client| {
            let mut client = client.clone();
            client.alpn_protocols = vec![ALPN.to_vec()];
            TlsConnector::from(Arc::new(client))
        }))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for DatabaseTls {
    type Stream = SecuredStream<S>;
    type TlsConnect = Connecting;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Connecting> {
        let host = ServerName::try_from(host.to_owned());
        Ok(Connecting { connector: self.0.clone(), host: host.ok() })
    }
}

/// The connector for one server.
pub(super) struct Connecting {
    connector: Option<TlsConnector>,
    /// Absent if the host cannot be a name in a certificate.
    host: Option<ServerName<'static>>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Connecting {
    type Stream = SecuredStream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<SecuredStream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let host = self.host.ok_or_else(|| io::Error::other("the host is not a valid server name"))?;
            let connector = self
                .connector
                .ok_or_else(|| io::Error::other("no certificate authority is trusted; reload tollgate"))?;
            connector.connect(host, stream).await.map(SecuredStream)
        })
    }
}

pub(super) struct SecuredStream<S>(RustlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for SecuredStream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        let (_, session) = self.0.get_ref();
        let shown = session.peer_certificates().and_then(|shown| shown.first());
        match shown.and_then(|certificate| end_point(certificate)) {
            Some(hash) => ChannelBinding::tls_server_end_point(hash),
            None => ChannelBinding::none(),
        }
    }
}

/// The hash of the server's certificate, to which channel binding ties the connection (RFC 5929, section 4.1).
fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let algorithm = match parsed.signature_algorithm.algorithm.to_id_string().as_str() {
        "1.2.840.113549.1.1.4" | "1.2.840.113549.1.1.5" | "1.2.840.113549.1.1.11" | "1.2.840.10045.4.3.2" => &SHA256,
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" => &SHA384,
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" => &SHA512,
        _ => return None,
    };
    Some(digest(algorithm, certificate).as_ref().to_vec())
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for SecuredStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, task: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(task, into)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for SecuredStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(task, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(task)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(task)
    }
}
