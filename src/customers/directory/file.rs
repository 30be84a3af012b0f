//! The customers of a file, and changes of that file if the configuration allows them: the rows of one customer change, and
//! the rest of the file stays as it was written. Content that the directory would refuse is never written.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::csv::{fields, record};
use super::edit::{Change, ChangeError, ChangedRows, RowText, table_of};
use super::fault::Faults;
use super::groups::GroupTable;
use super::row::{RowKind, columns};
use super::table::{CustomerTable, Format};
use crate::files::{self, Stamp};
use crate::ruleset::groups::COLUMNS;
use crate::ruleset::overrides::OverridesReader;

/// The byte order mark, with which a text may begin.
const MARK: char = '\u{feff}';
const NO_LINES: &str = "a row of the file does not stand on lines of its own, so it cannot be changed here";

/// The directory of the customers in a file.
pub struct FileDirectory {
    /// The customers.
    pub table: Arc<CustomerTable>,
    /// The file, if tollgate may write it.
    pub writable: Option<WritableFile>,
}

/// A file of customers that tollgate may write.
#[derive(Clone)]
pub struct WritableFile {
    /// The path of the file.
    pub path: PathBuf,
    /// The format of the file.
    pub format: Format,
    /// The maximum size of the file, in bytes.
    pub max_bytes: usize,
    /// The parser of plans, time zones and overrides.
    pub reader: Arc<dyn OverridesReader>,
}

impl WritableFile {
    /// The current rows of a customer in the file. Blocks.
    pub(super) fn rows(&self, customer: &str, groups: &GroupTable) -> Result<Vec<RowText>, ChangeError> {
        let (text, _) = self.read()?;
        let of_customer = |(_, row): (u64, RowText)| (row.get("customer") == customer).then_some(row);
        Ok(self.rows_of(&text, groups)?.into_iter().filter_map(of_customer).collect())
    }

    /// Changes a customer, whose rows may belong to `groups`. The file is never written in part: it is either as before or
    /// changed. The caller makes one change at a time; blocks.
    pub(super) fn change(
        &self,
        customer: &str,
        change: &Change,
        groups: &GroupTable,
    ) -> Result<ChangedRows, ChangeError> {
        let (text, stamp) = self.read()?;
        let (changed, edited) = self.edit(&text, customer, change, groups)?;
        if edited != text {
            self.write(edited.as_bytes(), stamp)?;
        }
        Ok(changed)
    }

    /// The text of the file after a change of a customer.
    fn edit(
        &self,
        text: &str,
        customer: &str,
        change: &Change,
        groups: &GroupTable,
    ) -> Result<(ChangedRows, String), ChangeError> {
        let rows = self.rows_of(text, groups)?;
        let (own, others): (Vec<_>, Vec<_>) = rows.iter().partition(|(_, row)| row.get("customer") == customer);
        let before: Vec<RowText> = own.into_iter().map(|(_, row)| row.clone()).collect();
        let after = change.apply(customer, &before, groups.levels())?;
        let changed = ChangedRows { before, after };
        if changed.before == changed.after {
            return Ok((changed, text.to_owned()));
        }
        table_of(&changed.after, &self.reader, groups)?;
        let edited = self.edited(text, &rows, &changed, groups.levels())?;
        if edited.len() > self.max_bytes {
            let message = format!("{} would be larger than {} KiB", self.name(), self.max_bytes >> 10);
            return Err(ChangeError::Conflict(message));
        }
        let mut expected: Vec<&RowText> = others.into_iter().map(|(_, row)| row).chain(&changed.after).collect();
        let written = self.rows_of(&edited, groups).map_err(|_| ChangeError::Conflict(NO_LINES.to_owned()))?;
        let mut written: Vec<&RowText> = written.iter().map(|(_, row)| row).collect();
        expected.sort_unstable();
        written.sort_unstable();
        if expected != written {
            return Err(ChangeError::Conflict(NO_LINES.to_owned()));
        }
        self.check(&edited, groups).map_err(|faults| match self.check(text, groups) {
            Ok(()) => ChangeError::Conflict(faults.reasons()),
            Err(before) => self.refused(&before),
        })?;
        Ok((changed, edited))
    }

