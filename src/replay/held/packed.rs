//! What lines tell, in little room: one after the other as bytes, and of each only what it tells and an earlier one did not.

use std::borrow::Cow;
use std::ops::Range;

use crate::replay::reading::Spot;
use crate::replay::record::{self, Record};
use crate::units::Nanos;

/// What some lines tell.
#[derive(Default)]
pub(in crate::replay) struct Packed {
    bytes: Vec<u8>,
    usual: [Usual; USUAL],
}

/// Where a text stands that most lines tell alike: where the first line did.
type Usual = Option<Range<usize>>;

/// How many of those there are: host, method, customer, plan, node, and why a gateway answered.
const USUAL: usize = 6;

/// Writes what a line tells: bits for what is there, and how, then all that is there.
struct Writer<'p> {
    to: &'p mut Vec<u8>,
    bits: Bits,
    /// That of what is written next.
    bit: Bits,
}

/// Reads in the order in which it was written.
struct Reader<'p> {
    all: &'p [u8],
    from: &'p [u8],
    /// The lowest is that of what is read next.
    bits: Bits,
}

type Bits = u32;

// === impl Packed ===

impl Packed {
    /// Adds what a line tells of a request that `began` at this time, and gives its place.
    pub(in crate::replay) fn push(&mut self, began: Nanos, spot: Spot, record: &Record<'_>) -> usize {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&Bits::MIN.to_le_bytes());
        let mut to = Writer { to: &mut self.bytes, bits: 0, bit: 1 };
        to.plain_number(spot.log as u64);
        to.plain_eight(spot.line);
        to.time(record.took);
        to.time((record.logged != ended(began, record.took)).then_some(record.logged));
        to.time((record.waited > Nanos::ZERO).then_some(record.waited));
        to.number(record.within_second.map(Nanos::get));
        to.number(record.status.map(u64::from));
        to.number(record.request_bytes);
        to.number(record.response_bytes);
        to.bytes(record.client.as_deref());
        to.bytes(record.target.as_deref());
        let Record { host, method, customer, plan, node, answered, .. } = record;
        let texts = [method, customer, plan, node, answered].map(|text| text.as_deref().map(str::as_bytes));
        let [method, customer, plan, node, answered] = texts;
        let texts = [host.as_deref(), method, customer, plan, node, answered];
        for (text, usual) in texts.into_iter().zip(&mut self.usual) {
            to.bytes_or_usual(text, usual);
        }
        to.number(record.was_exempt.map(u64::from));
        to.values(&record.headers);
        to.values(&record.response_headers);
        let bits = to.bits.to_le_bytes();
        if let Some(room) = self.bytes.get_mut(at..).and_then(|told| told.first_chunk_mut()) {
            *room = bits;
        }
        at
    }

    /// What the line tells whose place is `at`, of a request that `began` at this time.
    pub(in crate::replay) fn at(&self, at: usize, began: Nanos) -> Option<(Spot, Record<'_>)> {
        let (bits, from) = self.bytes.get(at..)?.split_first_chunk()?;
        let mut from = Reader { all: &self.bytes, from, bits: Bits::from_le_bytes(*bits) };
        let spot = Spot { log: from.plain_length()?, line: from.plain_eight()? };
        let [of_host, of_method, of_customer, of_plan, of_node, of_answered] = &self.usual;
        let took = from.time();
        let record = Record {
            took,
            logged: from.time().unwrap_or_else(|| ended(began, took)),
            waited: from.time().unwrap_or_default(),
            within_second: from.number().map(Nanos::new),
            status: from.number().and_then(|status| u16::try_from(status).ok()),
            request_bytes: from.number(),
            response_bytes: from.number(),
            client: from.bytes().map(Cow::Borrowed),
            target: from.bytes().map(Cow::Borrowed),
            host: from.bytes_or_usual(of_host).map(Cow::Borrowed),
            method: from.bytes_or_usual(of_method).map(record::method),
            customer: from.text(of_customer),
            plan: from.text(of_plan),
            node: from.text(of_node),
            answered: from.text(of_answered),
            was_exempt: from.number().map(|was| was != 0),
            headers: from.values(),
            response_headers: from.values(),
        };
        Some((spot, record))
    }

    /// Brings near what was put here long ago: looks at every line of the cache, one after the other.
    pub(in crate::replay) fn bring_near(&self) {
        const CACHE_LINE: usize = 64;
        std::hint::black_box(self.bytes.iter().step_by(CACHE_LINE).fold(0, |all, byte| all ^ byte));
    }

    /// How many bytes it takes.
    pub(in crate::replay) const fn bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(in crate::replay) fn clear(&mut self) {
        self.bytes.clear();
        self.usual = Default::default();
    }
}

/// When a request ended, as far as that follows from when it `began`.
fn ended(began: Nanos, took: Option<Nanos>) -> Nanos {
    began.saturating_add(took.unwrap_or_default())
}

// === impl Writer ===

