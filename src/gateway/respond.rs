//! The one place that turns verdicts and errors into HTTP responses: status, fields and body.

use std::sync::Arc;

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};

use crate::algorithm::{Decision, Denial};
use crate::fields::Fields;
use crate::gateway::request_context::{Admission, GRPC, RequestContext};
use crate::http::service::Response;
use crate::units::Nanos;

mod accept;
mod answer;
mod challenge;
pub mod cors;
mod denial;
mod fields;

pub use answer::{Answer, CALLER_REFUSAL_CAUSES, CAUSES_BEFORE_LIMITS};
pub(super) use answer::{CREDENTIAL_EXPIRED, SUSPENDED};

use answer::retry_in;
use denial::ConfiguredDenial;
pub use fields::LimitFields;

const PROBLEM_JSON: &str = "application/problem+json";
/// The content types of gRPC-web, each before those that it begins with.
const GRPC_WEB: [&str; 6] = [
    "application/grpc-web-text+proto",
    "application/grpc-web-text",
    "application/grpc-web+proto",
    "application/grpc-web+json",
    "application/grpc-web+thrift",
    "application/grpc-web",
];
const GRPC_STATUS: &str = "grpc-status";
const GRPC_MESSAGE: &str = "grpc-message";
/// The number of fields in most responses of the gateway, and their bytes.
const OWN_FIELDS: usize = 8;
const OWN_BYTES: usize = 512;
/// The length of most problem bodies, in bytes.
const PROBLEM_BYTES: usize = 384;

/// The response `answer` to the request of `context`, which records it. `request` holds the fields of the request, as far as
/// they are known.
pub fn answer(context: &mut RequestContext, answer: &Answer, request: &Fields) -> Box<Response> {
    if context.active.ruleset.dialects.retry_after_jitter.is_some() {
        context.own_answer.retry_roll = rand::random();
    }
    let response = Box::new(response(answer, Some(context), request));
    context.own_answer.cause.get_or_insert(answer.cause());
    if let Some(customer) = answer.refused_customer() {
        context.customer = Some(Arc::clone(customer));
    }
    context.status.get_or_insert(response.status);
    // a gRPC client is sent 200, and the meaning in a field of its own
    let meant = if context.grpc_type.is_some() { answer.status() } else { response.status };
    context.own_answer.status.get_or_insert(meant);
    response
}

/// The response `answer` if nothing is known of the request.
pub fn without_context(answer: &Answer) -> Response {
    response(answer, None, &Fields::default())
}

/// The fields that tell the client its limits, for a response of an upstream that came at `now` with `upstream_fields`.
pub fn limit_fields<'c>(context: &'c RequestContext, upstream_fields: &Fields, now: Nanos) -> Option<LimitFields<'c>> {
    LimitFields::new(context, Some(upstream_fields), now)
}

/// The fields that tell the client its limits, for a request that another proxy forwards.
pub fn admitted_fields(context: &RequestContext) -> Fields {
    let mut fields = Fields::default();
    let now = match context.admission {
        // it may have waited for its turn
        Admission::Passed { at } => at,
        _ => context.measured_at(),
    };
    if let Some(limits) = LimitFields::new(context, None, now) {
        limits.add_to(&mut fields);
    }
    fields
}

/// The response `answer`; `request` holds the fields of the request, as far as they are known.
fn response(answer: &Answer, context: Option<&RequestContext>, request: &Fields) -> Response {
    let mut response = response_without_cors(answer, context, request);
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
fn response_without_cors(answer: &Answer, context: Option<&RequestContext>, request: &Fields) -> Response {
    match (answer, context) {
        (Answer::Preflight, _) => Response { status: 204, ..Response::default() },
        (Answer::Usage(report), _) => {
            let mut fields = Fields::default();
            fields.push("cache-control", "no-store");
            fields.push("content-type", "application/json");
            Response { status: 200, fields, body: report.clone().into_bytes(), ..Response::default() }
        }
        (_, context) => match context.and_then(|context| Some((context, context.grpc_type?))) {
            Some((context, content_type)) => grpc_response(answer, context, content_type),
            None => http_response(answer, context, request),
        },
    }
}

fn http_response(answer: &Answer, context: Option<&RequestContext>, request: &Fields) -> Response {
    let configured = configured(answer, context);
    let status = configured.as_ref().and_then(|configured| configured.settings.status).unwrap_or(answer.status());
    let (content_type, body) = match configured.as_ref().and_then(|configured| configured.body(status, request)) {
        Some(rendered) => (rendered.content_type, rendered.text.into_bytes()),
        None => (PROBLEM_JSON, problem(answer, status, context)),
    };
    let mut fields = common_fields(answer, context);
    fields.push("content-type", content_type);
    if let Some(configured) = configured {
        fields = configured.replace_fields(fields, status, &[]);
        if configured.varies() {
            fields.push("vary", "accept");
        }
    }
    Response { status, fields, body, ..Response::default() }
}

/// The parts of `answer` that a limit or a route sets.
fn configured<'a>(answer: &Answer, context: Option<&'a RequestContext>) -> Option<ConfiguredDenial<'a>> {
    context.filter(|_| *answer == Answer::Limited).and_then(ConfiguredDenial::of)
}

