//! The one timer of a connection, for whichever of its deadlines comes first.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::time::{Sleep, sleep};

use crate::clock::Clock;
use crate::units::Nanos;

/// A deadline has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the deadline has passed")]
pub struct Elapsed;

/// See the module's documentation.
///
/// The timer may ring early, never late: a deadline that moves away is noticed when it rings, so that a connection whose
/// deadlines only move away does not touch the runtime's timers.
pub struct Timer {
    clock: Arc<dyn Clock>,
    sleep: Pin<Box<Sleep>>,
    rings_at: Option<Nanos>,
}

impl Timer {
    /// A timer that goes by `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, sleep: Box::pin(sleep(Nanos::ZERO.to_duration())), rings_at: None }
    }

    /// The time.
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// What the wall clock says.
    pub fn wall(&self) -> Nanos {
        self.clock.wall()
    }

    /// The time `after` from now on.
    pub fn after(&self, after: Nanos) -> Nanos {
        self.clock.now().saturating_add(after)
    }

    /// Ready once it is `due`; until then the task is woken then, or earlier.
    pub fn poll(&mut self, task: &mut Context<'_>, due: Nanos) -> Poll<Elapsed> {
        loop {
            if self.rings_at.is_none_or(|rings_at| rings_at > due) {
                let left = due.saturating_sub(self.clock.now());
                self.sleep.set(sleep(left.to_duration()));
                self.rings_at = Some(due);
            }
            ready!(self.sleep.as_mut().poll(task));
            self.rings_at = None;
            if self.clock.now() >= due {
                return Poll::Ready(Elapsed);
            }
        }
    }

    /// What `work` comes to, unless it is `due` before.
    pub async fn run<W: Future>(&mut self, due: Nanos, work: W) -> Result<W::Output, Elapsed> {
        let mut work = pin!(work);
        poll_fn(|task| match work.as_mut().poll(task) {
            Poll::Ready(done) => Poll::Ready(Ok(done)),
            Poll::Pending => self.poll(task, due).map(Err),
        })
        .await
    }
}
