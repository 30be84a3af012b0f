//! Limits while Redis is unavailable: each gateway enforces its share of a limit in memory, and reconciles the tokens
//! that it admitted when Redis recovers.
//!
//! A share of 1/N is the whole limit with every cost multiplied by N, which is exact for every algorithm. It starts
//! from the usage that the gateway knew, so that an outage allows no new burst.

use std::collections::BTreeMap;
use std::slice;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::MutexGuard;

use crate::algorithm::{Decision, Headroom};
use crate::charge::{AllCharged, Charge, ChargeSource, Charged, Enforcement, OnStoreDown};
use crate::store::Amendment;
use crate::store::local::{self, LocalStore};
use crate::store::shared::ByKey;
use crate::store::shared::limit::{ChargePart, scaled};
use crate::store::shared::slots::Slots;
use crate::units::{Cost, LimitKey, Nanos};

mod ledger;

pub(super) use ledger::Due;
#[cfg(test)]
pub(super) use ledger::tests::part as test_part;
use ledger::{OutageLedger, RefillTimes};

/// The decisions of this gateway while Redis is unavailable.
pub(super) struct Fallback {
    /// The tokens of each key that were admitted while Redis was unavailable.
    owed: Mutex<ByKey<Ledgers>>,
    /// Locked while a key is reconciled, so that its tokens are reconciled once.
    reconciling: Box<[ReconcileLock]>,
}

/// The ledgers of a key, one for each set of parameters: Redis debits tokens under those that admitted them.
type Ledgers = SmallVec<[OutageLedger; 1]>;

/// The lock of a group of keys, which are reconciled one after the other.
type ReconcileLock = tokio::sync::Mutex<()>;
const RECONCILE_LOCKS: usize = 1_024;

/// One limit's part of a request that this gateway decides without Redis.
pub(super) struct DegradedCharge<'a> {
    pub(super) charge: &'a mut Charge,
    pub(super) part: &'a ChargePart,
    pub(super) on_down: OnStoreDown,
    /// The factor on the cost: the number of gateways that divide the limit, or 1.
    pub(super) cost_multiplier: u64,
    /// The tokens that were used, as far as this gateway knows.
    pub(super) used: Cost,
    /// Those of them that this gateway has counted by itself and that Redis does not know of.
    pub(super) unsynced: Cost,
    /// The time on Redis's clock.
    pub(super) redis_time: Nanos,
}

/// The tables of this gateway, which decide while Redis is unavailable.
#[derive(Clone, Copy)]
pub(in crate::store) struct LocalTables<'a> {
    pub(in crate::store) store: &'a LocalStore,
    pub(in crate::store) binding: &'a local::Binding,
}

/// The most keys that have ledgers: about 30 MB. The most ledgers of a key.
const MAX_OWED: usize = 100_000;
const MAX_LEDGERS: usize = 16;

/// A request that uses the bucket of a key: it counts in the ledger until it has noted its charge and drops this.
struct LedgerUse<'a> {
    fallback: &'a Fallback,
    part: &'a ChargePart,
}

impl Drop for LedgerUse<'_> {
    fn drop(&mut self) {
        if let Some(ledger) = ledger_of(&mut self.fallback.owed.lock(), self.part) {
            ledger.asking = ledger.asking.saturating_sub(1);
        }
    }
}

impl Fallback {
    /// No ledgers.
    pub(super) fn new() -> Self {
        let reconciling = (0..RECONCILE_LOCKS).map(|_| ReconcileLock::default()).collect();
        Self { owed: Mutex::default(), reconciling }
    }

