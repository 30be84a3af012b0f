//! The file that keeps the rows while the process does not run: CSV as in a directory file, with the SHA-256 of credentials.
//! The rows of each later read are appended after an empty line, and replace the earlier rows of the same credentials.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::session::MAX_ROWS;
use crate::files::{self, ReadError, Stamp};
use crate::units::Nanos;

/// The snapshot file, and whether it contains all known rows.
pub(super) struct Snapshot {
    path: PathBuf,
    is_current: bool,
}

/// The content of a snapshot.
pub(super) struct SnapshotContent {
    pub(super) text: String,
    /// The time when it was last written.
    pub(super) at: Nanos,
}

impl Snapshot {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path, is_current: true }
    }

    /// Whether this is the file at `path`.
    pub(super) fn is_at(&self, path: &Path) -> bool {
        self.path == path
    }

    /// The path of the file.
    pub(super) fn path(&self) -> String {
        self.path.display().to_string()
    }

    /// The content of the file; `None` if there is no file, or if it lacks known rows.
    ///
    /// Errors: why it cannot be used; the message follows the file's name.
    pub(super) fn read(&self) -> Result<Option<SnapshotContent>, String> {
        if !self.is_current {
            return Ok(None);
        }
        let (bytes, seen) = files::read(&self.path, MAX_ROWS);
        let mut bytes = match bytes {
            Ok(bytes) => bytes,
            Err(ReadError::Failed(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(unreadable) => return Err(unreadable.to_string()),
        };
        // cut off a row that was not complete when the machine stopped
        bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last.saturating_add(1)));
        let text = String::from_utf8(bytes).map_err(|_| "is not in UTF-8")?;
        let at = match seen.stamp {
            Stamp::Present { written: (seconds, _), .. } => {
                Nanos::from_secs(u64::try_from(seconds).unwrap_or_default())
            }
            Stamp::Missing | Stamp::Pattern => Nanos::ZERO,
        };
        Ok(Some(SnapshotContent { text, at }))
    }

    /// Replaces the content with these rows.
    pub(super) fn replace(&mut self, text: &str) {
        let written = files::replace(&self.path, |file| file.write_all(text.as_bytes()));
        self.note(written);
    }

    /// Appends the rows of a later read, which come without the header line.
    pub(super) fn add(&mut self, rows: &str) {
        // if the file lacks earlier rows, an appended row makes it no more usable
        if self.is_current {
            let append = || -> io::Result<()> {
                let mut file = OpenOptions::new().append(true).open(&self.path)?;
                file.write_all(format!("\n{rows}").as_bytes())?;
                file.sync_data()
            };
            let written = append();
            self.note(written);
        }
    }

    fn note(&mut self, written: io::Result<()>) {
        if let Err(error) = &written {
            let file = self.path();
            tracing::error!(%error, file, "cannot write the snapshot of customers; a start without PostgreSQL uses an older one");
        }
        self.is_current = written.is_ok();
    }
}
