//! The cells of one shard of one limit: three to a bucket, which for small states is one line of the processor's cache,
//! so that most look-ups read one line of memory.
//!
//! A cell is in the first bucket, from its home on, that had room. So a look-up goes from the key's home to the first
//! bucket with room in it, and no further; and the removal of a cell from a full bucket has to place the cells again
//! that went past it. When nine tenths of the places are taken, at most an eighth of the buckets is added: the memory
//! per key hardly depends on the number of keys.

use std::collections::HashMap;

/// The number of cells in a bucket.
const CELLS: usize = 3;
/// The number of bits in a bucket's word for the parameters of one cell.
const NUMBER_BITS: u32 = 10;
/// Marks a cell whose number of parameters is in `aside`, as this number and all larger ones are.
const ASIDE: u32 = (1 << NUMBER_BITS) - 1;

/// A key's fingerprint, the number of the parameters that its state was written under, and its state.
#[derive(Clone, Debug)]
pub(super) struct Cell<S> {
    pub(super) key: u64,
    pub(super) rule: u32,
    pub(super) state: S,
}

/// Cells by their keys.
#[derive(Clone, Debug)]
pub(super) struct Buckets<S> {
    buckets: Box<[Bucket<S>]>,
    cells: usize,
    /// The numbers of parameters that are too large for buckets, by key.
    #[expect(clippy::box_collection, reason = "tables lie beside their locks, and hardly any has such numbers")]
    aside: Option<Box<HashMap<u64, u32>>>,
}

/// Three cells. The ones in front are taken.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct Bucket<S> {
    /// The number of taken cells, in the lowest bits, and above them the number of each cell's parameters.
    word: u32,
    /// The two halves of each key: a number of 8 bytes would need an alignment of 8.
    keys: [[u32; 2]; CELLS],
    states: [S; CELLS],
}

/// The place of a cell. It is valid until a cell is inserted or removed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    bucket: usize,
    cell: usize,
}

impl<S> Default for Buckets<S> {
    fn default() -> Self {
        Self { buckets: Box::default(), cells: 0, aside: None }
    }
}

impl<S: Default> Buckets<S> {
    #[inline]
    pub(super) fn find(&self, key: u64) -> Option<Place> {
        let wanted = halves(key);
        let mut at = self.home(key);
        loop {
            let bucket = self.buckets.get(at)?;
            let taken = bucket.taken();
            let is_it = |cell: &usize| bucket.keys[*cell] == wanted && *cell < taken;
            if let Some(cell) = (0..CELLS).find(is_it) {
                return Some(Place { bucket: at, cell });
            }
            if taken < CELLS {
                return None;
            }
            at = self.after(at);
        }
    }

    /// The number of the parameters that a cell was written under, and its state.
    pub(super) fn get(&self, place: Place) -> (u32, &S) {
        let bucket = &self.buckets[place.bucket];
        (self.number(bucket, place.cell), &bucket.states[place.cell])
    }

    /// The same as `get`, but moves the state out and leaves the default in its place.
    pub(super) fn take_state(&mut self, place: Place) -> (u32, S) {
        let number = self.number(&self.buckets[place.bucket], place.cell);
        (number, std::mem::take(&mut self.buckets[place.bucket].states[place.cell]))
    }

    /// Writes another state, and the number of the parameters that it is written under.
    pub(super) fn set(&mut self, place: Place, rule: u32, state: S) {
        let bucket = &mut self.buckets[place.bucket];
        let before = bucket.number(place.cell);
        bucket.states[place.cell] = state;
        if before != rule || rule >= ASIDE {
            let key = joined(bucket.keys[place.cell]);
            bucket.set_number(place.cell, rule.min(ASIDE));
            self.note_aside(key, before, rule);
        }
    }

    /// Inserts a cell of a key that has none.
    pub(super) fn insert(&mut self, cell: Cell<S>) {
        let places = self.buckets.len().saturating_mul(CELLS);
        if self.cells.saturating_add(1).saturating_mul(10) > places.saturating_mul(9) {
            self.resize(self.larger_count(cell.key));
        }
        self.note_aside(cell.key, 0, cell.rule);
        self.put(Cell { rule: cell.rule.min(ASIDE), ..cell });
    }

    /// Removes a cell.
    pub(super) fn remove(&mut self, place: Place) -> Cell<S> {
        let was_full = self.buckets[place.bucket].taken() == CELLS;
        let taken = self.buckets[place.bucket].take_out(place.cell);
        self.cells = self.cells.saturating_sub(1);
        let (mut at, mut goes_on) = (place.bucket, was_full);
        while goes_on {
            at = self.after(at);
            goes_on = self.buckets[at].taken() == CELLS;
            self.take_bucket(at).for_each(|cell| self.put(cell));
        }
        self.with_own_number(taken)
    }

