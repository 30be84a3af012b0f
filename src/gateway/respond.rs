//! The one place that turns verdicts and errors into HTTP responses: status, fields and body.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::algorithm::Denial;
use crate::fields::Fields;
use crate::gateway::request_context::RequestContext;
use crate::http::service::Response;
use crate::ruleset::verdict::Outcome;
use crate::units::Nanos;

mod accept;
mod answer;
mod challenge;
pub mod cors;
mod denial;
mod fields;

pub use answer::{Answer, BEFORE_LIMITS, CALLER_REFUSED};

use denial::Wording;
pub use fields::LimitFields;

const PROBLEM_JSON: &str = "application/problem+json";
/// The number of fields in most responses of the gateway, and their bytes.
const OWN_FIELDS: usize = 8;
const OWN_BYTES: usize = 512;
/// The length of most problem bodies, in bytes.
const PROBLEM_BYTES: usize = 384;

/// The response `answer` to the request of `context`, which records it. `request` holds the fields of the request, as far as
/// they are known.
pub fn answer(context: &mut RequestContext, answer: &Answer, request: &Fields) -> Response {
    let response = response(answer, Some(context), request);
    context.answered.get_or_insert(answer.cause());
    context.status.get_or_insert(response.status);
    response
}

/// The response `answer` if nothing is known of the request.
pub fn bare(answer: &Answer) -> Response {
    response(answer, None, &Fields::default())
}

/// The fields that tell the client its limits, for a response of an upstream with the fields `theirs`.
pub fn limit_fields<'c>(context: &'c RequestContext, theirs: &Fields) -> Option<LimitFields<'c>> {
    LimitFields::new(&context.active.ruleset, &context.verdict, Some(theirs))
}

/// The fields that tell the client its limits, for a request that another proxy forwards.
pub fn admitted_fields(context: &RequestContext) -> Fields {
    let mut fields = Fields::default();
    if let Some(limits) = limit_fields(context, &Fields::default()) {
        limits.add_to(&mut fields, context.gateway.clock.wall_at(context.charged_at));
    }
    fields
}

/// The response `answer`; `request` holds the fields of the request, as far as they are known.
fn response(answer: &Answer, context: Option<&RequestContext>, request: &Fields) -> Response {
    let mut response = own_site_response(answer, context, request);
    if let Some(context) = context {
        cors::add_to_answer(&mut response.fields, context, answer, request);
    }
    // the gateway may not know where the next request on the connection begins
    response.closes = matches!(
        answer,
        Answer::Malformed(_)
            | Answer::MethodNotAllowed { .. }
            | Answer::HeadTimeout
            | Answer::BodyTimeout
            | Answer::CodingUnknown
            | Answer::Internal
    );
    response
}

/// The response without the fields that let scripts of other sites read it.
fn own_site_response(answer: &Answer, context: Option<&RequestContext>, request: &Fields) -> Response {
    match (answer, context) {
        (Answer::Preflight, _) => Response { status: 204, ..Response::default() },
        (Answer::Usage(report), _) => {
            let mut fields = Fields::default();
            fields.push("cache-control", "no-store");
            fields.push("content-type", "application/json");
            Response { status: 200, fields, body: report.clone().into_bytes(), ..Response::default() }
        }
        (_, Some(context)) if context.is_grpc => grpc_response(answer, context),
        (_, context) => http_response(answer, context, request),
    }
}

fn http_response(answer: &Answer, context: Option<&RequestContext>, request: &Fields) -> Response {
    let wording = wording(answer, context);
    let status = wording.as_ref().and_then(|wording| wording.set.status).unwrap_or(answer.status());
    let mut fields = common_fields(answer, context);
    let (content_type, body) = match wording.as_ref().and_then(|wording| wording.body(status, request)) {
        Some(worded) => (worded.content_type, worded.text.into_bytes()),
        None => (PROBLEM_JSON, problem(answer, status, context)),
    };
    let own = wording.as_ref().map(|wording| wording.fields(status)).unwrap_or_default();
    if !own.iter().any(|(name, _)| name == http::header::CONTENT_TYPE) {
        fields.push("content-type", content_type);
    }
    if wording.is_some_and(|wording| wording.varies()) {
        fields.push("vary", "accept");
    }
    own.iter().for_each(|(name, value)| fields.push(name, value));
    Response { status, fields, body, ..Response::default() }
}

