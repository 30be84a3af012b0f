//! The framing of bodies in both directions: by a length, in chunks, by the end of the connection, or no body.

use super::syntax::{Refused, field, is_text, strict_line};

/// The maximum length of the line before a chunk, in bytes.
const MAX_CHUNK_LINE: usize = 1 << 10;
/// The maximum size of the trailers after the last chunk, in bytes.
const MAX_TRAILERS: usize = 16 << 10;
/// The maximum number of digits of a chunk's size.
const MAX_DIGITS: usize = 16;
/// The bytes after the content of the last chunk, if there are no trailers.
const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";

/// The framing of a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// There is no body.
    #[default]
    Empty,
    /// By its length, which is at least 1.
    Length(u64),
    /// In chunks, or by the frames of HTTP/2.
    Chunked,
    /// By the end of the connection.
    UntilClose,
}

impl Framing {
    /// Whether it is certain before the body arrives that it has at most `max` bytes.
    pub(super) fn is_at_most(self, max: usize) -> bool {
        match self {
            Self::Empty => true,
            Self::Length(length) => usize::try_from(length).is_ok_and(|length| length <= max),
            Self::Chunked | Self::UntilClose => false,
        }
    }
}

/// The next part of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// This many bytes that belong to the framing.
    Skip(usize),
    /// This many bytes of content.
    Data(usize),
    /// The decoder needs more bytes.
    NeedMore,
    /// The body has ended.
    End,
}

/// The decoder of a body, which counts how far it has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoder {
    state: State,
    /// Whether the size of a chunk may have blanks behind it.
    allows_blanks: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Content(u64),
    ChunkSize,
    ChunkContent(u64),
    ChunkEnd,
    UntilClose,
    Over,
}

impl Decoder {
    /// The decoder at the beginning of a body with this framing.
    pub const fn new(framing: Framing) -> Self {
        let state = match framing {
            Framing::Empty | Framing::Length(0) => State::Over,
            Framing::Length(length) => State::Content(length),
            Framing::Chunked => State::ChunkSize,
            Framing::UntilClose => State::UntilClose,
        };
        Self { state, allows_blanks: false }
    }

    /// The decoder of a response's body: some servers fill up the sizes of chunks with blanks, which a request must not
    /// have.
    pub(super) const fn of_response(framing: Framing) -> Self {
        Self { allows_blanks: true, ..Self::new(framing) }
    }

    /// Whether the whole body has been read.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// How many bytes of content follow, if that is known.
    pub const fn left(&self) -> Option<u64> {
        match self.state {
            State::Content(left) => Some(left),
            State::Over => Some(0),
            State::ChunkSize | State::ChunkContent(_) | State::ChunkEnd | State::UntilClose => None,
        }
    }

    /// The next part of the body, at the beginning of the unread `bytes`. The decoder counts bytes to skip at once, but
    /// content only when [`Decoder::consumed`] is called.
    ///
    /// Errors: chunks that two readers could read in different ways.
    pub fn step(&mut self, bytes: &[u8]) -> Result<Step, Refused> {
        let available = |left: u64| match bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX)) {
            0 => Step::NeedMore,
            length => Step::Data(length),
        };
        match self.state {
            State::Over => Ok(Step::End),
            State::Content(left) | State::ChunkContent(left) => Ok(available(left)),
            State::UntilClose => Ok(available(u64::MAX)),
            State::ChunkEnd => match bytes {
                [b'\r', b'\n', ..] => {
                    self.state = State::ChunkSize;
                    Ok(Step::Skip(2))
                }
                [] | [b'\r'] => Ok(Step::NeedMore),
                _ => Err(Refused::Malformed("a chunk of the body is longer than it says")),
            },
            State::ChunkSize => match chunk_line(bytes, self.allows_blanks)? {
                None => Ok(Step::NeedMore),
                Some((0, length)) => match trailers(bytes.get(length..).unwrap_or_default())? {
                    Some(behind) => {
                        self.state = State::Over;
                        Ok(Step::Skip(length.saturating_add(behind)))
                    }
                    None => Ok(Step::NeedMore),
                },
                Some((size, length)) => {
                    self.state = State::ChunkContent(size);
                    Ok(Step::Skip(length))
                }
            },
        }
    }

    /// Notes that the caller has consumed `length` bytes of content.
    pub fn consumed(&mut self, length: usize) {
        let length = u64::try_from(length).unwrap_or(u64::MAX);
        self.state = match self.state {
            State::Content(left) if left <= length => State::Over,
            State::Content(left) => State::Content(left.saturating_sub(length)),
            State::ChunkContent(left) if left <= length => State::ChunkEnd,
            State::ChunkContent(left) => State::ChunkContent(left.saturating_sub(length)),
            other => other,
        };
    }

    /// Whether the body ends after `content` more bytes of content, if `behind` are the bytes after them.
    pub fn ends_behind(&self, content: usize, behind: &[u8]) -> bool {
        let content = u64::try_from(content).unwrap_or(u64::MAX);
        match self.state {
            State::Content(left) => left == content,
            State::ChunkContent(left) => left == content && behind.starts_with(LAST_CHUNK),
            State::Over => true,
            State::ChunkSize | State::ChunkEnd | State::UntilClose => false,
        }
    }

    /// Notes the end of the connection. Returns whether the body is complete.
    pub fn ended(&mut self) -> bool {
        if self.state == State::UntilClose {
            self.state = State::Over;
        }
        self.is_over()
    }
}

/// The size of the next chunk, and the length of the line with it; `None` if the line is not complete yet.
fn chunk_line(bytes: &[u8], allows_blanks: bool) -> Result<Option<(u64, usize)>, Refused> {
    const BAD: Refused = Refused::Malformed("a chunk of the body does not say its size");
    let Some(line) = strict_line(bytes)? else {
        return if bytes.len() > MAX_CHUNK_LINE { Err(BAD) } else { Ok(None) };
    };
    let digits = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
    let (size, behind) = line.split_at_checked(digits).unwrap_or_default();
    let extension = if allows_blanks { behind.trim_ascii_start() } else { behind };
    let is_well = (1..=MAX_DIGITS).contains(&size.len())
        && matches!(extension, [] | [b';', ..])
        && is_text(behind)
        && line.len() <= MAX_CHUNK_LINE;
    let size = str::from_utf8(size).ok().filter(|_| is_well).and_then(|size| u64::from_str_radix(size, 16).ok());
    Ok(Some((size.ok_or(BAD)?, line.len().saturating_add(2))))
}

/// The length of the trailers after the last chunk, including the empty line that ends them; `None` if
/// they are incomplete.
fn trailers(bytes: &[u8]) -> Result<Option<usize>, Refused> {
    let mut read = 0_usize;
    while let Some(line) = strict_line(bytes.get(read..).unwrap_or_default())? {
        read = read.saturating_add(line.len()).saturating_add(2);
        if line.is_empty() {
            return Ok(Some(read));
        }
        field(line)?;
    }
    match bytes.len() > MAX_TRAILERS {
        true => Err(Refused::HeadTooLarge("the fields behind the body are too large")),
        false => Ok(None),
    }
}
