//! How bodies are delimited, in either direction: by a length, in chunks, by the connection's end, or not at all.

use super::syntax::{Refused, field, is_text, strict_line};

/// The longest line in front of a chunk, in bytes.
const MAX_CHUNK_LINE: usize = 1 << 10;
/// The most that may stand behind the last chunk, in bytes.
const MAX_TRAILERS: usize = 16 << 10;
/// The digits of the largest size of a chunk.
const MAX_DIGITS: usize = 16;
/// What follows the content of the last chunk where there are no trailers.
const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";

/// How a body is delimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Framing {
    /// There is none.
    #[default]
    Empty,
    /// By its length, at least 1.
    Length(u64),
    /// In chunks, or by the frames of HTTP/2.
    Chunked,
    /// By the end of the connection.
    UntilClose,
}

/// What comes next in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// So many bytes that belong to the framing.
    Skip(usize),
    /// So many bytes of content.
    Data(usize),
    /// Nothing can be said before more bytes come.
    NeedMore,
    /// The body is over.
    End,
}

/// How far a body has been read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoder(State);

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
    /// A body that is delimited like this begins.
    pub const fn new(framing: Framing) -> Self {
        Self(match framing {
            Framing::Empty | Framing::Length(0) => State::Over,
            Framing::Length(length) => State::Content(length),
            Framing::Chunked => State::ChunkSize,
            Framing::UntilClose => State::UntilClose,
        })
    }

    /// Whether the whole body has been read.
    pub fn is_over(&self) -> bool {
        self.0 == State::Over
    }

    /// How many bytes of content are still to come, where that is known.
    pub const fn left(&self) -> Option<u64> {
        match self.0 {
            State::Content(left) => Some(left),
            State::Over => Some(0),
            State::ChunkSize | State::ChunkContent(_) | State::ChunkEnd | State::UntilClose => None,
        }
    }

    /// What is at the beginning of `bytes`, the unread ones. Bytes to skip are taken note of, content is not before
    /// [`Decoder::consumed`].
    ///
    /// Errors: chunks with more than one reading.
    pub fn step(&mut self, bytes: &[u8]) -> Result<Step, Refused> {
        let available = |left: u64| match bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX)) {
            0 => Step::NeedMore,
            length => Step::Data(length),
        };
        match self.0 {
            State::Over => Ok(Step::End),
            State::Content(left) | State::ChunkContent(left) => Ok(available(left)),
            State::UntilClose => Ok(available(u64::MAX)),
            State::ChunkEnd => match bytes {
                [b'\r', b'\n', ..] => {
                    self.0 = State::ChunkSize;
                    Ok(Step::Skip(2))
                }
                [] | [b'\r'] => Ok(Step::NeedMore),
                _ => Err(Refused::Malformed("a chunk of the body is longer than it says")),
            },
            State::ChunkSize => match chunk_line(bytes)? {
                None => Ok(Step::NeedMore),
                Some((0, length)) => match trailers(bytes.get(length..).unwrap_or_default())? {
                    Some(behind) => {
                        self.0 = State::Over;
                        Ok(Step::Skip(length.saturating_add(behind)))
                    }
                    None => Ok(Step::NeedMore),
                },
                Some((size, length)) => {
                    self.0 = State::ChunkContent(size);
                    Ok(Step::Skip(length))
                }
            },
        }
    }

    /// So many bytes of content were taken.
    pub fn consumed(&mut self, length: usize) {
        let length = u64::try_from(length).unwrap_or(u64::MAX);
        self.0 = match self.0 {
            State::Content(left) if left <= length => State::Over,
            State::Content(left) => State::Content(left.saturating_sub(length)),
            State::ChunkContent(left) if left <= length => State::ChunkEnd,
            State::ChunkContent(left) => State::ChunkContent(left.saturating_sub(length)),
            other => other,
        };
    }

    /// Whether the body ends behind `content` bytes of content, which `behind` follow.
    pub fn ends_behind(&self, content: usize, behind: &[u8]) -> bool {
        let content = u64::try_from(content).unwrap_or(u64::MAX);
        match self.0 {
            State::Content(left) => left == content,
            State::ChunkContent(left) => left == content && behind.starts_with(LAST_CHUNK),
            State::Over => true,
            State::ChunkSize | State::ChunkEnd | State::UntilClose => false,
        }
    }

    /// The connection ended: whether the body is whole.
    pub fn ended(&mut self) -> bool {
        if self.0 == State::UntilClose {
            self.0 = State::Over;
        }
        self.is_over()
    }
}

/// The size of the next chunk, and how long the line is that says it; `None` where its end is still to come.
fn chunk_line(bytes: &[u8]) -> Result<Option<(u64, usize)>, Refused> {
    const BAD: Refused = Refused::Malformed("a chunk of the body does not say its size");
    let Some(line) = strict_line(bytes)? else {
        return if bytes.len() > MAX_CHUNK_LINE { Err(BAD) } else { Ok(None) };
    };
    let digits = line.iter().position(|byte| !byte.is_ascii_hexdigit()).unwrap_or(line.len());
    let (size, extension) = line.split_at_checked(digits).unwrap_or_default();
    let is_well = (1..=MAX_DIGITS).contains(&size.len())
        && matches!(extension, [] | [b';', ..])
        && is_text(extension)
        && line.len() <= MAX_CHUNK_LINE;
    let size = str::from_utf8(size).ok().filter(|_| is_well).and_then(|size| u64::from_str_radix(size, 16).ok());
    Ok(Some((size.ok_or(BAD)?, line.len().saturating_add(2))))
}

/// How long the lines behind the last chunk are, with the empty one that ends them; `None` where that is still to come.
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
