//! The changes to forwarded messages: to the request for the upstream, and to the response for the client.

use http::HeaderName;

use crate::fields::Fields;
use crate::gateway::request_context::RequestContext;
use crate::gateway::respond;
use crate::gateway::trace::{self, Trace};
use crate::http::head::{RequestHead, ResponseHead, Version};
use crate::http::upstream::OutgoingRequest;
use crate::ruleset::matcher::{HeaderEdits, Route};
use crate::ruleset::{CredentialSource, Ruleset};
use crate::units::Nanos;

const FORWARDED_FOR: &str = "x-forwarded-for";
const FORWARDED_PROTO: &str = "x-forwarded-proto";
const FORWARDED_HOST: &str = "x-forwarded-host";
/// About how many fields the gateway adds to a message, and how many bytes.
const ADDED_FIELDS: usize = 6;
const ADDED_BYTES: usize = 256;

/// The request for the upstream; `None` if no route was found, which does not happen at this point.
pub fn request(request: &RequestHead, context: &RequestContext) -> Option<OutgoingRequest> {
    let (target, route) = (context.target.as_ref()?, context.matched_route()?);
    let received = &request.fields;
    let mut outgoing = OutgoingRequest {
        target: Vec::with_capacity(request.target.len()),
        fields: Fields::with_capacity(received.len() + ADDED_FIELDS, received.as_bytes().len() + ADDED_BYTES),
    };
    match &route.rewrite {
        Some(rewrite) => outgoing.target.extend_from_slice(rewrite.apply(&target.path).as_bytes()),
        None => outgoing.target.extend_from_slice(target.path.as_bytes()),
    }
    if let Some(query) = &target.query {
        outgoing.target.push(b'?');
        outgoing.target.extend_from_slice(query.as_bytes());
    }
    // the gateway cannot read a compressed response as it passes
    let reads_body =
        context.cost_meter.as_ref().is_some_and(|cost_meter| cost_meter.reads_body(&context.active.ruleset));
    // if the request has a span, the upstream gets this span as the parent
    let span = context.trace.as_deref().and_then(Trace::traceparent);
    let begins_trace = context.trace.as_ref().is_some_and(|trace| trace.parent.is_none());
    let is_dropped = |name: &[u8]| {
        is(name, "host")
            || is(name, FORWARDED_FOR)
            || (reads_body && is(name, "accept-encoding"))
            // the gateway has already sent 100 (Continue) to the client
            || (context.awaited_body.is_some() && is(name, "expect"))
            || (context.is_preflight && is_kept_from_preflights(name, &context.active.ruleset))
            || is_mark_field(name, &context.active.ruleset.marks)
            || (span.is_some() && (is(name, trace::TRACEPARENT) || (begins_trace && is(name, trace::TRACESTATE))))
            || route.request_headers.concerns(name)
    };
    let fields = &mut outgoing.fields;
    push_unless_set(fields, route, "host", &target.authority);
    for field in received.end_to_end().filter(|field| !is_dropped(field.name)) {
        fields.push_field(field);
    }
    add_forwarded(request, context, route, fields);
    if let Some(span) = &span {
        push_unless_set(fields, route, trace::TRACEPARENT, span);
    }
    for (name, limits) in marks(context) {
        push_unless_set(fields, route, name.as_str(), limits);
    }
    for (name, value) in &route.request_headers.set {
        fields.push(name, value);
    }
    Some(outgoing)
}

/// Adds the fields that tell the upstream whom it serves, to those of trusted proxies.
fn add_forwarded(request: &RequestHead, context: &RequestContext, route: &Route, fields: &mut Fields) {
    let edits = &route.request_headers;
    if let Some(peer) = context.peer.address_text().filter(|_| !edits.concerns(FORWARDED_FOR.as_bytes())) {
        fields.push_with(FORWARDED_FOR, peer.len(), |chain| {
            for line in request.fields.get_all(FORWARDED_FOR) {
                chain.extend_from_slice(line);
                chain.extend_from_slice(b", ");
            }
            chain.extend_from_slice(peer.as_bytes());
        });
    } else if context.peer.address().is_none() {
        request.fields.get_all(FORWARDED_FOR).for_each(|line| push_unless_set(fields, route, FORWARDED_FOR, line));
    }
    if !request.fields.contains(FORWARDED_PROTO) {
        let proto = if context.peer.tls_info.is_some() { "https" } else { "http" };
        push_unless_set(fields, route, FORWARDED_PROTO, proto);
    }
    if !request.fields.contains(FORWARDED_HOST) {
        let authority = context.target.as_ref().map_or("", |target| &target.authority);
        push_unless_set(fields, route, FORWARDED_HOST, authority);
    }
    push_unless_set(fields, route, "via", via(request.version));
}

