//! HTTP/2 exchanges with an upstream, several of which share a connection.

use std::borrow::Cow;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};

use super::UpstreamError;
use crate::fields::Fields;
use crate::http::body::Framing;
use crate::http::channel::Http2Channel;
use crate::http::head::{RequestHead, ResponseHead, Version};
use crate::http::upstream::OutgoingRequest;

/// The maximum number of requests that share an HTTP/2 connection, if the upstream allows as many.
pub(super) const MAX_STREAMS: usize = 100;
/// The characters that clients of HTTP/1.1 send in queries and that no URI holds (RFC 3986, appendix A).
const ENCODED: &AsciiSet = &CONTROLS.add(b'"').add(b'<').add(b'>');

/// A handle to an HTTP/2 connection, which its own task drives as long as a handle exists.
#[derive(Clone, Debug)]
pub struct Http2Connection {
    requests: SendRequest<Bytes>,
    /// How many requests it currently has.
    running: Arc<AtomicUsize>,
    is_closed: Arc<AtomicBool>,
}

impl Http2Connection {
    /// A connection on which `requests` sends requests.
    pub(super) fn new(requests: SendRequest<Bytes>) -> Self {
        Self { requests, running: Arc::default(), is_closed: Arc::default() }
    }

    /// The flag that the connection's task sets when the connection has ended.
    pub(super) fn closed_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.is_closed)
    }

    /// The maximum number of concurrent requests.
    pub(in crate::http) fn max_streams(&self) -> usize {
        self.requests.current_max_send_streams().clamp(1, MAX_STREAMS)
    }

    /// How many requests it currently has.
    pub(in crate::http) fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// Lets no other request share the connection.
    pub(in crate::http) fn retire(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// Whether the connection takes no more requests: it has ended, or it was retired.
    pub(in crate::http) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }
}

/// One HTTP/2 exchange.
#[derive(Debug)]
pub struct Http2Upstream {
    response: ResponseFuture,
    pub(super) channel: Http2Channel,
    /// The flag of the connection.
    is_closed: Arc<AtomicBool>,
    _running: Running,
}

/// Counts a request on its connection, until dropped.
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

impl Http2Upstream {
    pub(super) async fn begin(
        connection: &Http2Connection,
        request: &RequestHead,
        outgoing: &OutgoingRequest,
        scheme: &str,
    ) -> io::Result<Self> {
        let running = Running::new(&connection.running);
        let head =
            head(request, outgoing, scheme).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let ends = request.framing == Framing::Empty;
        let mut requests = connection.requests.clone().ready().await.map_err(io::Error::other)?;
        let (response, request) = requests.send_request(head, ends).map_err(io::Error::other)?;
        Ok(Self {
            response,
            channel: Http2Channel::new(None, Some(request), ends),
            is_closed: Arc::clone(&connection.is_closed),
            _running: running,
        })
    }

    /// See [`Http2Connection::retire`].
    pub(super) fn retire(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    pub(super) fn poll_head(
        &mut self,
        task: &mut Context<'_>,
        head: &mut ResponseHead,
    ) -> Poll<Result<Framing, UpstreamError>> {
        // an error here also appears in the response itself
        if let Poll::Ready(Some(Ok(interim))) = self.response.poll_informational(task) {
            head.status = interim.status().as_u16();
            head.fields = Fields::from(interim.headers());
            return Poll::Ready(Ok(Framing::Empty));
        }
        let response = ready!(Pin::new(&mut self.response).poll(task)).inspect_err(|error| {
            // the error concerns the whole connection
            if !error.is_reset() {
                self.retire();
            }
        })?;
        let (parts, body) = response.into_parts();
        head.status = parts.status.as_u16();
        head.version = Version::Http2;
        head.reason.clear();
        head.fields = Fields::from(&parts.headers);
        let length = parts.headers.get(::http::header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok()).filter(|length| *length > 0);
        let framing = match length {
            _ if body.is_end_stream() => Framing::Empty,
            Some(length) => Framing::Length(length),
            None => Framing::Chunked,
        };
        self.channel.recv = Some(body);
        Poll::Ready(Ok(framing))
    }
}

/// The head of a request in the form of HTTP/2.
fn head(request: &RequestHead, outgoing: &OutgoingRequest, scheme: &str) -> Result<::http::Request<()>, ::http::Error> {
    let mut head = ::http::Request::new(());
    *head.method_mut() = request.method.parse::<::http::Method>()?;
    let mut fields = outgoing.fields.to_map();
    let host = fields.remove(::http::header::HOST);
    let authority = host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or_default();
    let target = Cow::<str>::from(percent_encode(&outgoing.target, ENCODED));
    *head.uri_mut() = ::http::Uri::builder().scheme(scheme).authority(authority).path_and_query(&*target).build()?;
    *head.version_mut() = ::http::Version::HTTP_2;
    match request.framing {
        Framing::Length(length) => drop(fields.insert(::http::header::CONTENT_LENGTH, length.into())),
        Framing::Empty if request.fields.contains("content-length") => {
            drop(fields.insert(::http::header::CONTENT_LENGTH, 0.into()));
        }
        _ => {}
    }
    if request.fields.lists("te", "trailers") {
        fields.insert(::http::header::TE, ::http::HeaderValue::from_static("trailers"));
    }
    *head.headers_mut() = fields;
    Ok(head)
}
