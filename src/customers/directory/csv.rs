//! A directory as CSV.

use csv::{ByteRecord, ReaderBuilder, Trim};

use super::fault::{Fault, Faults};
use super::reading::Reading;
use super::row::Row;

/// The columns, in any order in the file; the first ones have to be there.
const COLUMNS: [&str; 7] = ["credential", "customer", "plan", "overrides", "time_zone", "valid_until", "suspended"];
const REQUIRED: usize = 3;

/// Reads `text` into `reading`.
pub(super) fn read(text: &str, reading: &mut Reading<'_>) {
    let mut reader =
        ReaderBuilder::new().flexible(true).has_headers(false).trim(Trim::All).from_reader(text.as_bytes());
    let mut record = ByteRecord::new();
    let mut columns = None;
    let mut lines = Lines { text: text.as_bytes(), at: 0, line: 1 };
    loop {
        let start = reader.position().byte();
        let more = reader.read_byte_record(&mut record);
        let line = lines.line_of_record(start);
        match more {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) => {
                reading.faults.add(line, Fault::Malformed);
                break;
            }
        }
        match &columns {
            Some(columns) => row(reading, line, &record, columns),
            None => match Columns::find(line, &record, &mut reading.faults) {
                Some(found) => columns = Some(found),
                None => break,
            },
        }
    }
    if columns.is_none() && reading.faults.is_empty() {
        reading.faults.add(1, Fault::Empty);
    }
}

fn row(reading: &mut Reading<'_>, line: u64, record: &ByteRecord, columns: &Columns) {
    if record.as_slice().contains(&b'\n') {
        return reading.faults.add(line, Fault::LineBreak);
    }
    if record.len() != columns.count {
        return reading.faults.add(line, Fault::FieldCount { found: record.len(), expected: columns.count });
    }
    let field = |position: Option<usize>| position.and_then(|position| record.get(position)).unwrap_or_default();
    let [credential, customer, plan, overrides, time_zone, valid_until, suspended] = columns.positions.map(field);
    reading.row(line, &Row { credential, customer, plan, overrides, time_zone, valid_until, suspended });
}

/// Counts lines; the reader's own count is off after blank lines and where lines end in `\r\n`.
struct Lines<'t> {
    text: &'t [u8],
    at: usize,
    line: u64,
}

impl Lines<'_> {
    /// The line of the record that the reader found from this byte on, blank lines skipped. Bytes only grow.
    fn line_of_record(&mut self, start: u64) -> u64 {
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        while let Some(byte) = self.text.get(self.at)
            && (self.at < start || matches!(byte, b'\r' | b'\n'))
        {
            self.line = self.line.saturating_add(u64::from(*byte == b'\n'));
            self.at = self.at.saturating_add(1);
        }
        self.line
    }
}

/// Where in a line each of [`COLUMNS`] is.
struct Columns {
    positions: [Option<usize>; COLUMNS.len()],
    count: usize,
}

impl Columns {
    fn find(line: u64, header: &ByteRecord, faults: &mut Faults) -> Option<Self> {
        let mut positions = [None; COLUMNS.len()];
        for (position, name) in header.iter().enumerate() {
            match COLUMNS.iter().zip(&mut positions).find(|(known, _)| known.as_bytes() == name) {
                Some((name, Some(_))) => faults.add(line, Fault::RepeatedColumn(name)),
                Some((_, place)) => *place = Some(position),
                None => faults.add(line, Fault::UnknownColumn(position.saturating_add(1))),
            }
        }
        for (name, _) in COLUMNS.iter().zip(&positions).take(REQUIRED).filter(|(_, position)| position.is_none()) {
            faults.add(line, Fault::MissingColumn(name));
        }
        faults.is_empty().then_some(Self { positions, count: header.len() })
    }
}
