//! An HTTP application with bounded connections, in number and in time. The admin port uses it: its connections share the
//! process's file descriptors with clients, and must not use up theirs.
//!
//! The gateway closes a connection that is idle for too long. At the maximum number of connections, a new one evicts the
//! one that has been idle for longest. A connection with a request is not evicted, but its request has a deadline.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use http::Response;
use pingora::apps::http_app::ServeHttp;
use pingora::apps::{HttpPersistentSettings, HttpServerApp, ReusedHttpStream, ServerApp};
use pingora::http::ResponseHeader;
use pingora::protocols::Stream;
use pingora::protocols::http::ServerSession;
use pingora::server::ShutdownWatch;
use tokio::time::timeout;

use crate::clock::Clock;
use crate::http::idle::IdleConnections;
use crate::http::limiter::{ConnectionBounds, ConnectionLimiter, ConnectionPermit};

/// The timeout for the complete head of a request, and the timeout from there until its response is sent.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// `app`, with at most `max_connections` connections.
pub(super) struct BoundedApp<A> {
    requests: Arc<Requests<A>>,
    max_connections: usize,
    limiter: Arc<ConnectionLimiter>,
    shed: Box<dyn Fn() + Send + Sync>,
}

/// Serves the requests of each connection, one after the other.
struct Requests<A> {
    app: A,
    patience: Duration,
    clock: Arc<dyn Clock>,
    /// The connections without a request.
    idle: IdleConnections,
}

impl<A> BoundedApp<A> {
    /// `shed` is called for each connection that is closed because the maximum is reached.
    pub(super) fn new(
        app: A,
        (max_connections, patience): (usize, Duration),
        clock: Arc<dyn Clock>,
        shed: impl Fn() + Send + Sync + 'static,
    ) -> Self {
        let requests = Arc::new(Requests { app, patience, clock, idle: IdleConnections::new(1) });
        Self { requests, max_connections, limiter: Arc::new(ConnectionLimiter::new(1)), shed: Box::new(shed) }
    }

    /// A permit for a connection; `None` if all connections have requests.
    fn permit(&self) -> Option<ConnectionPermit> {
        if let Ok(permit) =
            self.limiter.take(0, ConnectionBounds { total: Some(self.max_connections), per_listener: None })
        {
            return Some(permit);
        }
        (self.shed)();
        let Requests { idle, clock, .. } = &*self.requests;
        // the evicted connection still counts until its task ends, so this permit has no maximum
        if idle.evict_longest_idle(None, clock.now()) {
            self.limiter.take(0, ConnectionBounds::default()).ok()
        } else {
            None
        }
    }
}

#[async_trait]
impl<A: ServeHttp + Send + Sync + 'static> ServerApp for BoundedApp<A> {
    async fn process_new(self: &Arc<Self>, stream: Stream, shutdown: &ShutdownWatch) -> Option<Stream> {
        let _permit = self.permit()?;
        self.requests.process_new(stream, shutdown).await
    }
}

#[async_trait]
impl<A: ServeHttp + Send + Sync + 'static> HttpServerApp for Requests<A> {
    async fn process_new_http(
        self: &Arc<Self>,
        mut session: ServerSession,
        shutdown: &ShutdownWatch,
    ) -> Option<ReusedHttpStream> {
        if !self.has_request(&mut session).await {
            return None;
        }
        session.set_keepalive((!*shutdown.borrow()).then_some(self.patience.as_secs()));
        timeout(self.patience, self.answer(session)).await.ok().flatten()
    }
}

impl<A: ServeHttp + Send + Sync> Requests<A> {
    /// Waits for the head of the next request; false where the connection ends without one.
    async fn has_request(&self, session: &mut ServerSession) -> bool {
        let entry = self.idle.enter(0, self.clock.now());
        let makes_room = poll_fn(|task| if entry.is_evicted(task.waker()) { Poll::Ready(()) } else { Poll::Pending });
        let has_request = tokio::select! {
            read = timeout(self.patience, session.read_request()) => matches!(read, Ok(Ok(true))),
            () = makes_room => false,
        };
        self.idle.leave(&entry);
        has_request
    }

