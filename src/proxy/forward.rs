//! What is changed on the way: the request's target and fields towards the upstream, the response's towards the client.

use std::net::IpAddr;

use http::{HeaderName, HeaderValue, Version, header};
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::proxy::Session;
use pingora::{Error, ErrorType};

use crate::proxy::context::Context;
use crate::proxy::respond;
use crate::ruleset::matcher::HeaderEdits;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const VIA: HeaderValue = HeaderValue::from_static("1.1 tollgate");
/// The same of a request that came over HTTP/2.
const VIA_2: HeaderValue = HeaderValue::from_static("2 tollgate");

/// Fields that concern one connection only and that pingora leaves in responses.
const HOP_BY_HOP: [&str; 5] = ["keep-alive", "proxy-connection", "proxy-authenticate", "te", "upgrade"];
/// What a `Connection` field cannot have taken away: the body would not be understood any more.
const FRAMING: [HeaderName; 2] = [header::CONTENT_LENGTH, header::TRANSFER_ENCODING];

/// Turns the client's request into the one that the upstream gets. `peer` is the other end of the connection.
///
/// Errors: the request has no target or no route; the head as the client sent it must not reach an upstream.
pub fn request(request: &mut RequestHeader, context: &Context, peer: Option<IpAddr>) -> pingora::Result<()> {
    let (Some(target), Some(route)) = (&context.target, context.matched()) else {
        return Err(Error::explain(ErrorType::InternalError, "a request without a target or a route is forwarded"));
    };
    let path = match &route.rewrite {
        Some(rewrite) => rewrite.apply(&target.path),
        None => target.path.clone(),
    };
    let target_line = match &target.query {
        Some(query) => format!("{path}?{query}"),
        None => path,
    };
    request.set_raw_path(target_line.as_bytes())?;
    request.insert_header(header::HOST, target.authority.as_str())?;
    forwarded(request, context, peer, &target.authority)?;
    mark(request, context)?;
    if context.tally.as_ref().is_some_and(|tally| tally.reads_body(&context.live.ruleset)) {
        // what is compressed cannot be read as it passes
        drop(request.remove_header(&header::ACCEPT_ENCODING));
    }
    edit(&route.request_headers, |name| drop(request.remove_header(&name)));
    for (name, value) in &route.request_headers.set {
        request.insert_header(name.clone(), value.clone())?;
    }
    Ok(())
}

/// What a client claims of earlier hops is passed on only from a trusted proxy.
fn forwarded(
    request: &mut RequestHeader,
    context: &Context,
    peer: Option<IpAddr>,
    authority: &str,
) -> pingora::Result<()> {
    let trusted = context.live.ruleset.client_address.is_trusted(peer);
    if !trusted {
        let claims: Vec<HeaderName> = request.headers.keys().filter(|name| claims_a_hop(name)).cloned().collect();
        claims.iter().for_each(|name| drop(request.remove_header(name)));
    }
    if let Some(peer) = peer {
        let mut chain: Vec<u8> = Vec::new();
        for line in request.headers.get_all(FORWARDED_FOR) {
            chain.extend_from_slice(line.as_bytes());
            chain.extend_from_slice(b", ");
        }
        chain.extend_from_slice(peer.to_canonical().to_string().as_bytes());
        request.insert_header(FORWARDED_FOR, chain)?;
    }
    if !trusted || !request.headers.contains_key(FORWARDED_PROTO) {
        let secured = context.connection.as_ref().is_some_and(|connection| connection.secured().is_some());
        request.insert_header(FORWARDED_PROTO, if secured { "https" } else { "http" })?;
    }
    if !trusted || !request.headers.contains_key(FORWARDED_HOST) {
        request.insert_header(FORWARDED_HOST, authority)?;
    }
    request.append_header(header::VIA, if context.is_stream { VIA_2 } else { VIA })?;
    Ok(())
}

/// Tells the upstream which limits the request is over that let it pass with a mark. Nobody else can say so.
fn mark(request: &mut RequestHeader, context: &Context) -> pingora::Result<()> {
    let ruleset = &context.live.ruleset;
    if ruleset.marks.is_empty() {
        return Ok(());
    }
    // in any spelling that servers of the CGI kind take for the same
    let spelled = |name: &HeaderName| name.as_str().replace('_', "-");
    let claims = |name: &&HeaderName| ruleset.marks.iter().any(|mark| spelled(mark) == spelled(name));
    let claims: Vec<HeaderName> = request.headers.keys().filter(claims).cloned().collect();
    claims.iter().for_each(|name| drop(request.remove_header(name)));
    for header in &ruleset.marks {
        let limits: Vec<&str> =
            context.verdict.marks(ruleset).filter(|(of, _)| *of == header).map(|(_, limit)| limit).collect();
        if !limits.is_empty() {
            request.insert_header(header.clone(), limits.join(", "))?;
        }
    }
    Ok(())
}

/// Whether a field says something of earlier hops.
fn claims_a_hop(name: &HeaderName) -> bool {
    name.as_str().starts_with("x-forwarded-") || matches!(name.as_str(), "forwarded" | "x-real-ip")
}

/// Turns the upstream's response into the one that the client gets.
pub fn response(response: &mut ResponseHeader, context: &Context) -> pingora::Result<()> {
    for name in nominated(response) {
        drop(response.remove_header(&name));
    }
    for name in HOP_BY_HOP {
        drop(response.remove_header(name));
    }
    let fields = respond::limit_fields(context, &response.headers);
    if let Some(exposed) = respond::cors::exposed_with(&response.headers, &fields, context) {
        response.append_header(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed)?;
    }
    for (name, value) in fields {
        response.insert_header(name, value)?;
    }
    response.append_header(header::VIA, VIA)?;
    if let Some(route) = context.matched() {
        edit(&route.response_headers, |name| drop(response.remove_header(&name)));
        for (name, value) in &route.response_headers.set {
            response.insert_header(name.clone(), value.clone())?;
        }
    }
    Ok(())
}

/// A client of HTTP/1.0 knows no chunks: to it a body without a length ends with the connection (RFC 9112, section 6.1).
pub fn frame_for_client(session: &mut Session, response: &mut ResponseHeader) {
    if session.req_header().version < Version::HTTP_11 && response.remove_header(&header::TRANSFER_ENCODING).is_some() {
        session.set_keepalive(None);
    }
}

/// Whether nothing but the end of the connection says where the body of `response` ends (RFC 9112, section 6.3).
pub fn ends_with_connection(response: &ResponseHeader) -> bool {
    !FRAMING.iter().any(|name| response.headers.contains_key(name))
}

/// The fields that the upstream says concern its own connection only (RFC 9110, section 7.6.1).
fn nominated(response: &ResponseHeader) -> Vec<HeaderName> {
    let lines = response.headers.get_all(header::CONNECTION).iter();
    let names = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    names
        .filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok())
        .filter(|name| !FRAMING.contains(name))
        .collect()
}

fn edit(edits: &HeaderEdits, mut remove: impl FnMut(HeaderName)) {
    edits.remove.iter().cloned().for_each(&mut remove);
}
