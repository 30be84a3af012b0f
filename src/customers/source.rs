//! Remote data that is served from memory: fetched in the background, again and again. The last valid data stays in use
//! while the source is unavailable or its answer cannot be read.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::clock::Clock;
use crate::units::Nanos;

/// The pause after the first failed attempt; it doubles with each further one.
const FIRST_PAUSE: Nanos = Nanos::SECOND;
/// The longest pause after failed attempts.
const MAX_PAUSE: Nanos = Nanos::from_secs(30);

/// A source of remote data.
#[async_trait]
pub trait Source: Send + Sync {
    /// The source's name for logs and metrics.
    fn name(&self) -> &'static str;

    /// The least interval between attempts, and the deadline of one attempt.
    fn limits(&self) -> RefreshLimits;

    /// Updates the served data from the source. Cancelled at the deadline.
    ///
    /// Errors: the reason of the failure, without secrets and without text from the source.
    async fn refresh(&self, clock: &Arc<dyn Clock>) -> Result<Refreshed, String>;
}

/// The least interval between attempts at a source, and the deadline of one attempt.
#[derive(Clone, Copy, Debug)]
pub struct RefreshLimits {
    /// The least time between the starts of two attempts.
    pub min_interval: Nanos,
    /// The longest time of one attempt.
    pub deadline: Nanos,
}

/// The result of a successful attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refreshed {
    /// The number of entries that are served now.
    pub entries: usize,
    /// The time from now until the next attempt, at the latest.
    pub next: Nanos,
}

/// The status of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceStatus {
    /// The number of entries that are served.
    pub entries: usize,
    /// The start of the last successful attempt, by the wall clock.
    pub fresh_at: Option<Nanos>,
    /// Whether the last attempt succeeded.
    pub is_fresh: bool,
    /// The number of finished attempts.
    ended: u64,
    is_asking: bool,
}

/// Called after every attempt; the argument is whether it succeeded.
pub type RefreshObserver = Box<dyn Fn(bool) + Send + Sync>;

/// Refreshes a source in the background.
pub struct Refresher {
    source: Box<dyn Source>,
    /// Notified when the source may have new data.
    hint: Arc<Notify>,
    status: watch::Sender<SourceStatus>,
    observer: OnceLock<RefreshObserver>,
    /// The start of the last attempt.
    began: AtomicU64,
    schedule: Mutex<Schedule>,
    /// The reason why the last attempt failed, if it did.
    failure: Mutex<Option<String>>,
    /// Whether a configuration has waited for the first data: later ones that have the source do not wait again.
    was_awaited: AtomicBool,
}

/// The time of the next attempt.
#[derive(Clone, Copy, Debug, Default)]
struct Schedule {
    due: Nanos,
    /// The number of failed attempts in a row.
    failures: u32,
}

impl Refresher {
    /// A refresher of `source`. It makes its next attempt early if `hint` is notified.
    pub fn new(source: impl Source + 'static, hint: Arc<Notify>) -> Self {
        Self {
            source: Box::new(source),
            hint,
            status: watch::Sender::default(),
            observer: OnceLock::new(),
            began: AtomicU64::new(0),
            schedule: Mutex::default(),
            failure: Mutex::default(),
            was_awaited: AtomicBool::new(false),
        }
    }

    /// Notes that this is the source of the refresher `before` under other settings. If that one was awaited and has no data
    /// yet, this one is not awaited.
    pub fn succeed(&self, before: &Self) {
        let is_awaited = before.was_awaited.load(Ordering::Relaxed) && !before.has_data();
        self.was_awaited.store(is_awaited, Ordering::Relaxed);
    }

    /// Notes that `entries` earlier entries are served, which were read at the wall time `fresh_at`.
    pub(super) fn resume(&self, entries: usize, fresh_at: Nanos) {
        self.status.send_modify(|status| (status.entries, status.fresh_at) = (entries, Some(fresh_at)));
    }

