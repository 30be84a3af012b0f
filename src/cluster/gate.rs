//! Whether a gateway still answers others: until it ends, and nothing halfway.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Open until it is closed for good.
#[derive(Debug, Default)]
pub(super) struct Gate {
    is_closed: AtomicBool,
    inside: AtomicUsize,
}

/// Somebody who is being answered, until dropped.
pub(super) struct Inside(Arc<Gate>);

// Each side writes its own word before it reads the other's, in one order for all: whoever comes in while it is being
// closed is seen by the one who closes it, or sees that it is closed.
impl Gate {
    /// Lets somebody in, unless it is closed.
    pub(super) fn enter(self: &Arc<Self>) -> Option<Inside> {
        self.inside.fetch_add(1, Ordering::SeqCst);
        let inside = Inside(Arc::clone(self));
        (!self.is_closed()).then_some(inside)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Closes it, if nobody is inside and `may` holds once nobody comes in any more. Whether it is closed.
    pub(super) fn close_if(&self, may: impl FnOnce() -> bool) -> bool {
        self.is_closed.store(true, Ordering::SeqCst);
        let closes = self.inside.load(Ordering::SeqCst) == 0 && may();
        self.is_closed.store(closes, Ordering::SeqCst);
        closes
    }
}

impl Clone for Inside {
    fn clone(&self) -> Self {
        self.0.inside.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(&self.0))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_closes_when_nobody_is_inside_and_lets_nobody_in_from_then_on() {
        let gate = Arc::new(Gate::default());
        let inside = gate.enter();
        assert!(inside.is_some() && !gate.close_if(|| true));
        drop(inside);
        assert!(!gate.close_if(|| false));
        assert!(gate.enter().is_some());
        // whoever comes while it is being closed stays out
        assert!(gate.close_if(|| gate.enter().is_none()));
        assert!(gate.is_closed() && gate.enter().is_none());
    }
}
