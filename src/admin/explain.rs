//! `POST /explain`: what a request would meet at this gateway now.

use http::StatusCode;
use pingora::protocols::http::ServerSession;

use super::{Answer, JSON, body, failure};
use crate::gateway::Gateway;
use crate::gateway::explain::{Explanation, Question};

/// Answers the question in the body of the request.
pub(super) async fn answer(gateway: &Gateway, session: &mut ServerSession) -> Answer {
    let body = match body::read(session).await {
        Ok(body) => body,
        Err(refused) => return refused,
    };
    match Question::from_json(&body) {
        Ok(question) => {
            let explanation = Explanation::of_gateway(gateway, &question).await;
            match serde_json::to_string_pretty(&explanation) {
                Ok(text) => (StatusCode::OK, JSON, text + "\n"),
                Err(error) => failure(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
            }
        }
        Err(bad) => failure(StatusCode::BAD_REQUEST, &bad.to_string()),
    }
}
