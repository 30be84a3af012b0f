//! SIGUSR2: another process takes over the sockets and the state, and no connection is refused.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::accept_gate::AcceptGate;
use super::handover::{Successor, UpgradeError};
use super::state::SnapshotWriter;
use crate::gateway::Gateway;
use crate::store::SnapshotSize;
use crate::telemetry::Telemetry;

/// How long other gateways may take to take this gateway's keys over.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often this process checks whether they have.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// Hands this process's sockets and state over to a new process.
pub(super) struct Upgrader {
    pub(super) gate: Arc<AcceptGate>,
    pub(super) snapshot_writer: Arc<SnapshotWriter>,
    pub(super) gateway: Gateway,
    pub(super) telemetry: Telemetry,
}

impl Upgrader {
    /// Starts a new process and waits until it lacks only the state. This process goes on unchanged. Dropping the future or
    /// the successor ends the new process.
    pub(super) async fn prepare(&self) -> Option<Successor> {
        tracing::info!("starting a new process for the handover");
        self.start().await.map_err(|error| self.failed(&error)).ok()
    }

    async fn start(&self) -> Result<Successor, UpgradeError> {
        let sockets = self.gate.sockets()?;
        let snapshot_writer = Arc::clone(&self.snapshot_writer);
        let state = blocking(move || Ok(snapshot_writer.for_successor())).await?;
        let member = self.gateway.store.shared().map(|shared| shared.member());
        let successor = Successor::start(&self.gateway.active.load(), state, member)?;
        blocking(successor.preparation(sockets)?).await?;
        Ok(successor)
    }

    /// Hands over to `successor`. Returns whether the successor serves now; if not, this process goes on as before. The
    /// caller must not drop this future early: then it is unclear which process owns the state.
    pub(super) async fn hand_over(&self, successor: Successor) -> bool {
        let process = successor.id();
        tracing::info!(process, "the new process is ready: handing over the state; new connections wait");
        match self.transfer_state(successor).await {
            Ok(SnapshotSize { keys, .. }) => {
                tracing::info!(process, keys, "the new process has taken over");
                true
            }
            Err(error) => {
                self.snapshot_writer.resume();
                self.gate.open();
                if let Some(cluster) = self.gateway.store.cluster() {
                    cluster.rejoin();
                }
                self.failed(&error);
                false
            }
        }
    }

    fn failed(&self, error: &UpgradeError) {
        self.telemetry.upgrade_failed();
        tracing::error!(%error, "the handover failed; this process continues to serve");
    }

    async fn transfer_state(&self, successor: Successor) -> Result<SnapshotSize, UpgradeError> {
        if let Some(cluster) = self.gateway.store.cluster() {
            // during the pause this gateway answers no other: what it owned would start afresh there
            cluster.leave();
            let leaving = async {
                while !cluster.has_left() {
                    sleep(CHECK_INTERVAL).await;
                }
            };
            drop(timeout(LEAVE_TIMEOUT, leaving).await);
        }
        let snapshot_writer = Arc::clone(&self.snapshot_writer);
        blocking(move || {
            snapshot_writer.suspend();
            Ok(())
        })
        .await?;
        // the pause cuts the connections to other gateways: a state that is on its way then would be in no process
        let _pushes = match self.gateway.store.cluster() {
            Some(cluster) => Some(cluster.hold_pushes().await),
            None => None,
        };
        // from here on connections wait in the system's queue, and no unexpected request arrives: the state has every
        // charge, except later changes by requests in flight
        self.gate.pause().await;
        let snapshot_writer = Arc::clone(&self.snapshot_writer);
        blocking(move || successor.send_state(|stream| snapshot_writer.hand_over(stream))).await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, UpgradeError> + Send + 'static,
) -> Result<T, UpgradeError> {
    spawn_blocking(work).await.unwrap_or_else(|error| Err(std::io::Error::other(error).into()))
}
