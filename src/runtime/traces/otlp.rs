//! Spans in OTLP: the messages of `opentelemetry.proto` 1 that a span needs, with their field numbers.

use std::sync::Arc;

use prost::{Message, Oneof};

use crate::gateway::spans::{EndedSpan, Value};

/// `Span.SpanKind.SPAN_KIND_SERVER` and `Status.StatusCode.STATUS_CODE_ERROR`.
const SERVER: i32 = 2;
const ERROR: i32 = 2;
/// `SpanFlags`: the first flag says that the second one is valid, which says that the parent is in another process.
const HAS_IS_REMOTE: u32 = 0x100;
const IS_REMOTE: u32 = 0x200;

/// The source of the spans.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source<'s> {
    /// The gateway's service name.
    pub(super) service: &'s str,
    /// Identifies the process.
    pub(super) instance: u128,
}

/// The request that sends `spans`.
pub(super) fn request(source: &Source<'_>, spans: &[Arc<EndedSpan>]) -> Vec<u8> {
    let version = env!("CARGO_PKG_VERSION");
    let about = [
        ("service.name", source.service.to_owned()),
        ("service.version", version.to_owned()),
        ("service.instance.id", uuid(source.instance)),
    ];
    let about = about.map(|(key, value)| KeyValue::new(key, Kind::Text(value))).into();
    let scope = InstrumentationScope { name: "tollgate".to_owned(), version: version.to_owned() };
    let spans = spans.iter().map(|span| Span::from(&**span)).collect();
    let resource_spans = ResourceSpans {
        resource: Some(Resource { attributes: about }),
        scope_spans: vec![ScopeSpans { scope: Some(scope), spans }],
    };
    ExportTraceServiceRequest { resource_spans: vec![resource_spans] }.encode_to_vec()
}

/// A random number as a UUID of version 4.
fn uuid(random: u128) -> String {
    let number = random & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let [a, b, c, d, e] =
        [number >> 96, number >> 80 & 0xffff, number >> 64 & 0xffff, number >> 48 & 0xffff, number & 0xffff_ffff_ffff];
    format!("{a:08x}-{b:04x}-{c:04x}-{d:04x}-{e:012x}")
}

#[derive(Clone, PartialEq, Message)]
struct ExportTraceServiceRequest {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<InstrumentationScope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

#[derive(Clone, PartialEq, Message)]
struct InstrumentationScope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "Kind", tags = "1, 3, 4")]
    value: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Kind {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Whole(i64),
    #[prost(double, tag = "4")]
    Number(f64),
}

impl KeyValue {
    fn new(key: &str, value: Kind) -> Self {
        Self { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }) }
    }
}

impl From<&EndedSpan> for Span {
    fn from(span: &EndedSpan) -> Self {
        let attribute = |(key, value): &(&str, Value)| {
            let value = match value {
                Value::Text(text) => Kind::Text(text.clone().into_owned()),
                Value::Whole(number) => Kind::Whole(*number),
                Value::Number(number) => Kind::Number(*number),
            };
            KeyValue::new(key, value)
        };
        let id = |id: Option<u64>| id.map(|id| id.to_be_bytes().to_vec()).unwrap_or_default();
        let is_remote = span.trace.parent.map_or(0, |_| IS_REMOTE);
        Self {
            trace_id: span.trace.id.to_be_bytes().to_vec(),
            span_id: id(span.trace.span),
            parent_span_id: id(span.trace.parent),
            name: span.name.clone(),
            kind: SERVER,
            start_time_unix_nano: span.began.get(),
            end_time_unix_nano: span.ended.get(),
            attributes: span.attributes.iter().map(attribute).collect(),
            status: span.has_failed.then_some(Status { code: ERROR }),
            flags: u32::from(span.trace.flags) | HAS_IS_REMOTE | is_remote,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_a_uuid_of_version_4() {
        assert_eq!(uuid(0), "00000000-0000-4000-8000-000000000000");
        assert_eq!(uuid(u128::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
    }
}
