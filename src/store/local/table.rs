//! One shard's part of one limit's table: cells of exactly the algorithm's state.

use std::io;
use std::sync::atomic::Ordering;

use super::buckets::{Buckets, Cell, Place};
use super::{BoundRule, LimitTable, OVERFLOW_KEY};
use crate::algorithm::{
    self, Algorithm, AlgorithmName, Completion, Core, Evictability, Headroom, Rule, State, match_algorithm,
};
use crate::charge::{AllCharged, Charge, Charged};
use crate::units::{ClockOffset, Cost, LimitKey, Nanos};

/// An error: the limit's table has no room for a new key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// The reason why [`Cells::charge`] does not charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellRejection {
    /// The limit's table has no room for a new key.
    Full,
    /// The state stays under other parameters: see [`Cells::keeping_rule`].
    Kept,
}

/// A cell of any algorithm, outside of a table.
#[derive(Debug)]
pub(super) struct DetachedCell {
    pub(super) key: LimitKey,
    pub(super) rule: u32,
    pub(super) state: State,
}

#[derive(Clone, Debug)]
pub(super) struct Table<C: Core> {
    cells: Buckets<C::State>,
}

impl<C: Core> Table<C> {
    fn new() -> Self {
        Self { cells: Buckets::default() }
    }

    /// Decides and charges in place; the state is moved, not copied. Until the decision, the cell contains the default
    /// state.
    fn charge(
        &mut self,
        bound: BoundRule<'_>,
        rule: &C,
        charge: &Charge,
        now: Nanos,
        charged: &mut AllCharged,
    ) -> Result<(), CellRejection> {
        let BoundRule { table, number, .. } = bound;
        if table.is_full() {
            self.has_room(table, charge.key).map_err(|Full| CellRejection::Full)?;
        }
        let key = charge.key.fingerprint();
        let place = self.cells.find(key);
        if place.is_some_and(|place| self.cells.get(place).0 != number)
            && self.keeping_rule(bound, rule, charge.key, 0, now).is_some()
        {
            return Err(CellRejection::Kept);
        }
        let now = own_time(table, rule, now);
        let before = place.and_then(|place| {
            let (written_under, state) = self.cells.take_state(place);
            migrated_state(bound, rule, written_under, state, now)
        });
        let (decision, after) = rule.decide(before, charge.cost, now);
        let headroom = rule.headroom(after.as_ref(), now);
        self.set(table, key, place, number, after);
        charged.push(Charged { decision, headroom });
        Ok(())
    }

    /// Writes the state of a key; `None` removes its cell.
    fn set(&mut self, table: &LimitTable, key: u64, place: Option<Place>, rule: u32, state: Option<C::State>) {
        count(table, place.is_some(), state.is_some());
        match (place, state) {
            (Some(place), Some(state)) => self.cells.set(place, rule, state),
            (Some(place), None) => drop(self.cells.remove(place)),
            (None, Some(state)) => self.cells.insert(Cell { key, rule, state }),
            (None, None) => {}
        }
    }

    fn state(&self, bound: BoundRule<'_>, rule: &C, key: LimitKey, now: Nanos) -> Option<C::State> {
        let (written_under, state) = self.cells.get(self.cells.find(key.fingerprint())?);
        migrated_state(bound, rule, written_under, state.clone(), own_time(bound.table, rule, now))
    }

    /// See [`Cells::keeping_rule`].
    fn keeping_rule(&self, bound: BoundRule<'_>, rule: &C, key: LimitKey, cost: Cost, now: Nanos) -> Option<u32> {
        let BoundRule { table, number, .. } = bound;
        let (written_under, state) = self.cells.get(self.cells.find(key.fingerprint())?);
        if written_under == number {
            return None;
        }
        let rules = table.rules.read();
        let old = rules.get(written_under).and_then(Rule::core::<C>)?;
        let state = in_time_of(table, rule, old, state.clone());
        rule.keeps_old_parameters(old, &state, cost, own_time(table, rule, now)).then_some(written_under)
    }

