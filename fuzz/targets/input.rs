//! Bytes, taken apart.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What is left of an input.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    /// The next byte; 0 at the end.
    pub(crate) fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().map_or((0, self.0), |(first, rest)| (*first, rest));
        self.0 = rest;
        first
    }

    /// Up to the next line feed.
    pub(crate) fn line(&mut self) -> &'a [u8] {
        let end = self.0.iter().position(|byte| *byte == b'\n').unwrap_or(self.0.len());
        let (line, rest) = self.0.split_at(end);
        self.0 = rest.get(1..).unwrap_or_default();
        line
    }

    /// The same, if it is text.
    pub(crate) fn text(&mut self) -> &'a str {
        str::from_utf8(self.line()).unwrap_or_default()
    }

    /// One of these.
    pub(crate) fn one_of<'t, T>(&mut self, all: &'t [T]) -> &'t T {
        &all[usize::from(self.byte()) % all.len()]
    }
}

/// A number that hangs on all bytes.
pub(crate) fn mixed(data: &[u8]) -> usize {
    data.iter().fold(7, |hash: usize, byte| hash.wrapping_mul(31).wrapping_add(usize::from(*byte)))
}

/// The other end of a connection: says what is `left`, at `most` so many bytes at a time, and takes whatever it is told.
pub(crate) struct Pieces<'a> {
    pub(crate) left: &'a [u8],
    pub(crate) most: usize,
}

impl AsyncRead for Pieces<'_> {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let length = self.left.len().min(self.most).min(buffer.remaining());
        let (now, later) = self.left.split_at(length);
        buffer.put_slice(now);
        self.left = later;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Pieces<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
