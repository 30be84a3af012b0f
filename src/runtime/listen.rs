//! Listening sockets, which open before anything runs, and the services that accept connections from them.
//!
//! pingora would open each address in the thread that serves it, and retry for 30 s if it cannot. Here, an address that
//! cannot be opened is a start error, and from then on the system queues connections: a client that connects while the
//! gateway starts waits for a moment, and is never refused.

use std::future::poll_fn;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use async_trait::async_trait;
use pingora::apps::ServerApp;
use pingora::protocols::Stream;
use pingora::server::{ListenFds, ShutdownWatch};
use pingora::services::Service;
use socket2::{Domain, Protocol, Socket as Socket2, Type};
use tokio::task::{JoinSet, yield_now};
use tokio::time::sleep;

use super::accept_gate::AcceptGate;
use super::socket::{Acceptor, BACKLOG, FileOwner, Socket, for_pingora, open_path};
use crate::http::socket::RawSocket;
use crate::http::traffic::ArrivalGuard;
use crate::lifecycle::Phase;
use crate::panics::{failpoint, restart_on_panic};
use crate::ruleset::Endpoint;
use crate::units::Nanos;

/// How long accepting pauses when the process has no file descriptor left, or the system no memory.
pub(super) const ACCEPT_RETRY_INTERVAL: Nanos = Nanos::new(10_000_000);

// === the sockets ===

/// Checks that no process listens on `address`; opens no listening socket and takes no connection. [`open`] with several
/// sockets does not check this: it would share the address with other processes of the same user.
pub(super) fn probe(address: SocketAddr) -> io::Result<()> {
    let socket = unbound(address)?;
    socket.bind(&address.into())
}

/// `count` sockets on `address`, among which the system spreads connections; a single socket does not share its address.
pub(super) fn open(mut address: SocketAddr, count: usize) -> io::Result<Vec<Socket>> {
    let mut sockets = Vec::with_capacity(count);
    for _ in 0..count {
        let socket = unbound(address)?;
        if count > 1 {
            socket.set_reuse_port(true)?;
        }
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        // if the system chooses the port, the further sockets use the same one
        address = socket.local_addr()?.as_socket().unwrap_or(address);
        sockets.push(Socket::new(socket, FileOwner::Gateway));
    }
    Ok(sockets)
}

/// Sockets at `endpoint` for `count` services; at a path in the file system, one socket for all services.
pub(super) fn open_at(endpoint: &Endpoint, count: usize) -> io::Result<Vec<Socket>> {
    match endpoint {
        Endpoint::Inet(address) => open(*address, count),
        Endpoint::Path(at) => Ok(vec![open_path(at)?]),
    }
}

/// Spreads the `sockets` of one address over `count` services: each service gets at least one socket, and each socket a
/// service. A socket of several services is cloned.
pub(super) fn spread(sockets: &[Socket], count: usize) -> io::Result<Vec<Vec<Socket>>> {
    let mut services: Vec<Vec<Socket>> = (0..count).map(|_| Vec::new()).collect();
    for (position, socket) in sockets.iter().cycle().take(sockets.len().max(count)).enumerate() {
        if let Some(sockets) = services.get_mut(position % count.max(1)) {
            sockets.push(socket.try_clone()?);
        }
    }
    Ok(services)
}

fn unbound(address: SocketAddr) -> io::Result<Socket2> {
    let socket = Socket2::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // connections of an earlier process that linger do not block the address
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

// === AppListener ===

/// A service that runs applications on their sockets, in a thread of its own.
pub(super) struct AppListener<A> {
    name: String,
    listeners: Vec<Socket>,
    app: Arc<A>,
    gate: Arc<AcceptGate>,
    accepts_until: AcceptsUntil,
}

/// When a service stops accepting connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AcceptsUntil {
    /// When the process is told to stop.
    Stop,
    /// When the process ends, or another process takes over.
    End,
}

impl<A> AppListener<A> {
    /// Runs `app` on all `listeners`.
    pub(super) fn new(
        name: String,
        listeners: Vec<Socket>,
        app: A,
        gate: Arc<AcceptGate>,
        accepts_until: AcceptsUntil,
    ) -> Self {
        Self { name, listeners, app: Arc::new(app), gate, accepts_until }
    }
}

