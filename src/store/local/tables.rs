//! The tables of limits: those that a binding knows, and a bounded number that no binding knows any more, whose limits
//! may come back.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{EvictionCounts, LimitTable};
use crate::store::LimitSpec;

/// The most tables that are kept after their limits are gone, while they contain keys that are not as good as new.
pub(super) const MAX_KEPT: usize = 64;

/// The tables of a store by position. The position of a dropped table is used again.
#[derive(Debug, Default)]
pub(super) struct Tables {
    slots: Vec<Option<Arc<LimitTable>>>,
    by_name: HashMap<String, Vec<usize>>,
    free: Vec<usize>,
    /// Positions of tables that no binding knew at the last check, the oldest first.
    left: VecDeque<usize>,
}

impl Tables {
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<LimitTable>> {
        self.slots.iter().flatten()
    }

    fn named(&self, name: &str) -> impl Iterator<Item = &Arc<LimitTable>> {
        let positions = self.by_name.get(name).into_iter().flatten();
        positions.filter_map(|position| self.slots.get(*position)?.as_ref())
    }

    /// The table with the states of a limit.
    pub(super) fn find(&self, spec: &LimitSpec<'_>) -> Option<Arc<LimitTable>> {
        let holds = |table: &&Arc<LimitTable>| {
            table.algorithm == spec.algorithm
                && table.key_kind == spec.key_kind
                && !table.abandoned.load(Ordering::Relaxed)
        };
        self.named(spec.name).find(holds).cloned()
    }

    /// The eviction counters for tables of this name.
    pub(super) fn evictions(&self, name: &str) -> Arc<EvictionCounts> {
        self.named(name).next().map(|table| Arc::clone(&table.evictions)).unwrap_or_default()
    }

    /// A position for a new table.
    pub(super) fn free(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len().saturating_sub(1)
        })
    }

    pub(super) fn put(&mut self, table: Arc<LimitTable>) {
        let position = table.position;
        self.by_name.entry(table.name.clone()).or_default().push(position);
        if let Some(slot) = self.slots.get_mut(position) {
            *slot = Some(table);
        }
    }

    /// Removes unneeded tables: no binding knows them, and they are empty, abandoned, or too many.
    pub(super) fn take_unneeded(&mut self) -> Vec<Arc<LimitTable>> {
        // bindings are made under this lock, so a table without holders now cannot get one
        let is_left = |slot: &Option<Arc<LimitTable>>| slot.as_ref().is_some_and(|table| Arc::strong_count(table) == 1);
        self.left.retain(|position| self.slots.get(*position).is_some_and(is_left));
        let known: HashSet<usize> = self.left.iter().copied().collect();
        let left = self.slots.iter().enumerate().filter(|(position, slot)| is_left(slot) && !known.contains(position));
        self.left.extend(left.map(|(position, _)| position));
        let slots = &mut self.slots;
        let mut excess = self.left.len().saturating_sub(MAX_KEPT);
        let mut gone = Vec::new();
        self.left.retain(|position| {
            let Some(slot) = slots.get_mut(*position) else { return false };
            let unneeded = slot
                .as_ref()
                .is_none_or(|table| table.keys.load(Ordering::Relaxed) == 0 || table.abandoned.load(Ordering::Relaxed));
            if !unneeded && excess == 0 {
                return true;
            }
            excess = excess.saturating_sub(1);
            gone.extend(slot.take());
            false
        });
        for table in &gone {
            if let Some(positions) = self.by_name.get_mut(&table.name) {
                positions.retain(|position| *position != table.position);
                if positions.is_empty() {
                    self.by_name.remove(&table.name);
                }
            }
        }
        gone
    }

    /// Releases the positions of `gone`, whose cells are cleared, for new tables.
    pub(super) fn give_back(&mut self, gone: Vec<Arc<LimitTable>>) {
        self.free.extend(gone.iter().map(|table| table.position));
    }
}
