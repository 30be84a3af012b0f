//! The upstream's side of an exchange: a request goes here, and a response comes from here.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::HeaderMap;

use super::body::{Decoder, Framing, Step};
use super::buffer::Buffer;
use super::client::poll_capacity;
use super::encoder::Encoder;
use super::head::{HeadReader, RequestHead, ResponseHead, Unreadable, Version};
use super::service::OutgoingRequest;
use super::socket::Socket;
use crate::fields::Fields;
use crate::tls::TlsClient;
use crate::units::Nanos;

mod connect;

pub(super) use connect::open;
pub use connect::probe;

/// How many requests share a connection of HTTP/2, if the upstream allows so many.
pub(super) const MAX_STREAMS: usize = 100;

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

/// A connection of HTTP/2, which a task of its own drives as long as somebody holds this.
#[derive(Clone, Debug)]
pub struct Http2Connection {
    pub(super) requests: SendRequest<Bytes>,
    /// How many requests are on it.
    running: Arc<AtomicUsize>,
    is_closed: Arc<AtomicBool>,
}

impl Http2Connection {
    /// How many requests are on it.
    pub(super) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// Whether the server, or the way to it, ended the connection.
    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }
}

/// The server of one request.
#[derive(Debug)]
pub enum Upstream {
    /// On a connection of HTTP/1.1.
    Http1(Box<Http1Connection>),
    /// On a stream of HTTP/2.
    Http2(Box<Http2Upstream>),
}

/// A connection of HTTP/1.1, on which one exchange follows the other.
#[derive(Debug)]
pub struct Http1Connection {
    pub(super) socket: Socket,
    pub(super) buffer: Buffer,
    encoder: Encoder,
    reader: HeadReader,
    body: Decoder,
    available: usize,
    keeps_alive: bool,
    /// For how long the server keeps the connection, by its own word.
    kept_for: Option<Nanos>,
    is_request_sent: bool,
}

/// One exchange of HTTP/2.
#[derive(Debug)]
pub struct Http2Upstream {
    response: ResponseFuture,
    request: SendStream<Bytes>,
    body: Option<RecvStream>,
    part: Bytes,
    is_read: bool,
    is_ended: bool,
    trailers: Option<HeaderMap>,
    _running: Running,
}

/// Counts a request on its connection.
#[derive(Debug)]
struct Running(Arc<AtomicUsize>);

impl Running {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Http1Connection ===

impl Http1Connection {
    /// A connection on which nothing was sent yet.
    pub(super) fn new(socket: Socket) -> Self {
        Self {
            socket,
            buffer: Buffer::default(),
            encoder: Encoder::default(),
            reader: HeadReader::default(),
            body: Decoder::new(Framing::Empty),
            available: 0,
            keeps_alive: true,
            kept_for: None,
            is_request_sent: false,
        }
    }

    /// Sends the head of a request; it leaves with what follows it.
    fn begin(&mut self, request: &RequestHead, outgoing: &OutgoingRequest, upgrade: Option<&[u8]>) {
        let framing = request.framing;
        let out = self.encoder.begin(framing);
        out.reserve(outgoing.fields.as_bytes().len().saturating_add(outgoing.target.len()).saturating_add(128));
        for part in [request.method.as_bytes(), b" ", &outgoing.target, b" HTTP/1.1\r\n", outgoing.fields.as_bytes()] {
            out.extend_from_slice(part);
        }
        match framing {
            Framing::Length(length) => {
                out.extend_from_slice(b"content-length: ");
                out.extend_from_slice(itoa::Buffer::new().format(length).as_bytes());
                out.extend_from_slice(b"\r\n");
            }
            Framing::Empty if request.fields.contains("content-length") => {
                out.extend_from_slice(b"content-length: 0\r\n");
            }
            Framing::Chunked => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
            Framing::Empty | Framing::UntilClose => {}
        }
        if let Some(protocol) = upgrade {
            for part in [b"connection: upgrade\r\nupgrade: ", protocol, b"\r\n"] {
                out.extend_from_slice(part);
            }
        }
        out.extend_from_slice(b"\r\n");
        (self.body, self.available) = (Decoder::new(Framing::Empty), 0);
        (self.keeps_alive, self.kept_for, self.is_request_sent) = (true, None, false);
    }

