//! The upstream's side of an exchange: a request goes here, and a response comes from here.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::{fmt, io};

use ::http::HeaderMap;

use super::body::Framing;
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

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// At an address and a port.
    Inet(SocketAddr),
    /// At a path in the file system.
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

/// How TLS is spoken to a server.
#[derive(Clone)]
pub struct TlsTerms {
    /// What is shown and believed.
    pub config: Arc<TlsClient>,
    /// The name that the server's certificate has to be for.
    pub name: Arc<str>,
    /// Tells configurations apart that are made of other files: connections are not shared between them.
    pub identity: u128,
}

/// Where a request goes.
#[derive(Clone, Debug)]
pub struct Destination {
    /// Which server, in which way; kept connections are shared by equal ones.
    pub server: Server,
    /// Whether the request may become a tunnel.
    pub allows_upgrade: bool,
    /// How long a connection is kept for a further request.
    pub keep_alive: Nanos,
}

/// A request as it is sent to an upstream.
#[derive(Debug, Default)]
pub struct OutgoingRequest {
    /// The target, canonical.
    pub target: Vec<u8>,
    /// The host and the end-to-end fields.
    pub fields: Fields,
}

/// A server, and how it is spoken to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    /// Where it listens.
    pub address: Address,
    /// Absent where it is spoken to in the clear.
    pub tls: Option<TlsTerms>,
    /// Whether it speaks HTTP/2; HTTP/1.1 otherwise.
    pub http2: bool,
}

impl PartialEq for TlsTerms {
    fn eq(&self, other: &Self) -> bool {
        (self.identity, &self.name) == (other.identity, &other.name)
    }
}

impl Eq for TlsTerms {}

impl std::hash::Hash for TlsTerms {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.identity, &self.name).hash(state);
    }
}

impl fmt::Debug for TlsTerms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsTerms").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A connection to a server, before a request is sent on it.
#[derive(Debug)]
pub enum Connection {
    /// Of HTTP/1.1, for one request at a time.
    Http1(Box<Http1Connection>),
    /// Of HTTP/2, for several.
    Http2(Http2Connection),
}

/// The server of one request.
#[derive(Debug)]
pub enum Upstream {
    /// On a connection of HTTP/1.1.
    Http1(Box<Http1Connection>),
    /// On a stream of HTTP/2.
    Http2(Box<Http2Upstream>),
}

/// What goes wrong with an upstream.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// With its connection.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// With what it sent.
    #[error("{0}")]
    Unreadable(#[from] Unreadable),
}

impl From<h2::Error> for UpstreamError {
    fn from(error: h2::Error) -> Self {
        Self::Io(io::Error::other(error))
    }
}

// === impl Upstream ===

impl Upstream {
    /// Begins to send a request on a connection of HTTP/1.1.
    pub fn begin_http1(
        mut connection: Box<Http1Connection>,
        request: &RequestHead,
        outgoing: &OutgoingRequest,
        upgrade: Option<&[u8]>,
    ) -> Self {
        connection.begin(request, outgoing, upgrade);
        Self::Http1(connection)
    }

    /// Begins to send a request on a stream of a connection of HTTP/2, once there is room for one more.
    pub async fn begin_http2(
        connection: Http2Connection,
        request: &RequestHead,
        outgoing: &OutgoingRequest,
        has_tls: bool,
    ) -> io::Result<Self> {
        let scheme = if has_tls { "https" } else { "http" };
        Ok(Self::Http2(Box::new(Http2Upstream::begin(connection, request, outgoing, scheme).await?)))
    }

    /// Sends as much of the request's content as there is room for; nothing follows it if it `is_last`.
    pub fn poll_send(&mut self, task: &mut Context<'_>, content: &[u8], is_last: bool) -> Poll<io::Result<usize>> {
        match self {
            Self::Http1(upstream) => upstream.poll_send(task, content, is_last),
            Self::Http2(upstream) => upstream.poll_send(task, content, is_last),
        }
    }

    /// Sends what waits to be sent.
    pub fn poll_flush(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Http1(upstream) => upstream.poll_flush(task),
            Self::Http2(_) => Poll::Ready(Ok(())),
        }
    }

    /// Sends the end of the request. Trailers of requests are not forwarded: servers such as nginx refuse them.
    pub fn poll_finish(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Http1(upstream) => upstream.poll_finish(task),
            Self::Http2(upstream) => Poll::Ready(upstream.finish()),
        }
    }

    /// Waits for the next head of a response, interim or not, and says how its body is delimited.
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

    /// Waits for the next content of the response; `false` at its end.
    pub fn poll_body(&mut self, task: &mut Context<'_>) -> Poll<Result<bool, UpstreamError>> {
        match self {
            Self::Http1(upstream) => upstream.poll_body(task),
            Self::Http2(upstream) => upstream.poll_body(task),
        }
    }

    /// The content that came and was not consumed.
    pub fn content(&self) -> &[u8] {
        match self {
            Self::Http1(upstream) => upstream.content(),
            Self::Http2(upstream) => upstream.content(),
        }
    }

    /// So much of the content is used.
    pub fn consume(&mut self, length: usize) {
        match self {
            Self::Http1(upstream) => upstream.consume(length),
            Self::Http2(upstream) => upstream.consume(length),
        }
    }

    /// Whether the body ends with the content that is here.
    pub fn ends_with_content(&self) -> bool {
        match self {
            Self::Http1(upstream) => upstream.ends_with_content(),
            Self::Http2(upstream) => upstream.ends_with_content(),
        }
    }

    /// The fields behind the response's body, once that is over.
    pub fn take_trailers(&mut self) -> Option<HeaderMap> {
        match self {
            Self::Http1(_) => None,
            Self::Http2(upstream) => upstream.take_trailers(),
        }
    }

    /// The connection for a further request, and for how long it can be kept if the server says so; `None` where the
    /// exchange did not come to its end on both sides, or more came than the response.
    pub fn into_kept(self) -> Option<(Box<Http1Connection>, Option<Nanos>)> {
        match self {
            Self::Http1(mut connection) => {
                let kept_for = connection.end_exchange()?;
                Some((connection, kept_for))
            }
            // streams share their connection as it is
            Self::Http2(_) => None,
        }
    }
}