#[async_trait]
impl<A: ServerApp + Send + Sync + 'static> Service for AppListener<A> {
    async fn start_service(&mut self, _: Option<ListenFds>, shutdown: ShutdownWatch, _: usize) {
        match self.listeners.drain(..).map(Acceptor::new).collect::<io::Result<Vec<_>>>() {
            Ok(listeners) => {
                let mut accepting = JoinSet::new();
                let accepts_until = self.accepts_until;
                for listener in listeners {
                    let (listener, gate, shutdown) = (Arc::new(listener), Arc::clone(&self.gate), shutdown.clone());
                    let app = Arc::clone(&self.app);
                    accepting.spawn(restart_on_panic(move || {
                        let (app, shutdown) = (Arc::clone(&app), shutdown.clone());
                        let serve = move |socket, arriving| {
                            tokio::spawn(serve(Arc::clone(&app), for_pingora(socket), shutdown.clone(), arriving));
                        };
                        accept(Arc::clone(&listener), Arc::clone(&gate), accepts_until, serve)
                    }));
                }
                self.gate.mark_accepting();
                while accepting.join_next().await.is_some() {}
            }
            Err(error) => {
                tracing::error!(%error, service = self.name, "cannot accept connections; this gateway does not become ready")
            }
        }
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn threads(&self) -> Option<usize> {
        Some(1)
    }
}

/// Accepts connections, and calls `serve` for each.
pub(super) async fn accept(
    listener: Arc<Acceptor>,
    gate: Arc<AcceptGate>,
    until: AcceptsUntil,
    serve: impl Fn(RawSocket, ArrivalGuard),
) {
    loop {
        let accepting = gate.count_accepting();
        accept_while(&listener, &gate, Phase::accepts, &serve).await;
        drop(accepting);
        if gate.lifecycle().wait_for(|phase| !phase.is_pause()).await.is_stopping() {
            break;
        }
    }
    if until == AcceptsUntil::End && !gate.lifecycle().is_handed_over() {
        accept_while(&listener, &gate, |_| true, &serve).await;
    }
}

/// Accepts connections in the phases that `accepts` returns true for.
async fn accept_while(
    listener: &Acceptor,
    gate: &AcceptGate,
    accepts: impl Fn(Phase) -> bool,
    serve: &impl Fn(RawSocket, ArrivalGuard),
) {
    let mut refuses = pin!(gate.lifecycle().wait_for(|phase| !accepts(phase)));
    loop {
        let accepted = tokio::select! {
            biased;
            _ = &mut refuses => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(socket) => {
                failpoint("accept");
                serve(socket, gate.traffic().arrive());
                // in a burst, lets connections over the limit close before the next is accepted
                yield_now().await;
            }
            Err(error) if is_over(&error) => {}
            Err(error) => {
                if gate.should_log() {
                    tracing::error!(%error, "cannot accept connections; new connections wait in the backlog; retrying");
                }
                // without a pause the same error returns at once; no event says when a descriptor becomes free
                sleep(ACCEPT_RETRY_INTERVAL.to_duration()).await;
            }
        }
    }
}

/// Whether an error concerns one connection only, which ended before it was accepted.
fn is_over(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset)
}

