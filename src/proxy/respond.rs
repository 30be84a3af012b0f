//! The one place that turns verdicts and errors into HTTP: which status, which fields, which body.

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use pingora::http::ResponseHeader;
use pingora::proxy::Session;
use pingora::{Error, ErrorSource, ErrorType};
use serde::Serialize;

use crate::algorithm::Denial;
use crate::customers::TokenFault;
use crate::proxy::context::Context;
use crate::proxy::facts::Refused;
use crate::ruleset::verdict::Outcome;
use crate::units::Nanos;

mod accept;
mod challenge;
pub mod cors;
mod denial;
mod fields;

use denial::Wording;

const PROBLEM_JSON: &str = "application/problem+json";
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";
const REDUCED_CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/// How long a client may take to read an answer.
const ANSWER_TIME: Nanos = Nanos::from_secs(10);
/// Request bodies up to this size are read to their end after an early answer, so that the connection can go on.
const DRAINED: u64 = 64 << 10;
/// How long that may take.
const DRAIN_TIME: Nanos = Nanos::from_secs(1);

/// What tollgate itself answers instead of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The head is not a request that could be forwarded safely.
    Malformed(&'static str),
    /// The head took too long to arrive.
    HeadTimeout,
    /// The body stopped arriving.
    BodyTimeout,
    /// The host is not one for which the client was shown its certificate.
    Misdirected,
    /// The target is too long.
    TargetTooLong,
    /// There are too many header bytes or lines.
    HeadTooLarge(&'static str),
    /// The body is coded in a way that is not understood.
    CodingUnknown,
    /// The method is not served.
    MethodNotAllowed,
    /// No route matches.
    NoRoute,
    /// A part of a limit's key is missing: the credential.
    CredentialMissing,
    /// A part of a limit's key is missing: something else.
    KeyMissing(String),
    /// The credential is nobody's.
    CredentialUnknown,
    /// The credential is there more than once.
    CredentialRepeated,
    /// The token is not good.
    TokenRefused(TokenFault),
    /// The caller is kept out.
    AccessDenied,
    /// The credential was good once.
    CredentialExpired,
    /// The customer is suspended.
    Suspended,
    /// Nobody can tell whose the credential is.
    DirectoryAway,
    /// A limit that nodes share cannot be known, and lets nothing pass then.
    StoreAway,
    /// A limit denies.
    Limited,
    /// No node of the upstream is healthy.
    NoNode,
    /// The upstream could not be reached, or broke off before it answered.
    UpstreamFailed,
    /// The upstream did not answer in time.
    UpstreamTimeout,
    /// A fault of tollgate's own.
    Internal,
    /// A customer asked where it stands: this JSON.
    Usage(String),
}

/// The causes of answers that are given before any limit is asked: their lines in the access log hold no path.
pub const BEFORE_LIMITS: [&str; 19] = [
    Answer::Malformed("").cause(),
    Answer::Misdirected.cause(),
    Answer::HeadTimeout.cause(),
    Answer::TargetTooLong.cause(),
    Answer::HeadTooLarge("").cause(),
    Answer::CodingUnknown.cause(),
    Answer::MethodNotAllowed.cause(),
    Answer::NoRoute.cause(),
    Answer::CredentialMissing.cause(),
    Answer::CredentialUnknown.cause(),
    Answer::CredentialRepeated.cause(),
    Answer::CredentialExpired.cause(),
    Answer::TokenRefused(TokenFault::Unverified).cause(),
    Answer::Suspended.cause(),
    Answer::AccessDenied.cause(),
    "key_missing",
    Answer::DirectoryAway.cause(),
    Answer::NoNode.cause(),
    "usage",
];

impl Answer {
    /// The status, unless a limit sets another.
    pub const fn status(&self) -> u16 {
        match self {
            Self::Usage(_) => 200,
            Self::Malformed(_) | Self::KeyMissing(_) | Self::CredentialRepeated => 400,
            Self::Suspended | Self::AccessDenied | Self::TokenRefused(TokenFault::WithoutPlan) => 403,
            Self::CredentialMissing | Self::CredentialUnknown | Self::CredentialExpired | Self::TokenRefused(_) => 401,
            Self::NoRoute => 404,
            Self::MethodNotAllowed => 405,
            Self::HeadTimeout | Self::BodyTimeout => 408,
            Self::TargetTooLong => 414,
            Self::Misdirected => 421,
            Self::Limited => 429,
            Self::HeadTooLarge(_) => 431,
            Self::Internal => 500,
            Self::CodingUnknown => 501,
            Self::UpstreamFailed => 502,
            Self::NoNode | Self::DirectoryAway | Self::StoreAway => 503,
            Self::UpstreamTimeout => 504,
        }
    }

    /// A word for logs.
    pub const fn cause(&self) -> &'static str {
        match self {
            Self::Malformed(_) => "malformed",
            Self::HeadTimeout => "head_timeout",
            Self::BodyTimeout => "body_timeout",
            Self::Misdirected => "misdirected",
            Self::TargetTooLong => "target_too_long",
            Self::HeadTooLarge(_) => "head_too_large",
            Self::CodingUnknown => "coding_unknown",
            Self::MethodNotAllowed => "method_not_allowed",
            Self::NoRoute => "no_route",
            Self::CredentialMissing => "credential_missing",
            Self::KeyMissing(_) => "key_missing",
            Self::CredentialUnknown => "credential_unknown",
            Self::CredentialRepeated => "credential_repeated",
            Self::TokenRefused(_) => "token_refused",
            Self::AccessDenied => "access_denied",
            Self::CredentialExpired => "credential_expired",
            Self::Suspended => "suspended",
            Self::DirectoryAway => "directory_away",
            Self::StoreAway => "store_away",
            Self::Limited => "limited",
            Self::NoNode => "no_healthy_node",
            Self::UpstreamFailed => "upstream_failed",
            Self::UpstreamTimeout => "upstream_timeout",
            Self::Internal => "internal",
            Self::Usage(_) => "usage",
        }
    }

    /// The type of the problem; `about:blank` where the status says it all (RFC 9457).
    const fn problem_type(&self) -> &'static str {
        match self {
            Self::Limited => QUOTA_EXCEEDED,
            Self::NoNode | Self::DirectoryAway | Self::StoreAway => REDUCED_CAPACITY,
            _ => "about:blank",
        }
    }

    fn title(&self) -> &'static str {
        match self {
            Self::Limited => "Request quota exceeded",
            Self::NoNode | Self::DirectoryAway | Self::StoreAway => "Temporarily reduced capacity",
            other => StatusCode::from_u16(other.status())
                .ok()
                .and_then(|status| status.canonical_reason())
                .unwrap_or("Error"),
        }
    }

    /// What happened and what to do, for the developer at the other end.
    pub(super) fn detail(&self, context: Option<&Context>) -> String {
        match self {
            Self::Malformed(problem) | Self::HeadTooLarge(problem) => format!("{problem}."),
            Self::HeadTimeout => "The request's head did not arrive in time.".to_owned(),
            Self::BodyTimeout => "The request's body did not arrive in time.".to_owned(),
            Self::Misdirected => {
                "This connection was opened for another host; open one for this host, and name it (SNI).".to_owned()
            }
            Self::TargetTooLong => "The request target is too long.".to_owned(),
            Self::CodingUnknown => "Of transfer codings only chunked is understood.".to_owned(),
            Self::MethodNotAllowed => "This method is not served here.".to_owned(),
            Self::NoRoute => "Nothing is served at this host and path.".to_owned(),
            Self::CredentialMissing => challenge::request_for_credential(context),
            Self::KeyMissing(part) => format!("The request lacks its {part}."),
            Self::CredentialUnknown => "The credential is not known.".to_owned(),
            Self::CredentialRepeated => "The request carries its credential more than once.".to_owned(),
            Self::TokenRefused(fault) => challenge::sentence(*fault),
            Self::AccessDenied => "This caller is not let in here.".to_owned(),
            Self::CredentialExpired => "The credential has expired; a new one is needed.".to_owned(),
            Self::Suspended => "The customer is suspended; retrying does not help.".to_owned(),
            Self::DirectoryAway => "Credentials cannot be looked up at the moment; retry in a second.".to_owned(),
            Self::StoreAway => "A limit cannot be checked at the moment; retry in a second.".to_owned(),
            Self::Limited => match context.map(|context| context.verdict.outcome) {
                Some(Outcome::Deny(Denial::Later { retry_after })) => {
                    format!("Retry in {}.", seconds_in_words(retry_after))
                }
                Some(Outcome::Deny(Denial::Busy)) => {
                    "Too many requests are being worked on; retry when one of them has ended.".to_owned()
                }
                _ => "The request costs more than this quota can ever admit; retrying does not help.".to_owned(),
            },
            Self::NoNode => "The service behind this address is not available at the moment.".to_owned(),
            Self::UpstreamFailed => "The service behind this address could not be reached or broke off.".to_owned(),
            Self::UpstreamTimeout => "The service behind this address did not answer in time.".to_owned(),
            Self::Internal => "Something went wrong in the gateway.".to_owned(),
            Self::Usage(_) => "Where the customer stands.".to_owned(),
        }
    }

    /// The status for gRPC clients, who do not read HTTP's (gRPC's own mapping, with 8 for a limit).
    const fn grpc_status(&self) -> u16 {
        match self {
            Self::Limited => 8,
            Self::Suspended | Self::AccessDenied | Self::TokenRefused(TokenFault::WithoutPlan) => 7,
            Self::CredentialMissing | Self::CredentialUnknown | Self::CredentialExpired | Self::TokenRefused(_) => 16,
            Self::NoRoute | Self::MethodNotAllowed | Self::CodingUnknown => 12,
            Self::NoNode | Self::DirectoryAway | Self::StoreAway | Self::UpstreamFailed => 14,
            Self::UpstreamTimeout => 4,
            Self::Internal => 13,
            _ => 3,
        }
    }
}

