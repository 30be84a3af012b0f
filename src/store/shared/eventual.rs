//! Keys that every node counts by itself, telling the others afterwards.
//!
//! A node decides on the last total that Redis told it and on what it has admitted since. It tells Redis what it admitted,
//! and takes the total from the answer, every [`Settings::sync_every`](super::Settings::sync_every). What could not be
//! told is kept and told later, so totals are right again after a partition. A key that is new to a node is asked for
//! first.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::sleep;

use crate::algorithm::State;
use crate::charge::{Charged, Enforcement};
use crate::store::redis::{Call, CallArgument, KeyState};
use crate::store::shared::limit::{ChargePart, scaled};
use crate::store::shared::{ByKey, SharedNode, at_once};
use crate::units::{Cost, LimitKey, Nanos};

/// The keys that a node counts.
#[derive(Default)]
pub(super) struct EventualCounters(Mutex<ByKey<Count>>);

/// One key. Times are Redis's.
struct Count {
    /// A request for one token.
    part: ChargePart,
    /// The last total, and what was admitted here since.
    state: Option<State>,
    /// What was admitted here and is not told yet.
    unsynced: Cost,
    /// Whether it was asked for since it was last told.
    is_used: bool,
}

/// The most keys; what is beyond is asked for one by one.
const MOST_KEYS: usize = 100_000;
/// So many keys are told in one call, and so many calls are on their way at once.
const KEYS_OF_CALL: usize = 50;
const CALLS_AT_ONCE: usize = 32;

impl EventualCounters {
    /// Decides `part`, each of whose tokens counts `times`-fold here; `None` if the key is new.
    pub(super) fn decide(&self, part: &ChargePart, times: u64, theirs: Nanos) -> Option<Charged> {
        let mut counted = self.0.lock();
        let count = counted.get_mut(&part.key)?;
        count.follow(part, theirs);
        count.is_used = true;
        let rule = part.rule();
        let (wanted, cost) = (part.cost.saturating_mul(times), scaled(rule, part.cost, times));
        let (decision, after) = rule.decide(count.state.clone(), cost, theirs);
        if part.enforcement.consumes && decision.is_admitted() {
            // what does not fit in at once is owed
            count.state = rule.debit(after, wanted.saturating_sub(cost), theirs);
            count.unsynced = count.unsynced.saturating_add(part.cost);
        } else if part.enforcement.consumes && part.enforcement.counts_denied {
            count.owe(part.cost, times, theirs);
        }
        let mut headroom = rule.headroom(count.state.as_ref(), theirs);
        headroom.remaining = headroom.remaining.map(|left| left / times.max(1));
        Some(Charged { decision, headroom })
    }

    /// The key of `part` is in `state` now.
    pub(super) fn begin(&self, part: &ChargePart, state: Option<State>) {
        let mut counted = self.0.lock();
        if counted.len() < MOST_KEYS {
            let fresh = || Count { part: part.for_one(), state, unsynced: 0, is_used: true };
            counted.entry(part.key).or_insert_with(fresh);
        }
    }

    /// Takes back what was admitted with each token counted `times`-fold; `full_at` is when the key was going to be whole.
    /// False where it was told already.
    pub(super) fn refund(&self, part: &ChargePart, full_at: Nanos, times: u64, theirs: Nanos) -> bool {
        let mut counted = self.0.lock();
        let Some(count) = counted.get_mut(&part.key).filter(|count| count.unsynced >= part.cost) else { return false };
        count.follow(part, theirs);
        count.unsynced = count.unsynced.saturating_sub(part.cost);
        let cost = part.cost.saturating_mul(times);
        count.state = count.state.take().and_then(|state| part.rule().refund(state, cost, full_at, theirs));
        true
    }