async fn serve<A: ServerApp + Send + Sync>(
    app: Arc<A>,
    stream: Stream,
    shutdown: ShutdownWatch,
    arriving: ArrivalGuard,
) {
    let mut serving = pin!(async {
        let mut next = Some(stream);
        while let Some(stream) = next {
            next = app.process_new(stream, &shutdown).await;
        }
    });
    let mut arriving = Some(arriving);
    poll_fn(|task| {
        let polled = serving.as_mut().poll(task);
        // by now the application has counted the connection, if it counts any
        drop(arriving.take());
        polled
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::watch;

    use super::*;
    use crate::clock::{Clock, ManualClock};
    use crate::runtime::accept_gate::ListenAddresses;

    /// Port 0: the system chooses the port.
    const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    /// Sends the client's address, and then all bytes that it receives.
    struct Echo;

    #[async_trait]
    impl ServerApp for Echo {
        async fn process_new(self: &Arc<Self>, mut stream: Stream, _: &ShutdownWatch) -> Option<Stream> {
            let peer = stream.get_socket_digest()?.peer_addr()?.to_string();
            stream.write_all(peer.as_bytes()).await.ok()?;
            let mut received = Vec::new();
            stream.read_to_end(&mut received).await.ok()?;
            stream.write_all(&received).await.ok()?;
            stream.flush().await.ok()?;
            None
        }
    }

    fn echo(listener: Socket, gate: &Arc<AcceptGate>) -> AppListener<Echo> {
        AppListener::new("echo".to_owned(), vec![listener], Echo, Arc::clone(gate), AcceptsUntil::Stop)
    }

    fn gate(services: usize) -> (Arc<AcceptGate>, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::new(Nanos::SECOND));
        let addresses = ListenAddresses { clients: Vec::new(), operators: ANY };
        let shared = (Arc::default(), Arc::clone(&clock) as Arc<dyn Clock>);
        (Arc::new(AcceptGate::new(services, addresses, shared, Vec::new())), clock)
    }

    #[test]
    fn an_address_in_use_is_an_error() {
        let in_use = |result: io::Result<()>| result.is_err_and(|error| error.kind() == ErrorKind::AddrInUse);
        for holders in [open(ANY, 1).unwrap(), open(ANY, 2).unwrap()] {
            let address = holders[0].inet().unwrap();
            assert!(in_use(probe(address)));
            assert!(in_use(open(address, 1).map(drop)));
            drop(holders);
            probe(address).unwrap();
        }
    }

    #[test]
    fn shared_sockets_are_on_one_port_and_each_gets_connections() {
        let listeners = open(ANY, 2).unwrap();
        let addresses: Vec<SocketAddr> = listeners.iter().map(|listener| listener.inet().unwrap()).collect();
        assert_eq!(addresses[0], addresses[1]);
        let clients: Vec<TcpStream> = (0..128).map(|_| TcpStream::connect(addresses[0]).unwrap()).collect();
        let got: Vec<usize> = listeners
            .into_iter()
            .map(|listener| listener.into_tcp().incoming().map_while(Result::ok).count())
            .collect();
        assert_eq!(got.iter().sum::<usize>(), clients.len());
        assert!(got.iter().all(|got| *got > 0), "{got:?}");
    }

    #[tokio::test]
    async fn a_connection_from_before_the_start_is_served() {
        let listener = open(ANY, 1).unwrap().remove(0);
        let mut client = TcpStream::connect(listener.inet().unwrap()).unwrap();
        let (gate, _) = gate(2);
        let (_stop, shutdown) = watch::channel(false);
        let mut service = echo(listener, &gate);
        let served = tokio::spawn(async move { service.start_service(None, shutdown, 1).await });
        let said = tokio::task::spawn_blocking(move || {
            client.write_all(b" hello").unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
            let mut said = String::new();
            client.read_to_string(&mut said).unwrap();
            (said, client.local_addr().unwrap())
        });
        let (said, peer) = said.await.unwrap();
        assert_eq!(said, format!("{peer} hello"));
        assert_eq!(gate.lifecycle().phase(), Phase::Starting, "one service of two");
        gate.mark_accepting();
        assert_eq!(gate.lifecycle().phase(), Phase::Serving);
        gate.close().await;
        served.await.unwrap();
        assert_eq!(gate.lifecycle().phase(), Phase::Draining);
    }

    #[tokio::test]
    async fn connections_wait_during_a_pause() {
        let listener = open(ANY, 1).unwrap().remove(0);
        let address = listener.inet().unwrap();
        let (gate, _) = gate(1);
        let (_stop, shutdown) = watch::channel(false);
        let mut service = echo(listener, &gate);
        let served = tokio::spawn(async move { service.start_service(None, shutdown, 1).await });
        gate.pause().await;
        let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
        let mut said = [0; 9];
        yield_now().await;
        assert_eq!(client.try_read(&mut said).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert!(gate.traffic().is_draining());
        gate.open();
        client.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"127.0.0.1");
        assert!(!gate.traffic().is_draining());
        drop(client);
        gate.close().await;
        served.await.unwrap();
    }

    #[test]
    fn each_service_gets_a_socket_and_each_socket_a_service() {
        let counts = |sockets, services| -> Vec<usize> {
            spread(&open(ANY, sockets).unwrap(), services).unwrap().iter().map(Vec::len).collect()
        };
        assert_eq!(counts(1, 3), [1, 1, 1]);
        assert_eq!(counts(3, 2), [2, 1]);
        assert_eq!(counts(2, 3), [1, 1, 1]);
    }

    #[test]
    fn complaints_are_a_second_apart() {
        let (gate, clock) = gate(1);
        let mut logged = 0;
        for _ in 0..300 {
            logged += usize::from(gate.should_log());
            clock.set(clock.now().saturating_add(ACCEPT_RETRY_INTERVAL));
        }
        assert_eq!(logged, 3);
        assert!(
            ACCEPT_RETRY_INTERVAL.to_duration() < Duration::from_millis(100),
            "who waits for a descriptor waits for this"
        );
    }
}
