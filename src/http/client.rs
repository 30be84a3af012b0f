//! The client's side of an exchange: a request's body comes from here, and a response goes here.

use std::io;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};

use super::body::{Decoder, Framing};
use super::buffer::Buffer;
use super::channel::{ChannelMut, Http1Channel, Http2Channel, ReadError};
use super::date::with_date;
use super::head::{RequestHead, Version, has_no_content, keeps_alive};
use super::service::Failure;
use super::socket::Socket;
use crate::fields::Fields;
use crate::units::Nanos;

/// How many bytes the gateway reads ahead while a client's request is in progress.
const AHEAD: usize = 64 << 10;
/// After an early answer, the gateway reads at most this many bytes of the request's body to keep the connection.
const DRAINED: u64 = 64 << 10;

/// How many interim responses to one request an HTTP/2 client gets. No flow control bounds their memory.
const MAX_INTERIM: u8 = 16;

const CONTINUE: u16 = 100;

/// The client of one request.
#[derive(Debug)]
pub enum Client<'c> {
    /// On an HTTP/1.1 connection.
    Http1(&'c mut Http1Client),
    /// On an HTTP/2 stream.
    Http2(Box<Http2Client>),
}

/// An HTTP/1.1 connection.
#[derive(Debug)]
pub struct Http1Client {
    pub(super) channel: Http1Channel,
    version: Version,
    method_is_head: bool,
    /// Whether the client waits for `100 Continue` before it sends the body.
    expects_continue: bool,
    /// Whether the final response to the current request has begun.
    pub(super) is_answered: bool,
    /// Whether another request may follow.
    pub(super) keeps_alive: bool,
}

/// An HTTP/2 stream.
#[derive(Debug)]
pub struct Http2Client {
    channel: Http2Channel,
    respond: SendResponse<Bytes>,
    method_is_head: bool,
    /// Whether the client waits for `100 Continue` before it sends the body.
    expects_continue: bool,
    /// How many interim responses were sent.
    interim: u8,
}

/// The head of a response, for a client.
#[derive(Clone, Copy, Debug)]
pub struct ClientHead<'h> {
    /// The status.
    pub status: u16,
    /// The reason phrase of the upstream; empty for the usual one of the status.
    pub reason: &'h [u8],
    /// The end-to-end fields.
    pub fields: &'h Fields,
    /// The framing of the body at its source.
    pub framing: Framing,
    /// The length that a response without a body declares, for example a response to HEAD.
    pub declared: Option<&'h [u8]>,
    /// The wall clock's time, for a response without a date.
    pub wall: Nanos,
}

// === impl Http1Client ===

impl Http1Client {
    /// A connection from which `read_ahead` was already read.
    pub fn new(socket: Socket, read_ahead: &[u8]) -> Self {
        let mut buffer = Buffer::default();
        if !read_ahead.is_empty() {
            buffer.append(read_ahead);
        }
        Self {
            channel: Http1Channel::new(socket, buffer, Decoder::new(Framing::Empty)),
            version: Version::Http11,
            method_is_head: false,
            expects_continue: false,
            is_answered: false,
            keeps_alive: true,
        }
    }

    /// Begins the request with this head. Its body follows.
    pub fn begin(&mut self, head: &RequestHead) {
        self.channel.begin_body(Decoder::new(head.framing));
        self.version = head.version;
        self.method_is_head = head.method == "HEAD";
        self.expects_continue = head.fields.contains("expect");
        self.is_answered = false;
        self.keeps_alive = keeps_alive(head.version, &head.fields);
    }

    /// Begins a request that cannot be read: its end is unknown.
    pub(super) fn begin_unreadable(&mut self) {
        self.channel.begin_body(Decoder::new(Framing::UntilClose));
        (self.version, self.method_is_head, self.is_answered, self.keeps_alive) =
            (Version::Http11, false, false, false);
    }

    /// Whether the rest of the request's body is small enough to be read.
    pub(super) fn can_be_drained(&self) -> bool {
        let body = &self.channel.body;
        body.is_over() || (body.left().is_some_and(|left| left <= DRAINED) && !self.expects_continue)
    }

