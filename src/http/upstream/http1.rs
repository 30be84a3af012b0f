//! HTTP/1.1 exchanges with an upstream.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use super::UpstreamError;
use crate::http::body::{Decoder, Framing, Step};
use crate::http::buffer::Buffer;
use crate::http::encoder::Encoder;
use crate::http::head::{HeadReader, RequestHead, ResponseHead, Unreadable};
use crate::http::socket::Socket;
use crate::http::upstream::OutgoingRequest;
use crate::units::Nanos;

/// An HTTP/1.1 connection, with one exchange after the other.
#[derive(Debug)]
pub struct Http1Connection {
    pub(in crate::http) socket: Socket,
    pub(in crate::http) buffer: Buffer,
    encoder: Encoder,
    reader: HeadReader,
    body: Decoder,
    available: usize,
    keeps_alive: bool,
    /// How long the server keeps the connection by its own statement, less one second.
    kept_for: Option<Nanos>,
    is_request_sent: bool,
}

impl Http1Connection {
    /// A connection on which no request was sent yet.
    pub(in crate::http) fn new(socket: Socket) -> Self {
        Self {
            socket,
            buffer: Buffer::default(),
            encoder: Encoder::default(),
            reader: HeadReader::default(),
            body: Decoder::of_response(Framing::Empty),
            available: 0,
            keeps_alive: true,
            kept_for: None,
            is_request_sent: false,
        }
    }

    /// Begins a request with its head, which is sent together with the bytes that follow.
    pub(super) fn begin(&mut self, request: &RequestHead, outgoing: &OutgoingRequest, upgrade: Option<&[u8]>) {
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
        (self.body, self.available) = (Decoder::of_response(Framing::Empty), 0);
        (self.keeps_alive, self.kept_for, self.is_request_sent) = (true, None, false);
    }

    /// Waits for the next head of a response.
    pub(super) fn poll_head(
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
                self.body = Decoder::of_response(framing);
                self.keeps_alive = head.keeps_alive() && framing != Framing::UntilClose;
                // one second less than the server, so that no request arrives while the server closes
                let kept_for = head.keep_alive_timeout().map(|seconds| Nanos::from_secs(seconds.saturating_sub(1)));
                self.kept_for = kept_for;
                return Poll::Ready(Ok(framing));
            }
            if ready!(self.buffer.poll_read(task, &mut self.socket))? == 0 {
                return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
            }
        }
    }

    /// Waits for the next content of the response; `false` at its end.
    pub(super) fn poll_body(&mut self, task: &mut Context<'_>) -> Poll<Result<bool, UpstreamError>> {
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

    pub(super) fn poll_send(
        &mut self,
        task: &mut Context<'_>,
        content: &[u8],
        is_last: bool,
    ) -> Poll<io::Result<usize>> {
        self.encoder.poll_send(task, &mut self.socket, content, is_last)
    }

    pub(super) fn poll_flush(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.encoder.is_flushed() {
            true => Pin::new(&mut self.socket).poll_flush(task),
            false => self.encoder.poll_flush(task, &mut self.socket),
        }
    }

    pub(super) fn poll_finish(&mut self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.encoder.poll_finish(task, &mut self.socket))?;
        self.is_request_sent = true;
        Poll::Ready(Ok(()))
    }

    pub(super) fn content(&self) -> &[u8] {
        self.buffer.unread().get(..self.available).unwrap_or_default()
    }

    pub(super) fn consume(&mut self, length: usize) {
        self.buffer.consume(length);
        self.body.consumed(length);
        self.available = self.available.saturating_sub(length);
    }

    pub(super) fn ends_with_content(&self) -> bool {
        let behind = self.buffer.unread().get(self.available..).unwrap_or_default();
        self.body.ends_behind(self.available, behind)
    }

    /// How long the connection can be kept for another request, if the server says so. `None` if it cannot be kept: the
    /// exchange did not end on both sides, or more bytes than the response arrived.
    pub(super) fn end_exchange(&mut self) -> Option<Option<Nanos>> {
        let is_whole =
            self.keeps_alive && self.is_request_sent && self.body.is_over() && self.buffer.unread().is_empty();
        self.buffer.release();
        is_whole.then_some(self.kept_for)
    }
}
