//! Lines that are held back, in little room and in the order in which their requests began.

pub(super) mod packed;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use self::packed::Packed;
use super::reading::Spot;
use super::record::Record;
use crate::units::Nanos;

/// The most lines that are held back, whatever their times, and the most bytes that they may take.
pub(super) const MOST_LINES: usize = 1 << 18;
pub(super) const MOST_BYTES: usize = 256 << 20;

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

/// The stretch whose requests are the next.
struct Due {
    number: u64,
    stretch: Stretch,
    /// The first of its requests.
    first: Start,
}

/// Requests that began within one stretch of time.
#[derive(Default)]
struct Stretch {
    /// What the lines tell, as they came.
    told: Packed,
    starts: Vec<Start>,
    /// Whether these are in order, and how many of them are gone.
    is_in_order: bool,
    gone: usize,
    /// Those that came since.
    late: BinaryHeap<Reverse<Start>>,
}

/// When a request began since its stretch did, and behind that, in the lower bits, where stands what its line tells: in the
/// order of these numbers requests began, and lines came whose requests began at once.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Start(u64);

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
        if let Some(after) = self.due.take_if(|due| number < due.number) {
            self.coming.insert(after.number, after.stretch);
        }
        let bytes = match &mut self.due {
            Some(due) if number == due.number => {
                let (start, bytes) = due.stretch.push(began, spot, record);
                due.first = due.first.min(start);
                bytes
            }
            _ => {
                let spare = &mut self.spare;
                let stretch = self.coming.entry(number).or_insert_with(|| spare.pop().unwrap_or_default());
                let (_, bytes) = stretch.push(began, spot, record);
                bytes
            }
        };
        self.count = self.count.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.due.is_none() {
            self.go_on();
        }
    }

    /// When the first request began.
    pub(super) fn first_began(&self) -> Option<Nanos> {
        self.due.as_ref().map(|due| due.first.began(due.number))
    }

    /// Where the line of the first request stands and what it tells.
    pub(super) fn first(&self) -> Option<(Spot, Record<'_>)> {
        let due = self.due.as_ref()?;
        due.stretch.told.at(due.first.at(), due.first.began(due.number))
    }

    /// Lets go of the first request. What its line takes is free again with the rest of its stretch.
    pub(super) fn pop(&mut self) {
        let Some(due) = &mut self.due else { return };
        self.count = self.count.saturating_sub(1);
        due.stretch.pop(due.first);
        match due.stretch.first() {
            Some(first) => due.first = first,
            None => self.go_on(),
        }
    }

    /// Goes on to the next stretch.
    fn go_on(&mut self) {
        let next = self.coming.pop_first().and_then(|(number, mut stretch)| {
            stretch.put_in_order();
            stretch.told.bring_near();
            stretch.first().map(|first| Due { number, stretch, first })
        });
        let Some(Due { stretch: mut over, .. }) = std::mem::replace(&mut self.due, next) else { return };
        self.bytes = self.bytes.saturating_sub(over.bytes());
        if self.spare.len() < MOST_SPARE && over.bytes() <= LONGEST_SPARE {
            over.clear();
            self.spare.push(over);
        }
    }
}

// === impl Stretch ===

impl Stretch {
    /// Gives how many bytes that takes, too.
    fn push(&mut self, began: Nanos, spot: Spot, record: &Record<'_>) -> (Start, usize) {
        let before = self.bytes();
        let start = Start::new(began, self.told.push(began, spot, record));
        match self.is_in_order {
            true => self.late.push(Reverse(start)),
            false => self.starts.push(start),
        }
        (start, self.bytes() - before)
    }

    fn put_in_order(&mut self) {
        if !self.is_in_order {
            self.starts.sort_unstable();
            self.is_in_order = true;
        }
    }

    fn first(&self) -> Option<Start> {
        let late = self.late.peek().map(|Reverse(late)| *late);
        self.starts.get(self.gone).copied().into_iter().chain(late).min()
    }

    /// Lets go of the `first` request.
    fn pop(&mut self, first: Start) {
        match self.late.peek() {
            Some(Reverse(late)) if *late == first => drop(self.late.pop()),
            _ => self.gone += 1,
        }
    }

    fn bytes(&self) -> usize {
        size_of_val(self.starts.as_slice()) + self.told.bytes()
    }

    fn clear(&mut self) {
        self.told.clear();
        self.starts.clear();
        self.late.clear();
        (self.is_in_order, self.gone) = (false, 0);
    }
}

// === impl Start ===

impl Start {
    /// What a stretch takes is far less than these bits can tell.
    const AT_BITS: u32 = u64::BITS - STRETCH_BITS;

    fn new(began: Nanos, at: usize) -> Self {
        Self((began.get() % STRETCH) << Self::AT_BITS | at as u64)
    }

    /// When the request began, in the stretch with this `number`.
    const fn began(self, number: u64) -> Nanos {
        Nanos::new(number * STRETCH + (self.0 >> Self::AT_BITS))
    }

    /// Where stands what its line tells.
    const fn at(self) -> usize {
        (self.0 & ((1 << Self::AT_BITS) - 1)) as usize
    }
}

#[cfg(test)]
mod tests;
