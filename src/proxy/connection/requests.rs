//! One request after another in the bytes that a client sends: how many of them may go on.
//!
//! Whoever reads behind this sees whole heads only, bodies as they come, and nothing of a request before the one ahead of
//! it is over. What cannot be read in one way only does not go on.

use crate::proxy::connection::frames::Frames;
use crate::proxy::connection::head::{Body, Lines, field, is_text};
use crate::proxy::facts::Refused;

/// The longest line in front of a chunk, in bytes.
const LONGEST_CHUNK_LINE: usize = 1 << 10;
/// The most that may stand behind the last chunk, in bytes.
const MOST_TRAILERS: usize = 16 << 10;
/// The digits of the largest size of a chunk.
const MOST_DIGITS: usize = 16;

/// How far the client is in what it sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Requests {
    state: State,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// In a head, of which `read` bytes are lines that were taken.
    Head { lines: Lines, read: usize, most: HeadBounds },
    /// In a body or a chunk, of which so much is to come.
    Content { left: u64, in_chunks: bool },
    /// Behind the content of a chunk.
    ChunkEnd,
    /// In front of a chunk.
    ChunkSize,
    /// Behind a whole request.
    Over,
    /// In HTTP/2.
    Frames(Frames),
    /// In what is not divided into requests here.
    Unframed,
}

/// How much of a head is read at all, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeadBounds {
    /// Of the first line.
    pub(super) first_line: usize,
    /// Of the fields together, each with its line's end.
    pub(super) fields: usize,
}

impl Requests {
    /// A head comes next.
    pub(super) fn new(most: HeadBounds) -> Self {
        Self { state: State::Head { lines: Lines::default(), read: 0, most } }
    }

    /// Everything goes on: HTTP/2 is spoken.
    pub(super) const fn http2() -> Self {
        Self { state: State::Frames(Frames::new()) }
    }

    /// Everything goes on: what comes is no request.
    pub(super) const fn unframed() -> Self {
        Self { state: State::Unframed }
    }

    /// Whether what comes are requests of HTTP/1.1.
    pub(super) const fn is_http1(&self) -> bool {
        !matches!(self.state, State::Frames(_) | State::Unframed)
    }

    /// Whether HTTP/2 is spoken.
    pub(super) const fn is_http2(&self) -> bool {
        matches!(self.state, State::Frames(_))
    }

    /// Whether a head of HTTP/2 is begun and not over.
    pub(super) const fn is_in_frame(&self) -> bool {
        matches!(&self.state, State::Frames(frames) if frames.is_within())
    }

    /// Whether a whole request went on, so that the next one has to wait until it is asked for.
    pub(super) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// Whether a request has begun to go on, and is not over.
    pub(super) fn is_within(&self) -> bool {
        matches!(self.state, State::Content { .. } | State::ChunkEnd | State::ChunkSize)
    }

    /// Whether a head is coming in.
    pub(super) fn is_in_head(&self) -> bool {
        matches!(self.state, State::Head { .. })
    }

    /// How many of `bytes` may go on. They begin behind those that went on before; what may not go on yet is shown again,
    /// with more behind it.
    ///
    /// Errors: what is no request, or none that has one reading only. Nothing may go on then.
    pub(super) fn admit(&mut self, bytes: &[u8]) -> Result<usize, Refused> {
        let mut admitted = 0;
        loop {
            let rest = bytes.get(admitted..).unwrap_or_default();
            let taken = match &mut self.state {
                State::Frames(frames) => {
                    frames.take(rest);
                    rest.len()
                }
                State::Unframed => rest.len(),
                State::Over => 0,
                State::Head { lines, read, most } => match head(lines, read, *most, rest)? {
                    Some(body) => {
                        let length = *read;
                        self.state = match body {
                            Body::Length(0) => State::Over,
                            Body::Length(left) => State::Content { left, in_chunks: false },
                            Body::Chunks => State::ChunkSize,
                        };
                        length
                    }
                    None => 0,
                },
                State::Content { left, in_chunks } => {
                    let taken = rest.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left = left.saturating_sub(u64::try_from(taken).unwrap_or(u64::MAX));
                    if *left == 0 {
                        self.state = if *in_chunks { State::ChunkEnd } else { State::Over };
                    }
                    taken
                }
                State::ChunkEnd => match rest {
                    [b'\r', b'\n', ..] => {
                        self.state = State::ChunkSize;
                        2
                    }
                    [] | [b'\r'] => 0,
                    _ => return Err(Refused::Malformed("a chunk of the request's body is longer than it says")),
                },
                State::ChunkSize => match chunk_line(rest)? {
                    // the end goes on when all of it is here: whoever reads it may believe in it
                    Some((0, length)) => match trailers(rest.get(length..).unwrap_or_default())? {
                        Some(behind) => {
                            self.state = State::Over;
                            length.saturating_add(behind)
                        }
                        None => 0,
                    },
                    Some((left, length)) => {
                        self.state = State::Content { left, in_chunks: true };
                        length
                    }
                    None => 0,
                },
            };
            if taken == 0 {
                return Ok(admitted);
            }
            admitted = admitted.saturating_add(taken);
        }
    }
}

