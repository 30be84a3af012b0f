//! The files that a configuration includes.

use std::path::{Path, PathBuf};

use super::{decode, name, refuse};
use crate::cli::source::directory::resolve_path;
use crate::config::{self, IncludedFile, NamedFile, Problem, Problems};
use crate::files::{self, FileVersion};
use crate::ruleset::domains::Pattern;

/// The most files that a configuration may include.
const MOST: usize = 256;

/// Reads the files that the configuration at `path` includes; the files of a pattern are in the order of their names. `seen`
/// gets the folders of patterns, too, so that a file that is added there is noticed.
pub(super) fn read(
    path: &Path,
    named: &[NamedFile],
    seen: &mut Vec<FileVersion>,
) -> Result<Vec<IncludedFile>, Problems> {
    let mut included: Vec<IncludedFile> = Vec::new();
    for pattern in named {
        let fail = |message: String| refuse(Problem::error(pattern.place.clone(), message));
        for file in matching(&resolve_path(path, pattern), seen).map_err(&fail)? {
            let called = name(&file);
            if included.iter().any(|other| other.name == called) {
                continue;
            }
            if included.len() >= MOST {
                return Err(fail(format!("includes more than {MOST} files")));
            }
            let (bytes, looked) = files::read(&file, config::MAX_BYTES);
            seen.push(looked);
            let bytes = bytes.map_err(|reason| fail(format!("includes {called}, which {reason}")))?;
            included.push(IncludedFile { text: decode(bytes, &file)?, name: called });
        }
    }
    Ok(included)
}

/// The files whose names match `pattern`. As in shells, `*` matches no hidden file.
///
/// Errors: the folder cannot be read, and why.
fn matching(pattern: &Path, seen: &mut Vec<FileVersion>) -> Result<Vec<PathBuf>, String> {
    let called = pattern.file_name().and_then(|called| called.to_str()).unwrap_or_default();
    let folder = pattern.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Some(wanted) = Pattern::new(called) else { return Ok(vec![pattern.to_owned()]) };
    let unread = |error| format!("includes {}, whose folder cannot be read: {error}", name(pattern));
    let names = files::list(folder, seen).map_err(unread)?;
    let is_one =
        |found: &&str| (!found.starts_with('.') || called.starts_with('.')) && wanted.matches(found.as_bytes());
    let names = names.iter().filter_map(|found| found.to_str()).filter(is_one);
    Ok(names.map(|found| pattern.with_file_name(found)).collect())
}
