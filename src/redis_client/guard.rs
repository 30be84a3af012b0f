//! A stream that checks the bytes it carries: commands in one direction, replies in the other, one reply for each
//! command and no more, and no reply that exceeds the bounds.
//!
//! Anything else is a read error, so the connection ends before a caller gets a reply that was meant for another one,
//! and before the reply takes much memory.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream to a server.
#[derive(Debug)]
pub struct Guard<S> {
    stream: S,
    asked: Scanner,
    answered: Scanner,
    progress: Arc<Progress>,
}

/// The progress of a stream.
#[derive(Debug, Default)]
pub struct Progress {
    /// The number of commands written.
    asked: AtomicU64,
    /// The number of commands answered.
    answered: AtomicU64,
}

/// A parser that follows values of the Redis protocol, version 2, through their bytes.
#[derive(Debug)]
struct Scanner {
    bounds: Bounds,
    /// The line so far.
    line: Vec<u8>,
    /// In a bulk string: the number of its bytes still to come, before the line end that follows them.
    bulk: Option<u64>,
    /// The number of values still to come, in all open lists.
    awaited: u64,
    /// The size of the current value so far, in bytes and in announced values.
    bytes: u64,
    values: u64,
}

#[derive(Clone, Copy, Debug)]
struct Bounds {
    bytes: u64,
    values: u64,
}

/// The bounds of a reply: they leave room for the `CLUSTER SLOTS` of a large cluster. The library bounds how deep lists are
/// nested.
const ANSWER: Bounds = Bounds { bytes: 4 << 20, values: 200_000 };
/// Commands have no bounds, since the gateway writes them itself.
const COMMAND: Bounds = Bounds { bytes: u64::MAX, values: u64::MAX };
const TOO_LONG: &str = "an answer that is too long";
/// The longest line, in bytes: error messages are lines.
const MAX_LINE: usize = 16 << 10;

// === impl Guard ===

impl<S> Guard<S> {
    /// Checks `stream` from its first byte on, and keeps `progress` up to date.
    pub fn new(stream: S, progress: Arc<Progress>) -> Self {
        Self { stream, asked: Scanner::new(COMMAND), answered: Scanner::new(ANSWER), progress }
    }
}

// === impl Progress ===

