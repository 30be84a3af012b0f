//! What stands elsewhere and is served from memory: fetched in the background, again and again. What was understood last
//! stays while the source is unreachable or says something that nobody understands.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::clock::Clock;
use crate::units::Nanos;

/// The pause after the first attempt that fails; it doubles with each further one.
const FIRST_PAUSE: Nanos = Nanos::SECOND;
/// The longest pause after attempts that fail.
const LONGEST_PAUSE: Nanos = Nanos::from_secs(30);

/// Where something is fetched from.
#[async_trait]
pub trait Source: Send + Sync {
    /// A word for logs and metrics.
    fn name(&self) -> &'static str;

    /// How often it may be asked, and how long one attempt may take.
    fn pace(&self) -> Pace;

    /// Brings what is served up to date. Stopped when the attempt takes too long.
    ///
    /// Errors: what keeps it from that, in words that hold no secret and nothing that the source said.
    async fn refresh(&self, clock: &Arc<dyn Clock>) -> Result<Refreshed, String>;
}

/// How often a source may be asked, and how long one attempt may take.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The least time from the beginning of one attempt to that of the next.
    pub min_interval: Nanos,
    /// The longest time of an attempt.
    pub deadline: Nanos,
}

/// What came of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refreshed {
    /// How many things are served now.
    pub entries: usize,
    /// When the source is to be asked again at the latest, from now on.
    pub next: Nanos,
}

/// How a source stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceStatus {
    /// How many things are served.
    pub entries: usize,
    /// When the last attempt that succeeded began, on the wall clock.
    pub fresh_at: Option<Nanos>,
    /// Whether the last attempt succeeded.
    pub is_fresh: bool,
    /// Attempts that ended.
    ended: u64,
    is_asking: bool,
}

/// Is told of every attempt, and whether it succeeded.
pub type Observer = Box<dyn Fn(bool) + Send + Sync>;

/// Asks a source in the background.
pub struct Refresher {
    source: Box<dyn Source>,
    /// Says that there may be something new.
    hint: Arc<Notify>,
    status: watch::Sender<SourceStatus>,
    observer: OnceLock<Observer>,
    /// When the last attempt began.
    began: AtomicU64,
    schedule: Mutex<Schedule>,
    /// Why the last attempt failed, if it did.
    failure: Mutex<Option<String>>,
}

/// When a source is asked next.
#[derive(Clone, Copy, Debug, Default)]
struct Schedule {
    due: Nanos,
    /// Attempts that failed in a row.
    failures: u32,
}

impl Refresher {
    /// Asks `source`; earlier than it is due where `hint` is notified.
    pub fn new(source: impl Source + 'static, hint: Arc<Notify>) -> Self {
        Self {
            source: Box::new(source),
            hint,
            status: watch::Sender::default(),
            observer: OnceLock::new(),
            began: AtomicU64::new(0),
            schedule: Mutex::default(),
            failure: Mutex::default(),
        }
    }

    /// What the source said earlier is served, `entries` things, read when the wall clock said `fresh_at`.
    pub(super) fn resume(&self, entries: usize, fresh_at: Nanos) {
        self.status.send_modify(|status| (status.entries, status.fresh_at) = (entries, Some(fresh_at)));
    }

