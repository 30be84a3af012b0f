//! The threads that serve clients (workers).

use std::convert::Infallible;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::runtime::{Builder, LocalOptions};
use tokio::sync::mpsc;

use super::accept_gate::AcceptGate;
use super::listen::{AcceptsUntil, accept};
use super::socket::{Acceptor, Socket};
use crate::clock::WorkerClock;
use crate::gateway::{Gateway, WorkerGateway};
use crate::http::dispatch::{HandedOverConnection, Workers, accepted, receive};
use crate::http::idle::IdleConnections;
use crate::http::limiter::ConnectionLimiter;
use crate::http::worker::{EngineState, Worker};
use crate::panics::restart_on_panic;
use crate::stripes;

/// The worker threads. Each worker has a socket of its own at every address.
pub(super) struct WorkerThreads {
    threads: Vec<Thread>,
}

/// The parts of one worker's thread.
struct Thread {
    number: usize,
    /// The worker's sockets, each with the position of its listener.
    sockets: Vec<(usize, Socket)>,
    received: mpsc::UnboundedReceiver<HandedOverConnection>,
    workers: Arc<Workers>,
    gateway: Gateway,
    shared: EngineState,
    gate: Arc<AcceptGate>,
    kept: usize,
}

impl WorkerThreads {
    /// Workers at `listeners` addresses, each with its `sockets` and with at most `kept` idle connections to upstreams for
    /// further requests.
    pub(super) fn new(
        sockets: Vec<Vec<(usize, Socket)>>,
        listeners: usize,
        gateway: &Gateway,
        gate: &Arc<AcceptGate>,
        kept: usize,
    ) -> Self {
        let shared = EngineState {
            traffic: Arc::clone(&gateway.traffic),
            limiter: Arc::new(ConnectionLimiter::new(listeners)),
            idle: Arc::new(IdleConnections::new(listeners)),
        };
        let (workers, received) = Workers::new(sockets.len());
        let threads = sockets.into_iter().zip(received).enumerate().map(|(number, (sockets, received))| Thread {
            number,
            sockets,
            received,
            workers: Arc::clone(&workers),
            shared: shared.clone(),
            gateway: gateway.clone(),
            gate: Arc::clone(gate),
            kept,
        });
        Self { threads: threads.collect() }
    }
}

impl WorkerThreads {
    /// Starts the threads. A thread ends before the process only if it cannot go on.
    pub(super) fn start(self) -> io::Result<Vec<JoinHandle<io::Result<Infallible>>>> {
        let start = |thread: Thread| {
            let name = format!("worker {}", thread.number);
            std::thread::Builder::new().name(name).spawn(move || thread.run())
        };
        self.threads.into_iter().map(start).collect()
    }
}

impl Thread {
    /// Serves connections until the process ends.
    fn run(self) -> io::Result<Infallible> {
        let runtime = Builder::new_current_thread().enable_all().build_local(LocalOptions::default())?;
        runtime.block_on(self.serve())
    }

    async fn serve(self) -> io::Result<Infallible> {
        let Self { number, sockets, received, workers, gateway, shared, gate, kept } = self;
        stripes::enter(number);
        let store = Arc::clone(&gateway.store);
        let clock = WorkerClock::new(Arc::clone(&gateway.clock));
        let worker = Rc::new(Worker::new(WorkerGateway::new(gateway, Rc::clone(&clock)), clock, shared, kept));
        let acceptors: io::Result<Vec<(usize, Arc<Acceptor>)>> = sockets
            .into_iter()
            .map(|(listener, socket)| Acceptor::new(socket).map(|acceptor| (listener, Arc::new(acceptor))))
            .collect();
        let acceptors = acceptors?;
        store.connect().await;
        for (listener, acceptor) in acceptors {
            let (worker, workers, gate) = (Rc::clone(&worker), Arc::clone(&workers), Arc::clone(&gate));
            tokio::task::spawn_local(restart_on_panic(move || {
                let (worker, workers) = (Rc::clone(&worker), Arc::clone(&workers));
                let serve = move |socket, arriving| accepted(&worker, (&workers, number), listener, socket, arriving);
                accept(Arc::clone(&acceptor), Arc::clone(&gate), AcceptsUntil::Stop, serve)
            }));
        }
        let (sweeping, receiving) = (Rc::clone(&worker), Rc::clone(&worker));
        tokio::task::spawn_local(async move { sweeping.sweep().await });
        tokio::task::spawn_local(async move { receive(&receiving, received).await });
        gate.mark_accepting();
        // connections go on until they end or the process ends
        std::future::pending().await
    }
}
