//! Serves connections: pingora's proxy within a connection's deadline.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, ready};

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::apps::{HttpPersistentSettings, HttpServerApp, ServerApp};
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::proxy::HttpProxy;
use pingora::server::ShutdownWatch;
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};

use super::arrival::{Protocol, arrive};
use super::state::Phase;
use super::stream::WatchedStream;
use super::{CURRENT, Connection, Entrance, LINGER, http2};
use crate::proxy::Gateway;
use crate::proxy::context::Context;
use crate::proxy::seats::{Full, Seat};
use crate::units::Nanos;

/// Serves the connections of one listener.
pub struct Edge {
    proxy: Arc<HttpProxy<Gateway>>,
    gateway: Gateway,
    /// The position of the listener.
    listener: usize,
}

/// Why a connection's future did not come to its own end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The connection is to be closed, and waits for a further request.
    Leaving,
    Expired,
    ClientGone,
    /// What the client sent is no request, and it is to be told so.
    Refused,
    /// Another connection has the place.
    CalledOff,
}

impl Edge {
    /// Serves with `proxy`, whose gateway is `gateway`, what comes in at the listener with this position.
    pub fn new(proxy: Arc<HttpProxy<Gateway>>, gateway: Gateway, listener: usize) -> Self {
        Self { proxy, gateway, listener }
    }

    /// A place for a connection; `None` where as many are here as there may be, and all of them have requests.
    fn seat(&self, entrance: &Entrance) -> Option<Seat> {
        let live = self.gateway.live.load();
        let most = live.ruleset.connections.most.unwrap_or(self.gateway.room);
        let mut bounds = (Some(most), entrance.max_connections);
        loop {
            let full = match self.gateway.seats.take(self.listener, bounds) {
                Ok(seat) => return Some(seat),
                Err(full) => full,
            };
            // who goes is counted until it is gone
            let at = match full {
                Full::All => {
                    bounds.0 = None;
                    None
                }
                Full::Listener => {
                    bounds.1 = None;
                    Some(self.listener)
                }
            };
            let made = self.gateway.spare.make_room(at, self.gateway.clock.now());
            live.meters.shed(if made { "idle" } else { full.as_str() });
            if !made {
                return None;
            }
        }
    }
}

#[async_trait]
impl ServerApp for Edge {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let entrance = Arc::clone(self.gateway.live.load().entrances.get(self.listener)?);
        let mut seat = self.seat(&entrance)?;
        let connection = Arc::new(Connection::new(self.gateway.clone(), self.listener));
        let arrived = match drive(arrive(stream, &entrance, &connection, &mut seat), &connection, |_| false).await {
            Ok(Ok(arrived)) => arrived,
            Ok(Err(error)) => {
                tracing::debug!(%error, "a client did not come in");
                return None;
            }
            Err(_) => return None,
        };
        let shared = Arc::new(Mutex::new(arrived.shared));
        let watched = WatchedStream { shared: Arc::clone(&shared), connection: Arc::clone(&connection) };
        match arrived.protocol {
            Protocol::Http1 => serve_http1(&self.proxy, watched, &connection, shutdown).await,
            Protocol::Http2 => {
                let serve = http2::serve(&self.proxy, watched, &connection, shutdown);
                if let Err(end) = drive(serve, &connection, |_| false).await {
                    tracing::debug!(?end, "a connection of HTTP/2 was cut off");
                }
            }
        }
        None
    }
}

async fn serve_http1(
    proxy: &Arc<HttpProxy<Gateway>>,
    watched: WatchedStream,
    connection: &Arc<Connection>,
    shutdown: &ShutdownWatch,
) {
    let mut last = watched.again();
    let shared = Arc::clone(&watched.shared);
    let end = {
        let room = shared.lock().room();
        let mut serve = pin!(CURRENT.scope(Arc::clone(connection), requests(proxy, watched, shutdown)));
        // While the client does not take what is written, more of it would be read ahead from the upstream, and nothing
        // else would come of it.
        let while_room = poll_fn(|task| match room.is_awaited() {
            true => Poll::Pending,
            false => serve.as_mut().poll(task),
        });
        let is_gone = |task: &mut TaskContext<'_>| shared.lock().client_is_gone(task);
        drive(while_room, connection, is_gone).await
    };
    let farewell = match connection.take_refusal() {
        Some(answer) => {
            let refused = CURRENT
                .sync_scope(Arc::clone(connection), || Context::refused(&connection.gateway, &answer, last.client()));
            Some(refused)
        }
        None => connection.state.lock().farewell.take(),
    };
    // Whoever left the farewell has counted it.
    connection.state.lock().answering = true;
    match (end.map(drop), farewell) {
        (Err(End::Expired | End::Refused), Some(bytes)) => say(&mut last, &bytes).await,
        // answered before all of the request was there; if its place is needed, that is the end of it
        (Ok(()), _) if last.is_within_request() => drop(drive(last.linger(), connection, |_| false).await),
        _ => {}
    }
}

