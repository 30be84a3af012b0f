//! Reads a directory from CSV, and writes rows as CSV.
//!
//! Spaces around fields are ignored, blank lines are skipped, and `\r` ends a line like `\n` and `\r\n`.

use std::sync::Arc;

use csv::{ReaderBuilder, StringRecord, Trim, WriterBuilder};
use memchr::memchr_iter;

use super::fault::{Fault, Faults};
use super::row::{MAX_COLUMNS, Row, RowKind, columns};
use crate::ruleset::groups::COLUMNS;

/// Reads the rows of `text`; see [`Format::read`](super::table::Format::read).
pub(super) fn read(
    text: &str,
    kind: RowKind,
    levels: &[Arc<str>],
    mut take: impl FnMut(&Row<'_>, &mut Faults),
) -> Faults {
    let mut reader = ReaderBuilder::new();
    let mut reader = reader.has_headers(false).flexible(true).from_reader(text.as_bytes());
    let (mut record, mut lines) = (StringRecord::new(), LineCounter { text: text.as_bytes(), at: 0, line: 1 });
    let (mut faults, mut columns) = (Faults::default(), None::<Columns>);
    // reading from memory cannot fail
    while reader.read_record(&mut record).unwrap_or(false) {
        let line = lines.line_of(&record);
        let is_comment = record.get(0).is_some_and(|first| first.trim_ascii_start().starts_with('#'));
        match columns.as_ref().map(|columns| columns.row(line, &record)) {
            Some(Ok(row)) => take(&row, &mut faults),
            Some(Err(fault)) => faults.add(line, if is_comment { Fault::Comment } else { fault }),
            None => {
                match is_comment {
                    true => faults.add(line, Fault::Comment),
                    false => columns = Some(Columns::find(&record, line, (kind, levels), &mut faults)),
                }
                if !faults.is_empty() {
                    return faults;
                }
            }
        }
    }
    if columns.is_none() {
        faults.add(1, Fault::Empty);
    }
    faults
}

/// The fields of a line of CSV; none if it cannot be read.
pub(super) fn fields(line: &str) -> StringRecord {
    let mut reader = ReaderBuilder::new().has_headers(false).trim(Trim::All).from_reader(line.as_bytes());
    reader.records().next().and_then(Result::ok).unwrap_or_default()
}

/// Fields as a line of CSV, without the line end.
pub(super) fn record<'f>(fields: impl Iterator<Item = &'f str>) -> String {
    let mut writer = WriterBuilder::new().from_writer(Vec::new());
    // writing to memory does not fail
    drop(writer.write_record(fields));
    let bytes = writer.into_inner().unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim_end_matches('\n').to_owned()
}

/// Counts lines up to the latest record.
struct LineCounter<'t> {
    text: &'t [u8],
    at: usize,
    line: u64,
}

impl LineCounter<'_> {
    /// The line on which a record begins, after the blank lines before it.
    fn line_of(&mut self, record: &StringRecord) -> u64 {
        let start = record.position().and_then(|position| usize::try_from(position.byte()).ok()).unwrap_or(self.at);
        let rest = self.text.get(start..).unwrap_or_default();
        let start = start + rest.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let passed = self.text.get(self.at..start).unwrap_or_default();
        self.line += memchr_iter(b'\n', passed).count() as u64;
        self.at = start;
        self.line
    }
}

/// The position of each of the [`columns`] in a record.
struct Columns {
    positions: [Option<usize>; MAX_COLUMNS],
    count: usize,
}

impl Columns {
    fn find(header: &StringRecord, line: u64, (kind, levels): (RowKind, &[Arc<str>]), faults: &mut Faults) -> Self {
        let mut found = Self { positions: [None; MAX_COLUMNS], count: header.len() };
        for (position, name) in header.iter().map(str::trim_ascii).enumerate() {
            let mut known = columns(levels).zip(&mut found.positions).filter(|(known, _)| kind.takes(known));
            match known.find(|(known, _)| *known == name) {
                Some((name, Some(_))) => faults.add(line, Fault::RepeatedColumn(name.to_owned())),
                Some((_, place)) => *place = Some(position),
                None => faults.add(line, Fault::UnknownColumn(position + 1)),
            }
        }
        let is_missing = |(name, position): &(&&str, &Option<usize>)| position.is_none() && kind.requires(name);
        for (name, _) in COLUMNS.iter().zip(&found.positions).filter(is_missing) {
            faults.add(line, Fault::MissingColumn(name));
        }
        found
    }

    fn row<'r>(&self, line: u64, record: &'r StringRecord) -> Result<Row<'r>, Fault> {
        if record.iter().any(|field| field.trim_ascii().contains('\n')) {
            return Err(Fault::LineBreak);
        }
        if record.len() != self.count {
            return Err(Fault::FieldCount { found: record.len(), expected: self.count });
        }
        let field =
            |position: Option<usize>| position.and_then(|position| record.get(position)).map_or("", str::trim_ascii);
        Ok(Row::new(line, self.positions.map(field)))
    }
}
