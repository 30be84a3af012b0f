//! What is sent to the admin listener.

use http::StatusCode;
use pingora::protocols::http::ServerSession;

use super::{Answer, failure};

/// The longest question: the largest head of a request, with room for what JSON adds.
const MAX_BYTES: usize = 256 << 10;

/// The body of a request; what is too long is not read to its end.
pub(super) async fn read(session: &mut ServerSession) -> Result<Vec<u8>, Answer> {
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
