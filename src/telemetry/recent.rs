//! The last requests that limits denied, delayed, diverted or marked, for operators: a sample if there are many.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::ruleset::outcome::OutcomeKind;
use crate::stripes::Striped;
use crate::telemetry::offenders::LimitedKey;
use crate::units::Nanos;

/// The number of requests that are kept.
const KEPT: usize = 200;
/// At most `NOTED_IN_SPAN` requests are noted in each span of this length, so that further ones cost almost nothing.
const SPAN: Nanos = Nanos::new(100_000_000);
const NOTED_IN_SPAN: u64 = 20;

/// A request that a limit denied, delayed, diverted or marked.
#[derive(Clone, Debug)]
pub struct RecentDecision {
    /// The time.
    pub at: Nanos,
    /// The outcome: it is denied, banned, delayed, diverted or marked.
    pub outcome: OutcomeKind,
    /// The route's name.
    pub route: String,
    /// The caller's plan.
    pub plan: Option<String>,
    /// The limit that acted, and the key.
    pub subject: Arc<LimitedKey>,
    /// How long the request waits.
    pub wait: Nanos,
    /// After what time a denied request would be admitted; `None` if that is unknown or no wait helps.
    pub retry_after: Option<Nanos>,
}

/// Keeps the last of these requests.
#[derive(Debug, Default)]
pub struct RecentDecisions {
    /// The number of the current span times 256, plus the number of requests noted in it.
    span: AtomicU64,
    left_out: Striped<AtomicU64>,
    kept: Mutex<VecDeque<RecentDecision>>,
}

impl RecentDecisions {
    /// Notes a request at `now`, or counts it as left out. `what` describes the request, and is called only to note it.
    pub fn record(&self, now: Nanos, what: impl FnOnce() -> RecentDecision) {
        let span = now.get() / SPAN.get();
        let before = self.span.load(Ordering::Relaxed);
        let noted = if before >> 8 == span { before & 0xff } else { 0 };
        let after = (span << 8) | noted.saturating_add(1);
        let mine = || self.span.compare_exchange(before, after, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if noted >= NOTED_IN_SPAN || !mine() {
            if let Some(left_out) = self.left_out.mine() {
                left_out.fetch_add(1, Ordering::Relaxed);
            }
            return;
        }
        let what = what();
        let mut kept = self.kept.lock();
        if kept.len() >= KEPT {
            kept.pop_front();
        }
        kept.push_back(what);
    }

    /// The noted requests, the last first, and the number of requests left out so far.
    pub fn all(&self) -> (Vec<RecentDecision>, u64) {
        let kept = self.kept.lock().iter().rev().cloned().collect();
        (kept, self.left_out.iter().map(|left_out| left_out.load(Ordering::Relaxed)).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(now: Nanos) -> RecentDecision {
        let subject = Arc::new(LimitedKey { limit: "guard".to_owned(), key: Vec::new() });
        let (wait, retry_after) = (Nanos::ZERO, None);
        let (outcome, route) = (OutcomeKind::Denied, "all".to_owned());
        RecentDecision { at: now, outcome, route, plan: None, subject, wait, retry_after }
    }

    #[test]
    fn the_last_ones_are_kept_and_of_many_at_once_a_few() {
        let recent = RecentDecisions::default();
        for number in 0..500 {
            let now = Nanos::new(number * SPAN.get() / 10);
            recent.record(now, || at(now));
        }
        let (kept, left_out) = recent.all();
        assert_eq!((kept.len(), left_out), (KEPT, 0));
        assert_eq!(kept.first().map(|last| last.at), Some(Nanos::new(499 * SPAN.get() / 10)));
        let now = Nanos::from_secs(1000);
        for _ in 0..100 {
            recent.record(now, || at(now));
        }
        let (kept, left_out) = recent.all();
        assert_eq!(kept.iter().filter(|one| one.at == now).count() as u64, NOTED_IN_SPAN);
        assert_eq!(left_out, 100 - NOTED_IN_SPAN);
    }
}
