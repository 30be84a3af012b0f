//! What the process is at, from its start to its end: one state for everything that accepts, pauses, drains or ends.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Context;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// A phase in the life of the process, in the order in which they follow each other. A pause may be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Some service does not accept connections yet.
    Starting,
    /// Every service accepts connections.
    Serving,
    /// Another process is to take over. The system queues new connections; requests that have begun to come in are
    /// waited for.
    Pausing,
    /// The same, and each connection is closed once its request is answered.
    Paused,
    /// The process was told to stop. Its sockets are closed; requests that have begun to come in are waited for.
    Closing,
    /// The same, and each connection is closed once its request is answered.
    Draining,
    /// The process was told to stop a second time: it waits for nothing.
    Stopped,
}

/// The phase of a process. Threads read it without a lock.
#[derive(Debug, Default)]
pub struct Lifecycle {
    /// How often the phase changed, times [`PHASES`], plus the number of the phase.
    state: AtomicUsize,
    changed: Notify,
}

const PHASES: usize = 8;

// === impl Phase ===

impl Phase {
    /// Whether new connections are accepted.
    pub const fn accepts(self) -> bool {
        matches!(self, Self::Starting | Self::Serving)
    }

    /// Whether another process is to take over.
    pub const fn is_pause(self) -> bool {
        matches!(self, Self::Pausing | Self::Paused)
    }

    /// Whether a connection is closed once its request is answered, and at once if it waits for a further one.
    pub const fn drains(self) -> bool {
        matches!(self, Self::Paused | Self::Draining | Self::Stopped)
    }

    /// Whether the process was told to stop.
    pub fn is_stopping(self) -> bool {
        self >= Self::Closing
    }

    const fn of(state: usize) -> Self {
        match state % PHASES {
            0 => Self::Starting,
            1 => Self::Serving,
            2 => Self::Pausing,
            3 => Self::Paused,
            4 => Self::Closing,
            5 => Self::Draining,
            _ => Self::Stopped,
        }
    }
}

// === impl Lifecycle ===

impl Lifecycle {
    /// The phase now.
    pub fn phase(&self) -> Phase {
        Phase::of(self.state.load(Ordering::Acquire))
    }

    /// Every service accepts connections.
    pub fn serve(&self) {
        self.change(|phase| (phase == Phase::Starting).then_some(Phase::Serving));
    }

    /// Another process is to take over.
    pub fn pause(&self) {
        self.change(|phase| phase.accepts().then_some(Phase::Pausing));
    }

    /// No other process takes over after all.
    pub fn resume(&self) {
        self.change(|phase| phase.is_pause().then_some(Phase::Serving));
    }

    /// The process is told to stop. Connections that a pause closes stay closed.
    pub fn close(&self) {
        self.change(|phase| match phase {
            Phase::Paused => Some(Phase::Draining),
            _ => (!phase.is_stopping()).then_some(Phase::Closing),
        });
    }

    /// No further request is waited for.
    pub fn drain(&self) {
        self.change(|phase| match phase {
            Phase::Pausing => Some(Phase::Paused),
            Phase::Closing => Some(Phase::Draining),
            _ => None,
        });
    }

    /// The process is told not to wait for what it is at.
    pub fn stop(&self) {
        self.change(|phase| phase.is_stopping().then_some(Phase::Stopped));
    }

    /// The first phase from now on that `is_wanted`.
    pub async fn wait_for(&self, is_wanted: impl Fn(Phase) -> bool) -> Phase {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // to hear of a change that comes after the look
            changed.as_mut().enable();
            let phase = self.phase();
            if is_wanted(phase) {
                return phase;
            }
            changed.await;
        }
    }

    /// Lets the running task look again whenever the phase changes.
    pub const fn watch(&self) -> PhaseWatch<'_> {
        PhaseWatch { lifecycle: self, entered: None }
    }

    /// Goes on to the phase that `next` says, if it says one.
    fn change(&self, next: impl Fn(Phase) -> Option<Phase>) {
        let step = |state: usize| {
            let count = (state / PHASES).wrapping_add(1);
            Some(count.wrapping_mul(PHASES).wrapping_add(next(Phase::of(state))? as usize))
        };
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, step).is_ok() {
            self.changed.notify_waiters();
        }
    }
}

/// See [`Lifecycle::watch`].
pub struct PhaseWatch<'a> {
    lifecycle: &'a Lifecycle,
    /// The next change, and the state that was read before the task was entered for it.
    entered: Option<(usize, Pin<Box<Notified<'a>>>)>,
}

impl PhaseWatch<'_> {
    /// The phase now; the task runs again when it changes. Enters the task once for each change: a connection lives in one
    /// task, and entering takes a lock that all have in common.
    pub fn phase(&mut self, task: &mut Context<'_>) -> Phase {
        let state = self.lifecycle.state.load(Ordering::Acquire);
        if self.entered.as_ref().is_some_and(|(entered, _)| *entered == state) {
            return Phase::of(state);
        }
        let mut changed = Box::pin(self.lifecycle.changed.notified());
        // only to enter the task: what the phase is by now is looked up next
        let _entered = changed.as_mut().poll(task);
        // the state from before, so that a change meanwhile enters the task again
        self.entered = Some((state, changed));
        self.lifecycle.phase()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_taken_back_and_an_end_is_not() {
        let lifecycle = Lifecycle::default();
        assert_eq!(lifecycle.phase(), Phase::Starting);
        lifecycle.drain();
        lifecycle.stop();
        lifecycle.resume();
        assert_eq!(lifecycle.phase(), Phase::Starting);
        lifecycle.serve();
        lifecycle.pause();
        assert!(!lifecycle.phase().accepts() && !lifecycle.phase().drains());
        lifecycle.serve();
        lifecycle.drain();
        assert_eq!(lifecycle.phase(), Phase::Paused);
        lifecycle.resume();
        assert_eq!(lifecycle.phase(), Phase::Serving);
        lifecycle.close();
        assert_eq!(lifecycle.phase(), Phase::Closing);
        lifecycle.pause();
        lifecycle.resume();
        lifecycle.drain();
        assert_eq!(lifecycle.phase(), Phase::Draining);
        lifecycle.stop();
        assert!(lifecycle.phase() == Phase::Stopped && lifecycle.phase().is_stopping());
    }

    #[test]
    fn connections_that_a_pause_closes_stay_closed_at_the_end() {
        let lifecycle = Lifecycle::default();
        lifecycle.pause();
        lifecycle.drain();
        lifecycle.close();
        assert_eq!(lifecycle.phase(), Phase::Draining);
    }

    #[tokio::test]
    async fn a_task_hears_of_a_phase_that_was_over_before_it_looked() {
        let lifecycle = Lifecycle::default();
        let mut watch = lifecycle.watch();
        let seen = std::future::poll_fn(|task| std::task::Poll::Ready(watch.phase(task))).await;
        assert_eq!(seen, Phase::Starting);
        lifecycle.pause();
        lifecycle.resume();
        let seen = std::future::poll_fn(|task| std::task::Poll::Ready(watch.phase(task))).await;
        assert_eq!(seen, Phase::Serving);
        assert_eq!(lifecycle.wait_for(Phase::accepts).await, Phase::Serving);
    }
}