    /// The headroom of a key.
    fn headroom(&self, bound: BoundRule<'_>, rule: &C, key: LimitKey, now: Nanos) -> Headroom {
        let now = own_time(bound.table, rule, now);
        match self.cells.find(key.fingerprint()).map(|place| self.cells.get(place)) {
            Some((written_under, state)) if written_under == bound.number => rule.headroom(Some(state), now),
            Some((written_under, state)) => {
                let state = migrated_state(bound, rule, written_under, state.clone(), now);
                rule.headroom(state.as_ref(), now)
            }
            None => rule.headroom(None, now),
        }
    }

    fn put(&mut self, bound: BoundRule<'_>, key: LimitKey, state: Option<C::State>) {
        let key = key.fingerprint();
        self.set(bound.table, key, self.cells.find(key), bound.number, state);
    }

    /// Releases the slot of a request, under the parameters that the cell was written with.
    fn complete(&mut self, table: &LimitTable, key: LimitKey, cost: Cost, end: Completion, now: Nanos) {
        let key = key.fingerprint();
        let Some(place) = self.cells.find(key) else { return };
        let (number, state) = self.cells.take_state(place);
        let after = match table.rules.read().get(number).and_then(Rule::core::<C>) {
            Some(rule) => rule.complete(state, cost, end, now),
            None => Some(state),
        };
        self.set(table, key, Some(place), number, after);
    }

    fn has_state(&self, key: LimitKey) -> bool {
        self.cells.find(key.fingerprint()).is_some()
    }

    /// Removes the cell of `key`.
    fn take_out(&mut self, table: &LimitTable, key: LimitKey) -> Option<Cell<C::State>> {
        let place = self.cells.find(key.fingerprint())?;
        count(table, true, false);
        Some(self.cells.remove(place))
    }

    /// Removes the cells that `moves` selects, and passes on those that are not as good as new.
    fn take_moved(
        &mut self,
        table: &LimitTable,
        now: Nanos,
        moves: &dyn Fn(LimitKey) -> bool,
        mut taken: impl FnMut(Cell<C::State>),
    ) {
        let rules = table.rules.read();
        let moves = |key, _, _: &mut C::State| moves(LimitKey::of_fingerprint(key));
        self.cells.take_out_if(moves, |cell| {
            count(table, true, false);
            let rule = rules.get(cell.rule).and_then(Rule::core::<C>);
            let at = rule.map_or(now, |rule| own_time(table, rule, now));
            match rule.map_or(Evictability::Fresh(Nanos::ZERO), |rule| rule.evictability(&cell.state)) {
                Evictability::Fresh(from) if from <= at => {}
                _ => taken(cell),
            }
        });
    }

    /// Returns an error if `key` is new and the table has no room for it.
    fn has_room(&self, table: &LimitTable, key: LimitKey) -> Result<(), Full> {
        if !table.is_full() || key == OVERFLOW_KEY || self.has_state(key) { Ok(()) } else { Err(Full) }
    }

    /// Evicts keys that are as good as new; under `pressure` also keys whose eviction admits nothing more.
    fn sweep(&mut self, table: &LimitTable, now: Nanos, pressure: bool) {
        let rules = table.rules.read();
        let (mut expired, mut early) = (0, 0);
        let may_go = |_, number, state: &mut C::State| {
            let rule = rules.get(number).and_then(Rule::core::<C>);
            let at = rule.map_or(now, |rule| own_time(table, rule, now));
            if let Some(rule) = rule {
                *state = rule.after_step_back(std::mem::take(state), at);
            }
            match rule.map_or(Evictability::Fresh(Nanos::ZERO), |rule| rule.evictability(state)) {
                Evictability::Fresh(from) if from <= at => expired += 1,
                Evictability::Safe(from) if pressure && from <= at => early += 1,
                _ => return false,
            }
            true
        };
        self.cells.take_out_if(may_go, drop);
        table.keys.fetch_sub(expired + early, Ordering::Relaxed);
        table.evictions.expired.fetch_add(expired, Ordering::Relaxed);
        table.evictions.full.fetch_add(early, Ordering::Relaxed);
    }
}

