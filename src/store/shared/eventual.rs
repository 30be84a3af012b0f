//! Keys that every gateway counts by itself, and syncs with the other gateways afterwards.
//!
//! A gateway decides by the last total that Redis sent it and by its own admissions since. It sends its admissions to
//! Redis, and takes the total from the reply, every [`StoreSettings::sync_every`](super::StoreSettings::sync_every). The total does
//! not hold what time had refilled of them by then. The gateway keeps the tokens that Redis has not taken and sends them
//! later. It sends a sync that Redis may have run once, so that none counts twice, and the next one only when Redis has
//! answered a question. For a key that is new to it, a gateway asks Redis first. While
//! Redis is unavailable, [`Fallback`](super::Fallback) decides, from what the gateway knows of the key; afterwards the key
//! is new again.
//!
//! A count is of one set of parameters, since Redis debits tokens under those that admitted them. The gateway asks
//! Redis about requests of the same key under other parameters (of another plan, of overrides).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::time::timeout;

use crate::algorithm::State;
use crate::charge::{Charged, Enforcement};
use crate::store::redis::{CallArgument, KeyState};
use crate::store::shared::calls::{CallFailure, Change, repair_states};
use crate::store::shared::limit::ChargePart;
use crate::store::shared::{ByKey, SharedStore, run_bounded};
use crate::units::{Cost, LimitKey, Nanos};

/// The keys that a gateway counts.
#[derive(Default)]
pub(super) struct EventualCounters {
    counts: Mutex<ByKey<Count>>,
    /// The last number of a sync.
    last_sync: AtomicU64,
    /// The servers whose last sync has no reply.
    unanswered: Mutex<BTreeSet<usize>>,
}

/// The count of one key. Times are Redis's.
struct Count {
    /// A request for one token.
    part: ChargePart,
    /// The last total, plus the admissions of this gateway since.
    state: Option<State>,
    /// The tokens that this gateway has admitted and not yet synced.
    unsynced: Cost,
    /// The state that these tokens alone leave.
    alone: Option<State>,
    /// The tokens of which a sync under way tells Redis.
    syncing: Cost,
    /// The tokens that requests are asking of Redis.
    asked: Cost,
    /// The number of the sync that will take them: a charge of another number is not among them.
    sync: u64,
    /// Whether a request has used the key since the last sync.
    is_used: bool,
    /// Whether the gateway has to ask Redis: the key is new, or the gateway has decided about it without Redis since.
    is_outdated: bool,
}

/// The tokens of a key that a sync tells Redis of.
struct Unsynced {
    /// A charge of these tokens; where time refills windows of tokens, without those that it has refilled.
    part: ChargePart,
    /// The state that all tokens alone leave.
    alone: Option<State>,
    /// The time since which they were admitted, where time refills tokens one by one.
    since: Option<Nanos>,
}

/// A request that asks Redis because its key is not counted. Its tokens count as used in a count that begins meanwhile.
pub(super) struct AskedOfRedis<'c> {
    counters: &'c EventualCounters,
    key: LimitKey,
    cost: Cost,
}

/// The most keys; the gateway asks Redis for each request of a key beyond that.
const MAX_KEYS: usize = 100_000;
/// The number of keys in one sync call, and the number of sync calls at the same time: few, because requests of other
/// limits wait while Redis handles them.
const KEYS_OF_CALL: usize = 10;
const CALLS_AT_ONCE: usize = 4;

impl EventualCounters {
    /// Decides `part`; `None` if the key is new, or counted under other parameters. Returns the number of the sync that
    /// will take the charge as well.
    pub(super) fn decide(&self, part: &ChargePart, redis_time: Nanos) -> Option<(Charged, u64)> {
        let mut counted = self.counts.lock();
        let count = counted.get_mut(&part.key).filter(|count| !count.is_outdated && count.counts(part))?;
        count.is_used = true;
        let rule = part.rule();
        let (mut decision, after) = rule.decide(count.state.clone(), part.cost, redis_time);
        if part.enforcement.takes(decision) {
            count.state = after;
            count.note_unsynced(part.cost, redis_time);
        } else if part.enforcement.consumes && part.enforcement.counts_denied {
            count.owe(part.cost, redis_time);
            decision = rule.after_debit(decision, count.state.as_ref(), part.cost, redis_time);
        }
        let headroom = rule.headroom(count.state.as_ref(), redis_time);
        Some((Charged { decision, headroom }, count.sync))
    }

