//! The groups of customers, from where the configuration says.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::directory::{beside, bytes, explain_all, format, max_bytes};
use super::{decode, name};
use crate::config::{ConfiguredOverrides, NamedFile, Problems};
use crate::customers::directory::GroupTable;
use crate::files::{FileVersion, Print};

/// Groups, and what they were made of.
#[derive(Debug)]
pub(super) struct OpenGroups {
    /// Absent where no file lists them.
    from: Option<(PathBuf, Print)>,
    overrides: ConfiguredOverrides,
    groups: Arc<GroupTable>,
}

/// Opens the groups of the file that the configuration at `path` names, if it names one. Those that were `kept` go on if
/// they are made of the same.
pub(super) fn open(
    path: &Path,
    named: Option<&NamedFile>,
    overrides: &ConfiguredOverrides,
    kept: &mut Option<OpenGroups>,
    seen: &mut Vec<FileVersion>,
) -> Result<Arc<GroupTable>, Problems> {
    let read = named.map(|named| {
        let file = beside(path, named);
        let (bytes, print) = bytes(named, &file, max_bytes(format(&name(&file))), seen)?;
        Ok((bytes, (file, print)))
    });
    let (bytes, from) = read.transpose()?.unzip();
    if let Some(open) = kept.as_ref().filter(|open| open.from == from && open.overrides == *overrides) {
        return Ok(Arc::clone(&open.groups));
    }
    let groups = match (bytes, &from) {
        (Some(bytes), Some((file, _))) => {
            let text = decode(bytes, file)?;
            let reader = Arc::new(overrides.clone());
            let read = GroupTable::read(&text, format(&name(file)), overrides.levels(), reader);
            read.map_err(|faults| explain_all(&name(file), faults))?
        }
        _ => GroupTable::unlisted(overrides.levels()),
    };
    let groups = Arc::new(groups);
    *kept = Some(OpenGroups { from, overrides: overrides.clone(), groups: Arc::clone(&groups) });
    Ok(groups)
}