/// A trailers-only response (gRPC over HTTP): everything in the head.
fn grpc_response(answer: &Answer, context: &RequestContext, content_type: &str) -> Response {
    /// The characters that gRPC's `Percent-Encoded` escapes (PROTOCOL-HTTP2).
    const ENCODED: &AsciiSet = &CONTROLS.add(b'%');
    let configured = configured(answer, Some(context));
    let set = configured.as_ref().and_then(|configured| configured.settings.grpc_status);
    let mut fields = common_fields(answer, Some(context));
    let message = format!("{}: {}", answer.title(), answer.detail(Some(context)));
    fields.push("content-type", content_type);
    fields.push_number(GRPC_STATUS, set.unwrap_or(answer.grpc_status()).into());
    fields.push(GRPC_MESSAGE, utf8_percent_encode(&message, ENCODED).to_string());
    if let Some(configured) = configured {
        let status = configured.settings.status.unwrap_or(answer.status());
        fields = configured.replace_fields(fields, status, &["content-type", GRPC_STATUS, GRPC_MESSAGE]);
    }
    Response { status: 200, fields, ..Response::default() }
}

fn common_fields(answer: &Answer, context: Option<&RequestContext>) -> Fields {
    let mut fields = Fields::with_capacity(OWN_FIELDS, OWN_BYTES);
    fields.push("cache-control", "no-store");
    if let Some(context) = context {
        // a denial tells what was left when the limits decided
        let is_at_once = *answer == Answer::Limited || context.charges.is_empty();
        let now = if is_at_once { context.measured_at() } else { context.gateway.time().now() };
        // the headroom of a limit that could not be checked, or whose charge is refunded, is unknown
        if !matches!(answer, Answer::StoreUnavailable | Answer::KeyElsewhere(_))
            && let Some(limits) = LimitFields::new(context, None, now)
        {
            limits.add_to(&mut fields);
        }
        if *answer == Answer::Limited
            && let Some(time) = spread_retry_after(context)
        {
            fields.push_number("retry-after", time.secs_ceil());
        }
    }
    if matches!(answer, Answer::DirectoryUnavailable | Answer::StoreUnavailable | Answer::UpstreamFull) {
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

/// The time after which the client of a denied request is told to retry: the same in all parts of the answer, and later
/// than necessary where the configuration spreads retries.
fn spread_retry_after(context: &RequestContext) -> Option<Nanos> {
    let Decision::Deny(denial) = context.verdict.outcome else { return None };
    let time = retry_after(denial)?;
    let jitter = context.active.ruleset.dialects.retry_after_jitter;
    Some(jitter.map_or(time, |jitter| jitter.spread(time, context.own_answer.retry_roll)))
}

/// An `application/problem+json` body (RFC 9457).
fn problem(answer: &Answer, status: u16, context: Option<&RequestContext>) -> Vec<u8> {
    let mut body = Vec::with_capacity(PROBLEM_BYTES);
    // types, titles and the names of limits hold nothing that has to be escaped
    push(&mut body, &["{\"type\":\"", answer.problem_type(), "\",\"title\":\"", answer.title(), "\",\"status\":"]);
    push(&mut body, &[itoa::Buffer::new().format(status), ",\"detail\":"]);
    match context.map(|context| (context.verdict.outcome, context.verdict.banned, spread_retry_after(context))) {
        // the most frequent detail is written without a copy
        Some((Decision::Deny(Denial::Later { .. }), false, Some(time))) if *answer == Answer::Limited => {
            let mut digits = itoa::Buffer::new();
            let [before, seconds, after] = retry_in(time, &mut digits);
            push(&mut body, &["\"", before, seconds, after, "\""]);
        }
        // writing to memory does not fail
        _ => drop(serde_json::to_writer(&mut body, &answer.detail(context))),
    }
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

/// The content type in which a client that speaks gRPC is answered: that of its request under gRPC-web. Such a client expects
/// the status in gRPC's own field. `None` for other clients.
pub fn grpc_type(headers: &Fields) -> Option<&'static str> {
    let asked = headers.get("content-type").filter(|value| value.starts_with(GRPC.as_bytes()))?;
    Some(GRPC_WEB.into_iter().find(|known| asked.starts_with(known.as_bytes())).unwrap_or(GRPC))
}
