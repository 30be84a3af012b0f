//! SIGUSR2: another process takes over, with the sockets and the state, and no connection is refused.

use std::sync::Arc;

use tokio::task::spawn_blocking;

use super::accept_gate::AcceptGate;
use super::handover::{Successor, UpgradeError};
use super::state::SnapshotWriter;
use crate::store::Written;
use crate::telemetry::Telemetry;

/// Hands over to a new process.
pub(super) struct Upgrader {
    pub(super) gate: Arc<AcceptGate>,
    pub(super) keeper: Arc<SnapshotWriter>,
    pub(super) telemetry: Telemetry,
}

impl Upgrader {
    /// Starts a process and waits until it lacks only the state. Nothing of this one changes, and
    /// what was started ends when this is dropped.
    pub(super) async fn prepare(&self) -> Option<Successor> {
        tracing::info!("starting a process that is to take over");
        let successor = match self.gate.sockets() {
            Ok(sockets) => {
                blocking(move || {
                    let mut successor = Successor::start(&sockets)?;
                    successor.wait_until_ready()?;
                    Ok(successor)
                })
                .await
            }
            Err(error) => Err(error.into()),
        };
        successor.map_err(|error| self.failed(&error)).ok()
    }

    /// Hands over to `successor`. Whether it serves now; otherwise everything is as it was. Not to be dropped before it
    /// is over: nobody would know whose the state is.
    pub(super) async fn hand_over(&self, successor: Successor) -> bool {
        let process = successor.id();
        tracing::info!(process, "it is ready: handing over, connections wait");
        match self.give_to(successor).await {
            Ok(Written { keys, .. }) => {
                tracing::info!(process, keys, "another process has taken over");
                true
            }
            Err(error) => {
                self.keeper.take_back();
                self.gate.open();
                self.failed(&error);
                false
            }
        }
    }

    fn failed(&self, error: &UpgradeError) {
        self.telemetry.upgrade_failed();
        tracing::error!(%error, "no process has taken over; this one goes on");
    }

    async fn give_to(&self, successor: Successor) -> Result<Written, UpgradeError> {
        let keeper = Arc::clone(&self.keeper);
        blocking(move || {
            keeper.give_up();
            Ok(())
        })
        .await?;
        // From here on connections wait in the system's queue, and requests that this process did not expect do not come:
        // what is handed over is all that was charged, up to what happens to requests in flight.
        self.gate.pause().await;
        let keeper = Arc::clone(&self.keeper);
        blocking(move || successor.give(|stream| keeper.hand_over(stream))).await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, UpgradeError> + Send + 'static,
) -> Result<T, UpgradeError> {
    spawn_blocking(work).await.unwrap_or_else(|error| Err(std::io::Error::other(error).into()))
}
