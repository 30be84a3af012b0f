//! Lines that are held back, in little room and in the order in which their requests began.

mod packed;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use self::packed::Packed;
use super::reading::Spot;
use super::record::Record;
use crate::units::Nanos;

/// The most lines that are held back, whatever their times, and the most bytes that they may take.
const MOST_LINES: usize = 1 << 18;
const MOST_BYTES: usize = 256 << 20;

/// Requests that began within one stretch of this many nanoseconds, about an eighth of a second, are put in order
/// together: so few that this stays near.
const STRETCH: u64 = 1 << STRETCH_BITS;
const STRETCH_BITS: u32 = 27;

/// The most stretches that are kept for their room, and the longest texts of such a one.
const MOST_SPARE: usize = 8;
const LONGEST_SPARE: usize = 4 << 20;

/// Lines that are held back.
#[derive(Default)]
pub(super) struct Held {
    /// The stretch with the first request; if there is none, no line is held back.
    due: Option<Due>,
    /// Those after it, by their numbers.
    coming: BTreeMap<u64, Stretch>,
    count: usize,
    bytes: usize,
    spare: Vec<Stretch>,
}

/// Requests that began within one stretch of time, as their lines came.
#[derive(Default)]
struct Stretch {
    starts: Vec<Start>,
    told: Packed,
}

/// When a request began since its stretch did, and behind that, in the lower bits, where stands what its line tells: in the
/// order of these numbers requests began, and lines came whose requests began at once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Start(u64);

/// The stretch whose requests are shown.
struct Due {
    number: u64,
    /// In order.
    stretch: Stretch,
    /// How many of these are gone.
    gone: usize,
    /// Those that came since, which may have begun before the stretch.
    late: BinaryHeap<Reverse<(Nanos, usize)>>,
    /// The first of all that are left, and where stands what its line tells.
    first: (Nanos, usize),
}

// === impl Held ===

impl Held {
    pub(super) const fn is_empty(&self) -> bool {
        self.due.is_none()
    }

    /// Whether there are more lines than may be held back.
    pub(super) const fn is_too_full(&self) -> bool {
        self.count > MOST_LINES || self.bytes > MOST_BYTES
    }

    /// Holds back what a line tells of a request that `began` at this time.
    pub(super) fn push(&mut self, began: Nanos, spot: Spot, record: &Record<'_>) {
        let number = began.get() / STRETCH;
        self.count = self.count.saturating_add(1);
        let added = match &mut self.due {
            Some(due) if number <= due.number => due.push(began, spot, record),
            _ => {
                let spare = &mut self.spare;
                let stretch = self.coming.entry(number).or_insert_with(|| spare.pop().unwrap_or_default());
                stretch.push(began, spot, record)
            }
        };
        self.bytes = self.bytes.saturating_add(added);
        if self.due.is_none() {
            self.due = self.coming.pop_first().and_then(|(number, stretch)| Due::new(number, stretch));
        }
    }

    /// When the first request began.
    pub(super) fn first_began(&self) -> Option<Nanos> {
        self.due.as_ref().map(|due| due.first.0)
    }

    /// When the first request began, where its line stands and what that tells.
    pub(super) fn first(&self) -> Option<(Nanos, Spot, Record<'_>)> {
        let due = self.due.as_ref()?;
        let (began, at) = due.first;
        let (spot, record) = due.stretch.told.at(at)?;
        Some((began, spot, record))
    }

    /// Lets go of the first request. What its line takes is free again with the rest of its stretch.
    pub(super) fn pop(&mut self) {
        let Some(due) = &mut self.due else { return };
        self.count = self.count.saturating_sub(1);
        if due.pop() {
            return;
        }
        let next = self.coming.pop_first().and_then(|(number, stretch)| Due::new(number, stretch));
        if let Some(mut over) = std::mem::replace(&mut self.due, next) {
            self.bytes = self.bytes.saturating_sub(over.stretch.bytes());
            if self.spare.len() < MOST_SPARE && over.stretch.bytes() <= LONGEST_SPARE {
                over.stretch.clear();
                self.spare.push(over.stretch);
            }
        }
    }
}

// === impl Stretch ===

impl Stretch {
    /// Gives how many bytes that takes.
    fn push(&mut self, began: Nanos, spot: Spot, record: &Record<'_>) -> usize {
        let before = self.bytes();
        self.starts.push(Start::new(began, self.told.push(spot, record)));
        self.bytes() - before
    }

    fn bytes(&self) -> usize {
        size_of_val(self.starts.as_slice()) + self.told.bytes()
    }

    fn clear(&mut self) {
        self.starts.clear();
        self.told.clear();
    }
}

// === impl Due ===

impl Due {
    /// Puts the requests of a stretch in order; `None` if there are none.
    fn new(number: u64, mut stretch: Stretch) -> Option<Self> {
        stretch.starts.sort_unstable();
        let first = stretch.starts.first()?.of(number);
        Some(Self { number, stretch, gone: 0, late: BinaryHeap::new(), first })
    }

    /// Gives how many bytes that takes.
    fn push(&mut self, began: Nanos, spot: Spot, record: &Record<'_>) -> usize {
        let told = &mut self.stretch.told;
        let before = told.bytes();
        let start = (began, told.push(spot, record));
        self.late.push(Reverse(start));
        self.first = self.first.min(start);
        self.stretch.told.bytes() - before
    }

    /// Lets go of the first request; `false` if no other is left.
    fn pop(&mut self) -> bool {
        match self.late.peek() {
            Some(Reverse(late)) if *late == self.first => drop(self.late.pop()),
            _ => self.gone += 1,
        }
        let due = self.stretch.starts.get(self.gone).map(|start| start.of(self.number));
        let late = self.late.peek().map(|Reverse(late)| *late);
        match due.into_iter().chain(late).min() {
            Some(first) => self.first = first,
            None => return false,
        }
        true
    }
}

// === impl Start ===

impl Start {
    /// What a stretch takes is far less than these bits can tell.
    const AT_BITS: u32 = u64::BITS - STRETCH_BITS;

    fn new(began: Nanos, at: usize) -> Self {
        Self((began.get() % STRETCH) << Self::AT_BITS | at as u64)
    }

    /// When the request of a stretch with this `number` began, and where stands what its line tells.
    const fn of(self, number: u64) -> (Nanos, usize) {
        let began = number * STRETCH + (self.0 >> Self::AT_BITS);
        (Nanos::new(began), (self.0 & ((1 << Self::AT_BITS) - 1)) as usize)
    }
}

#[cfg(test)]
mod tests;
