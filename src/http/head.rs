//! Heads of HTTP/1.1, read as strictly as RFC 9112 allows a server to read them.
//!
//! The gateway refuses a head that two readers could read in different ways, so that an upstream never sees another
//! request than the gateway decided on.

use super::body::Framing;
use super::syntax::{Refused, field, is_target_byte, is_text, is_token_byte, lenient_field, lenient_line, strict_line};
use crate::fields::Fields;

/// The maximum number of fields in a head, independent of the configuration.
const MAX_FIELDS: usize = 256;
/// The maximum size of a response's head, in bytes.
const MAX_RESPONSE: usize = 256 << 10;
/// A `Connection` field that names this many fields or more is refused as an attempt to have fields dropped.
const MAX_NOMINATED: usize = 10;

/// The error of an upstream's response that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the upstream's response cannot be read: {0}")]
pub struct Unreadable(pub &'static str);

/// A version of HTTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    #[default]
    Http11,
    /// HTTP/2
    Http2,
}

/// The head of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestHead {
    /// The method, as sent.
    pub method: String,
    /// The request target, as sent.
    pub target: Vec<u8>,
    /// The version of the request.
    pub version: Version,
    /// The header fields, except those with an underscore in their name and those that `Connection` names.
    pub fields: Fields,
    /// The framing of the body.
    pub framing: Framing,
}

/// The head of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResponseHead {
    /// The status, 100 to 999.
    pub status: u16,
    /// The reason phrase; empty if there is none.
    pub reason: Vec<u8>,
    /// The version of the response.
    pub version: Version,
    /// The header fields.
    pub fields: Fields,
}

/// The maximum size of a head, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadBounds {
    /// The maximum of the first line.
    pub first_line: usize,
    /// The maximum of all fields together, each including its line end.
    pub fields: usize,
}

/// Reads one head, in as many parts as it arrives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeadReader {
    /// How many bytes were already read as complete lines.
    read: usize,
    has_first_line: bool,
    fields: usize,
    length: Option<u64>,
    is_chunked: bool,
}

// === impl HeadReader ===

impl HeadReader {
    /// Reads the head of a request at the beginning of `bytes`, all bytes so far. Returns its length once it is complete.
    ///
    /// Errors: bytes that are not a request, or that two readers could read in different ways.
    pub fn request(
        &mut self,
        bytes: &[u8],
        bounds: HeadBounds,
        head: &mut RequestHead,
    ) -> Result<Option<usize>, Refused> {
        // a reader is asked before anything has come, too
        if bytes.is_empty() {
            return Ok(None);
        }
        if self.read == 0 {
            if bytes.first().is_some_and(|byte| byte.is_ascii_control() && *byte != b'\r') {
                return Err(Refused::Malformed("this is no request of HTTP/1.1"));
            }
            // an empty line before a request is left over from the previous one (RFC 9112, section 2.2)
            if bytes.starts_with(b"\r\n") {
                self.read = 2;
            }
        }
        while let Some(line) = strict_line(bytes.get(self.read..).unwrap_or_default())? {
            let start = self.read;
            self.read = self.read.saturating_add(line.len()).saturating_add(2);
            if !self.has_first_line {
                self.check_bounds(self.read, bounds)?;
                head.fields.clear();
                request_line(line, head)?;
                self.has_first_line = true;
            } else if line.is_empty() {
                head.framing = self.request_framing(head.version)?;
                check_nominated(&head.fields)?;
                // the upstream does not get them, so no route, key or credential may depend on them
                head.fields.remove_nominated();
                return Ok(Some(self.read));
            } else {
                self.request_field(line, bytes.get(start..self.read).unwrap_or_default(), head)?;
            }
            self.check_bounds(self.read, bounds)?;
        }
        self.check_bounds(bytes.len(), bounds)?;
        Ok(None)
    }

    fn check_bounds(&self, length: usize, bounds: HeadBounds) -> Result<(), Refused> {
        match self.has_first_line {
            false if length > bounds.first_line => Err(Refused::TargetTooLong(bounds.first_line)),
            true if length > bounds.first_line.saturating_add(bounds.fields) => {
                Err(Refused::HeadTooLarge("the header fields of the request are too large together"))
            }
            _ => Ok(()),
        }
    }

