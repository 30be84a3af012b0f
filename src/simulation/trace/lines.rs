//! Reads a CSV line by line, each line with its number in the file.
//!
//! A field cannot contain a line end: no trace needs that, and a quote that is not closed would silently take in all
//! rows after it.

use std::io::{self, BufRead, BufReader, Read};

use csv::ByteRecord;

use super::TraceError;

const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The reader of a trace's lines.
pub(super) struct TraceLines<R> {
    input: BufReader<R>,
    text: Vec<u8>,
    field: Vec<u8>,
    number: u64,
}

// === impl TraceLines ===

impl<R: Read> TraceLines<R> {
    pub(super) fn new(input: R) -> Self {
        Self { input: BufReader::with_capacity(1 << 16, input), text: Vec::new(), field: Vec::new(), number: 0 }
    }

    /// The number of the last line read, from 1.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// Reads the fields of the next line that is not blank; `false` at the end.
    pub(super) fn read(&mut self, record: &mut ByteRecord) -> Result<bool, TraceError> {
        while self.next_line()? {
            let mut line = self.text.as_slice();
            for end in [b"\n", b"\r"] {
                line = line.strip_suffix(end).unwrap_or(line);
            }
            if self.number == 1 {
                line = line.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line);
            }
            if line.is_empty() {
                continue;
            }
            return match split(line, record, &mut self.field) {
                Ok(()) => Ok(true),
                Err(OpenQuote { field }) => Err(TraceError::OpenQuote { line: self.number, field }),
            };
        }
        Ok(false)
    }

    fn next_line(&mut self) -> io::Result<bool> {
        self.text.clear();
        let read = self.input.read_until(b'\n', &mut self.text)?;
        self.number += u64::from(read > 0);
        Ok(read > 0)
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
