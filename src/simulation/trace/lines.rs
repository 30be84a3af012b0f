//! Reads the fields of a CSV line by line.
//!
//! A field cannot contain a line end: no trace needs that, and a quote that is not closed would silently take in all
//! rows after it.

use std::io::{BufReader, Read};

use csv::ByteRecord;

use super::TraceError;
use crate::simulation::lines::{Lines, MAX_LINE};

/// The reader of a trace's lines.
pub(super) struct TraceLines<R> {
    lines: Lines<BufReader<R>>,
    field: Vec<u8>,
}

// === impl TraceLines ===

impl<R: Read> TraceLines<R> {
    pub(super) fn new(input: R) -> Self {
        Self { lines: Lines::new(BufReader::with_capacity(1 << 16, input)), field: Vec::new() }
    }

    /// The number of the last line read, from 1.
    pub(super) const fn number(&self) -> u64 {
        self.lines.number()
    }

    /// Reads the fields of the next line that is not blank; `false` at the end.
    pub(super) fn read(&mut self, record: &mut ByteRecord) -> Result<bool, TraceError> {
        if !self.lines.advance()? {
            return Ok(false);
        }
        let wrong = |what| Err(TraceError::Line { line: self.lines.number(), what });
        if self.lines.is_cut() {
            return wrong(format!(" is longer than {MAX_LINE} bytes"));
        }
        match split(self.lines.line(), record, &mut self.field) {
            Ok(()) => Ok(true),
            Err(OpenQuote { field }) => wrong(format!(
                ", field {field}: found a quote that is not closed before the end of the line, expected the whole field on \
                 one line, and a quote in it doubled"
            )),
        }
    }
}

/// A line ends within quotes, which begin in this field, counted from 1.
struct OpenQuote {
    field: usize,
}

/// Splits a line at commas. The quoted part of a field ends with the next quote that is not doubled.
fn split(line: &[u8], record: &mut ByteRecord, field: &mut Vec<u8>) -> Result<(), OpenQuote> {
    record.clear();
    let mut rest = line;
    loop {
        field.clear();
        let mut doubled = false;
        while let Some(quoted) = rest.strip_prefix(b"\"") {
            if doubled {
                field.push(b'"');
            }
            doubled = true;
            let close = quoted.iter().position(|byte| *byte == b'"').ok_or(OpenQuote { field: record.len() + 1 })?;
            let (part, after) = quoted.split_at(close);
            field.extend_from_slice(part);
            rest = after.get(1..).unwrap_or_default();
        }
        let comma = rest.iter().position(|byte| *byte == b',');
        field.extend_from_slice(rest.get(..comma.unwrap_or(rest.len())).unwrap_or_default());
        record.push_field(field);
        match comma {
            Some(comma) => rest = rest.get(comma + 1..).unwrap_or_default(),
            None => return Ok(()),
        }
    }
}
