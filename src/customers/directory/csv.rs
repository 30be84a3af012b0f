//! A directory as CSV.

use super::fault::{Fault, Faults};
use super::reading::Reading;
use super::row::Row;

mod records;

use records::{Place, Record, Records};

/// The columns, in any order in the file; the first ones have to be there.
const COLUMNS: [&str; 7] = ["credential", "customer", "plan", "overrides", "time_zone", "valid_until", "suspended"];
const REQUIRED: usize = 3;

/// Reads `text` into `reading`: once to find what changed, then that.
pub(super) fn read(text: &str, reading: &mut Reading<'_>) {
    let mut records = Records::of(text);
    let Some(header) = records.next() else { return reading.faults.add(1, Fault::Empty) };
    let Some(columns) = Columns::find(&header, &mut reading.faults) else { return };
    while let Some(record) = records.next() {
        let Place { at, line } = record.place;
        reading.glance(at, line, columns.row(&record).ok().as_ref());
    }
    for (at, line) in reading.worth_reading() {
        records.go_to(Place { at, line });
        let Some(record) = records.next() else { break };
        match columns.row(&record) {
            Ok(row) => reading.row(line, &row),
            Err(fault) => reading.faults.add(line, fault),
        }
    }
}

/// Where in a line each of [`COLUMNS`] is.
struct Columns {
    positions: [Option<usize>; COLUMNS.len()],
    count: usize,
}

impl Columns {
    fn find(header: &Record<'_>, faults: &mut Faults) -> Option<Self> {
        let line = header.place.line;
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

    /// The row that a record is.
    fn row<'r>(&self, record: &Record<'r>) -> Result<Row<'r>, Fault> {
        if record.has_line_break() {
            return Err(Fault::LineBreak);
        }
        if record.len() != self.count {
            return Err(Fault::FieldCount { found: record.len(), expected: self.count });
        }
        let field = |position: Option<usize>| position.and_then(|position| record.field(position)).unwrap_or_default();
        let [credential, customer, plan, overrides, time_zone, valid_until, suspended] = self.positions.map(field);
        Ok(Row { credential, customer, plan, overrides, time_zone, valid_until, suspended })
    }
}
