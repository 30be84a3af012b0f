//! Envoy's external authorization, `envoy.service.auth.v3`: a call holds a request with its fields, which takes a route.

use std::collections::HashMap;
use std::net::IpAddr;

use http::{HeaderName, Method};
use prost::Message;

use super::admit_by_route;
use super::grpc::{self, HeaderValue, HeaderValueOption};
use crate::fields::Fields;
use crate::gateway::awaited_body::BodySource;
use crate::gateway::facts::Head;
use crate::gateway::forward;
use crate::gateway::request_context::RequestContext;
use crate::gateway::respond::{self, Answer};
use crate::http::head::RequestHead;
use crate::http::service::Response;
use crate::ruleset::is_dropped;
use crate::ruleset::matcher::HeaderEdits;

const CHECK: &str = "/envoy.service.auth.v3.Authorization/Check";
/// `google.rpc.Code.PERMISSION_DENIED`: any code but 0 is a denial; the HTTP status of the denial is a separate field.
const PERMISSION_DENIED: i32 = 7;

/// The field that says whether Envoy sent only the beginning of the body.
const PARTIAL_BODY: &str = "x-envoy-auth-partial-body";

/// Answers a call.
pub(super) async fn decide(context: &mut RequestContext, head: &RequestHead, body: &[u8]) -> Result<Response, Answer> {
    let question: CheckRequest = grpc::decode_request(head, body, CHECK)?;
    let Original { mut request, address, secure, body } = original(question)?;
    let body = match (request.fields.get(PARTIAL_BODY), &*body) {
        // Envoy sets this field if it is configured to send bodies
        (Some(b"false"), body) => BodySource::Buffered(body),
        (None, body @ [_, ..]) => BodySource::Buffered(body),
        // nor does it set the field if there is no body
        (None, []) if has_no_body(&request) => BodySource::Buffered(&[]),
        (None, []) | (Some(_), _) => BodySource::Unavailable,
    };
    if let BodySource::Buffered(body) = body
        && !request.fields.contains("content-length")
    {
        // limits count the bytes of a body that came without its length, too
        request.fields.push_number("content-length", u64::try_from(body.len()).unwrap_or(u64::MAX));
    }
    let reply = match admit_by_route(context, &Head::of_question(&request, address, secure), body).await {
        Ok(()) => admitted(context),
        Err(denied) => CheckResponse {
            status: Some(Status { code: PERMISSION_DENIED }),
            http_response: Some(HttpResponse::Denied(DeniedHttpResponse {
                status: Some(HttpStatus { code: denied.status.into() }),
                headers: HeaderValueOption::all(&denied.fields),
                body: String::from_utf8_lossy(&denied.body).into_owned(),
            })),
        },
    };
    Ok(grpc::encode_response(&reply))
}

/// Whether a request has no body, by its head. Envoy removes `transfer-encoding` before it asks, so the head tells no body
/// of unknown length from none, in any version of HTTP; with these methods a body has no meaning (RFC 9110, section 9.3).
fn has_no_body(request: &RequestHead) -> bool {
    match request.fields.get("content-length") {
        Some(length) => length == b"0",
        None => matches!(&*request.method, "GET" | "HEAD" | "DELETE" | "OPTIONS"),
    }
}

fn admitted(context: &RequestContext) -> CheckResponse {
    let unchanged = HeaderEdits::default();
    let edits = context.matched_route().map(|route| (&route.request_headers, &route.response_headers));
    let (request, response) = edits.unwrap_or((&unchanged, &unchanged));
    let mut set = Fields::default();
    forward::marks(context).for_each(|(name, limits)| set.push(name, limits));
    let set = forward::edited(&set, request);
    // Envoy removes marks that the client set itself
    let removed = context.active.ruleset.marks.iter().chain(&request.remove);
    let removed = removed.filter(|name| !set.contains(name.as_str()));
    let ok = OkHttpResponse {
        headers_to_remove: removed.map(|name| name.as_str().to_owned()).collect(),
        headers: HeaderValueOption::all(&set),
        response_headers_to_add: HeaderValueOption::all(&forward::edited(&respond::admitted_fields(context), response)),
    };
    CheckResponse { status: Some(Status { code: 0 }), http_response: Some(HttpResponse::Ok(ok)) }
}

/// The request that is asked about.
struct Original {
    request: RequestHead,
    /// The address of its sender.
    address: Option<IpAddr>,
    /// Whether it came over TLS.
    secure: bool,
    /// The part of its body that Envoy sent along.
    body: Vec<u8>,
}

