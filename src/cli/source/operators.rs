//! What operators may do, with the token from the file that the configuration names.

use std::path::Path;

use super::store;
use super::{name, refuse};
use crate::cli::source::directory::beside;
use crate::config::{NamedFile, Operators, Problem, Problems};
use crate::files::FileVersion;
use crate::runtime::reload::{AccessTerms, Token};

/// The shortest token, in bytes.
const LEAST_TOKEN: usize = 16;

/// Reads the file that `says` names, which lies relative to the configuration at `path`.
pub(super) fn read(path: &Path, says: &Operators, seen: &mut Vec<FileVersion>) -> Result<AccessTerms, Problems> {
    let token = says.token_file.as_ref().map(|named| token(path, named, seen)).transpose()?;
    let audit_log = says.audit_log.as_ref().map(|named| beside(path, named));
    Ok(AccessTerms { token, audit_log, hosts: says.hosts.clone(), top_denied_metrics: says.top_denied_metrics })
}

fn token(path: &Path, named: &NamedFile, seen: &mut Vec<FileVersion>) -> Result<Token, Problems> {
    let text = store::token(path, named, seen)?;
    if text.len() < LEAST_TOKEN {
        let problem = Problem::error(named.place.clone(), "names a file that holds too short a token");
        let found = format!("{} bytes in {}", text.len(), name(&beside(path, named)));
        return Err(refuse(
            problem
                .found(found)
                .expected(format!("at least {LEAST_TOKEN} bytes"))
                .hint("`openssl rand -hex 32` makes one"),
        ));
    }
    Ok(Token::of(&text))
}
