//! The way from an accepted socket to a connection with requests: the PROXY protocol, TLS, and the version of HTTP.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use tokio::io::AsyncReadExt;
use tokio_rustls::TlsAcceptor;

use super::frames::PREFACE;
use super::proxy_protocol;
use super::socket::{RawSocket, Socket};
use crate::ruleset::{ListenerService, TrustedPeers};
use crate::tls::{self, Certificates, TlsServer};

/// How a listener treats its connections.
#[derive(Clone, Default)]
pub struct ListenerConfig {
    /// The TLS settings; `None` for connections without TLS.
    pub tls: Option<TlsServer>,
    /// The kind of requests at this listener; the engine serves all kinds in the same way.
    pub serves: ListenerService,
    /// Whether the listener accepts HTTP/2 besides HTTP/1.1.
    pub http2: bool,
    /// The peers whose connections begin with the PROXY protocol.
    pub proxy_protocol: TrustedPeers,
    /// The maximum number of concurrent connections.
    pub max_connections: Option<usize>,
}

/// The TLS facts of a connection.
pub struct TlsInfo {
    certificates: Arc<Certificates>,
    /// The position of the certificate that the gateway presented.
    shown: usize,
    /// The common name in the client's certificate.
    client: Option<String>,
}

/// The other end of a client's connection.
#[derive(Default)]
pub struct Peer {
    address: Option<IpAddr>,
    address_text: Option<Box<str>>,
    /// The position of the listener that accepted the connection.
    pub listener: usize,
    /// The TLS facts of the connection; `None` without TLS.
    pub tls_info: Option<TlsInfo>,
}

impl Peer {
    /// A client at this address.
    pub fn new(address: Option<IpAddr>, tls_info: Option<TlsInfo>) -> Self {
        let address_text = address.map(|address| address.to_canonical().to_string().into());
        Self { address, address_text, listener: 0, tls_info }
    }

    /// The client's address, or the one that a balancer named; `None` for a Unix socket.
    pub const fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// The address in the form for upstreams: an IPv4-mapped address as IPv4.
    pub fn address_text(&self) -> Option<&str> {
        self.address_text.as_deref()
    }
}

/// A connection that is ready for requests.
pub(super) struct ReadyConnection {
    pub(super) socket: Socket,
    pub(super) peer: Peer,
    pub(super) protocol: Protocol,
    /// The bytes that were read to detect the protocol.
    pub(super) read_ahead: Vec<u8>,
}

/// The version of HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

impl TlsInfo {
    /// Whether the presented certificate is the one for `host`, which is in lower case.
    pub fn is_for(&self, host: &str) -> bool {
        self.certificates.choose(host) == self.shown
    }

    /// The common name in the client's certificate; `None` if the client presented none.
    pub fn client(&self) -> Option<&str> {
        self.client.as_deref()
    }
}

/// Prepares an accepted connection as `listener` says. `admit` receives the client's address and may
/// reject the connection.
pub(super) async fn prepare_connection(
    mut raw: RawSocket,
    listener: &ListenerConfig,
    admit: impl FnOnce(Option<IpAddr>) -> io::Result<()>,
) -> io::Result<ReadyConnection> {
    let mut address = raw.peer();
    if listener.proxy_protocol.contains(address)
        && let Some(named) = proxy_protocol::read(&mut raw).await?
    {
        address = Some(named);
    }
    admit(address)?;
    let mut peer = Peer::new(address, None);
    match &listener.tls {
        Some(tls) => {
            let stream = TlsAcceptor::from(Arc::clone(&tls.config)).accept(raw).await?;
            let (_, session) = stream.get_ref();
            let protocol = match session.alpn_protocol() {
                Some(b"h2") => Protocol::Http2,
                _ => Protocol::Http1,
            };
            peer.tls_info = Some(TlsInfo {
                certificates: Arc::clone(&tls.certificates),
                shown: tls.certificates.shown_for(session.server_name()),
                client: session.peer_certificates().and_then(|shown| tls::common_name(shown.first()?)),
            });
            Ok(ReadyConnection { socket: Socket::Tls(Box::new(stream.into())), peer, protocol, read_ahead: Vec::new() })
        }
        None => {
            let (read_ahead, protocol) = match listener.http2 {
                true => first_bytes(&mut raw).await?,
                false => (Vec::new(), Protocol::Http1),
            };
            Ok(ReadyConnection { socket: Socket::Plain(raw), peer, protocol, read_ahead })
        }
    }
}

/// Reads until it is clear whether the client begins with the preface of HTTP/2: at most up to the first
/// byte that differs.
async fn first_bytes(stream: &mut (impl AsyncReadExt + Unpin)) -> io::Result<(Vec<u8>, Protocol)> {
    let mut read_ahead = Vec::with_capacity(PREFACE.len());
    loop {
        let expected = PREFACE.get(..read_ahead.len());
        match expected {
            Some(begun) if begun == &read_ahead[..] && begun.len() == PREFACE.len() => {
                return Ok((read_ahead, Protocol::Http2));
            }
            Some(begun) if begun == &read_ahead[..] => {}
            _ => return Ok((read_ahead, Protocol::Http1)),
        }
        let mut chunk = [0; PREFACE.len()];
        let room = PREFACE.len().saturating_sub(read_ahead.len());
        match stream.read(chunk.get_mut(..room).unwrap_or_default()).await? {
            0 => return Ok((read_ahead, Protocol::Http1)),
            length => read_ahead.extend_from_slice(chunk.get(..length).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn first(sent: &[u8]) -> (Vec<u8>, Protocol) {
        let (mut client, mut server) = tokio::io::duplex(64);
        tokio::io::AsyncWriteExt::write_all(&mut client, sent).await.unwrap();
        drop(client);
        first_bytes(&mut server).await.unwrap()
    }

    #[tokio::test]
    async fn the_preface_tells_and_nothing_of_a_request_is_lost() {
        assert_eq!(first(PREFACE).await, (PREFACE.to_vec(), Protocol::Http2));
        for sent in [&b"GET / HTTP/1.0\r\n\r\n"[..], b"POST / HTTP/1.1\r\n", b"PRI * HTTP/1.1\r\n", b"PRI", b""] {
            let (read_ahead, protocol) = first(sent).await;
            assert!(sent.starts_with(&read_ahead) && protocol == Protocol::Http1, "{sent:?}: {read_ahead:?}");
        }
    }
}
