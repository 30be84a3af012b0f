//! Charges: all cells of a request or none, and a common bucket for new keys where a table is full.

use std::slice;
use std::sync::atomic::Ordering;

use smallvec::SmallVec;

use super::shard::Locked;
use super::table::{CellRejection, Cells, Full};
use super::{Binding, BoundRule, LimitTable, LocalStore, OVERFLOW_KEY};
use crate::algorithm::{Decision, Evictability, Rule, State};
use crate::charge::{AllCharged, Charge, Charged};
use crate::units::{LimitKey, Nanos};

/// How often a full table is searched for keys to evict, and how many keys each search looks at.
const SEARCH_PAUSE: Nanos = Nanos::new(100_000_000);
const SEARCHED_KEYS: u64 = 1 << 16;

/// An error: the state of a charge's key is not here, and may be at another gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateElsewhere;

/// The reason why a batch is not charged.
enum BatchRejection {
    /// The charge at this position is of a new key for which there is no room.
    Full(usize),
    /// A state is elsewhere.
    Elsewhere,
}

/// The store and the time at which a request is charged.
struct Charging<'c, M: Fn(usize) -> bool> {
    store: &'c LocalStore,
    binding: &'c Binding,
    /// Whether the state of the charge at a position may be elsewhere, if it is not here.
    may_have_moved: M,
    now: Nanos,
}

/// Each charge with its parameters.
type BoundCharges<'c> = SmallVec<[(&'c Charge, BoundRule<'c>); 2]>;

/// The decision about each charge, and the state of its key after that.
type Decided = SmallVec<[(Decision, Option<State>); 2]>;

impl LocalStore {
    /// See [`crate::store::Store::charge`].
    #[inline]
    pub fn charge(&self, binding: &Binding, batch: &mut [Charge], now: Nanos) -> AllCharged {
        // filled by the function that decides: moving the result of a charge costs nearly as much as deciding it
        let mut charged = AllCharged::new();
        let charging = Charging { store: self, binding, may_have_moved: |_| false, now };
        let (Ok(()) | Err(StateElsewhere)) = charging.run(batch, &mut charged);
        charged
    }

    /// [`LocalStore::charge`], unless a state is not here and `may_have_moved`, given its charge's position, says that
    /// it may be elsewhere: then nothing is charged, since the key would start afresh here.
    pub fn charge_unless(
        &self,
        binding: &Binding,
        batch: &mut [Charge],
        may_have_moved: impl Fn(usize) -> bool,
        now: Nanos,
    ) -> Result<AllCharged, StateElsewhere> {
        let mut charged = AllCharged::new();
        Charging { store: self, binding, may_have_moved, now }.run(batch, &mut charged)?;
        Ok(charged)
    }

    /// See [`LocalStore::charge_denied_unless`], for states that are nowhere else.
    pub fn charge_denied(&self, binding: &Binding, batch: &[Charge], now: Nanos) -> AllCharged {
        self.charge_denied_unless(binding, batch, |_| false, now).unwrap_or_default()
    }

    /// [`LocalStore::charge_unless`] for a request that another limit denies: makes only the charges that count denials.
    pub fn charge_denied_unless(
        &self,
        binding: &Binding,
        batch: &[Charge],
        may_have_moved: impl Fn(usize) -> bool,
        now: Nanos,
    ) -> Result<AllCharged, StateElsewhere> {
        let mut charged = AllCharged::new();
        match (Charging { store: self, binding, may_have_moved, now }).all(batch, true, &mut charged) {
            Ok(()) => {}
            Err(BatchRejection::Elsewhere) => return Err(StateElsewhere),
            // where there is no room for a new key, its usage is not recorded
            Err(BatchRejection::Full(_)) => {
                for charge in batch {
                    let bound = binding.find(charge);
                    let now = bound.own_time(now);
                    let decision = bound.rule.decide(None, charge.cost, now).0;
                    charged.push(Charged { decision, headroom: bound.rule.headroom(None, now) });
                }
            }
        }
        Ok(charged)
    }

