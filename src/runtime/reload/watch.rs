//! What is watched between reloads: directories for changes, and the nodes of upstreams.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::files::Seen;
use crate::proxy::Gateway;
use crate::proxy::upstream::{Pool, health};

/// Directories in which something may happen to files.
pub(super) struct Watch {
    watcher: Option<RecommendedWatcher>,
    directories: BTreeSet<PathBuf>,
    told: Arc<Notify>,
}

impl Watch {
    /// Watches nothing yet.
    pub(super) fn new() -> Self {
        let told = Arc::new(Notify::new());
        let tell = Arc::clone(&told);
        let watcher = notify::recommended_watcher(move |event: notify::Result<Event>| {
            if event.is_ok_and(|event| is_change(event.kind)) {
                tell.notify_one();
            }
        });
        let watcher = watcher
            .inspect_err(|error| tracing::warn!(%error, "cannot watch files; they are looked at every second"))
            .ok();
        Self { watcher, directories: BTreeSet::new(), told }
    }

    /// Watches the directories of `files`, and no others. A directory that was replaced by another is watched anew.
    pub(super) fn follow(&mut self, files: &[Seen]) {
        let Some(watcher) = &mut self.watcher else { return };
        for gone in &self.directories {
            // Fails where the directory is gone, and its watch with it.
            drop(watcher.unwatch(gone));
        }
        self.directories = files.iter().flat_map(Seen::directories).collect();
        self.directories.retain(|directory| {
            let watched = watcher.watch(directory, RecursiveMode::NonRecursive);
            if let Err(error) = &watched {
                tracing::debug!(%error, directory = %directory.display(), "cannot watch a directory");
            }
            watched.is_ok()
        });
    }

    /// Returns when something happened in one of the directories, once for whatever happened.
    pub(super) async fn told(&self) {
        self.told.notified().await;
    }
}

/// Whether something may be different now; that files are read tells nothing.
fn is_change(kind: EventKind) -> bool {
    !matches!(kind, EventKind::Access(access) if access != AccessKind::Close(AccessMode::Write))
}

/// The background work for the pools in force.
#[derive(Default)]
pub(super) struct Pools(HashMap<usize, Watched>);

/// A pool whose nodes are watched until this is dropped.
struct Watched {
    /// Keeps the pool, and with it its address as a name for it.
    _pool: Arc<Pool>,
    task: JoinHandle<()>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Pools {
    /// Watches the pools in force, and no others.
    pub(super) fn follow(&mut self, gateway: &Gateway) {
        let live = gateway.live.load_full();
        let mut before = std::mem::take(&mut self.0);
        self.0 = live
            .pools
            .iter()
            .map(|pool| {
                let name = Arc::as_ptr(pool).addr();
                let watched = before.remove(&name).unwrap_or_else(|| Watched {
                    _pool: Arc::clone(pool),
                    task: tokio::spawn(health::watch(Arc::clone(pool), Arc::clone(&gateway.clock))),
                });
                (name, watched)
            })
            .collect();
    }
}
