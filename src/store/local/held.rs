//! The slots that requests hold while they run, beside the cells that count them and behind the same locks: a cell
//! counts exactly the slots in this list.
//!
//! Slots are listed only where gateways divide keys: there a request may run through one gateway and be counted by another,
//! and the key may move meanwhile. Processes report their slots; a slot that its process no longer reports is released.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::{Binding, BoundLimit, BoundRule, LimitTable, LocalStore, Shard};
use crate::algorithm::Completion;
use crate::charge::{Charge, Slot};
use crate::cluster::wire::HeldSlot;
use crate::units::{Cost, LimitKey, Nanos};

/// The slots of the keys of one shard, by the position of the limit's table and the key's fingerprint.
#[derive(Debug, Default)]
pub(super) struct HeldSlots(HashMap<(usize, u64), Holders>);

/// The slots of one key.
pub(super) type Holders = HashMap<Slot, SlotRecord>;

/// The tokens of one slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotRecord {
    pub(super) cost: Cost,
    /// When the slot was last reported.
    reported_at: Nanos,
}

impl HeldSlots {
    /// Adds `slot`, which holds `cost`, or notes that it was reported again. Returns whether it is new.
    pub(super) fn add(&mut self, table: usize, key: LimitKey, slot: Slot, cost: Cost, now: Nanos) -> bool {
        match self.0.entry((table, key.fingerprint())).or_default().entry(slot) {
            Entry::Occupied(mut known) => {
                known.get_mut().reported_at = now;
                false
            }
            Entry::Vacant(vacant) => {
                vacant.insert(SlotRecord { cost, reported_at: now });
                true
            }
        }
    }

    fn remove(&mut self, table: usize, key: LimitKey, slot: Slot) -> Option<Cost> {
        let Entry::Occupied(mut holders) = self.0.entry((table, key.fingerprint())) else { return None };
        let record = holders.get_mut().remove(&slot)?;
        if holders.get().is_empty() {
            holders.remove();
        }
        Some(record.cost)
    }

    /// Removes and returns the slots of a key.
    pub(super) fn take(&mut self, table: usize, key: LimitKey) -> Holders {
        self.0.remove(&(table, key.fingerprint())).unwrap_or_default()
    }

    /// Removes the slots of a table.
    pub(super) fn forget(&mut self, table: usize) {
        self.0.retain(|(known, _), _| *known != table);
    }

    /// Removes and returns the slots for which `gone` returns true.
    fn take_gone(&mut self, gone: impl Fn(&Slot, &SlotRecord) -> bool) -> Vec<(usize, LimitKey, Cost)> {
        let mut all = Vec::new();
        self.0.retain(|(table, key), holders| {
            all.extend(
                holders
                    .extract_if(|slot, record| gone(slot, record))
                    .map(|(_, record)| (*table, LimitKey::of_fingerprint(*key), record.cost)),
            );
            !holders.is_empty()
        });
        all
    }
}

impl Shard {
    /// Makes a slot hold tokens of its key, whatever the limit says, unless it does already.
    pub(super) fn hold(&mut self, bound: BoundRule<'_>, held: &HeldSlot, now: Nanos) {
        let (HeldSlot { slot, key, cost, .. }, position) = (*held, bound.table.position);
        if self.held.add(position, key, slot, cost, now) {
            let cells = &mut self.cells[position];
            let before = cells.state(bound, key, now);
            cells.put(bound, key, bound.rule.hold(before, cost));
        }
    }
}

impl LocalStore {
    /// Releases `slot` of the key of `charge`. Returns whether it was held here.
    pub fn release_slot(&self, binding: &Binding, charge: &Charge, slot: Slot, end: Completion, now: Nanos) -> bool {
        let Some(BoundLimit { table, .. }) = binding.limits.get(charge.limit) else { return false };
        let mut shard = self.shards.of(charge.key).lock();
        let Some(cost) = shard.held.remove(table.position, charge.key, slot) else { return false };
        shard.cells[table.position].complete(table, charge.key, cost, end, now);
        true
    }

    /// Releases all slots of `process`.
    pub fn release_process(&self, process: u64, now: Nanos) {
        self.release_where(|slot, _| slot.process == process, now);
    }

    /// Releases the slots for which `gone` returns true; it gets each slot and the time of its last report.
    pub fn release_stale_slots(&self, gone: impl Fn(Slot, Nanos) -> bool, now: Nanos) {
        self.release_where(|slot, record| gone(*slot, record.reported_at), now);
    }

    fn release_where(&self, gone: impl Fn(&Slot, &SlotRecord) -> bool, now: Nanos) {
        // the tables keep their positions while this vector holds them
        let tables: Vec<Arc<LimitTable>> = self.tables.read().iter().cloned().collect();
        for shard in self.shards.iter() {
            let mut shard = shard.lock();
            for (position, key, cost) in shard.held.take_gone(&gone) {
                if let Some(table) = tables.iter().find(|table| table.position == position) {
                    shard.cells[position].complete(table, key, cost, Completion::UNMEASURED, now);
                }
            }
        }
    }
}