    /// Counts what turned out to be owed, each token `times`-fold; false if the key is not counted here.
    pub(super) fn debit(&self, part: &ChargePart, times: u64, theirs: Nanos) -> bool {
        let mut counted = self.0.lock();
        let Some(count) = counted.get_mut(&part.key) else { return false };
        count.follow(part, theirs);
        count.owe(part.cost, times, theirs);
        true
    }

    /// Nothing is counted of `key` any more: it is asked for like a new one.
    pub(super) fn forget(&self, key: LimitKey) {
        self.0.lock().remove(&key);
    }

    /// What is to be told: for each key its unsynced tokens. Keys that nobody uses are forgotten.
    fn take_unsynced(&self) -> Vec<ChargePart> {
        let mut told = Vec::new();
        self.0.lock().retain(|_, count| {
            if count.unsynced == 0 && !count.is_used {
                return false;
            }
            told.push(ChargePart { cost: std::mem::take(&mut count.unsynced), ..count.part.clone() });
            count.is_used = false;
            true
        });
        told
    }

    /// The total of the key of `part`, after what it says was told.
    fn learn(&self, part: &ChargePart, total: Option<State>, at: Nanos) {
        if let Some(count) = self.0.lock().get_mut(&part.key) {
            let unsynced = count.unsynced;
            count.state = match unsynced {
                0 => total,
                unsynced => count.part.rule().debit(total, unsynced, at),
            };
        }
    }

    /// What `part` says could not be told.
    fn keep(&self, part: &ChargePart) {
        if let Some(count) = self.0.lock().get_mut(&part.key) {
            count.unsynced = count.unsynced.saturating_add(part.cost);
            count.is_used = true;
        }
    }
}

impl Count {
    /// Goes by the parameters of `part`.
    fn follow(&mut self, part: &ChargePart, theirs: Nanos) {
        if self.part.form.parameters() != part.form.parameters() {
            let state = self.state.take();
            self.state = state.and_then(|state| part.rule().migrate_state(self.part.rule(), state, theirs));
            self.part = part.for_one();
        }
    }

    fn owe(&mut self, cost: Cost, times: u64, theirs: Nanos) {
        self.state = self.part.rule().debit(self.state.take(), cost.saturating_mul(times), theirs);
        self.unsynced = self.unsynced.saturating_add(cost);
    }
}

impl SharedNode {
    /// Tells and asks, for as long as it is polled.
    pub(super) async fn keep_syncing(self: &Arc<Self>) {
        loop {
            sleep(self.settings.sync_every.to_duration()).await;
            if !self.is_away() {
                self.sync_all().await;
            }
        }
    }

    pub(super) async fn sync_all(self: &Arc<Self>) {
        let mut by_slot: BTreeMap<u16, Vec<ChargePart>> = BTreeMap::new();
        for part in self.counters.take_unsynced() {
            by_slot.entry(self.link.slot(part.tag)).or_default().push(part);
        }
        let calls = by_slot.values().flat_map(|parts| parts.chunks(KEYS_OF_CALL)).map(|some| {
            let node = Arc::clone(self);
            let parts: Vec<_> = some.iter().map(|part| (part.clone(), CallArgument::Nothing)).collect();
            async move { node.tell(&parts).await }
        });
        let calls = calls.collect();
        at_once(CALLS_AT_ONCE, calls).await;
    }

    async fn tell(&self, parts: &[(ChargePart, CallArgument<'static>)]) {
        match self.call_change(("sync", Call::Debit), parts).await {
            Ok((all, at)) => {
                for ((part, _), seen) in parts.iter().zip(all) {
                    // logs cannot be counted apart: see `limit::refuse`
                    if let KeyState::State(total) = seen {
                        self.counters.learn(part, total, at);
                    }
                }
            }
            Err(_) => parts.iter().for_each(|(part, _)| self.counters.keep(part)),
        }
    }
}

impl ChargePart {
    /// A request for one token of the same key.
    pub(super) fn for_one(&self) -> Self {
        Self { cost: 1, enforcement: Enforcement::USUAL, ..self.clone() }
    }
}
