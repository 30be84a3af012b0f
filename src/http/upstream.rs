//! The upstream's side of an exchange: a request goes here, and a response comes from here.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::{fmt, io};

use h2::Reason;

use super::body::Framing;
use super::channel::{ChannelMut, ReadError};
use super::head::{RequestHead, ResponseHead, Unreadable};
use crate::fields::Fields;
use crate::tls::TlsClient;
use crate::units::Nanos;

mod connect;
mod fetch;
mod http1;
mod http2;

pub(super) use connect::open;
pub use connect::{post, probe};
pub use fetch::{FetchError, Fetched, OwnRequest, fetch};
pub use http1::Http1Connection;
pub use http2::{Http2Connection, Http2Upstream};

/// The kind of the error when this machine has no descriptor or memory for another connection; the server is not at fault.
pub const EXHAUSTED: io::ErrorKind = io::ErrorKind::QuotaExceeded;

/// The address of a server.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// An IP address and a port.
    Inet(SocketAddr),
    /// A Unix domain socket.
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// The TLS settings for a server.
#[derive(Clone)]
pub struct TlsSettings {
    /// The certificate that the gateway presents, and the authorities that it trusts.
    pub config: Arc<TlsClient>,
    /// The name for which the server's certificate must be valid.
    pub name: Arc<str>,
    /// Differs between configurations of different files: they do not share connections.
    pub identity: u128,
}

/// The destination of a request.
#[derive(Clone)]
pub struct Destination {
    /// The server and its protocols. Equal servers share kept connections.
    pub server: Server,
    /// Whether the request may be upgraded to a tunnel.
    pub allows_upgrade: bool,
    /// How long a connection is kept for another request.
    pub keep_alive: Nanos,
}

/// A request as it is sent to an upstream.
#[derive(Debug, Default)]
pub struct OutgoingRequest {
    /// The target in canonical form.
    pub target: Vec<u8>,
    /// The host and the end-to-end fields.
    pub fields: Fields,
}

/// A server and the protocols to use with it.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Server {
    /// The server's address.
    pub address: Address,
    /// The TLS settings; `None` for connections without TLS.
    pub tls: Option<TlsSettings>,
    /// Whether to use HTTP/2; otherwise HTTP/1.1.
    pub http2: bool,
}

impl PartialEq for TlsSettings {
    fn eq(&self, other: &Self) -> bool {
        (self.identity, &self.name) == (other.identity, &other.name)
    }
}

impl Eq for TlsSettings {}

impl std::hash::Hash for TlsSettings {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.identity, &self.name).hash(state);
    }
}

/// A connection to a server, before a request is sent on it.
#[derive(Debug)]
pub enum Connection {
    /// An HTTP/1.1 connection, for one request at a time.
    Http1(Box<Http1Connection>),
    /// An HTTP/2 connection, for several requests at a time.
    Http2(Http2Connection),
}

/// The upstream's side of one request.
#[derive(Debug)]
pub enum Upstream {
    /// On an HTTP/1.1 connection.
    Http1(Box<Http1Connection>),
    /// On an HTTP/2 stream.
    Http2(Box<Http2Upstream>),
}

/// The error of an upstream.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// The connection failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The upstream ended the request alone, and may have processed it.
    #[error("{0}")]
    Reset(io::Error),
    /// The upstream says that it did not process the request, so that it can be sent again.
    #[error("{0}")]
    Refused(io::Error),
    /// The gateway cannot read the bytes that the upstream sent.
    #[error("{0}")]
    Unreadable(#[from] Unreadable),
}

impl From<h2::Error> for UpstreamError {
    /// An upstream that closes a connection names the last request that it processes (RFC 9113, section 8.7): later ones
    /// fail with its GOAWAY, earlier ones with the end of the connection.
    fn from(error: h2::Error) -> Self {
        let is_refused = match error.reason() {
            Some(Reason::REFUSED_STREAM) => error.is_reset(),
            Some(Reason::NO_ERROR) => error.is_go_away(),
            _ => false,
        };
        match is_refused && error.is_remote() {
            true => Self::Refused(io::Error::other(error)),
            false if error.is_reset() => Self::Reset(io::Error::other(error)),
            false => Self::Io(io::Error::other(error)),
        }
    }
}

// === impl Upstream ===

impl Upstream {
    /// Begins to send a request on an HTTP/1.1 connection.
    pub fn begin_http1(
        mut connection: Box<Http1Connection>,
        request: &RequestHead,
        outgoing: &OutgoingRequest,
        upgrade: Option<&[u8]>,
    ) -> Self {
        connection.begin(request, outgoing, upgrade);
        Self::Http1(connection)
    }

    /// Begins to send a request on a stream of an HTTP/2 connection, once the connection allows another stream.
    ///
    /// Errors: `InvalidInput` if HTTP/2 cannot express the request; otherwise the connection takes no more requests.
    pub async fn begin_http2(
        connection: &Http2Connection,
        request: &RequestHead,
        outgoing: &OutgoingRequest,
        has_tls: bool,
    ) -> io::Result<Self> {
        let scheme = if has_tls { "https" } else { "http" };
        Ok(Self::Http2(Box::new(Http2Upstream::begin(connection, request, outgoing, scheme).await?)))
    }

    /// Waits for the next head of a response, interim or not, and returns the framing of its body.
    pub fn poll_head(
        &mut self,
        task: &mut Context<'_>,
        head: &mut ResponseHead,
        method: &str,
    ) -> Poll<Result<Framing, UpstreamError>> {
        match self {
            Self::Http1(upstream) => upstream.poll_head(task, head, method),
            Self::Http2(upstream) => upstream.poll_head(task, head),
        }
    }

    /// The bodies of the request and the response. The gateway forwards no trailers of requests: servers such as nginx refuse
    /// them.
    pub fn channel(&mut self) -> ChannelMut<'_> {
        match self {
            Self::Http1(upstream) => ChannelMut::Http1(&mut upstream.channel),
            Self::Http2(upstream) => ChannelMut::Http2(&mut upstream.channel),
        }
    }

    /// Waits for the next content of the response; `false` at its end.
    pub fn poll_body(&mut self, task: &mut Context<'_>) -> Poll<Result<bool, UpstreamError>> {
        self.channel().poll_body(task).map_err(|error| match error {
            ReadError::Io(error) => error.into(),
            ReadError::Http2(error) => error.into(),
            ReadError::Malformed(_) => Unreadable("its chunks are malformed").into(),
        })
    }

    /// Lets no other request share the connection.
    pub fn retire(&self) {
        if let Self::Http2(upstream) = self {
            upstream.retire();
        }
    }

    /// The connection for another request after one that was sent whole, and how long it can be kept if the server says so.
    /// `None` if the response did not end, or if more bytes arrived.
    pub fn into_reusable(self) -> Option<(Box<Http1Connection>, Option<Nanos>)> {
        match self {
            Self::Http1(mut connection) => {
                let kept_for = connection.end_exchange()?;
                Some((connection, kept_for))
            }
            // streams share a connection, which stays in the pool
            Self::Http2(_) => None,
        }
    }
}