    /// Notes that `part`, whose key is not counted, is asked of Redis until the result is dropped.
    pub(super) fn ask(&self, part: &ChargePart) -> AskedOfRedis<'_> {
        let mut counted = self.counts.lock();
        let cost = if part.enforcement.consumes { part.cost } else { 0 };
        if counted.len() < MAX_KEYS || counted.contains_key(&part.key) {
            let count = counted.entry(part.key).or_insert_with(|| Count::unknown(part, self.next_sync()));
            count.asked = count.asked.saturating_add(cost);
        }
        AskedOfRedis { counters: self, key: part.key, cost }
    }

    /// Begins to count the key of `part`, of which Redis has told this `state`, unless another reply has begun it, or
    /// tokens of other parameters have to be synced.
    pub(super) fn begin(&self, part: &ChargePart, state: Option<State>, redis_time: Nanos) {
        let mut counted = self.counts.lock();
        let may_begin = |count: &&mut Count| {
            count.is_outdated && (count.counts(part) || (count.unsynced == 0 && count.syncing == 0))
        };
        let Some(count) = counted.get_mut(&part.key).filter(may_begin) else { return };
        count.part = part.for_one();
        if count.unsynced == 0 {
            count.alone = None;
        }
        count.set_total(state, redis_time);
        (count.is_used, count.is_outdated) = (true, false);
    }

    /// Takes what this gateway knows of the key of `part`, so that it can decide without Redis: the used tokens, `None`
    /// if the key is new, and the tokens that are not synced. From here on the key is new again. Tokens of other
    /// parameters stay, to be synced later.
    pub(super) fn take(&self, part: &ChargePart, redis_time: Nanos) -> (Option<Cost>, Cost) {
        let mut counted = self.counts.lock();
        let Some(count) = counted.get_mut(&part.key) else { return (None, 0) };
        let is_counted = count.counts(part);
        let state = count.state.clone().and_then(|state| match is_counted {
            true => Some(state),
            false => part.rule().migrate_state(count.part.rule(), state, redis_time),
        });
        let used = (!count.is_outdated).then(|| part.used_in(state.as_ref(), redis_time));
        if !is_counted {
            return (used, 0);
        }
        count.is_outdated = true;
        count.alone = None;
        count.sync = self.next_sync();
        (used, std::mem::take(&mut count.unsynced))
    }

    /// Whether tokens have to be synced of a key for which `is_due` is true.
    pub(super) fn has_unsynced(&self, is_due: impl Fn(&ChargePart) -> bool) -> bool {
        self.counts.lock().values().any(|count| count.unsynced > 0 && is_due(&count.part))
    }

    /// Refunds a charge that the sync of this number was going to take; `full_at` is when the key was going to be full.
    /// Returns false if the charge has been synced already.
    pub(super) fn refund(&self, part: &ChargePart, sync: u64, full_at: Nanos, redis_time: Nanos) -> bool {
        let mut counted = self.counts.lock();
        let is_among = |count: &&mut Count| count.counts(part) && count.sync == sync;
        let Some(count) = counted.get_mut(&part.key).filter(is_among) else { return false };
        count.unsynced = count.unsynced.saturating_sub(part.cost);
        for state in [&mut count.state, &mut count.alone] {
            *state = state.take().and_then(|state| part.rule().refund(state, part.cost, full_at, redis_time));
        }
        true
    }

    /// Debits tokens that became known after the charge; false if the key is not counted here under its parameters.
    pub(super) fn debit(&self, part: &ChargePart, redis_time: Nanos) -> bool {
        let mut counted = self.counts.lock();
        let Some(count) = counted.get_mut(&part.key).filter(|count| count.counts(part)) else { return false };
        count.owe(part.cost, redis_time);
        true
    }

    /// Makes the gateway ask Redis for `key` as for a new key. Its tokens stay, to be synced.
    pub(super) fn outdate(&self, key: LimitKey) {
        if let Some(count) = self.counts.lock().get_mut(&key) {
            count.is_outdated = true;
        }
    }

    fn next_sync(&self) -> u64 {
        self.last_sync.fetch_add(1, Ordering::Relaxed).saturating_add(1)
    }

    /// Takes the unsynced tokens of each key, to send them. Keys that no request uses are dropped.
    fn take_unsynced(&self, redis_time: impl Fn(&ChargePart) -> Nanos) -> Vec<Unsynced> {
        let mut told = Vec::new();
        self.counts.lock().retain(|_, count| {
            if count.unsynced == 0 && count.syncing == 0 && !count.is_used {
                return false;
            }
            let unsynced = count.take_unsynced(redis_time(&count.part));
            count.syncing = count.syncing.saturating_add(unsynced.part.cost);
            told.push(unsynced);
            count.sync = self.next_sync();
            count.is_used = false;
            true
        });
        told
    }

    /// Takes over the `total` of the key of `part`, as it was after the sync of `part`.
    fn learn(&self, part: &ChargePart, total: Option<State>, at: Nanos) {
        if let Some(count) = self.counts.lock().get_mut(&part.key).filter(|count| count.counts(part)) {
            count.syncing = count.syncing.saturating_sub(part.cost);
            count.set_total(total, at);
        }
    }

    /// Leaves it to Redis whether it counts the tokens of `part`.
    fn give_up(&self, part: &ChargePart) {
        if let Some(count) = self.counts.lock().get_mut(&part.key).filter(|count| count.counts(part)) {
            count.syncing = count.syncing.saturating_sub(part.cost);
        }
    }

    /// Puts back tokens that could not be synced.
    fn keep(&self, Unsynced { part, alone, .. }: &Unsynced, redis_time: Nanos) {
        if let Some(count) = self.counts.lock().get_mut(&part.key).filter(|count| count.counts(part)) {
            count.syncing = count.syncing.saturating_sub(part.cost);
            count.alone = part.rule().debit(alone.clone(), count.unsynced, redis_time);
            count.unsynced = count.unsynced.saturating_add(part.cost);
            count.is_used = true;
        }
    }
}

