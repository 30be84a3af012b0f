//! `state:`: the file that keeps the states of limits while tollgate does not run.

use crate::config::read::{Field, Section};
use crate::config::settings::STATE;
use crate::config::values::NamedFile;
use crate::units::Nanos;

/// The file that keeps sticky states over restarts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSettings {
    /// The name of the file.
    pub file: NamedFile,
    /// How often the gateway writes the file.
    pub every: Nanos,
}

/// Reads `state:`.
pub(super) fn read(top: &Section<'_>) -> Option<StateSettings> {
    top.optional("state", |field| {
        let section = field.section(&STATE)?;
        let (every, file) = (section.duration("every"), section.must("file", Field::file));
        Some(StateSettings { file: file?, every })
    })
}
