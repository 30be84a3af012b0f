//! The one place that turns verdicts and errors into HTTP: which status, which fields, which body.

use ::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use serde::Serialize;

use crate::algorithm::Denial;
use crate::http;
use crate::http::fields::Fields;
use crate::proxy::context::Context;
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

const PROBLEM_JSON: &str = "application/problem+json";

/// `answer` for the request of `context`, which notes that it was given. `request` is the head of the request, as far as
/// it is known.
pub fn answer(context: &mut Context, answer: &Answer, request: &HeaderMap) -> http::service::Response {
    let response = response(answer, Some(context), request);
    context.answered.get_or_insert(answer.cause());
    context.status.get_or_insert(response.status.as_u16());
    packed(answer, response)
}

/// `answer` where nothing is known of the request.
pub fn bare(answer: &Answer) -> http::service::Response {
    packed(answer, response(answer, None, &HeaderMap::new()))
}

fn packed(answer: &Answer, Response { status, fields: all, body }: Response) -> http::service::Response {
    let mut fields = Fields::default();
    all.iter().for_each(|(name, value)| fields.push(name, value));
    // nobody knows for sure where the next request would begin
    let closes = matches!(
        answer,
        Answer::Malformed(_)
            | Answer::MethodNotAllowed { .. }
            | Answer::HeadTimeout
            | Answer::BodyTimeout
            | Answer::CodingUnknown
            | Answer::Internal
    );
    http::service::Response { status: status.as_u16(), fields, body, closes }
}

/// The fields that tell where a client stands, for a response that an upstream gave.
pub fn limit_fields(context: &Context, theirs: &Fields) -> Vec<(HeaderName, HeaderValue)> {
    let charged_at = context.gateway.clock.wall_at(context.charged_at);
    fields::limit_fields(&context.live.ruleset, &context.verdict, theirs, charged_at)
}

struct Response {
    status: StatusCode,
    fields: Vec<(HeaderName, HeaderValue)>,
    body: Vec<u8>,
}

/// `request` is the head of the request, as far as it is known.
fn response(answer: &Answer, context: Option<&Context>, request: &HeaderMap) -> Response {
    let mut response = own_site_response(answer, context, request);
    if let Some(context) = context {
        cors::add_to_answer(&mut response.fields, context, answer, request);
    }
    response
}

/// The response as scripts of the site itself may read it.
fn own_site_response(answer: &Answer, context: Option<&Context>, request: &HeaderMap) -> Response {
    match (answer, context) {
        (Answer::Preflight, _) => Response { status: StatusCode::NO_CONTENT, fields: Vec::new(), body: Vec::new() },
        (Answer::Usage(report), _) => {
            let fields = vec![
                (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
                (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
            ];
            Response { status: StatusCode::OK, fields, body: report.clone().into_bytes() }
        }
        (_, Some(context)) if context.is_grpc => grpc_response(answer, context),
        (_, context) => http_response(answer, context, request),
    }
}

fn http_response(answer: &Answer, context: Option<&Context>, request: &HeaderMap) -> Response {
    let wording = wording(answer, context);
    let status = wording.as_ref().and_then(|wording| wording.set.status).unwrap_or(answer.status());
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut fields = common_fields(answer, context);
    let own = wording.as_ref().map(|wording| wording.fields(status)).unwrap_or_default();
    let (content_type, body) = match wording.as_ref().and_then(|wording| wording.body(status, request)) {
        Some(worded) => (worded.content_type, worded.text.into_bytes()),
        None => (PROBLEM_JSON, problem(answer, status, context)),
    };
    if !own.iter().any(|(name, _)| *name == header::CONTENT_TYPE) {
        fields.push((header::CONTENT_TYPE, HeaderValue::from_static(content_type)));
    }
    fields.extend(wording.filter(Wording::varies).map(|_| denial::VARY));
    fields.extend(own);
    Response { status, fields, body }
}

/// What a limit or a route sets of `answer`.
fn wording<'a>(answer: &Answer, context: Option<&'a Context>) -> Option<Wording<'a>> {
    context.filter(|_| *answer == Answer::Limited).and_then(Wording::of)
}

