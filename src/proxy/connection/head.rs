//! The lines of a request's head, read as strictly as RFC 9112 lets a server read them, and what they say of the body.
//!
//! pingora's parser mends what it can, and an upstream might mend it otherwise. So nothing that could be mended comes as
//! far: here is decided where a request ends, before anybody else sees it.

use crate::proxy::facts::{Refused, is_target_byte};

/// How many fields pingora's parser takes.
const MOST_FIELDS: usize = 256;

/// How the body of a request is delimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// By its length, which is 0 where there is no body.
    Length(u64),
    /// In chunks.
    Chunks,
}

/// What the lines of a head said so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    version: Option<Version>,
    fields: usize,
    length: Option<u64>,
    is_chunked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Http10,
    Http11,
}

impl Lines {
    /// Whether the next line is the first.
    pub(super) fn is_at_start(&self) -> bool {
        self.version.is_none()
    }

    /// Takes the next line, without its end. The empty line behind the fields says how the body comes.
    pub(super) fn take(&mut self, line: &[u8]) -> Result<Option<Body>, Refused> {
        match self.version {
            None => self.version = Some(request_line(line)?),
            Some(_) if line.is_empty() => return self.body().map(Some),
            Some(_) => self.field(line)?,
        }
        Ok(None)
    }

    fn field(&mut self, line: &[u8]) -> Result<(), Refused> {
        const TWICE: Refused = Refused::Malformed("the request says more than once how long its body is");
        let (name, value) = field(line)?;
        self.fields += 1;
        if self.fields > MOST_FIELDS {
            return Err(Refused::HeadTooLarge("the request has too many header fields"));
        }
        if name.eq_ignore_ascii_case(b"content-length") && self.length.replace(length(value)?).is_some() {
            return Err(TWICE);
        }
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            check_coding(value)?;
            if std::mem::replace(&mut self.is_chunked, true) {
                return Err(TWICE);
            }
        }
        Ok(())
    }

    fn body(&self) -> Result<Body, Refused> {
        match (self.length, self.is_chunked) {
            (Some(_), true) => Err(Refused::Malformed("the request has a length and is in chunks")),
            (None, true) if self.version == Some(Version::Http10) => {
                Err(Refused::Malformed("a request of HTTP/1.0 cannot be in chunks"))
            }
            (None, true) => Ok(Body::Chunks),
            (length, false) => Ok(Body::Length(length.unwrap_or(0))),
        }
    }
}

/// A first line is three words with one space between them (RFC 9112, section 3).
fn request_line(line: &[u8]) -> Result<Version, Refused> {
    const BAD: Refused = Refused::Malformed("the first line of the request is not a method, a target and a version");
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) = (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(BAD);
    };
    if target.is_empty() || method.is_empty() || !method.iter().all(|byte| is_token_byte(*byte)) {
        return Err(BAD);
    }
    // no end before the end, so that many bytes are looked at together
    if !target.iter().fold(true, |fine, byte| fine & is_target_byte(*byte)) {
        return Err(Refused::TARGET);
    }
    match version {
        b"HTTP/1.1" => Ok(Version::Http11),
        b"HTTP/1.0" => Ok(Version::Http10),
        _ => Err(Refused::Malformed("the request is neither of HTTP/1.1 nor of HTTP/1.0")),
    }
}

/// The name of a field and its value, without white space around it (RFC 9112, section 5).
pub(super) fn field(line: &[u8]) -> Result<(&[u8], &[u8]), Refused> {
    let colon = memchr::memchr(b':', line).ok_or(Refused::Malformed("a header field has no colon"))?;
    let (name, value) = line.split_at_checked(colon).unwrap_or_default();
    let value = value.get(1..).unwrap_or_default();
    if name.is_empty() || !name.iter().all(|byte| is_token_byte(*byte)) {
        return Err(Refused::Malformed("the name of a header field holds what no name may hold"));
    }
    if !is_text(value) {
        return Err(Refused::Malformed("a header field holds a control character"));
    }
    Ok((name, value.trim_ascii()))
}

fn length(value: &[u8]) -> Result<u64, Refused> {
    const BAD: Refused = Refused::Malformed("the length of the request's body is no number");
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(BAD);
    }
    str::from_utf8(value).ok().and_then(|digits| digits.parse().ok()).ok_or(BAD)
}

/// Only chunks are understood; who did not chunk last cannot say where the body ends (RFC 9112, section 6.1).
fn check_coding(value: &[u8]) -> Result<(), Refused> {
    const CHUNKED: &[u8] = b"chunked";
    if value.eq_ignore_ascii_case(CHUNKED) {
        return Ok(());
    }
    let mut codings = value.rsplit(|byte| *byte == b',').map(<[u8]>::trim_ascii);
    let chunked_last = codings.next().is_some_and(|last| last.eq_ignore_ascii_case(CHUNKED));
    let names_another = |coding: &[u8]| {
        !coding.is_empty() && !coding.eq_ignore_ascii_case(CHUNKED) && coding.iter().all(|byte| is_token_byte(*byte))
    };
    match chunked_last && codings.all(names_another) {
        true => Err(Refused::CodingUnknown),
        false => Err(Refused::Malformed("the transfer coding of the request does not say where its body ends")),
    }
}