/// Takes the lines of a head of which `read` bytes were taken. At its end `read` is its length.
fn head(lines: &mut Lines, read: &mut usize, most: HeadBounds, bytes: &[u8]) -> Result<Option<Body>, Refused> {
    if *read == 0 && bytes.first().is_some_and(|byte| byte.is_ascii_control() && *byte != b'\r') {
        return Err(Refused::Malformed("this is no request of HTTP/1.1"));
    }
    // an empty line in front of a request is left over from the one before (RFC 9112, section 2.2)
    if *read == 0 && bytes.starts_with(b"\r\n") {
        *read = 2;
    }
    loop {
        let is_first = lines.is_at_start();
        let Some(line) = line(bytes.get(*read..).unwrap_or_default())? else { break };
        let ended = lines.take(line)?;
        *read = read.saturating_add(line.len()).saturating_add(2);
        if ended.is_some() {
            return Ok(ended);
        }
        check_bounds(is_first, *read, most)?;
    }
    check_bounds(lines.is_at_start(), bytes.len(), most)?;
    Ok(None)
}

fn check_bounds(is_first: bool, length: usize, most: HeadBounds) -> Result<(), Refused> {
    match is_first {
        true if length > most.first_line => Err(Refused::TargetTooLong(most.first_line)),
        false if length > most.first_line.saturating_add(most.fields) => {
            Err(Refused::HeadTooLarge("the header fields of the request are too large together"))
        }
        _ => Ok(()),
    }
}

/// The first line without its end; `None` where that is still to come.
fn line(bytes: &[u8]) -> Result<Option<&[u8]>, Refused> {
    let Some(end) = memchr::memchr(b'\n', bytes) else { return Ok(None) };
    let line = bytes.get(..end).and_then(|line| line.strip_suffix(b"\r"));
    line.map(Some).ok_or(Refused::Malformed("a line of the request ends without a carriage return"))
}

/// The size of the next chunk, and how long the line is that says it; `None` where its end is still to come.
fn chunk_line(bytes: &[u8]) -> Result<Option<(u64, usize)>, Refused> {
    const BAD: Refused = Refused::Malformed("a chunk of the request's body does not say its size");
    let Some(line) = line(bytes)? else {
        return if bytes.len() > LONGEST_CHUNK_LINE { Err(BAD) } else { Ok(None) };
    };
    let digits = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
    let (size, extension) = line.split_at_checked(digits).unwrap_or_default();
    let is_well = (1..=MOST_DIGITS).contains(&size.len())
        && matches!(extension, [] | [b';', ..])
        && is_text(extension)
        && line.len() <= LONGEST_CHUNK_LINE;
    let size = str::from_utf8(size).ok().filter(|_| is_well).and_then(|size| u64::from_str_radix(size, 16).ok());
    Ok(Some((size.ok_or(BAD)?, line.len().saturating_add(2))))
}

/// How long the lines behind the last chunk are, with the empty one that ends them; `None` where that is still to come.
fn trailers(bytes: &[u8]) -> Result<Option<usize>, Refused> {
    let mut read = 0_usize;
    while let Some(line) = line(bytes.get(read..).unwrap_or_default())? {
        read = read.saturating_add(line.len()).saturating_add(2);
        if line.is_empty() {
            return Ok(Some(read));
        }
        field(line)?;
    }
    match bytes.len() > MOST_TRAILERS {
        true => Err(Refused::HeadTooLarge("the fields behind the request's body are too large")),
        false => Ok(None),
    }
}

#[cfg(test)]
mod tests;
