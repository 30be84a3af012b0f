//! Lines of JSON: only what is looked for is taken, the rest is passed over.

mod shapes;

use std::borrow::Cow;

use serde::de::IgnoredAny;

use self::shapes::{Shapes, Value, Word};
use super::common::request_line;
use super::fields::{Place, SLOTS, Slot, Unit};
use super::record::{self, Record, Unreadable};
use super::stamp::{self, Rfc3339, Stamp};
use crate::units::Nanos;

/// What some servers write in place of a value that is a secret.
const REDACTED: &str = "REDACTED";

/// Reads lines; remembers their shapes.
#[derive(Debug)]
pub(super) struct JsonReader {
    /// The places of all that is looked for.
    root: Place,
    shapes: Shapes,
    rfc3339: Rfc3339,
}

/// What was found of a line so far, and the ranks of the places where each slot's value was.
struct Found<'r, 'l> {
    told: Told<'r, 'l>,
    ranks: [u8; SLOTS],
}

/// What a line tells.
struct Told<'r, 'l> {
    record: &'r mut Record<'l>,
    /// Whether there is a time, and whether it can be read.
    time: Option<Option<Stamp>>,
    request_line: Option<Cow<'l, str>>,
    rfc3339: &'r mut Rfc3339,
}

// === impl JsonReader ===

impl JsonReader {
    /// Takes what is at the places below `root`.
    pub(super) fn new(root: Place) -> Self {
        Self { root, shapes: Shapes::default(), rfc3339: Rfc3339::default() }
    }

    /// What a line tells, into a `record` that tells nothing yet.
    pub(super) fn read<'l>(&mut self, line: &'l [u8], record: &mut Record<'l>) -> Result<(), Unreadable> {
        if self.read_known(line, record)? {
            return Ok(());
        }
        serde_json::from_slice::<IgnoredAny>(line).map_err(|error| Unreadable::Json(error.to_string()))?;
        self.shapes.learn(line, &self.root);
        *record = Record::default();
        match self.read_known(line, record)? {
            true => Ok(()),
            false => Err(Unreadable::Json("a string holds what is no character".to_owned())),
        }
    }

    /// The same, of a line whose shape is known; `false` if it is not, or the line is no JSON.
    fn read_known<'l>(&mut self, line: &'l [u8], record: &mut Record<'l>) -> Result<bool, Unreadable> {
        let rfc3339 = &mut self.rfc3339;
        let told = Told { record, time: None, request_line: None, rfc3339 };
        let mut found = Found { told, ranks: [u8::MAX; SLOTS] };
        let is_known = self.shapes.walk(line, |slots, value| match value {
            Value::Word(Word::Nothing) => {}
            value => found.put(slots, value),
        });
        match is_known {
            true => found.told.finish().map(|()| true),
            false => Ok(false),
        }
    }
}

// === impl Found ===

impl<'l> Found<'_, 'l> {
    /// Takes a value at a place that tells all of `slots`.
    fn put(&mut self, slots: &[(u8, Slot)], value: &Value<'l>) {
        slots.iter().for_each(|(rank, slot)| self.put_one(*rank, *slot, value));
    }

    #[inline]
    fn put_one(&mut self, rank: u8, slot: Slot, value: &Value<'l>) {
        match slot.number().and_then(|number| self.ranks.get_mut(number)) {
            None => _ = self.told.take(slot, value),
            Some(best) if rank < *best && self.told.take(slot, value) => *best = rank,
            Some(_) => {}
        }
    }
}

// === impl Told ===

