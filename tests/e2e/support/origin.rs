//! The upstream: a small HTTP/1.1 server that records the bytes of every request, and misbehaves on demand.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::wire::{Framing, Head, Wire, chunk};
use super::{PATIENCE, now, pattern, wait_until};

/// A running upstream; dropping this stops it.
pub struct Origin {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

/// A request that reached the upstream.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    pub head: Head,
    /// The part of the body that was read.
    pub body: Vec<u8>,
    /// The number of the connection.
    pub connection: usize,
    /// The time at which the head was complete.
    pub at: Instant,
}

impl ReceivedRequest {
    pub fn target(&self) -> &str {
        self.head.word(1)
    }
}

type Handler = dyn Fn(&mut Exchange<'_>) -> io::Result<()> + Send + Sync;

struct Shared {
    handler: Box<Handler>,
    seen: Mutex<Vec<ReceivedRequest>>,
    checks: AtomicUsize,
    healthy: AtomicBool,
    stopping: AtomicBool,
    connections: Mutex<Vec<TcpStream>>,
}

/// A request that the upstream is answering.
pub struct Exchange<'w> {
    pub head: Head,
    pub wire: &'w mut Wire,
    pub framing: Framing,
    shared: &'w Shared,
    number: usize,
    /// Whether the connection serves another request afterwards.
    pub keep: bool,
}

impl Origin {
    /// Starts an upstream that answers by the path, see [`by_path`].
    pub fn start() -> Self {
        Self::with(by_path)
    }

    /// Starts an upstream at this address that answers by the path.
    pub fn at(address: SocketAddr) -> Self {
        Self::on(TcpListener::bind(address).unwrap(), by_path)
    }

    /// Starts an upstream that answers with `handler`; if that fails, it closes the connection.
    pub fn with(handler: impl Fn(&mut Exchange<'_>) -> io::Result<()> + Send + Sync + 'static) -> Self {
        Self::on(TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(), handler)
    }

    fn on(
        listener: TcpListener,
        handler: impl Fn(&mut Exchange<'_>) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            handler: Box::new(handler),
            seen: Mutex::default(),
            checks: AtomicUsize::new(0),
            healthy: AtomicBool::new(true),
            stopping: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accept(&listener, &accepting));
        Self { address, shared }
    }

    /// Starts an upstream that sends a chunk for each command; the last command is empty.
    pub fn on_command() -> (Sender<&'static [u8]>, Self) {
        let (command, commands) = channel::<&'static [u8]>();
        let commands = Mutex::new(commands);
        let origin = Self::with(move |exchange| {
            exchange.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
            while let Ok(bytes) = commands.lock().recv_timeout(PATIENCE) {
                exchange.send(chunk(bytes))?;
                if bytes.is_empty() {
                    break;
                }
            }
            Ok(())
        });
        (command, origin)
    }

    /// All requests in their order, without health checks.
    pub fn received(&self) -> Vec<ReceivedRequest> {
        self.shared.seen.lock().clone()
    }

    /// Stops the upstream. Returns all requests that it received: it answers none that are not among them.
    pub fn stop(self) -> Vec<ReceivedRequest> {
        let shared = Arc::clone(&self.shared);
        drop(self);
        let seen = shared.seen.lock();
        seen.clone()
    }

    /// The only request so far.
    #[track_caller]
    pub fn only(&self) -> ReceivedRequest {
        let seen = self.received();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen.into_iter().next().unwrap()
    }

    pub fn count(&self) -> usize {
        self.shared.seen.lock().len()
    }

    pub fn wait_for_count(&self, count: usize) {
        wait_until(&format!("{count} requests at the upstream"), || self.count() >= count);
    }

    /// The number of health checks so far.
    pub fn checks(&self) -> usize {
        self.shared.checks.load(Ordering::Relaxed)
    }

    /// Sets the answer to health checks.
    pub fn set_healthy(&self, healthy: bool) {
        self.shared.healthy.store(healthy, Ordering::Relaxed);
    }

    /// The upstream as a node in a configuration.
    pub fn node(&self) -> String {
        format!("\"{}\"", self.address)
    }

    /// The section `upstreams:` with this as the only upstream, named `origin`.
    pub fn upstream(&self) -> String {
        self.upstream_with("")
    }

    /// The same with more settings of the upstream.
    pub fn upstream_with(&self, more: &str) -> String {
        upstream(&[self.node()], more)
    }
}

/// The section `upstreams:` with an upstream `origin` of these nodes, and more settings.
pub fn upstream(nodes: &[String], more: &str) -> String {
    let comma = if more.is_empty() { "" } else { ", " };
    format!("upstreams: {{ origin: {{ nodes: [{}]{comma}{more} }} }}\n", nodes.join(", "))
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.address));
        for connection in self.shared.connections.lock().drain(..) {
            drop(connection.shutdown(std::net::Shutdown::Both));
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for (number, stream) in listener.incoming().enumerate() {
        if shared.stopping.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else { continue };
        shared.connections.lock().push(stream.try_clone().unwrap());
        let shared = Arc::clone(shared);
        std::thread::spawn(move || {
            let mut wire = Wire::new(stream);
            wire.stream.set_read_timeout(None).unwrap();
            // However a connection ends, the recorded bytes stay for the test.
            drop(serve(&mut wire, &shared, number));
            wire.close();
        });
    }
}

