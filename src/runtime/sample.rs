//! The sample upstream of `tollgate demo`: it echoes the request.

use async_trait::async_trait;
use http::{HeaderValue, Response, header};
use pingora::apps::http_app::ServeHttp;
use pingora::protocols::http::ServerSession;

/// Answers every request with 200, its method and its path.
pub(super) struct Sample;

#[async_trait]
impl ServeHttp for Sample {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let head = session.req_header();
        let said = serde_json::json!({ "upstream": "sample", "method": head.method.as_str(), "path": head.uri.path() });
        let mut response = Response::new(format!("{said}\n").into_bytes());
        let length = HeaderValue::from(response.body().len());
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response.headers_mut().insert(header::CONTENT_LENGTH, length);
        response
    }
}
