//! A task that several callers wait for, and that goes on when they stop waiting.

use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::sleep;

use crate::units::Nanos;

/// A running task, and its result.
pub(super) struct SharedFuture<T> {
    result: watch::Receiver<Option<T>>,
    task: AbortHandle,
}

impl<T: Clone + Send + Sync + 'static> SharedFuture<T> {
    /// Starts `work` on the runtime of the caller.
    pub(super) fn begin(work: impl Future<Output = T> + Send + 'static) -> Self {
        Self::begin_with_rest(work, Nanos::ZERO)
    }

    /// Starts `work`; the task stays unfinished for another `rest` after the result is there.
    pub(super) fn begin_with_rest(work: impl Future<Output = T> + Send + 'static, rest: Nanos) -> Self {
        let (land, result) = watch::channel(None);
        let task = tokio::spawn(async move {
            land.send_replace(Some(work.await));
            sleep(rest.to_duration()).await;
        });
        Self { result, task: task.abort_handle() }
    }

    /// The task's result; `None` if it was cancelled first.
    pub(super) async fn wait(mut self) -> Option<T> {
        self.result.wait_for(Option::is_some).await.ok().and_then(|result| result.clone())
    }

    /// The task's result, if there is one already.
    pub(super) fn result(&self) -> Option<T> {
        self.result.borrow().clone()
    }

    /// Whether the task has ended, its rest included: no further result comes.
    pub(super) fn is_over(&self) -> bool {
        self.task.is_finished()
    }

    pub(super) fn is(&self, other: &Self) -> bool {
        self.result.same_channel(&other.result)
    }

    pub(super) fn cancel(&self) {
        self.task.abort();
    }
}

impl<T> Clone for SharedFuture<T> {
    fn clone(&self) -> Self {
        Self { result: self.result.clone(), task: self.task.clone() }
    }
}