fn serve(wire: &mut Wire, shared: &Shared, connection: usize) -> io::Result<()> {
    while let Some(head) = wire.head()? {
        if head.word(1) == "/healthz" {
            shared.checks.fetch_add(1, Ordering::Relaxed);
            let status = if shared.healthy.load(Ordering::Relaxed) { "200 OK" } else { "503 Service Unavailable" };
            wire.send(format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n"))?;
            continue;
        }
        let framing = Framing::of_request(&head);
        let number = {
            let mut seen = shared.seen.lock();
            seen.push(ReceivedRequest { head: head.clone(), body: Vec::new(), connection, at: now() });
            seen.len() - 1
        };
        let mut exchange = Exchange { head, wire, framing, shared, number, keep: true };
        (shared.handler)(&mut exchange)?;
        if !exchange.keep {
            return Ok(());
        }
    }
    Ok(())
}

impl Exchange<'_> {
    pub fn method(&self) -> &str {
        self.head.word(0)
    }

    /// The number of the connection.
    pub fn connection(&self) -> usize {
        self.shared.seen.lock()[self.number].connection
    }

    /// The number of requests so far, including this one.
    pub fn received_count(&self) -> usize {
        self.shared.seen.lock().len()
    }

    /// The path without its query.
    pub fn path(&self) -> &str {
        self.head.word(1).split('?').next().unwrap_or_default()
    }

    /// The next part of the request's body; `None` at its end.
    pub fn part(&mut self) -> io::Result<Option<Vec<u8>>> {
        let part = self.wire.part(&mut self.framing)?;
        if let (Some(part), Some(seen)) = (&part, self.shared.seen.lock().get_mut(self.number)) {
            seen.body.extend(part);
        }
        Ok(part)
    }

    /// The whole body of the request.
    pub fn body(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        while let Some(part) = self.part()? {
            body.extend(part);
        }
        Ok(body)
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.wire.send(bytes)
    }

    /// Sends a response with a content length. `fields` are whole lines.
    pub fn reply(&mut self, status: &str, fields: &str, body: &[u8]) -> io::Result<()> {
        let shown = if self.method() == "HEAD" { &[] } else { body };
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{fields}\r\n", body.len());
        self.send([head.as_bytes(), shown].concat())
    }

    /// Waits until the other side closes the connection.
    pub fn wait_for_end(&mut self) -> io::Result<()> {
        while !self.wire.is_ended() {}
        Err(io::ErrorKind::ConnectionAborted.into())
    }
}

/// Answers by the path:
///
/// `/echo` the request's body in the same framing; `/bytes/N` N bytes of [`pattern`]; `/chunked/N` the same in chunks;
/// `/status/N` that status; `/stall` no answer; `/drip` a head that never ends, byte by byte; `/half` half of the announced
/// length; `/half-chunk` half a chunk; `/drop` closes without an answer; `/closing` answers, then closes without
/// `connection: close`; any other path gets a short text.
pub fn by_path(exchange: &mut Exchange<'_>) -> io::Result<()> {
    let path = exchange.path().to_owned();
    let mut segments = path.split('/').skip(1);
    let (verb, argument) = (segments.next().unwrap_or_default(), segments.next().unwrap_or_default());
    if verb == "stall" {
        return exchange.wait_for_end();
    }
    if !exchange.head.all("expect").is_empty() {
        exchange.send("HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let in_chunks = exchange.framing == Framing::Chunks;
    let body = exchange.body()?;
    match verb {
        "echo" if in_chunks => {
            exchange.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
            send_in_chunks(exchange, &body)
        }
        "echo" => exchange.reply("200 OK", "", &body),
        "bytes" => exchange.reply("200 OK", "", &pattern(argument.parse().unwrap())),
        "chunked" => {
            exchange.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
            send_in_chunks(exchange, &pattern(argument.parse().unwrap()))
        }
        "status" => exchange.reply(&format!("{argument} Whatever"), "", b"as you wish\n"),
        "drip" => {
            exchange.send("HTTP/1.1 200 OK\r\nx-long: ")?;
            loop {
                exchange.send("x")?;
                std::thread::park_timeout(Duration::from_millis(20));
            }
        }
        "half" => {
            exchange.keep = false;
            exchange.send("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")?;
            exchange.send(pattern(500))
        }
        "half-chunk" => {
            exchange.keep = false;
            exchange.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
            exchange.send(chunk(pattern(100)))?;
            exchange.send(&chunk(pattern(100))[..50])
        }
        "drop" => {
            exchange.keep = false;
            Ok(())
        }
        "closing" => {
            exchange.keep = false;
            exchange.reply("200 OK", "", b"ok\n")
        }
        _ => exchange.reply("200 OK", "content-type: text/plain\r\n", b"ok\n"),
    }
}

fn send_in_chunks(exchange: &mut Exchange<'_>, body: &[u8]) -> io::Result<()> {
    for part in body.chunks(50_000) {
        exchange.send(chunk(part))?;
    }
    exchange.send(chunk(b""))
}

/// A node that refuses every connection; the port stays reserved as long as this exists.
#[derive(Debug)]
pub struct RefusingNode(tokio::net::TcpSocket);

impl RefusingNode {
    pub fn new() -> Self {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        Self(socket)
    }

    pub fn node(&self) -> String {
        format!("\"{}\"", self.0.local_addr().unwrap())
    }
}

/// A node that neither accepts nor refuses: its queue of connections is full.
#[derive(Debug)]
pub struct SilentNode {
    address: SocketAddr,
    _queue: (tokio::runtime::Runtime, tokio::net::TcpListener, Vec<TcpStream>),
}

impl SilentNode {
    pub fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let listener = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
            socket.listen(1).unwrap()
        });
        let address = listener.local_addr().unwrap();
        let connect = || TcpStream::connect_timeout(&address, Duration::from_millis(300)).ok();
        let waiting = std::iter::from_fn(connect).collect();
        Self { address, _queue: (runtime, listener, waiting) }
    }

    pub fn node(&self) -> String {
        format!("\"{}\"", self.address)
    }
}