/// The answer to an error that pingora reports; `None` where the client is gone.
pub fn answer_to(error: &Error) -> Option<Answer> {
    Some(match (error.esource(), error.etype()) {
        (_, ErrorType::HTTPStatus(503)) => Answer::NoNode,
        (ErrorSource::Downstream, ErrorType::InvalidHTTPHeader) => Answer::Malformed("the request cannot be read"),
        (ErrorSource::Downstream, ErrorType::Custom("InvalidChunk" | "InvalidTrailerEnd")) => {
            Answer::Malformed("the request's body cannot be read")
        }
        (ErrorSource::Downstream, ErrorType::ReadTimedout) => Answer::BodyTimeout,
        (ErrorSource::Downstream, ErrorType::ReadError) => refusal(error)?.into(),
        (ErrorSource::Downstream, _) => return None,
        (_, ErrorType::ConnectTimedout | ErrorType::ReadTimedout | ErrorType::WriteTimedout) => Answer::UpstreamTimeout,
        (ErrorSource::Upstream, _) => Answer::UpstreamFailed,
        (ErrorSource::Internal | ErrorSource::Unset, _) => Answer::Internal,
    })
}

/// Why the client's body was not read on, if that is why it could not be read.
fn refusal(error: &Error) -> Option<Refused> {
    let cause = error.root_cause();
    cause.downcast_ref::<std::io::Error>()?.get_ref()?.downcast_ref().copied()
}

