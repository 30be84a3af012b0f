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

use smallvec::SmallVec;
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
    state: State,
    /// The number of values still to come, for each open list.
    lists: SmallVec<[u64; 8]>,
    /// The size of the current value so far, in bytes and in values.
    bytes: u64,
    values: u64,
    bounds: Bounds,
}

#[derive(Clone, Copy, Debug)]
struct Bounds {
    bytes: u64,
    values: u64,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Before a value.
    Kind,
    /// In a line of text; the number of its bytes so far.
    Text(u64),
    /// In a line that holds a number.
    Number(Of, Number),
    /// Before the line feed that ends a line.
    LineFeed(Then),
    /// In a bulk string; the number of its bytes still to come.
    Bulk(u64),
    /// Before the line end that follows a bulk string.
    BulkEnd,
}

/// The meaning of a number: a value, the length of a bulk string or the length of a list.
#[derive(Clone, Copy, Debug)]
enum Of {
    Itself,
    Bulk,
    List,
}

#[derive(Clone, Copy, Debug, Default)]
struct Number {
    negative: bool,
    digits: u8,
    value: u64,
}

/// The part of the value that follows a line.
#[derive(Clone, Copy, Debug)]
enum Then {
    Done,
    Bulk(u64),
    List(u64),
}

/// The bounds of a reply: they leave room for the `CLUSTER SLOTS` of a large cluster.
const ANSWER: Bounds = Bounds { bytes: 4 << 20, values: 200_000 };
/// Commands have no bounds, since the gateway writes them itself.
const COMMAND: Bounds = Bounds { bytes: u64::MAX, values: u64::MAX };
/// The longest line, in bytes: error messages are lines.
const LONGEST_LINE: u64 = 16 << 10;
/// The most lists nested in each other.
const DEEPEST: usize = 8;

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
    fn new(bounds: Bounds) -> Self {
        Self { state: State::Kind, lists: SmallVec::new(), bytes: 0, values: 0, bounds }
    }

    /// Reads `bytes`; returns how many values end in them.
    fn follow(&mut self, mut bytes: &[u8]) -> Result<u64, &'static str> {
        let mut ended: u64 = 0;
        while let Some((first, rest)) = bytes.split_first() {
            if let State::Bulk(left) = self.state {
                let part = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                let left = left.saturating_sub(part as u64);
                self.state = if left == 0 { State::BulkEnd } else { State::Bulk(left) };
                self.count(part as u64)?;
                bytes = bytes.get(part..).unwrap_or_default();
                continue;
            }
            self.count(1)?;
            if self.step(*first)? {
                ended = ended.saturating_add(1);
            }
            bytes = rest;
        }
        Ok(ended)
    }

    fn count(&mut self, bytes: u64) -> Result<(), &'static str> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > self.bounds.bytes { Err("an answer that is too long") } else { Ok(()) }
    }

    /// Reads one byte; returns whether a whole value ends with it.
    fn step(&mut self, byte: u8) -> Result<bool, &'static str> {
        const NO_NUMBER: &str = "an answer with a malformed number";
        self.state = match (self.state, byte) {
            (State::Kind, b'+' | b'-') => State::Text(0),
            (State::Kind, b':') => State::Number(Of::Itself, Number::default()),
            (State::Kind, b'$') => State::Number(Of::Bulk, Number::default()),
            (State::Kind, b'*') => State::Number(Of::List, Number::default()),
            (State::Kind, _) => return Err("bytes that are not an answer of Redis"),
            (State::Text(_), b'\r') => State::LineFeed(Then::Done),
            (State::Text(_), b'\n') => return Err("an answer with a line feed in a line"),
            (State::Text(length), _) if length >= LONGEST_LINE => return Err("an answer with a line that is too long"),
            (State::Text(length), _) => State::Text(length.saturating_add(1)),
            (State::Number(of, number), b'\r') => State::LineFeed(self.then(of, number)?),
            (State::Number(of, number), byte) => State::Number(of, number.and(byte).ok_or(NO_NUMBER)?),
            (State::LineFeed(then), b'\n') => return self.begin(then),
            (State::BulkEnd, b'\r') => State::LineFeed(Then::Done),
            (State::LineFeed(_) | State::BulkEnd, _) => return Err("an answer with a line that does not end"),
            // the caller has taken these bytes in one go
            (State::Bulk(_), _) => return Err("bytes that are not an answer of Redis"),
        };
        Ok(false)
    }

    fn then(&self, of: Of, number: Number) -> Result<Then, &'static str> {
        let left = self.bounds.bytes.saturating_sub(self.bytes);
        match (of, number) {
            (_, Number { digits: 0, .. }) => Err("an answer with an empty number"),
            (Of::Itself, _) | (Of::Bulk | Of::List, Number { negative: true, value: 1, .. }) => Ok(Then::Done),
            (_, Number { negative: true, .. }) => Err("an answer with a negative length"),
            (Of::Bulk, Number { value, .. }) if value > left => Err("an answer that is too long"),
            (Of::Bulk, Number { value, .. }) => Ok(Then::Bulk(value)),
            (Of::List, Number { value, .. }) if value > self.bounds.values => Err("an answer with too many parts"),
            (Of::List, Number { value: 0, .. }) => Ok(Then::Done),
            (Of::List, Number { value, .. }) => Ok(Then::List(value)),
        }
    }

    fn begin(&mut self, then: Then) -> Result<bool, &'static str> {
        self.state = match then {
            Then::Done => return self.end(),
            Then::Bulk(0) => State::BulkEnd,
            Then::Bulk(length) => State::Bulk(length),
            Then::List(_) if self.lists.len() >= DEEPEST => return Err("an answer with too many nested lists"),
            Then::List(length) => {
                self.lists.push(length);
                State::Kind
            }
        };
        Ok(false)
    }

    /// Ends a value, and all lists that end with it.
    fn end(&mut self) -> Result<bool, &'static str> {
        self.state = State::Kind;
        self.values = self.values.saturating_add(1);
        if self.values > self.bounds.values {
            return Err("an answer with too many parts");
        }
        while let Some(left) = self.lists.last_mut() {
            *left = left.saturating_sub(1);
            if *left > 0 {
                return Ok(false);
            }
            self.lists.pop();
        }
        (self.bytes, self.values) = (0, 0);
        Ok(true)
    }
}

impl Number {
    /// The number with one more character, if it still fits 64 bits.
    fn and(self, byte: u8) -> Option<Self> {
        match byte {
            b'-' if self.digits == 0 && !self.negative => Some(Self { negative: true, ..self }),
            b'0'..=b'9' if self.digits < 19 => {
                let digit = u64::from(byte.wrapping_sub(b'0'));
                let value = self.value.checked_mul(10)?.checked_add(digit)?;
                Some(Self { digits: self.digits.saturating_add(1), value, ..self })
            }
            _ => None,
        }
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
    fn what_is_no_answer_is_an_error() {
        let long = [b"+".as_slice(), &[b'x'; LONGEST_LINE as usize + 1]].concat();
        let deep = b"*1\r\n".repeat(DEEPEST + 1);
        let bad: [&[u8]; 15] = [
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
            b"$5x",
            b"$1\r\nabc",
            b"+OK\rx",
            &long,
            &deep,
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
}
