//! Reads JSON log lines with serde. The reader takes the fields that the rules need and skips the rest of the line.

use std::fmt::{self, Formatter};

use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;

use super::common::request_line;
use super::fields::{FieldTree, RecordField};
use super::record::{Record, Unreadable};
use super::stamp::{self, LogTime};
use crate::units::Nanos;

/// Some servers write this in place of a secret value.
const REDACTED: &str = "REDACTED";

/// Reads JSON lines into records.
#[derive(Debug)]
pub(super) struct JsonReader {
    /// The tree of field names that the reader looks for.
    root: FieldTree,
}

/// The fields of one line that the reader has found so far.
#[derive(Default)]
struct Fields {
    record: Record,
    /// The outer `Option` says whether the line has a time, the inner one whether that time is valid.
    time: Option<Option<LogTime>>,
    /// When the request came.
    began: Option<LogTime>,
    request_line: Option<String>,
    rewritten_path: Option<Vec<u8>>,
    /// The rank of the place from which each slot was filled. A slot is overwritten only from a place of a lower rank.
    ranks: SmallVec<[(RecordField, usize); 16]>,
}

/// A JSON value that is neither `null`, a boolean, a list nor an object.
enum Value<'l> {
    Text(&'l str),
    Whole(u64),
    Negative(i64),
    Float(f64),
}

// === impl JsonReader ===

impl JsonReader {
    /// A reader for the fields in the tree below `root`.
    pub(super) fn new(root: FieldTree) -> Self {
        Self { root }
    }

    /// The record of a line. Bytes that are not UTF-8 become U+FFFD.
    pub(super) fn read(&self, line: &[u8]) -> Result<Record, Unreadable> {
        let line = String::from_utf8_lossy(line);
        let mut fields = Fields::default();
        let mut json = serde_json::Deserializer::from_str(&line);
        let read = ValueSeed { place: &self.root, fields: &mut fields }.deserialize(&mut json);
        read.and_then(|()| json.end()).map_err(|error| Unreadable::Json(error.to_string()))?;
        fields.finish()
    }
}

// === impl ValueSeed, NameSeed ===

/// Reads the value at `place` into `fields`.
struct ValueSeed<'s> {
    place: &'s FieldTree,
    fields: &'s mut Fields,
}

impl ValueSeed<'_> {
    #[expect(clippy::unnecessary_wraps, reason = "the result of a visitor")]
    fn put<E>(self, value: &Value<'_>) -> Result<(), E> {
        self.place.slots.iter().for_each(|(rank, slot)| self.fields.put(*rank, *slot, value));
        Ok(())
    }
}

impl<'l> DeserializeSeed<'l> for ValueSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'l>>(self, json: D) -> Result<(), D::Error> {
        json.deserialize_any(self)
    }
}

impl<'l> Visitor<'l> for ValueSeed<'_> {
    type Value = ();

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.put(&Value::Text(text))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<(), E> {
        self.put(&Value::Whole(number))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<(), E> {
        self.put(&Value::Negative(number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<(), E> {
        self.put(&Value::Float(number))
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'l>>(self, mut items: A) -> Result<(), A::Error> {
        while items.next_element_seed(ValueSeed { place: self.place, fields: &mut *self.fields })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'l>>(self, mut members: A) -> Result<(), A::Error> {
        while let Some(place) = members.next_key_seed(NameSeed(self.place))? {
            match place {
                Some(place) => members.next_value_seed(ValueSeed { place, fields: &mut *self.fields })?,
                None => _ = members.next_value::<IgnoredAny>()?,
            }
        }
        Ok(())
    }
}

/// Looks up the name of an object's member in the tree of field names.
struct NameSeed<'s>(&'s FieldTree);

impl<'s, 'l> DeserializeSeed<'l> for NameSeed<'s> {
    type Value = Option<&'s FieldTree>;

    fn deserialize<D: Deserializer<'l>>(self, json: D) -> Result<Self::Value, D::Error> {
        json.deserialize_str(self)
    }
}

impl<'s> Visitor<'_> for NameSeed<'s> {
    type Value = Option<&'s FieldTree>;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a name")
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.below(name))
    }
}

// === impl Fields ===

impl Fields {
    /// Takes a value for a slot, unless the slot was filled from a place of the same or a lower rank. A header field may
    /// have several values.
    fn put(&mut self, rank: usize, slot: RecordField, value: &Value<'_>) {
        if matches!(slot, RecordField::Header(_) | RecordField::ResponseHeader(_)) {
            self.take(slot, value);
            return;
        }
        let is_filled = self.ranks.iter().any(|(filled, best)| filled.is_same(slot) && *best <= rank);
        if !is_filled && self.take(slot, value) {
            self.ranks.push((slot, rank));
        }
    }

