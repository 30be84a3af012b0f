//! What is watched between reloads: files, looked at again and again, the nodes of upstreams, and sources of customers and
//! keys.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use crate::files::FileVersion;
use crate::gateway::Gateway;
use crate::gateway::upstream::health;
use crate::panics::restart_on_panic;

/// How often files are looked at.
const LOOK: Duration = Duration::from_millis(250);
/// How long files have to be left alone before they are read.
const QUIET: Duration = Duration::from_millis(100);
/// Every how many looks files are read too for the sake of systems whose stamps are wrong: every ten seconds.
const SLOW: u64 = 40;
/// The same, once a second, for so many looks after files were read: some systems keep times in steps of up to two
/// seconds, and what is written within the same step has the same stamp.
const FRESH: (u64, u64) = (4, 12);

/// When files are looked at, how closely, and when what is seen of them counts.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Looks since the files were read.
    looks: u64,
    /// What a look saw that was not known, until files are left alone.
    unsettled: Option<Unsettled>,
}

#[derive(Debug)]
struct Unsettled {
    seen: Vec<FileVersion>,
    /// Whether it took a close look to see it.
    close: bool,
}

impl Watch {
    /// How long to wait for the next look.
    pub(super) const fn pause(&self) -> Duration {
        if self.unsettled.is_some() { QUIET } else { LOOK }
    }

    /// Whether files are read at the next look, instead of looking at their stamps only.
    pub(super) fn is_close(&self) -> bool {
        let next = self.looks.saturating_add(1);
        let (every, fresh) = FRESH;
        match &self.unsettled {
            Some(unsettled) => unsettled.close,
            None => next.is_multiple_of(if next <= fresh { every } else { SLOW }),
        }
    }

    /// Takes what a look saw of the files, of which `known` was known before. True if they may hold something else and
    /// have been left alone since the last look.
    pub(super) fn saw(&mut self, seen: Vec<FileVersion>, known: &[FileVersion]) -> bool {
        let close = self.is_close();
        self.looks = self.looks.saturating_add(1);
        if seen == known {
            self.unsettled = None;
            return false;
        }
        let is_quiet = self.unsettled.as_ref().is_some_and(|before| before.seen == seen);
        self.unsettled = Some(Unsettled { seen, close });
        is_quiet
    }

    /// Begins anew: the files were read.
    pub(super) fn restart(&mut self) {
        *self = Self::default();
    }
}

/// The background work for what is in force: watching the nodes of pools, asking sources of customers and keys.
#[derive(Default)]
pub(super) struct ActiveTasks(HashMap<usize, ActiveTask>);

/// Background work that ends when this is dropped.
struct ActiveTask {
    /// Keeps what the work is for, and with it its address as a name for it.
    _subject: Arc<dyn Any + Send + Sync>,
    task: JoinHandle<()>,
}

impl Drop for ActiveTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ActiveTasks {
    /// Works for what is in force, and for nothing else.
    pub(super) fn follow(&mut self, gateway: &Gateway) {
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

    /// Goes on with the work for `subject`, or begins it.
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
