//! Lines that are held back, in little room and in the order in which their requests began.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::num::NonZero;

use super::reading::Spot;
use super::record::Record;
use crate::units::Nanos;

/// The most lines that are held back, whatever their times, and the most bytes that they may take.
const MOST_LINES: usize = 1 << 18;
const MOST_BYTES: usize = 256 << 20;

/// Requests that began within one stretch of this many nanoseconds, about an eighth of a second, are put in order
/// together: so few that this stays near.
const STRETCH: u64 = 1 << 27;

/// How many lines share their room.
const BLOCK: usize = 256;
/// The most blocks and stretches that are kept for their room, and the longest texts of such a block.
const MOST_SPARE: usize = 64;
const LONGEST_SPARE: usize = 64 << 10;

/// Lines that are held back.
#[derive(Default)]
pub(super) struct Held {
    /// By their numbers.
    stretches: BTreeMap<u64, Stretch>,
    /// What lines tell, in the order in which they came; a block that nobody needs any more is empty.
    blocks: VecDeque<Block>,
    /// How many lines came before those in `blocks`, and how many lines there are since.
    gone: usize,
    came: usize,
    count: usize,
    bytes: usize,
    spare_stretches: Vec<Stretch>,
    spare_blocks: Vec<Block>,
}

/// Requests that began within one stretch of time.
#[derive(Default)]
struct Stretch {
    /// Put in order when the first of them was asked for, the first one last.
    due: Vec<Reverse<Start>>,
    /// The others.
    coming: BinaryHeap<Reverse<Start>>,
}

/// When a request began, and how many lines came before its own.
type Start = (Nanos, usize);

/// What some lines tell that came one after the other.
#[derive(Default)]
struct Block {
    rows: Vec<Row>,
    /// What may be no UTF-8: clients and targets, one after the other.
    raw: Vec<u8>,
    texts: String,
    /// How many values of header fields there are.
    values: usize,
    /// How many of the lines were let go.
    done: usize,
}

/// A line, and what it tells but for texts.
struct Row {
    spot: Spot,
    logged: Nanos,
    took: Option<Nanos>,
    waited: Nanos,
    status: Option<u16>,
    request_bytes: Option<u64>,
    response_bytes: Option<u64>,
    /// Where the first text begins.
    raw_start: usize,
    text_start: usize,
    /// Of the client and the target.
    raw: [Length; 2],
    texts: [Length; 7],
    headers: Option<Box<Headers>>,
}

/// Positions of header fields in [`Wanted`](super::fields::Wanted), and how long their values are.
struct Headers {
    of_request: Vec<(usize, Length)>,
    of_response: Vec<(usize, Length)>,
}

/// The length of a text if there is one, and 1.
type Length = Option<NonZero<u32>>;

/// Texts that stand one behind the other.
struct Texts<'h>(&'h str);

// === impl Held ===

impl Held {
    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether there are more lines than may be held back.
    pub(super) const fn is_too_full(&self) -> bool {
        self.count > MOST_LINES || self.bytes > MOST_BYTES
    }

    /// Holds back what a line tells of a request that `began` at this time.
    pub(super) fn push(&mut self, began: Nanos, spot: Spot, record: &Record<'_>) {
        if self.came.is_multiple_of(BLOCK) {
            self.blocks.push_back(self.spare_blocks.pop().unwrap_or_default());
        }
        let Some(block) = self.blocks.back_mut() else { return };
        let before = block.bytes();
        block.push(spot, record);
        self.bytes = self.bytes.saturating_add(block.bytes() - before);
        let spare = &mut self.spare_stretches;
        let stretch = self.stretches.entry(began.get() / STRETCH).or_insert_with(|| spare.pop().unwrap_or_default());
        stretch.coming.push(Reverse((began, self.came)));
        self.came = self.came.wrapping_add(1);
        self.count = self.count.saturating_add(1);
    }

    /// When the first request began.
    pub(super) fn first_began(&self) -> Option<Nanos> {
        let (_, stretch) = self.stretches.first_key_value()?;
        stretch.first().map(|(began, _)| began)
    }

    /// When the first request began, where its line stands and what that tells.
    pub(super) fn first(&self) -> Option<(Nanos, Spot, Record<'_>)> {
        let (_, stretch) = self.stretches.first_key_value()?;
        let (began, line) = stretch.first()?;
        let block = self.blocks.get(self.block(line))?;
        let row = block.rows.get(line % BLOCK)?;
        Some((began, row.spot, block.record(row)?))
    }

    /// Lets go of the first request.
    pub(super) fn pop(&mut self) {
        let Some(mut stretch) = self.stretches.first_entry() else { return };
        let first = stretch.get_mut().pop();
        if stretch.get().first().is_none() {
            let over = stretch.remove();
            if self.spare_stretches.len() < MOST_SPARE {
                self.spare_stretches.push(over);
            }
        }
        if let Some((_, line)) = first {
            self.count = self.count.saturating_sub(1);
            self.let_go(line);
        }
    }