/// A trailers-only response (gRPC over HTTP): everything in the head.
fn grpc_response(answer: &Answer, context: &Context) -> Response {
    /// What gRPC's `Percent-Encoded` leaves out (PROTOCOL-HTTP2).
    const ENCODED: &AsciiSet = &CONTROLS.add(b'%');
    let mut fields = common_fields(answer, Some(context));
    let message = format!("{}: {}", answer.title(), answer.detail(Some(context)));
    fields.push((header::CONTENT_TYPE, HeaderValue::from_static("application/grpc")));
    let set = wording(answer, Some(context)).and_then(|wording| wording.set.grpc_status);
    let status = set.unwrap_or(answer.grpc_status());
    fields.push((HeaderName::from_static("grpc-status"), HeaderValue::from(status)));
    if let Ok(message) = HeaderValue::try_from(utf8_percent_encode(&message, ENCODED).to_string()) {
        fields.push((HeaderName::from_static("grpc-message"), message));
    }
    Response { status: StatusCode::OK, fields, body: Vec::new() }
}

fn common_fields(answer: &Answer, context: Option<&Context>) -> Vec<(HeaderName, HeaderValue)> {
    let mut fields = vec![(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))];
    if let Some(context) = context {
        // where a limit could not be asked, nobody knows what is left
        if !matches!(answer, Answer::StoreAway) {
            fields.extend(limit_fields(context, &Fields::default()));
        }
        if let (Answer::Limited, Outcome::Deny(denial)) = (answer, context.verdict.outcome) {
            let time = retry_after(denial).map(|time| match context.live.ruleset.dialects.retry_after_jitter {
                Some(jitter) => jitter.spread(time, rand::random()),
                None => time,
            });
            fields.extend(time.map(|time| (header::RETRY_AFTER, HeaderValue::from(time.secs_ceil()))));
        }
    }
    if matches!(answer, Answer::DirectoryAway | Answer::StoreAway) {
        fields.push((header::RETRY_AFTER, HeaderValue::from(1)));
    }
    if let Answer::MethodNotAllowed { allow } = answer {
        fields.push((header::ALLOW, HeaderValue::from_static(allow)));
    }
    fields.extend(challenge::challenges(answer, context));
    fields
}

/// Never 0; a second where nobody knows, nothing where no wait helps.
fn retry_after(denial: Denial) -> Option<Nanos> {
    match denial {
        Denial::Later { retry_after } => Some(retry_after.max(Nanos::new(1))),
        Denial::Busy => Some(Nanos::SECOND),
        Denial::Never { .. } => None,
    }
}

/// An `application/problem+json` body (RFC 9457).
#[derive(Serialize)]
#[serde(rename_all = "kebab-case")]
struct Problem<'a> {
    r#type: &'a str,
    title: &'a str,
    status: u16,
    detail: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    violated_policies: Vec<&'a str>,
}

fn problem(answer: &Answer, status: StatusCode, context: Option<&Context>) -> Vec<u8> {
    let violated_policies = match (answer, context) {
        (Answer::Limited, Some(context)) => {
            let limits = &context.live.ruleset.limits;
            context.verdict.violated().map(|limit| limits[limit.0].name.as_str()).collect()
        }
        _ => Vec::new(),
    };
    let problem = Problem {
        r#type: answer.problem_type(),
        title: answer.title(),
        status: status.as_u16(),
        detail: &answer.detail(context),
        violated_policies,
    };
    let mut body = serde_json::to_vec(&problem).unwrap_or_default();
    body.push(b'\n');
    body
}

/// Whether the client speaks gRPC, and reads its status where gRPC puts it.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}
