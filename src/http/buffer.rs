//! The bytes that were read from a socket and not used yet.
//!
//! A waiting connection holds no buffer: each thread has a pool of buffers, from which a connection takes one
//! while it reads.

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};

/// The size of a pooled buffer, in bytes.
const SIZE: usize = 32 << 10;
/// The maximum number of buffers in a thread's pool.
const STOCK: usize = 64;
/// While a connection waits, at most this many leftover bytes move to memory of their own, and the buffer returns
/// to the pool.
const SMALL: usize = 2 << 10;

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// A source from which a buffer is filled.
pub trait Readable: AsyncRead {
    /// Ready if something can be read, as far as that is known without a try.
    fn poll_readable(&self, task: &mut Context<'_>) -> Poll<io::Result<()>>;
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Buffer {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Buffer {
    /// The bytes that were read and not consumed.
    pub fn unread(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    /// Consumes the first `length` unread bytes.
    pub fn consume(&mut self, length: usize) {
        self.start = self.start.saturating_add(length).min(self.end);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Appends `bytes` to the unread bytes.
    pub fn append(&mut self, bytes: &[u8]) {
        while self.bytes.len().saturating_sub(self.end) < bytes.len() {
            self.make_room();
        }
        if let Some(room) = self.bytes.get_mut(self.end..self.end.saturating_add(bytes.len())) {
            room.copy_from_slice(bytes);
            self.end = self.end.saturating_add(bytes.len());
        }
    }

    /// Reads the available bytes and returns how many there were: 0 at the end of the stream.
    pub fn poll_read(&mut self, task: &mut Context<'_>, from: &mut (impl Readable + Unpin)) -> Poll<io::Result<usize>> {
        // usually nothing is there yet, and then no memory is needed
        if from.poll_readable(task)?.is_pending() {
            self.release();
            return Poll::Pending;
        }
        self.make_room();
        let mut room = ReadBuf::new(self.bytes.get_mut(self.end..).unwrap_or_default());
        let polled = Pin::new(from).poll_read(task, &mut room);
        let came = room.filled().len();
        self.end = self.end.saturating_add(came);
        if polled.is_pending() || came == 0 {
            self.release();
        }
        ready!(polled)?;
        Poll::Ready(Ok(came))
    }

    /// Makes room behind the unread bytes.
    fn make_room(&mut self) {
        if self.bytes.len() < SIZE {
            let mut larger = BUFFERS.with_borrow_mut(Vec::pop).unwrap_or_else(|| vec![0; SIZE]);
            let unread = self.unread();
            if let Some(room) = larger.get_mut(..unread.len()) {
                room.copy_from_slice(unread);
            }
            (self.start, self.end) = (0, unread.len());
            self.bytes = larger;
        } else if self.end == self.bytes.len() {
            match self.start {
                0 => self.bytes.resize(self.bytes.len().saturating_mul(2), 0),
                start => {
                    self.bytes.copy_within(start.., 0);
                    (self.start, self.end) = (0, self.end.saturating_sub(start));
                }
            }
        }
    }

    /// Returns the buffer to the pool, unless more than [`SMALL`] bytes are unread.
    pub(super) fn release(&mut self) {
        let left = self.unread().len();
        if self.bytes.len() < SIZE || left > SMALL {
            return;
        }
        let small = self.unread().to_vec();
        let large = std::mem::replace(&mut self.bytes, small);
        (self.start, self.end) = (0, left);
        keep(large);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        keep(std::mem::take(&mut self.bytes));
    }
}

/// Puts a buffer into the pool. A buffer that has grown is dropped.
fn keep(buffer: Vec<u8>) {
    if buffer.len() != SIZE {
        return;
    }
    let put = |stock: &RefCell<Vec<Vec<u8>>>| {
        let mut stock = stock.borrow_mut();
        if stock.len() < STOCK {
            stock.push(buffer);
        }
    };
    // a thread that ends no longer has a pool
    BUFFERS.try_with(put).unwrap_or_default();
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Readable for &[u8] {
        fn poll_readable(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    impl Readable for tokio::io::DuplexStream {
        fn poll_readable(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn unread_bytes_stay_in_order_however_they_come() {
        let (mut buffer, mut task) = (Buffer::default(), Context::from_waker(std::task::Waker::noop()));
        let sent: Vec<u8> = (0..200_000_u32).map(|number| u8::try_from(number % 251).unwrap()).collect();
        let (mut from, mut read) = (&sent[..], Vec::new());
        for round in 0.. {
            match buffer.poll_read(&mut task, &mut from) {
                Poll::Ready(Ok(0)) => break,
                Poll::Ready(Ok(_)) => {}
                other => panic!("{other:?}"),
            }
            // sometimes more than half of it stays unread
            let taken = buffer.unread().len() / (1 + round % 3);
            read.extend_from_slice(&buffer.unread()[..taken]);
            buffer.consume(taken);
        }
        read.extend_from_slice(buffer.unread());
        assert!(read == sent);
    }

    #[test]
    fn a_buffer_that_waits_keeps_only_what_is_left() {
        let (mut buffer, mut task) = (Buffer::default(), Context::from_waker(std::task::Waker::noop()));
        buffer.append(b"GET / HT");
        let (_writer, mut silent) = tokio::io::duplex(8);
        assert!(buffer.poll_read(&mut task, &mut silent).is_pending());
        assert_eq!((buffer.unread(), buffer.bytes.len()), (&b"GET / HT"[..], 8));
        buffer.append(b"TP/1.1");
        assert_eq!(buffer.unread(), b"GET / HTTP/1.1");
    }
}