    fn read(&self) -> Result<(String, Stamp), ChangeError> {
        let (bytes, seen) = files::read(&self.path, self.max_bytes);
        let bytes = bytes.map_err(|unreadable| ChangeError::Unavailable(format!("{} {unreadable}", self.name())))?;
        let text = String::from_utf8(bytes);
        let text = text.map_err(|_| ChangeError::Conflict(format!("{} is not in UTF-8", self.name())))?;
        Ok((text, seen.stamp))
    }

    fn rows_of(&self, text: &str, groups: &GroupTable) -> Result<Vec<(u64, RowText)>, ChangeError> {
        let (rows, faults) = RowText::read(text, self.format, RowKind::Credentials, groups.levels());
        if faults.is_empty() { Ok(rows) } else { Err(self.refused(&faults)) }
    }

    /// Checks whether the directory would accept this text.
    fn check(&self, text: &str, groups: &GroupTable) -> Result<(), Faults> {
        let reader = Arc::clone(&self.reader);
        CustomerTable::load(text, self.format, &rand::random(), reader, groups).map(drop)
    }

    fn refused(&self, faults: &Faults) -> ChangeError {
        let name = self.name();
        ChangeError::Conflict(match faults.faults.first() {
            Some((line, fault)) => format!("{name} has errors that must be corrected first: line {line}: {fault}"),
            None => format!("{name} has errors that must be corrected first"),
        })
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Replaces the file with `bytes`, with the same owner and mode, unless another program has written it since `read`.
    fn write(&self, bytes: &[u8], read: Stamp) -> Result<(), ChangeError> {
        let unwritten = |error: io::Error| match error.kind() {
            io::ErrorKind::ResourceBusy => {
                ChangeError::Conflict(format!("{} was changed by another program meanwhile; try again", self.name()))
            }
            _ => ChangeError::Unavailable(format!("{} cannot be written: {error}", self.name())),
        };
        put(&self.path, bytes, read).or_else(|error| match fs::read(&self.path) {
            // the file was replaced; it is only unknown whether the change survives a power failure
            Ok(there) if there == bytes => {
                tracing::warn!(%error, file = self.name(), "cannot sync the directory of customers to disk; the change may be lost in a power failure");
                Ok(())
            }
            _ => Err(unwritten(error)),
        })
    }

    /// The text with one customer's rows changed. Lines of other customers, comments and blank lines stay as they are.
    fn edited(
        &self,
        text: &str,
        rows: &[(u64, RowText)],
        changed: &ChangedRows,
        levels: &[Arc<str>],
    ) -> Result<String, ChangeError> {
        let mut lines: Vec<String> = text.split_inclusive('\n').map(str::to_owned).collect();
        // no entry stands after the end of the document
        let end = lines.iter().position(|line| self.format == Format::Yaml && line.trim_end() == "...");
        let after_end = lines.split_off(end.unwrap_or(lines.len()));
        let first = lines.iter().position(|line| !line.trim_matches(MARK).trim().is_empty()).unwrap_or_default();
        let columns = match self.format {
            Format::Csv => with_columns(&mut lines, first, changed, levels),
            Format::Yaml => Vec::new(),
        };
        let starts: Vec<usize> = rows.iter().map(|(line, _)| index(*line)).collect();
        let indent = match starts.first().and_then(|first| lines.get(*first)) {
            Some(line) => line.chars().take_while(|c| *c == ' ').collect(),
            None => String::new(),
        };
        let written = |row: &RowText| match self.format {
            Format::Csv => row.csv_line(&columns),
            Format::Yaml => format!("{indent}- {}\n", yaml_entry(row, levels)),
        };
        let mut edited = String::new();
        let mut at = 0;
        for (position, (_, row)) in rows.iter().enumerate() {
            let start = starts.get(position).copied().unwrap_or(at);
            let end = starts.get(position.saturating_add(1)).copied().unwrap_or(lines.len());
            if start < at || end <= start {
                return Err(ChangeError::Conflict(NO_LINES.to_owned()));
            }
            edited.extend(lines.get(at..start).into_iter().flatten().map(String::as_str));
            let block = lines.get(start..end).unwrap_or_default();
            let is_between = |line: &&String| line.trim().is_empty() || line.trim_start().starts_with('#');
            let between = match self.format {
                Format::Csv => block.iter().skip(1).collect::<Vec<_>>(),
                Format::Yaml => block.iter().rev().take_while(is_between).collect(),
            };
            let length = block.len().saturating_sub(between.len());
            match changed.before.contains(row) && !changed.after.contains(row) {
                false => edited.extend(block.get(..length).into_iter().flatten().map(String::as_str)),
                true => {
                    let same = |new: &&RowText| new.get("credential") == row.get("credential");
                    edited.extend(changed.after.iter().find(same).map(written));
                }
            }
            edited.extend(block.get(length..).into_iter().flatten().map(String::as_str));
            at = end;
        }
        edited.extend(lines.get(at..).into_iter().flatten().map(String::as_str));
        let is_known = |new: &&RowText| changed.before.iter().any(|old| old.get("credential") == new.get("credential"));
        let added: String = changed.after.iter().filter(|row| !is_known(row)).map(written).collect();
        if self.format == Format::Yaml && rows.is_empty() {
            edited = edited.lines().filter(|line| line.trim() != "[]").map(|line| format!("{line}\n")).collect();
        }
        if !edited.is_empty() && !edited.ends_with('\n') {
            edited.push('\n');
        }
        edited.push_str(&added);
        let is_empty = rows.len().saturating_add(changed.after.len()) == changed.before.len();
        if self.format == Format::Yaml && is_empty {
            edited.push_str("[]\n");
        }
        edited.extend(after_end);
        Ok(edited)
    }
}

/// Replaces a file with `bytes`, with the same owner and mode as far as the system allows. Errors: `ResourceBusy` if the
/// file has changed since it was `read`.
fn put(path: &Path, bytes: &[u8], read: Stamp) -> io::Result<()> {
    // a symbolic link stays and points to the new file
    let path = path.canonicalize()?;
    let there = fs::metadata(&path)?;
    files::replace(&path, |file| {
        file.write_all(bytes)?;
        let (owner, group) = (there.uid(), there.gid());
        // only root may give a file to another user
        let has_group = fchown(&*file, Some(owner), Some(group)).or_else(|_| fchown(&*file, None, Some(group))).is_ok();
        // the old group's permissions must not apply to another group
        let mode = if has_group { there.mode() } else { there.mode() & !0o070 };
        file.set_permissions(Permissions::from_mode(mode & 0o7777))?;
        // sync before the check, so that nothing slow comes between the check and the rename
        file.sync_all()?;
        if Stamp::of(&path) == read { Ok(()) } else { Err(io::ErrorKind::ResourceBusy.into()) }
    })
}

/// The index of a line; line numbers begin at 1.
fn index(line: u64) -> usize {
    usize::try_from(line).unwrap_or(usize::MAX).saturating_sub(1)
}

/// Adds the columns to a CSV file that the changed rows need and its header, the line `first`, lacks. Returns all columns.
fn with_columns(lines: &mut [String], first: usize, changed: &ChangedRows, levels: &[Arc<str>]) -> Vec<String> {
    let header = lines.get(first).map(|line| line.trim_start_matches(MARK)).unwrap_or_default();
    let mut there: Vec<String> = fields(header).iter().map(str::to_owned).collect();
    let is_needed = |column: &&str| changed.after.iter().any(|row| !row.get(column).is_empty());
    let missing = columns(levels).filter(|column| !there.iter().any(|there| there == column)).filter(is_needed);
    let missing: Vec<&str> = missing.collect();
    for (position, line) in lines.iter_mut().enumerate().skip(first) {
        let end = line.trim_end_matches(['\r', '\n']).len();
        if !line.trim().is_empty() {
            let more = missing.iter().map(|column| {
                if position == first { format!(",{}", record([*column].into_iter())) } else { ",".to_owned() }
            });
            line.insert_str(end, &more.collect::<String>());
        }
    }
    there.extend(missing.into_iter().map(str::to_owned));
    there
}

/// A row as an entry of a YAML list, on one line.
fn yaml_entry(row: &RowText, levels: &[Arc<str>]) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    let own = row.columns().filter(|(column, _)| COLUMNS.contains(column)).map(|(column, text)| match column {
        "overrides" | "suspended" => format!("{column}: {text}"),
        _ => format!("{column}: {}", quoted(text)),
    });
    let groups: Map<String, Value> = levels
        .iter()
        .map(|level| (level.to_string(), Value::from(row.get(level))))
        .filter(|(_, group)| group.as_str().is_some_and(|group| !group.is_empty()))
        .collect();
    let groups = (!groups.is_empty()).then(|| format!("groups: {}", Value::from(groups)));
    format!("{{{}}}", own.chain(groups).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests;
