//! Work that several wait for, and that goes on when they do not wait any more.

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::units::Nanos;

/// Work on its way, and what came of it.
pub(super) struct SharedFuture<T> {
    landed: watch::Receiver<Option<T>>,
    task: AbortHandle,
}

impl<T: Clone + Send + Sync + 'static> SharedFuture<T> {
    /// Begins `work`, on the runtime of whoever asks first.
    pub(super) fn begin(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self::begin_with_rest(work, Nanos::ZERO)
    }

    /// The same, and it is not over for another `rest` when something came of it.
    pub(super) fn begin_with_rest(work: impl Future<Output = T> + Send + 'static, rest: Nanos) -> Self {
        let (land, landed) = watch::channel(None);
        let task = tokio::spawn(async move {
            land.send_replace(Some(work.await));
            sleep(rest.to_duration()).await;
        });
        Self { landed, task: task.abort_handle() }
    }

    /// What came of it; `None` if it was called off.
    pub(super) async fn land(mut self) -> Option<T> {
        self.landed.wait_for(Option::is_some).await.ok().and_then(|landed| landed.clone())
    }

    /// What has come of it so far.
    pub(super) fn landed(&self) -> Option<T> {
        self.landed.borrow().clone()
    }

    /// Whether nothing will come of it any more that has not come yet.
    pub(super) fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        self.landed.same_channel(&other.landed)
    }

    pub(super) fn cancel(&self) {
        self.task.abort();
    }
}

impl<T> Clone for SharedFuture<T> {
    fn clone(&self) -> Self {
        Self { landed: self.landed.clone(), task: self.task.clone() }
    }
}
