//! What the services of a process have in common: their sockets, and how accepting from them begins, pauses and ends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::socket::Socket;
use crate::clock::Clock;
use crate::http::traffic::Traffic;
use crate::lifecycle::Lifecycle;
use crate::ruleset::Endpoint;
use crate::units::Nanos;

/// How long new connections have to ask for something before what is going on goes on without them.
const SETTLE: Duration = Duration::from_millis(250);
/// How often it is looked whether they have.
const LOOK: Duration = Duration::from_millis(2);
/// A condition that lasts is told of once in this time.
const QUIET: Nanos = Nanos::SECOND;

/// What is logged once every service accepts.
#[derive(Debug)]
pub(super) struct ListenAddresses {
    pub(super) clients: Vec<Endpoint>,
    pub(super) operators: SocketAddr,
}

/// What the services of a process have in common.
pub(super) struct AcceptGate {
    /// How many services do not accept yet.
    starting: AtomicUsize,
    addresses: ListenAddresses,
    traffic: Arc<Traffic>,
    clock: Arc<dyn Clock>,
    /// How many sockets are accepted from.
    accepting: watch::Sender<usize>,
    /// All sockets, for a successor.
    sockets: Mutex<Vec<Socket>>,
    quiet_until: Mutex<Nanos>,
    /// Who is told that every service accepts.
    opened: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl AcceptGate {
    /// For so many services.
    pub(super) fn new(
        services: usize,
        addresses: ListenAddresses,
        (traffic, clock): (Arc<Traffic>, Arc<dyn Clock>),
        sockets: Vec<Socket>,
    ) -> Self {
        Self {
            starting: AtomicUsize::new(services),
            addresses,
            traffic,
            clock,
            accepting: watch::Sender::new(0),
            sockets: Mutex::new(sockets),
            quiet_until: Mutex::new(Nanos::ZERO),
            opened: Mutex::new(None),
        }
    }

    /// Calls `then` once every service accepts.
    pub(super) fn when_open(self, then: impl FnOnce() + Send + 'static) -> Self {
        Self { opened: Mutex::new(Some(Box::new(then))), ..self }
    }

    /// One more service accepts; each says so once.
    pub(super) fn opened(&self) {
        if self.starting.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.lifecycle().serve();
            for address in &self.addresses.clients {
                tracing::info!(%address, "listening for clients");
            }
            tracing::info!(address = %self.addresses.operators, "listening for operators");
            if let Some(then) = self.opened.lock().take() {
                then();
            }
        }
    }

    /// Whether connections are accepted, and what follows.
    pub(super) fn lifecycle(&self) -> &Lifecycle {
        &self.traffic.lifecycle
    }

    /// From here on a socket is accepted from, until this is dropped.
    pub(super) fn accept(self: &Arc<Self>) -> Accepting {
        self.accepting.send_modify(|count| *count = count.saturating_add(1));
        Accepting(Arc::clone(self))
    }

    /// Where connections that were accepted are counted.
    pub(super) const fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    /// The sockets, for another process to accept from too.
    pub(super) fn sockets(&self) -> std::io::Result<Vec<Socket>> {
        self.sockets.lock().iter().map(Socket::try_clone).collect()
    }

    /// Accepts no more, and lets every connection end after what it is asked by now. Returns when no further request is
    /// to be expected, apart from those of connections that are in no hurry.
    pub(super) async fn pause(&self) {
        self.lifecycle().pause();
        self.settle().await;
    }

    /// Takes [`AcceptGate::pause`] back.
    pub(super) fn open(&self) {
        self.lifecycle().resume();
    }

    /// Like [`AcceptGate::pause`], and for good.
    pub(super) async fn close(&self) {
        self.lifecycle().close();
        self.sockets.lock().clear();
        self.settle().await;
    }

    /// Waits for requests that have begun to come in, and drains.
    async fn settle(&self) {
        let settled = async {
            // Their sender is in this value.
            drop(self.accepting.subscribe().wait_for(|accepting| *accepting == 0).await);
            while self.traffic.awaits_requests() {
                sleep(LOOK).await;
            }
        };
        // A client may connect and say nothing.
        drop(timeout(SETTLE, settled).await);
        self.lifecycle().drain();
    }

    /// Whether to tell that connections wait, which is not told again a moment later.
    pub(super) fn may_complain(&self) -> bool {
        let now = self.clock.now();
        let mut quiet_until = self.quiet_until.lock();
        let may = now >= *quiet_until;
        if may {
            *quiet_until = now.saturating_add(QUIET);
        }
        may
    }
}

/// See [`AcceptGate::accept`].
pub(super) struct Accepting(Arc<AcceptGate>);

impl Drop for Accepting {
    fn drop(&mut self) {
        self.0.accepting.send_modify(|count| *count = count.saturating_sub(1));
    }
}
