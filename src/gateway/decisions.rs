//! Questions of other proxies about requests that they handle, which the rules answer that hold for requests that pass here.

mod ext_authz;
mod forward_auth;
mod grpc;
mod health;
mod rate_limit_service;
pub(super) mod request_limits;

use crate::gateway::admit::{self, Sender};
use crate::gateway::awaited_body::BodySource;
use crate::gateway::request_context::RequestContext;
use crate::gateway::respond::{self, Answer};
use crate::http::head::{RequestHead, Version};
use crate::http::service::Response;
use crate::ruleset::Serves;
use crate::ruleset::verdict::Outcome;

/// The largest message that is read, in bytes.
pub(super) const MAX_MESSAGE: usize = 1 << 20;

/// Answers a question that came with this head and `body`.
pub(super) async fn decide(context: &mut RequestContext, question: &RequestHead, body: &[u8]) -> Response {
    let serves = context.serves;
    if serves.speaks_grpc() && health::is_asked(question) {
        let checked = health::check(context, question, body);
        return in_grpc(checked, context);
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
        Serves::ForwardAuth { denied_status } => forward_auth::decide(context, question, denied_status).await,
        Serves::RateLimitService => in_grpc(rate_limit_service::decide(context, question, body).await, context),
        // a listener that forwards requests is asked nothing
        Serves::Proxy => context.answer_failure(&Answer::Internal),
        Serves::ExtAuthz => in_grpc(ext_authz::decide(context, question, body).await, context),
    };
    let result = match context.verdict.outcome {
        Outcome::Deny(_) => "denied",
        Outcome::Admit { .. } if context.answered.is_some() => "refused",
        Outcome::Admit { .. } => "admitted",
    };
    context.active.meters.decided(serves.as_str(), result);
    response
}

/// The response to a call, whether it could be answered or not.
fn in_grpc(answered: Result<Response, Answer>, context: &mut RequestContext) -> Response {
    answered.unwrap_or_else(|answer| {
        context.is_grpc = context.version == Version::Http2;
        context.answer_failure(&answer)
    })
}

/// What becomes of a request that another proxy handles, by the route that it takes. `Err` is what its client is answered.
async fn by_route(
    context: &mut RequestContext,
    request: &RequestHead,
    sender: Sender<'_>,
    body: BodySource<'_>,
) -> Result<(), Response> {
    let admitted = admit::admit(context, request, sender, body).await;
    // nobody tells how the request went: what was taken stays taken
    context.cost_meter = None;
    match admitted {
        Ok(()) => {
            context.status = Some(200);
            Ok(())
        }
        Err(answer) => Err(respond::answer(context, &answer, &request.fields)),
    }
}
