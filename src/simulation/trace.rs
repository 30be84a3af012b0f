//! Recorded traffic: a CSV with a header line and at least the columns `t_ns` and `key`.
//!
//! `cost` is 1 where the column or the field is missing, and a missing `set_rate` changes nothing; other columns are
//! ignored. Rows are read one at a time; only the keys stay in memory.

use std::collections::HashMap;
use std::io::{self, Read};
use std::rc::Rc;

use csv::ByteRecord;

use crate::simulation::{Arrival, KeyNumber, Traffic};
use crate::units::{Cost, Nanos, Rate};

mod lines;

use lines::TraceLines;

const TIME: &str = "t_ns";
const KEY: &str = "key";
const COST: &str = "cost";
const SET_RATE: &str = "set_rate";

/// Reads a rate as the configuration writes it; the error says what is wrong with the text (`is not a rate`).
pub type ParseRate = fn(&str) -> Result<Rate, String>;

/// An error in a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The trace has no header line.
    #[error("the trace is empty: expected a header line with at least the columns `t_ns` and `key`")]
    Empty,
    /// A line is wrong.
    #[error("line {line}{what}")]
    Line {
        /// The line, counted from 1, the header line included.
        line: u64,
        /// The place in the line, what was found there and what was expected.
        what: String,
    },
    /// The file cannot be read.
    #[error("cannot read the trace: {0}")]
    Read(#[from] io::Error),
}

/// A trace that is being read.
pub struct Trace<R> {
    lines: TraceLines<R>,
    parse_rate: ParseRate,
    columns: Columns,
    keys: Keys,
    record: ByteRecord,
    last: Nanos,
}

struct Columns {
    time: usize,
    key: usize,
    cost: Option<usize>,
    set_rate: Option<usize>,
    count: usize,
}

#[derive(Default)]
struct Keys {
    numbers: HashMap<Rc<[u8]>, KeyNumber>,
    names: Vec<Rc<[u8]>>,
}

// === impl Trace ===

impl<R: Read> Trace<R> {
    /// Reads the header line of `input`; rates are read by `parse_rate`.
    pub fn new(input: R, parse_rate: ParseRate) -> Result<Self, TraceError> {
        let (mut lines, mut record) = (TraceLines::new(input), ByteRecord::new());
        if !lines.read(&mut record)? {
            return Err(TraceError::Empty);
        }
        let columns = Columns::find(&record, lines.number())?;
        Ok(Self { lines, parse_rate, columns, keys: Keys::default(), record, last: Nanos::ZERO })
    }

    fn time(&self) -> Result<Nanos, TraceError> {
        let field = self.field(self.columns.time);
        let at = whole(field)
            .map(Nanos::new)
            .ok_or_else(|| self.wrong(TIME, field, ", expected whole nanoseconds from 0 to 18446744073709551615"))?;
        if at < self.last {
            let before = self.last.get();
            let expected =
                format!(", expected {before} (the time of the row before) or later: rows are in the order of time");
            return Err(self.wrong(TIME, field, &expected));
        }
        Ok(at)
    }

    fn cost(&self) -> Result<Cost, TraceError> {
        match self.columns.cost.map(|column| self.field(column)) {
            None | Some([]) => Ok(1),
            Some(field) => whole(field).ok_or_else(|| {
                self.wrong(COST, field, ", expected a whole number of tokens from 0 to 18446744073709551615")
            }),
        }
    }

    fn set_rate(&self) -> Result<Option<Rate>, TraceError> {
        match self.columns.set_rate.map(|column| self.field(column)) {
            None | Some([]) => Ok(None),
            Some(field) => {
                let text = str::from_utf8(field).map_err(|_| "is not text".to_owned());
                text.and_then(|text| (self.parse_rate)(text.trim())).map(Some).map_err(|problem| {
                    self.wrong(SET_RATE, field, &format!(", which {problem}; expected a rate like `20/s`"))
                })
            }
        }
    }

    fn field(&self, column: usize) -> &[u8] {
        self.record.get(column).unwrap_or_default()
    }

    /// The error in the field of a column; `problem` follows what was found.
    fn wrong(&self, column: &str, found: &[u8], problem: &str) -> TraceError {
        let what = format!(", column `{column}`: found `{}`{problem}", shown(found));
        TraceError::Line { line: self.line(), what }
    }
}

impl<R: Read> Traffic for Trace<R> {
    fn next_arrival(&mut self) -> Result<Option<Arrival>, TraceError> {
        if !self.lines.read(&mut self.record)? {
            return Ok(None);
        }
        let (found, expected) = (self.record.len(), self.columns.count);
        if found != expected {
            let what = format!(": found {found} fields, expected {expected} as in the header line");
            return Err(TraceError::Line { line: self.line(), what });
        }
        let at = self.time()?;
        let (cost, set_rate) = (self.cost()?, self.set_rate()?);
        self.last = at;
        let key = self.keys.number(self.record.get(self.columns.key).unwrap_or_default());
        Ok(Some(Arrival { at, key, cost, set_rate }))
    }

    fn key(&self, key: KeyNumber) -> &[u8] {
        self.keys.names.get(key.0).map_or(&[], |name| name)
    }

    fn line(&self) -> u64 {
        self.lines.number()
    }
}

// === impl Columns ===

impl Columns {
    fn find(header: &ByteRecord, line: u64) -> Result<Self, TraceError> {
        let wrong = |what| TraceError::Line { line, what };
        let optional = |column: &str| {
            let mut places = (0..).zip(header).filter(|(_, name)| name.trim_ascii() == column.as_bytes());
            match (places.next(), places.next()) {
                (_, Some(_)) => Err(wrong(format!(": found the column `{column}` twice, expected it once"))),
                (place, None) => Ok(place.map(|(place, _)| place)),
            }
        };
        let required = |column: &str| match optional(column)? {
            Some(place) => Ok(place),
            None => {
                let found: Vec<String> = header.iter().map(|name| format!("`{}`", shown(name))).collect();
                let found = found.join(", ");
                let expected = "expected at least `t_ns` and `key`";
                Err(wrong(format!(": found the columns {found}, {expected}: there is no `{column}`")))
            }
        };
        Ok(Self {
            time: required(TIME)?,
            key: required(KEY)?,
            cost: optional(COST)?,
            set_rate: optional(SET_RATE)?,
            count: header.len(),
        })
    }
}

// === impl Keys ===

impl Keys {
    fn number(&mut self, name: &[u8]) -> KeyNumber {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let (number, name) = (KeyNumber(self.names.len()), Rc::<[u8]>::from(name));
        self.names.push(Rc::clone(&name));
        self.numbers.insert(name, number);
        number
    }
}

/// A field of digits as a number; blanks around them are allowed.
fn whole(field: &[u8]) -> Option<u64> {
    let digits = str::from_utf8(field.trim_ascii()).ok()?;
    // `parse` takes a sign, too
    digits.parse().ok().filter(|_| !digits.starts_with('+'))
}

/// A field for an error message: on one line and shortened.
fn shown(field: &[u8]) -> String {
    const MAX_LENGTH: usize = 40;
    let text = String::from_utf8_lossy(field);
    let mut shown: String = text.chars().take(MAX_LENGTH).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX_LENGTH).is_some() {
        shown.push_str("...");
    }
    shown
}

#[cfg(test)]
mod tests;
