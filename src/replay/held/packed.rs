//! What lines tell, in little room: one after the other as bytes, and of each only what it tells.

use std::borrow::Cow;

use crate::replay::reading::Spot;
use crate::replay::record::{self, Record};
use crate::units::Nanos;

/// What some lines tell.
#[derive(Default)]
pub(super) struct Packed(Vec<u8>);

/// Writes what a line tells: a bit for everything that it may tell, then all that is there.
struct Writer<'p> {
    to: &'p mut Vec<u8>,
    there: Bits,
    /// That of what is written next.
    bit: Bits,
}

/// Reads in the order in which it was written.
struct Reader<'p> {
    from: &'p [u8],
    /// The lowest is that of what is read next.
    there: Bits,
}

type Bits = u16;

// === impl Packed ===

impl Packed {
    /// Adds what a line tells, and gives its place.
    pub(super) fn push(&mut self, spot: Spot, record: &Record<'_>) -> usize {
        let at = self.0.len();
        self.0.extend_from_slice(&Bits::MIN.to_le_bytes());
        let mut to = Writer { to: &mut self.0, there: 0, bit: 1 };
        to.plain_number(spot.log as u64);
        to.plain_eight(spot.line);
        to.plain_eight(record.logged.get());
        to.time(record.took);
        to.time((record.waited > Nanos::ZERO).then_some(record.waited));
        to.number(record.status.map(u64::from));
        to.number(record.request_bytes);
        to.number(record.response_bytes);
        let Record { client, target, host, method, customer, plan, node, answered, .. } = record;
        let [method, customer, plan, node, answered] =
            [method, customer, plan, node, answered].map(|text| text.as_deref().map(str::as_bytes));
        let [client, target, host] = [client, target, host].map(|bytes| bytes.as_deref());
        for bytes in [client, target, host, method, customer, plan, node, answered] {
            to.bytes(bytes);
        }
        to.number(record.was_exempt.map(u64::from));
        to.values(&record.headers);
        to.values(&record.response_headers);
        let there = to.there.to_le_bytes();
        if let Some(room) = self.0.get_mut(at..).and_then(|told| told.first_chunk_mut()) {
            *room = there;
        }
        at
    }

    /// What the line tells whose place is `at`.
    pub(super) fn at(&self, at: usize) -> Option<(Spot, Record<'_>)> {
        let (there, from) = self.0.get(at..)?.split_first_chunk()?;
        let mut from = Reader { from, there: Bits::from_le_bytes(*there) };
        let spot = Spot { log: from.plain_length()?, line: from.plain_eight()? };
        let logged = Nanos::new(from.plain_eight()?);
        let record = Record {
            logged,
            took: from.time(),
            waited: from.time().unwrap_or_default(),
            status: from.number().and_then(|status| u16::try_from(status).ok()),
            request_bytes: from.number(),
            response_bytes: from.number(),
            client: from.bytes().map(Cow::Borrowed),
            target: from.bytes().map(Cow::Borrowed),
            host: from.bytes().map(Cow::Borrowed),
            method: from.bytes().map(record::method),
            customer: from.text(),
            plan: from.text(),
            node: from.text(),
            answered: from.text(),
            was_exempt: from.number().map(|was| was != 0),
            headers: from.values(),
            response_headers: from.values(),
        };
        Some((spot, record))
    }

    /// Brings near what was put here long ago: looks at every line of the cache, one after the other.
    pub(super) fn bring_near(&self) {
        const CACHE_LINE: usize = 64;
        std::hint::black_box(self.0.iter().step_by(CACHE_LINE).fold(0, |all, byte| all ^ byte));
    }

    /// How many bytes it takes.
    pub(super) const fn bytes(&self) -> usize {
        self.0.len()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

// === impl Writer ===

impl Writer<'_> {
    /// Whether something is there.
    fn note<T>(&mut self, told: Option<T>) -> Option<T> {
        if told.is_some() {
            self.there |= self.bit;
        }
        self.bit <<= 1;
        told
    }

    fn number(&mut self, number: Option<u64>) {
        if let Some(number) = self.note(number) {
            self.plain_number(number);
        }
    }

    fn time(&mut self, time: Option<Nanos>) {
        if let Some(time) = self.note(time) {
            self.plain_eight(time.get());
        }
    }

    #[inline]
    fn bytes(&mut self, bytes: Option<&[u8]>) {
        if let Some(bytes) = self.note(bytes) {
            self.plain_bytes(bytes);
        }
    }

    fn values(&mut self, values: &[(usize, Cow<'_, str>)]) {
        if let Some(values) = self.note((!values.is_empty()).then_some(values)) {
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
    /// Whether something is there.
    fn is_there(&mut self) -> Option<()> {
        let is_there = self.there & 1 == 1;
        self.there >>= 1;
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

    fn text(&mut self) -> Option<Cow<'p, str>> {
        str::from_utf8(self.bytes()?).ok().map(Cow::Borrowed)
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
