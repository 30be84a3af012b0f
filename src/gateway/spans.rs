//! The spans of ended requests, until they are sent: in memory, and bounded in number.
//!
//! Requests add spans and never wait. Spans stay here while they are being sent, so that the gateway can send the
//! undelivered ones again at shutdown.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::gateway::trace::Trace;
use crate::units::Nanos;

/// The span of an ended request.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedSpan {
    /// The trace that it belongs to.
    pub trace: Trace,
    /// The method and the route's pattern, so that there are few different names.
    pub name: String,
    /// When its head was complete, by the wall clock.
    pub began: Nanos,
    /// When its response ended.
    pub ended: Nanos,
    /// The request's properties, under the names of OpenTelemetry.
    pub attributes: Vec<(&'static str, Value)>,
    /// Whether the request failed, and not through its client's fault.
    pub has_failed: bool,
}

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A text.
    Text(Cow<'static, str>),
    /// A whole number.
    Whole(i64),
    /// A number.
    Number(f64),
}

/// The spans that wait to be sent, the oldest first.
#[derive(Default)]
pub struct Spans {
    waiting: Mutex<VecDeque<Arc<EndedSpan>>>,
    /// Notified when there is one span, and when there are [`Spans::BATCH_SIZE`].
    rings: Notify,
}

impl Spans {
    /// The number of spans at which the sender stops waiting for more.
    pub const BATCH_SIZE: usize = 512;

    /// Adds a span. `false`: `max_waiting` spans are waiting already, and this one is lost.
    pub fn add(&self, span: EndedSpan, max_waiting: usize) -> bool {
        let waiting = {
            let mut waiting = self.waiting.lock();
            if waiting.len() >= max_waiting {
                return false;
            }
            waiting.push_back(Arc::new(span));
            waiting.len()
        };
        if waiting == 1 || waiting == Self::BATCH_SIZE {
            self.rings.notify_one();
        }
        true
    }

    /// The number of waiting spans.
    pub fn len(&self) -> usize {
        self.waiting.lock().len()
    }

    /// Whether no span waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until there are `count` spans, 1 or [`Spans::BATCH_SIZE`]. For one caller at a time.
    pub async fn wait_for(&self, count: usize) {
        while self.len() < count {
            self.rings.notified().await;
        }
    }

    /// The oldest spans, [`Spans::BATCH_SIZE`] at most.
    pub fn oldest(&self) -> Vec<Arc<EndedSpan>> {
        self.waiting.lock().iter().take(Self::BATCH_SIZE).cloned().collect()
    }

    /// Removes the `count` oldest spans.
    pub fn remove(&self, count: usize) {
        let mut waiting = self.waiting.lock();
        let count = count.min(waiting.len());
        drop(waiting.drain(..count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(began: u64) -> EndedSpan {
        let trace = Trace { id: 1, parent: None, flags: 1, span: Some(began) };
        let (began, ended) = (Nanos::new(began), Nanos::new(began));
        EndedSpan { trace, name: String::new(), began, ended, attributes: Vec::new(), has_failed: false }
    }

    #[test]
    fn the_oldest_stay_until_they_are_removed_and_the_newest_find_no_room() {
        let spans = Spans::default();
        let max_waiting = Spans::BATCH_SIZE + 2;
        for began in 1..=max_waiting {
            assert!(spans.add(span(began as u64), max_waiting));
        }
        assert!(!spans.add(span(0), max_waiting));
        for _ in 0..2 {
            let oldest = spans.oldest();
            assert_eq!((oldest.len(), oldest[0].began), (Spans::BATCH_SIZE, Nanos::new(1)));
        }
        spans.remove(Spans::BATCH_SIZE);
        assert_eq!(spans.oldest().len(), 2);
        spans.remove(3);
        assert!(spans.is_empty() && spans.add(span(9), max_waiting));
    }
}
