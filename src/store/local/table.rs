//! One shard's part of one limit's table: cells of exactly the algorithm's state.

use std::io;
use std::sync::atomic::Ordering;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

use super::{BoundRule, LimitTable, OVERFLOW_KEY};
use crate::algorithm::{self, Algorithm, AlgorithmName, Completion, Headroom, Idle, Rule, State, Typed};
use crate::charge::{AllCharged, Charge, Charged};
use crate::units::{ClockOffset, Cost, LimitKey, Nanos};

/// A new key has no place left in its limit's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// A key's state, and the number of the parameters it was written under. For `gcra` 32 bytes.
#[derive(Clone, Debug)]
struct Cell<A: Algorithm> {
    key: [u64; 2],
    rule: u32,
    state: A::State,
}

/// A cell of any algorithm that is in no table.
#[derive(Debug)]
pub(super) struct Loose {
    pub(super) key: LimitKey,
    pub(super) rule: u32,
    pub(super) state: State,
}

#[derive(Clone, Debug)]
pub(super) struct Table<A: Algorithm> {
    cells: HashTable<Cell<A>>,
}

impl<A: Typed> Table<A> {
    fn new() -> Self {
        Self { cells: HashTable::new() }
    }

    /// Decides and charges in place; the state is moved, not copied. Until it is decided nothing is in its place.
    fn charge(
        &mut self,
        table: &LimitTable,
        rule: &A,
        number: u32,
        charge: &Charge,
        now: Nanos,
        charged: &mut AllCharged,
    ) -> Result<(), Full> {
        if table.is_full() {
            self.has_room(table, charge.key)?;
        }
        let (words, now) = (words(charge.key), own_time(table, rule, now));
        let mut entry = self.cells.entry(words[0], |cell| cell.key == words, |cell| cell.key[0]);
        let before = match &mut entry {
            Entry::Occupied(occupied) => {
                let cell = occupied.get_mut();
                carried(table, rule, number, cell.rule, std::mem::take(&mut cell.state), now)
            }
            Entry::Vacant(_) => None,
        };
        let (decision, after) = rule.decide(before, charge.cost, now);
        let headroom = rule.headroom(after.as_ref(), now);
        set(table, entry, words, number, after);
        charged.push(Charged { decision, headroom });
        Ok(())
    }

    fn state(&self, table: &LimitTable, rule: &A, number: u32, key: LimitKey, now: Nanos) -> Option<A::State> {
        let (words, now) = (words(key), own_time(table, rule, now));
        let cell = self.cells.find(words[0], |cell| cell.key == words)?;
        carried(table, rule, number, cell.rule, cell.state.clone(), now)
    }

    /// Where a key stands.
    fn headroom(&self, table: &LimitTable, rule: &A, number: u32, key: LimitKey, now: Nanos) -> Headroom {
        let (words, now) = (words(key), own_time(table, rule, now));
        match self.cells.find(words[0], |cell| cell.key == words) {
            Some(cell) if cell.rule == number => rule.headroom(Some(&cell.state), now),
            Some(cell) => {
                let state = carried(table, rule, number, cell.rule, cell.state.clone(), now);
                rule.headroom(state.as_ref(), now)
            }
            None => rule.headroom(None, now),
        }
    }

    fn put(&mut self, table: &LimitTable, number: u32, key: LimitKey, state: Option<A::State>) {
        let words = words(key);
        set(table, self.cells.entry(words[0], |cell| cell.key == words, |cell| cell.key[0]), words, number, state);
    }

    /// What a request held comes back, under the parameters that the cell was written with.
    fn complete(&mut self, table: &LimitTable, key: LimitKey, cost: Cost, end: Completion, now: Nanos) {
        let words = words(key);
        let Ok(entry) = self.cells.find_entry(words[0], |cell| cell.key == words) else { return };
        let (Cell { rule: number, state, .. }, vacant) = entry.remove();
        let after = match table.rules.read().get(number).and_then(A::of) {
            Some(rule) => rule.complete(state, cost, end, now),
            None => Some(state),
        };
        count(table, true, after.is_some());
        if let Some(state) = after {
            vacant.insert(Cell { key: words, rule: number, state });
        }
    }