    /// The word for logs and metrics.
    pub fn name(&self) -> &'static str {
        self.source.name()
    }

    /// How the source stands.
    pub fn status(&self) -> SourceStatus {
        *self.status.borrow()
    }

    /// Tells `observer` of every attempt from here on; the first observer stays.
    pub fn observe(&self, observer: Observer) {
        drop(self.observer.set(observer));
    }

    /// Asks the source, if it never answered, and waits for `patience` at most.
    async fn begin(&self, patience: Nanos, clock: &Arc<dyn Clock>) {
        if self.status().fresh_at.is_none() {
            // The background goes on with it.
            drop(timeout(patience.to_duration(), self.refresh(clock)).await);
        }
    }

    /// Asks the source again and again, until dropped.
    pub async fn run(self: Arc<Self>, clock: Arc<dyn Clock>) {
        loop {
            let due = self.schedule.lock().due;
            tokio::select! {
                () = sleep(due.saturating_sub(clock.now()).to_duration()) => {}
                () = self.hint.notified() => {
                    let earliest = Nanos::new(self.began.load(Ordering::Relaxed)).saturating_add(self.source.pace().min_interval);
                    sleep(earliest.saturating_sub(clock.now()).to_duration()).await;
                }
            }
            self.refresh(&clock).await;
        }
    }

    /// Waits until the source has been asked after this call, or is known not to have to be, for `patience` at most.
    /// Whether what is served is what the source says now, to within its least interval.
    pub async fn renewed(&self, patience: Nanos, clock: &Arc<dyn Clock>) -> bool {
        let mut watched = self.status.subscribe();
        let seen = *watched.borrow_and_update();
        let began = Nanos::new(self.began.load(Ordering::Relaxed));
        if !seen.is_asking {
            if seen.ended > 0 && clock.now() < began.saturating_add(self.source.pace().min_interval) {
                return seen.is_fresh;
            }
            self.hint.notify_one();
        }
        let ended = watched.wait_for(|status| status.ended > seen.ended);
        timeout(patience.to_duration(), ended).await.is_ok_and(|ended| ended.is_ok_and(|status| status.is_fresh))
    }

    /// Asks the source once more, and waits until `holds` after an attempt, for `patience` at most. Whether it does.
    pub(super) async fn renewed_until(&self, patience: Nanos, holds: impl Fn() -> bool) -> bool {
        let mut watched = self.status.subscribe();
        self.hint.notify_one();
        let held = watched.wait_for(|_| holds());
        timeout(patience.to_duration(), held).await.is_ok_and(|held| held.is_ok())
    }

    async fn refresh(&self, clock: &Arc<dyn Clock>) {
        let (began, wall) = (clock.now(), clock.wall());
        self.began.store(began.get(), Ordering::Relaxed);
        self.status.send_modify(|status| status.is_asking = true);
        let deadline = self.source.pace().deadline;
        let outcome = match timeout(deadline.to_duration(), self.source.refresh(clock)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(format!("no answer within {deadline}")),
        };
        self.plan(&outcome, clock.now());
        self.tell(&outcome);
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
    fn tell(&self, outcome: &Result<Refreshed, String>) {
        let (source, before) = (self.name(), self.status());
        let failure = std::mem::replace(&mut *self.failure.lock(), outcome.as_ref().err().cloned());
        match outcome {
            Ok(Refreshed { entries, .. }) if !before.is_fresh => tracing::info!(source, entries, "the source was read"),
            Ok(_) => {}
            Err(reason) if failure.as_ref() == Some(reason) => {
                tracing::debug!(source, reason, "the source still cannot be read");
            }
            Err(reason) if before.fresh_at.is_none() => {
                tracing::warn!(source, reason, "the source cannot be read, and is tried again");
            }
            Err(reason) => {
                tracing::warn!(source, reason, "the source cannot be read; what it said before stays in force");
            }
        }
    }
}

/// Asks those of `sources` that never answered, and waits for `patience` at most.
pub async fn begin(sources: &[Arc<Refresher>], patience: Nanos, clock: &Arc<dyn Clock>) {
    let mut tasks = JoinSet::new();
    for source in sources {
        let (source, clock) = (Arc::clone(source), Arc::clone(clock));
        tasks.spawn(async move { source.begin(patience, &clock).await });
    }
    while tasks.join_next().await.is_some() {}
}

impl fmt::Debug for Refresher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refresher")
            .field("source", &self.name())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}

/// How long to wait after an attempt that failed as `failures` before it had. `spread` makes it up to a half longer, so that
/// gateways that failed together do not come back together.
fn pause_after(failures: u32, spread: u8) -> Nanos {
    let pause = FIRST_PAUSE.doubled(failures).min(LONGEST_PAUSE).get();
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