    /// Decides `degraded` without Redis, all or none; `now` is this gateway's time. Returns the results in order. The error
    /// is the position of a limit that denies everything while Redis is unavailable.
    pub(super) fn charge(
        &self,
        tables: LocalTables<'_>,
        slots: &Slots,
        degraded: &mut [DegradedCharge<'_>],
        now: Nanos,
    ) -> Result<AllCharged, usize> {
        for one in degraded.iter().filter(|one| one.unsynced > 0 && one.decided_by() == DegradedBy::Nothing) {
            // no bucket decides here, but Redis has to know of these tokens
            let _use = LedgerUse { fallback: self, part: one.part };
            open_ledger(&mut self.owed.lock(), one);
        }
        if let Some(refused) =
            degraded.iter().position(|one| one.on_down == OnStoreDown::Deny && one.part.enforcement.enforces)
        {
            return Err(refused);
        }
        let slot = slots.next();
        let mut all = self.decide(tables, slots, degraded, slot, now);
        let passes = !degraded.iter().zip(&all).any(|(one, charged)| one.part.enforcement.denies(charged.decision));
        if !passes {
            slots.let_go(slot);
        }
        for (one, charged) in degraded.iter_mut().zip(&mut all) {
            self.settle(tables, one, charged, passes, now);
        }
        Ok(all)
    }

    /// Charges the slots, and the buckets if the slots are free; each charge then says where its tokens come from.
    fn decide(
        &self,
        tables: LocalTables<'_>,
        slots: &Slots,
        degraded: &mut [DegradedCharge<'_>],
        slot: u64,
        now: Nanos,
    ) -> AllCharged {
        let held: Vec<(ChargePart, u64)> = degraded
            .iter()
            .filter(|one| one.decided_by() == DegradedBy::Slots)
            .map(|one| (ChargePart { cost: one.cost(), ..one.part.clone() }, one.cost_multiplier))
            .collect();
        let by_slots = slots.charge(slot, &held, now);
        let denied_for: Vec<Nanos> = degraded.iter().map(|one| self.denied_for(one)).collect();
        let slots_deny =
            held.iter().zip(&by_slots).any(|((part, _), charged)| part.enforcement.denies(charged.decision));
        let ledgers_deny =
            degraded.iter().zip(&denied_for).any(|(one, time)| *time > Nanos::ZERO && one.part.enforcement.enforces);
        let by_buckets = self.charge_buckets(tables, degraded, slots_deny || ledgers_deny, now);
        let (mut by_slots, mut by_buckets) = (by_slots.into_iter(), by_buckets.into_iter());
        let mut all = AllCharged::new();
        for (one, denied_for) in degraded.iter_mut().zip(denied_for) {
            let decided = match one.decided_by() {
                DegradedBy::Nothing => None,
                DegradedBy::Slots => by_slots.next().map(|charged| (ChargeSource::Slot(slot), charged)),
                DegradedBy::Bucket => by_buckets.next(),
            };
            let (taken_from, charged) = decided.unwrap_or_else(|| (ChargeSource::FailedOpen, one.undecided(now)));
            one.charge.taken_from = taken_from;
            all.push(if denied_for > Nanos::ZERO { charged.denied_for(denied_for) } else { charged });
        }
        all
    }

    /// Charges the buckets; of a request that `is_denied` already, only those that count denials. Returns the results of
    /// the charges that a bucket decides.
    fn charge_buckets(
        &self,
        tables: LocalTables<'_>,
        degraded: &[DegradedCharge<'_>],
        is_denied: bool,
        now: Nanos,
    ) -> Vec<(ChargeSource, Charged)> {
        let decided = || degraded.iter().filter(|one| one.decided_by() == DegradedBy::Bucket);
        let charge = |one: &DegradedCharge<'_>| {
            let cost = scaled(one.part.rule(), one.cost(), one.cost_multiplier);
            Charge { key: self.bucket(tables, one, now), cost, ..one.charge.clone() }
        };
        let mut batch: Vec<Charge> = decided().map(charge).collect();
        let charged = match is_denied {
            true => tables.store.charge_denied(tables.binding, &batch, now),
            false => tables.store.charge(tables.binding, &mut batch, now),
        };
        let sources = decided().zip(&batch).map(|(one, charge)| one.taken_from(charge.key, RefillTimes::default()));
        sources.zip(charged).collect()
    }

    /// How long the key is denied, whatever its bucket says.
    fn denied_for(&self, one: &DegradedCharge<'_>) -> Nanos {
        let mut owed = self.owed.lock();
        ledger_of(&mut owed, one.part).map_or(Nanos::ZERO, |ledger| ledger.denied_until.saturating_sub(one.redis_time))
    }

    /// Records what a bucket gave to a request, if one decided, and tells what is left in tokens of the whole limit.
    /// `passes` says whether all limits admit the request.
    fn settle(
        &self,
        tables: LocalTables<'_>,
        one: &mut DegradedCharge<'_>,
        charged: &mut Charged,
        passes: bool,
        now: Nanos,
    ) {
        let ChargeSource::Fallback { key, .. } = one.charge.taken_from else { return };
        let _use = LedgerUse { fallback: self, part: one.part };
        let enforcement = one.part.enforcement;
        let admitted = passes && charged.decision.is_admitted();
        if enforcement.consumes && (admitted || enforcement.counts_denied) {
            let refill_times = self.add(one.part, one.charge.cost, one.cost_multiplier, one.redis_time);
            one.charge.taken_from = one.taken_from(key, refill_times.unwrap_or_default());
        }
        if enforcement.consumes
            && admitted
            && let Some(headroom) = take_rest(tables, one, key, now)
        {
            charged.headroom = headroom;
            if let Some(ledger) = ledger_of(&mut self.owed.lock(), one.part) {
                ledger.deny_until_refilled(one.charge.cost, headroom.until_full, one.redis_time);
            }
        }
        charged.headroom.remaining = charged.headroom.remaining.map(|left| left / one.cost_multiplier);
    }

    /// The local bucket of a key. In each outage it starts from the usage that this gateway knew, and forgets what earlier
    /// outages left in it, which has been reconciled.
    fn bucket(&self, tables: LocalTables<'_>, one: &DegradedCharge<'_>, now: Nanos) -> LimitKey {
        /// It tells the buckets apart from those of a time at which the limit was sticky.
        const OUTAGE: u128 = 0x9e37_79b9_7f4a_7c15;
        let key = LimitKey(one.charge.key.0 ^ OUTAGE);
        // no other request charges the bucket before it has started
        let mut owed = self.owed.lock();
        let ledgers = owed.get(&one.part.key).map_or(&[][..], SmallVec::as_slice);
        let has_started = ledgers.iter().any(|ledger| ledger.has_bucket);
        let unreconciled = ledgers.iter().fold(0, |sum: Cost, ledger| sum.saturating_add(ledger.sum));
        let Some(ledger) = open_ledger(&mut owed, one) else { return key };
        ledger.has_bucket = true;
        if !has_started {
            // in a full table what earlier outages left stays, which leaves the key less room and never more
            let bucket = Charge { key, cost: one.used.saturating_add(unreconciled), ..one.charge.clone() };
            let _is_fresh = tables.store.amend(tables.binding, &bucket, Amendment::ResetKey, now);
            tables.store.debit(tables.binding, slice::from_ref(&bucket), now);
        }
        key
    }

    /// Debits, whatever the limit says, a request that was charged before Redis became unavailable.
    pub(super) fn debit(&self, tables: LocalTables<'_>, degraded: &DegradedCharge<'_>, now: Nanos) {
        let _use = LedgerUse { fallback: self, part: degraded.part };
        if degraded.decided_by() == DegradedBy::Nothing {
            open_ledger(&mut self.owed.lock(), degraded);
        } else {
            let key = self.bucket(tables, degraded, now);
            let cost = degraded.charge.cost.saturating_mul(degraded.cost_multiplier);
            tables.store.debit(tables.binding, &[Charge { key, cost, ..degraded.charge.clone() }], now);
        }
        self.add(degraded.part, degraded.charge.cost, degraded.cost_multiplier, degraded.redis_time);
    }

    /// Records a debit that Redis refused. `used` is the usage of the key without this debit.
    pub(super) fn owe(&self, part: &ChargePart, used: Cost, redis_time: Nanos) {
        if let Some(ledger) = ledger_or_new(&mut self.owed.lock(), part, used, redis_time) {
            ledger.add(part.cost, 1, redis_time);
        }
    }

    /// Records `cost`, which this gateway took as one of `nodes`. `None` if the key has nothing to reconcile.
    pub(super) fn add(&self, part: &ChargePart, cost: Cost, nodes: u64, redis_time: Nanos) -> Option<RefillTimes> {
        Some(ledger_of(&mut self.owed.lock(), part)?.add(cost, nodes, redis_time))
    }

    /// Takes back a `cost` that was recorded; `refill_times` is the result of [`Self::add`] for it. Returns false if the
    /// key has been reconciled since.
    pub(super) fn take_back(
        &self,
        part: &ChargePart,
        cost: Cost,
        refill_times: RefillTimes,
        redis_time: Nanos,
    ) -> bool {
        let mut owed = self.owed.lock();
        let Some(ledger) = ledger_of(&mut owed, part) else { return false };
        ledger.take_back(cost, refill_times, redis_time);
        true
    }

    /// Waits until no other task reconciles `key`.
    pub(super) async fn turn(&self, key: LimitKey) -> MutexGuard<'_, ()> {
        let turn = usize::try_from(key.0 % RECONCILE_LOCKS as u128).unwrap_or_default();
        self.reconciling[turn].lock().await
    }

    /// The tokens of `key` that have to be reconciled. `redis_time` is the time at the server that has the key.
    pub(super) fn due(&self, key: LimitKey, redis_time: impl Fn(&ChargePart) -> Nanos) -> Vec<Due> {
        let mut owed = self.owed.lock();
        let Some(ledgers) = owed.get_mut(&key) else { return Vec::new() };
        let due: Vec<Due> = ledgers.iter().filter_map(|ledger| ledger.due(redis_time(&ledger.part))).collect();
        if due.is_empty() {
            ledgers.retain(|ledger| ledger.asking > 0);
        }
        if ledgers.is_empty() {
            owed.remove(&key);
        }
        due
    }

    /// All keys that have to be reconciled, each with its tag.
    pub(super) fn keys(&self) -> Vec<(LimitKey, LimitKey)> {
        self.owed.lock().values().filter_map(|owed| owed.first()).map(|owed| (owed.part.key, owed.part.tag)).collect()
    }

    /// Notes that `due` was reconciled; tokens that this gateway admitted since are still due.
    pub(super) fn reconciled(&self, due: &Due) {
        let mut owed = self.owed.lock();
        let Some(ledgers) = owed.get_mut(&due.part.key) else { return };
        ledgers.retain(|owed| !owed.part.has_parameters_of(&due.part) || owed.settle(due) || owed.asking > 0);
        if ledgers.is_empty() {
            owed.remove(&due.part.key);
        }
    }

    /// All tokens that have to be reconciled.
    pub(super) fn unsynced(&self) -> u64 {
        self.owed.lock().values().flatten().fold(0, |all, owed| all.saturating_add(owed.sum))
    }

    /// All tokens that have to be reconciled, by the number that `server` returns for a tag.
    pub(super) fn unsynced_by(&self, server: impl Fn(LimitKey) -> usize) -> BTreeMap<usize, u64> {
        let owed: Vec<_> = self.owed.lock().values().flatten().map(|owed| (owed.part.tag, owed.sum)).collect();
        let mut sums = BTreeMap::<_, u64>::new();
        for (tag, tokens) in owed {
            let sum = sums.entry(server(tag)).or_default();
            *sum = sum.saturating_add(tokens);
        }
        sums
    }

    /// Whether any key has to be reconciled.
    pub(super) fn has_unreconciled(&self) -> bool {
        !self.owed.lock().is_empty()
    }
}

/// The part of this gateway that decides a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DegradedBy {
    /// The slots that this gateway holds.
    Slots,
    /// A bucket of this gateway.
    Bucket,
    /// Nothing: everything passes.
    Nothing,
}