    /// Puts each cell behind `bytes`, with the times of the wall clock, and calls `then` after it.
    fn write(
        self,
        table: &LimitTable,
        bytes: &mut Vec<u8>,
        mut then: impl FnMut(&mut Vec<u8>) -> io::Result<()>,
    ) -> io::Result<()> {
        let wall = table.wall_ahead();
        for Cell { key, rule: number, mut state } in self.cells {
            if wall != ClockOffset::ZERO
                && let Some(rule) = table.rules.read().get(number).and_then(A::of)
            {
                state = rule.shift(state, wall.minus(rule.own_offset(wall)));
            }
            write_state::<A>(key, number, &state, bytes)?;
            then(bytes)?;
        }
        Ok(())
    }

    fn knows(&self, key: LimitKey) -> bool {
        let words = words(key);
        self.cells.find(words[0], |cell| cell.key == words).is_some()
    }

    /// Takes out the cell of `key`.
    fn take_out(&mut self, table: &LimitTable, key: LimitKey) -> Option<Cell<A>> {
        let words = words(key);
        let entry = self.cells.find_entry(words[0], |cell| cell.key == words).ok()?;
        count(table, true, false);
        Some(entry.remove().0)
    }

    /// Takes out the cells that `moves` says, and hands those on that are not as good as new.
    fn take_moved(
        &mut self,
        table: &LimitTable,
        now: Nanos,
        moves: &dyn Fn(LimitKey) -> bool,
        mut taken: impl FnMut(Cell<A>),
    ) {
        let rules = table.rules.read();
        for cell in self.cells.extract_if(|cell| moves(key(cell.key))) {
            count(table, true, false);
            let rule = rules.get(cell.rule).and_then(A::of);
            let at = rule.map_or(now, |rule| own_time(table, rule, now));
            match rule.map_or(Idle::Fresh(Nanos::ZERO), |rule| rule.idle(&cell.state)) {
                Idle::Fresh(from) if from <= at => {}
                _ => taken(cell),
            }
        }
    }

    /// Ok if `key` is known or may become known.
    fn has_room(&self, table: &LimitTable, key: LimitKey) -> Result<(), Full> {
        if !table.is_full() || key == OVERFLOW_KEY || self.knows(key) { Ok(()) } else { Err(Full) }
    }

    /// Forgets what is as good as new; under `pressure` also what may be forgotten without admitting more.
    fn sweep(&mut self, table: &LimitTable, now: Nanos, pressure: bool) {
        let rules = table.rules.read();
        let (mut expired, mut early) = (0, 0);
        self.cells.retain(|cell| {
            let rule = rules.get(cell.rule).and_then(A::of);
            let at = rule.map_or(now, |rule| own_time(table, rule, now));
            if let Some(rule) = rule {
                cell.state = rule.after_step_back(std::mem::take(&mut cell.state), at);
            }
            match rule.map_or(Idle::Fresh(Nanos::ZERO), |rule| rule.idle(&cell.state)) {
                Idle::Fresh(from) if from <= at => expired += 1,
                Idle::Safe(from) if pressure && from <= at => early += 1,
                _ => return true,
            }
            false
        });
        table.keys.fetch_sub(expired + early, Ordering::Relaxed);
        table.forgotten.expired.fetch_add(expired, Ordering::Relaxed);
        table.forgotten.full.fetch_add(early, Ordering::Relaxed);
        if self.cells.capacity() > self.cells.len().saturating_mul(4).max(64) {
            self.cells.shrink_to(self.cells.len().saturating_mul(2), |cell| cell.key[0]);
        }
    }
}

