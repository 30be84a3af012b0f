//! States in this process's memory: one table per limit, cut into shards that are locked one by one.
//!
//! A cell (key, state, number of the parameters it was written under) belongs to one shard, and a shard to one lock, so
//! no reader sees one without the others. The store knows keys by their fingerprints: see [`LimitKey::fingerprint`]. A
//! request under several limits locks all its shards, in ascending order, before it looks at any cell: it is charged by
//! all limits or by none, and cannot deadlock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use crate::algorithm::{AlgorithmName, Completion, Rule, State};
use crate::charge::{Charge, Refund, RuleRef};
use crate::clock::WallOffset;
use crate::store::{AmendError, Amendment, LimitSpec, Usage};
use crate::units::{ClockOffset, Cost, LimitKey, Nanos};

mod buckets;
mod charging;
mod held;
mod migration;
mod peer_limits;
mod rules;
mod shard;
pub mod snapshot;
mod table;
mod tables;
#[cfg(test)]
mod wall_clock_tests;

pub use charging::StateElsewhere;
use charging::check_state_present;
use rules::Rules;
use shard::{FOR_MANY_THREADS, FOR_ONE_THREAD, Shard, Shards};
use table::Cells;
use tables::Tables;

/// The store of states in memory. See the module's documentation.
pub struct LocalStore {
    shards: Shards,
    tables: RwLock<Tables>,
    /// How far the wall clock is ahead of the `now` that is passed in.
    wall: Arc<WallOffset>,
    /// How many states were lost because they were too large to move.
    too_large: AtomicU64,
}

/// The data of one limit that all shards share.
#[derive(Debug)]
struct LimitTable {
    position: usize,
    name: String,
    algorithm: AlgorithmName,
    key_kind: u64,
    /// Whether the limit was reset, and has another table now.
    abandoned: AtomicBool,
    /// Every set of parameters ever charged under; a cell knows its own by number. Only grows.
    rules: RwLock<Rules>,
    /// The numbers of the parameters in the last binding.
    bound: Mutex<Vec<u32>>,
    max_keys: AtomicU64,
    keys: AtomicU64,
    wall: Arc<WallOffset>,
    /// Whether Redis keeps the limit's states while it is available: rules then get no wall clock offset here.
    is_shared: AtomicBool,
    evictions: Arc<EvictionCounts>,
    /// When the full table was last searched for keys to evict, and where the next search begins.
    searched: AtomicU64,
    search_from: AtomicUsize,
}

/// The eviction counters of a limit, over all tables of its name.
#[derive(Debug, Default)]
struct EvictionCounts {
    expired: AtomicU64,
    full: AtomicU64,
    overflowed: AtomicU64,
}

/// The limits of one ruleset, as this store knows them.
#[derive(Debug)]
pub struct Binding {
    limits: Vec<BoundLimit>,
}

#[derive(Debug)]
struct BoundLimit {
    table: Arc<LimitTable>,
    rules: Vec<(u32, Rule)>,
}

/// The parameters of a charge, with the table of their limit and their number in it.
#[derive(Clone, Copy, Debug)]
struct BoundRule<'a> {
    table: &'a LimitTable,
    number: u32,
    rule: &'a Rule,
}

/// Whether `key` is the bucket that new keys share when their limit's table is full.
pub fn is_overflow(key: LimitKey) -> bool {
    key == OVERFLOW_KEY
}

/// The bucket that new keys share when a table is full. A key's hash equals it as rarely as any other key.
const OVERFLOW_KEY: LimitKey = LimitKey::of_fingerprint(u64::MAX);

// === impl LocalStore ===

