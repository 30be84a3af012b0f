//! How a connection is counted during its lifetime, and the reasons that interrupt its waits.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::idle::{IdleConnections, IdleEntry};
use super::service::Service;
use super::timer::Timer;
use super::traffic::{Stage, Traffic};
use super::worker::Worker;
use crate::units::Nanos;

/// How long a closing connection waits for another byte, so that a client that still sends can read its answer.
pub(super) const LINGER: Nanos = Nanos::from_secs(2);

/// The counting of a connection or of a stream during its lifetime.
pub(super) struct ConnectionTracker {
    traffic: Arc<Traffic>,
    pub(super) stage: Option<Stage>,
    /// The entry through which a connection can be evicted; `None` for a stream, which cannot.
    idle: Option<(Arc<IdleEntry>, Arc<IdleConnections>)>,
}

/// The reason why a wait was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interrupted {
    /// The deadline passed.
    Elapsed,
    /// The connection was evicted.
    Evicted,
    /// The gateway drains and closes its connections.
    Leaving,
}

// === impl ConnectionTracker ===

impl ConnectionTracker {
    /// The tracker of a connection on which no bytes have arrived yet.
    pub(super) fn connection<S: Service>(worker: &Worker<S>, listener: usize) -> Self {
        let entry = worker.idle.enter(listener, worker.clock.now());
        let mut tracker =
            Self { traffic: Arc::clone(&worker.traffic), stage: None, idle: Some((entry, Arc::clone(&worker.idle))) };
        tracker.set(Some(Stage::Fresh));
        tracker
    }

    /// The tracker of a stream on which a request has arrived.
    pub(super) fn stream<S: Service>(worker: &Worker<S>) -> Self {
        let mut tracker = Self { traffic: Arc::clone(&worker.traffic), stage: None, idle: None };
        tracker.set(Some(Stage::Undecided));
        tracker
    }

    /// Sets the stage under which it is counted from now on.
    pub(super) fn set(&mut self, stage: Option<Stage>) {
        let before = std::mem::replace(&mut self.stage, stage);
        if before != stage {
            stage.into_iter().for_each(|stage| self.traffic.enter(stage));
            before.into_iter().for_each(|stage| self.traffic.leave_stage(stage));
        }
    }

    /// Notes that a request is being handled.
    pub(super) fn mark_busy(&self) {
        if let Some((entry, _)) = &self.idle {
            entry.mark_busy();
        }
    }

    /// Notes that there is no request since `since`.
    pub(super) fn mark_idle_since(&self, since: Nanos) {
        if let Some((entry, _)) = &self.idle {
            entry.mark_idle_since(since);
        }
    }

    pub(super) fn is_evicted(&self, waker: &Waker) -> bool {
        self.idle.as_ref().is_some_and(|(entry, _)| entry.is_evicted(waker))
    }

    /// The result of `work`, unless the time `due` comes or the connection is evicted before.
    pub(super) async fn run<W: Future>(
        &self,
        timer: &mut Timer,
        due: Nanos,
        mut work: Pin<&mut W>,
    ) -> Result<W::Output, Interrupted> {
        poll_fn(|task| {
            if let Poll::Ready(done) = work.as_mut().poll(task) {
                return Poll::Ready(Ok(done));
            }
            if self.is_evicted(task.waker()) {
                return Poll::Ready(Err(Interrupted::Evicted));
            }
            timer.poll(task, due).map(|_| Err(Interrupted::Elapsed))
        })
        .await
    }
}

impl Drop for ConnectionTracker {
    fn drop(&mut self) {
        self.set(None);
        if let Some((entry, all)) = &self.idle {
            all.leave(entry);
        }
    }
}
