//! `POST /explain`: what a request would meet at this gateway now.

use http::StatusCode;
use pingora::protocols::http::ServerSession;
use serde_json::json;

use super::{Answer, JSON};
use crate::proxy::Gateway;
use crate::proxy::explain::{Explanation, Question};

/// The longest question: the largest head of a request, with room for what JSON adds.
const MAX_BYTES: usize = 256 << 10;

/// Answers the question in the body of the request.
pub(super) async fn answer(gateway: &Gateway, session: &mut ServerSession) -> Answer {
    let body = match read(session).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    match Question::from_json(&body) {
        Ok(question) => {
            let explanation = Explanation::live(gateway, &question).await;
            match serde_json::to_string_pretty(&explanation) {
                Ok(text) => (StatusCode::OK, JSON, text + "\n"),
                Err(error) => failure(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
            }
        }
        Err(bad) => failure(StatusCode::BAD_REQUEST, &bad.to_string()),
    }
}

/// The body of a request; what is too long is not read to its end.
async fn read(session: &mut ServerSession) -> Result<Vec<u8>, Answer> {
    let mut body = Vec::new();
    loop {
        match session.read_request_body().await {
            Ok(Some(part)) if body.len().saturating_add(part.len()) > MAX_BYTES => {
                let message = format!("the question is longer than {} KiB", MAX_BYTES >> 10);
                return Err(failure(StatusCode::PAYLOAD_TOO_LARGE, &message));
            }
            Ok(Some(part)) => body.extend_from_slice(&part),
            Ok(None) => return Ok(body),
            Err(_) => return Err(failure(StatusCode::BAD_REQUEST, "the body of the request cannot be read")),
        }
    }
}

fn failure(status: StatusCode, message: &str) -> Answer {
    (status, JSON, format!("{:#}\n", json!({ "error": message })))
}