impl LocalStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::with(FOR_MANY_THREADS)
    }

    /// An empty store for a single thread, which finds keys in it faster.
    pub fn for_one_thread() -> Self {
        Self::with(FOR_ONE_THREAD)
    }

    fn with(shards: usize) -> Self {
        let (tables, wall) = (RwLock::default(), Arc::default());
        Self { shards: Shards::new(shards), tables, wall, too_large: AtomicU64::new(0) }
    }

    /// The handle by which the store learns how far the wall clock is ahead of the `now` that callers pass in.
    pub fn wall_offset(&self) -> Arc<WallOffset> {
        Arc::clone(&self.wall)
    }

    /// See [`super::Store::bind`].
    pub fn bind(&self, limits: &[LimitSpec<'_>]) -> Binding {
        let binding = Binding { limits: limits.iter().map(|spec| self.bind_limit(spec)).collect() };
        self.drop_unneeded();
        binding
    }

    fn bind_limit(&self, spec: &LimitSpec<'_>) -> BoundLimit {
        let table = self.table(spec);
        table.max_keys.store(spec.max_keys, Ordering::Relaxed);
        table.is_shared.store(spec.mode.is_shared(), Ordering::Relaxed);
        let rules: Vec<(u32, Rule)> = spec.rules.iter().map(|rule| (table.number(rule), rule.clone())).collect();
        *table.bound.lock() = rules.iter().map(|(number, _)| *number).collect();
        BoundLimit { table, rules }
    }

    /// The table of a limit; creates it if there is none, or if the limit starts afresh.
    fn table(&self, spec: &LimitSpec<'_>) -> Arc<LimitTable> {
        let mut tables = self.tables.write();
        if let Some(known) = tables.find(spec) {
            if !spec.is_reset {
                return known;
            }
            known.abandoned.store(true, Ordering::Relaxed);
        }
        let position = tables.free();
        let table = Arc::new(LimitTable {
            position,
            name: spec.name.to_owned(),
            algorithm: spec.algorithm,
            key_kind: spec.key_kind,
            abandoned: AtomicBool::new(false),
            rules: RwLock::default(),
            bound: Mutex::default(),
            max_keys: AtomicU64::new(spec.max_keys),
            keys: AtomicU64::new(0),
            wall: Arc::clone(&self.wall),
            is_shared: AtomicBool::new(spec.mode.is_shared()),
            evictions: tables.evictions(spec.name),
            searched: AtomicU64::new(0),
            search_from: AtomicUsize::new(0),
        });
        for shard in self.shards.iter() {
            shard.lock().replace(position, Cells::new(spec.algorithm));
        }
        tables.put(Arc::clone(&table));
        table
    }

    /// Drops the tables that no binding knows and no limit needs any more.
    fn drop_unneeded(&self) {
        let gone = self.tables.write().take_unneeded();
        // no charge finds these tables any more, but their positions are free only once their cells are gone
        for table in &gone {
            for shard in self.shards.iter() {
                shard.lock().replace(table.position, Cells::new(table.algorithm));
            }
        }
        self.tables.write().give_back(gone);
    }

    /// See [`super::Store::tables`].
    pub fn tables(&self) -> usize {
        self.tables.read().iter().count()
    }

    /// See [`super::Store::refund`].
    pub fn refund(&self, binding: &Binding, batch: &[Refund], now: Nanos) {
        for refund in batch {
            let (Ok(()) | Err(StateElsewhere)) = self.refund_if_present(binding, refund, || false, now);
        }
    }

    /// [`LocalStore::refund`] of one charge. An error if its state is not here and `may_have_moved`.
    pub fn refund_if_present(
        &self,
        binding: &Binding,
        Refund { charge, full_at }: &Refund,
        may_have_moved: impl FnOnce() -> bool,
        now: Nanos,
    ) -> Result<(), StateElsewhere> {
        self.change(binding, charge, 0, may_have_moved, now, |rule, state, own| {
            rule.refund(state?, charge.cost, full_at.shifted(own), now.shifted(own))
        })
    }

    /// See [`super::Store::debit`]. The debt of a new key for which there is no room goes to the common bucket.
    pub fn debit(&self, binding: &Binding, batch: &[Charge], now: Nanos) {
        for charge in batch {
            let (Ok(()) | Err(StateElsewhere)) = self.debit_if_present(binding, charge, || false, now);
        }
    }

    /// [`LocalStore::debit`] of one charge. An error if its state is not here and `may_have_moved`.
    pub fn debit_if_present(
        &self,
        binding: &Binding,
        charge: &Charge,
        may_have_moved: impl FnOnce() -> bool,
        now: Nanos,
    ) -> Result<(), StateElsewhere> {
        let table = &binding.limits[charge.limit].table;
        let debit = |rule: &Rule, state, own| rule.debit(state, charge.cost, now.shifted(own));
        let has_room = self.shards.of(charge.key).lock().cells[table.position].has_room(table, charge.key);
        if has_room.is_ok() {
            return self.change(binding, charge, charge.cost, may_have_moved, now, debit);
        }
        if may_have_moved() {
            return Err(StateElsewhere);
        }
        table.evictions.overflowed.fetch_add(1, Ordering::Relaxed);
        self.change(binding, &Charge { key: OVERFLOW_KEY, ..charge.clone() }, charge.cost, || false, now, debit)
    }

    /// See [`super::Store::complete`].
    pub fn complete(&self, binding: &Binding, batch: &[Charge], end: Completion, now: Nanos) {
        for charge in batch.iter().filter(|charge| binding.find(charge).rule.holds_slots()) {
            let complete =
                |rule: &Rule, state: Option<_>, own| rule.complete(state?, charge.cost, end, now.shifted(own));
            let (Ok(()) | Err(StateElsewhere)) = self.change(binding, charge, 0, || false, now, complete);
        }
    }

    /// See [`super::Store::amend`]. A full table keeps no cell of a key as good as new, which then counts in the common
    /// bucket: there the state stays, and the amendment fails.
    pub fn amend(
        &self,
        binding: &Binding,
        charge: &Charge,
        amendment: Amendment,
        now: Nanos,
    ) -> Result<(), AmendError> {
        let table = &binding.limits[charge.limit].table;
        let mut done = Ok(());
        let amend = |rule: &Rule, state: Option<State>, own| {
            let after = match amendment {
                Amendment::ResetKey => None,
                Amendment::Grant(tokens) => rule.grant(state.clone(), tokens, now.shifted(own)),
            };
            if after.is_none() && table.is_full() {
                done = Err(AmendError::TableFull);
                return state;
            }
            after
        };
        let (Ok(()) | Err(StateElsewhere)) = self.change(binding, charge, 0, || false, now, amend);
        done
    }

    /// See [`BoundRule::change`]. An error if the state is not here and `may_have_moved`.
    fn change(
        &self,
        binding: &Binding,
        charge: &Charge,
        cost: Cost,
        may_have_moved: impl FnOnce() -> bool,
        now: Nanos,
        change: impl FnOnce(&Rule, Option<State>, ClockOffset) -> Option<State>,
    ) -> Result<(), StateElsewhere> {
        let bound = binding.find(charge);
        let mut shard = self.shards.of(charge.key).lock();
        let cells = &mut shard.cells[bound.table.position];
        check_state_present(bound.table, cells, charge, may_have_moved)?;
        bound.change(cells, charge.key, cost, now, change);
        Ok(())
    }

    /// See [`super::Store::sweep`].
    pub fn sweep(&self, part: usize, parts: usize, now: Nanos) {
        self.drop_unneeded();
        let tables: Vec<Arc<LimitTable>> = self.tables.read().iter().cloned().collect();
        for shard in self.shards.iter().skip(part % parts.max(1)).step_by(parts.max(1)) {
            let mut shard = shard.lock();
            for table in &tables {
                shard.cells[table.position].sweep(table, now);
            }
        }
    }

    /// See [`super::Store::usage`].
    pub fn usage(&self, binding: &Binding) -> Vec<Usage> {
        binding.limits.iter().map(|limit| limit.table.usage()).collect()
    }
}