    /// Searches a part of a full table for keys to evict. It does so only now and then, so that a flood of new keys
    /// cannot keep the store busy with searches.
    fn make_room(&self, table: &LimitTable, now: Nanos) {
        let searched = table.searched.load(Ordering::Relaxed);
        let rested = now.get().saturating_sub(searched) >= SEARCH_PAUSE.get();
        let mine =
            || table.searched.compare_exchange(searched, now.get(), Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if !rested || !mine() {
            return;
        }
        let all = self.shards.len();
        let keys_per_shard = table.keys.load(Ordering::Relaxed) / all as u64;
        let shards = usize::try_from(SEARCHED_KEYS / (keys_per_shard + 1)).unwrap_or(all).clamp(1, all);
        let first = table.search_from.fetch_add(shards, Ordering::Relaxed);
        for index in first..first.saturating_add(shards) {
            self.shards.at(index).lock().cells[table.position].sweep(table, now);
        }
    }
}

// === impl Charging ===

impl<M: Fn(usize) -> bool> Charging<'_, M> {
    #[inline]
    fn run(&self, batch: &mut [Charge], charged: &mut AllCharged) -> Result<(), StateElsewhere> {
        match self.attempt(batch, charged) {
            Ok(()) => Ok(()),
            Err(BatchRejection::Elsewhere) => Err(StateElsewhere),
            Err(BatchRejection::Full(position)) => self.with_overflow(batch, position, charged),
        }
    }

    /// Leaves `charged` unchanged if nothing is charged.
    fn attempt(&self, batch: &[Charge], charged: &mut AllCharged) -> Result<(), BatchRejection> {
        match batch {
            [only] if only.enforcement.consumes && !only.enforcement.counts_denied => self.one(only, charged),
            several => self.all(several, false, charged),
        }
    }

    /// Charges new keys of full tables to those tables' common buckets; `full` is the position of the first.
    fn with_overflow(&self, batch: &mut [Charge], full: usize, charged: &mut AllCharged) -> Result<(), StateElsewhere> {
        let keys: SmallVec<[_; 2]> = batch.iter().map(|charge| charge.key).collect();
        let mut position = full;
        loop {
            let charge = &mut batch[position];
            let table = &self.binding.limits[charge.limit].table;
            self.store.make_room(table, self.now);
            if table.is_full() {
                table.evictions.overflowed.fetch_add(1, Ordering::Relaxed);
                charge.key = OVERFLOW_KEY;
            }
            match self.attempt(batch, charged) {
                Ok(()) => return Ok(()),
                Err(BatchRejection::Full(next)) => position = next,
                Err(BatchRejection::Elsewhere) => {
                    batch.iter_mut().zip(keys).for_each(|(charge, key)| charge.key = key);
                    return Err(StateElsewhere);
                }
            }
        }
    }

    fn one(&self, charge: &Charge, charged: &mut AllCharged) -> Result<(), BatchRejection> {
        let now = self.now;
        let bound = self.binding.find(charge);
        let table = bound.table;
        let mut shard = self.store.shards.of(charge.key).lock();
        let cells = &mut shard.cells[table.position];
        self.check_present(table, cells, charge, 0)?;
        match cells.charge(bound, charge, now, charged) {
            Ok(()) => {}
            Err(CellRejection::Full) => return Err(BatchRejection::Full(0)),
            Err(CellRejection::Kept) => {
                drop(shard);
                return self.all(slice::from_ref(charge), false, charged);
            }
        }
        if let Some(slot) = charge.slot
            && charged.last().is_some_and(|charged| charged.decision.is_admitted())
        {
            shard.held.add(table.position, charge.key, slot, charge.cost, now);
        }
        Ok(())
    }

    /// Decides on all charges, and then writes:
    /// - all of them, if the request is not `denied` and no enforcing limit denies;
    /// - otherwise those of limits that count denials, whose retry time covers what the denial took;
    /// - and the first state of a key that its own limit denies, if the algorithm has one then.
    fn all(&self, batch: &[Charge], denied: bool, charged: &mut AllCharged) -> Result<(), BatchRejection> {
        let now = self.now;
        let bound: BoundCharges<'_> = batch.iter().map(|charge| (charge, self.binding.find(charge))).collect();
        let mut locked = Locked::all(&self.store.shards, batch);
        let mut decided = SmallVec::with_capacity(batch.len());
        self.decide(&bound, &mut locked, &mut decided)?;
        let mut decisions = batch.iter().zip(&decided);
        let admitted = !denied && !decisions.any(|(charge, (decision, _))| charge.enforcement.denies(*decision));
        for ((charge, bound), (mut decision, after)) in bound.into_iter().zip(decided) {
            let position = bound.table.position;
            let cells = locked.cells(charge.key, position);
            let passes = admitted && decision.is_admitted();
            let starts = || !charge.enforcement.counts_denied && !cells.has_state(charge.key);
            let denial_kept = !decision.is_admitted() && (bound.rule.denials_count() || starts());
            if charge.enforcement.consumes && (passes || denial_kept) {
                match cells.keeping_rule(bound, charge.key, charge.cost, now) {
                    Some(_) => debit(cells, bound, charge, now),
                    None => cells.put(bound, charge.key, after),
                }
                if let Some(slot) = charge.slot.filter(|_| passes) {
                    locked.held(charge.key).add(position, charge.key, slot, charge.cost, now);
                }
            } else if charge.enforcement.consumes && charge.enforcement.counts_denied {
                debit(cells, bound, charge, now);
                let (after, own_now) = (cells.state(bound, charge.key, now), bound.own_time(now));
                let longer = |denial, cost| bound.rule.after_debit(denial, after.as_ref(), cost, own_now);
                decision = longer(decision, charge.cost);
                // the question for a floor comes before the charge of the same key
                let asked = batch.iter().zip(charged.iter_mut()).filter(|(asked, _)| asked.is_same_key(charge));
                asked.for_each(|(asked, charged)| charged.decision = longer(charged.decision, asked.cost));
            }
            charged.push(outcome(locked.cells(charge.key, position), bound, charge.key, decision, now));
        }
        Ok(())
    }

