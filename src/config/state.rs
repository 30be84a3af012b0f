//! `state:`: the file that keeps what limits have counted while tollgate does not run.

use crate::config::read::{Field, Section};
use crate::config::settings::STATE;
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
    /// How often it is written by default.
    pub const DEFAULT_EVERY: Nanos = Nanos::from_secs(10);
}

const FILE: &str = "the name of a file, like `tollgate.state`";

/// Reads `state:`; the inner `None` if it is absent.
pub(super) fn read(top: &Section<'_>) -> Option<Option<StateFile>> {
    top.get_with("state", |field| {
        let section = field.section(&STATE)?;
        let file = section.required("file", FILE).and_then(|field| named_file(&field, FILE));
        let every = section.get_or("every", StateFile::DEFAULT_EVERY, Field::duration);
        Some(StateFile { file: file?, every: every? })
    })
}
