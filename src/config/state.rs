//! `state:`: the file that keeps what limits have counted while tollgate does not run.

use crate::config::read::Section;
use crate::config::store::{NamedFile, named_file};
use crate::units::Nanos;

/// Where sticky states are kept over restarts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFile {
    /// The file.
    pub file: NamedFile,
    /// How often it is written.
    pub every: Nanos,
}

impl StateFile {
    /// How often it is written unless told otherwise.
    pub const DEFAULT_EVERY: Nanos = Nanos::from_secs(10);
}

const FILE: &str = "the name of a file, like `tollgate.state`";

/// Reads `state:`; the inner `None` if it is absent.
pub(super) fn read(top: &Section<'_>) -> Option<Option<StateFile>> {
    top.get_with("state", |field| {
        let section = field.section(&["file", "every"])?;
        let file = section.required("file", FILE).and_then(|field| named_file(&field, FILE));
        let every = section.get_or("every", StateFile::DEFAULT_EVERY, |field| match field.positive_duration()? {
            often if often < LEAST => field.fail(field.error(format!("must be at least {LEAST}"))),
            every => Some(every),
        });
        Some(StateFile { file: file?, every: every? })
    })
}

/// More often, and it would do nothing else.
const LEAST: Nanos = Nanos::new(100_000_000);