/// The time that `rule` uses when `now` is the time of other rules.
fn own_time<C: Core>(table: &LimitTable, rule: &C, now: Nanos) -> Nanos {
    now.shifted(rule.own_offset(table.wall_ahead()))
}

/// A state in the form that `rule` needs; another rule may have written it.
fn migrated_state<C: Core>(
    BoundRule { table, number, .. }: BoundRule<'_>,
    rule: &C,
    written_under: u32,
    state: C::State,
    now: Nanos,
) -> Option<C::State> {
    if written_under == number {
        return Some(rule.after_step_back(state, now));
    }
    let rules = table.rules.read();
    let old = rules.get(written_under).and_then(Rule::core::<C>)?;
    rule.migrate_state(old, in_time_of(table, rule, old, state), now)
}

/// A state of `old` in the time of `rule`.
fn in_time_of<C: Core>(table: &LimitTable, rule: &C, old: &C, state: C::State) -> C::State {
    let wall = table.wall_ahead();
    match rule.own_offset(wall).minus(old.own_offset(wall)) {
        ClockOffset::ZERO => state,
        by => old.shift(state, by),
    }
}

fn count(table: &LimitTable, was_there: bool, is_there: bool) {
    match (was_there, is_there) {
        (false, true) => table.keys.fetch_add(1, Ordering::Relaxed),
        (true, false) => table.keys.fetch_sub(1, Ordering::Relaxed),
        _ => return,
    };
}

macro_rules! define_cells {
    ($($Variant:ident $module:ident,)*) => {
        /// A table of any algorithm. All rules that it is used with must be of the algorithm it was created for.
        #[derive(Clone, Debug)]
        pub(super) enum Cells {
            $($Variant(Table<<algorithm::$module::$Variant as Algorithm>::Core>),)*
        }

        impl Cells {
            pub(super) fn new(algorithm: AlgorithmName) -> Self {
                match algorithm {
                    $(AlgorithmName::$Variant => Self::$Variant(Table::new()),)*
                }
            }
        }
    };
}
crate::for_each_algorithm!(define_cells);

impl Cells {
    pub(super) fn charge(
        &mut self,
        bound: BoundRule<'_>,
        charge: &Charge,
        now: Nanos,
        charged: &mut AllCharged,
    ) -> Result<(), CellRejection> {
        match_algorithm!(self, |Cells(cells)| match bound.rule {
            ThisRule(rule) => cells.charge(bound, rule, charge, now, charged),
            _ => unreachable!("a limit's table is found by its algorithm"),
        })
    }

    pub(super) fn state(&self, bound: BoundRule<'_>, key: LimitKey, now: Nanos) -> Option<State> {
        match_algorithm!(self, |Cells(cells)| match bound.rule {
            ThisRule(rule) => cells.state(bound, rule, key, now).map(ThisState),
            _ => None,
        })
    }

    /// The parameters with their number under which the state of `key` stays although those of `bound` take `cost`
    /// of it: [`Rule::keeps_old_parameters`].
    pub(super) fn keeping_rule(
        &self,
        bound: BoundRule<'_>,
        key: LimitKey,
        cost: Cost,
        now: Nanos,
    ) -> Option<(u32, Rule)> {
        let number = match_algorithm!(self, |Cells(cells)| match bound.rule {
            ThisRule(rule) => cells.keeping_rule(bound, rule, key, cost, now)?,
            _ => return None,
        });
        Some((number, bound.table.rules.read().get(number)?.clone()))
    }