    /// Removes the cells for which `leaves` returns true (given key, number of parameters, state); passes them to `taken`.
    pub(super) fn take_out_if(
        &mut self,
        mut leaves: impl FnMut(u64, u32, &mut S) -> bool,
        mut taken: impl FnMut(Cell<S>),
    ) {
        // no cell went past a bucket with room: from there on, only cells removed by this loop change the places of others
        let first = self.buckets.iter().position(|bucket| bucket.taken() < CELLS).unwrap_or_default();
        let (mut at, mut has_gap) = (first, false);
        for _ in 0..self.buckets.len() {
            at = self.after(at);
            let was_full = self.buckets[at].taken() == CELLS;
            let mut some_left = false;
            for cell in (0..self.buckets[at].taken()).rev() {
                let (key, number) = (joined(self.buckets[at].keys[cell]), self.number(&self.buckets[at], cell));
                if leaves(key, number, &mut self.buckets[at].states[cell]) {
                    let cell = self.buckets[at].take_out(cell);
                    self.cells = self.cells.saturating_sub(1);
                    taken(self.with_own_number(cell));
                    some_left = true;
                }
            }
            if has_gap {
                self.take_bucket(at).for_each(|cell| self.put(cell));
            }
            has_gap = was_full && (has_gap || some_left);
        }
        // shrinks so that three quarters are taken, when less than half is
        if self.cells.saturating_mul(2) < self.buckets.len().saturating_mul(CELLS) {
            self.resize(self.cells.saturating_mul(4).div_ceil(CELLS * 3));
        }
    }

    pub(super) fn into_cells(mut self) -> impl Iterator<Item = Cell<S>> {
        let buckets = std::mem::take(&mut self.buckets);
        buckets.into_iter().flat_map(Bucket::into_cells).map(move |cell| self.with_own_number(cell))
    }

    fn home(&self, key: u64) -> usize {
        // spreads keys that begin with the same bits, as those of one customer or one shard do
        let spread = u128::from(key.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        usize::try_from((spread * self.buckets.len() as u128) >> 64).unwrap_or_default()
    }

    fn after(&self, at: usize) -> usize {
        let next = at.wrapping_add(1);
        if next < self.buckets.len() { next } else { 0 }
    }

    /// Puts a cell, whose number fits into a bucket, into the first bucket that has room. The caller ensures that there
    /// is one.
    fn put(&mut self, cell: Cell<S>) {
        let mut at = self.home(cell.key);
        while self.buckets[at].taken() == CELLS {
            at = self.after(at);
        }
        self.buckets[at].put(cell);
        self.cells = self.cells.saturating_add(1);
    }

    /// Removes the cells of one bucket, with the numbers that the bucket has.
    fn take_bucket(&mut self, at: usize) -> impl Iterator<Item = Cell<S>> + use<S> {
        let bucket = std::mem::take(&mut self.buckets[at]);
        self.cells = self.cells.saturating_sub(bucket.taken());
        bucket.into_cells()
    }

    /// A sixteenth to an eighth more buckets; the key chooses the number in between. So tables that fill at the same
    /// rate, as a limit's shards do, grow at different times, and one can use the memory that another frees.
    fn larger_count(&self, key: u64) -> usize {
        let sixteenth = self.buckets.len() / 16;
        let some = usize::try_from(key).unwrap_or_default() % sixteenth.saturating_add(1);
        self.buckets.len().saturating_add(sixteenth).saturating_add(some).saturating_add(1)
    }

    fn resize(&mut self, buckets: usize) {
        let empty = std::iter::repeat_with(Bucket::default).take(buckets).collect();
        self.cells = 0;
        let before = std::mem::replace(&mut self.buckets, empty);
        before.into_iter().flat_map(Bucket::into_cells).for_each(|cell| self.put(cell));
    }

    fn number(&self, bucket: &Bucket<S>, cell: usize) -> u32 {
        match bucket.number(cell) {
            ASIDE => self.number_aside(joined(bucket.keys[cell])),
            number => number,
        }
    }

    fn number_aside(&self, key: u64) -> u32 {
        self.aside.as_ref().and_then(|aside| aside.get(&key).copied()).unwrap_or(ASIDE)
    }

    /// Keeps the number of a key in `aside` if it does not fit into a bucket; the bucket had the number `before`.
    fn note_aside(&mut self, key: u64, before: u32, rule: u32) {
        if rule >= ASIDE {
            self.aside.get_or_insert_default().insert(key, rule);
        } else if before == ASIDE
            && let Some(aside) = &mut self.aside
        {
            aside.remove(&key);
        }
    }

    /// Completes a removed cell with its own number, which leaves `aside`.
    fn with_own_number(&mut self, cell: Cell<S>) -> Cell<S> {
        let own = (cell.rule == ASIDE).then(|| self.aside.as_mut()?.remove(&cell.key)).flatten();
        Cell { rule: own.unwrap_or(cell.rule), ..cell }
    }
}

impl<S: Default> Bucket<S> {
    const fn taken(&self) -> usize {
        (self.word & 3) as usize
    }