    /// Reads ahead to detect whether the client is gone.
    fn poll_disconnect(&mut self, task: &mut Context<'_>) -> Poll<()> {
        let Http1Channel { socket, buffer, .. } = &mut self.channel;
        while buffer.unread().len() < AHEAD {
            match ready!(buffer.poll_read(task, socket)) {
                Ok(0) | Err(_) => return Poll::Ready(()),
                Ok(_) => {}
            }
        }
        Poll::Pending
    }

    fn begin_response(&mut self, head: &ClientHead<'_>) {
        let is_interim = head.status < 200;
        self.is_answered |= !is_interim;
        self.expects_continue &= head.status != CONTINUE;
        let has_no_body = self.method_is_head || has_no_content(head.status);
        let framing = match head.framing {
            _ if has_no_body => Framing::Empty,
            // an HTTP/1.0 client does not know chunks: a body without a length ends with the connection
            Framing::Chunked | Framing::UntilClose if self.version == Version::Http10 => {
                self.keeps_alive = false;
                Framing::UntilClose
            }
            Framing::UntilClose => Framing::Chunked,
            framing => framing,
        };
        let out = self.channel.encoder.begin(framing);
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(itoa::Buffer::new().format(head.status).as_bytes());
        out.push(b' ');
        match head.reason {
            [] => out.extend_from_slice(usual_reason(head.status).as_bytes()),
            reason => out.extend_from_slice(reason),
        }
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(head.fields.as_bytes());
        if !is_interim && !head.fields.contains("date") {
            with_date(head.wall, |date| {
                for part in [b"date: ", date.as_bytes(), b"\r\n"] {
                    out.extend_from_slice(part);
                }
            });
        }
        let mut length = |digits: &[u8]| {
            out.extend_from_slice(b"content-length: ");
            out.extend_from_slice(digits);
            out.extend_from_slice(b"\r\n");
        };
        match (framing, head.declared) {
            (Framing::Length(exact), _) => length(itoa::Buffer::new().format(exact).as_bytes()),
            (Framing::Empty, Some(declared)) => length(declared),
            (Framing::Empty, None) if !has_no_body => length(b"0"),
            (Framing::Chunked, _) => out.extend_from_slice(b"transfer-encoding: chunked\r\n"),
            (Framing::Empty | Framing::UntilClose, _) => {}
        }
        match (self.keeps_alive, self.version) {
            _ if is_interim => {}
            (false, _) => out.extend_from_slice(b"connection: close\r\n"),
            (true, Version::Http10) => out.extend_from_slice(b"connection: keep-alive\r\n"),
            (true, _) => {}
        }
        out.extend_from_slice(b"\r\n");
    }
}

// === impl Http2Client ===

impl Http2Client {
    /// The client of a request on a stream, with the body that follows.
    pub fn new(head: &RequestHead, request: RecvStream, respond: SendResponse<Bytes>) -> Self {
        Self {
            channel: Http2Channel::new(Some(request), None, false),
            respond,
            method_is_head: head.method == "HEAD",
            expects_continue: head.fields.contains("expect"),
            interim: 0,
        }
    }

    fn poll_disconnect(&mut self, task: &mut Context<'_>) -> Poll<()> {
        match &mut self.channel.send {
            None => self.respond.poll_reset(task).map(drop),
            Some(response) => response.poll_reset(task).map(drop),
        }
    }

    fn begin_response(&mut self, head: &ClientHead<'_>) -> io::Result<()> {
        self.expects_continue &= head.status != CONTINUE;
        let has_no_body = self.method_is_head || has_no_content(head.status) || head.framing == Framing::Empty;
        let mut response = http::Response::new(());
        *response.status_mut() = http::StatusCode::from_u16(head.status).map_err(io::Error::other)?;
        *response.headers_mut() = head.fields.to_map();
        let headers = response.headers_mut();
        if head.status >= 200 && !headers.contains_key(http::header::DATE) {
            with_date(head.wall, |date| {
                if let Ok(date) = http::HeaderValue::from_str(date) {
                    headers.insert(http::header::DATE, date);
                }
            });
        }
        let length = match (head.framing, head.declared) {
            (Framing::Length(length), _) if !has_no_body => Some(length.into()),
            (Framing::Empty, Some(declared)) => http::HeaderValue::from_bytes(declared).ok(),
            (Framing::Empty, None) if !self.method_is_head && !has_no_content(head.status) => Some(0.into()),
            _ => None,
        };
        if let Some(length) = length {
            response.headers_mut().insert(http::header::CONTENT_LENGTH, length);
        }
        match head.status {
            100..=199 if self.interim == MAX_INTERIM => Ok(()),
            100..=199 => {
                self.interim = self.interim.saturating_add(1);
                self.respond.send_informational(response).map_err(io::Error::other)
            }
            _ => {
                let sending = self.respond.send_response(response, has_no_body).map_err(io::Error::other)?;
                (self.channel.send, self.channel.is_ended) = (Some(sending), has_no_body);
                Ok(())
            }
        }
    }
}

