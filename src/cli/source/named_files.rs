//! The files that a configuration names, relative to its own path.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use super::{decode, name};
use crate::config::{ClientTls, NamedFile, Problem, Problems};
use crate::files::{self, FileVersion, Fingerprint};
use crate::tls::{self, ClientCertificate, TlsClient, TlsFault};

/// The longest password or secret that is read from a file, in bytes.
const MAX_SECRET: usize = 4 << 10;
/// The largest file of certificates that is read, in bytes.
const MAX_PEM: usize = 1 << 20;
/// The shortest token of operators and the shortest secret that gateways share, in bytes.
const MIN_SECRET: usize = 16;

/// Reads the files that a configuration names.
pub(super) struct Files<'a> {
    /// The path of the configuration.
    pub(super) config: &'a Path,
    /// Gets every file that is read or cannot be read.
    pub(super) seen: &'a mut Vec<FileVersion>,
}

impl Files<'_> {
    pub(super) fn path(&self, named: &NamedFile) -> PathBuf {
        self.config.parent().unwrap_or(Path::new("")).join(&named.path)
    }

    /// The content of a file of at most `most` bytes, and its hash.
    pub(super) fn bytes(&mut self, named: &NamedFile, most: usize) -> Result<(Vec<u8>, Fingerprint), Problems> {
        let (bytes, looked) = files::read(&self.path(named), most);
        let print = looked.print.clone();
        self.seen.push(looked);
        Ok((bytes.map_err(|reason| self.unfit(named, reason))?, print))
    }

    pub(super) fn text(&mut self, named: &NamedFile, most: usize) -> Result<String, Problems> {
        let (bytes, _) = self.bytes(named, most)?;
        decode(bytes, &self.path(named))
    }

    /// The content of a file of certificates or of a key.
    pub(super) fn pem(&mut self, named: &NamedFile) -> Result<Vec<u8>, Problems> {
        self.bytes(named, MAX_PEM).map(|(bytes, _)| bytes)
    }

    /// The text of a file, without line breaks at its end.
    pub(super) fn secret(&mut self, named: &NamedFile) -> Result<String, Problems> {
        Ok(self.text(named, MAX_SECRET)?.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// The text of a file that holds a password, which is not empty.
    pub(super) fn password(&mut self, named: &NamedFile) -> Result<String, Problems> {
        let text = self.secret(named)?;
        if text.is_empty() { Err(self.unfit(named, "is empty").into()) } else { Ok(text) }
    }

    /// The text of a file that holds a secret of all gateways, which has a minimum length.
    pub(super) fn shared_secret(&mut self, named: &NamedFile) -> Result<String, Problems> {
        let text = self.secret(named)?;
        self.long_enough(named, ("secret", text), ", the same on all gateways")
    }

    /// The text of a file that holds the token of operators, which has a minimum length.
    pub(super) fn long_token(&mut self, named: &NamedFile) -> Result<String, Problems> {
        let text = self.token(named)?;
        self.long_enough(named, ("token", text), "")
    }

    fn long_enough(&self, named: &NamedFile, (what, text): (&str, String), expected: &str) -> Result<String, Problems> {
        if text.len() >= MIN_SECRET {
            return Ok(text);
        }
        let problem = self.unfit(named, format!("holds too short a {what}"));
        let problem = problem.found(format!("{} bytes in {}", text.len(), name(&self.path(named))));
        let expected = format!("at least {MIN_SECRET} bytes{expected}");
        Err(problem.expected(expected).hint("`openssl rand -hex 32` makes one").into())
    }

    /// The text of a file that holds a token: characters that a header field can hold, without blanks.
    pub(super) fn token(&mut self, named: &NamedFile) -> Result<String, Problems> {
        let text = self.secret(named)?.trim().to_owned();
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Ok(text);
        }
        let what = if text.is_empty() { "nothing" } else { "blanks or other characters" };
        let problem = self.unfit(named, "holds no token").found(format!("{what} in {}", name(&self.path(named))));
        Err(problem.expected("one line of letters, digits and signs, as a header field can hold them").into())
    }

    /// The TLS settings for connections from the section `tls`, and a hash of the files that it names.
    pub(super) fn tls_client(&mut self, tls: &ClientTls) -> Result<(TlsClient, u128), Problems> {
        let authorities = tls.ca.as_ref().map(|named| self.pem(named)).transpose()?;
        let identity = match &tls.identity {
            Some((certificates, key)) => Some((self.pem(certificates)?, self.pem(key)?)),
            None => None,
        };
        let identity = identity.as_ref().map(|(certificates, key)| ClientCertificate { certificates, key });
        let parts = [
            authorities.as_deref(),
            identity.map(|identity| identity.certificates),
            identity.map(|identity| identity.key),
        ];
        let hash = files::hash(&parts.map(|part| files::hash(part.unwrap_or_default()).to_le_bytes()).concat());
        let client = tls::client(authorities.as_deref(), identity).map(|client| (client, hash));
        client.map_err(|fault| {
            let named = match (fault, &tls.identity) {
                (TlsFault::Authority, _) => tls.ca.as_ref(),
                (TlsFault::NoSystemRoots, _) | (_, None) => None,
                (_, Some((certificates, key))) => Some(if fault.is_in_key() { key } else { certificates }),
            };
            let problem = match named {
                Some(named) => self.unfit(named, fault),
                None => Problem::error(tls.place.clone(), fault.to_string()),
            };
            problem.hint(fault.hint().map(str::to_owned)).into()
        })
    }

    /// Refuses `written` files and directories if tollgate has read one for something else, or if two are the same.
    pub(super) fn check_written<'n>(&self, written: impl Iterator<Item = &'n NamedFile>) -> Result<(), Problems> {
        let mut used: Vec<PathBuf> = self.seen.iter().map(|file| files::resolved(&file.path)).collect();
        let mut errors = Vec::new();
        for named in written {
            let path = files::resolved(&self.path(named));
            if used.contains(&path) {
                let problem = Problem::error(named.place.clone(), "names a file that has another use, too");
                let problem = problem.found(name(&self.path(named)));
                errors.push(problem.expected("a path of its own, because tollgate writes there"));
            }
            used.push(path);
        }
        errors.sort_by_key(|problem| problem.place.mark);
        Problems::check(errors)
    }

    /// The problem with a file whose content does not fit; `says` follows "a file that".
    pub(super) fn unfit(&self, named: &NamedFile, says: impl Display) -> Problem {
        Problem::error(named.place.clone(), format!("names a file that {says}")).found(name(&self.path(named)))
    }
}

/// What was read; `None` if that failed, and then `errors` gets the errors.
pub(super) fn or_collect<T>(read: Result<T, Problems>, errors: &mut Vec<Problem>) -> Option<T> {
    read.map_err(|problems| errors.extend(problems.errors)).ok()
}
