//! The bodies of an exchange on an HTTP/1.1 connection or an HTTP/2 stream, of clients and of upstreams: one is read, and
//! one is sent.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::http::HeaderMap;
use bytes::{Buf, Bytes};
use h2::{RecvStream, SendStream};
use tokio::io::AsyncWrite;

use super::body::{Decoder, Step};
use super::buffer::Buffer;
use super::encoder::Encoder;
use super::frames::poll_capacity;
use super::socket::Socket;
use super::syntax::Refused;

/// The reason why no more of a body can be read.
#[derive(Debug)]
pub enum ReadError {
    /// The connection failed, or ended before the body did.
    Io(io::Error),
    /// The stream or its connection failed.
    Http2(h2::Error),
    /// The chunks of the body are malformed.
    Malformed(Refused),
}

/// An HTTP/1.1 connection.
#[derive(Debug)]
pub struct Http1Channel {
    pub(super) socket: Socket,
    pub(super) buffer: Buffer,
    pub(super) encoder: Encoder,
    /// The decoder of the body that is read.
    pub(super) body: Decoder,
    /// How many bytes of the body's content are at the beginning of the buffer.
    available: usize,
}

/// An HTTP/2 stream.
#[derive(Debug)]
pub struct Http2Channel {
    /// Where the body comes from, once its head has come.
    pub(super) recv: Option<RecvStream>,
    /// Where the body goes, once its head was sent.
    pub(super) send: Option<SendStream<Bytes>>,
    /// The part of the body that was read and not consumed.
    part: Bytes,
    is_read: bool,
    /// Whether the end of the body was sent.
    pub(super) is_ended: bool,
    trailers: Option<HeaderMap>,
}

