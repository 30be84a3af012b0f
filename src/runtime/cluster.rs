//! The gateway's part in its cluster: serves the other gateways, and exchanges heartbeats with them.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use async_trait::async_trait;
use pingora::server::{ListenFds, ShutdownWatch};
use pingora::services::Service;
use tokio::net::TcpStream;
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::JoinSet;
use tokio::time::sleep;

use super::accept_gate::AcceptGate;
use super::listen::ACCEPT_RETRY_INTERVAL;
use super::socket::Socket;
use crate::lifecycle::Phase;
use crate::panics::catch_panic;
use crate::store::Store;

/// The maximum number of connections that are accepted and not served yet.
const MAX_WAITING: usize = 64;

/// Serves other gateways in a thread of its own.
pub(super) struct ClusterListener {
    listeners: Vec<Socket>,
    store: Arc<Store>,
    gate: Arc<AcceptGate>,
}

impl ClusterListener {
    pub(super) const fn new(listeners: Vec<Socket>, store: Arc<Store>, gate: Arc<AcceptGate>) -> Self {
        Self { listeners, store, gate }
    }
}

#[async_trait]
impl Service for ClusterListener {
    async fn start_service(&mut self, _: Option<ListenFds>, _: ShutdownWatch, _: usize) {
        let Some(cluster) = self.store.cluster() else { return };
        let listener = |socket: Socket| tokio::net::TcpListener::from_std(socket.into_tcp()).map(Arc::new);
        let listeners = match self.listeners.drain(..).map(listener).collect::<io::Result<Vec<_>>>() {
            Ok(listeners) => listeners,
            Err(error) => {
                tracing::error!(%error, "cannot accept connections of other gateways; this gateway does not become ready");
                return;
            }
        };
        self.gate.mark_accepting();
        let lifecycle = self.gate.lifecycle();
        loop {
            let (sender, accepted) = channel(MAX_WAITING);
            let mut accepting = JoinSet::new();
            for listener in &listeners {
                accepting.spawn(accept(Arc::clone(listener), sender.clone()));
            }
            tokio::select! {
                // it ends only by a panic, and then starts again
                _ = catch_panic(cluster.run(Arc::clone(&self.store) as _, accepted)) => {}
                // the state that is handed over must not change; requests in flight finish without the keys of this
                // gateway
                _ = lifecycle.wait_for(Phase::is_pause) => {}
            }
            drop(accepting);
            if lifecycle.wait_for(|phase| !phase.is_pause()).await.is_stopping() {
                // the successor listens on the address now
                return;
            }
        }
    }

    fn name(&self) -> &str {
        "cluster"
    }

    fn threads(&self) -> Option<usize> {
        Some(1)
    }
}

async fn accept(listener: Arc<tokio::net::TcpListener>, accepted: Sender<(TcpStream, SocketAddr)>) {
    loop {
        match listener.accept().await {
            Ok(connection) => {
                if accepted.send(connection).await.is_err() {
                    return;
                }
            }
            // the error may be of one connection only, or it would return at once: wait either way
            Err(_) => sleep(ACCEPT_RETRY_INTERVAL.to_duration()).await,
        }
    }
}
