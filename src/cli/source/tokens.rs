//! The keys that tokens are verified with, from where the configuration says.

use std::path::Path;
use std::sync::Arc;

use super::directory::{beside, bytes};
use super::{decode, name, refuse};
use crate::config::{JwksFile, Mark, Place, Problem, Problems};
use crate::customers::Tokens;
use crate::customers::directory::GroupTable;
use crate::customers::jwt::keys::{KeyFault, Keys};
use crate::files::FileVersion;

/// The largest set of keys that is read.
const MAX_BYTES: usize = 1 << 20;

/// Reads the keys that the configuration at `path` names; `plans` are the names of its plans, `groups` those that
/// customers may belong to.
pub(super) fn open(
    path: &Path,
    jwks: &JwksFile,
    plans: &[String],
    groups: &Arc<GroupTable>,
    seen: &mut Vec<FileVersion>,
) -> Result<Tokens, Problems> {
    let file = beside(path, &jwks.file);
    let (bytes, _) = bytes(&jwks.file, &file, MAX_BYTES, seen)?;
    let keys = Keys::parse(&decode(bytes, &file)?).map_err(|faults| {
        let errors = faults.into_iter().map(|fault| explain(&file, fault)).collect();
        Problems { errors, warnings: Vec::new(), more: 0 }
    })?;
    Tokens::new(Arc::clone(&jwks.rules), keys, plans, Arc::clone(groups), &rand::random()).ok_or_else(|| {
        let message = "names a file that holds no key for any of the `algorithms`";
        refuse(Problem::error(jwks.file.place.clone(), message).found(name(&file)))
    })
}

fn explain(file: &Path, KeyFault { position, path, message }: KeyFault) -> Problem {
    let mark = position.map(|(line, column)| Mark { text: 0, line, column });
    Problem::error(Place { file: name(file).into(), mark, path }, message)
}
