//! The files that a configuration includes.

use std::path::{Path, PathBuf};

use super::name;
use super::named_files::{Files, Refused};
use crate::config::{IncludedFile, MAX_BYTES, NamedFile, Problem};
use crate::files::FileVersion;

/// The most files that a configuration may include.
const MAX_FILES: usize = 256;

/// Reads the files that a configuration includes; the files of a pattern are in the order of their names. `files.seen` gets
/// the patterns, too, so that a file that is added is noticed.
pub(super) fn read(named: &[NamedFile], files: &mut Files<'_>) -> Result<Vec<IncludedFile>, Refused> {
    let mut included: Vec<IncludedFile> = Vec::new();
    for pattern in named {
        let fail = |message: String| Problem::error(pattern.place.clone(), message);
        let matching = matching(&files.path(pattern), &mut files.seen);
        for file in matching.map_err(|reason| files.refuse(fail(reason)))? {
            let called = name(&file);
            if included.iter().any(|other| other.name == called) {
                continue;
            }
            if included.len() >= MAX_FILES {
                return Err(files.refuse(fail(format!("includes more than {MAX_FILES} files"))));
            }
            let (bytes, looked) = crate::files::read(&file, MAX_BYTES);
            files.seen.push(looked);
            let bytes = bytes.map_err(|reason| files.refuse(fail(format!("includes {called}, which {reason}"))))?;
            included.push(IncludedFile { text: files.decode(bytes, &file)?, name: called });
        }
    }
    Ok(included)
}

/// The files at `path`, which may be a pattern.
///
/// Errors: the folder cannot be read, and why.
fn matching(path: &Path, seen: &mut Vec<FileVersion>) -> Result<Vec<PathBuf>, String> {
    if !path.file_name().is_some_and(|called| called.as_encoded_bytes().contains(&b'*')) {
        return Ok(vec![path.to_owned()]);
    }
    crate::files::list(path, seen)
        .map_err(|error| format!("includes {}, whose folder cannot be read: {error}", name(path)))
}
