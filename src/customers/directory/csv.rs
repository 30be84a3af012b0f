//! Reads a directory from CSV, and writes rows as CSV.
//!
//! Spaces around fields are ignored, blank lines are skipped, and `\r` ends a line like `\n` and `\r\n`.

use csv::{ReaderBuilder, StringRecord, WriterBuilder};
use memchr::memchr_iter;

use super::fault::Fault;
use super::row::{Row, RowSink};
use crate::ruleset::groups::{COLUMNS, MOST_LEVELS};

/// Reads `text` into `rows`.
pub(super) fn read(text: &str, rows: &mut impl RowSink) {
    let mut reader = ReaderBuilder::new();
    let mut reader = reader.has_headers(false).flexible(true).from_reader(text.as_bytes());
    let (mut record, mut lines) = (StringRecord::new(), LineCounter { text: text.as_bytes(), at: 0, line: 1 });
    let mut columns: Option<Columns> = None;
    // reading from memory cannot fail
    while reader.read_record(&mut record).unwrap_or(false) {
        let line = lines.line_of(&record);
        let is_comment = record.get(0).is_some_and(|first| first.trim_ascii_start().starts_with('#'));
        match columns.as_ref().map(|columns| columns.row(&record)) {
            Some(Ok(row)) => rows.add(line, &row),
            Some(Err(_)) if is_comment => rows.faults().add(line, Fault::Comment),
            None if is_comment => return rows.faults().add(line, Fault::Comment),
            Some(Err(fault)) => rows.faults().add(line, fault),
            None => match Columns::find(&record, line, rows) {
                Some(found) => columns = Some(found),
                None => return,
            },
        }
    }
    if columns.is_none() {
        rows.faults().add(1, Fault::Empty);
    }
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

/// The position of each of [`COLUMNS`] in a record, and of each level of groups.
struct Columns {
    positions: [Option<usize>; COLUMNS.len()],
    levels: [Option<usize>; MOST_LEVELS],
    count: usize,
}

impl Columns {
    fn find(header: &StringRecord, line: u64, rows: &mut impl RowSink) -> Option<Self> {
        let (content, levels) = (rows.content(), rows.levels().to_vec());
        let mut columns = Self { positions: [None; COLUMNS.len()], levels: [None; MOST_LEVELS], count: header.len() };
        let faults = rows.faults();
        for (position, name) in header.iter().map(str::trim_ascii).enumerate() {
            let own = COLUMNS.iter().zip(&mut columns.positions).filter(|(known, _)| content.takes(known));
            let all = own.map(|(known, place)| (*known, place));
            let mut all = all.chain(levels.iter().map(|level| &**level).zip(&mut columns.levels));
            match all.find(|(known, _)| *known == name) {
                Some((name, Some(_))) => faults.add(line, Fault::RepeatedColumn(name.to_owned())),
                Some((_, place)) => *place = Some(position),
                None => faults.add(line, Fault::UnknownColumn(position + 1)),
            }
        }
        let is_missing = |(name, position): &(&&str, &Option<usize>)| position.is_none() && content.requires(name);
        for (name, _) in COLUMNS.iter().zip(&columns.positions).filter(is_missing) {
            faults.add(line, Fault::MissingColumn(name));
        }
        faults.is_empty().then_some(columns)
    }

    fn row<'r>(&self, record: &'r StringRecord) -> Result<Row<'r>, Fault> {
        if record.iter().any(|field| field.trim_ascii().contains('\n')) {
            return Err(Fault::LineBreak);
        }
        if record.len() != self.count {
            return Err(Fault::FieldCount { found: record.len(), expected: self.count });
        }
        let field =
            |position: Option<usize>| position.and_then(|position| record.get(position)).map_or("", str::trim_ascii);
        let [credential, customer, level, group, plan, overrides, time_zone, valid_until, suspended] =
            self.positions.map(field);
        let groups = self.levels.map(field);
        Ok(Row { credential, customer, level, group, plan, overrides, time_zone, valid_until, suspended, groups })
    }
}
