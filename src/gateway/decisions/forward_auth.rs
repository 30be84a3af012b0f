//! Subrequests of proxies that ask over HTTP: Traefik's ForwardAuth, Caddy's `forward_auth`, APISIX's `forward-auth` and
//! nginx's `auth_request`.

use http::Method;

use super::admit_by_route;
use crate::gateway::awaited_body::BodySource;
use crate::gateway::facts::Head;
use crate::gateway::forward;
use crate::gateway::request_context::RequestContext;
use crate::gateway::respond::{self, Answer};
use crate::http::head::RequestHead;
use crate::http::service::Response;
use crate::ruleset::ListenerService;

const METHOD: &str = "x-forwarded-method";
const URI: &str = "x-forwarded-uri";
const HOST: &str = "x-forwarded-host";
const PROTO: &str = "x-forwarded-proto";
/// The field with the status of a response that is sent with another status.
const STATUS: &str = "x-tollgate-status";

/// Answers a subrequest.
pub(super) async fn decide(context: &mut RequestContext, subrequest: &RequestHead) -> Box<Response> {
    let decided = match original(subrequest) {
        Ok((request, secure)) => {
            let head = Head::of_question(&request, context.peer.address(), secure);
            admit_by_route(context, &head, BodySource::Unavailable).await
        }
        Err(answer) => Err(context.answer_failure(&answer)),
    };
    let mut response = decided.err().unwrap_or_else(|| Box::new(admitted(context)));
    // the end of the subrequest is known, even if the request that it describes is malformed
    response.closes = false;
    response
}

/// `response` with the status that the listener `serves` in place of those that are not 2xx.
pub(in crate::gateway) fn with_denied_status(mut response: Box<Response>, serves: ListenerService) -> Box<Response> {
    if let ListenerService::ForwardAuth { denied_status: Some(status) } = serves
        && !(200..300).contains(&response.status)
    {
        response.fields.push_number(STATUS, response.status.into());
        response.status = status;
    }
    response
}

fn admitted(context: &RequestContext) -> Response {
    let mut fields = respond::admitted_fields(context);
    forward::marks(context).for_each(|(name, limits)| fields.push(name, limits));
    Response { status: 200, fields, ..Response::default() }
}

/// The request that a subrequest is about, and whether it came over TLS.
fn original(subrequest: &RequestHead) -> Result<(RequestHead, bool), Answer> {
    const NO_METHOD: &str = "the subrequest does not say the method of the request once, in X-Forwarded-Method";
    const NO_URI: &str = "the subrequest does not say the target of the request once, in X-Forwarded-Uri";
    const NO_HOST: &str = "the subrequest does not say the host of the request once, in X-Forwarded-Host";
    let once = |name, missing| {
        let mut values = subrequest.fields.get_all(name);
        values.next().filter(|_| values.next().is_none()).ok_or(Answer::Malformed(missing))
    };
    let method = Method::from_bytes(once(METHOD, NO_METHOD)?).map_err(|_| Answer::Malformed(NO_METHOD))?;
    let (target, host) = (once(URI, NO_URI)?.to_vec(), once(HOST, NO_HOST)?);
    let mut request = RequestHead { method: method.as_str().to_owned(), target, ..RequestHead::default() };
    request.fields.push("host", host);
    let is_replaced =
        |name: &[u8]| [METHOD, URI, HOST, "host"].iter().any(|of| name.eq_ignore_ascii_case(of.as_bytes()));
    for field in subrequest.fields.iter().filter(|field| !is_replaced(field.name)) {
        request.fields.push_field(field);
    }
    let secure = subrequest.fields.get(PROTO).is_some_and(|proto| proto.eq_ignore_ascii_case(b"https"));
    Ok((request, secure))
}
