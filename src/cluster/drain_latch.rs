//! A latch with which a leaving gateway stops answering others at a moment when it answers no request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Open until it is closed permanently. It closes only while no request is in flight.
#[derive(Debug, Default)]
pub(super) struct DrainLatch {
    is_closed: AtomicBool,
    in_flight: AtomicUsize,
}

/// A request of another gateway that is being answered, until dropped.
pub(super) struct InFlight(Arc<DrainLatch>);

// Each side writes its own word before it reads the other's, in one total order (SeqCst). So for a request that enters
// while a thread closes the latch, either that thread sees the request, or the request sees that the latch is closed.
impl DrainLatch {
    /// Admits a request, unless the latch is closed.
    pub(super) fn enter(self: &Arc<Self>) -> Option<InFlight> {
        self.in_flight.fetch_add(1, Ordering::SeqCst);
        let in_flight = InFlight(Arc::clone(self));
        (!self.is_closed()).then_some(in_flight)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Closes the latch if no request is in flight and `may` holds while no request can enter. Returns whether
    /// it is closed.
    pub(super) fn close_if(&self, may: impl FnOnce() -> bool) -> bool {
        self.is_closed.store(true, Ordering::SeqCst);
        let closes = self.in_flight.load(Ordering::SeqCst) == 0 && may();
        self.is_closed.store(closes, Ordering::SeqCst);
        closes
    }
}

impl Clone for InFlight {
    fn clone(&self) -> Self {
        self.0.in_flight.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(&self.0))
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_closes_when_nobody_is_inside_and_lets_nobody_in_from_then_on() {
        let latch = Arc::new(DrainLatch::default());
        let in_flight = latch.enter();
        assert!(in_flight.is_some() && !latch.close_if(|| true));
        drop(in_flight);
        assert!(!latch.close_if(|| false));
        assert!(latch.enter().is_some());
        // a request that comes while the latch is being closed stays out
        assert!(latch.close_if(|| latch.enter().is_none()));
        assert!(latch.is_closed() && latch.enter().is_none());
    }
}