impl Writer<'_> {
    fn note(&mut self, is_so: bool) -> bool {
        if is_so {
            self.bits |= self.bit;
        }
        self.bit <<= 1;
        is_so
    }

    /// Whether something is there.
    fn there<T>(&mut self, told: Option<T>) -> Option<T> {
        self.note(told.is_some());
        told
    }

    fn number(&mut self, number: Option<u64>) {
        if let Some(number) = self.there(number) {
            self.plain_number(number);
        }
    }

    fn time(&mut self, time: Option<Nanos>) {
        if let Some(time) = self.there(time) {
            self.plain_eight(time.get());
        }
    }

    #[inline]
    fn bytes(&mut self, bytes: Option<&[u8]>) {
        if let Some(bytes) = self.there(bytes) {
            self.plain_bytes(bytes);
        }
    }

    /// A text that the first line tells stands there for all that tell the same.
    fn bytes_or_usual(&mut self, bytes: Option<&[u8]>, usual: &mut Usual) {
        let Some(bytes) = self.there(bytes) else { return };
        if self.note(usual.clone().and_then(|usual| self.to.get(usual)) == Some(bytes)) {
            return;
        }
        self.plain_bytes(bytes);
        let end = self.to.len();
        usual.get_or_insert(end - bytes.len()..end);
    }

    fn values(&mut self, values: &[(usize, Cow<'_, str>)]) {
        if let Some(values) = self.there((!values.is_empty()).then_some(values)) {
            self.plain_number(values.len() as u64);
            for (position, value) in values {
                self.plain_number(*position as u64);
                self.plain_bytes(value.as_bytes());
            }
        }
    }

    /// Seven bits in a byte, the lowest first; the eighth says that more come.
    fn plain_number(&mut self, mut number: u64) {
        while number > 0x7f {
            let [low, ..] = number.to_le_bytes();
            self.to.push(low | 0x80);
            number >>= 7;
        }
        let [low, ..] = number.to_le_bytes();
        self.to.push(low);
    }

    fn plain_eight(&mut self, number: u64) {
        self.to.extend_from_slice(&number.to_le_bytes());
    }

    fn plain_bytes(&mut self, bytes: &[u8]) {
        self.plain_number(bytes.len() as u64);
        self.to.extend_from_slice(bytes);
    }
}

// === impl Reader ===

impl<'p> Reader<'p> {
    /// Whether something is there, or is as noted.
    fn is_there(&mut self) -> Option<()> {
        let is_there = self.bits & 1 == 1;
        self.bits >>= 1;
        is_there.then_some(())
    }

    fn number(&mut self) -> Option<u64> {
        self.is_there()?;
        self.plain_number()
    }

    fn time(&mut self) -> Option<Nanos> {
        self.is_there()?;
        self.plain_eight().map(Nanos::new)
    }

    fn bytes(&mut self) -> Option<&'p [u8]> {
        self.is_there()?;
        self.plain_bytes()
    }

    fn bytes_or_usual(&mut self, usual: &Usual) -> Option<&'p [u8]> {
        self.is_there()?;
        match self.is_there() {
            Some(()) => self.all.get(usual.clone()?),
            None => self.plain_bytes(),
        }
    }

    fn text(&mut self, usual: &Usual) -> Option<Cow<'p, str>> {
        str::from_utf8(self.bytes_or_usual(usual)?).ok().map(Cow::Borrowed)
    }

    fn values(&mut self) -> Vec<(usize, Cow<'p, str>)> {
        let count = self.is_there().and_then(|()| self.plain_length()).unwrap_or_default();
        let mut value = || Some((self.plain_length()?, Cow::Borrowed(str::from_utf8(self.plain_bytes()?).ok()?)));
        (0..count).map_while(|_| value()).collect()
    }

    fn plain_number(&mut self) -> Option<u64> {
        match self.from {
            [number @ ..0x80, rest @ ..] => {
                self.from = rest;
                Some(u64::from(*number))
            }
            _ => self.plain_large(),
        }
    }

    #[inline(never)] // most are small
    fn plain_large(&mut self) -> Option<u64> {
        let length = self.from.iter().position(|byte| *byte < 0x80)? + 1;
        let (bytes, rest) = self.from.split_at_checked(length)?;
        self.from = rest;
        Some(bytes.iter().rev().fold(0, |number, byte| number << 7 | u64::from(byte & 0x7f)))
    }

    fn plain_length(&mut self) -> Option<usize> {
        usize::try_from(self.plain_number()?).ok()
    }

    fn plain_eight(&mut self) -> Option<u64> {
        let (eight, rest) = self.from.split_first_chunk()?;
        self.from = rest;
        Some(u64::from_le_bytes(*eight))
    }

    fn plain_bytes(&mut self) -> Option<&'p [u8]> {
        let length = self.plain_length()?;
        let (bytes, rest) = self.from.split_at_checked(length)?;
        self.from = rest;
        Some(bytes)
    }
}
