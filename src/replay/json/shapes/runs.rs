//! Values that are those of an earlier line, together with what stands in front of each.

use std::ops::Range;
use std::rc::Rc;

use super::{Shapes, Slots, Value, Word};

/// The longest value that is kept to be compared with, together with what stands in front of it; and the longest run.
const LONGEST_VALUE: usize = 256;
const LONGEST_RUN: usize = 512;

/// Values that came one after the other.
#[derive(Debug, Default)]
pub(super) struct Run {
    /// The text in front of the first value, then all up to the byte behind the last one; nothing if there is none to
    /// compare with.
    bytes: Vec<u8>,
    /// The values that tell something, and what.
    told: Vec<(Slots, Known)>,
    /// The piece of the last value.
    last: usize,
    /// How often there was the same, and how often something else.
    hits: u64,
    misses: u64,
}

/// A value that was seen.
#[derive(Clone, Debug)]
pub(super) enum Known {
    /// Where a string stands that is plain.
    Plain(Range<usize>),
    Word(Word),
}

impl Run {
    /// The values that tell something, and what.
    pub(super) fn told(&self) -> &[(Slots, Known)] {
        &self.told
    }

    /// The piece of the last value.
    pub(super) const fn last(&self) -> usize {
        self.last
    }

    /// What stands behind the values, if `text` begins with them.
    pub(super) fn behind<'l>(&mut self, text: &'l [u8]) -> Option<&'l [u8]> {
        if self.bytes.is_empty() || !text.starts_with(&self.bytes) {
            return None;
        }
        self.hits = self.hits.wrapping_add(1);
        text.get(self.bytes.len() - 1..)
    }

    /// There is something else. Tells whether that is worth keeping: not where it hardly ever was.
    pub(super) fn misses(&mut self) -> bool {
        const TRIES: u64 = 64;
        self.misses = self.misses.wrapping_add(1);
        self.bytes.clear();
        self.misses < TRIES || self.misses < self.hits
    }

    /// Keeps the one value that is there now, of this `piece`, which stands in `bytes` from `start` on.
    #[inline(never)] // values that are kept hardly ever change
    pub(super) fn keep(&mut self, piece: usize, slots: &Slots, bytes: &[u8], start: usize, value: &Value<'_>) {
        if bytes.len() > LONGEST_VALUE {
            return;
        }
        self.told.clear();
        if !slots.is_empty() {
            let known = match value {
                Value::Plain(text) => Known::Plain(start..start + text.len()),
                Value::Word(word) => Known::Word(*word),
                // what it tells does not stand in the line
                Value::Text(_) => return,
            };
            self.told.push((Rc::clone(slots), known));
        }
        self.bytes.extend_from_slice(bytes);
        self.last = piece;
    }

    /// Whether it is hardly ever something else.
    const fn is_steady(&self) -> bool {
        self.hits / 32 >= self.misses
    }
}

impl Known {
    /// The value, where it stands in a line that goes on with `text`, as the run does.
    #[inline]
    pub(super) fn within<'l>(&self, text: &'l [u8]) -> Option<Value<'l>> {
        match self {
            Self::Plain(place) => text.get(place.clone()).map(Value::Plain),
            Self::Word(word) => Some(Value::Word(*word)),
        }
    }
}

impl Shapes {
    /// Makes one of two runs that begin with these pieces, the second behind the first; `false` where it may not last.
    #[inline(never)] // once it is done, there is one
    pub(super) fn join(&mut self, first: usize, second: usize) -> bool {
        self.try_join(first, second).is_some()
    }

    fn try_join(&mut self, first: usize, second: usize) -> Option<()> {
        let is_only_way = self.pieces.get(self.pieces.get(first)?.run.last)?.next.len() == 1;
        let [first, second] = self.pieces.get_disjoint_mut([first, second]).ok()?;
        let (run, behind) = (&mut first.run, &second.run);
        if !is_only_way || !behind.is_steady() || run.bytes.len() + behind.bytes.len() > LONGEST_RUN {
            return None;
        }
        // the byte behind the first is where the second begins
        run.bytes.pop();
        let shift = run.bytes.len();
        run.bytes.extend_from_slice(&behind.bytes);
        run.told.extend(behind.told.iter().map(|(slots, value)| {
            let value = match value {
                Known::Plain(place) => Known::Plain(place.start + shift..place.end + shift),
                Known::Word(word) => Known::Word(*word),
            };
            (Rc::clone(slots), value)
        }));
        run.last = behind.last;
        Some(())
    }
}