    /// Reads a field of a request from its `line`; `whole` is the line with its end.
    fn request_field(&mut self, line: &[u8], whole: &[u8], head: &mut RequestHead) -> Result<(), Refused> {
        let (name, value) = field(line)?;
        self.fields = self.fields.saturating_add(1);
        if self.fields > MAX_FIELDS {
            return Err(Refused::HeadTooLarge("the request has too many header fields"));
        }
        if name.eq_ignore_ascii_case(b"content-length") && self.length.replace(content_length(value)?).is_some() {
            return Err(Refused::LENGTH_TWICE);
        }
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            check_coding(value)?;
            if std::mem::replace(&mut self.is_chunked, true) {
                return Err(Refused::LENGTH_TWICE);
            }
        }
        // an expectation means nothing in HTTP/1.0 (RFC 9110, section 10.1.1)
        let is_ignored = head.version == Version::Http10 && name.eq_ignore_ascii_case(b"expect");
        // CGI-like servers read an underscore in a name as a hyphen, and so as another field
        if !name.contains(&b'_') && !is_ignored {
            head.fields.push_line(name, value, whole);
        }
        Ok(())
    }

    fn request_framing(&self, version: Version) -> Result<Framing, Refused> {
        match (self.length, self.is_chunked) {
            (Some(_), true) => Err(Refused::Malformed("the request has a length and is in chunks")),
            (None, true) if version == Version::Http10 => {
                Err(Refused::Malformed("a request of HTTP/1.0 cannot be in chunks"))
            }
            (None, true) => Ok(Framing::Chunked),
            (Some(0) | None, false) => Ok(Framing::Empty),
            (Some(length), false) => Ok(Framing::Length(length)),
        }
    }

    /// Reads the head of a response in the same way.
    pub fn response(&mut self, bytes: &[u8], head: &mut ResponseHead) -> Result<Option<usize>, Unreadable> {
        // a reader is asked before anything has come, too
        if bytes.is_empty() {
            return Ok(None);
        }
        while let Some((line, length)) = lenient_line(bytes.get(self.read..).unwrap_or_default()) {
            let start = self.read;
            self.read = self.read.saturating_add(length);
            if !self.has_first_line {
                head.fields.clear();
                status_line(line, head)?;
                self.has_first_line = true;
            } else if line.is_empty() {
                return Ok(Some(self.read));
            } else {
                let (name, value) = lenient_field(line).map_err(|_| Unreadable("a header field is malformed"))?;
                self.fields = self.fields.saturating_add(1);
                if self.fields > MAX_FIELDS {
                    return Err(Unreadable("it has too many header fields"));
                }
                head.fields.push_line(name, value, bytes.get(start..self.read).unwrap_or_default());
            }
        }
        match bytes.len() > MAX_RESPONSE {
            true => Err(Unreadable("its head is too large")),
            false => Ok(None),
        }
    }
}

// === impl ResponseHead ===

impl ResponseHead {
    /// The framing of the body of a response to a request with this method (RFC 9112, section 6.3).
    pub fn framing(&self, method: &str) -> Result<Framing, Unreadable> {
        let mut lengths = self.fields.get_all("content-length");
        let declared = match (lengths.next(), lengths.next()) {
            (None, _) => None,
            (Some(value), None) => {
                Some(content_length(value).map_err(|_| Unreadable("its Content-Length is not a number"))?)
            }
            (Some(_), Some(_)) => return Err(Unreadable("it has more than one Content-Length")),
        };
        let mut codings = self.fields.get_all("transfer-encoding");
        let is_chunked = match (codings.next(), codings.next()) {
            (None, _) => false,
            (Some(value), None) if value.eq_ignore_ascii_case(b"chunked") => true,
            _ => return Err(Unreadable("its Transfer-Encoding is not supported")),
        };
        if method == "HEAD" || has_no_content(self.status) {
            return Ok(Framing::Empty);
        }
        match (declared, is_chunked) {
            (Some(_), true) => Err(Unreadable("it has both Content-Length and Transfer-Encoding")),
            (None, true) if self.version == Version::Http10 => {
                Err(Unreadable("an HTTP/1.0 response cannot be chunked"))
            }
            (None, true) => Ok(Framing::Chunked),
            (Some(0), false) => Ok(Framing::Empty),
            (Some(length), false) => Ok(Framing::Length(length)),
            (None, false) => Ok(Framing::UntilClose),
        }
    }

    /// How long the server keeps the connection by its own statement, in seconds.
    pub fn keep_alive_timeout(&self) -> Option<u64> {
        self.fields.elements("keep-alive").find_map(|parameter| {
            let (name, value) = str::from_utf8(parameter).ok()?.split_once('=')?;
            let value = value.trim().trim_matches('"');
            name.trim().eq_ignore_ascii_case("timeout").then(|| value.parse().ok())?
        })
    }

