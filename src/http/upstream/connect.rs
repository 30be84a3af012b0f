//! Opens connections to servers.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::http2::MAX_STREAMS;
use super::{
    Address, Connection, EXHAUSTED, Http1Connection, Http2Connection, Http2Upstream, Server, Upstream, UpstreamError,
};
use crate::fields::Fields;
use crate::http::body::Framing;
use crate::http::head::{RequestHead, ResponseHead};
use crate::http::socket::{RawSocket, Socket};
use crate::http::upstream::OutgoingRequest;

/// How many bytes of one response may wait for its client. The connection has room for as many of each response, so that no
/// client holds up the responses to others.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = MAX_STREAMS as u32 * STREAM_WINDOW;

/// Connects to `server`, with a TLS handshake if it has TLS settings.
pub(super) async fn connect(server: &Server) -> io::Result<Socket> {
    let raw = match &server.address {
        Address::Inet(address) => {
            let socket =
                TcpStream::connect(address).await.map_err(|error| named(error, "cannot connect to", server))?;
            socket.set_nodelay(true)?;
            RawSocket::Tcp(socket)
        }
        Address::Unix(path) => {
            let socket = UnixStream::connect(path).await.map_err(|error| named(error, "cannot connect to", server))?;
            RawSocket::Unix(socket)
        }
    };
    match &server.tls {
        None => Ok(Socket::Plain(raw)),
        Some(tls) => {
            let name = ServerName::try_from(tls.name.to_string())
                .map_err(|_| io::Error::other(format!("{} is not a valid server name", tls.name)))?;
            let secured = TlsConnector::from(Arc::clone(&tls.config)).connect(name, raw).await;
            let secured = secured.map_err(|error| named(error, "TLS handshake failed with", server))?;
            if server.http2 && secured.get_ref().1.alpn_protocol() != Some(b"h2") {
                return Err(io::Error::other(format!("{} does not speak HTTP/2", server.address)));
            }
            Ok(Socket::Tls(Box::new(secured.into())))
        }
    }
}

/// Opens a connection for requests. A task of this thread drives an HTTP/2 connection.
pub(in crate::http) async fn open(server: &Server) -> io::Result<Connection> {
    let socket = connect(server).await?;
    if !server.http2 {
        return Ok(Connection::Http1(Box::new(Http1Connection::new(socket))));
    }
    let (requests, driving) = http2_options().handshake(socket).await.map_err(io::Error::other)?;
    let connection = Http2Connection::new(requests);
    let is_closed = connection.closed_flag();
    tokio::task::spawn_local(async move {
        if let Err(error) = driving.await {
            tracing::debug!(%error, "a connection of HTTP/2 to an upstream ended");
        }
        is_closed.store(true, Ordering::Relaxed);
    });
    Ok(Connection::Http2(connection))
}

fn http2_options() -> h2::client::Builder {
    let mut options = h2::client::Builder::new();
    options
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        // the windows bound the number of small frames that wait; a budget would end the requests of all clients
        .data_frame_budget(usize::MAX)
        .enable_push(false);
    options
}

/// Requests `path` from `server` on a new connection, and returns the status of the response.
///
/// Errors: the reason why there is no response.
pub async fn probe(server: &Server, host: &str, path: &str, user_agent: &str) -> io::Result<u16> {
    let mut fields = Fields::default();
    fields.push("host", host);
    fields.push("user-agent", user_agent);
    let request = RequestHead { method: "GET".to_owned(), ..RequestHead::default() };
    let outgoing = OutgoingRequest { target: path.as_bytes().to_vec(), fields };
    send(server, &request, outgoing, &[]).await.map(|head| head.status)
}

/// Posts `content` to `server` on a new connection. Returns the head of the response.
///
/// Errors: the reason why there is no response.
pub async fn post(server: &Server, outgoing: OutgoingRequest, content: &[u8]) -> io::Result<ResponseHead> {
    let framing = Framing::Length(u64::try_from(content.len()).unwrap_or(u64::MAX));
    let request = RequestHead { method: "POST".to_owned(), framing, ..RequestHead::default() };
    send(server, &request, outgoing, content).await
}

async fn send(
    server: &Server,
    request: &RequestHead,
    mut outgoing: OutgoingRequest,
    content: &[u8],
) -> io::Result<ResponseHead> {
    let socket = connect(server).await?;
    if !server.http2 {
        outgoing.fields.push("connection", "close");
        let mut connection = Box::new(Http1Connection::new(socket));
        connection.begin(request, &outgoing, None);
        return answer(&mut Upstream::Http1(connection), &request.method, content).await;
    }
    let (requests, driving) = http2_options().handshake(socket).await.map_err(io::Error::other)?;
    let scheme = if server.tls.is_some() { "https" } else { "http" };
    let exchanging = async {
        let upstream = Http2Upstream::begin(&Http2Connection::new(requests), request, &outgoing, scheme).await?;
        answer(&mut Upstream::Http2(Box::new(upstream)), &request.method, content).await
    };
    let (mut driving, mut exchanging) = (pin!(driving), pin!(exchanging));
    let mut is_driven = true;
    poll_fn(|task| {
        // an error of the connection appears in the result of the exchange
        is_driven = is_driven && driving.as_mut().poll(task).is_pending();
        exchanging.as_mut().poll(task)
    })
    .await
}

/// The head of the upstream's response to `content`.
async fn answer(upstream: &mut Upstream, method: &str, content: &[u8]) -> io::Result<ResponseHead> {
    exchange(upstream, method, content).await.map_err(io::Error::other)
}

/// Sends the whole `content` of a request that has begun. Returns the head of the response, and skips interim ones.
pub(super) async fn exchange(
    upstream: &mut Upstream,
    method: &str,
    mut content: &[u8],
) -> Result<ResponseHead, UpstreamError> {
    while !content.is_empty() {
        let sent = poll_fn(|task| upstream.channel().poll_send(task, content, true)).await?;
        content = content.get(sent..).unwrap_or_default();
    }
    poll_fn(|task| upstream.channel().poll_finish(task, &mut None)).await?;
    let mut head = ResponseHead::default();
    while head.status < 200 {
        poll_fn(|task| upstream.poll_head(task, &mut head, method)).await?;
    }
    Ok(head)
}

fn named(error: io::Error, what: &str, server: &Server) -> io::Error {
    let kind = match Errno::from_io_error(&error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => EXHAUSTED,
        _ => error.kind(),
    };
    io::Error::new(kind, format!("{what} {}: {error}", server.address))
}
