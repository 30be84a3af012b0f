//! Health checks in gRPC (`grpc.health.v1`), which proxies make of the services that they ask.

use prost::Message;

use super::grpc;
use crate::gateway::request_context::RequestContext;
use crate::gateway::respond::Answer;
use crate::http::head::RequestHead;
use crate::http::service::Response;

const CHECK: &str = "/grpc.health.v1.Health/Check";
/// `HealthCheckResponse.ServingStatus`
const SERVING: i32 = 1;

pub(super) fn is_health_check(question: &RequestHead) -> bool {
    question.target == CHECK.as_bytes()
}

/// Answers a check, whichever service it names: a gateway that answers serves all of its listeners.
pub(super) fn check(context: &mut RequestContext, head: &RequestHead, body: &[u8]) -> Result<Response, Answer> {
    let HealthCheckRequest {} = grpc::decode_request(head, body, CHECK)?;
    context.status = Some(200);
    Ok(grpc::encode_response(&HealthCheckResponse { status: SERVING }))
}

#[derive(Clone, PartialEq, Message)]
struct HealthCheckRequest {}

#[derive(Clone, PartialEq, Message)]
struct HealthCheckResponse {
    #[prost(int32, tag = "1")]
    status: i32,
}