/// Serves one request after the other. pingora, which takes much memory for each, is asked when the head of one is here.
async fn requests(proxy: &Arc<HttpProxy<Gateway>>, watched: WatchedStream, shutdown: &ShutdownWatch) {
    let (shared, connection) = (Arc::clone(&watched.shared), Arc::clone(&watched.connection));
    let mut stream: Stream = Box::new(watched);
    let mut settings: Option<HttpPersistentSettings> = None;
    while poll_fn(|task| shared.lock().poll_head(task, &connection)).await {
        let mut session = ServerSession::new_http1(stream);
        match settings {
            Some(settings) => settings.apply_to_session(&mut session),
            // for how long is up to the connection
            None => session.set_keepalive((!*shutdown.borrow()).then_some(1)),
        }
        let Some(next) = proxy.process_new_http(session, shutdown).await else { return };
        (stream, settings) = next.consume();
    }
}

async fn say(stream: &mut WatchedStream, bytes: &[u8]) {
    let say = async {
        stream.write_all(bytes).await?;
        stream.flush().await
    };
    if matches!(timeout(LINGER.to_duration(), say).await, Ok(Ok(()))) {
        stream.linger().await;
    }
}

/// Runs `serve` until it ends, the connection's deadline passes, the client of a request that waits is gone, or the
/// connection is to be closed and waits for a further request. When this returns, `serve` has been dropped.
pub(super) async fn drive<F: Future>(
    serve: F,
    connection: &Connection,
    mut is_gone: impl FnMut(&mut TaskContext<'_>) -> bool,
) -> Result<F::Output, End> {
    let (clock, traffic) = (&connection.gateway.clock, &connection.gateway.traffic);
    let mut leave = traffic.watch();
    let mut serve = pin!(serve);
    let mut timer = pin!(sleep(Nanos::ZERO.to_duration()));
    // The timer may ring early, never late: a deadline that moves away is noticed when it rings.
    let mut rings_at: Option<Nanos> = None;
    let end = poll_fn(|task| {
        if let Poll::Ready(done) = serve.as_mut().poll(task) {
            return Poll::Ready(Ok(done));
        }
        let (phase, deadline, abandoned, is_spare, refused) = {
            let state = connection.state.lock();
            (state.phase, state.due(), state.abandoned, state.is_spare(), state.refusal.is_some())
        };
        if refused {
            return Poll::Ready(Err(End::Refused));
        }
        if abandoned || (phase == Phase::Waiting && is_gone(task)) {
            return Poll::Ready(Err(End::ClientGone));
        }
        leave.set(task);
        if phase == Phase::Idle && traffic.is_leaving() {
            return Poll::Ready(Err(End::Leaving));
        }
        let spot = connection.spot.as_ref().filter(|_| is_spare);
        if spot.is_some_and(|spot| spot.is_called_off(task.waker())) {
            return Poll::Ready(Err(End::CalledOff));
        }
        let Some(deadline) = deadline else { return Poll::Pending };
        loop {
            if rings_at.is_none_or(|rings_at| rings_at > deadline) {
                let left = deadline.saturating_sub(clock.now());
                timer.set(sleep(left.to_duration()));
                rings_at = Some(deadline);
            }
            ready!(timer.as_mut().poll(task));
            if clock.now() >= deadline {
                connection.expire();
                return Poll::Ready(Err(End::Expired));
            }
            rings_at = None;
        }
    });
    end.await
}
