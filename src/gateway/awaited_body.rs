//! The body of a request whose limits depend on it: whether it has arrived, and the fields that were read so far.

use std::sync::Arc;

use crate::fields::Fields;
use crate::gateway::field::{ReadProgress, RequestReader};
use crate::http::body::Framing;
use crate::ruleset::cost::body_length;
use crate::ruleset::key::Facts;
use crate::ruleset::matcher::Route;
use crate::ruleset::request_field::RequestFields;

/// The place where the body of a request is.
#[derive(Clone, Copy)]
pub enum BodySource<'b> {
    /// It follows the head, framed like this.
    Streaming(Framing),
    /// All of it has been read.
    Buffered(&'b [u8]),
    /// The gateway does not see it.
    Unavailable,
}

impl BodySource<'_> {
    /// Whether the body of a request with these `facts` is known to have more than `max` bytes.
    pub fn is_longer_than(self, max: u64, facts: &Facts<'_>) -> bool {
        let length = match self {
            Self::Streaming(Framing::Length(length)) => length,
            Self::Buffered(body) => u64::try_from(body.len()).unwrap_or(u64::MAX),
            Self::Streaming(_) => 0,
            Self::Unavailable => body_length(facts).unwrap_or(0),
        };
        length > max
    }
}

/// The fields of a body, as far as they are known before the gateway waits for it.
pub(super) enum BodyFields {
    Known(RequestFields),
    /// The gateway has to wait for the body.
    Awaited(Box<AwaitedBody>),
}

/// A body that is read as it arrives.
pub struct AwaitedBody {
    reader: RequestReader,
    /// The number of bytes that were read and not forwarded yet.
    unforwarded: usize,
    /// The reason why the body is ambiguous: two parsers could read it differently.
    fault: Option<&'static str>,
}

impl BodyFields {
    /// The fields, if they are known.
    pub(super) const fn known(&self) -> Option<&RequestFields> {
        match self {
            Self::Known(fields) => Some(fields),
            Self::Awaited(_) => None,
        }
    }

    /// The known fields of the body of a request for `route` with these `headers`. `Err`: the body is ambiguous.
    pub(super) fn of(headers: &Fields, source: BodySource<'_>, route: &Route) -> Result<Self, &'static str> {
        let mut awaited = AwaitedBody {
            reader: RequestReader::new(Arc::clone(&route.body_fields), route.longest_text),
            unforwarded: 0,
            fault: None,
        };
        Ok(match source {
            BodySource::Streaming(Framing::Empty) | BodySource::Buffered([]) => Self::Known(RequestFields::NoBody),
            BodySource::Unavailable => Self::Known(RequestFields::Unreadable),
            _ if !is_readable(headers) => Self::Known(RequestFields::Unreadable),
            BodySource::Streaming(_) => Self::Awaited(Box::new(awaited)),
            BodySource::Buffered(body) => {
                awaited.read_held(body, usize::MAX);
                Self::Known(awaited.decide()?)
            }
        })
    }
}

impl AwaitedBody {
    /// Reads a part that is held back, as far as it is among the first `max` bytes. Returns whether more has to arrive before
    /// the request can be decided on.
    pub(super) fn read_held(&mut self, part: &[u8], max: usize) -> bool {
        let left = max.saturating_sub(self.unforwarded);
        let part = part.get(..left).unwrap_or(part);
        self.unforwarded = self.unforwarded.saturating_add(part.len());
        match self.reader.feed(part) {
            ReadProgress::Incomplete => part.len() < left,
            ReadProgress::Sufficient => false,
            ReadProgress::Ambiguous(fault) => {
                self.fault = Some(fault);
                false
            }
        }
    }

    /// The fields of the body, as far as it has arrived. `Err`: the body is ambiguous.
    pub(super) fn decide(&mut self) -> Result<RequestFields, &'static str> {
        match self.fault {
            Some(fault) => Err(fault),
            None => Ok(self.reader.decide()),
        }
    }

    /// Reads a part that is forwarded after the decision. `Err`: it makes the body ambiguous.
    pub(super) fn read_forwarded(&mut self, part: &[u8]) -> Result<(), &'static str> {
        let (read, new) = part.split_at_checked(self.unforwarded).unwrap_or((part, &[]));
        self.unforwarded = self.unforwarded.saturating_sub(read.len());
        if new.is_empty() {
            return Ok(());
        }
        match self.reader.feed(new) {
            ReadProgress::Incomplete | ReadProgress::Sufficient => Ok(()),
            ReadProgress::Ambiguous(fault) => Err(fault),
        }
    }
}

/// Whether the upstream, too, reads a body with these `headers` as JSON in UTF-8: it is not encoded, and has no
/// `content-type` or one that says so. By another type the upstream may read a form, say, whose fields tollgate does not see.
fn is_readable(headers: &Fields) -> bool {
    let mut types = headers.get_all("content-type");
    let (first, second) = (types.next(), types.next());
    second.is_none()
        && first.is_none_or(is_json)
        && headers.get_all("content-encoding").all(|coding| coding.eq_ignore_ascii_case(b"identity"))
}

/// Whether this value of `content-type` stands for JSON in UTF-8 at every server, however it cuts the value.
fn is_json(content_type: &[u8]) -> bool {
    let Ok(text) = str::from_utf8(content_type).map(str::to_ascii_lowercase) else { return false };
    let mut parts = text.split(';').map(str::trim_ascii);
    let is_json_type = |subtype: &str| {
        let is_name = subtype.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$&-^_.+".contains(&byte));
        // some servers take any type that begins like that of forms for it
        subtype == "json" || (is_name && subtype.ends_with("+json") && !subtype.starts_with("x-www-form-urlencoded"))
    };
    let is_utf_8 = |parameter: &str| match parameter.split_once('=') {
        Some((name, value)) if name.trim_ascii_end() == "charset" => {
            matches!(value.trim_ascii_start().trim_matches('"'), "utf-8" | "utf8")
        }
        _ => !parameter.contains("charset"),
    };
    // proxies join two fields to one with a comma
    !text.contains(',')
        && parts.next().and_then(|name| name.strip_prefix("application/")).is_some_and(is_json_type)
        && parts.all(is_utf_8)
}