    pub(super) fn headroom(&self, bound: BoundRule<'_>, key: LimitKey, now: Nanos) -> Headroom {
        match_algorithm!(self, |Cells(cells)| match bound.rule {
            ThisRule(rule) => cells.headroom(bound, rule, key, now),
            other => other.headroom(None, now),
        })
    }

    /// Writes the state of `key`; `None` removes its cell.
    pub(super) fn put(&mut self, bound: BoundRule<'_>, key: LimitKey, state: Option<State>) {
        match_algorithm!(self, |Cells(cells)| {
            let state = if let Some(ThisState(state)) = state { Some(state) } else { None };
            cells.put(bound, key, state);
        });
    }

    pub(super) fn complete(&mut self, table: &LimitTable, key: LimitKey, cost: Cost, end: Completion, now: Nanos) {
        match_algorithm!(self, |Cells(cells)| cells.complete(table, key, cost, end, now));
    }

    pub(super) fn has_room(&self, table: &LimitTable, key: LimitKey) -> Result<(), Full> {
        match_algorithm!(self, |Cells(cells)| cells.has_room(table, key))
    }

    /// All cells, outside of the table.
    pub(super) fn into_detached(self) -> Box<dyn Iterator<Item = DetachedCell>> {
        match_algorithm!(self, |Cells(cells)| Box::new(cells.cells.into_cells().map(|cell| cell.detached(ThisState))))
    }

    pub(super) fn has_state(&self, key: LimitKey) -> bool {
        match_algorithm!(self, |Cells(cells)| cells.has_state(key))
    }

    /// Removes the cell of `key`.
    pub(super) fn take_out(&mut self, table: &LimitTable, key: LimitKey) -> Option<DetachedCell> {
        match_algorithm!(self, |Cells(cells)| Some(cells.take_out(table, key)?.detached(ThisState)))
    }

    /// Removes the cells that `moves` selects, and passes on those that are not as good as new.
    pub(super) fn take_moved(
        &mut self,
        table: &LimitTable,
        now: Nanos,
        moves: &dyn Fn(LimitKey) -> bool,
        mut taken: impl FnMut(DetachedCell),
    ) {
        match_algorithm!(self, |Cells(cells)| {
            cells.take_moved(table, now, moves, |cell| taken(cell.detached(ThisState)));
        });
    }

    pub(super) fn sweep(&mut self, table: &LimitTable, now: Nanos) {
        match_algorithm!(self, |Cells(cells)| cells.sweep(table, now, table.is_full()));
    }
}

impl<S> Cell<S> {
    /// The cell outside of its table, whose states `any` makes states of any algorithm.
    fn detached(self, any: impl FnOnce(S) -> State) -> DetachedCell {
        DetachedCell { key: LimitKey::of_fingerprint(self.key), rule: self.rule, state: any(self.state) }
    }
}

/// Appends a cell to `bytes`.
pub(super) fn write_cell(key: LimitKey, rule: u32, state: &State, bytes: &mut Vec<u8>) -> io::Result<()> {
    bytes.extend_from_slice(&key.fingerprint().to_le_bytes());
    let buffer = std::mem::take(bytes);
    *bytes = match_algorithm!(state, |State(state)| postcard::to_extend(&(rule, state), buffer))
        .map_err(io::Error::other)?;
    Ok(())
}

/// Reads a cell that [`write_cell`] wrote, and the bytes after it. `None` if `bytes` do not begin with
/// a cell.
pub(super) fn read_cell(algorithm: AlgorithmName, bytes: &[u8]) -> Option<(DetachedCell, &[u8])> {
    let (key, bytes) = bytes.split_first_chunk()?;
    let key = LimitKey::of_fingerprint(u64::from_le_bytes(*key));
    match_algorithm!(algorithm, |AlgorithmName| {
        let ((rule, state), rest) = postcard::take_from_bytes(bytes).ok()?;
        Some((DetachedCell { key, rule, state: ThisState(state) }, rest))
    })
}