/// Sends `answer` to the client. The connection stays usable where that is safe.
pub async fn send(session: &mut Session, context: &mut Context, answer: &Answer) -> pingora::Result<()> {
    let is_head = session.req_header().method == http::Method::HEAD;
    let Response { status, fields, body } = response(answer, Some(context), &session.req_header().headers);
    if let Some(connection) = &context.connection {
        connection.set_deadline(Some(context.gateway.clock.now().saturating_add(ANSWER_TIME)));
    }
    match answer {
        // Nobody knows for sure where the next request would begin.
        Answer::Malformed(_) | Answer::MethodNotAllowed => session.set_keepalive(None),
        _ => keep_connection(session),
    }
    context.gateway.close_if_leaving(session);
    context.answered = Some(answer.cause());
    context.status = Some(status.as_u16());
    let mut head = ResponseHeader::build(status, Some(fields.len() + 2))?;
    for (name, value) in fields {
        head.append_header(name, value)?;
    }
    head.insert_header(header::CONTENT_LENGTH, body.len())?;
    let without_body = is_head || body.is_empty();
    session.write_response_header(Box::new(head), without_body).await?;
    if !without_body {
        session.write_response_body(Some(body.into()), true).await?;
    }
    Ok(())
}

/// A small body is read to its end, so that the next request can follow; before a large one the connection closes.
fn keep_connection(session: &mut Session) {
    let headers = &session.req_header().headers;
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let expects = headers.contains_key(header::EXPECT);
    let small = !headers.contains_key(header::TRANSFER_ENCODING) && length.unwrap_or(0) <= DRAINED && !expects;
    if small {
        session.as_downstream_mut().set_close_on_response_before_downstream_finish(false);
        session.as_downstream_mut().set_total_drain_timeout(Some(DRAIN_TIME.to_duration()));
    }
}