/// The parts of `answer` that a limit or a route sets.
fn wording<'a>(answer: &Answer, context: Option<&'a RequestContext>) -> Option<Wording<'a>> {
    context.filter(|_| *answer == Answer::Limited).and_then(Wording::of)
}

/// A trailers-only response (gRPC over HTTP): everything in the head.
fn grpc_response(answer: &Answer, context: &RequestContext) -> Response {
    /// The characters that gRPC's `Percent-Encoded` escapes (PROTOCOL-HTTP2).
    const ENCODED: &AsciiSet = &CONTROLS.add(b'%');
    let mut fields = common_fields(answer, Some(context));
    let message = format!("{}: {}", answer.title(), answer.detail(Some(context)));
    let set = wording(answer, Some(context)).and_then(|wording| wording.set.grpc_status);
    fields.push("content-type", "application/grpc");
    fields.push_number("grpc-status", set.unwrap_or(answer.grpc_status()).into());
    fields.push("grpc-message", utf8_percent_encode(&message, ENCODED).to_string());
    Response { status: 200, fields, ..Response::default() }
}

fn common_fields(answer: &Answer, context: Option<&RequestContext>) -> Fields {
    let mut fields = Fields::with_capacity(OWN_FIELDS, OWN_BYTES);
    fields.push("cache-control", "no-store");
    if let Some(context) = context {
        // the headroom of a limit that could not be checked is unknown
        if !matches!(answer, Answer::StoreUnavailable)
            && let Some(limits) = LimitFields::new(&context.active.ruleset, &context.verdict, None)
        {
            limits.add_to(&mut fields, context.gateway.clock.wall_at(context.charged_at));
        }
        if let (Answer::Limited, Outcome::Deny(denial)) = (answer, context.verdict.outcome) {
            let time = retry_after(denial).map(|time| match context.active.ruleset.dialects.retry_after_jitter {
                Some(jitter) => jitter.spread(time, rand::random()),
                None => time,
            });
            if let Some(time) = time {
                fields.push_number("retry-after", time.secs_ceil());
            }
        }
    }
    if matches!(answer, Answer::DirectoryUnavailable | Answer::StoreUnavailable) {
        fields.push("retry-after", "1");
    }
    if let Answer::MethodNotAllowed { allow } = answer {
        fields.push("allow", allow);
    }
    answer.add_challenges(&mut fields, context);
    fields
}

/// The time after which to retry, never 0: a second if the wait is unknown; `None` if no wait helps.
pub(super) fn retry_after(denial: Denial) -> Option<Nanos> {
    match denial {
        Denial::Later { retry_after } => Some(retry_after.max(Nanos::new(1))),
        Denial::Busy => Some(Nanos::SECOND),
        Denial::Never { .. } => None,
    }
}

/// An `application/problem+json` body (RFC 9457).
fn problem(answer: &Answer, status: u16, context: Option<&RequestContext>) -> Vec<u8> {
    let mut body = Vec::with_capacity(PROBLEM_BYTES);
    // types, titles and the names of limits hold nothing that has to be escaped
    push(&mut body, &["{\"type\":\"", answer.problem_type(), "\",\"title\":\"", answer.title(), "\",\"status\":"]);
    push(&mut body, &[itoa::Buffer::new().format(status), ",\"detail\":"]);
    // writing to memory does not fail
    drop(serde_json::to_writer(&mut body, &answer.detail(context)));
    let violated = context.filter(|_| *answer == Answer::Limited).into_iter().flat_map(|context| {
        let limits = &context.active.ruleset.limits;
        let named = context.verdict.violated().map(|limit| &limits[limit.0]).filter(|limit| limit.is_visible());
        named.map(|limit| limit.name.as_str())
    });
    let (mut before, mut end) = (",\"violated-policies\":[\"", "}\n");
    for name in violated {
        push(&mut body, &[before, name, "\""]);
        (before, end) = (",\"", "]}\n");
    }
    push(&mut body, &[end]);
    body
}

fn push(body: &mut Vec<u8>, parts: &[&str]) {
    parts.iter().for_each(|part| body.extend_from_slice(part.as_bytes()));
}

/// Whether the client speaks gRPC, and expects the status in gRPC's own field.
pub fn is_grpc(headers: &Fields) -> bool {
    headers.get("content-type").is_some_and(|value| value.starts_with(b"application/grpc"))
}