    /// Nobody needs a line any more.
    fn let_go(&mut self, line: usize) {
        let position = self.block(line);
        let Some(block) = self.blocks.get_mut(position) else { return };
        block.done += 1;
        if block.done < BLOCK {
            return;
        }
        let over = std::mem::take(block);
        self.bytes = self.bytes.saturating_sub(over.bytes());
        // stays in its place as one that is over
        block.done = BLOCK;
        if self.spare_blocks.len() < MOST_SPARE && over.raw.len() + over.texts.len() <= LONGEST_SPARE {
            self.spare_blocks.push(over.emptied());
        }
        while self.blocks.front().is_some_and(|block| block.done == BLOCK) {
            self.blocks.pop_front();
            self.gone = self.gone.wrapping_add(BLOCK);
        }
    }

    /// The position of the block of a line.
    const fn block(&self, line: usize) -> usize {
        line.wrapping_sub(self.gone) / BLOCK
    }
}

// === impl Stretch ===

impl Stretch {
    fn first(&self) -> Option<Start> {
        let (due, coming) = (self.due.last(), self.coming.peek());
        due.max(coming).map(|Reverse(start)| *start)
    }

    fn pop(&mut self) -> Option<Start> {
        if self.due.is_empty() {
            self.due.extend(self.coming.drain());
            self.due.sort_unstable();
        }
        let is_due = self.due.last() > self.coming.peek();
        if is_due { self.due.pop() } else { self.coming.pop() }.map(|Reverse(start)| start)
    }
}

// === impl Block ===

impl Block {
    fn push(&mut self, spot: Spot, record: &Record<'_>) {
        let (raw_start, text_start) = (self.raw.len(), self.texts.len());
        let mut raw = |text: &Option<Cow<'_, [u8]>>| {
            self.raw.extend_from_slice(text.as_deref().unwrap_or_default());
            length(text.as_deref().map(<[u8]>::len))
        };
        let raw = [raw(&record.client), raw(&record.target)];
        let mut text = |text: Option<&str>| {
            self.texts.push_str(text.unwrap_or_default());
            length(text.map(str::len))
        };
        let Record { method, host, customer, plan, node, answered, decision, .. } = record;
        let texts = [method, host, customer, plan, node, answered, decision].map(|told| text(told.as_deref()));
        let mut values = |values: &[(usize, Cow<'_, str>)]| {
            values.iter().map(|(position, value)| (*position, text(Some(value)))).collect()
        };
        let has_headers = !record.headers.is_empty() || !record.response_headers.is_empty();
        let headers = has_headers.then(|| {
            let (of_request, of_response) = (values(&record.headers), values(&record.response_headers));
            Box::new(Headers { of_request, of_response })
        });
        self.values += record.headers.len() + record.response_headers.len();
        let Record { logged, took, waited, status, request_bytes, response_bytes, .. } = *record;
        self.rows.push(Row {
            spot,
            logged,
            took,
            waited,
            status,
            request_bytes,
            response_bytes,
            raw_start,
            text_start,
            raw,
            texts,
            headers,
        });
    }

    fn record(&self, row: &Row) -> Option<Record<'_>> {
        let mut raw = self.raw.get(row.raw_start..)?;
        let mut raw = |length: Length| {
            let (text, rest) = raw.split_at_checked(read(length?)?)?;
            raw = rest;
            Some(Cow::Borrowed(text))
        };
        let [client, target] = row.raw;
        let mut texts = Texts(self.texts.get(row.text_start..)?);
        let [method, host, customer, plan, node, answered, decision] = row.texts;
        Some(Record {
            logged: row.logged,
            took: row.took,
            waited: row.waited,
            client: raw(client),
            method: texts.next(method),
            target: raw(target),
            host: texts.next(host),
            status: row.status,
            request_bytes: row.request_bytes,
            response_bytes: row.response_bytes,
            customer: texts.next(customer),
            plan: texts.next(plan),
            node: texts.next(node),
            answered: texts.next(answered),
            decision: texts.next(decision),
            headers: row.headers.as_ref().map(|headers| texts.values(&headers.of_request)).unwrap_or_default(),
            response_headers: row
                .headers
                .as_ref()
                .map(|headers| texts.values(&headers.of_response))
                .unwrap_or_default(),
        })
    }

    /// How many bytes it takes.
    const fn bytes(&self) -> usize {
        let values = self.values * size_of::<(usize, Length)>();
        self.rows.len() * size_of::<Row>() + self.raw.len() + self.texts.len() + values
    }

    fn emptied(mut self) -> Self {
        self.rows.clear();
        self.raw.clear();
        self.texts.clear();
        (self.values, self.done) = (0, 0);
        self
    }
}

// === impl Length ===

fn length(length: Option<usize>) -> Length {
    u32::try_from(length?).ok()?.checked_add(1).and_then(NonZero::new)
}

fn read(length: NonZero<u32>) -> Option<usize> {
    usize::try_from(length.get() - 1).ok()
}

// === impl Texts ===

impl<'h> Texts<'h> {
    fn next(&mut self, length: Length) -> Option<Cow<'h, str>> {
        let (text, rest) = self.0.split_at_checked(read(length?)?)?;
        self.0 = rest;
        Some(Cow::Borrowed(text))
    }

    fn values(&mut self, lengths: &[(usize, Length)]) -> Vec<(usize, Cow<'h, str>)> {
        lengths.iter().filter_map(|(position, length)| Some((*position, self.next(*length)?))).collect()
    }
}

#[cfg(test)]
mod tests;
