//! Moves states from one gateway's store to another's, so that a state is never in both. On the way, the times in
//! states are those of the wall clock, which the gateways have in common.
//!
//! The slots of requests in flight move with the state that counts them. A slot counts once, however often and in any
//! order it arrives: with a state, or in a report of the gateway that its request runs through.
//!
//! The common buckets of full tables do not move: each gateway has its own.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::held::Holders;
use super::rules::RuleNumbers;
use super::table::{DetachedCell, read_cell, write_cell};
use super::{Binding, BoundRule, LimitTable, LocalStore, OVERFLOW_KEY, Shard};
use crate::algorithm::{Completion, Parameters, Rule, State};
use crate::charge::Charge;
use crate::cluster::migration::{ImportCounts, StoreCursor};
use crate::cluster::wire::{HeldSlot, LimitIdentity, StateBatch};
use crate::store::LimitSpec;
use crate::units::{ClockOffset, Cost, LimitKey, Nanos};

/// The size in bytes at which a message of states is full.
const PART: usize = 64 << 10;
/// The number of shards that are searched in one step.
const SHARDS_AT_ONCE: usize = 16;
/// The largest state that is sent, in bytes.
const MAX_STATE_BYTES: usize = 512 << 10;
/// The most slots of a key that move with its state: some 400 KB. The gateways that hold the other slots report them.
const MAX_HELD: usize = 10_000;
/// The approximate size of a slot in bytes.
const HELD_BYTES: usize = 40;

impl LocalStore {
    /// The limit of a charge, if its key has no state here and another gateway may have one. Of a limit that holds
    /// slots, a part of the state may always be missing.
    pub fn misses(&self, binding: &Binding, charge: &Charge) -> Option<LimitIdentity> {
        let table = &binding.limits.get(charge.limit)?.table;
        let has_state = || self.shards.of(charge.key).lock().cells[table.position].has_state(charge.key);
        (table.moves() && (table.algorithm.holds_slots() || !has_state())).then(|| table.spec().identity())
    }

    /// Whether this store has a state of `key` under `limit`.
    pub fn has_state(&self, limit: &LimitIdentity, key: LimitKey) -> bool {
        let table = LimitSpec::of(limit).and_then(|spec| self.tables.read().find(&spec));
        table.is_some_and(|table| self.shards.of(key).lock().cells[table.position].has_state(key))
    }

    /// See [`crate::cluster::state_service::StateService::take`].
    pub fn take(&self, limit: &LimitIdentity, key: LimitKey, leaves: &dyn Fn()) -> Option<StateBatch> {
        let table = self.tables.read().find(&LimitSpec::of(limit)?)?;
        if !table.moves() || key == OVERFLOW_KEY {
            return None;
        }
        let mut shard = self.shards.of(key).lock();
        let cell = shard.cells[table.position].take_out(&table, key)?;
        let holders = shard.held.take(table.position, key);
        leaves();
        drop(shard);
        let mut batch = StateBatchBuilder::of(self, Arc::clone(&table));
        batch.add_moved(cell, holders);
        batch.finish()
    }

    /// How many states were lost because they were too large to move.
    pub fn too_large(&self) -> u64 {
        self.too_large.load(Ordering::Relaxed)
    }