/// What names are made of (RFC 9110, section 5.6.2).
pub(super) const fn is_token_byte(byte: u8) -> bool {
    TOKEN[byte as usize]
}

/// Whether a value is made of what values may hold (RFC 9110, section 5.5).
pub(super) fn is_text(value: &[u8]) -> bool {
    // no end before the end, so that many bytes are looked at together
    value.iter().fold(true, |fine, byte| fine & matches!(byte, b'\t' | b' '..=b'~' | 0x80..))
}

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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&[u8]]) -> Result<Option<Body>, Refused> {
        let mut head = Lines::default();
        for line in lines {
            if let Some(body) = head.take(line)? {
                return Ok(Some(body));
            }
        }
        Ok(None)
    }

    fn with(field: &[u8]) -> Result<Option<Body>, Refused> {
        read(&[b"POST / HTTP/1.1", field, b""])
    }

    #[test]
    fn a_body_comes_by_its_length_or_in_chunks() {
        assert_eq!(read(&[b"GET / HTTP/1.1", b"host: a"]), Ok(None));
        assert_eq!(with(b"host: a"), Ok(Some(Body::Length(0))));
        assert_eq!(with(b"Content-Length:  12\t"), Ok(Some(Body::Length(12))));
        assert_eq!(with(b"transfer-encoding: Chunked"), Ok(Some(Body::Chunks)));
        assert_eq!(with(b"content-length: 18446744073709551615"), Ok(Some(Body::Length(u64::MAX))));
    }

    #[test]
    fn what_two_readers_could_read_in_two_ways_is_refused() {
        for field in [
            &b"content-length: 1, 1"[..],
            b"content-length: +1",
            b"content-length:",
            b"content-length: 1 1",
            b"content-length: 18446744073709551616",
            b"content-length: 0x1",
            b"transfer-encoding: xchunked",
            b"transfer-encoding: chunked, gzip",
            b"transfer-encoding: chunked, chunked",
            b"transfer-encoding: ,chunked",
            b"transfer-encoding: chunked,",
            b"transfer-encoding: gzip;q=1, chunked",
            b"transfer-encoding:",
            b"transfer-encoding : chunked",
            b" host: a",
            b"nonsense",
            b": a",
            b"x: a\0",
            b"x: a\rb",
            b"x: a\x7f",
            b"x\xff: a",
        ] {
            assert!(matches!(with(field), Err(Refused::Malformed(_))), "{}", field.escape_ascii());
        }
        assert_eq!(with(b"transfer-encoding: gzip, chunked"), Err(Refused::CodingUnknown));
        for lines in [
            [&b"POST / HTTP/1.1"[..], b"content-length: 1", b"content-length: 1", b""],
            [b"POST / HTTP/1.1", b"content-length: 1", b"transfer-encoding: chunked", b""],
            [b"POST / HTTP/1.1", b"transfer-encoding: chunked", b"transfer-encoding: chunked", b""],
            [b"POST / HTTP/1.0", b"host: a", b"transfer-encoding: chunked", b""],
        ] {
            assert!(matches!(read(&lines), Err(Refused::Malformed(_))), "{lines:?}");
        }
    }

    #[test]
    fn a_first_line_is_three_words() {
        for line in [
            &b"GET /a b HTTP/1.1"[..],
            b"GET  / HTTP/1.1",
            b"GET / HTTP/1.1 ",
            b" GET / HTTP/1.1",
            b"GET /",
            b"GET / HTTP/1.2",
            b"GET / HTTP/2.0",
            b"GET / http/1.1",
            b"GET /\t HTTP/1.1",
            b"GET /#a HTTP/1.1",
            b"GET /\xff HTTP/1.1",
            b"G\0T / HTTP/1.1",
            b"",
        ] {
            assert!(matches!(read(&[line]), Err(Refused::Malformed(_))), "{}", line.escape_ascii());
        }
        assert_eq!(read(&[b"M-SEARCH * HTTP/1.0", b""]), Ok(Some(Body::Length(0))));
    }

    #[test]
    fn more_fields_than_can_be_read_are_too_many() {
        let mut head = Lines::default();
        head.take(b"GET / HTTP/1.1").unwrap();
        for _ in 0..MOST_FIELDS {
            head.take(b"x: y").unwrap();
        }
        assert!(matches!(head.take(b"x: y"), Err(Refused::HeadTooLarge(_))));
    }
}
