//! A client for HTTP/2.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::server::SendResponse;
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Method, Request};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// One HTTP/2 connection.
pub struct Http2 {
    pub requests: SendRequest<Bytes>,
    /// The task that drives the connection; only its first user has it.
    pub driver: Option<JoinHandle<Result<(), h2::Error>>>,
}

/// A response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Vec<u8>,
    pub trailers: Option<HeaderMap>,
    /// Whether the stream ended with the head.
    pub is_head_alone: bool,
}

/// A server for HTTP/2 with prior knowledge that gives each request to `serve`.
pub async fn http2_upstream(
    serve: impl Fn(Request<RecvStream>, SendResponse<Bytes>) + Send + Sync + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, serve) = (listener.local_addr().unwrap(), Arc::new(serve));
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let serve = Arc::clone(&serve);
            tokio::spawn(async move {
                let Ok(mut connection) = h2::server::handshake(stream).await else { return };
                while let Some(Ok((request, respond))) = connection.accept().await {
                    serve(request, respond);
                }
            });
        }
    });
    address
}

impl Answer {
    #[track_caller]
    pub fn field(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

impl Http2 {
    pub async fn on(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let (requests, connection) = h2::client::handshake(stream).await.unwrap();
        Self { requests, driver: Some(tokio::spawn(connection)) }
    }

    /// Another user of the same connection.
    pub fn same_connection(other: &Self) -> Self {
        Self { requests: other.requests.clone(), driver: None }
    }

    /// Connects with prior knowledge of HTTP/2, without TLS.
    pub async fn connect_cleartext(to: SocketAddr) -> Self {
        let stream = TcpStream::connect(to).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self::on(stream).await
    }

    /// Sends a head; `end` says whether the stream ends with it.
    pub async fn begin(
        &mut self,
        method: Method,
        url: &str,
        fields: &[(&str, &str)],
        end: bool,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        let mut request = Request::builder().method(method).uri(url);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        std::future::poll_fn(|task| self.requests.poll_ready(task)).await?;
        self.requests.send_request(request.body(()).unwrap(), end)
    }

    /// Sends a request without a body, and returns the response.
    pub async fn get(&mut self, url: &str, fields: &[(&str, &str)]) -> Result<Answer, h2::Error> {
        let (response, _) = self.begin(Method::GET, url, fields, true).await?;
        read(response).await
    }

    /// Sends a request with this body, and returns the response.
    pub async fn post(&mut self, url: &str, fields: &[(&str, &str)], body: Bytes) -> Result<Answer, h2::Error> {
        let (response, mut sending) = self.begin(Method::POST, url, fields, false).await?;
        // an early response may have closed the stream already
        drop(sending.send_data(body, true));
        read(response).await
    }

    /// The reason for which the connection ended.
    pub async fn end(self) -> Option<Reason> {
        drop(self.requests);
        self.driver.unwrap().await.unwrap().err().and_then(|error| error.reason())
    }

    /// Closes the socket without a goodbye.
    pub async fn cut(self) {
        let driver = self.driver.unwrap();
        driver.abort();
        drop(driver.await);
    }
}

/// Runs all futures at once.
pub async fn all<T: Send + 'static>(each: impl Iterator<Item = impl Future<Output = T> + Send + 'static>) -> Vec<T> {
    let running: Vec<JoinHandle<T>> = each.map(tokio::spawn).collect();
    let mut done = Vec::new();
    for one in running {
        done.push(one.await.unwrap());
    }
    done
}

/// Reads a response to its end.
pub async fn read(response: ResponseFuture) -> Result<Answer, h2::Error> {
    let (head, mut content) = response.await?.into_parts();
    let is_head_alone = content.is_end_stream();
    let (body, trailers) = rest(&mut content).await?;
    Ok(Answer { status: head.status.as_u16(), headers: head.headers, body, trailers, is_head_alone })
}

/// Reads the rest of a body, and the trailers.
pub async fn rest(content: &mut RecvStream) -> Result<(Vec<u8>, Option<HeaderMap>), h2::Error> {
    let mut body = Vec::new();
    while let Some(part) = content.data().await {
        let part = part?;
        content.flow_control().release_capacity(part.len())?;
        body.extend_from_slice(&part);
    }
    Ok((body, content.trailers().await?))
}