    /// Answers the request that was read. Returns the connection if another request can follow.
    async fn answer(&self, mut session: ServerSession) -> Option<ReusedHttpStream> {
        let (parts, body) = Response::into_parts(self.app.response(&mut session).await);
        session.write_response_header(Box::new(ResponseHeader::from(parts))).await.ok()?;
        if !body.is_empty() {
            session.write_response_body(body.into(), true).await.ok()?;
        }
        let settings = HttpPersistentSettings::for_session(&session);
        let stream = session.finish().await.ok()??;
        Some(ReusedHttpStream::from_reusable_stream(stream, settings))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use pingora::protocols::l4::stream::Stream as L4Stream;
    use tokio::sync::watch;

    use super::*;
    use crate::clock::SystemClock;

    /// Answers every complete request with a greeting.
    #[derive(Default)]
    struct Greets {
        /// The number of request heads received.
        heads: AtomicUsize,
    }

    #[async_trait]
    impl ServeHttp for Greets {
        async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
            self.heads.fetch_add(1, Ordering::Relaxed);
            while let Ok(Some(_)) = session.read_request_body().await {}
            Response::builder().header("content-length", 5).body(b"hello".to_vec()).unwrap()
        }
    }

    /// The other end of a connection that `app` serves.
    async fn connect(app: &Arc<BoundedApp<Greets>>, listener: &tokio::net::TcpListener) -> TcpStream {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let stream: Stream = Box::new(L4Stream::from(listener.accept().await.unwrap().0));
        let app = Arc::clone(app);
        tokio::spawn(async move {
            let (_sender, shutdown) = watch::channel(false);
            app.process_new(stream, &shutdown).await
        });
        // lets the task see the connection
        tokio::task::yield_now().await;
        client
    }

    /// Everything that the client receives until the connection ends.
    async fn rest(mut client: TcpStream) -> String {
        let read = move || {
            let mut text = String::new();
            client.read_to_string(&mut text).map(|_| text)
        };
        tokio::task::spawn_blocking(read).await.unwrap().unwrap()
    }

    fn app(max_connections: usize, patience: Duration) -> (Arc<BoundedApp<Greets>>, Arc<AtomicUsize>) {
        let shed = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&shed);
        let count = move || {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        (
            Arc::new(BoundedApp::new(
                Greets::default(),
                (max_connections, patience),
                Arc::new(SystemClock::new()),
                count,
            )),
            shed,
        )
    }

    #[tokio::test]
    async fn heads_and_bodies_that_do_not_come_end_their_connections_and_idle_ones_end_too() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (app, shed) = app(8, Duration::from_millis(50));
        for (sent, answered) in [
            ("", ""),
            ("GET / HTTP/1.1\r\nhost:", ""),
            ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n1", ""),
            ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", "hello"),
        ] {
            let mut client = connect(&app, &listener).await;
            client.write_all(sent.as_bytes()).unwrap();
            let text = rest(client).await;
            assert!(text.ends_with(answered) && text.is_empty() == answered.is_empty(), "{sent}: {text}");
        }
        assert_eq!(shed.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn one_too_many_takes_the_place_of_an_idle_connection_and_of_no_request() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (app, shed) = app(2, REQUEST_TIMEOUT);
        let asks = async |mut client: TcpStream, heads: usize| {
            client.write_all(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\n").unwrap();
            while app.requests.app.heads.load(Ordering::Relaxed) < heads {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            client
        };
        let asking = asks(connect(&app, &listener).await, 1).await;
        let idle = connect(&app, &listener).await;
        let next = connect(&app, &listener).await;
        assert_eq!(rest(idle).await, "");
        let next = asks(next, 2).await;
        assert_eq!(rest(connect(&app, &listener).await).await, "", "both places are those of requests");
        assert_eq!(shed.load(Ordering::Relaxed), 2);
        for mut client in [asking, next] {
            client.write_all(b"12").unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(rest(client).await.ends_with("hello"));
        }
    }
}