/// Writes a cell behind `bytes`.
fn write_state<A: Algorithm>(
    [low, high]: [u64; 2],
    rule: u32,
    state: &A::State,
    bytes: &mut Vec<u8>,
) -> io::Result<()> {
    bytes.extend_from_slice(&low.to_le_bytes());
    bytes.extend_from_slice(&high.to_le_bytes());
    *bytes = postcard::to_extend(&(rule, state), std::mem::take(bytes)).map_err(io::Error::other)?;
    Ok(())
}

/// The two halves of a key; the lower one, first, is the hash.
#[expect(clippy::cast_possible_truncation, reason = "the halves are cut out")]
const fn words(key: LimitKey) -> [u64; 2] {
    [key.0 as u64, (key.0 >> 64) as u64]
}

/// The key of these halves.
fn key([low, high]: [u64; 2]) -> LimitKey {
    LimitKey(u128::from(high) << 64 | u128::from(low))
}

/// The time that `rule` goes by, where it is `now` for others.
fn own_time<A: Typed>(table: &LimitTable, rule: &A, now: Nanos) -> Nanos {
    now.shifted(rule.own_offset(table.wall_ahead()))
}

/// A state as `rule` sees it, which another rule may have written.
fn carried<A: Typed>(
    table: &LimitTable,
    rule: &A,
    number: u32,
    written_under: u32,
    state: A::State,
    now: Nanos,
) -> Option<A::State> {
    if written_under == number {
        return Some(rule.after_step_back(state, now));
    }
    let rules = table.rules.read();
    let old = rules.get(written_under).and_then(A::of);
    let (old, wall) = (old?, table.wall_ahead());
    let state = match rule.own_offset(wall).minus(old.own_offset(wall)) {
        ClockOffset::ZERO => state,
        by => old.shift(state, by),
    };
    rule.carry(old, state, now)
}

