//! The syntax of HTTP/1.1 lines (RFC 9110, section 5; RFC 9112, section 2), and the reasons to refuse a request.

/// The reason why the gateway refuses a request before it decides about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The request cannot be read, or two readers could read it in different ways.
    #[error("{0}")]
    Malformed(&'static str),
    /// The target is longer than this many bytes.
    #[error("the request target is longer than {0} bytes")]
    TargetTooLong(usize),
    /// The head has too many bytes or lines.
    #[error("{0}")]
    HeadTooLarge(&'static str),
    /// The body has a transfer coding that the gateway does not know.
    #[error("the transfer coding of the request is not understood")]
    CodingUnknown,
    /// The gateway does not serve the method.
    #[error("the method is not served")]
    MethodNotServed,
}

impl Refused {
    /// The target has a character that is not allowed in a target.
    pub const TARGET: Self = Self::Malformed("the request target holds a character that has to be percent-encoded");
    /// The framing of the body is given twice.
    pub(super) const LENGTH_TWICE: Self = Self::Malformed("the request says more than once how long its body is");
}

/// The first line without its end; `None` if the line is not complete yet.
pub(super) fn strict_line(bytes: &[u8]) -> Result<Option<&[u8]>, Refused> {
    let Some(end) = memchr::memchr(b'\n', bytes) else { return Ok(None) };
    let line = bytes.get(..end).and_then(|line| line.strip_suffix(b"\r"));
    line.map(Some).ok_or(Refused::Malformed("a line of the request ends without a carriage return"))
}

/// The first line without its end, and its length including the end. The end may be a line feed alone.
pub(super) fn lenient_line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = memchr::memchr(b'\n', bytes)?;
    let line = bytes.get(..end)?;
    Some((line.strip_suffix(b"\r").unwrap_or(line), end.saturating_add(1)))
}

/// The name and the value of a field, without the white space around the value (RFC 9112, section 5).
pub(super) fn field(line: &[u8]) -> Result<(&[u8], &[u8]), Refused> {
    const NAME: Refused = Refused::Malformed("the name of a header field holds what no name may hold");
    let end = line.iter().position(|byte| !is_token_byte(*byte)).unwrap_or(line.len());
    let (name, value) = match line.split_at_checked(end) {
        Some((name, [b':', value @ ..])) if !name.is_empty() => (name, value),
        _ if line.contains(&b':') => return Err(NAME),
        _ => return Err(Refused::Malformed("a header field has no colon")),
    };
    if !is_text(value) {
        return Err(Refused::Malformed("a header field holds a control character"));
    }
    Ok((name, value.trim_ascii()))
}

/// The same for a field of a response, in which white space may stand in front of the colon (RFC 9112, section 5.1).
pub(super) fn lenient_field(line: &[u8]) -> Result<(&[u8], &[u8]), Refused> {
    let end = line.iter().position(|byte| !is_token_byte(*byte)).unwrap_or(line.len());
    let (name, behind) = line.split_at_checked(end).unwrap_or_default();
    match behind.trim_ascii_start() {
        [b':', value @ ..] if !name.is_empty() && is_text(value) => Ok((name, value.trim_ascii())),
        _ => field(line),
    }
}

/// Whether a byte is allowed in a target: printable ASCII, except `#` and `\`, which servers read in different ways.
pub const fn is_target_byte(byte: u8) -> bool {
    CLASSES[byte as usize] & TARGET != 0
}

/// Whether a byte is allowed in a name (RFC 9110, section 5.6.2).
pub(super) const fn is_token_byte(byte: u8) -> bool {
    CLASSES[byte as usize] & TOKEN != 0
}

/// Whether all bytes are allowed in a value (RFC 9110, section 5.5).
pub(super) fn is_text(value: &[u8]) -> bool {
    // blocks without an early exit, so that the compiler can check all bytes of one at once
    let (blocks, rest) = value.as_chunks::<16>();
    blocks.iter().all(|block| block.iter().fold(true, |fine, byte| fine & is_text_byte(*byte)))
        && rest.iter().all(|byte| CLASSES[usize::from(*byte)] & TEXT != 0)
}

const fn is_text_byte(byte: u8) -> bool {
    matches!(byte, b'\t' | b' '..=b'~' | 0x80..)
}

/// The classes of bytes: those of targets, of names and of values.
const TARGET: u8 = 1;
const TOKEN: u8 = 2;
const TEXT: u8 = 4;

/// The classes of each byte: a table, because the gateway looks up each byte of each head.
const CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut position = 0;
    while position < classes.len() {
        let byte = position as u8;
        if byte.is_ascii_graphic() && !matches!(byte, b'#' | b'\\') {
            classes[position] |= TARGET;
        }
        let is_sign = matches!(
            byte,
            b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
        );
        if byte.is_ascii_alphanumeric() || is_sign {
            classes[position] |= TOKEN;
        }
        if is_text_byte(byte) {
            classes[position] |= TEXT;
        }
        position += 1;
    }
    classes
};