impl DegradedCharge<'_> {
    fn decided_by(&self) -> DegradedBy {
        match self.on_down {
            OnStoreDown::Allow | OnStoreDown::Deny => DegradedBy::Nothing,
            OnStoreDown::Divide | OnStoreDown::Local if self.part.rule().holds_slots() => DegradedBy::Slots,
            OnStoreDown::Divide | OnStoreDown::Local => DegradedBy::Bucket,
        }
    }

    /// The cost in this gateway's share, before it is multiplied. A floor counts tokens of the whole limit, so it is not
    /// multiplied.
    fn cost(&self) -> Cost {
        let floor = self.charge.floor;
        self.part.cost.saturating_sub(floor).saturating_add(floor.div_ceil(self.cost_multiplier.max(1)))
    }

    const fn taken_from(&self, key: LimitKey, refill_times: RefillTimes) -> ChargeSource {
        ChargeSource::Fallback { key, cost_multiplier: self.cost_multiplier, refill_times }
    }

    /// The result where nothing decides: how many tokens are left is not known, and a question about a limit that refuses
    /// all requests is denied.
    fn undecided(&self, now: Nanos) -> Charged {
        let decision = match self.on_down {
            OnStoreDown::Deny if !self.part.enforcement.consumes => Decision::BUSY,
            _ => Decision::ADMIT,
        };
        Charged { decision, headroom: Headroom { remaining: None, ..self.part.rule().headroom(None, now) } }
    }
}

