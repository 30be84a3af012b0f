//! The file that keeps the rows while the process does not run: CSV as a directory file has it, with credentials as their
//! SHA-256. Rows that change are added at its end, where they take the place of those of the same credential before.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;

use super::session::MAX_ROWS;
use crate::files::{self, Stamp, Unreadable};
use crate::units::Nanos;

/// The file, and whether it has all that is known.
pub(super) struct Snapshot {
    path: PathBuf,
    is_current: bool,
}

/// What a snapshot held.
pub(super) struct Kept {
    pub(super) text: String,
    /// When it was last written.
    pub(super) at: Nanos,
}

impl Snapshot {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path, is_current: true }
    }

    /// Where it is.
    pub(super) fn path(&self) -> String {
        self.path.display().to_string()
    }

    /// What it holds; `None` where there is none, or it lacks rows that are known.
    ///
    /// Errors: why it cannot be used, to be said after its name.
    pub(super) fn read(&self) -> Result<Option<Kept>, String> {
        if !self.is_current {
            return Ok(None);
        }
        let (bytes, seen) = files::read(&self.path, MAX_ROWS);
        let mut bytes = match bytes {
            Ok(bytes) => bytes,
            Err(Unreadable::Failed(error)) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(unreadable) => return Err(unreadable.to_string()),
        };
        // a row that was being added when the machine stopped
        bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last.saturating_add(1)));
        let text = String::from_utf8(bytes).map_err(|_| "is not in UTF-8")?;
        let at = match seen.stamp {
            Stamp::There { written: (seconds, _), .. } => Nanos::from_secs(u64::try_from(seconds).unwrap_or_default()),
            Stamp::Missing => Nanos::ZERO,
        };
        Ok(Some(Kept { text, at }))
    }

    /// Holds these rows from here on.
    pub(super) fn replace(&mut self, text: &str) {
        let written = files::replace(&self.path, |file| file.write_all(text.as_bytes()));
        self.note(written);
    }

    /// Holds these rows beside the others; they come without the line of names.
    pub(super) fn add(&mut self, rows: &str) {
        // what is added to rows of which some are missing is of no use
        if self.is_current {
            let append = || -> io::Result<()> {
                let mut file = OpenOptions::new().append(true).open(&self.path)?;
                file.write_all(rows.as_bytes())?;
                file.sync_data()
            };
            let written = append();
            self.note(written);
        }
    }

    fn note(&mut self, written: io::Result<()>) {
        if let Err(error) = &written {
            let file = self.path();
            tracing::error!(%error, file, "customers cannot be written down; a start without PostgreSQL will know older ones");
        }
        self.is_current = written.is_ok();
    }
}
