//! How a connection is counted while it lives, and what ends its waits.

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

/// How long a closing connection waits for a further byte, so that a client that still sends can read its answer.
pub(super) const LINGER: Nanos = Nanos::from_secs(2);

/// How a connection, or a stream of one, is counted while it lives.
pub(super) struct Presence {
    traffic: Arc<Traffic>,
    pub(super) stage: Option<Stage>,
    /// Under which it can be evicted; a stream cannot.
    idle: Option<(Arc<IdleEntry>, Arc<IdleConnections>)>,
}

/// Why a wait ended before what was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interrupted {
    /// The deadline passed.
    Elapsed,
    /// The connection has to make room.
    Evicted,
    /// Connections are to be closed.
    Leaving,
}

// === impl Presence ===

impl Presence {
    /// That of a connection on which nothing has come yet.
    pub(super) fn connection<S: Service>(worker: &Worker<S>, listener: usize) -> Self {
        let entry = worker.idle.enter(listener, worker.clock.now());
        let mut presence =
            Self { traffic: Arc::clone(&worker.traffic), stage: None, idle: Some((entry, Arc::clone(&worker.idle))) };
        presence.set(Some(Stage::Fresh));
        presence
    }

    /// That of a stream on which a request has come.
    pub(super) fn stream<S: Service>(worker: &Worker<S>) -> Self {
        let mut presence = Self { traffic: Arc::clone(&worker.traffic), stage: None, idle: None };
        presence.set(Some(Stage::Undecided));
        presence
    }

    /// What it is counted as from here on.
    pub(super) fn set(&mut self, stage: Option<Stage>) {
        let before = std::mem::replace(&mut self.stage, stage);
        if before != stage {
            stage.into_iter().for_each(|stage| self.traffic.enter(stage));
            before.into_iter().for_each(|stage| self.traffic.leave_stage(stage));
        }
    }

    /// A request is being handled.
    pub(super) fn is_busy(&self) {
        if let Some((entry, _)) = &self.idle {
            entry.is_busy();
        }
    }

    /// There is no request since `since`.
    pub(super) fn is_idle(&self, since: Nanos) {
        if let Some((entry, _)) = &self.idle {
            entry.is_idle(since);
        }
    }

    pub(super) fn is_evicted(&self, waker: &Waker) -> bool {
        self.idle.as_ref().is_some_and(|(entry, _)| entry.is_evicted(waker))
    }

    /// What `work` comes to, unless it is `due` before or the connection has to make room.
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

impl Drop for Presence {
    fn drop(&mut self) {
        self.set(None);
        if let Some((entry, all)) = &self.idle {
            all.leave(entry);
        }
    }
}
