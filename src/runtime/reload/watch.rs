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
const LOOK: Duration = Duration::from_millis(250);
/// How long files have to stay the same before they are read.
const QUIET: Duration = Duration::from_millis(100);
/// The number of checks that see a change, after which files are read although they still change: after five seconds.
const RESTLESS: u64 = 50;
/// The number of checks after which one also reads the files, for systems with wrong stamps: every ten seconds.
const SLOW: u64 = 40;
/// The same right after files were read: once a second, for this many checks. Some systems keep file times in steps of up
/// to two seconds, and writes within one step leave the same stamp.
const FRESH: (u64, u64) = (4, 12);

/// Decides when files are checked, how closely, and when a change counts.
#[derive(Debug, Default)]
pub(super) struct ChangeDetector {
    /// The number of checks since the files were read.
    looks: u64,
    /// A change that the last check saw, until the files stay the same.
    unsettled: Option<PendingChange>,
    /// Whether files do not stay the same, and the log says so.
    is_restless: bool,
}

#[derive(Debug)]
struct PendingChange {
    seen: Vec<FileVersion>,
    /// Whether that check read the files.
    close: bool,
    /// The number of checks before that one that saw a change, too.
    before: u64,
}

impl ChangeDetector {
    /// The pause before the next check.
    pub(super) const fn pause(&self) -> Duration {
        if self.unsettled.is_some() { QUIET } else { LOOK }
    }

    /// Whether the next check reads the files, instead of their stamps only.
    pub(super) fn reads_content(&self) -> bool {
        let next = self.looks.saturating_add(1);
        let (every, fresh) = FRESH;
        match &self.unsettled {
            Some(unsettled) => unsettled.close,
            None => next.is_multiple_of(if next <= fresh { every } else { SLOW }),
        }
    }

    /// Notes a check that saw the files as `seen`; `known` is how they were last read. Returns true if they may have changed
    /// and have stayed the same since the last check, or do not stay the same.
    pub(super) fn record_check(&mut self, seen: Vec<FileVersion>, known: &[FileVersion]) -> bool {
        let close = self.reads_content();
        self.looks = self.looks.saturating_add(1);
        if seen == known {
            *self = Self { looks: self.looks, ..Self::default() };
            return false;
        }
        let last = self.unsettled.take();
        let changed = last.iter().flat_map(|last| last.seen.iter().zip(&seen)).find(|(last, now)| last != now);
        let before = last.as_ref().map_or(0, |last| last.before.saturating_add(1));
        let is_quiet = last.is_some() && changed.is_none();
        if before >= RESTLESS
            && let Some((file, _)) = changed
            && !std::mem::replace(&mut self.is_restless, true)
        {
            tracing::warn!(file = %file.path.display(), "a watched file changes all the time; it is read every few seconds, perhaps half written");
        }
        self.is_restless &= !is_quiet;
        self.unsettled = Some(PendingChange { seen, close, before });
        is_quiet || before >= RESTLESS
    }

    /// Starts again: the files were read.
    pub(super) fn restart(&mut self) {
        *self = Self { is_restless: self.is_restless, ..Self::default() };
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
        begin: impl FnOnce() -> W,
    ) {
        let name = Arc::as_ptr(subject).addr();
        let begun = || ActiveTask { _subject: Arc::<T>::clone(subject), task: tokio::spawn(begin()) };
        let task = before.remove(&name).unwrap_or_else(begun);
        self.0.insert(name, task);
    }
}

#[cfg(test)]
mod tests;