    /// The source's name for logs and metrics.
    pub fn name(&self) -> &'static str {
        self.source.name()
    }

    /// The status of the source.
    pub fn status(&self) -> SourceStatus {
        *self.status.borrow()
    }

    /// Whether there is data to serve.
    pub fn has_data(&self) -> bool {
        self.status().fresh_at.is_some()
    }

    /// Calls `observer` after every attempt from here on; the first observer stays.
    pub fn observe(&self, observer: RefreshObserver) {
        drop(self.observer.set(observer));
    }

    /// Makes an attempt if none has succeeded yet, and waits for `patience` at most; not at all if a configuration has waited
    /// before.
    async fn begin(&self, patience: Nanos, clock: &Arc<dyn Clock>) {
        if self.has_data() {
            return;
        }
        match self.was_awaited.swap(true, Ordering::Relaxed) {
            // after a timeout, the background task goes on
            false => drop(timeout(patience.to_duration(), self.refresh(clock)).await),
            true => self.hint.notify_one(),
        }
    }

    /// Refreshes the source again and again, until dropped.
    pub async fn run(self: Arc<Self>, clock: Arc<dyn Clock>) {
        loop {
            let due = self.schedule.lock().due;
            tokio::select! {
                () = sleep(due.saturating_sub(clock.now()).to_duration()) => {}
                () = self.hint.notified() => {
                    let earliest = Nanos::new(self.began.load(Ordering::Relaxed)).saturating_add(self.source.limits().min_interval);
                    sleep(earliest.saturating_sub(clock.now()).to_duration()).await;
                }
            }
            self.refresh(&clock).await;
        }
    }

    /// Waits for the running or the next attempt, for `patience` at most; not at all within the least interval after the
    /// last one began. Returns whether the served data is as the source has it now, to within that interval.
    pub async fn wait_for_refresh(&self, patience: Nanos, clock: &Arc<dyn Clock>) -> bool {
        let mut watched = self.status.subscribe();
        let seen = *watched.borrow_and_update();
        let began = Nanos::new(self.began.load(Ordering::Relaxed));
        if !seen.is_asking {
            if seen.ended > 0 && clock.now() < began.saturating_add(self.source.limits().min_interval) {
                return seen.is_fresh;
            }
            self.hint.notify_one();
        }
        let ended = watched.wait_for(|status| status.ended > seen.ended);
        timeout(patience.to_duration(), ended).await.is_ok_and(|ended| ended.is_ok_and(|status| status.is_fresh))
    }

    /// Has another attempt made, and waits until `holds` is true after an attempt, for `patience` at most. Returns whether
    /// it is.
    pub(super) async fn refresh_until(&self, patience: Nanos, holds: impl Fn() -> bool) -> bool {
        let mut watched = self.status.subscribe();
        self.hint.notify_one();
        let held = watched.wait_for(|_| holds());
        timeout(patience.to_duration(), held).await.is_ok_and(|held| held.is_ok())
    }

    async fn refresh(&self, clock: &Arc<dyn Clock>) {
        let (began, wall) = (clock.now(), clock.wall());
        self.began.store(began.get(), Ordering::Relaxed);
        self.status.send_modify(|status| status.is_asking = true);
        let deadline = self.source.limits().deadline;
        let outcome = match timeout(deadline.to_duration(), self.source.refresh(clock)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(format!("no answer within {deadline}")),
        };
        self.plan(&outcome, clock.now());
        self.log_outcome(&outcome);
        if let Some(observer) = self.observer.get() {
            observer(outcome.is_ok());
        }
        self.status.send_modify(|status| {
            status.is_asking = false;
            status.ended = status.ended.saturating_add(1);
            status.is_fresh = outcome.is_ok();
            if let Ok(Refreshed { entries, .. }) = outcome {
                (status.entries, status.fresh_at) = (entries, Some(wall));
            }
        });
    }

    fn plan(&self, outcome: &Result<Refreshed, String>, now: Nanos) {
        let mut schedule = self.schedule.lock();
        let pause = match outcome {
            Ok(refreshed) => {
                schedule.failures = 0;
                refreshed.next
            }
            Err(_) => {
                let pause = pause_after(schedule.failures, rand::random());
                schedule.failures = schedule.failures.saturating_add(1);
                pause
            }
        };
        schedule.due = now.saturating_add(pause);
    }

    /// Logs how an attempt ended, unless it ended like the last one.
    fn log_outcome(&self, outcome: &Result<Refreshed, String>) {
        let (source, before) = (self.name(), self.status());
        let failure = std::mem::replace(&mut *self.failure.lock(), outcome.as_ref().err().cloned());
        match outcome {
            Ok(Refreshed { entries, .. }) if !before.is_fresh => tracing::info!(source, entries, "the source was read"),
            Ok(_) => {}
            Err(reason) if failure.as_ref() == Some(reason) => {
                tracing::debug!(source, reason, "the source still cannot be read");
            }
            Err(reason) if before.fresh_at.is_none() => {
                tracing::warn!(source, reason, "cannot read the source; retrying");
            }
            Err(reason) => {
                tracing::warn!(
                    source,
                    reason,
                    "cannot read the source; the entries of the last successful read stay in force"
                );
            }
        }
    }
}

/// Makes a first attempt at each of `sources` that has no data yet, and waits for `patience` at most.
pub async fn begin(sources: &[Arc<Refresher>], patience: Nanos, clock: &Arc<dyn Clock>) {
    let mut tasks = JoinSet::new();
    for source in sources {
        let (source, clock) = (Arc::clone(source), Arc::clone(clock));
        tasks.spawn(async move { source.begin(patience, &clock).await });
    }
    while tasks.join_next().await.is_some() {}
}

/// The pause after a failed attempt that followed `failures` failed ones. `spread` makes it up to half longer, so that
/// gateways that failed at the same time do not retry at the same time.
fn pause_after(failures: u32, spread: u8) -> Nanos {
    let pause = FIRST_PAUSE.doubled(failures).min(MAX_PAUSE).get();
    Nanos::new(pause.saturating_add(pause.saturating_mul(spread.into()) >> 9))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_are_spread() {
        let seconds = |failures, spread| pause_after(failures, spread).as_secs_f64();
        assert_eq!([0, 1, 2, 4, 5, 40].map(|failures| seconds(failures, 0)), [1.0, 2.0, 4.0, 16.0, 30.0, 30.0]);
        assert!((1.4..1.5).contains(&seconds(0, 255)) && (44.0..45.0).contains(&seconds(99, 255)));
    }
}
