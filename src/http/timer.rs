//! The single timer of a connection, which rings for the earliest of its deadlines.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use tokio::task::coop::has_budget_remaining;
use tokio::time::{Sleep, sleep};

use crate::clock::WorkerClock;
use crate::units::Nanos;

/// The earlier of two deadlines.
pub(super) fn earlier(due: Nanos, other: Option<Nanos>) -> Nanos {
    other.map_or(due, |other| other.min(due))
}

/// The error of a deadline that has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the deadline has passed")]
pub struct Elapsed;

/// See the module's documentation.
///
/// The timer may ring early, never late: when it rings, it checks whether the deadline has moved. So a connection whose
/// deadlines only move away does not touch the runtime's timers.
pub struct Timer {
    clock: Rc<WorkerClock>,
    sleep: Pin<Box<Sleep>>,
    rings_at: Option<Nanos>,
    /// The task that `sleep` wakes.
    wakes: Option<Waker>,
}

impl Timer {
    /// A timer that uses `clock`.
    pub fn new(clock: Rc<WorkerClock>) -> Self {
        Self { clock, sleep: Box::pin(sleep(Nanos::ZERO.to_duration())), rings_at: None, wakes: None }
    }

    /// The worker's current time.
    pub fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// The wall clock's time.
    pub fn wall(&self) -> Nanos {
        self.clock.wall()
    }

    /// The time that is `after` from now.
    pub fn after(&self, after: Nanos) -> Nanos {
        self.clock.now().saturating_add(after)
    }

    /// Ready once the time `due` has come. Until then it has the task woken at that time or earlier.
    pub fn poll(&mut self, task: &mut Context<'_>, due: Nanos) -> Poll<Elapsed> {
        // the runtime's timer is never ready in a task that has used up its share, and does not know that task
        while self.clock.now() < due {
            if self.rings_at.is_none_or(|rings_at| rings_at > due) {
                self.clock.tick();
                let left = due.saturating_sub(self.clock.now());
                self.sleep.set(sleep(left.to_duration()));
                (self.rings_at, self.wakes) = (Some(due), None);
            }
            // to poll a timer again that wakes this task would change nothing
            let is_known = self.wakes.as_ref().is_some_and(|woken| woken.will_wake(task.waker()));
            if is_known && !self.sleep.is_elapsed() {
                return Poll::Pending;
            }
            self.wakes = has_budget_remaining().then(|| task.waker().clone());
            ready!(self.sleep.as_mut().poll(task));
            (self.rings_at, self.wakes) = (None, None);
            self.clock.tick();
        }
        Poll::Ready(Elapsed)
    }

    /// The result of `work`, unless the time `due` comes before.
    pub async fn run<W: Future>(&mut self, due: Nanos, mut work: Pin<&mut W>) -> Result<W::Output, Elapsed> {
        poll_fn(|task| match work.as_mut().poll(task) {
            Poll::Ready(done) => Poll::Ready(Ok(done)),
            Poll::Pending => self.poll(task, due).map(Err),
        })
        .await
    }
}