impl<'l> Told<'_, 'l> {
    /// Whether `value` tells what `slot` wants.
    #[inline]
    fn take(&mut self, slot: Slot, value: &Value<'l>) -> bool {
        let record = &mut *self.record;
        match slot {
            Slot::Time => {
                self.time = Some(value.time(self.rfc3339));
                true
            }
            Slot::Took(Unit::Seconds) => put(&mut record.took, value.float().and_then(stamp::seconds)),
            Slot::Took(Unit::Nanoseconds) => put(&mut record.took, value.whole().map(Nanos::new)),
            Slot::Waited => {
                record.waited = value.float().and_then(stamp::seconds).unwrap_or_default();
                true
            }
            Slot::Client => put(&mut record.client, value.bytes()),
            Slot::Method => put(&mut record.method, value.method()),
            Slot::Target => put(&mut record.target, value.bytes()),
            Slot::RequestLine => put(&mut self.request_line, value.text()),
            Slot::Host => put(&mut record.host, value.bytes()),
            Slot::Status => put(&mut record.status, value.whole().and_then(|status| u16::try_from(status).ok())),
            Slot::RequestBytes => put(&mut record.request_bytes, value.whole()),
            Slot::ResponseBytes => put(&mut record.response_bytes, value.whole()),
            Slot::Customer => put(&mut record.customer, value.text()),
            Slot::Plan => put(&mut record.plan, value.text()),
            Slot::Node => put(&mut record.node, value.text()),
            Slot::Answered => put(&mut record.answered, value.text()),
            Slot::Decision => put(&mut record.was_exempt, value.bytes().map(|word| *word == *b"bypassed")),
            Slot::Header(position) => {
                record.headers.extend(value.text().filter(|text| text != REDACTED).map(|text| (position, text)));
                true
            }
            Slot::ResponseHeader(position) => {
                record.response_headers.extend(value.text().map(|text| (position, text)));
                true
            }
        }
    }

    /// All values were shown.
    fn finish(self) -> Result<(), Unreadable> {
        let record = self.record;
        let stamp = self.time.ok_or(Unreadable::Missing("time"))?.ok_or(Unreadable::Time)?;
        record.logged = stamp.time;
        record.within_second = stamp.is_whole_second.then_some(Nanos::ZERO);
        match self.request_line {
            Some(Cow::Borrowed(line)) if record.target.is_none() => set_request(record, line),
            Some(Cow::Owned(line)) if record.target.is_none() => {
                let mut told = Record::default();
                set_request(&mut told, &line);
                record.method = told.method.map(|method| Cow::Owned(method.into_owned()));
                record.target = told.target.map(|target| Cow::Owned(target.into_owned()));
            }
            _ => {}
        }
        Ok(())
    }
}

fn set_request<'l>(record: &mut Record<'l>, line: &'l str) {
    if let Some((method, target)) = request_line(line.as_bytes()) {
        record.method = Some(record::method(method));
        record.target = Some(Cow::Borrowed(target));
    }
}

fn put<T>(place: &mut Option<T>, value: Option<T>) -> bool {
    let is_there = value.is_some();
    if is_there {
        *place = value;
    }
    is_there
}

/// Whether a text stands for nothing, as a dash does.
fn is_nothing(text: &[u8]) -> bool {
    matches!(text, b"" | b"-")
}

/// What some servers write a time without.
fn without_brackets(mut text: &[u8]) -> &[u8] {
    while let [b'[' | b']', inside @ ..] | [inside @ .., b'[' | b']'] = text {
        text = inside;
    }
    text
}

// === impl Value ===

impl<'l> Value<'l> {
    fn text(&self) -> Option<Cow<'l, str>> {
        match self {
            Self::Plain(text) if is_nothing(text) => None,
            Self::Plain(text) => str::from_utf8(text).ok().map(Cow::Borrowed),
            Self::Text(text) => (!is_nothing(text.as_bytes())).then(|| text.clone()),
            Self::Word(word) => word.text().map(Cow::Owned),
        }
    }

    fn method(&self) -> Option<Cow<'l, str>> {
        match self {
            Self::Plain(text) => (!is_nothing(text)).then(|| record::method(text)),
            other => other.text(),
        }
    }

    fn bytes(&self) -> Option<Cow<'l, [u8]>> {
        match self {
            Self::Plain(text) => (!is_nothing(text)).then_some(Cow::Borrowed(text)),
            other => other.text().map(|text| match text {
                Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
                Cow::Owned(text) => Cow::Owned(text.into_bytes()),
            }),
        }
    }

    fn whole(&self) -> Option<u64> {
        match self {
            Self::Word(Word::Whole(number)) => Some(*number),
            Self::Word(_) => None,
            other => other.text()?.parse().ok(),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a number of seconds")]
    fn float(&self) -> Option<f64> {
        match self {
            Self::Word(Word::Float(number)) => Some(*number),
            Self::Word(Word::Whole(number)) => Some(*number as f64),
            other => other.text()?.parse().ok(),
        }
    }

    fn time(&self, rfc3339: &mut Rfc3339) -> Option<Stamp> {
        match self {
            Self::Word(Word::Float(number)) => stamp::float(*number),
            other => {
                let text = other.bytes()?;
                let text = without_brackets(&text);
                rfc3339.read(text).or_else(|| stamp::number(text)).or_else(|| stamp::common(text))
            }
        }
    }
}

impl Word {
    #[inline(never)] // mostly texts are strings
    fn text(self) -> Option<String> {
        match self {
            Self::Nothing => None,
            Self::Whole(number) => Some(number.to_string()),
            Self::Negative(number) => Some(number.to_string()),
            Self::Float(number) => Some(number.to_string()),
        }
    }
}

#[cfg(test)]
mod tests;