/// The channel of one exchange.
#[derive(Debug)]
pub enum ChannelMut<'c> {
    /// On an HTTP/1.1 connection.
    Http1(&'c mut Http1Channel),
    /// On an HTTP/2 stream.
    Http2(&'c mut Http2Channel),
}

// === impl Http1Channel ===

impl Http1Channel {
    /// A connection between two exchanges, with these bytes that were read and not consumed.
    pub(super) fn new(socket: Socket, buffer: Buffer, body: Decoder) -> Self {
        Self { socket, buffer, encoder: Encoder::default(), body, available: 0 }
    }

    /// Begins to read a body.
    pub(super) fn begin_body(&mut self, body: Decoder) {
        (self.body, self.available) = (body, 0);
    }

    /// See [`ChannelMut::poll_body`].
    pub(super) fn poll_body(&mut self, task: &mut Context<'_>) -> Poll<Result<bool, ReadError>> {
        loop {
            match self.body.step(self.buffer.unread()).map_err(ReadError::Malformed)? {
                Step::Skip(length) => self.buffer.consume(length),
                Step::Data(length) => {
                    self.available = length;
                    return Poll::Ready(Ok(true));
                }
                Step::End => return Poll::Ready(Ok(false)),
                Step::NeedMore => {
                    let came = ready!(self.buffer.poll_read(task, &mut self.socket)).map_err(ReadError::Io)?;
                    if came == 0 && !self.body.ended() {
                        return Poll::Ready(Err(ReadError::Io(io::ErrorKind::UnexpectedEof.into())));
                    }
                }
            }
        }
    }

    fn content(&self) -> &[u8] {
        self.buffer.unread().get(..self.available).unwrap_or_default()
    }

    fn consume(&mut self, length: usize) {
        self.buffer.consume(length);
        self.body.consumed(length);
        self.available = self.available.saturating_sub(length);
    }

    /// Consumes all available content.
    pub(super) fn consume_available(&mut self) {
        self.consume(self.available);
    }

    fn ends_with_content(&self) -> bool {
        let behind = self.buffer.unread().get(self.available..).unwrap_or_default();
        self.body.ends_behind(self.available, behind)
    }

    fn poll_flush(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.encoder.is_flushed() {
            true => Pin::new(&mut self.socket).poll_flush(task),
            false => self.encoder.poll_flush(task, &mut self.socket),
        }
    }
}

// === impl Http2Channel ===

impl Http2Channel {
    /// A stream on which nothing of a body was read or sent.
    pub(super) fn new(recv: Option<RecvStream>, send: Option<SendStream<Bytes>>, is_ended: bool) -> Self {
        Self { recv, send, part: Bytes::new(), is_read: false, is_ended, trailers: None }
    }

    fn poll_body(&mut self, task: &mut Context<'_>) -> Poll<Result<bool, ReadError>> {
        let Some(recv) = &mut self.recv else { return Poll::Ready(Ok(false)) };
        while self.part.is_empty() && !self.is_read {
            match ready!(recv.poll_data(task)) {
                Some(part) => self.part = part.map_err(ReadError::Http2)?,
                None => {
                    self.trailers = ready!(recv.poll_trailers(task)).map_err(ReadError::Http2)?;
                    self.is_read = true;
                }
            }
        }
        Poll::Ready(Ok(!self.part.is_empty()))
    }

    fn consume(&mut self, length: usize) {
        self.part.advance(length.min(self.part.len()));
        if let Some(recv) = &mut self.recv {
            // fails only if the stream has ended
            drop(recv.flow_control().release_capacity(length));
        }
    }

    fn poll_send(&mut self, task: &mut Context<'_>, content: &[u8], is_last: bool) -> Poll<io::Result<usize>> {
        let Some(send) = &mut self.send else { return Poll::Ready(Err(io::ErrorKind::NotConnected.into())) };
        if content.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let length = ready!(poll_capacity(send, task, content.len()))?;
        let part = Bytes::copy_from_slice(content.get(..length).unwrap_or(content));
        let (ends, length) = (is_last && part.len() == content.len(), part.len());
        send.send_data(part, ends).map_err(io::Error::other)?;
        self.is_ended |= ends;
        Poll::Ready(Ok(length))
    }

    fn finish(&mut self, trailers: Option<HeaderMap>) -> io::Result<()> {
        let Some(send) = self.send.as_mut().filter(|_| !self.is_ended) else { return Ok(()) };
        self.is_ended = true;
        let ended = match trailers {
            Some(trailers) => send.send_trailers(trailers),
            None => send.send_data(Bytes::new(), true),
        };
        ended.map_err(io::Error::other)
    }
}

// === impl ChannelMut ===

impl<'c> ChannelMut<'c> {
    /// Waits for the next content of the body; `false` at its end.
    pub fn poll_body(self, task: &mut Context<'_>) -> Poll<Result<bool, ReadError>> {
        match self {
            Self::Http1(channel) => channel.poll_body(task),
            Self::Http2(channel) => channel.poll_body(task),
        }
    }

    /// The content that has arrived and was not consumed.
    pub fn content(self) -> &'c [u8] {
        match self {
            Self::Http1(channel) => channel.content(),
            Self::Http2(channel) => &channel.part,
        }
    }

    /// Consumes `length` bytes of content.
    pub fn consume(self, length: usize) {
        match self {
            Self::Http1(channel) => channel.consume(length),
            Self::Http2(channel) => channel.consume(length),
        }
    }

    /// Whether the body ends with the available content. A stream that has not ended may have trailers.
    pub fn ends_with_content(self) -> bool {
        match self {
            Self::Http1(channel) => channel.ends_with_content(),
            Self::Http2(channel) => channel.recv.as_ref().is_none_or(RecvStream::is_end_stream),
        }
    }

    /// The trailers of the body that was read, after its end. Those of HTTP/1.1 are not kept.
    pub fn take_trailers(self) -> Option<HeaderMap> {
        match self {
            Self::Http1(_) => None,
            Self::Http2(channel) => channel.trailers.take(),
        }
    }

    /// Sends as much of `content` as the socket or stream takes. With `is_last`, the body ends with this content.
    pub fn poll_send(self, task: &mut Context<'_>, content: &[u8], is_last: bool) -> Poll<io::Result<usize>> {
        match self {
            Self::Http1(channel) => channel.encoder.poll_send(task, &mut channel.socket, content, is_last),
            Self::Http2(channel) => channel.poll_send(task, content, is_last),
        }
    }

    /// Whether bytes wait in the encoder.
    pub fn has_unsent(self) -> bool {
        matches!(self, Self::Http1(channel) if !channel.encoder.is_flushed())
    }

    /// Sends the bytes that wait in the encoder and in TLS.
    pub fn poll_flush(self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Http1(channel) => channel.poll_flush(task),
            Self::Http2(_) => Poll::Ready(Ok(())),
        }
    }

    /// Sends the end of the message. Over HTTP/1.1 the gateway sends no trailers.
    pub fn poll_finish(self, task: &mut Context<'_>, trailers: &mut Option<HeaderMap>) -> Poll<io::Result<()>> {
        match self {
            Self::Http1(channel) => channel.encoder.poll_finish(task, &mut channel.socket),
            Self::Http2(channel) => Poll::Ready(channel.finish(trailers.take())),
        }
    }
}
