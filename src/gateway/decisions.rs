//! Decides for other proxies on requests that they handle, by the same rules as for requests that pass through this gateway.

mod ext_authz;
mod forward_auth;
mod grpc;
mod health;
mod rate_limit_service;
pub(super) mod request_limits;

pub(super) use forward_auth::with_denied_status;

use crate::gateway::admit;
use crate::gateway::awaited_body::BodySource;
use crate::gateway::facts::Head;
use crate::gateway::request_context::{GRPC, RequestContext};
use crate::gateway::respond::{self, Answer};
use crate::http::head::{RequestHead, Version};
use crate::http::service::{Exchange as _, IncomingBody, Response};
use crate::ruleset::ListenerService;

/// The largest message that is read, in bytes.
const MAX_MESSAGE: usize = 1 << 20;

/// Answers a question that came with this head and `body`.
pub(super) async fn decide(
    context: &mut RequestContext,
    question: &RequestHead,
    body: &impl IncomingBody,
) -> Box<Response> {
    let serves = context.serves;
    let message = match serves.speaks_grpc() && context.version == Version::Http2 {
        true => body.take_whole(MAX_MESSAGE, context.active.settings.head_timeout).await,
        false => Ok(Vec::new()),
    };
    let message = match message {
        Ok(message) => message,
        Err(failure) => return context.failed(&failure),
    };
    if serves.speaks_grpc() && health::is_health_check(question) {
        let checked = health::check(context, question, &message);
        return finish_grpc_call(checked, context);
    }
    let is_trusted = context.active.ruleset.client_address.is_trusted(context.peer.address());
    let response = match serves {
        _ if !is_trusted => {
            tracing::warn!(
                peer = context.peer.address_text(),
                serves = serves.as_str(),
                "a peer that is not in client_address.trusted_proxies asked for a decision"
            );
            context.answer_failure(&Answer::AccessDenied)
        }
        ListenerService::ForwardAuth { .. } => forward_auth::decide(context, question).await,
        ListenerService::RateLimitService => {
            finish_grpc_call(rate_limit_service::decide(context, question, &message).await, context)
        }
        // a listener that forwards requests answers no questions
        ListenerService::Proxy => context.answer_failure(&Answer::Internal),
        ListenerService::ExtAuthz => finish_grpc_call(ext_authz::decide(context, question, &message).await, context),
    };
    let result = match context.verdict.is_denied() {
        true => "denied",
        false if context.own_answer.cause.is_some() => "refused",
        false => "admitted",
    };
    context.active.meters.count_answer(serves.as_str(), result);
    with_denied_status(response, serves)
}

/// The response to a gRPC call, also to one that failed.
fn finish_grpc_call(answered: Result<Response, Answer>, context: &mut RequestContext) -> Box<Response> {
    answered.map(Box::new).unwrap_or_else(|answer| {
        context.grpc_type = (context.version == Version::Http2).then_some(GRPC);
        context.answer_failure(&answer)
    })
}

/// Decides on a request that another proxy handles, by the route that it takes. `Err` is the response to the proxy's client.
async fn admit_by_route(
    context: &mut RequestContext,
    head: &Head<'_>,
    body: BodySource<'_>,
) -> Result<(), Box<Response>> {
    let admitted = admit::admit(context, head, body).await;
    // the gateway does not see how the request ends, so the charges stay as they are
    context.cost_meter = None;
    match admitted {
        Ok(()) => {
            context.status = Some(200);
            Ok(())
        }
        Err(answer) => Err(respond::answer(context, &answer, head.headers)),
    }
}
