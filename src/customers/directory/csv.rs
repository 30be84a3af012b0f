//! A directory as CSV.

use csv::{ByteRecord, ReaderBuilder, Trim};

use super::{Building, Fault, Faults, shorten};

/// The columns, in any order in the file.
const COLUMNS: [&str; 3] = ["credential", "customer", "plan"];

/// Reads `text` into `building`.
pub(super) fn read(text: &str, building: &mut Building<'_>) {
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
                building.faults.add(line, Fault::Malformed);
                break;
            }
        }
        match &columns {
            Some(columns) => row(building, line, &record, columns),
            None => match Columns::find(line, &record, &mut building.faults) {
                Some(found) => columns = Some(found),
                None => break,
            },
        }
    }
    if columns.is_none() && building.faults.faults.is_empty() {
        building.faults.add(1, Fault::Empty);
    }
}

fn row(building: &mut Building<'_>, line: u64, record: &ByteRecord, columns: &Columns) {
    if record.iter().any(|field| field.contains(&b'\n')) {
        return building.faults.add(line, Fault::LineBreak);
    }
    if record.len() != columns.count {
        return building.faults.add(line, Fault::FieldCount { found: record.len(), expected: columns.count });
    }
    let field = |column| record.get(column).unwrap_or_default();
    building.row(line, field(columns.credential), field(columns.customer), field(columns.plan));
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

/// Where in a line each column is.
struct Columns {
    credential: usize,
    customer: usize,
    plan: usize,
    count: usize,
}

impl Columns {
    fn find(line: u64, header: &ByteRecord, faults: &mut Faults) -> Option<Self> {
        let mut positions = [None; COLUMNS.len()];
        for (position, name) in header.iter().enumerate() {
            let name = String::from_utf8_lossy(name);
            match COLUMNS.iter().zip(&mut positions).find(|(known, _)| **known == name) {
                Some((name, Some(_))) => faults.add(line, Fault::RepeatedColumn(name)),
                Some((_, place)) => *place = Some(position),
                None if name == "overrides" => faults.add(line, Fault::LaterColumn(name.into_owned())),
                None => faults.add(line, Fault::UnknownColumn(shorten(&name))),
            }
        }
        for (name, _) in COLUMNS.iter().zip(&positions).filter(|(_, position)| position.is_none()) {
            faults.add(line, Fault::MissingColumn(name));
        }
        let [credential, customer, plan] = positions;
        let columns = Self { credential: credential?, customer: customer?, plan: plan?, count: header.len() };
        faults.faults.is_empty().then_some(columns)
    }
}