/// The ledger of the key of a charge, in which the charge counts until a [`LedgerUse`] ends. `None` for a key beyond the
/// bound.
fn open_ledger<'l>(owed: &'l mut ByKey<Ledgers>, one: &DegradedCharge<'_>) -> Option<&'l mut OutageLedger> {
    let ledger = ledger_or_new(owed, one.part, one.used, one.redis_time)?;
    ledger.asking = ledger.asking.saturating_add(1);
    ledger.sum = ledger.sum.saturating_add(one.unsynced);
    Some(ledger)
}

/// The ledger of the key and the parameters of `part`; if there is none, a new one of a key of which `used` tokens were
/// used. `None` for a key beyond the bound.
fn ledger_or_new<'l>(
    owed: &'l mut ByKey<Ledgers>,
    part: &ChargePart,
    used: Cost,
    redis_time: Nanos,
) -> Option<&'l mut OutageLedger> {
    if !owed.contains_key(&part.key) && owed.len() >= MAX_OWED {
        return None;
    }
    let ledgers = owed.entry(part.key).or_default();
    if ledgers.len() < MAX_LEDGERS && !ledgers.iter().any(|ledger| ledger.part.has_parameters_of(part)) {
        ledgers.push(OutageLedger::new(part, used, redis_time));
    }
    ledger_of(owed, part)
}

