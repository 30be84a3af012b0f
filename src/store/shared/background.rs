//! Background work, which no request waits for.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::runtime::Handle;
use tokio::task::JoinSet;

use crate::store::shared::SharedStore;

/// Runs `work`, at most `max_tasks` tasks at a time. Returns the results in the order in which the tasks end.
pub(super) async fn run_bounded<T: Send + 'static>(
    max_tasks: usize,
    work: Vec<impl Future<Output = T> + Send + 'static>,
) -> Vec<T> {
    let (mut running, mut ended) = (JoinSet::new(), Vec::new());
    for one in work {
        if running.len() >= max_tasks {
            ended.extend(running.join_next().await.and_then(Result::ok));
        }
        running.spawn(one);
    }
    while let Some(one) = running.join_next().await {
        ended.extend(one);
    }
    ended
}

impl SharedStore {
    /// Runs `task` in the background.
    pub(super) fn spawn_background(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = Handle::try_current() else { return };
        let pending = self.begin_change();
        runtime.spawn(async move {
            task.await;
            drop(pending);
        });
    }

    /// Counts a change as on its way to Redis until the result is dropped.
    pub(super) fn begin_change(self: &Arc<Self>) -> Pending {
        self.pending.fetch_add(1, Ordering::Relaxed);
        Pending(Arc::clone(self))
    }
}

/// A change on its way to Redis, counted until it is dropped.
pub(super) struct Pending(Arc<SharedStore>);

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::Relaxed);
    }
}
