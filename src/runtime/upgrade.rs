//! SIGUSR2: another process takes over, with the sockets and the state, and no connection is refused.

use std::sync::Arc;

use tokio::task::spawn_blocking;

use super::doors::Doors;
use super::handover::{Successor, UpgradeError};
use super::state::Keeper;
use crate::store::Written;
use crate::telemetry::Telemetry;

/// Hands over to a new process.
pub(super) struct Upgrader {
    pub(super) doors: Arc<Doors>,
    pub(super) keeper: Arc<Keeper>,
    pub(super) telemetry: Telemetry,
}

impl Upgrader {
    /// Starts a process and hands over to it. Whether it serves now; otherwise nothing has changed.
    pub(super) async fn attempt(&self) -> bool {
        tracing::info!("starting a process that is to take over");
        let outcome = self.hand_over().await;
        self.telemetry.upgraded(outcome.is_ok());
        match &outcome {
            Ok((process, Written { keys, .. })) => tracing::info!(process, keys, "another process has taken over"),
            Err(error) => tracing::error!(%error, "no process has taken over; this one goes on"),
        }
        outcome.is_ok()
    }

    async fn hand_over(&self) -> Result<(u32, Written), UpgradeError> {
        let sockets = self.doors.sockets()?;
        let successor = blocking(move || {
            let mut successor = Successor::start(&sockets)?;
            successor.wait_until_ready()?;
            Ok(successor)
        })
        .await?;
        let outcome = self.give_to(successor).await;
        if outcome.is_err() {
            self.keeper.take_back();
            self.doors.open();
        }
        outcome
    }

    async fn give_to(&self, successor: Successor) -> Result<(u32, Written), UpgradeError> {
        let process = successor.id();
        let keeper = Arc::clone(&self.keeper);
        blocking(move || {
            keeper.give_up();
            Ok(())
        })
        .await?;
        // From here on connections wait in the system's queue, and requests that this process did not expect do not come:
        // what is handed over is all that was charged, up to what happens to requests in flight.
        self.doors.hold().await;
        let keeper = Arc::clone(&self.keeper);
        let written = blocking(move || successor.give(|stream| keeper.hand_over(stream))).await?;
        Ok((process, written))
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, UpgradeError> + Send + 'static,
) -> Result<T, UpgradeError> {
    spawn_blocking(work).await.unwrap_or_else(|error| Err(std::io::Error::other(error).into()))
}
