//! What lines of HTTP/1.1 are made of (RFC 9110, section 5; RFC 9112, section 2), and why a request is refused.

/// Why a request is refused before anything is decided about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It cannot be read, or has more than one reading.
    #[error("{0}")]
    Malformed(&'static str),
    /// The target is longer than this many bytes.
    #[error("the request target is longer than {0} bytes")]
    TargetTooLong(usize),
    /// There are too many header bytes or lines.
    #[error("{0}")]
    HeadTooLarge(&'static str),
    /// The body is coded in a way that is not understood.
    #[error("the transfer coding of the request is not understood")]
    CodingUnknown,
    /// The method is not served.
    #[error("the method is not served")]
    MethodNotServed,
}

impl Refused {
    /// The target holds what no target may hold.
    pub const TARGET: Self = Self::Malformed("the request target holds a character that has to be percent-encoded");
}

/// The first line without its end; `None` where that is still to come.
pub(super) fn strict_line(bytes: &[u8]) -> Result<Option<&[u8]>, Refused> {
    let Some(end) = memchr::memchr(b'\n', bytes) else { return Ok(None) };
    let line = bytes.get(..end).and_then(|line| line.strip_suffix(b"\r"));
    line.map(Some).ok_or(Refused::Malformed("a line of the request ends without a carriage return"))
}

/// The first line without its end, which may be a line feed alone, and its length with it.
pub(super) fn lenient_line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = memchr::memchr(b'\n', bytes)?;
    let line = bytes.get(..end)?;
    Some((line.strip_suffix(b"\r").unwrap_or(line), end.saturating_add(1)))
}

/// The name of a field and its value, without white space around it (RFC 9112, section 5).
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

/// Whether a byte may stand in a target: printable characters, but for the two that servers read in two ways.
pub const fn is_target_byte(byte: u8) -> bool {
    TARGET_BYTES[byte as usize]
}

/// Whether a byte may stand in a name (RFC 9110, section 5.6.2).
pub(super) const fn is_token_byte(byte: u8) -> bool {
    TOKEN[byte as usize]
}

/// Whether a value is made of what values may hold (RFC 9110, section 5.5).
pub(super) fn is_text(value: &[u8]) -> bool {
    // all bytes are looked at, without an early end, so that many are looked at together
    value.iter().fold(true, |fine, byte| fine & matches!(byte, b'\t' | b' '..=b'~' | 0x80..))
}

/// A table, because every byte of every target is looked up.
const TARGET_BYTES: [bool; 256] = {
    let mut allowed = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        allowed[byte as usize] = byte.is_ascii_graphic() && !matches!(byte, b'#' | b'\\');
        byte += 1;
    }
    allowed
};

/// A table, because every byte of every name is looked up.
const TOKEN: [bool; 256] = {
    let mut token = [false; 256];
    let mut byte = 0_u8;
    while byte < 128 {
        token[byte as usize] = byte.is_ascii_alphanumeric()
            || matches!(
                byte,
                b'!' | b'#' | b'$' | b'%' | b'&' | b'\'' | b'*' | b'+' | b'-' | b'.' | b'^' | b'_' | b'`' | b'|' | b'~'
            );
        byte += 1;
    }
    token
};
