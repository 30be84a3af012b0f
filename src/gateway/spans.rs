//! The spans of requests that have ended, until they are sent: in memory, so many at most.
//!
//! Requests add to them and wait for nobody. They stay here while they are being sent, so that the end of the process can
//! send again what nobody has taken.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::gateway::trace::Trace;
use crate::units::Nanos;

/// What a request was and what became of it.
#[derive(Clone, Debug, PartialEq)]
pub struct EndedSpan {
    /// Where it belongs.
    pub trace: Trace,
    /// What the request was, in few words: one of as many as there are routes.
    pub name: String,
    /// When its head was complete, by the wall clock.
    pub began: Nanos,
    /// When its response was over.
    pub ended: Nanos,
    /// What is known of it, by the names of OpenTelemetry.
    pub attributes: Vec<(&'static str, Value)>,
    /// Whether it failed, and not by its client's fault.
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
    /// Rings when there are some, and when there are many.
    rings: Notify,
}

impl Spans {
    /// So many are many: they are waited for no longer.
    pub const MANY: usize = 512;

    /// Adds a span. `false`: `most` are waiting, and it is lost.
    pub fn add(&self, span: EndedSpan, most: usize) -> bool {
        let waiting = {
            let mut waiting = self.waiting.lock();
            if waiting.len() >= most {
                return false;
            }
            waiting.push_back(Arc::new(span));
            waiting.len()
        };
        if waiting == 1 || waiting == Self::MANY {
            self.rings.notify_one();
        }
        true
    }

    /// How many wait.
    pub fn len(&self) -> usize {
        self.waiting.lock().len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits until there are `count` of them, 1 or [`Spans::MANY`]. For one caller.
    pub async fn has(&self, count: usize) {
        while self.len() < count {
            self.rings.notified().await;
        }
    }

    /// The oldest ones, [`Spans::MANY`] at most.
    pub fn oldest(&self) -> Vec<Arc<EndedSpan>> {
        self.waiting.lock().iter().take(Self::MANY).cloned().collect()
    }

    /// The `count` oldest ones are over.
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
        let most = Spans::MANY + 2;
        for began in 1..=most {
            assert!(spans.add(span(began as u64), most));
        }
        assert!(!spans.add(span(0), most));
        for _ in 0..2 {
            let oldest = spans.oldest();
            assert_eq!((oldest.len(), oldest[0].began), (Spans::MANY, Nanos::new(1)));
        }
        spans.remove(Spans::MANY);
        assert_eq!(spans.oldest().len(), 2);
        spans.remove(3);
        assert!(spans.is_empty() && spans.add(span(9), most));
    }
}