    /// Stores a value in the record. Returns whether the value was usable.
    fn take(&mut self, slot: RecordField, value: &Value<'_>) -> bool {
        let record = &mut self.record;
        match slot {
            RecordField::Time => {
                let time = value.time();
                self.time = Some(time.or_else(|| self.time.flatten()));
                time.is_some()
            }
            RecordField::Began => put(&mut self.began, value.time()),
            RecordField::Took(unit) => {
                put(&mut record.took, value.float().and_then(|took| stamp::duration(took, unit)))
            }
            RecordField::Waited => {
                let waited = value.float().and_then(|waited| stamp::duration(waited, Nanos::SECOND));
                record.waited = waited.unwrap_or_default();
                true
            }
            RecordField::Client => put(&mut record.client, value.bytes()),
            RecordField::Method => put(&mut record.method, value.text()),
            RecordField::Target => put(&mut record.target, value.bytes()),
            RecordField::RequestLine => put(&mut self.request_line, value.text()),
            RecordField::RewrittenPath => put(&mut self.rewritten_path, value.bytes()),
            RecordField::Host => put(&mut record.host, value.bytes()),
            RecordField::Status => put(&mut record.status, value.whole().and_then(|status| u16::try_from(status).ok())),
            RecordField::RequestBytes => put(&mut record.request_bytes, value.whole()),
            RecordField::ResponseBytes => put(&mut record.response_bytes, value.whole()),
            RecordField::Customer => put(&mut record.customer, value.text()),
            RecordField::Plan => put(&mut record.plan, value.text()),
            RecordField::Node => put(&mut record.node, value.text()),
            RecordField::Answered => put(&mut record.answered, value.text()),
            RecordField::Charges => put(&mut record.charges, value.text()),
            RecordField::Decision => put(&mut record.was_exempt, value.bytes().map(|word| word == b"bypassed")),
            RecordField::Header(position) => {
                record.headers.extend(value.text().filter(|text| text != REDACTED).map(|text| (position, text)));
                true
            }
            RecordField::ResponseHeader(position) => {
                record.response_headers.extend(value.text().map(|text| (position, text)));
                true
            }
        }
    }

    /// Checks the record once the whole line is read.
    fn finish(self) -> Result<Record, Unreadable> {
        let mut record = self.record;
        let began = self.began.filter(|_| record.took.is_some());
        let logged = || self.time.ok_or(Unreadable::Missing("time"))?.ok_or(Unreadable::Time);
        let stamp = began.map_or_else(logged, Ok)?;
        (record.logged, record.is_start) = (stamp.time, began.is_some());
        record.within_second = stamp.is_whole_second.then_some(Nanos::ZERO);
        if let Some((method, target)) = self.request_line.as_ref().and_then(|line| request_line(line.as_bytes())) {
            if record.method.is_none() || record.target.is_none() {
                record.method = Some(String::from_utf8_lossy(method).into_owned());
            }
            record.target.get_or_insert_with(|| target.to_owned());
        }
        record.target = record.target.or(self.rewritten_path);
        Ok(record)
    }
}

fn put<T>(place: &mut Option<T>, value: Option<T>) -> bool {
    let is_some = value.is_some();
    *place = value.or(place.take());
    is_some
}

// === impl Value ===

impl Value<'_> {
    fn text(&self) -> Option<String> {
        match self {
            Self::Text(text) => (!matches!(*text, "" | "-")).then(|| (*text).to_owned()),
            Self::Whole(number) => Some(number.to_string()),
            Self::Negative(number) => Some(number.to_string()),
            Self::Float(number) => Some(number.to_string()),
        }
    }

    fn bytes(&self) -> Option<Vec<u8>> {
        self.text().map(String::into_bytes)
    }

    fn whole(&self) -> Option<u64> {
        match self {
            Self::Whole(number) => Some(*number),
            Self::Text(text) => text.parse().ok(),
            Self::Negative(_) | Self::Float(_) => None,
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "a number of seconds")]
    fn float(&self) -> Option<f64> {
        match self {
            Self::Text(text) => text.parse().ok(),
            Self::Whole(number) => Some(*number as f64),
            Self::Negative(number) => Some(*number as f64),
            Self::Float(number) => Some(*number),
        }
    }

    fn time(&self) -> Option<LogTime> {
        match self {
            Self::Float(number) => stamp::float(*number),
            other => {
                let text = other.text()?;
                let text = text.trim_matches(['[', ']']).as_bytes();
                stamp::rfc3339(text).or_else(|| stamp::number(text)).or_else(|| stamp::common(text))
            }
        }
    }
}

#[cfg(test)]
mod tests;
