//! Corrections of charges at another gateway: refunds, debits and completions. No request waits for them. This
//! gateway sends a correction again over each new connection until the other side has confirmed it; the other side
//! makes it only once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::session::{ReplyCallback, Session, WireRule};
use super::wire::{Ask, CorrectionRequest};
use crate::panics::{Panicked, catch_panic};
use crate::units::Nanos;

/// Corrections that the other gateway has not confirmed.
pub(super) struct Pending {
    process: u64,
    last: u64,
    changes: BTreeMap<u64, PendingCorrection>,
}

struct PendingCorrection {
    correction: Correction,
    is_sent: bool,
}

/// A correction of a charge that this gateway made at another one.
pub type Correction = CorrectionRequest<Arc<WireRule>>;

/// The maximum number of corrections that wait for an unreachable gateway: about 30 MB.
const MAX_PENDING: usize = 100_000;

impl Pending {
    /// The numbers start at `now`, so that none is used twice when this process forgets a gateway and later
    /// knows it again.
    pub(super) const fn new(now: Nanos) -> Self {
        Self { process: 0, last: now.get(), changes: BTreeMap::new() }
    }

    /// Marks all corrections as unsent for a new connection to `process`. Returns those that were for another process.
    pub(super) fn arrived(&mut self, process: u64) -> Vec<Correction> {
        let left = if self.process == process { Vec::new() } else { self.take_all() };
        self.process = process;
        self.changes.values_mut().for_each(|change| change.is_sent = false);
        left
    }

    /// Queues a correction. Returns whether it discarded the oldest one because too many wait.
    pub(super) fn push(&mut self, correction: Correction) -> bool {
        self.last = self.last.saturating_add(1);
        self.changes.insert(self.last, PendingCorrection { correction, is_sent: false });
        let is_full = self.changes.len() > MAX_PENDING;
        if is_full {
            self.changes.pop_first();
        }
        is_full
    }

    /// Sends the corrections not yet sent over `session`; `on_reply` makes the callback of each from its number.
    pub(super) fn send(&mut self, session: &Session, on_reply: impl Fn(u64) -> ReplyCallback) {
        for (number, change) in self.changes.iter_mut().filter(|(_, change)| !change.is_sent) {
            change.is_sent = change.correction.send(*number, session, on_reply(*number));
            if !change.is_sent {
                return;
            }
        }
    }

    /// Removes the correction with this number: the other side has made it.
    pub(super) fn confirm(&mut self, number: u64) {
        self.changes.remove(&number);
    }

    /// Takes out all corrections, because the other gateway will make none of them.
    pub(super) fn take_all(&mut self) -> Vec<Correction> {
        std::mem::take(&mut self.changes).into_values().map(|unmade| unmade.correction).collect()
    }

    /// Takes out the corrections that another gateway can make as well.
    pub(super) fn take_transferable(&mut self) -> Vec<Correction> {
        let changes = std::mem::take(&mut self.changes).into_iter();
        let (transferable, others): (Vec<_>, Vec<_>) =
            changes.partition(|(_, unmade)| unmade.correction.is_transferable());
        self.changes = others.into_iter().collect();
        transferable.into_iter().map(|(_, unmade)| unmade.correction).collect()
    }

    pub(super) fn has_transferable(&self) -> bool {
        self.changes.values().any(|unmade| unmade.correction.is_transferable())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

/// Corrections of charges that this gateway made, whose states it has to fetch first.
#[derive(Default)]
pub(super) struct LocalCorrections {
    /// The corrections that wait or are being made, the oldest first.
    unmade: Arc<Mutex<BTreeMap<u64, Correction>>>,
    some: Notify,
    /// How many corrections were discarded, because too many wait or the gateway that had to make them is gone.
    pub(super) lost: AtomicU64,
}

impl LocalCorrections {
    pub(super) fn push(&self, correction: Correction) {
        let mut unmade = self.unmade.lock();
        if unmade.len() >= MAX_PENDING {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let next = unmade.last_key_value().map_or(0, |(last, _)| last.saturating_add(1));
        unmade.insert(next, correction);
        self.some.notify_one();
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unmade.lock().is_empty()
    }

    /// Makes each queued correction with `correct`, until dropped. The next call makes those that are not made by then.
    pub(super) async fn make<M: Future<Output = ()> + Send + 'static>(&self, correct: impl Fn(Correction) -> M) {
        loop {
            let mut making = JoinSet::new();
            for (number, correction) in &*self.unmade.lock() {
                let (made, unmade, number) = (correct(correction.clone()), Arc::clone(&self.unmade), *number);
                making.spawn(async move {
                    // a correction that panics would panic again
                    let (Ok(()) | Err(Panicked)) = catch_panic(made).await;
                    unmade.lock().remove(&number);
                });
            }
            making.join_all().await;
            self.some.notified().await;
        }
    }
}

impl Correction {
    fn send(&self, number: u64, session: &Session, on_reply: ReplyCallback) -> bool {
        let change = |numbers: &[u32]| self.with_rule(numbers.first().copied().unwrap_or_default());
        let ask = |numbers: &[u32]| Ask::Change { number, change: change(numbers) };
        session.ask(&[&self.part().rule], ask, on_reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::{AlgorithmName, Arguments, Value};
    use crate::charge::Enforcement;
    use crate::cluster::session::PeerCharge;
    use crate::cluster::wire::LimitIdentity;
    use crate::units::LimitKey;

    fn debit(key: u128) -> Correction {
        let mut arguments = Arguments::default();
        arguments.set("limit", Value::Whole(1));
        let rule = AlgorithmName::Concurrency.build(&arguments).unwrap();
        let limit = LimitIdentity { name: String::new(), algorithm: String::new(), key_kind: 0, max_keys: 1 };
        let rule = Arc::new(WireRule::new(&Arc::new(limit), &rule));
        let enforcement = Enforcement::DEFAULT;
        Correction::Debit(PeerCharge { rule, key: LimitKey(key), cost: 1, enforcement, slot: 0 })
    }

    #[tokio::test]
    async fn corrections_that_a_pause_interrupts_are_made_once_after_it() {
        let (corrections, made) = (LocalCorrections::default(), Arc::new(Mutex::new(Vec::new())));
        (0..3).for_each(|key| corrections.push(debit(key)));
        let make = async |is_held: bool| {
            let correct = |correction: Correction| {
                let (made, key) = (Arc::clone(&made), correction.part().key.0);
                async move {
                    if is_held && key == 1 {
                        std::future::pending::<()>().await;
                    }
                    made.lock().push(key);
                }
            };
            tokio::select! {
                biased;
                () = corrections.make(correct) => {}
                () = async {
                    while made.lock().len() < if is_held { 2 } else { 3 } {
                        tokio::task::yield_now().await;
                    }
                } => {}
            }
        };
        make(true).await;
        assert!(!corrections.is_empty());
        make(false).await;
        assert_eq!((made.lock().clone(), corrections.is_empty()), (vec![0, 2, 1], true));
    }
}