/// Puts a state in the place of its key, or leaves nothing there.
fn set<A: Algorithm>(table: &LimitTable, entry: Entry<'_, Cell<A>>, key: [u64; 2], rule: u32, state: Option<A::State>) {
    count(table, matches!(entry, Entry::Occupied(_)), state.is_some());
    match (entry, state) {
        (Entry::Occupied(mut occupied), Some(state)) => *occupied.get_mut() = Cell { key, rule, state },
        (Entry::Occupied(occupied), None) => drop(occupied.remove()),
        (Entry::Vacant(vacant), Some(state)) => drop(vacant.insert(Cell { key, rule, state })),
        (Entry::Vacant(_), None) => {}
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
        /// A table of any algorithm. The rules it is used with are of the algorithm it was made for.
        #[derive(Clone, Debug)]
        pub(super) enum Cells {
            $($Variant(Table<algorithm::$module::$Variant>),)*
        }

        impl Cells {
            pub(super) fn new(algorithm: AlgorithmName) -> Self {
                match algorithm {
                    $(AlgorithmName::$Variant => Self::$Variant(Table::new()),)*
                }
            }

            pub(super) fn charge(&mut self, table: &LimitTable, bound: BoundRule<'_>, charge: &Charge, now: Nanos, charged: &mut AllCharged) -> Result<(), Full> {
                match (self, bound.rule) {
                    $((Self::$Variant(cells), Rule::$Variant(rule)) => cells.charge(table, rule, bound.number, charge, now, charged),)*
                    #[allow(unreachable_patterns, reason = "reachable from two algorithms on")]
                    _ => unreachable!("a limit's table is found by its algorithm"),
                }
            }

            pub(super) fn state(&self, table: &LimitTable, bound: BoundRule<'_>, key: LimitKey, now: Nanos) -> Option<State> {
                match (self, bound.rule) {
                    $((Self::$Variant(cells), Rule::$Variant(rule)) => {
                        cells.state(table, rule, bound.number, key, now).map(State::$Variant)
                    })*
                    #[allow(unreachable_patterns, reason = "reachable from two algorithms on")]
                    _ => None,
                }
            }

            pub(super) fn headroom(&self, table: &LimitTable, bound: BoundRule<'_>, key: LimitKey, now: Nanos) -> Headroom {
                match (self, bound.rule) {
                    $((Self::$Variant(cells), Rule::$Variant(rule)) => cells.headroom(table, rule, bound.number, key, now),)*
                    #[allow(unreachable_patterns, reason = "reachable from two algorithms on")]
                    _ => bound.rule.headroom(None, now),
                }
            }

            pub(super) fn put(&mut self, table: &LimitTable, bound: BoundRule<'_>, key: LimitKey, state: Option<State>) {
                match (self, state) {
                    $((Self::$Variant(cells), Some(State::$Variant(state))) => cells.put(table, bound.number, key, Some(state)),)*
                    $((Self::$Variant(cells), _) => cells.put(table, bound.number, key, None),)*
                }
            }

            pub(super) fn complete(&mut self, table: &LimitTable, key: LimitKey, cost: Cost, end: Completion, now: Nanos) {
                match self {
                    $(Self::$Variant(cells) => cells.complete(table, key, cost, end, now),)*
                }
            }

            pub(super) fn has_room(&self, table: &LimitTable, key: LimitKey) -> Result<(), Full> {
                match self {
                    $(Self::$Variant(cells) => cells.has_room(table, key),)*
                }
            }

            /// Puts each cell behind `bytes`, with the times of the wall clock, and calls `then` after it.
            pub(super) fn write(self, table: &LimitTable, bytes: &mut Vec<u8>, then: impl FnMut(&mut Vec<u8>) -> io::Result<()>) -> io::Result<()> {
                match self {
                    $(Self::$Variant(cells) => cells.write(table, bytes, then),)*
                }
            }

            pub(super) fn knows(&self, key: LimitKey) -> bool {
                match self {
                    $(Self::$Variant(cells) => cells.knows(key),)*
                }
            }

            /// Takes out the cell of `key`.
            pub(super) fn take_out(&mut self, table: &LimitTable, key: LimitKey) -> Option<Loose> {
                match self {
                    $(Self::$Variant(cells) => {
                        let cell = cells.take_out(table, key)?;
                        Some(Loose { key, rule: cell.rule, state: State::$Variant(cell.state) })
                    })*
                }
            }

            /// Takes out the cells that `moves` says, and hands those on that are not as good as new.
            pub(super) fn take_moved(&mut self, table: &LimitTable, now: Nanos, moves: &dyn Fn(LimitKey) -> bool, mut taken: impl FnMut(Loose)) {
                match self {
                    $(Self::$Variant(cells) => cells.take_moved(table, now, moves, |cell| {
                        taken(Loose { key: self::key(cell.key), rule: cell.rule, state: State::$Variant(cell.state) });
                    }),)*
                }
            }

            pub(super) fn sweep(&mut self, table: &LimitTable, now: Nanos) {
                match self {
                    $(Self::$Variant(cells) => cells.sweep(table, now, table.is_full()),)*
                }
            }
        }

        /// Writes a cell behind `bytes` as [`Cells::write`] does.
        pub(super) fn write_cell(key: LimitKey, rule: u32, state: &State, bytes: &mut Vec<u8>) -> io::Result<()> {
            match state {
                $(State::$Variant(state) => write_state::<algorithm::$module::$Variant>(words(key), rule, state, bytes),)*
            }
        }

        /// A cell as [`Cells::write`] wrote it, and the bytes behind it; `None` if these are not such bytes.
        pub(super) fn read_cell(algorithm: AlgorithmName, bytes: &[u8]) -> Option<((LimitKey, u32, State), &[u8])> {
            let (key, bytes) = bytes.split_first_chunk()?;
            let key = LimitKey(u128::from_le_bytes(*key));
            match algorithm {
                $(AlgorithmName::$Variant => {
                    let ((rule, state), rest) = postcard::take_from_bytes(bytes).ok()?;
                    Some(((key, rule, State::$Variant(state)), rest))
                })*
            }
        }
    };
}
crate::for_each_algorithm!(define_cells);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::gcra::Gcra;

    #[test]
    fn a_gcra_cell_takes_32_bytes() {
        assert_eq!(size_of::<Cell<Gcra>>(), 32);
    }
}
