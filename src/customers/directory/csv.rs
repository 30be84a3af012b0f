//! Reads a directory from CSV.
//!
//! Spaces around fields do not count, blank lines are skipped, and `\r` ends a line as `\n` and `\r\n` do.

use csv::{ByteRecord, ReaderBuilder, Trim};
use memchr::memchr_iter;

use super::builder::DirectoryBuilder;
use super::fault::{Fault, Faults};
use super::row::Row;

/// The columns, in any order in the file. The first ones are required.
const COLUMNS: [&str; 7] = ["credential", "customer", "plan", "overrides", "time_zone", "valid_until", "suspended"];
const REQUIRED: usize = 3;

/// Reads `text` into `builder`.
pub(super) fn read(text: &str, builder: &mut DirectoryBuilder<'_>) {
    let mut reader = ReaderBuilder::new();
    let mut reader = reader.has_headers(false).flexible(true).trim(Trim::All).from_reader(text.as_bytes());
    let (mut record, mut lines) = (ByteRecord::new(), LineCounter { text: text.as_bytes(), at: 0, line: 1 });
    let mut columns: Option<Columns> = None;
    // reading from memory cannot fail
    while reader.read_byte_record(&mut record).unwrap_or(false) {
        let line = lines.line_of(&record);
        match columns.as_ref().map(|columns| columns.row(&record)) {
            Some(Ok(row)) => builder.add(line, &row),
            Some(Err(fault)) => builder.faults.add(line, fault),
            None => match Columns::find(&record, line, &mut builder.faults) {
                Some(found) => columns = Some(found),
                None => return,
            },
        }
    }
    if columns.is_none() {
        builder.faults.add(1, Fault::Empty);
    }
}

/// Counts lines up to the record that was read last.
struct LineCounter<'t> {
    text: &'t [u8],
    at: usize,
    line: u64,
}

impl LineCounter<'_> {
    /// The line on which a record begins, behind the line ends before it.
    fn line_of(&mut self, record: &ByteRecord) -> u64 {
        let start = record.position().and_then(|position| usize::try_from(position.byte()).ok()).unwrap_or(self.at);
        let rest = self.text.get(start..).unwrap_or_default();
        let start = start + rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let passed = self.text.get(self.at..start).unwrap_or_default();
        self.line += memchr_iter(b'\n', passed).count() as u64;
        self.at = start;
        self.line
    }
}

/// Where in a record each of [`COLUMNS`] is.
struct Columns {
    positions: [Option<usize>; COLUMNS.len()],
    count: usize,
}

impl Columns {
    fn find(header: &ByteRecord, line: u64, faults: &mut Faults) -> Option<Self> {
        let mut positions = [None; COLUMNS.len()];
        for (position, name) in header.iter().enumerate() {
            match COLUMNS.iter().zip(&mut positions).find(|(known, _)| known.as_bytes() == name) {
                Some((name, Some(_))) => faults.add(line, Fault::RepeatedColumn(name)),
                Some((_, place)) => *place = Some(position),
                None => faults.add(line, Fault::UnknownColumn(position + 1)),
            }
        }
        for (name, _) in COLUMNS.iter().zip(&positions).take(REQUIRED).filter(|(_, position)| position.is_none()) {
            faults.add(line, Fault::MissingColumn(name));
        }
        faults.is_empty().then_some(Self { positions, count: header.len() })
    }

    fn row<'r>(&self, record: &'r ByteRecord) -> Result<Row<'r>, Fault> {
        if record.iter().any(|field| field.contains(&b'\n')) {
            return Err(Fault::LineBreak);
        }
        if record.len() != self.count {
            return Err(Fault::FieldCount { found: record.len(), expected: self.count });
        }
        let field = |position: Option<usize>| position.and_then(|position| record.get(position)).unwrap_or_default();
        let [credential, customer, plan, overrides, time_zone, valid_until, suspended] = self.positions.map(field);
        Ok(Row { credential, customer, plan, overrides, time_zone, valid_until, suspended })
    }
}