    /// See [`crate::cluster::state_service::StateService::take_moved`]. Drops states that are as good as new.
    pub fn take_moved(
        &self,
        cursor: &mut StoreCursor,
        to: &dyn Fn(LimitKey) -> Option<usize>,
        now: Nanos,
    ) -> Vec<(usize, StateBatch)> {
        // the tables keep their positions while this vector holds them
        let tables: Vec<Arc<LimitTable>> = self.tables.read().iter().filter(|table| table.moves()).cloned().collect();
        let mut batches: Vec<(usize, StateBatchBuilder<'_>)> = Vec::new();
        for shard in self.shards.iter().skip(cursor.next).take(SHARDS_AT_ONCE) {
            cursor.next = cursor.next.saturating_add(1);
            for table in &tables {
                let mut shard = shard.lock();
                let Shard { cells, held } = &mut *shard;
                let chosen = Cell::new(None);
                let moves = |key| {
                    chosen.set(if key == OVERFLOW_KEY { None } else { to(key) });
                    chosen.get().is_some()
                };
                let taken = |cell: DetachedCell| {
                    let Some(place) = chosen.get() else { return };
                    let holders = held.take(table.position, cell.key);
                    batch_for(&mut batches, self, place, table).add_moved(cell, holders);
                };
                cells[table.position].take_moved(table, now, &moves, taken);
            }
            if batches.iter().map(|(_, batch)| batch.bytes()).sum::<usize>() >= PART {
                break;
            }
        }
        cursor.is_over = cursor.next >= self.shards.len();
        batches.into_iter().filter_map(|(place, batch)| Some((place, batch.finish()?))).collect()
    }

    /// Adds states that came from another gateway. If a key has a state here already, the two are merged.
    ///
    /// A full table takes them too: the other gateway had room for them, and without its state a key would be as good
    /// as new.
    pub fn put(&self, states: &StateBatch, now: Nanos) -> ImportCounts {
        let mut received = ImportCounts::default();
        let unknown = ImportCounts { unknown: states.count, ..ImportCounts::default() };
        let Some(spec) = LimitSpec::of(&states.limit) else { return unknown };
        let table = self.table(&spec);
        if !table.moves() {
            return unknown;
        }
        let rules = CarriedRules::of(&table, &states.rules);
        let mut cells = &*states.cells;
        for left in (1..=states.count).rev() {
            let Some((DetachedCell { key, rule, state }, rest)) = read_cell(spec.algorithm, cells) else {
                received.unknown = received.unknown.saturating_add(left);
                break;
            };
            cells = rest;
            let mut shard = self.shards.of(key).lock();
            let cells = &mut shard.cells[table.position];
            let Some(bound) = rules.at(rule) else {
                received.unknown = received.unknown.saturating_add(1);
                continue;
            };
            // as for charges, a state under a shorter window does not end a longer one
            let keeping = cells.keeping_rule(bound, key, 0, now);
            let kept =
                keeping.as_ref().map_or(bound, |(number, rule)| BoundRule { table: &table, number: *number, rule });
            let counts = |state: &State| !kept.rule.evictability(state).is_fresh(kept.own_time(now));
            let before = cells.state(kept, key, now).filter(counts);
            let count = if before.is_some() { &mut received.merged } else { &mut received.kept };
            *count = count.saturating_add(1);
            let came = received_state(bound, kept, state, now).filter(counts);
            let both = match (before, came) {
                (Some(before), Some(came)) => Some(kept.rule.merge(before, came)),
                (before, came) => came.or(before),
            };
            cells.put(kept, key, both);
        }
        for held in states.held.iter().filter(|_| spec.algorithm.holds_slots()) {
            if let Some(bound) = rules.at(held.rule) {
                self.shards.of(held.key).lock().hold(bound, held, now);
            }
        }
        received
    }
}

/// The batch that takes the next state of `table` for the gateway `place`.
fn batch_for<'b, 's>(
    batches: &'b mut Vec<(usize, StateBatchBuilder<'s>)>,
    store: &'s LocalStore,
    place: usize,
    table: &Arc<LimitTable>,
) -> &'b mut StateBatchBuilder<'s> {
    let has_room = |(known, batch): &(usize, StateBatchBuilder<'_>)| *known == place && batch.has_room_for(table);
    let position = batches.iter().rposition(has_room).unwrap_or_else(|| {
        batches.push((place, StateBatchBuilder::of(store, Arc::clone(table))));
        batches.len().saturating_sub(1)
    });
    &mut batches[position].1
}

/// A state that came under the parameters of `from`, under those of `kept` and in their times.
fn received_state(from: BoundRule<'_>, kept: BoundRule<'_>, state: State, now: Nanos) -> Option<State> {
    let state = unheld(from.rule, from.table.with_own_times(from.rule, state), now)?;
    if from.number == kept.number {
        return Some(state);
    }
    let wall = from.table.wall_ahead();
    let state = from.rule.shift(state, kept.rule.own_offset(wall).minus(from.rule.own_offset(wall)));
    kept.rule.migrate_state(from.rule, state, kept.own_time(now))
}

/// A state without the slots that requests hold.
fn unheld(rule: &Rule, state: State, now: Nanos) -> Option<State> {
    if rule.holds_slots() { rule.complete(state, Cost::MAX, Completion::UNMEASURED, now) } else { Some(state) }
}

/// The parameters that states were written under which come from a snapshot or another gateway.
struct CarriedRules<'t> {
    table: &'t LimitTable,
    /// The parameters by position, with their numbers in this store; `None` for parameters that this program does not know.
    rules: Vec<Option<(u32, Rule)>>,
}

