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

impl StateSettings {
    /// The default of `every`.
    pub const DEFAULT_EVERY: Nanos = Nanos::from_secs(10);
}

/// Reads `state:`; the inner `None` if it is absent.
pub(super) fn read(top: &Section<'_>) -> Option<Option<StateSettings>> {
    top.get_with("state", |field| {
        let section = field.section(&STATE)?;
        let file = section.must("file", Field::file);
        let every = section.get_or("every", StateSettings::DEFAULT_EVERY, Field::duration);
        Some(StateSettings { file: file?, every: every? })
    })
}
