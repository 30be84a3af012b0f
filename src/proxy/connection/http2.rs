//! A connection of HTTP/2: its streams, each served as if it were a connection, and what clients may do to it.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use h2::Reason;
use pingora::apps::HttpServerApp;
use pingora::protocols::http::ServerSession;
use pingora::protocols::http::v2::server::{H2Accept, H2Options, HttpSession, default_h2_options, handshake};
use pingora::protocols::{Digest, GetProxyDigest, GetSocketDigest, GetTimingDigest};
use pingora::proxy::HttpProxy;
use pingora::server::ShutdownWatch;
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::edge::drive;
use super::stream::WatchedStream;
use super::{CURRENT, Connection, LINGER};
use crate::proxy::Gateway;
use crate::ruleset::RequestHead;

/// How many requests a client may have at once on one connection.
const MOST_STREAMS: u32 = 100;
/// How much of a request's body, and of all of a connection's, may wait to be forwarded, in bytes.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// How much of a response may wait for a client that does not read, in bytes.
const SEND_BUFFER: usize = 64 << 10;
/// What each field counts in a list beside its bytes (RFC 9113, section 6.5.2).
const FIELD_OVERHEAD: usize = 32;
/// How many more requests than were answered a client may take back, or send so that they cannot be read. A page that is
/// left takes back all that it asked for at once.
const MOST_ABANDONED: u32 = 2 * MOST_STREAMS;

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Answered,
    Abandoned,
}

/// Serves what comes on `stream` until the client or the gateway has enough.
pub(super) async fn serve(
    proxy: &Arc<HttpProxy<Gateway>>,
    stream: WatchedStream,
    connection: &Arc<Connection>,
    shutdown: &ShutdownWatch,
) {
    let gateway = &connection.gateway;
    let digest = Arc::new(Digest {
        ssl_digest: None,
        timing_digest: stream.get_timing_digest(),
        proxy_digest: stream.get_proxy_digest(),
        socket_digest: stream.get_socket_digest(),
    });
    let (options, silence) = {
        let live = gateway.live.load();
        (options(&live.ruleset.request_head), live.ruleset.connections.idle)
    };
    let mut accepting = match handshake(Box::new(stream), Some(options)).await {
        Ok(accepting) => accepting,
        Err(error) => return tracing::debug!(%error, "a client did not begin with HTTP/2"),
    };
    // The client is told that the connection ends, and has a moment to agree.
    let rest = |closing: bool| {
        let patience = if closing { LINGER } else { silence.saturating_add(LINGER) };
        connection.without_streams(gateway.clock.now().saturating_add(patience));
    };
    rest(false);
    let mut streams: JoinSet<Ended> = JoinSet::new();
    let mut idle = pin!(sleep(silence.to_duration()));
    let mut leave = gateway.traffic.watch();
    // More requests taken back than answered, and whether the connection is being closed.
    let (mut abandoned, mut closing): (u32, bool) = (0, false);
    loop {
        let is_empty = streams.is_empty();
        let until_closed = poll_fn(|task| {
            leave.set(task);
            match gateway.traffic.is_leaving() {
                true => Poll::Ready(()),
                false if is_empty => idle.as_mut().poll(task),
                false => Poll::Pending,
            }
        });
        tokio::select! {
            biased;
            Some(ended) = streams.join_next() => {
                abandoned = match ended {
                    Ok(Ended::Answered) => abandoned.saturating_sub(1),
                    // a filter that panics answers nothing either
                    Ok(Ended::Abandoned) | Err(_) => abandoned.saturating_add(1),
                };
                if streams.is_empty() {
                    idle.set(sleep(silence.to_duration()));
                    rest(closing);
                }
            }
            () = until_closed, if !closing => {
                accepting.graceful_shutdown();
                closing = true;
                if streams.is_empty() {
                    rest(closing);
                }
            }
            accepted = HttpSession::from_h2_conn(&mut accepting, Arc::clone(&digest)) => match accepted {
                Ok(Some(H2Accept::Session(session))) => {
                    connection.with_streams();
                    streams.spawn(serve_stream(Arc::clone(proxy), session, connection.stream(), shutdown.clone()));
                }
                Ok(Some(H2Accept::Rejected)) => {
                    gateway.live.load().meters.route(None).count(400);
                    abandoned = abandoned.saturating_add(1);
                }
                // A client that is gone takes its requests with it.
                Ok(None) | Err(_) => return,
            },
        }
        if abandoned > MOST_ABANDONED {
            streams.abort_all();
            accepting.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
            (abandoned, closing) = (0, true);
            rest(closing);
        }
    }
}

async fn serve_stream(
    proxy: Arc<HttpProxy<Gateway>>,
    session: HttpSession,
    connection: Connection,
    shutdown: ShutdownWatch,
) -> Ended {
    let connection = Arc::new(connection);
    let serve = proxy.process_new_http(ServerSession::new_http2(session), &shutdown);
    drop(drive(CURRENT.scope(Arc::clone(&connection), serve), &connection, |_| false).await);
    match connection.is_answered() {
        true => Ended::Answered,
        false => Ended::Abandoned,
    }
}

fn options(head: &RequestHead) -> H2Options {
    let fields = head.max_headers.saturating_mul(FIELD_OVERHEAD);
    // the target and the host are fields here, and what is over by a little is refused by a response that says so
    let list =
        head.max_headers_total.saturating_add(fields).saturating_add(head.max_target).saturating_add(FIELD_OVERHEAD);
    let mut options = default_h2_options();
    options
        .max_concurrent_streams(MOST_STREAMS)
        .max_header_list_size(u32::try_from(list).unwrap_or(u32::MAX))
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(SEND_BUFFER);
    options
}