    fn poll_head(
        &mut self,
        task: &mut Context<'_>,
        head: &mut ResponseHead,
        method: &str,
    ) -> Poll<Result<Framing, UpstreamError>> {
        loop {
            if let Some(length) = self.reader.response(self.buffer.unread(), head)? {
                self.buffer.consume(length);
                self.reader = HeadReader::default();
                let framing = head.framing(method)?;
                self.body = Decoder::new(framing);
                self.keeps_alive = head.keeps_alive() && framing != Framing::UntilClose;
                // a second earlier than the server, so that no request meets its end
                let kept_for = head.keep_alive_timeout().map(|seconds| Nanos::from_secs(seconds.saturating_sub(1)));
                self.kept_for = kept_for;
                return Poll::Ready(Ok(framing));
            }
            if ready!(self.buffer.poll_read(task, &mut self.socket))? == 0 {
                return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
            }
        }
    }

    fn poll_body(&mut self, task: &mut Context<'_>) -> Poll<Result<bool, UpstreamError>> {
        loop {
            match self.body.step(self.buffer.unread()).map_err(|_| Unreadable("its chunks are malformed"))? {
                Step::Skip(length) => self.buffer.consume(length),
                Step::Data(length) => {
                    self.available = length;
                    return Poll::Ready(Ok(true));
                }
                Step::End => return Poll::Ready(Ok(false)),
                Step::NeedMore => {
                    if ready!(self.buffer.poll_read(task, &mut self.socket))? == 0 && !self.body.ended() {
                        return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
                    }
                }
            }
        }
    }
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

// === impl Http2Upstream ===

impl Http2Upstream {
    async fn begin(
        connection: Http2Connection,
        request: &RequestHead,
        outgoing: &OutgoingRequest,
        scheme: &str,
    ) -> io::Result<Self> {
        let Http2Connection { requests, running, .. } = connection;
        let running = Running::new(&running);
        let mut head = http::Request::new(());
        *head.method_mut() = request.method.parse().map_err(io::Error::other)?;
        let mut fields = outgoing.fields.to_map();
        let host = fields.remove(http::header::HOST);
        let authority = host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or_default();
        let target = str::from_utf8(&outgoing.target).map_err(io::Error::other)?;
        let uri = http::Uri::builder().scheme(scheme).authority(authority).path_and_query(target);
        *head.uri_mut() = uri.build().map_err(io::Error::other)?;
        *head.version_mut() = http::Version::HTTP_2;
        match request.framing {
            Framing::Length(length) => drop(fields.insert(http::header::CONTENT_LENGTH, length.into())),
            Framing::Empty if request.fields.contains("content-length") => {
                drop(fields.insert(http::header::CONTENT_LENGTH, 0.into()));
            }
            _ => {}
        }
        if request.fields.lists("te", "trailers") {
            fields.insert(http::header::TE, http::HeaderValue::from_static("trailers"));
        }
        *head.headers_mut() = fields;
        let ends = request.framing == Framing::Empty;
        let mut requests = requests.ready().await.map_err(io::Error::other)?;
        let (response, request) = requests.send_request(head, ends).map_err(io::Error::other)?;
        Ok(Self {
            response,
            request,
            body: None,
            part: Bytes::new(),
            is_read: false,
            is_ended: ends,
            trailers: None,
            _running: running,
        })
    }

    fn poll_head(&mut self, task: &mut Context<'_>, head: &mut ResponseHead) -> Poll<Result<Framing, UpstreamError>> {
        // whether more of them are to come is said by the response itself
        if let Poll::Ready(Some(Ok(interim))) = self.response.poll_informational(task) {
            head.status = interim.status().as_u16();
            head.fields = Fields::from(interim.headers());
            return Poll::Ready(Ok(Framing::Empty));
        }
        let response = ready!(std::pin::Pin::new(&mut self.response).poll(task))?;
        let (parts, body) = response.into_parts();
        head.status = parts.status.as_u16();
        head.version = Version::Http2;
        head.reason.clear();
        head.fields = Fields::from(&parts.headers);
        let length = parts.headers.get(http::header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok()).filter(|length| *length > 0);
        let framing = match length {
            _ if body.is_end_stream() => Framing::Empty,
            Some(length) => Framing::Length(length),
            None => Framing::Chunked,
        };
        self.body = Some(body);
        Poll::Ready(Ok(framing))
    }

