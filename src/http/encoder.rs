//! The encoder of HTTP/1.1 messages: writes heads, and bodies in their framing, in as few writes as possible.

use std::io::{self, IoSlice, Write as _};
use std::pin::pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use super::body::Framing;
use super::socket::Socket;

const LAST_CHUNK: &[u8] = b"0\r\n\r\n";
/// The encoder frees memory beyond this size after each message, in bytes.
const KEPT: usize = 4 << 10;

/// Writes messages to a socket, one after the other.
#[derive(Debug, Default)]
pub struct Encoder {
    /// The bytes that wait to be written, from `sent` on: a head, or the framing of a body.
    out: Vec<u8>,
    sent: usize,
    is_chunked: bool,
    /// How many bytes of the current chunk's content are still to be written.
    chunk_left: usize,
    /// Whether the end of the chunked body is in `out`.
    is_ended: bool,
}

/// What follows the content of a write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tail {
    /// Nothing: the body is not in chunks, or more of the chunk follows.
    Nothing,
    /// The end of the chunk.
    OfChunk,
    /// The end of the chunk and of the body.
    OfBody,
}

impl Tail {
    const fn bytes(self) -> &'static [u8] {
        match self {
            Self::Nothing => b"",
            Self::OfChunk => b"\r\n",
            Self::OfBody => b"\r\n0\r\n\r\n",
        }
    }
}

impl Encoder {
    /// Begins the next message. The caller writes its head into the returned buffer.
    pub fn begin(&mut self, body: Framing) -> &mut Vec<u8> {
        (self.is_chunked, self.chunk_left, self.is_ended) = (body == Framing::Chunked, 0, false);
        &mut self.out
    }

    /// Writes the waiting bytes, and then as much of `content` as the socket takes. Returns how many bytes of content
    /// that was. With `is_last`, the body ends with this content.
    pub fn poll_send(
        &mut self,
        task: &mut Context<'_>,
        to: &mut Socket,
        content: &[u8],
        is_last: bool,
    ) -> Poll<io::Result<usize>> {
        if content.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let (content, tail) =
            if self.is_chunked { self.part_of_chunk(content, is_last) } else { (content, Tail::Nothing) };
        loop {
            let before = self.out.len().saturating_sub(self.sent);
            let written = ready!(self.poll_write(task, to, content, tail.bytes()))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let Some(behind_head) = written.checked_sub(before) else {
                self.sent = self.sent.saturating_add(written);
                continue;
            };
            self.clear();
            let taken = behind_head.min(content.len());
            self.chunk_left = self.chunk_left.saturating_sub(taken);
            if taken == content.len() {
                let unsent = tail.bytes().get(behind_head.saturating_sub(taken)..);
                self.out.extend_from_slice(unsent.unwrap_or_default());
                self.is_ended = tail == Tail::OfBody;
            }
            if taken > 0 {
                return Poll::Ready(Ok(taken));
            }
        }
    }

    /// The part of `content` that belongs to the current chunk, or to the one that begins with it, and what follows this part.
    fn part_of_chunk<'c>(&mut self, content: &'c [u8], is_last: bool) -> (&'c [u8], Tail) {
        if self.chunk_left == 0 {
            // writing to memory does not fail
            drop(write!(self.out, "{:x}\r\n", content.len()));
            self.chunk_left = content.len();
        }
        match content.split_at_checked(self.chunk_left) {
            None => (content, Tail::Nothing),
            Some((part, [])) if is_last => (part, Tail::OfBody),
            Some((part, _)) => (part, Tail::OfChunk),
        }
    }

    /// Writes the waiting bytes, `content` and `behind` as far as the socket takes them. Returns how many bytes that was.
    fn poll_write(
        &mut self,
        task: &mut Context<'_>,
        to: &mut Socket,
        content: &[u8],
        behind: &[u8],
    ) -> Poll<io::Result<usize>> {
        let length = self.out.len();
        // for small messages, one copied piece costs less than a vectored write of three
        if length.saturating_add(content.len()).saturating_add(behind.len()) <= KEPT {
            self.out.extend_from_slice(content);
            self.out.extend_from_slice(behind);
            let written = pin!(to).poll_write(task, self.out.get(self.sent..).unwrap_or_default());
            self.out.truncate(length);
            return written;
        }
        let waiting = self.out.get(self.sent..).unwrap_or_default();
        let slices = [IoSlice::new(waiting), IoSlice::new(content), IoSlice::new(behind)];
        let slices = if waiting.is_empty() { slices.get(1..).unwrap_or_default() } else { &slices };
        pin!(to).poll_write_vectored(task, slices)
    }

    /// Writes the waiting bytes.
    pub fn poll_flush(&mut self, task: &mut Context<'_>, to: &mut Socket) -> Poll<io::Result<()>> {
        while self.sent < self.out.len() {
            let waiting = self.out.get(self.sent..).unwrap_or_default();
            let written = ready!(pin!(&mut *to).poll_write(task, waiting))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent = self.sent.saturating_add(written);
        }
        self.clear();
        pin!(to).poll_flush(task)
    }

    /// Writes the end of the message and all waiting bytes.
    pub fn poll_finish(&mut self, task: &mut Context<'_>, to: &mut Socket) -> Poll<io::Result<()>> {
        if self.is_chunked && !self.is_ended {
            self.out.extend_from_slice(LAST_CHUNK);
            self.is_ended = true;
        }
        self.poll_flush(task, to)
    }

    /// Whether no bytes wait to be written.
    pub fn is_flushed(&self) -> bool {
        self.out.is_empty()
    }

    fn clear(&mut self) {
        self.sent = 0;
        self.out.clear();
        self.out.shrink_to(KEPT);
    }
}