impl Count {
    /// A key that is new to this gateway.
    fn unknown(part: &ChargePart, sync: u64) -> Self {
        let part = part.for_one();
        let (state, alone, unsynced, syncing, asked) = (None, None, 0, 0, 0);
        Self { part, state, unsynced, alone, syncing, asked, sync, is_used: true, is_outdated: true }
    }

    /// Takes over the `total` that Redis has told, and on top of it the tokens that it may not know of yet. What it has
    /// counted of them already counts twice until the next sync.
    fn set_total(&mut self, total: Option<State>, at: Nanos) {
        let own = self.unsynced.saturating_add(self.syncing).saturating_add(self.asked);
        self.state = if own == 0 { total } else { self.part.rule().debit(total, own, at) };
    }

    /// Whether it is a count of requests like `part`: under the same parameters.
    fn counts(&self, part: &ChargePart) -> bool {
        self.part.has_parameters_of(part)
    }

    fn owe(&mut self, cost: Cost, redis_time: Nanos) {
        self.state = self.part.rule().debit(self.state.take(), cost, redis_time);
        self.note_unsynced(cost, redis_time);
    }

    fn note_unsynced(&mut self, cost: Cost, redis_time: Nanos) {
        self.unsynced = self.unsynced.saturating_add(cost);
        self.alone = self.part.rule().debit(self.alone.take(), cost, redis_time);
    }

    fn take_unsynced(&mut self, redis_time: Nanos) -> Unsynced {
        let (all, rule) = (std::mem::take(&mut self.unsynced), self.part.rule());
        let alone = self.alone.take().filter(|_| all > 0);
        let since = alone.as_ref().and_then(|alone| rule.charged_since(alone, all));
        let used = || self.part.used_in(self.state.as_ref(), redis_time);
        let cost = match &alone {
            Some(alone) if since.is_none() => rule.counted(alone, redis_time).unwrap_or_else(used).min(all),
            Some(_) | None => all,
        };
        Unsynced { part: ChargePart { cost, ..self.part.clone() }, alone, since }
    }
}

