//! The watched parts of a configuration between reloads: files, checked again and again, nodes of upstreams, and sources of
//! customers and keys.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::files::FileVersion;
use crate::gateway::Gateway;
use crate::gateway::upstream::health;
use crate::panics::restart_on_panic;

/// How often files are checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// How long changed files have to stay the same before they are read.
const SETTLE_TIME: Duration = Duration::from_millis(100);
/// Files that still change after this many checks, about five seconds, are read all the same.
const MAX_UNSETTLED_CHECKS: u64 = 50;
/// Every 40th check, so every ten seconds, also reads the contents, for file systems whose timestamps cannot be trusted.
const CONTENT_CHECK_EVERY: u64 = 40;
/// The first checks after files were read: some file systems keep times in steps of up to two seconds, and two writes
/// within one step leave the same timestamp. Of these, every fourth reads the contents: once a second.
const EARLY_CHECKS: u64 = 12;
const EARLY_CONTENT_CHECK_EVERY: u64 = 4;

/// Decides when files are checked, how closely, and when a change counts.
#[derive(Debug, Default)]
pub(super) struct ChangeDetector {
    /// The number of checks since the files were read.
    checks: u64,
    /// A change that the last check saw, until the files stay the same.
    unsettled: Option<PendingChange>,
    /// Whether the log says that a file changes all the time. Reset when the files stay the same.
    has_warned: bool,
}

#[derive(Debug)]
struct PendingChange {
    seen: Vec<FileVersion>,
    /// Whether that check read the contents.
    has_read_content: bool,
    /// The number of checks in a row before that one that saw a change, too.
    earlier_checks: u64,
}

impl ChangeDetector {
    /// The pause before the next check.
    pub(super) const fn pause(&self) -> Duration {
        if self.unsettled.is_some() { SETTLE_TIME } else { CHECK_INTERVAL }
    }

    /// Whether the next check reads the contents, instead of the stamps only.
    pub(super) fn reads_content(&self) -> bool {
        let next = self.checks.saturating_add(1);
        let every = if next <= EARLY_CHECKS { EARLY_CONTENT_CHECK_EVERY } else { CONTENT_CHECK_EVERY };
        match &self.unsettled {
            Some(change) => change.has_read_content,
            None => next.is_multiple_of(every),
        }
    }

    /// Notes a check that saw the files as `seen`; `known` is how they were last read. Returns whether to read
    /// them: they seem changed, and have stayed the same since the last check or do not come to rest.
    pub(super) fn record_check(&mut self, seen: Vec<FileVersion>, known: &[FileVersion]) -> bool {
        let has_read_content = self.reads_content();
        self.checks = self.checks.saturating_add(1);
        if seen == known {
            *self = Self { checks: self.checks, ..Self::default() };
            return false;
        }
        let last = self.unsettled.take();
        let changed = last.iter().flat_map(|last| last.seen.iter().zip(&seen)).find(|(last, now)| last != now);
        let earlier_checks = last.as_ref().map_or(0, |last| last.earlier_checks.saturating_add(1));
        let is_settled = last.is_some() && changed.is_none();
        let is_overdue = earlier_checks >= MAX_UNSETTLED_CHECKS;
        if is_overdue
            && let Some((file, _)) = changed
            && !std::mem::replace(&mut self.has_warned, true)
        {
            tracing::warn!(file = %file.path.display(), "a watched file changes all the time; it is read every few seconds, perhaps half written");
        }
        self.has_warned &= !is_settled;
        self.unsettled = Some(PendingChange { seen, has_read_content, earlier_checks });
        is_settled || is_overdue
    }

    /// Starts again: the files were read.
    pub(super) fn restart(&mut self) {
        *self = Self { has_warned: self.has_warned, ..Self::default() };
    }
}

/// The background tasks for the active configuration: health checks of its pools, and refreshing its sources.
#[derive(Default)]
pub(super) struct ActiveTasks(HashMap<usize, ActiveTask>);

/// A background task that ends when this is dropped.
struct ActiveTask {
    /// The pool or source of the task; keeping it also keeps its address, which identifies the task.
    _subject: Arc<dyn Any + Send + Sync>,
    task: JoinHandle<()>,
}

impl Drop for ActiveTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ActiveTasks {
    /// Runs the tasks for the active configuration, and ends all others.
    pub(super) fn sync_with(&mut self, gateway: &Gateway) {
        let active = gateway.active.load_full();
        let mut before = std::mem::take(&mut self.0);
        for pool in &active.pools {
            self.keep(&mut before, pool, || health::watch(Arc::clone(pool), Arc::clone(&gateway.clock)));
        }
        for source in active.sources() {
            self.keep(&mut before, &source, || {
                let (source, clock) = (Arc::clone(&source), Arc::clone(&gateway.clock));
                restart_on_panic(move || Arc::clone(&source).run(Arc::clone(&clock)))
            });
        }
    }

    /// Keeps the task for `subject`, or starts it.
    fn keep<T: Send + Sync + 'static, W: Future<Output = ()> + Send + 'static>(
        &mut self,
        before: &mut HashMap<usize, ActiveTask>,
        subject: &Arc<T>,
        run: impl FnOnce() -> W,
    ) {
        let address = Arc::as_ptr(subject).addr();
        let start = || ActiveTask { _subject: Arc::<T>::clone(subject), task: tokio::spawn(run()) };
        let task = before.remove(&address).unwrap_or_else(start);
        self.0.insert(address, task);
    }
}

#[cfg(test)]
mod tests;