// === impl Client ===

impl Client<'_> {
    /// Whether the rest of the request's body is small enough to be read, so that the next request can follow.
    pub fn can_be_drained(&self) -> bool {
        match self {
            Self::Http1(client) => client.can_be_drained(),
            Self::Http2(_) => true,
        }
    }

    /// Whether a response to this request with this status has a body.
    pub fn has_response_body(&self, status: u16) -> bool {
        let method_is_head = match self {
            Self::Http1(client) => client.method_is_head,
            Self::Http2(client) => client.method_is_head,
        };
        !method_is_head && !has_no_content(status)
    }

    /// The bodies of the request and the response.
    pub fn channel(&mut self) -> ChannelMut<'_> {
        match self {
            Self::Http1(client) => ChannelMut::Http1(&mut client.channel),
            Self::Http2(client) => ChannelMut::Http2(&mut client.channel),
        }
    }

    /// Waits for the next content of the request's body; `false` at its end.
    pub fn poll_body(&mut self, task: &mut Context<'_>) -> Poll<Result<bool, Failure>> {
        self.channel().poll_body(task).map_err(|error| match error {
            ReadError::Malformed(refused) => Failure::Refused(refused),
            ReadError::Io(_) | ReadError::Http2(_) => Failure::ClientGone,
        })
    }

    /// Ready once the client is gone. Over HTTP/1.1 this reads ahead, so a client that has sent more is not missed yet.
    pub fn poll_disconnect(&mut self, task: &mut Context<'_>) -> Poll<()> {
        match self {
            Self::Http1(client) => client.poll_disconnect(task),
            Self::Http2(client) => client.poll_disconnect(task),
        }
    }

    /// Whether the client understands interim responses.
    pub fn accepts_interim(&self) -> bool {
        match self {
            Self::Http1(client) => client.version == Version::Http11,
            Self::Http2(_) => true,
        }
    }

    /// Whether the client still waits for `100 Continue` before it sends its body.
    pub fn expects_continue(&self) -> bool {
        match self {
            Self::Http1(client) => client.expects_continue,
            Self::Http2(client) => client.expects_continue,
        }
    }

    /// Sends `100 Continue` to a client that waits for it before it sends its body.
    pub fn send_continue(&mut self, wall: Nanos) -> io::Result<()> {
        let fields = &Fields::default();
        let framing = Framing::Empty;
        self.begin_response(&ClientHead { status: CONTINUE, reason: b"", fields, framing, declared: None, wall })
    }

    /// Begins a response with its head, which is sent together with the bytes that follow.
    pub fn begin_response(&mut self, head: &ClientHead<'_>) -> io::Result<()> {
        match self {
            Self::Http1(client) => {
                client.begin_response(head);
                Ok(())
            }
            Self::Http2(client) => client.begin_response(head),
        }
    }

    /// Ends an HTTP/1.1 connection after the current request.
    pub fn close(&mut self) {
        if let Self::Http1(client) = self {
            client.keeps_alive = false;
        }
    }

    /// Whether the final response has begun.
    pub fn is_answered(&self) -> bool {
        match self {
            Self::Http1(client) => client.is_answered,
            Self::Http2(client) => client.channel.send.is_some(),
        }
    }

    /// Resets an HTTP/2 stream at once.
    pub fn reset(&mut self) {
        if let Self::Http2(client) = self {
            match &mut client.channel.send {
                // the response is not whole
                Some(response) => response.send_reset(Reason::INTERNAL_ERROR),
                None => client.respond.send_reset(Reason::CANCEL),
            }
        }
    }
}

/// The usual reason phrase of a status.
fn usual_reason(status: u16) -> &'static str {
    http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or_default()
}