impl Progress {
    /// The number of answered commands, if others are still unanswered.
    pub fn waits_behind(&self) -> Option<u64> {
        let answered = self.answered.load(Ordering::Relaxed);
        (answered < self.asked.load(Ordering::Relaxed)).then_some(answered)
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Guard<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        let read = buffer.filled().get(before..).unwrap_or_default();
        let answers = self.answered.follow(read).map_err(nonsense)?;
        let answered = self.progress.answered.fetch_add(answers, Ordering::Relaxed).saturating_add(answers);
        match answered <= self.progress.asked.load(Ordering::Relaxed) {
            true => Poll::Ready(Ok(())),
            false => Poll::Ready(Err(nonsense("an answer without a request"))),
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Guard<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
        let commands = self.asked.follow(bytes.get(..written).unwrap_or_default()).map_err(nonsense)?;
        self.progress.asked.fetch_add(commands, Ordering::Relaxed);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn nonsense(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

// === impl Scanner ===

impl Scanner {
    const fn new(bounds: Bounds) -> Self {
        Self { bounds, line: Vec::new(), bulk: None, awaited: 1, bytes: 0, values: 1 }
    }

    /// Reads `bytes`; returns how many values end in them.
    fn follow(&mut self, mut bytes: &[u8]) -> Result<u64, &'static str> {
        let mut ended: u64 = 0;
        while !bytes.is_empty() {
            let length = match self.bulk {
                Some(left @ 1..) => usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len()),
                Some(0) | None => bytes.iter().position(|byte| *byte == b'\n').map_or(bytes.len(), |end| end + 1),
            };
            let (part, rest) = bytes.split_at(length);
            bytes = rest;
            self.bytes = self.bytes.saturating_add(part.len() as u64);
            if self.bytes > self.bounds.bytes {
                return Err(TOO_LONG);
            }
            if let Some(left @ 1..) = &mut self.bulk {
                *left = left.saturating_sub(part.len() as u64);
                continue;
            }
            self.line.extend_from_slice(part);
            if self.line.len() > MAX_LINE {
                return Err("an answer with a line that is too long");
            }
            if part.ends_with(b"\n") && self.end_line()? {
                ended = ended.saturating_add(1);
            }
        }
        Ok(ended)
    }

    /// Reads the line, which is complete; returns whether a whole value ends with it.
    fn end_line(&mut self) -> Result<bool, &'static str> {
        let bulk_ends = self.bulk.take().is_some();
        let (kind, number) = match self.line.as_slice() {
            b"\r\n" if bulk_ends => (b'+', None),
            [kind, text @ .., b'\r', b'\n'] if !bulk_ends => {
                (*kind, str::from_utf8(text).ok().and_then(|text| text.parse::<i64>().ok()))
            }
            _ => return Err("an answer with a line that does not end"),
        };
        self.line.clear();
        match (kind, number) {
            (b'+' | b'-', _) | (b':', Some(_)) | (b'$' | b'*', Some(-1)) | (b'*', Some(0)) => {
                self.awaited = self.awaited.saturating_sub(1);
            }
            (b'$', Some(length @ 0..)) => {
                let length = length.unsigned_abs();
                if length > self.bounds.bytes.saturating_sub(self.bytes) {
                    return Err(TOO_LONG);
                }
                self.bulk = Some(length);
            }
            (b'*', Some(length @ 1..)) => {
                let length = length.unsigned_abs();
                self.values = self.values.saturating_add(length);
                if self.values > self.bounds.values {
                    return Err("an answer with too many parts");
                }
                self.awaited = self.awaited.saturating_sub(1).saturating_add(length);
            }
            (b':' | b'$' | b'*', _) => return Err("an answer with a malformed number"),
            _ => return Err("bytes that are not an answer of Redis"),
        }
        let has_ended = self.awaited == 0;
        if has_ended {
            (self.awaited, self.bytes, self.values) = (1, 0, 1);
        }
        Ok(has_ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of values that end in `parts`, which the scanner gets one after the other.
    fn count(bounds: Bounds, parts: &[&[u8]]) -> Result<u64, &'static str> {
        let mut scanner = Scanner::new(bounds);
        parts.iter().map(|part| scanner.follow(part)).sum()
    }

    const ALL_KINDS: &[u8] =
        b"+OK\r\n-ERR no\r\n:-12\r\n$5\r\na\r\nbc\r\n$0\r\n\r\n$-1\r\n*-1\r\n*0\r\n*2\r\n*1\r\n:1\r\n$1\r\n\n\r\n";

    #[test]
    fn answers_are_counted_wherever_they_are_cut() {
        assert_eq!(count(ANSWER, &[ALL_KINDS]), Ok(9));
        for at in 0..ALL_KINDS.len() {
            let (a, b) = ALL_KINDS.split_at(at);
            assert_eq!(count(ANSWER, &[a, b]), Ok(9), "cut at {at}");
        }
        let each: Vec<&[u8]> = ALL_KINDS.chunks(1).collect();
        assert_eq!(count(ANSWER, &each), Ok(9));
    }

    #[test]
    fn bytes_that_are_no_answer_are_an_error() {
        let long = [b"+".as_slice(), &[b'x'; MAX_LINE]].concat();
        let bad: [&[u8]; 14] = [
            b"HTTP/1.1 400 Bad Request\r\n",
            b"\r\n",
            b"%1\r\n",
            b">1\r\n",
            b"$9999999999\r\n",
            b"$99999999999999999999\r\n",
            b"*1000000000\r\n",
            b"$-2\r\n",
            b"$\r\n",
            b":\r\n",
            b"$5x\r\n",
            b"$1\r\nabc\n",
            b"+OK\n",
            &long,
        ];
        for bytes in bad {
            assert!(count(ANSWER, &[bytes]).is_err(), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn an_answer_is_bounded_and_their_number_is_not() {
        let small = Bounds { bytes: 100, values: 10 };
        assert_eq!(count(small, &[&b"$9\r\n123456789\r\n".repeat(100)]), Ok(100));
        assert!(count(small, &[&[b"*9\r\n".as_slice(), &b"$9\r\n123456789\r\n".repeat(9)].concat()]).is_err());
        assert!(
            count(small, &[b"*6\r\n*5\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n*5\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n:1\r\n"])
                .is_err()
        );
    }

    #[test]
    fn lists_that_are_nested_very_deep_are_no_answer_to_the_library() {
        let nested = |deep| [b"*1\r\n".repeat(deep), b":1\r\n".to_vec()].concat();
        assert!(redis::parse_redis_value(&nested(8)).is_ok());
        assert!(redis::parse_redis_value(&nested(1_000)).is_err());
    }
}
