//! `POST /v1/keys/...` reads or corrects one key; `POST /v1/charge` charges keys for programs that are not proxies.

use http::StatusCode;
use serde_json::{Value, json};

use super::{PlainResponse, failure, pretty_json};
use crate::gateway::Gateway;
use crate::gateway::explain::KeyPartValue;
use crate::gateway::keys::{ChargeQuestion, KeyAnswer, KeyQuestion, KeyQuestionError};
use crate::store::{AmendError, Amendment};

/// The operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyOperation {
    Peek,
    Reset,
    Grant,
    Unban,
}

/// Does the operation on the key that `body` names. Returns also the change for the audit log, null if there is none.
pub(super) async fn answer(gateway: &Gateway, operation: KeyOperation, body: &[u8]) -> (PlainResponse, Value) {
    done(gateway, operation, body).await.unwrap_or_else(|bad| (refused(&bad), Value::Null))
}

/// Charges or refunds the tokens that `body` lists.
pub(super) async fn charge(gateway: &Gateway, body: &[u8]) -> PlainResponse {
    match ChargeQuestion::answer(body, gateway).await {
        Ok(answer) => pretty_json(&answer),
        Err(bad) => refused(&bad),
    }
}

fn refused(bad: &KeyQuestionError) -> PlainResponse {
    let status = match bad {
        KeyQuestionError::NoLimit { .. } | KeyQuestionError::NotApplicable { .. } => StatusCode::NOT_FOUND,
        KeyQuestionError::Amend(AmendError::RedisUnavailable) => StatusCode::SERVICE_UNAVAILABLE,
        KeyQuestionError::Amend(unamended) => {
            return failure(StatusCode::CONFLICT, &format!("the limit does not allow this change: {unamended}"));
        }
        _ => StatusCode::BAD_REQUEST,
    };
    failure(status, &bad.to_string())
}

async fn done(
    gateway: &Gateway,
    operation: KeyOperation,
    body: &[u8],
) -> Result<(PlainResponse, Value), KeyQuestionError> {
    let question = KeyQuestion::from_json(body)?;
    let amendment = match operation {
        KeyOperation::Peek => return Ok((pretty_json(&question.peek(gateway).await?), Value::Null)),
        KeyOperation::Unban => {
            return Ok(match question.unban(gateway).await? {
                Some(answer) => (pretty_json(&answer), noted(&answer, "unban", None)),
                None => (failure(StatusCode::NOT_FOUND, "this gateway has not banned the key"), Value::Null),
            });
        }
        KeyOperation::Reset => Amendment::ResetKey,
        KeyOperation::Grant => question.grant()?,
    };
    let answer = question.amend(gateway, amendment).await?;
    let change = match amendment {
        Amendment::ResetKey => noted(&answer, "reset", None),
        Amendment::Grant(tokens) => noted(&answer, "grant", Some(tokens)),
    };
    Ok((pretty_json(&answer), change))
}

/// Logs a change of a key over the admin port, and returns it for the audit log. The caller's name is not known.
fn noted(answer: &KeyAnswer, change: &str, tokens: Option<u64>) -> Value {
    let part = |part: &KeyPartValue| format!("{}={}", part.part, part.value.as_deref().unwrap_or(""));
    let key = answer.key.iter().map(part).collect::<Vec<_>>().join(", ");
    tracing::info!(change, limit = answer.limit, key, tokens, "key changed over the admin port");
    let mut note = json!({ "limit": answer.limit, "key": key });
    if let Some(tokens) = tokens {
        note["tokens"] = json!(tokens);
    }
    note
}
