//! Gateways that each run on a thread of their own, behind a network that delays what they say to each other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Handle};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use tollgate::cluster::state_service::StateService;
use tollgate::units::Nanos;

use crate::node::Node;

/// The addresses at which gateways reach each other, whether one runs there or not.
pub(crate) struct Network {
    pub(crate) addresses: Vec<SocketAddr>,
    /// To the gateway that runs behind each address.
    ways: Vec<mpsc::UnboundedSender<Option<SocketAddr>>>,
    _running: JoinSet<()>,
}

impl Network {
    /// Each byte takes from `delay` to three times as long, one way.
    pub(crate) async fn new(count: usize, delay: Duration) -> Self {
        let (mut addresses, mut ways, mut running) = (Vec::new(), Vec::new(), JoinSet::new());
        for _ in 0..count {
            let outside = TcpListener::bind("127.0.0.1:0").await.unwrap();
            addresses.push(outside.local_addr().unwrap());
            let (way, mut behind) = mpsc::unbounded_channel();
            ways.push(way);
            running.spawn(async move {
                let mut inside = None;
                let mut pipes = JoinSet::new();
                loop {
                    tokio::select! {
                        Some(moved) = behind.recv() => {
                            inside = moved;
                            pipes.abort_all();
                        }
                        Ok((came, _)) = outside.accept() => {
                            if let Some(inside) = inside {
                                pipes.spawn(pipe(came, inside, delay));
                            }
                        }
                    }
                }
            });
        }
        Self { addresses, ways, _running: running }
    }

    /// Starts a gateway behind the address of this number.
    pub(crate) async fn start(&self, number: usize, burst: u64, timeout: Nanos) -> Gateway {
        let (own, members) = (self.addresses[number], self.addresses.clone());
        let (started, starting) = oneshot::channel();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let node = Arc::new(Node::new(own, &members, burst, timeout));
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let (sender, accepted) = mpsc::channel(8);
                let inside = listener.local_addr().unwrap();
                assert!(started.send((Arc::clone(&node), Handle::current(), inside)).is_ok());
                let accepting = async {
                    while let Ok(connection) = listener.accept().await {
                        drop(sender.send(connection).await);
                    }
                };
                let service = Arc::clone(&node.store) as Arc<dyn StateService>;
                tokio::select! {
                    () = node.cluster().run(service, accepted) => {}
                    () = accepting => {}
                    _ = stopped => {}
                }
            });
        });
        let (node, runtime, inside) = starting.await.unwrap();
        self.ways[number].send(Some(inside)).unwrap();
        Gateway { number, node, runtime, way: self.ways[number].clone(), stop: Some(stop), thread: Some(thread) }
    }
}

/// A gateway that runs until it is dropped.
pub(crate) struct Gateway {
    pub(crate) number: usize,
    pub(crate) node: Arc<Node>,
    runtime: Handle,
    way: mpsc::UnboundedSender<Option<SocketAddr>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Gateway {
    /// Begins to do `work` on the gateway's own thread.
    pub(crate) fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.spawn(work)
    }

    /// Does it.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        self.spawn(work).await.unwrap()
    }

    /// Waits until it is ready.
    pub(crate) async fn connect(&self) {
        let node = Arc::clone(&self.node);
        self.run(async move { node.store.connect().await }).await;
    }

    /// Nothing of it happens for as long.
    #[expect(clippy::disallowed_methods, reason = "the thread itself has to hang")]
    pub(crate) async fn hang(&self, time: Duration) {
        self.run(async move { std::thread::sleep(time) }).await;
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.way.send(None).ok();
        self.stop.take().and_then(|stop| stop.send(()).ok());
        drop(self.thread.take().map(std::thread::JoinHandle::join));
    }
}

async fn pipe(came: TcpStream, inside: SocketAddr, delay: Duration) {
    let Ok(goes) = TcpStream::connect(inside).await else { return };
    drop((came.set_nodelay(true), goes.set_nodelay(true)));
    let ((from, back), (answers, to)) = (came.into_split(), goes.into_split());
    tokio::select! {
        () = slowly(from, to, delay) => {}
        () = slowly(answers, back, delay) => {}
    }
}

/// Passes on what comes, in its order.
#[expect(clippy::disallowed_methods, reason = "bytes are late in real time")]
async fn slowly(mut from: impl AsyncReadExt + Unpin, mut to: impl AsyncWriteExt + Unpin, delay: Duration) {
    let (sender, mut parts) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let reading = async {
        let (mut bytes, mut number) = (vec![0; 65_536], 0_u32);
        while let Ok(length @ 1..) = from.read(&mut bytes).await {
            number = number.wrapping_mul(7).wrapping_add(3) % 11;
            let due = Instant::now() + delay + delay * number / 5;
            if sender.send((due, bytes[..length].to_vec())).is_err() {
                return;
            }
        }
        // what is on its way arrives
        sleep(delay * 4).await;
    };
    let writing = async {
        while let Some((due, part)) = parts.recv().await {
            sleep_until(due).await;
            if to.write_all(&part).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = reading => {}
        () = writing => {}
    }
}
