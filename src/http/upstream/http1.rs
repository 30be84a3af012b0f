//! HTTP/1.1 exchanges with an upstream.

use std::io;
use std::task::{Context, Poll, ready};

use super::UpstreamError;
use crate::http::body::{Decoder, Framing};
use crate::http::buffer::Buffer;
use crate::http::channel::Http1Channel;
use crate::http::head::{HeadReader, RequestHead, ResponseHead};
use crate::http::socket::Socket;
use crate::http::upstream::OutgoingRequest;
use crate::units::Nanos;

/// An HTTP/1.1 connection, with one exchange after the other.
#[derive(Debug)]
pub struct Http1Connection {
    pub(in crate::http) channel: Http1Channel,
    reader: HeadReader,
    keeps_alive: bool,
    /// How long the server keeps the connection by its own statement, less one second.
    kept_for: Option<Nanos>,
}

impl Http1Connection {
    /// A connection on which no request was sent yet.
    pub(in crate::http) fn new(socket: Socket) -> Self {
        Self {
            channel: Http1Channel::new(socket, Buffer::default(), Decoder::of_response(Framing::Empty)),
            reader: HeadReader::default(),
            keeps_alive: true,
            kept_for: None,
        }
    }

    /// Begins a request with its head, which is sent together with the bytes that follow.
    pub(super) fn begin(&mut self, request: &RequestHead, outgoing: &OutgoingRequest, upgrade: Option<&[u8]>) {
        let framing = request.framing;
        let out = self.channel.encoder.begin(framing);
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
        self.channel.begin_body(Decoder::of_response(Framing::Empty));
        (self.keeps_alive, self.kept_for) = (true, None);
    }

    /// Waits for the next head of a response.
    pub(super) fn poll_head(
        &mut self,
        task: &mut Context<'_>,
        head: &mut ResponseHead,
        method: &str,
    ) -> Poll<Result<Framing, UpstreamError>> {
        loop {
            if let Some(length) = self.reader.response(self.channel.buffer.unread(), head)? {
                self.channel.buffer.consume(length);
                self.reader = HeadReader::default();
                let framing = head.framing(method)?;
                self.channel.begin_body(Decoder::of_response(framing));
                self.keeps_alive = head.keeps_alive() && framing != Framing::UntilClose;
                // one second less than the server, so that no request arrives while the server closes
                let kept_for = head.keep_alive_timeout().map(|seconds| Nanos::from_secs(seconds.saturating_sub(1)));
                self.kept_for = kept_for;
                return Poll::Ready(Ok(framing));
            }
            let Http1Channel { socket, buffer, .. } = &mut self.channel;
            if ready!(buffer.poll_read(task, socket))? == 0 {
                return Poll::Ready(Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()));
            }
        }
    }

    /// How long the connection can be kept after a request that was sent whole, if the server says so. `None` if it cannot be
    /// kept: the response did not end, or more bytes arrived.
    pub(super) fn end_exchange(&mut self) -> Option<Option<Nanos>> {
        let Http1Channel { body, buffer, .. } = &mut self.channel;
        let is_whole = self.keeps_alive && body.is_over() && buffer.unread().is_empty();
        buffer.release();
        is_whole.then_some(self.kept_for)
    }
}