/// The ledger of the key and the parameters of `part`.
fn ledger_of<'l>(owed: &'l mut ByKey<Ledgers>, part: &ChargePart) -> Option<&'l mut OutageLedger> {
    owed.get_mut(&part.key)?.iter_mut().find(|ledger| ledger.part.has_parameters_of(part))
}

/// Debits the part of the cost that the bucket could not take at once, so that the rate holds even where the burst does
/// not. Returns the headroom after that, if there was such a part.
fn take_rest(tables: LocalTables<'_>, one: &DegradedCharge<'_>, key: LimitKey, now: Nanos) -> Option<Headroom> {
    let (whole, factor) = (one.charge.cost, one.cost_multiplier);
    let cost = whole.saturating_mul(factor).saturating_sub(scaled(one.part.rule(), whole, factor));
    if cost == 0 {
        return None;
    }
    tables.store.debit(tables.binding, &[Charge { key, cost, ..one.charge.clone() }], now);
    let asks = Charge { key, cost: 0, enforcement: Enforcement::DRY_RUN, ..one.charge.clone() };
    tables.store.charge(tables.binding, &mut [asks], now).first().map(|charged| charged.headroom)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::charge::RuleRef;

    #[test]
    fn a_key_stays_the_same_while_a_request_has_its_bucket() {
        let (fallback, part) = (Fallback::new(), ledger::tests::part());
        let mut charge = Charge::new(0, RuleRef::Listed(0), part.key, 1, Enforcement::DEFAULT);
        let one = DegradedCharge {
            charge: &mut charge,
            part: &part,
            on_down: OnStoreDown::Divide,
            cost_multiplier: 1,
            used: 0,
            unsynced: 0,
            redis_time: Nanos::SECOND,
        };
        let uses = || open_ledger(&mut fallback.owed.lock(), &one).map(|ledger| ledger.asking);
        assert_eq!(uses(), Some(1));
        // another request asks for the due tokens before this one has noted its charge
        assert!(fallback.due(part.key, |_| Nanos::SECOND).is_empty());
        assert_eq!(uses(), Some(2));
        for _ in 0..2 {
            drop(LedgerUse { fallback: &fallback, part: &part });
        }
        assert!(fallback.has_unreconciled() && fallback.due(part.key, |_| Nanos::SECOND).is_empty());
        assert!(!fallback.has_unreconciled(), "nothing was taken");
    }
}