    const fn shift(cell: usize) -> u32 {
        2 + NUMBER_BITS * cell as u32
    }

    const fn number(&self, cell: usize) -> u32 {
        (self.word >> Self::shift(cell)) & ASIDE
    }

    const fn set_number(&mut self, cell: usize, number: u32) {
        let shift = Self::shift(cell);
        self.word = self.word & !(ASIDE << shift) | number << shift;
    }

    /// Adds a cell; the bucket must have room.
    fn put(&mut self, cell: Cell<S>) {
        let at = self.taken();
        self.keys[at] = halves(cell.key);
        self.states[at] = cell.state;
        self.set_number(at, cell.rule);
        self.word += 1;
    }

    /// Removes a cell; the last one takes its place.
    fn take_out(&mut self, cell: usize) -> Cell<S> {
        let last = self.taken().saturating_sub(1);
        let (key, rule) = (joined(self.keys[cell]), self.number(cell));
        self.states.swap(cell, last);
        self.keys[cell] = self.keys[last];
        self.set_number(cell, self.number(last));
        self.word -= 1;
        Cell { key, rule, state: std::mem::take(&mut self.states[last]) }
    }

    fn into_cells(self) -> impl Iterator<Item = Cell<S>> {
        let (taken, numbers) = (self.taken(), [0, 1, 2].map(|cell| self.number(cell)));
        let cells = self.states.into_iter().zip(self.keys).zip(numbers);
        cells.map(|((state, key), rule)| Cell { key: joined(key), rule, state }).take(taken)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the halves are cut out")]
const fn halves(key: u64) -> [u32; 2] {
    [(key >> 32) as u32, key as u32]
}

const fn joined([high, low]: [u32; 2]) -> u64 {
    (high as u64) << 32 | low as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::units::FineTime;

    #[test]
    fn a_bucket_of_small_states_is_one_line_of_the_cache() {
        assert_eq!(size_of::<Bucket<FineTime>>(), 64);
    }

    #[test]
    fn a_key_takes_at_most_27_bytes_however_many_there_are() {
        let mut buckets = Buckets::<FineTime>::default();
        for key in 1..20_000_u64 {
            buckets.insert(Cell { key, rule: 0, state: FineTime::default() });
            let bytes = buckets.buckets.len() * 64;
            assert!(key < 500 || bytes <= 27 * usize::try_from(key).unwrap(), "{key}: {bytes}");
        }
    }

    proptest! {
        /// A few keys with few homes, so that buckets overflow, and numbers that fit into buckets as well as larger ones.
        #[test]
        fn buckets_are_a_map(steps in prop::collection::vec((0..90_u64, 1020..1026_u32, 0..8_u8), 1..600)) {
            let (mut buckets, mut map) = (Buckets::<u32>::default(), HashMap::new());
            for (step, (key, rule, what)) in (0..).zip(steps) {
                match (what, buckets.find(key)) {
                    (0, _) => {
                        let keeps = |key: u64| key % 3 != step % 3;
                        let mut left: Vec<(u64, u32)> = map.extract_if(|known, _| !keeps(*known)).map(|(key, (rule, _))| (key, rule)).collect();
                        let mut taken = Vec::new();
                        buckets.take_out_if(|key, _, _| !keeps(key), |cell| taken.push((cell.key, cell.rule)));
                        left.sort_unstable();
                        taken.sort_unstable();
                        prop_assert_eq!(taken, left);
                    }
                    (1 | 2, Some(place)) => {
                        let cell = buckets.remove(place);
                        prop_assert_eq!(map.remove(&key), Some((cell.rule, cell.state)));
                    }
                    (_, Some(place)) => {
                        buckets.set(place, rule, rule);
                        map.insert(key, (rule, rule));
                    }
                    (_, None) => {
                        buckets.insert(Cell { key, rule, state: rule });
                        map.insert(key, (rule, rule));
                    }
                }
                let found = |key| buckets.find(key).map(|place| buckets.get(place)).map(|(rule, state)| (rule, *state));
                for key in if what < 3 { 0..90 } else { key..key + 1 } {
                    prop_assert_eq!(found(key), map.get(&key).copied());
                }
                let aside = map.values().filter(|(rule, _)| *rule >= ASIDE).count();
                prop_assert_eq!(buckets.aside.as_ref().map_or(0, |aside| aside.len()), aside);
            }
            let cells: HashMap<u64, (u32, u32)> = buckets.into_cells().map(|cell| (cell.key, (cell.rule, cell.state))).collect();
            prop_assert_eq!(cells, map);
        }
    }
}
