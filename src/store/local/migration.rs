//! Takes states out of one node's store and puts them into another's, so that a state is never in both. On the way its times are
//! those of the wall clock, which the nodes have in common.
//!
//! The slots of requests in flight move with the state that counts them. A slot is counted once, however often and in whatever
//! order it arrives: with a state, or reported by the gateway that its request runs through.
//!
//! The common buckets of full tables do not move: they are each node's own.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::held::Holders;
use super::table::{KEY_BYTES, Loose, read_cell, write_cell};
use super::{Binding, BoundRule, LimitTable, LocalStore, OVERFLOW_KEY, Shard};
use crate::algorithm::{AlgorithmName, Completion, Parameters, Rule, State};
use crate::charge::{Charge, Mode};
use crate::cluster::migration::{ImportCounts, StoreCursor};
use crate::cluster::wire::{HeldSlot, LimitIdentity, StateBatch};
use crate::store::LimitSpec;
use crate::units::{ClockOffset, Cost, LimitKey, Nanos};

/// States are sent in parts of about this many bytes.
const PART: usize = 64 << 10;
/// How many shards are searched at once.
const SHARDS_AT_ONCE: usize = 16;
/// The most bytes that one state may take to be sent.
const LONGEST: usize = 512 << 10;
/// The most slots of one key that are sent with its state: some 400 KB. The gateways that hold the others report them.
const MOST_HELD: usize = 10_000;
/// About how many bytes a slot takes.
const HELD_BYTES: usize = 40;

impl LocalStore {
    /// The limit of a charge, if its key has no state here and another node may have one. A limit that holds slots may always
    /// miss a part of its state.
    pub fn misses(&self, binding: &Binding, charge: &Charge) -> Option<LimitIdentity> {
        let table = &binding.limits.get(charge.limit)?.table;
        let knows = || self.shards.of(charge.key).lock().cells[table.position].knows(charge.key);
        (table.moves() && (table.algorithm.holds() || !knows())).then(|| table.identity())
    }

    /// Whether there is a state of `key` under `limit`.
    pub fn knows(&self, limit: &LimitIdentity, key: LimitKey) -> bool {
        let table = spec(limit).and_then(|spec| self.tables.read().find(&spec));
        table.is_some_and(|table| self.shards.of(key).lock().cells[table.position].knows(key))
    }

    /// See [`crate::cluster::state_service::StateService::take`].
    pub fn take(&self, limit: &LimitIdentity, key: LimitKey, leaves: &dyn Fn()) -> Option<StateBatch> {
        let table = self.tables.read().find(&spec(limit)?)?;
        if !table.moves() || key == OVERFLOW_KEY {
            return None;
        }
        let mut shard = self.shards.of(key).lock();
        let loose = shard.cells[table.position].take_out(&table, key)?;
        let holders = shard.held.take(table.position, key);
        leaves();
        drop(shard);
        let mut parcel = Parcel::of(Arc::clone(&table));
        parcel.add(loose, holders);
        parcel.finish()
    }

    /// See [`crate::cluster::state_service::StateService::take_moved`]. What is as good as new is forgotten instead.
    pub fn take_moved(
        &self,
        cursor: &mut StoreCursor,
        to: &dyn Fn(LimitKey) -> Option<usize>,
        now: Nanos,
    ) -> Vec<(usize, StateBatch)> {
        // Held, they keep their places while this lasts.
        let tables: Vec<Arc<LimitTable>> = self.tables.read().iter().filter(|table| table.moves()).cloned().collect();
        let mut parcels: Vec<(usize, Parcel)> = Vec::new();
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
                let taken = |loose: Loose| {
                    let Some(place) = chosen.get() else { return };
                    let holders = held.take(table.position, loose.key);
                    let of_same =
                        |(known, parcel): &&mut (usize, Parcel)| *known == place && parcel.has_room_for(table);
                    match parcels.iter_mut().rev().find(of_same) {
                        Some((_, parcel)) => parcel.add(loose, holders),
                        None => {
                            let mut parcel = Parcel::of(Arc::clone(table));
                            parcel.add(loose, holders);
                            parcels.push((place, parcel));
                        }
                    }
                };
                cells[table.position].take_moved(table, now, &moves, taken);
            }
            if parcels.iter().map(|(_, parcel)| parcel.bytes()).sum::<usize>() >= PART {
                break;
            }
        }
        cursor.is_over = cursor.next >= self.shards.len();
        parcels.into_iter().filter_map(|(place, parcel)| Some((place, parcel.finish()?))).collect()
    }

    /// Puts in states that came from elsewhere. One of a key that has a state here already is merged into that.
    ///
    /// A full table takes them all the same: there was room for them where they came from, and to forget them would make
    /// their keys as good as new.
    pub fn put(&self, states: &StateBatch, now: Nanos) -> ImportCounts {
        let mut received = ImportCounts::default();
        let known = spec(&states.limit);
        let Some(spec) = known else { return ImportCounts { unknown: states.count, ..ImportCounts::default() } };
        let table = self.table(&spec);
        if !table.moves() {
            return ImportCounts { unknown: states.count, ..ImportCounts::default() };
        }
        let understood = |parameters: &Parameters| {
            let rule = parameters.rule(spec.algorithm)?;
            Some((table.number(&rule), rule))
        };
        let rules: Vec<Option<(u32, Rule)>> = states.rules.iter().map(understood).collect();
        let bound = |position: u32| {
            let (number, rule) = usize::try_from(position).ok().and_then(|position| rules.get(position)?.as_ref())?;
            Some(BoundRule { number: *number, rule })
        };
        let mut cells = states.cells.as_slice();
        for left in (1..=states.count).rev() {
            let Some(((key, rule, state), rest)) = read_cell(spec.algorithm, KEY_BYTES, cells) else {
                received.unknown = received.unknown.saturating_add(left);
                break;
            };
            cells = rest;
            let mut shard = self.shards.of(key).lock();
            let cells = &mut shard.cells[table.position];
            let Some(bound) = bound(rule) else {
                received.unknown = received.unknown.saturating_add(1);
                continue;
            };
            let counts = |state: &State| !bound.rule.idle(state).is_fresh(table.own_time(bound.rule, now));
            let before = cells.state(&table, bound, key, now).filter(counts);
            let count = if before.is_some() { &mut received.merged } else { &mut received.kept };
            *count = count.saturating_add(1);
            let came = unheld(bound.rule, table.with_own_times(bound.rule, state), now).filter(counts);
            let both = match (before, came) {
                (Some(before), Some(came)) => Some(bound.rule.merge(before, came)),
                (before, came) => came.or(before),
            };
            cells.put(&table, bound, key, both);
        }
        for HeldSlot { slot, key, cost, rule } in states.held.iter().copied().filter(|_| spec.algorithm.holds()) {
            if let Some(bound) = bound(rule) {
                self.shards.of(key).lock().hold(&table, bound, (key, slot, cost), now);
            }
        }
        received
    }
}