impl Drop for AskedOfRedis<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.counters.counts.lock().get_mut(&self.key) {
            count.asked = count.asked.saturating_sub(self.cost);
        }
    }
}

impl SharedStore {
    /// Syncs the counts with Redis, for as long as it is polled.
    pub(super) async fn keep_syncing(self: &Arc<Self>) {
        loop {
            drop(timeout(self.settings.sync_every.to_duration(), self.must_sync.notified()).await);
            self.sync_all().await;
        }
    }

    /// Syncs the counts with the servers that are available.
    pub(super) async fn sync_all(self: &Arc<Self>) {
        let _pending = self.begin_change();
        let now = self.clock.now();
        let mut calls: BTreeMap<u16, Vec<Vec<Unsynced>>> = BTreeMap::new();
        for unsynced in self.counters.take_unsynced(|part| self.redis_time(part, now)) {
            let of_slot = calls.entry(self.link.slot(unsynced.part.tag)).or_default();
            match of_slot.last_mut().filter(|some| some.len() < KEYS_OF_CALL) {
                Some(some) => some.push(unsynced),
                None => of_slot.push(vec![unsynced]),
            }
        }
        let calls = calls.into_values().flatten().map(|some| {
            let gateway = Arc::clone(self);
            async move { gateway.sync(&some).await }
        });
        run_bounded(CALLS_AT_ONCE, calls.collect()).await;
    }

    /// Whether the server that has the key of `part` takes syncs. If the last one has no reply, asks the server first: one
    /// that hangs would run all syncs that wait for it. The question has the key's `repair`, since Redis may have lost the key.
    async fn can_sync(self: &Arc<Self>, part: &ChargePart, repair: Option<&str>) -> bool {
        if self.is_unavailable(part) {
            return false;
        }
        let server = self.server(part);
        if !self.counters.unanswered.lock().contains(&server) {
            return true;
        }
        let nothing = ChargePart { cost: 0, ..part.clone() };
        let asked = self.call_change(Change::Sync, &[(&nothing, CallArgument::repair_state(repair))]).await;
        if asked.is_ok() {
            self.counters.unanswered.lock().remove(&server);
        }
        asked.is_ok()
    }

    /// Syncs counts whose keys are all in one slot; keeps them for later if their server is unavailable. A key that
    /// Redis has lost gets back the total that this gateway knows.
    async fn sync(self: &Arc<Self>, unsynced: &[Unsynced]) {
        let parts = || unsynced.iter().map(|unsynced| &unsynced.part);
        let Some(first) = parts().next() else { return };
        let repairs = repair_states(&self.known(parts()));
        let can_sync = self.can_sync(first, repairs.first().and_then(Option::as_deref)).await;
        let with_repair = unsynced.iter().zip(&repairs).map(|(Unsynced { part, since, .. }, repair)| {
            let call_argument = match (since, repair.as_deref()) {
                (Some(since), repair) => CallArgument::Since(*since, repair),
                (None, repair) => CallArgument::repair_state(repair),
            };
            (part, call_argument)
        });
        let with_repair: Vec<_> = with_repair.collect();
        let told = match can_sync {
            true => self.call_change(Change::Sync, &with_repair).await,
            false => Err(CallFailure::NotRun),
        };
        match told {
            Ok((all, at)) => {
                for (part, seen) in parts().zip(all) {
                    // logs cannot be counted by each gateway apart: see `limit::refuse`
                    if let KeyState::State(total) = seen {
                        self.counters.learn(part, total, at);
                    }
                }
            }
            Err(CallFailure::MayHaveRun) => {
                self.counters.unanswered.lock().insert(self.server(first));
                parts().for_each(|part| self.counters.give_up(part));
            }
            Err(CallFailure::NotRun) => {
                let now = self.clock.now();
                for unsynced in unsynced {
                    self.counters.keep(unsynced, self.redis_time(&unsynced.part, now));
                }
            }
        }
    }
}

impl ChargePart {
    /// A request for one token of the same key.
    pub(super) fn for_one(&self) -> Self {
        Self { cost: 1, enforcement: Enforcement::DEFAULT, ..self.clone() }
    }
}
