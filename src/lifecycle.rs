//! The phase of the process, from its start to its end: one state for all code that accepts, pauses, drains or stops.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Context;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The phases of the process, in their order. A pause can be undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Some service does not accept connections yet.
    Starting,
    /// Every service accepts connections.
    Serving,
    /// Another process is about to take over. The system queues new connections; this process still reads and serves
    /// requests whose first bytes have arrived.
    Pausing,
    /// As `Pausing`, and each connection is closed after the response to its request.
    Paused,
    /// The process was told to stop. Its sockets are closed; it still serves requests whose first bytes have arrived.
    Closing,
    /// As `Closing`, and each connection is closed after the response to its request.
    Draining,
    /// The process was told to stop a second time: it waits for nothing.
    Stopped,
}

/// The phase of a process. Threads read it without a lock.
#[derive(Debug, Default)]
pub struct Lifecycle {
    /// The number of changes of the phase, times [`PHASES`], plus the number of the phase.
    state: AtomicUsize,
    changed: Notify,
    /// Whether another process has taken over.
    is_handed_over: AtomicBool,
}

const PHASES: usize = 8;

// === impl Phase ===

impl Phase {
    /// Whether new connections are accepted.
    pub const fn accepts(self) -> bool {
        matches!(self, Self::Starting | Self::Serving)
    }

    /// Whether another process is about to take over.
    pub const fn is_pause(self) -> bool {
        matches!(self, Self::Pausing | Self::Paused)
    }

    /// Whether a connection is closed after the response to its request, and at once if it is idle.
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

    /// Enters `Serving`: every service accepts connections.
    pub fn serve(&self) {
        self.change(|phase| (phase == Phase::Starting).then_some(Phase::Serving));
    }

    /// Enters `Pausing`: another process is about to take over.
    pub fn pause(&self) {
        self.change(|phase| phase.accepts().then_some(Phase::Pausing));
    }

    /// Ends a pause: no other process takes over.
    pub fn resume(&self) {
        self.change(|phase| phase.is_pause().then_some(Phase::Serving));
    }

    /// Enters `Closing`: the process is told to stop. From `Paused` it enters `Draining`, which closes connections too.
    pub fn close(&self) {
        self.change(|phase| match phase {
            Phase::Paused => Some(Phase::Draining),
            _ => (!phase.is_stopping()).then_some(Phase::Closing),
        });
    }

    /// Notes that another process has taken over. Called before [`Lifecycle::close`].
    pub fn mark_handed_over(&self) {
        self.is_handed_over.store(true, Ordering::Release);
    }

    /// Whether another process has taken over.
    pub fn is_handed_over(&self) -> bool {
        self.is_handed_over.load(Ordering::Acquire)
    }

    /// Whether another process has taken over or is about to: it does not learn what changes here.
    pub fn has_successor(&self) -> bool {
        // in this order, because the note is made before the pause ends
        self.phase().is_pause() || self.is_handed_over()
    }

    /// Stops waiting for further requests: enters `Paused` or `Draining`.
    pub fn drain(&self) {
        self.change(|phase| match phase {
            Phase::Pausing => Some(Phase::Paused),
            Phase::Closing => Some(Phase::Draining),
            _ => None,
        });
    }

    /// Enters `Stopped` if the process is stopping already: it waits for no request any more.
    pub fn stop(&self) {
        self.change(|phase| phase.is_stopping().then_some(Phase::Stopped));
    }

    /// Waits for a phase that `is_wanted` accepts, which may be the current one.
    pub async fn wait_for(&self, is_wanted: impl Fn(Phase) -> bool) -> Phase {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // registered before the phase is read, so that a later change is not missed
            changed.as_mut().enable();
            let phase = self.phase();
            if is_wanted(phase) {
                return phase;
            }
            changed.await;
        }
    }

    /// A watch that wakes the running task when the phase changes.
    pub const fn watch(&self) -> PhaseWatch<'_> {
        PhaseWatch { lifecycle: self, entered: None }
    }

    /// Enters the phase that `next` returns, if it returns one.
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
    /// The state that was read before the task was registered, and the notification of the next change.
    entered: Option<(usize, Pin<Box<Notified<'a>>>)>,
}

impl PhaseWatch<'_> {
    /// The phase now; the task is woken when it changes. Registers the task once for each change, because registration
    /// takes a lock that all tasks share. A watch has to stay in one task, as a connection does.
    pub fn phase(&mut self, task: &mut Context<'_>) -> Phase {
        let state = self.lifecycle.state.load(Ordering::Acquire);
        if self.entered.as_ref().is_some_and(|(entered, _)| *entered == state) {
            return Phase::of(state);
        }
        let mut changed = Box::pin(self.lifecycle.changed.notified());
        // this only registers the task; the phase is read again below
        let _entered = changed.as_mut().poll(task);
        // the state from before the registration, so that a change since then registers the task again
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
