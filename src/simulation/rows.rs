//! The decisions as CSV: one line per request, in order.

use std::io::{self, Write};

use csv::Writer;

use crate::algorithm::{Decision, Denial};
use crate::simulation::Arrival;
use crate::simulation::run::RequestOutcome;
use crate::units::Nanos;

/// The columns.
pub const HEADER: [&str; 7] = ["t_ns", "key", "cost", "allowed", "wait_ns", "retry_after_ns", "remaining"];

/// Writes rows as they are decided; call [`Rows::finish`] after the last.
///
/// `allowed` is 0 or 1; `wait_ns` the wait of an admitted request, empty on denied rows; `retry_after_ns` empty on
/// admitted rows and where no wait helps; `remaining` the largest whole cost that would now be admitted at once, after
/// this row, empty where there is no such number. Keys are written as they were read, byte for byte.
pub struct Rows<W: Write> {
    writer: Writer<W>,
    number: itoa::Buffer,
}

impl<W: Write> Rows<W> {
    /// Writes the header line.
    pub fn new(output: W) -> io::Result<Self> {
        let mut writer = csv::WriterBuilder::new().buffer_capacity(1 << 16).from_writer(output);
        writer.write_record(HEADER).map_err(io_error)?;
        Ok(Self { writer, number: itoa::Buffer::new() })
    }

    /// Writes one row.
    pub fn write(&mut self, key: &[u8], arrival: &Arrival, outcome: &RequestOutcome<'_>) -> io::Result<()> {
        let (wait, retry_after) = match outcome.decision {
            Decision::Admit { wait } => (Some(wait), None),
            Decision::Deny(Denial::Later { retry_after }) => (None, Some(retry_after)),
            Decision::Deny(Denial::Busy | Denial::Never { .. }) => (None, None),
        };
        self.number(Some(arrival.at.get()))?;
        self.writer.write_field(key).map_err(io_error)?;
        self.number(Some(arrival.cost))?;
        self.number(Some(u64::from(outcome.decision.is_admitted())))?;
        self.number(wait.map(Nanos::get))?;
        self.number(retry_after.map(Nanos::get))?;
        self.number(outcome.headroom.remaining)?;
        self.writer.write_record(None::<&[u8]>).map_err(io_error)
    }

    /// Writes the last rows to the output.
    pub fn finish(mut self) -> io::Result<()> {
        self.writer.flush()
    }

    fn number(&mut self, number: Option<u64>) -> io::Result<()> {
        let field = number.map_or("", |number| self.number.format(number));
        self.writer.write_field(field).map_err(io_error)
    }
}

/// The I/O error behind a CSV error. Only the output can fail: every row has the same number of fields.
pub fn io_error(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}

#[cfg(test)]
mod tests;