/// The gateway's own part of `Via`, for a message that it received in this version (RFC 9110, section 7.6.3).
const fn via(received: Version) -> &'static str {
    match received {
        Version::Http10 => "1.0 tollgate",
        Version::Http11 => "1.1 tollgate",
        Version::Http2 => "2 tollgate",
    }
}

/// Adds a field, unless the route removes or sets it: the route takes precedence.
fn push_unless_set(fields: &mut Fields, route: &Route, name: &str, value: impl AsRef<[u8]>) {
    if !route.request_headers.concerns(name.as_bytes()) {
        fields.push(name, value);
    }
}

/// Whether a preflight reaches the upstream without this field: a credential, which nobody has checked, or another method for
/// a request that is not charged. Browsers send none of them with preflights.
fn is_kept_from_preflights(name: &[u8], ruleset: &Ruleset) -> bool {
    const ALWAYS: [&str; 5] =
        ["authorization", "cookie", "x-http-method", "x-http-method-override", "x-method-override"];
    let sources = ruleset.customers.iter().flat_map(|customers| &customers.identify);
    let of_keys = sources.filter_map(CredentialSource::own_header).map(HeaderName::as_str);
    ALWAYS.into_iter().chain(of_keys).any(|kept| is(name, kept))
}

/// Whether the client sends a field that marks a request as over a limit: only the gateway may set it. The comparison covers
/// all spellings that CGI servers treat as the same name.
fn is_mark_field(name: &[u8], marks: &[HeaderName]) -> bool {
    let spelled = |byte: u8| if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
    marks.iter().any(|mark| name.iter().copied().map(spelled).eq(mark.as_str().bytes().map(spelled)))
}

/// The fields that tell the upstream which limits the request is over, if these limits let it pass with a mark.
pub fn marks(context: &RequestContext) -> impl Iterator<Item = (&HeaderName, String)> {
    let ruleset = &context.active.ruleset;
    ruleset.marks.iter().filter_map(move |header| {
        let marks = context.verdict.marks(ruleset).filter(|(of, _)| *of == header);
        let limits: Vec<&str> = marks.map(|(_, limit)| limit).collect();
        (!limits.is_empty()).then(|| (header, limits.join(", ")))
    })
}

/// The fields of the response to the client; the upstream's `response` came at `now`.
pub fn response(response: &ResponseHead, context: &RequestContext, now: Nanos) -> Fields {
    let received = &response.fields;
    let limits = respond::limit_fields(context, received, now);
    let edits = context.matched_route().map(|route| &route.response_headers).filter(|edits| !edits.is_empty());
    let is_replaced = |name: &[u8]| limits.as_ref().is_some_and(|limits| limits.replaces(name));
    let mut fields = Fields::with_capacity(received.len() + ADDED_FIELDS, received.as_bytes().len() + ADDED_BYTES);
    for field in received.end_to_end().filter(|field| !is_replaced(field.name)) {
        fields.push_field(field);
    }
    let first_own = fields.len();
    if let Some(limits) = limits {
        limits.add_to(&mut fields);
    }
    respond::cors::add_exposed(&mut fields, first_own, received, context);
    fields.push("via", via(response.version));
    match edits {
        Some(edits) => edited(&fields, edits),
        None => fields,
    }
}

/// The fields as a route edits them.
pub fn edited(fields: &Fields, edits: &HeaderEdits) -> Fields {
    let mut edited = Fields::default();
    fields.iter().filter(|field| !edits.concerns(field.name)).for_each(|field| edited.push_field(field));
    edits.set.iter().for_each(|(name, value)| edited.push(name, value));
    edited
}

fn is(name: &[u8], other: &str) -> bool {
    name.len() == other.len() && name.eq_ignore_ascii_case(other.as_bytes())
}
