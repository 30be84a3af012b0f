//! Which requests are here, and which are about to come.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::lifecycle::Lifecycle;
use crate::stripes::Striped;

/// What every connection and request of a gateway is counted in.
#[derive(Debug, Default)]
pub struct Traffic {
    counts: Striped<StageCounts>,
    /// Whether connections are accepted, and stay open for more than one request.
    pub lifecycle: Lifecycle,
}

/// The passages through each stage.
type StageCounts = [Passages; 4];

/// How often a stage was entered and left. One worker may leave what another one entered. Both numbers only grow, so that a
/// reader who adds up all that was left before all that was entered finds equal sums only if the stage was empty in between.
#[derive(Debug, Default)]
struct Passages {
    entered: AtomicUsize,
    left: AtomicUsize,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// A connection on which nothing has come yet.
    Fresh,
    /// A request whose head is coming in.
    Coming,
    /// A request that is not decided on yet.
    Undecided,
    /// A request that is being handled.
    Request,
}

impl Traffic {
    /// Counts one more. What goes from one stage to the next is counted there before it is not counted here any more.
    pub(super) fn enter(&self, stage: Stage) {
        self.count(stage, |passages| &passages.entered);
    }

    /// Counts one less.
    pub(super) fn leave_stage(&self, stage: Stage) {
        self.count(stage, |passages| &passages.left);
    }

    /// A request is being handled until the value is dropped.
    pub(super) fn request(self: &Arc<Self>) -> RequestGuard {
        self.enter(Stage::Request);
        RequestGuard(Arc::clone(self))
    }

    /// A connection was accepted: it counts as fresh until the value is dropped, by when it has to count for itself.
    pub fn arrive(self: &Arc<Self>) -> ArrivalGuard {
        self.enter(Stage::Fresh);
        ArrivalGuard(Arc::clone(self))
    }

    /// Whether no request is here.
    pub fn is_idle(&self) -> bool {
        // In the order in which a request passes through them.
        [Stage::Undecided, Stage::Request].into_iter().all(|stage| self.is_empty(stage))
    }

    /// Whether something is soon to be decided: about the first request of a new connection, or one of which a part is
    /// here.
    pub fn awaits_requests(&self) -> bool {
        [Stage::Fresh, Stage::Coming, Stage::Undecided].into_iter().any(|stage| !self.is_empty(stage))
    }

    /// Whether a part of a request is here.
    pub fn is_in_a_request(&self) -> bool {
        !self.is_empty(Stage::Coming)
    }

    /// Whether connections are closed once their requests are answered.
    pub fn is_draining(&self) -> bool {
        self.lifecycle.phase().drains()
    }

    fn is_empty(&self, stage: Stage) -> bool {
        let left = self.sum(stage, |passages| &passages.left);
        left == self.sum(stage, |passages| &passages.entered)
    }

    fn sum(&self, stage: Stage, number: impl Fn(&Passages) -> &AtomicUsize) -> usize {
        let of_worker = |counts: &StageCounts| {
            counts.get(stage as usize).map_or(0, |passages| number(passages).load(Ordering::Acquire))
        };
        self.counts.iter().map(of_worker).fold(0, usize::wrapping_add)
    }

    fn count(&self, stage: Stage, number: impl Fn(&Passages) -> &AtomicUsize) {
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
pub(super) struct RequestGuard(Arc<Traffic>);

impl Drop for RequestGuard {
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
