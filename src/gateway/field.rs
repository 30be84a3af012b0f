//! Reads fields out of JSON in one pass, without storing it: numbers in a response, texts or numbers in a request body.

use crate::ruleset::cost::{ReportedCost, WeightedField};
use crate::ruleset::request_field::MAX_KEY_LENGTH;
use crate::ruleset::tokens::tokens;

mod json;
mod request;

use json::{FoundValue, Json, ParseMode};
pub use request::{ReadProgress, RequestReader};

/// Looks for numbers in a response: in JSON documents, or in those that are the data of events.
///
/// A path of names leads to each number: `usage.total_tokens`. Of several documents or events the last one that has the
/// field counts, and of a repeated name the last one. A document has no more fields after a byte that is not JSON.
#[derive(Clone, Debug)]
pub struct FieldReader {
    json: Json,
    /// The position in a line of an event stream; `None` for plain JSON.
    line: Option<Line>,
    /// Whether the last byte was a carriage return: a line feed after it belongs to the same line end.
    after_return: bool,
}

/// The position in a line of an event stream.
#[derive(Clone, Copy, Debug)]
enum Line {
    /// After this number of bytes of [`DATA`].
    Name(usize),
    /// Before the first byte of data, where one space may stand.
    BeforeData,
    /// In the data.
    Data,
    /// In a part of the stream that is not data.
    Other,
}

const DATA: &[u8] = b"data:";

impl FieldReader {
    /// Creates a reader of JSON documents, one after the other, that looks for `fields` fields.
    pub fn of_json(fields: usize) -> Self {
        Self { json: Json::new(ParseMode::Lenient, fields, MAX_KEY_LENGTH), line: None, after_return: false }
    }

    /// Creates a reader of the JSON documents that are the data of events (`text/event-stream`).
    pub fn of_events(fields: usize) -> Self {
        Self { line: Some(Line::Name(0)), ..Self::of_json(fields) }
    }

    /// Reads the next bytes; `fields` are the same in each call.
    pub fn feed(&mut self, fields: &[WeightedField], mut bytes: &[u8]) {
        while let Some((byte, rest)) = bytes.split_first() {
            let of_json = match self.line {
                None => bytes.len(),
                Some(Line::Data) => memchr::memchr2(b'\n', b'\r', bytes).unwrap_or(bytes.len()),
                Some(_) => 0,
            };
            match bytes.split_at_checked(of_json) {
                Some((data, rest)) if of_json > 0 => {
                    self.json.feed(fields, data);
                    bytes = rest;
                }
                _ => {
                    self.line = self.line.map(|line| self.take_of_line(line, fields, *byte));
                    bytes = rest;
                }
            }
        }
    }

    /// The result for each field, as far as the text was read.
    pub fn reported_costs(&self) -> impl Iterator<Item = ReportedCost> {
        self.json.searches.iter().map(|search| match search.found.as_ref().or(search.earlier.as_ref()) {
            None => ReportedCost::Nothing,
            Some(FoundValue::Number(number)) => tokens(number.text()).map_or(ReportedCost::Wrong, ReportedCost::Cost),
            Some(FoundValue::Text(_) | FoundValue::Other) => ReportedCost::Wrong,
        })
    }

    fn take_of_line(&mut self, line: Line, fields: &[WeightedField], byte: u8) -> Line {
        let feeds = byte == b'\n';
        if feeds && std::mem::take(&mut self.after_return) {
            return line;
        }
        self.after_return = byte == b'\r';
        if feeds || self.after_return {
            match line {
                // an empty line ends an event
                Line::Name(0) => self.json.begin_document(),
                // several lines of data form one text
                Line::BeforeData | Line::Data => self.json.feed(fields, b"\n"),
                Line::Name(_) | Line::Other => {}
            }
            return Line::Name(0);
        }
        match line {
            Line::Name(read) if DATA.get(read) == Some(&byte) => match read.saturating_add(1) {
                read if read == DATA.len() => Line::BeforeData,
                read => Line::Name(read),
            },
            Line::BeforeData if byte == b' ' => Line::Data,
            Line::BeforeData | Line::Data => {
                self.json.feed(fields, &[byte]);
                Line::Data
            }
            Line::Name(_) | Line::Other => Line::Other,
        }
    }
}

#[cfg(test)]
mod tests;
