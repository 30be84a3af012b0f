//! The gate that all services of a process accept through: it holds their sockets, and starts, pauses and ends accepting.

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

/// How long new connections may take to send their first request before a pause or shutdown goes on without them.
const SETTLE_TIMEOUT: Duration = Duration::from_millis(250);
/// How often the gate checks whether they have.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// The least time between two log lines about the same lasting problem.
const LOG_INTERVAL: Nanos = Nanos::SECOND;

/// The addresses, which are logged once every service accepts.
#[derive(Debug)]
pub(super) struct ListenAddresses {
    pub(super) clients: Vec<Endpoint>,
    pub(super) operators: SocketAddr,
}

/// The state that all services of a process share.
pub(super) struct AcceptGate {
    /// The number of services that do not accept yet.
    starting: AtomicUsize,
    addresses: ListenAddresses,
    traffic: Arc<Traffic>,
    clock: Arc<dyn Clock>,
    /// The number of sockets that services accept from.
    accepting: watch::Sender<usize>,
    /// All sockets, for a successor.
    sockets: Mutex<Vec<Socket>>,
    quiet_until: Mutex<Nanos>,
    /// Called once every service accepts.
    on_open: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl AcceptGate {
    /// A gate for `services` services.
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
            on_open: Mutex::new(None),
        }
    }

    /// Calls `then` once every service accepts.
    pub(super) fn when_open(self, then: impl FnOnce() + Send + 'static) -> Self {
        Self { on_open: Mutex::new(Some(Box::new(then))), ..self }
    }

    /// Notes that one more service accepts; each service calls this once.
    pub(super) fn mark_accepting(&self) {
        if self.starting.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.lifecycle().serve();
            for address in &self.addresses.clients {
                tracing::info!(%address, "listening for clients");
            }
            tracing::info!(address = %self.addresses.operators, "listening for operators");
            if let Some(then) = self.on_open.lock().take() {
                then();
            }
        }
    }

    /// The phase of the process, which says whether services accept connections.
    pub(super) fn lifecycle(&self) -> &Lifecycle {
        &self.traffic.lifecycle
    }

    /// Counts a socket as accepting until the returned value is dropped.
    pub(super) fn count_accepting(self: &Arc<Self>) -> Accepting {
        self.accepting.send_modify(|count| *count = count.saturating_add(1));
        Accepting(Arc::clone(self))
    }

    /// The counts of accepted connections and their requests.
    pub(super) const fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }

    /// The sockets, for another process to accept from too.
    pub(super) fn sockets(&self) -> std::io::Result<Vec<Socket>> {
        self.sockets.lock().iter().map(Socket::try_clone).collect()
    }

    /// Stops accepting, and lets every connection end after its current request. Returns when no further request is
    /// expected, except on connections that have sent nothing within [`SETTLE_TIMEOUT`].
    pub(super) async fn pause(&self) {
        self.lifecycle().pause();
        self.settle().await;
    }

    /// Undoes [`AcceptGate::pause`].
    pub(super) fn open(&self) {
        self.lifecycle().resume();
    }

    /// Like [`AcceptGate::pause`], but final.
    pub(super) async fn close(&self) {
        self.lifecycle().close();
        self.sockets.lock().clear();
        self.settle().await;
    }

    /// Waits for requests that have begun to arrive, then drains.
    async fn settle(&self) {
        let settled = async {
            // never an error: `self` holds the sender
            drop(self.accepting.subscribe().wait_for(|accepting| *accepting == 0).await);
            while self.traffic.awaits_requests() {
                sleep(CHECK_INTERVAL).await;
            }
        };
        // a client may connect and send nothing
        drop(timeout(SETTLE_TIMEOUT, settled).await);
        self.lifecycle().drain();
    }

    /// Whether to log that connections wait: at most once in [`LOG_INTERVAL`].
    pub(super) fn should_log(&self) -> bool {
        let now = self.clock.now();
        let mut quiet_until = self.quiet_until.lock();
        let may = now >= *quiet_until;
        if may {
            *quiet_until = now.saturating_add(LOG_INTERVAL);
        }
        may
    }
}

/// See [`AcceptGate::count_accepting`].
pub(super) struct Accepting(Arc<AcceptGate>);

impl Drop for Accepting {
    fn drop(&mut self) {
        self.0.accepting.send_modify(|count| *count = count.saturating_sub(1));
    }
}
