//! The trace of a request ([W3C Trace Context](https://www.w3.org/TR/trace-context/)), and the request's own span in it.

use std::net::IpAddr;

use crate::fields::Fields;
use crate::ruleset::{AccessLog, Ruleset};

/// The field that names the trace of a request, and the sender's span in it.
pub const TRACEPARENT: &str = "traceparent";
/// The field in which tracing systems add data of their own about the same trace.
pub const TRACESTATE: &str = "tracestate";
/// The flags that are known: the sender has recorded its span, and the id of the trace is random.
const SAMPLED: u8 = 1;
const RANDOM: u8 = 2;

/// The trace that a request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Identifies the trace; not 0.
    pub id: u128,
    /// The sender's span; `None` if the trace begins with this request.
    pub parent: Option<u64>,
    /// The known flags that are set.
    pub flags: u8,
    /// The request's own span, where it has one; not 0.
    pub span: Option<u64>,
}

/// The trace of a request from `sender`, if the request has a span or its line of the access log may name the trace.
///
/// A trusted proxy decides whether its request has a span. Of all other requests a share has one, whatever they ask for.
pub fn of(ruleset: &Ruleset, fields: &Fields, sender: Option<IpAddr>) -> Option<Box<Trace>> {
    let Some(traces) = &ruleset.traces else { return parse_traceparent(fields).map(Box::new) };
    let by_proxy = ruleset.client_address.is_trusted(sender).then(|| parse_traceparent(fields)).flatten();
    let is_sampled = match by_proxy {
        Some(trace) => trace.flags & SAMPLED != 0,
        None => traces.sample.contains_roll(rand::random()),
    };
    match is_sampled {
        true => Some(Box::new(start_span(parse_traceparent(fields), (rand::random(), rand::random())))),
        false if ruleset.access_log == AccessLog::Off => None,
        false => parse_traceparent(fields).map(Box::new),
    }
}

/// The trace of a request that has a span: the `received` trace, or a new one that begins with the request.
fn start_span(received: Option<Trace>, (id, span): (u128, u64)) -> Trace {
    let trace = received.unwrap_or(Trace { id: id.max(1), parent: None, flags: 0, span: None });
    Trace { flags: trace.flags | SAMPLED, span: Some(span.max(1)), ..trace }
}

/// The trace in a well-formed [`TRACEPARENT`] field, which has to be the only such field.
fn parse_traceparent(fields: &Fields) -> Option<Trace> {
    let mut fields = fields.get_all(TRACEPARENT);
    let field = str::from_utf8(fields.next().filter(|_| fields.next().is_none())?).ok()?;
    let mut parts = field.split('-');
    let version = hex::<2>(parts.next()?).filter(|version| *version != 0xff)?;
    let id = hex::<32>(parts.next()?).filter(|id| *id != 0)?;
    let parent = hex::<16>(parts.next()?).filter(|parent| *parent != 0)?;
    let flags = hex::<2>(parts.next()?)?;
    // later versions may append more parts
    (version != 0 || parts.next().is_none()).then_some(())?;
    let parent = u64::try_from(parent).ok();
    Some(Trace { id, parent, flags: u8::try_from(flags).ok()? & (SAMPLED | RANDOM), span: None })
}

fn hex<const LENGTH: usize>(part: &str) -> Option<u128> {
    let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_number = part.len() == LENGTH && part.bytes().all(is_digit);
    is_number.then(|| u128::from_str_radix(part, 16).ok()).flatten()
}

impl Trace {
    /// The [`TRACEPARENT`] that upstreams get for a request with a span, in place of the client's; `None` if it has no span.
    pub fn traceparent(&self) -> Option<String> {
        let Self { id, flags, span, .. } = self;
        span.map(|span| format!("00-{id:032x}-{span:016x}-{flags:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(fields: &[&[u8]]) -> Option<Trace> {
        let mut headers = Fields::default();
        for field in fields {
            headers.push(TRACEPARENT, field);
        }
        parse_traceparent(&headers)
    }

    fn id_of(fields: &[&[u8]]) -> Option<String> {
        parsed(fields).map(|trace| format!("{:032x}", trace.id))
    }

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    #[test]
    fn the_id_is_taken_from_a_field_that_is_well_formed() {
        let whole = format!("00-{TRACE}-00f067aa0ba902b7-01");
        assert_eq!(id_of(&[whole.as_bytes()]).as_deref(), Some(TRACE));
        let later = format!("cc-{TRACE}-00f067aa0ba902b7-01-what-comes-later");
        assert_eq!(id_of(&[later.as_bytes()]).as_deref(), Some(TRACE));
    }

    #[test]
    fn everything_else_is_no_trace() {
        let zeros = "0".repeat(32);
        for field in [
            String::new(),
            TRACE.to_owned(),
            format!("00-{TRACE}-00f067aa0ba902b7"),
            format!("00-{TRACE}-00f067aa0ba902b7-01-more"),
            format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()),
            format!("00-{zeros}-00f067aa0ba902b7-01"),
            format!("00-{TRACE}-0000000000000000-01"),
            format!("00-{TRACE}0-00f067aa0ba902b7-01"),
            format!("00-{}-00f067aa0ba902b7-01", "\u{e4}".repeat(16)),
            format!("00-{}\"-00f067aa0ba902b7-01", "a".repeat(31)),
        ] {
            assert_eq!(id_of(&[field.as_bytes()]), None, "{field}");
        }
        let whole = format!("00-{TRACE}-00f067aa0ba902b7-01");
        assert_eq!(id_of(&[whole.as_bytes(), whole.as_bytes()]), None);
        assert_eq!(id_of(&[]), None);
    }

    #[test]
    fn a_span_goes_on_in_the_trace_that_was_told_or_begins_one() {
        let field = format!("00-{TRACE}-00f067aa0ba902b7-ff");
        let received = parsed(&[field.as_bytes()]);
        let trace = start_span(received, (5, 6));
        assert_eq!((trace.parent, trace.span), (Some(0x00f0_67aa_0ba9_02b7), Some(6)));
        assert_eq!(trace.traceparent().unwrap(), format!("00-{TRACE}-0000000000000006-03"));
        assert_eq!(received.unwrap().traceparent(), None, "it has no span");
        assert_eq!(start_span(None, (0, 0)).traceparent().unwrap(), format!("00-{:032x}-{:016x}-01", 1, 1));
    }
}
