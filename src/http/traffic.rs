//! The counts of current requests, and of requests that are about to arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::lifecycle::Lifecycle;
use crate::stripes::Striped;

/// The counters of all connections and requests of a gateway.
#[derive(Debug, Default)]
pub struct Traffic {
    counts: Striped<StageCounts>,
    /// The phase of the gateway: whether it accepts connections, and keeps them open for more than one request.
    pub lifecycle: Lifecycle,
}

/// The passages of each stage.
type StageCounts = [StageCounter; 4];

/// How often a stage was entered and left. One worker may leave a stage that another one entered. Both numbers only
/// grow: a reader that first sums `left` and then `entered` finds equal sums only if the stage was empty at some
/// moment in between.
#[derive(Debug, Default)]
struct StageCounter {
    entered: AtomicUsize,
    left: AtomicUsize,
}

/// The stage under which a connection or a request is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A connection on which no bytes have arrived yet.
    Fresh,
    /// A request whose head is arriving.
    ReadingHead,
    /// A request that the gateway has not decided yet.
    Undecided,
    /// A request that the gateway handles.
    Request,
}

impl Traffic {
    /// Counts an entry into `stage`. A request must enter its next stage before it leaves the current one.
    pub(super) fn enter(&self, stage: Stage) {
        self.count(stage, |passages| &passages.entered);
    }

    /// Counts an exit from `stage`.
    pub(super) fn leave_stage(&self, stage: Stage) {
        self.count(stage, |passages| &passages.left);
    }

    /// Counts a request that is being handled, or responses that are being sent, until the value is dropped.
    pub(super) fn request(&self) -> RequestGuard<'_> {
        self.enter(Stage::Request);
        RequestGuard(self)
    }

    /// Counts an accepted connection as fresh until the value is dropped. Before that, the connection must be
    /// counted by itself.
    pub fn arrive(self: &Arc<Self>) -> ArrivalGuard {
        self.enter(Stage::Fresh);
        ArrivalGuard(Arc::clone(self))
    }

    /// Whether there is no request.
    pub fn is_idle(&self) -> bool {
        // in the order in which a request passes through the stages
        [Stage::Undecided, Stage::Request].into_iter().all(|stage| self.is_empty(stage))
    }

    /// The number of requests, and of connections that send responses. A request that enters its next stage just now may
    /// count twice.
    pub fn requests(&self) -> usize {
        let in_stage = |stage| {
            let left = self.sum(stage, |passages| &passages.left);
            self.sum(stage, |passages| &passages.entered).saturating_sub(left)
        };
        [Stage::Undecided, Stage::Request].into_iter().map(in_stage).fold(0, usize::saturating_add)
    }

    /// Whether the gateway is about to decide a request: the first one of a new connection, or one that has partly
    /// or completely arrived.
    pub fn awaits_requests(&self) -> bool {
        [Stage::Fresh, Stage::ReadingHead, Stage::Undecided].into_iter().any(|stage| !self.is_empty(stage))
    }

    /// Whether the head of a request has partly arrived.
    pub fn has_partial_head(&self) -> bool {
        !self.is_empty(Stage::ReadingHead)
    }

    /// Whether the gateway closes connections once their requests are answered.
    pub fn is_draining(&self) -> bool {
        self.lifecycle.phase().drains()
    }

    fn is_empty(&self, stage: Stage) -> bool {
        let left = self.sum(stage, |passages| &passages.left);
        left == self.sum(stage, |passages| &passages.entered)
    }

    fn sum(&self, stage: Stage, number: impl Fn(&StageCounter) -> &AtomicUsize) -> usize {
        let of_worker = |counts: &StageCounts| {
            counts.get(stage as usize).map_or(0, |passages| number(passages).load(Ordering::Acquire))
        };
        self.counts.iter().map(of_worker).fold(0, usize::wrapping_add)
    }

    fn count(&self, stage: Stage, number: impl Fn(&StageCounter) -> &AtomicUsize) {
        if let Some(passages) = self.counts.mine().and_then(|counts| counts.get(stage as usize)) {
            number(passages).fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// See [`Traffic::arrive`].
#[derive(Debug)]
pub struct ArrivalGuard(Arc<Traffic>);

impl Drop for ArrivalGuard {
    fn drop(&mut self) {
        self.0.leave_stage(Stage::Fresh);
    }
}

/// See [`Traffic::request`].
pub(super) struct RequestGuard<'t>(&'t Traffic);

impl Drop for RequestGuard<'_> {
    fn drop(&mut self) {
        self.0.leave_stage(Stage::Request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stripes;

    #[test]
    fn a_request_may_end_on_another_worker_than_it_began_on() {
        let traffic = Arc::new(Traffic::default());
        let on_worker = |worker, work: &(dyn Fn() + Sync)| {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    stripes::enter(worker);
                    work();
                });
            });
        };
        on_worker(0, &|| traffic.enter(Stage::Request));
        on_worker(1, &|| traffic.enter(Stage::Request));
        on_worker(1, &|| traffic.leave_stage(Stage::Request));
        assert!(!traffic.is_idle());
        on_worker(1, &|| traffic.leave_stage(Stage::Request));
        assert!(traffic.is_idle());
    }
}