    /// Decides each charge as if those before it were made, and writes nothing.
    #[inline]
    fn decide(
        &self,
        all: &BoundCharges<'_>,
        locked: &mut Locked<'_>,
        decided: &mut Decided,
    ) -> Result<(), BatchRejection> {
        for (position, &(charge, bound)) in all.iter().enumerate() {
            let table = bound.table;
            let cells = locked.cells(charge.key, table.position);
            self.check_present(table, cells, charge, position)?;
            cells.has_room(table, charge.key).map_err(|Full| BatchRejection::Full(position))?;
            // earlier charges of the same key, which is the common bucket of several new keys where the table is full
            let same = all.iter().zip(&*decided).filter(|((other, of), (decision, _))| {
                (other.key, of.table.position) == (charge.key, table.position) && other.enforcement.takes(*decision)
            });
            let cost = same.fold(charge.cost, |cost, ((other, _), _)| cost.saturating_add(other.cost));
            let before = cells.state(bound, charge.key, self.now);
            decided.push(bound.rule.decide(before, cost, bound.own_time(self.now)));
        }
        Ok(())
    }

    /// [`check_state_present`] for the charge at `position`.
    fn check_present(
        &self,
        table: &LimitTable,
        cells: &Cells,
        charge: &Charge,
        position: usize,
    ) -> Result<(), BatchRejection> {
        check_state_present(table, cells, charge, || (self.may_have_moved)(position))
            .map_err(|StateElsewhere| BatchRejection::Elsewhere)
    }
}

/// The result of a charge of `key`, after it was written.
fn outcome(cells: &Cells, bound: BoundRule<'_>, key: LimitKey, decision: Decision, now: Nanos) -> Charged {
    let done = Charged { decision, headroom: cells.headroom(bound, key, now) };
    let fresh_after = if decision.is_admitted() { None } else { until_kept_is_fresh(cells, bound, key, now) };
    fresh_after.map_or(done, |time| done.or_fresh_after(time))
}

/// The time until the state of `key` is fresh under the parameters that keep it, if others than those of `bound` do.
fn until_kept_is_fresh(cells: &Cells, bound: BoundRule<'_>, key: LimitKey, now: Nanos) -> Option<Nanos> {
    let (number, rule) = cells.keeping_rule(bound, key, 0, now)?;
    let kept = BoundRule { number, rule: &rule, ..bound };
    match rule.evictability(&cells.state(kept, key, now)?) {
        Evictability::Fresh(from) | Evictability::Safe(from) => Some(from.saturating_sub(kept.own_time(now))),
        Evictability::Held => None,
    }
}

/// Debits a charge from the state of its key, under the parameters that keep it.
fn debit(cells: &mut Cells, bound: BoundRule<'_>, charge: &Charge, now: Nanos) {
    let debit = |rule: &Rule, state, own| rule.debit(state, charge.cost, now.shifted(own));
    bound.change(cells, charge.key, charge.cost, now, debit);
}

/// An error if the state of a charge is not here, or perhaps only a part of it, and `may_have_moved`.
pub(super) fn check_state_present(
    table: &LimitTable,
    cells: &Cells,
    charge: &Charge,
    may_have_moved: impl FnOnce() -> bool,
) -> Result<(), StateElsewhere> {
    // common buckets do not move
    let may_have_moved = may_have_moved() && charge.key != OVERFLOW_KEY;
    let is_elsewhere = may_have_moved && (table.algorithm.holds_slots() || !cells.has_state(charge.key));
    if is_elsewhere { Err(StateElsewhere) } else { Ok(()) }
}