    /// Adds the protocol that the response names in `upgrade` to `fields`, which are for another connection.
    pub(super) fn pass_upgrade(&self, fields: &mut Fields) {
        if let Some(protocol) = self.fields.get("upgrade") {
            fields.push("upgrade", protocol);
            fields.push("connection", "upgrade");
        }
    }

    /// Whether the response allows another exchange on its connection.
    pub fn keeps_alive(&self) -> bool {
        keeps_alive(self.version, &self.fields)
    }
}

/// Whether a message of this version and with these `fields` allows another exchange on its connection (RFC 9112, section
/// 9.3).
pub(super) fn keeps_alive(version: Version, fields: &Fields) -> bool {
    !fields.lists("connection", "close") && (version != Version::Http10 || fields.lists("connection", "keep-alive"))
}

// === lines ===

/// Whether a response with this status never has content (RFC 9110, section 6.4.1).
pub(super) const fn has_no_content(status: u16) -> bool {
    matches!(status, 100..=199 | 204 | 304)
}

/// Reads a request line: three words with one space between them (RFC 9112, section 3).
fn request_line(line: &[u8], head: &mut RequestHead) -> Result<(), Refused> {
    const BAD: Refused = Refused::Malformed("the first line of the request is not a method, a target and a version");
    let mut words = line.splitn(3, |byte| *byte == b' ');
    let (Some(method), Some(target), Some(version)) = (words.next(), words.next(), words.next()) else {
        return Err(BAD);
    };
    if target.is_empty() || method.is_empty() || !method.iter().all(|byte| is_token_byte(*byte)) {
        return Err(BAD);
    }
    // without an early exit, so that the compiler can check many bytes at once
    if !target.iter().fold(true, |fine, byte| fine & is_target_byte(*byte)) {
        return Err(Refused::TARGET);
    }
    // compared as a whole: as patterns they would be compared byte by byte
    head.version = if version == b"HTTP/1.1" {
        Version::Http11
    } else if version == b"HTTP/1.0" {
        Version::Http10
    } else if version.contains(&b' ') {
        return Err(BAD);
    } else {
        return Err(Refused::Malformed("the request is neither of HTTP/1.1 nor of HTTP/1.0"));
    };
    head.method.clear();
    head.method.push_str(str::from_utf8(method).map_err(|_| BAD)?);
    head.target.clear();
    head.target.extend_from_slice(target);
    Ok(())
}

fn status_line(line: &[u8], head: &mut ResponseHead) -> Result<(), Unreadable> {
    const BAD: Unreadable = Unreadable("its status line is malformed");
    let (version, rest) = line.split_at_checked(9).ok_or(BAD)?;
    head.version = match version {
        b"HTTP/1.1 " => Version::Http11,
        b"HTTP/1.0 " => Version::Http10,
        _ => return Err(BAD),
    };
    let (digits, reason) = rest.split_at_checked(3).ok_or(BAD)?;
    if !digits.iter().all(u8::is_ascii_digit) || !matches!(reason, [] | [b' ', ..]) || !is_text(reason) {
        return Err(BAD);
    }
    head.status = str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok()).ok_or(BAD)?;
    if head.status < 100 {
        return Err(BAD);
    }
    head.reason.clear();
    head.reason.extend_from_slice(reason.trim_ascii());
    Ok(())
}

/// Reads the value of `Content-Length`.
pub(super) fn content_length(value: &[u8]) -> Result<u64, Refused> {
    const BAD: Refused = Refused::Malformed("the length of the request's body is no number");
    if value.is_empty() || !value.iter().all(u8::is_ascii_digit) {
        return Err(BAD);
    }
    str::from_utf8(value).ok().and_then(|digits| digits.parse().ok()).ok_or(BAD)
}

/// Refuses any coding other than `chunked`. If the last coding is another one, the body's end is unknown (RFC
/// 9112, section 6.1).
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

/// Refuses a `Connection` field that names fields which the gateway itself sets: a client must not have them dropped.
fn check_nominated(fields: &Fields) -> Result<(), Refused> {
    let names_ours = |name: &[u8]| {
        let prefix = name.get(..12).unwrap_or_default();
        name.eq_ignore_ascii_case(b"host") || prefix.eq_ignore_ascii_case(b"x-forwarded-")
    };
    if fields.elements("connection").any(names_ours) {
        return Err(Refused::Malformed("the connection field names a field that is not the client's to drop"));
    }
    match fields.elements("connection").count() < MAX_NOMINATED {
        true => Ok(()),
        false => Err(Refused::Malformed("the connection field names too many fields")),
    }
}

#[cfg(test)]
mod tests;
