//! From an accepted socket to a stream on which requests come: TLS, and which HTTP is spoken.

use std::fmt;
use std::io;
use std::sync::Arc;

use bytes::BytesMut;
use pingora::protocols::Stream;
use tokio::io::AsyncReadExt;
use tokio_rustls::TlsAcceptor;

use super::frames::PREFACE;
use super::requests::Requests;
use super::stream::Shared;
use super::transport::Transport;
use super::{Connection, announcement};
use crate::proxy::seats::Seat;
use crate::ruleset::Peers;
use crate::tls::{self, Certificates, TlsServer};

/// How connections come in at a listener.
#[derive(Clone, Debug, Default)]
pub struct Entrance {
    /// Absent where clients speak in the clear.
    pub tls: Option<TlsServer>,
    /// Whether HTTP/2 is spoken beside HTTP/1.1.
    pub http2: bool,
    /// Whose connections begin by saying whom they are for.
    pub proxy_protocol: Peers,
    /// How many connections there may be at once.
    pub max_connections: Option<usize>,
}

/// What TLS says of a connection.
pub struct Secured {
    certificates: Arc<Certificates>,
    /// The position of the certificate that was shown.
    shown: usize,
    /// The common name in the certificate that the client showed.
    client: Option<String>,
}

/// A connection on which requests may come.
pub(super) struct Arrived {
    pub(super) shared: Shared,
    pub(super) protocol: Protocol,
}

/// Which HTTP is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

impl Secured {
    /// Whether the certificate that was shown is the one for `host`, in lower case.
    pub fn is_for(&self, host: &str) -> bool {
        self.certificates.choose(host) == self.shown
    }

    /// The common name in the certificate that the client showed; `None` where there is none.
    pub fn client(&self) -> Option<&str> {
        self.client.as_deref()
    }
}

impl fmt::Debug for Secured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secured").field("shown", &self.shown).finish_non_exhaustive()
    }
}

/// Lets a connection in as the `entrance` says.
pub(super) async fn arrive(
    mut stream: Stream,
    entrance: &Entrance,
    connection: &Connection,
    seat: &mut Seat,
) -> io::Result<Arrived> {
    let peer = stream.get_socket_digest().and_then(|digest| digest.peer_addr()?.as_inet().copied());
    let mut client = peer.map(|peer| peer.ip());
    if entrance.proxy_protocol.contains(client)
        && let Some(announced) = announcement::read(&mut stream).await?
    {
        client = Some(*connection.announced.get_or_init(|| announced));
    }
    if let Some(client) = client {
        connection.take_seat(seat, client)?;
    }
    let arrived = match &entrance.tls {
        Some(tls) => secure(stream, tls, connection).await?,
        None if entrance.http2 => {
            let (ahead, protocol) = first_bytes(&mut stream).await?;
            arrived(Transport::Clear(stream), ahead, protocol, connection)
        }
        None => arrived(Transport::Clear(stream), BytesMut::new(), Protocol::Http1, connection),
    };
    connection.arrived();
    Ok(arrived)
}

async fn secure(stream: Stream, tls: &TlsServer, connection: &Connection) -> io::Result<Arrived> {
    let stream = TlsAcceptor::from(Arc::clone(&tls.config)).accept(stream).await?;
    let (_, session) = stream.get_ref();
    let protocol = match session.alpn_protocol() {
        Some(b"h2") => Protocol::Http2,
        _ => Protocol::Http1,
    };
    let secured = Secured {
        certificates: Arc::clone(&tls.certificates),
        shown: tls.certificates.shown_for(session.server_name()),
        client: session.peer_certificates().and_then(|shown| tls::common_name(shown.first()?)),
    };
    connection.secured.get_or_init(|| Arc::new(secured));
    Ok(arrived(Transport::Tls(Box::new(stream)), BytesMut::new(), protocol, connection))
}

fn arrived(transport: Transport, ahead: BytesMut, protocol: Protocol, connection: &Connection) -> Arrived {
    let requests = match protocol {
        Protocol::Http1 => connection.first_request(),
        Protocol::Http2 => Requests::http2(),
    };
    Arrived { shared: Shared::new(transport, ahead, requests), protocol }
}

/// Reads until it is clear whether the client begins with the preface of HTTP/2: no longer than the first byte that
/// differs from it.
async fn first_bytes(stream: &mut Stream) -> io::Result<(BytesMut, Protocol)> {
    let mut ahead = BytesMut::with_capacity(PREFACE.len());
    loop {
        let expected = PREFACE.get(..ahead.len());
        match expected {
            Some(begun) if begun == &ahead[..] && begun.len() == PREFACE.len() => return Ok((ahead, Protocol::Http2)),
            Some(begun) if begun == &ahead[..] => {}
            _ => return Ok((ahead, Protocol::Http1)),
        }
        let mut chunk = [0; PREFACE.len()];
        let room = PREFACE.len().saturating_sub(ahead.len());
        match stream.read(chunk.get_mut(..room).unwrap_or_default()).await? {
            0 => return Ok((ahead, Protocol::Http1)),
            length => ahead.extend_from_slice(chunk.get(..length).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn first(sent: &[u8]) -> (Vec<u8>, Protocol) {
        let (mut client, server) = tokio::io::duplex(64);
        tokio::io::AsyncWriteExt::write_all(&mut client, sent).await.unwrap();
        drop(client);
        let (ahead, protocol) = first_bytes(&mut (Box::new(server) as Stream)).await.unwrap();
        (ahead.to_vec(), protocol)
    }

    #[tokio::test]
    async fn the_preface_tells_and_nothing_of_a_request_is_lost() {
        assert_eq!(first(PREFACE).await, (PREFACE.to_vec(), Protocol::Http2));
        for sent in [&b"GET / HTTP/1.0\r\n\r\n"[..], b"POST / HTTP/1.1\r\n", b"PRI * HTTP/1.1\r\n", b"PRI", b""] {
            let (ahead, protocol) = first(sent).await;
            assert!(sent.starts_with(&ahead) && protocol == Protocol::Http1, "{sent:?}: {ahead:?}");
        }
    }
}