    fn poll_body(&mut self, task: &mut Context<'_>) -> Poll<Result<bool, UpstreamError>> {
        let Some(body) = &mut self.body else { return Poll::Ready(Ok(false)) };
        while self.part.is_empty() && !self.is_read {
            match ready!(body.poll_data(task)) {
                Some(part) => self.part = part?,
                None => {
                    self.trailers = ready!(body.poll_trailers(task))?;
                    self.is_read = true;
                }
            }
        }
        Poll::Ready(Ok(!self.part.is_empty()))
    }

    fn finish(&mut self) -> io::Result<()> {
        match std::mem::replace(&mut self.is_ended, true) {
            true => Ok(()),
            false => self.request.send_data(Bytes::new(), true).map_err(io::Error::other),
        }
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
            Self::Http1(upstream) => upstream.encoder.poll_send(task, &mut upstream.socket, content, is_last),
            Self::Http2(upstream) => {
                let length = ready!(poll_capacity(&mut upstream.request, task, content.len()))?;
                let part = Bytes::copy_from_slice(content.get(..length).unwrap_or(content));
                let (ends, length) = (is_last && part.len() == content.len(), part.len());
                upstream.request.send_data(part, ends).map_err(io::Error::other)?;
                upstream.is_ended |= ends;
                Poll::Ready(Ok(length))
            }
        }
    }

    /// Sends what waits to be sent.
    pub fn poll_flush(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Http1(upstream) if upstream.encoder.is_flushed() => Poll::Ready(Ok(())),
            Self::Http1(upstream) => upstream.encoder.poll_flush(task, &mut upstream.socket),
            Self::Http2(_) => Poll::Ready(Ok(())),
        }
    }

    /// Sends the end of the request. Trailers of requests are not forwarded: servers such as nginx refuse them.
    pub fn poll_finish(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Http1(upstream) => {
                ready!(upstream.encoder.poll_finish(task, &mut upstream.socket))?;
                upstream.is_request_sent = true;
                Poll::Ready(Ok(()))
            }
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
            Self::Http1(upstream) => upstream.buffer.unread().get(..upstream.available).unwrap_or_default(),
            Self::Http2(upstream) => &upstream.part,
        }
    }

    /// So much of the content is used.
    pub fn consume(&mut self, length: usize) {
        match self {
            Self::Http1(upstream) => {
                upstream.buffer.consume(length);
                upstream.body.consumed(length);
                upstream.available = upstream.available.saturating_sub(length);
            }
            Self::Http2(upstream) => {
                upstream.part.advance(length.min(upstream.part.len()));
                if let Some(body) = &mut upstream.body {
                    // fails only on a stream that is over
                    drop(body.flow_control().release_capacity(length));
                }
            }
        }
    }

    /// Whether the body ends with the content that is here.
    pub fn ends_with_content(&self) -> bool {
        match self {
            Self::Http1(upstream) => {
                let behind = upstream.buffer.unread().get(upstream.available..).unwrap_or_default();
                upstream.body.ends_behind(upstream.available, behind)
            }
            // trailers may follow
            Self::Http2(upstream) => upstream.body.as_ref().is_none_or(RecvStream::is_end_stream),
        }
    }

    /// The fields behind the response's body, once that is over.
    pub fn take_trailers(&mut self) -> Option<HeaderMap> {
        match self {
            Self::Http1(_) => None,
            Self::Http2(upstream) => upstream.trailers.take(),
        }
    }

    /// The connection for a further request, and for how long it can be kept if the server says so; `None` where the
    /// exchange did not come to its end on both sides, or more came than the response.
    pub fn into_kept(self) -> Option<(Box<Http1Connection>, Option<Nanos>)> {
        match self {
            Self::Http1(mut connection) => {
                let is_whole = connection.keeps_alive
                    && connection.is_request_sent
                    && connection.body.is_over()
                    && connection.buffer.unread().is_empty();
                connection.buffer.release();
                let kept_for = connection.kept_for;
                is_whole.then_some((connection, kept_for))
            }
            // streams share their connection as it is
            Self::Http2(_) => None,
        }
    }
}