/// A state without what requests hold of it.
fn unheld(rule: &Rule, state: State, now: Nanos) -> Option<State> {
    if rule.holds() { rule.complete(state, Cost::MAX, Completion::UNMEASURED, now) } else { Some(state) }
}

/// The limit with this identity; `None` if its algorithm is not known.
fn spec(limit: &LimitIdentity) -> Option<LimitSpec<'_>> {
    let algorithm = AlgorithmName::canonical_of(&limit.algorithm)?;
    Some(LimitSpec {
        name: &limit.name,
        algorithm,
        mode: Mode::Sticky,
        key: limit.key,
        afresh: false,
        rules: &[],
        max_keys: limit.max_keys,
        gives_back: false,
    })
}

/// States of one limit that are put together.
struct Parcel {
    table: Arc<LimitTable>,
    /// The numbers of the parameters, by their positions.
    rules: Vec<u32>,
    count: u64,
    cells: Vec<u8>,
    held: Vec<HeldSlot>,
}

impl Parcel {
    const fn of(table: Arc<LimitTable>) -> Self {
        Self { table, rules: Vec::new(), count: 0, cells: Vec::new(), held: Vec::new() }
    }

    const fn bytes(&self) -> usize {
        self.cells.len().saturating_add(self.held.len().saturating_mul(HELD_BYTES))
    }

    fn has_room_for(&self, table: &LimitTable) -> bool {
        self.table.position == table.position && self.bytes() < PART
    }

    /// Nothing is added of a state that cannot be sent.
    fn add(&mut self, Loose { key, rule, state }: Loose, holders: Holders) {
        let state = self.table.with_wall_times(rule, state);
        let position = self.rules.iter().position(|known| *known == rule).unwrap_or_else(|| {
            self.rules.push(rule);
            self.rules.len().saturating_sub(1)
        });
        let before = self.cells.len();
        let rule = u32::try_from(position).unwrap_or(u32::MAX);
        let written = write_cell(key, rule, &state, &mut self.cells);
        if written.is_err() || self.cells.len().saturating_sub(before) > LONGEST {
            self.cells.truncate(before);
            return;
        }
        self.count = self.count.saturating_add(1);
        let held = holders.into_iter().map(|(slot, share)| HeldSlot { slot, key, cost: share.cost, rule });
        self.held.extend(held.take(MOST_HELD));
    }

    fn finish(self) -> Option<StateBatch> {
        let Self { table, rules, count, cells, held } = self;
        if count == 0 {
            return None;
        }
        let limit = table.identity();
        let known = table.rules.read();
        // Nobody can be charged under parameters that are not known.
        let rules = rules.iter().filter_map(|number| known.get(*number)).map(Parameters::of).collect();
        drop(known);
        Some(StateBatch { limit, rules, count, cells, held })
    }
}

impl LimitTable {
    fn identity(&self) -> LimitIdentity {
        LimitIdentity {
            name: self.name.clone(),
            algorithm: self.algorithm.as_str().to_owned(),
            key: self.key,
            max_keys: self.max_keys.load(Ordering::Relaxed),
        }
    }

    /// A state that was written under the parameters with this number, with the times of the wall clock.
    fn with_wall_times(&self, number: u32, state: State) -> State {
        // whoever takes states out of a table reads its rules already
        let rules = self.rules.read_recursive();
        let Some(rule) = rules.get(number) else { return state };
        match self.beyond_own(rule) {
            ClockOffset::ZERO => state,
            by => rule.shift(state, by),
        }
    }

    /// A state of `rule` with the times of the wall clock, as it is here.
    fn with_own_times(&self, rule: &Rule, state: State) -> State {
        match self.beyond_own(rule) {
            ClockOffset::ZERO => state,
            by => rule.shift(state, by.reversed()),
        }
    }

    /// How far the wall clock is ahead of the time that `rule` goes by.
    fn beyond_own(&self, rule: &Rule) -> ClockOffset {
        let wall = self.wall_ahead();
        wall.minus(rule.own_offset(wall))
    }

    /// Whether its states may be moved to another node. What a node enforces of a shared limit while Redis is unavailable
    /// is that node's own part.
    fn moves(&self) -> bool {
        !self.abandoned.load(Ordering::Relaxed) && !self.is_shared.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests;