fn original(question: CheckRequest) -> Result<Original, Answer> {
    const INCOMPLETE: Answer = Answer::Malformed("the question holds no HTTP request, or not where it came from");
    let attributes = question.attributes.ok_or(INCOMPLETE)?;
    let http = attributes.request.and_then(|request| request.http).ok_or(INCOMPLETE)?;
    let address = match attributes.source.and_then(|source| source.address?.address).ok_or(INCOMPLETE)? {
        Address::Socket(socket) => Some(socket.address.parse().map_err(|_| INCOMPLETE)?),
        Address::Pipe(_) => None,
    };
    let method = Method::from_bytes(http.method.as_bytes()).map_err(|_| INCOMPLETE)?;
    let mut request =
        RequestHead { method: method.as_str().to_owned(), target: http.path.into_bytes(), ..RequestHead::default() };
    push(&mut request, "host", http.host.as_bytes())?;
    for (name, value) in &http.headers {
        push_unless_host(&mut request, name, value.as_bytes())?;
    }
    for HeaderValue { key, value, raw_value } in http.header_map.iter().flat_map(|map| &map.headers) {
        let value = if raw_value.is_empty() { value.as_bytes() } else { raw_value };
        push_unless_host(&mut request, key, value)?;
    }
    let body = if http.raw_body.is_empty() { http.body.into_bytes() } else { http.raw_body };
    Ok(Original { request, address, secure: http.scheme == "https", body })
}

/// Adds a field, unless its content is known already: HTTP/2 pseudo-header fields (with a colon), and the host.
fn push_unless_host(request: &mut RequestHead, name: &str, value: &[u8]) -> Result<(), Answer> {
    match name.starts_with(':') || name == "host" {
        true => Ok(()),
        false => push(request, name, value),
    }
}

fn push(request: &mut RequestHead, name: &str, value: &[u8]) -> Result<(), Answer> {
    const SPOILT: Answer = Answer::Malformed("the question holds a header field that no request may have");
    let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| SPOILT)?;
    let value = http::HeaderValue::from_bytes(value).map_err(|_| SPOILT)?;
    if !is_dropped(&name) {
        request.fields.push(&name, value.as_bytes().trim_ascii());
    }
    Ok(())
}

// === the messages, with the fields that are read or written ===

#[derive(Clone, PartialEq, Message)]
struct CheckRequest {
    #[prost(message, optional, tag = "1")]
    attributes: Option<AttributeContext>,
}

#[derive(Clone, PartialEq, Message)]
struct AttributeContext {
    #[prost(message, optional, tag = "1")]
    source: Option<Peer>,
    #[prost(message, optional, tag = "4")]
    request: Option<Request>,
}

#[derive(Clone, PartialEq, Message)]
struct Peer {
    #[prost(message, optional, tag = "1")]
    address: Option<PeerAddress>,
}

#[derive(Clone, PartialEq, Message)]
struct PeerAddress {
    #[prost(oneof = "Address", tags = "1, 2")]
    address: Option<Address>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Address {
    #[prost(message, tag = "1")]
    Socket(SocketAddress),
    #[prost(message, tag = "2")]
    Pipe(Pipe),
}

#[derive(Clone, PartialEq, Message)]
struct SocketAddress {
    #[prost(string, tag = "2")]
    address: String,
}

#[derive(Clone, PartialEq, Message)]
struct Pipe {}

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(message, optional, tag = "2")]
    http: Option<HttpRequest>,
}

#[derive(Clone, PartialEq, Message)]
struct HttpRequest {
    #[prost(string, tag = "2")]
    method: String,
    #[prost(map = "string, string", tag = "3")]
    headers: HashMap<String, String>,
    /// The path with the query.
    #[prost(string, tag = "4")]
    path: String,
    #[prost(string, tag = "5")]
    host: String,
    #[prost(string, tag = "6")]
    scheme: String,
    #[prost(string, tag = "11")]
    body: String,
    /// In place of `body` if Envoy is configured to pack bodies as bytes.
    #[prost(bytes = "vec", tag = "12")]
    raw_body: Vec<u8>,
    /// In place of `headers` if Envoy is configured to send them as they came.
    #[prost(message, optional, tag = "13")]
    header_map: Option<HeaderMap>,
}

#[derive(Clone, PartialEq, Message)]
struct HeaderMap {
    #[prost(message, repeated, tag = "1")]
    headers: Vec<HeaderValue>,
}

#[derive(Clone, PartialEq, Message)]
struct CheckResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<Status>,
    #[prost(oneof = "HttpResponse", tags = "2, 3")]
    http_response: Option<HttpResponse>,
}

#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(int32, tag = "1")]
    code: i32,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum HttpResponse {
    #[prost(message, tag = "2")]
    Denied(DeniedHttpResponse),
    #[prost(message, tag = "3")]
    Ok(OkHttpResponse),
}

#[derive(Clone, PartialEq, Message)]
struct DeniedHttpResponse {
    #[prost(message, optional, tag = "1")]
    status: Option<HttpStatus>,
    #[prost(message, repeated, tag = "2")]
    headers: Vec<HeaderValueOption>,
    #[prost(string, tag = "3")]
    body: String,
}

#[derive(Clone, PartialEq, Message)]
struct HttpStatus {
    #[prost(int32, tag = "1")]
    code: i32,
}

#[derive(Clone, PartialEq, Message)]
struct OkHttpResponse {
    /// The fields for the upstream.
    #[prost(message, repeated, tag = "2")]
    headers: Vec<HeaderValueOption>,
    #[prost(string, repeated, tag = "5")]
    headers_to_remove: Vec<String>,
    /// The fields for the client.
    #[prost(message, repeated, tag = "6")]
    response_headers_to_add: Vec<HeaderValueOption>,
}