/// The fields that tell where a client stands, for a response that an upstream gave.
pub fn limit_fields(context: &Context, theirs: &HeaderMap) -> Vec<(HeaderName, HeaderValue)> {
    fields::limit_fields(&context.live.ruleset, &context.verdict, theirs, context.charged_at)
}

/// `answer` in bytes, for a connection on which no request is known; closes it.
pub fn raw_answer(answer: &Answer) -> Vec<u8> {
    serialize(response(answer, None, &HeaderMap::new()))
}

/// `answer` in bytes, for the request of `context`; closes the connection.
pub fn raw_answer_with(answer: &Answer, context: &Context) -> Vec<u8> {
    serialize(response(answer, Some(context), &HeaderMap::new()))
}

struct Response {
    status: StatusCode,
    fields: Vec<(HeaderName, HeaderValue)>,
    body: Vec<u8>,
}

fn serialize(response: Response) -> Vec<u8> {
    let Response { status, fields, body } = response;
    let mut bytes =
        format!("HTTP/1.1 {} {}\r\n", status.as_str(), status.canonical_reason().unwrap_or_default()).into_bytes();
    for (name, value) in fields {
        bytes.extend_from_slice(name.as_str().as_bytes());
        bytes.extend_from_slice(b": ");
        bytes.extend_from_slice(value.as_bytes());
        bytes.extend_from_slice(b"\r\n");
    }
    bytes.extend_from_slice(format!("content-length: {}\r\nconnection: close\r\n\r\n", body.len()).as_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

/// `request` is the head of the request, as far as it is known.
fn response(answer: &Answer, context: Option<&Context>, request: &HeaderMap) -> Response {
    let mut response = own_site_response(answer, context, request);
    if let Some(context) = context {
        cors::add_to_answer(&mut response.fields, context);
    }
    response
}

/// The response as scripts of the site itself may read it.
fn own_site_response(answer: &Answer, context: Option<&Context>, request: &HeaderMap) -> Response {
    match (answer, context) {
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
            fields.extend(limit_fields(context, &HeaderMap::new()));
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

fn seconds_in_words(time: Nanos) -> String {
    match time.secs_ceil().max(1) {
        1 => "1 second".to_owned(),
        seconds => format!("{seconds} seconds"),
    }
}

/// Whether the client speaks gRPC, and reads its status where gRPC puts it.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}