impl<'t> CarriedRules<'t> {
    fn of(table: &'t LimitTable, all: &[Parameters]) -> Self {
        let rules = all.iter().map(|parameters| {
            let rule = parameters.rule(table.algorithm)?;
            Some((table.number(&rule), rule))
        });
        Self { table, rules: rules.collect() }
    }

    fn at(&self, position: u32) -> Option<BoundRule<'_>> {
        let (number, rule) = self.rules.get(usize::try_from(position).ok()?)?.as_ref()?;
        Some(BoundRule { table: self.table, number: *number, rule })
    }
}

/// States of one limit that go to another gateway or into a snapshot together.
pub(super) struct StateBatchBuilder<'s> {
    store: &'s LocalStore,
    table: Arc<LimitTable>,
    /// The parameters of the batch.
    rules: RuleNumbers,
    count: u64,
    cells: Vec<u8>,
    held: Vec<HeldSlot>,
}

impl<'s> StateBatchBuilder<'s> {
    pub(super) fn of(store: &'s LocalStore, table: Arc<LimitTable>) -> Self {
        Self { store, table, rules: RuleNumbers::default(), count: 0, cells: Vec::new(), held: Vec::new() }
    }

    pub(super) const fn bytes(&self) -> usize {
        self.cells.len().saturating_add(self.held.len().saturating_mul(HELD_BYTES))
    }

    fn has_room_for(&self, table: &LimitTable) -> bool {
        self.table.position == table.position && self.bytes() < PART
    }

    /// Adds a state.
    pub(super) fn add(&mut self, DetachedCell { key, rule, state }: DetachedCell) -> io::Result<()> {
        let state = self.table.with_wall_times(rule, state);
        write_cell(key, self.rules.position(rule), &state, &mut self.cells)?;
        self.count = self.count.saturating_add(1);
        Ok(())
    }

    /// Adds a state with its slots, unless it is too large to be sent: then it is lost, and counted.
    fn add_moved(&mut self, cell: DetachedCell, holders: Holders) {
        let (key, rule) = (cell.key, self.rules.position(cell.rule));
        let before = (self.count, self.cells.len());
        if self.add(cell).is_err() || self.cells.len().saturating_sub(before.1) > MAX_STATE_BYTES {
            self.count = before.0;
            self.cells.truncate(before.1);
            self.store.too_large.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let held = holders.into_iter().map(|(slot, record)| HeldSlot { slot, key, cost: record.cost, rule });
        self.held.extend(held.take(MAX_HELD));
    }

    pub(super) fn finish(self) -> Option<StateBatch> {
        let Self { table, rules, count, cells, held, .. } = self;
        if count == 0 {
            return None;
        }
        let limit = table.spec().identity();
        let known = table.rules.read();
        // every number in a cell has its parameters here, since no charge is possible without them
        let rules = rules.iter().filter_map(|number| known.get(number)).map(Parameters::of).collect();
        drop(known);
        Some(StateBatch { limit, rules, count, cells: cells.into(), held })
    }
}

impl LimitTable {
    /// A state that was written under the parameters with this number, converted to wall clock times.
    fn with_wall_times(&self, number: u32, state: State) -> State {
        // recursive, since the caller may already read the rules while it takes states out
        let rules = self.rules.read_recursive();
        let Some(rule) = rules.get(number) else { return state };
        match self.beyond_own(rule) {
            ClockOffset::ZERO => state,
            by => rule.shift(state, by),
        }
    }

    /// A state of `rule` with wall clock times, converted to the times of this store.
    fn with_own_times(&self, rule: &Rule, state: State) -> State {
        match self.beyond_own(rule) {
            ClockOffset::ZERO => state,
            by => rule.shift(state, by.reversed()),
        }
    }

    /// How far the wall clock is ahead of the time that `rule` uses.
    fn beyond_own(&self, rule: &Rule) -> ClockOffset {
        let wall = self.wall_ahead();
        wall.minus(rule.own_offset(wall))
    }

    /// Whether the table's states may move to another gateway. The states of a shared limit are this gateway's own
    /// part, which it enforces while Redis is unavailable.
    fn moves(&self) -> bool {
        !self.abandoned.load(Ordering::Relaxed) && !self.is_shared.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
