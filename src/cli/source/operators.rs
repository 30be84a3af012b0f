//! What operators may do, with the token from the file that the configuration names.

use std::path::Path;

use super::store::secret;
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
    Ok(AccessTerms { token, hosts: says.hosts.clone(), top_denied_metrics: says.top_denied_metrics })
}

fn token(path: &Path, named: &NamedFile, seen: &mut Vec<FileVersion>) -> Result<Token, Problems> {
    let text = secret(path, named, seen)?;
    let text = text.trim();
    let problem = |what| Problem::error(named.place.clone(), what);
    let file = name(&beside(path, named));
    if text.len() < LEAST_TOKEN {
        let problem =
            problem("names a file that holds too short a token").found(format!("{} bytes in {file}", text.len()));
        return Err(refuse(
            problem.expected(format!("at least {LEAST_TOKEN} bytes")).hint("`openssl rand -hex 32` makes one"),
        ));
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let problem =
            problem("names a file that holds no token").found(format!("blanks or other characters in {file}"));
        return Err(refuse(problem.expected("one line of letters, digits and signs, as a header field can hold them")));
    }
    Ok(Token::of(text))
}