impl Default for LocalStore {
    fn default() -> Self {
        Self::new()
    }
}

// === impl Binding ===

impl Binding {
    /// The parameters of a charge.
    pub(super) fn rule<'a>(&'a self, charge: &'a Charge) -> &'a Rule {
        match &charge.rule {
            RuleRef::Listed(position) => &self.limits[charge.limit].rules[*position].1,
            RuleRef::Own(rule) => rule,
        }
    }

    /// Must not be called while a shard is locked: this function may have to register a customer's own parameters.
    fn find<'a>(&'a self, charge: &'a Charge) -> BoundRule<'a> {
        let BoundLimit { table, rules } = &self.limits[charge.limit];
        match &charge.rule {
            RuleRef::Listed(position) => {
                let (number, rule) = &rules[*position];
                BoundRule { table, number: *number, rule }
            }
            RuleRef::Own(rule) => BoundRule { table, number: table.number(rule), rule },
        }
    }
}

// === impl BoundRule ===

impl BoundRule<'_> {
    /// The time that the rule uses when `now` is the time of other rules.
    fn own_time(self, now: Nanos) -> Nanos {
        now.shifted(self.rule.own_offset(self.table.wall_ahead()))
    }

    /// Changes the state of `key` by taking `cost`, under the parameters that keep it. `change` gets the rule's
    /// [`own_offset`](Rule::own_offset).
    fn change(
        self,
        cells: &mut Cells,
        key: LimitKey,
        cost: Cost,
        now: Nanos,
        change: impl FnOnce(&Rule, Option<State>, ClockOffset) -> Option<State>,
    ) {
        let kept = cells.keeping_rule(self, key, cost, now);
        let bound = kept.as_ref().map_or(self, |(number, rule)| BoundRule { number: *number, rule, ..self });
        let before = cells.state(bound, key, now);
        let after = change(bound.rule, before, bound.rule.own_offset(bound.table.wall_ahead()));
        cells.put(bound, key, after);
    }
}

// === impl LimitTable ===

impl LimitTable {
    /// The number of `rule`, which is registered if it is new.
    fn number(&self, rule: &Rule) -> u32 {
        let known = self.rules.read().find(rule);
        known.unwrap_or_else(|| self.rules.write().insert(rule))
    }

    /// How far the wall clock is ahead of the `now` that is passed in for states of this limit.
    fn wall_ahead(&self) -> ClockOffset {
        if self.is_shared.load(Ordering::Relaxed) { ClockOffset::ZERO } else { self.wall.get() }
    }

    /// The limit, without its parameters.
    fn spec(&self) -> LimitSpec<'_> {
        let max_keys = self.max_keys.load(Ordering::Relaxed);
        LimitSpec { max_keys, ..LimitSpec::bare(&self.name, self.algorithm, self.key_kind) }
    }

    fn is_full(&self) -> bool {
        self.keys.load(Ordering::Relaxed) >= self.max_keys.load(Ordering::Relaxed)
    }

    fn usage(&self) -> Usage {
        Usage {
            name: self.name.clone(),
            keys: self.keys.load(Ordering::Relaxed),
            max_keys: self.max_keys.load(Ordering::Relaxed),
            evicted_expired: self.evictions.expired.load(Ordering::Relaxed),
            evicted_full: self.evictions.full.load(Ordering::Relaxed),
            overflowed: self.evictions.overflowed.load(Ordering::Relaxed),
        }
    }
}
