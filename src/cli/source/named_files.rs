//! The files that a configuration names, relative to its own path.

use std::fmt::Display;
use std::path::{Path, PathBuf};

use super::{name, problem};
use crate::config::{ClientTls, MAX_BYTES, NamedFile, Problem, Problems, Warning};
use crate::files::{self, FileVersion, Fingerprint, ReadError};
use crate::tls::{self, ClientCertificate, TlsClient, TlsFault};

/// The longest password or secret that is read from a file, in bytes.
const MAX_SECRET: usize = 4 << 10;
/// The largest file of certificates that is read, in bytes.
const MAX_PEM: usize = 1 << 20;
/// The shortest token of operators and the shortest secret that gateways share, in bytes.
const MIN_SECRET: usize = 16;

/// Reads a configuration and the files that it names, and collects all problems.
pub(super) struct Files<'a> {
    /// The path of the configuration.
    pub(super) config: &'a Path,
    /// Every file that was read or could not be read.
    pub(super) seen: Vec<FileVersion>,
    /// The warnings about the configuration and its files.
    pub(super) warnings: Vec<Warning>,
    errors: Vec<Problem>,
    /// The number of errors beyond those in `errors`.
    more: usize,
}

/// A file could not be read, or does not fit; the reasons are among the errors of [`Files`].
pub(super) struct Refused;

impl<'a> Files<'a> {
    /// No files yet, for the configuration at `config`.
    pub(super) const fn new(config: &'a Path) -> Self {
        Self { config, seen: Vec::new(), warnings: Vec::new(), errors: Vec::new(), more: 0 }
    }

    /// Adds errors, and the warnings beside them.
    pub(super) fn refuse(&mut self, problems: impl Into<Problems>) -> Refused {
        let Problems { errors, warnings, more } = problems.into();
        self.errors.extend(errors);
        self.warnings.extend(warnings);
        self.more = self.more.saturating_add(more);
        Refused
    }

    /// Fails with `errors` if there are any.
    pub(super) fn check(&mut self, errors: Vec<Problem>) -> Result<(), Refused> {
        if errors.is_empty() { Ok(()) } else { Err(self.refuse(errors)) }
    }

    pub(super) fn has_errors(&self) -> bool {
        !self.errors.is_empty()
    }

    /// What was `read`, or all problems; the errors of the configuration come first.
    pub(super) fn finish<T>(self, read: Result<T, Refused>) -> Result<T, Problems> {
        let Self { mut errors, warnings, more, .. } = self;
        let config = name(self.config);
        errors.sort_by_key(|problem| (*problem.place.file != *config, problem.place.mark));
        read.map_err(|Refused| Problems { errors, warnings, more })
    }

    pub(super) fn path(&self, named: &NamedFile) -> PathBuf {
        self.config.parent().unwrap_or(Path::new("")).join(&named.path)
    }

    /// The text of the configuration itself. A file that is too large is not read to its end.
    pub(super) fn config_text(&mut self) -> Result<String, Refused> {
        let (bytes, looked) = files::read(self.config, MAX_BYTES);
        self.seen.push(looked);
        let bytes = bytes.map_err(|reason| {
            let problem = problem(&name(self.config), None, reason.to_string());
            self.refuse(match reason {
                ReadError::TooLarge(_) => problem.hint("customers belong in the file that `customers.directory` names"),
                ReadError::Failed(_) | ReadError::NoFile(_) => problem,
            })
        })?;
        self.decode(bytes, self.config)
    }

    /// The text of the file at `path`, which holds `bytes`.
    pub(super) fn decode(&mut self, bytes: Vec<u8>, path: &Path) -> Result<String, Refused> {
        String::from_utf8(bytes).map_err(|error| {
            let valid = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
            let line = valid.split(|byte| *byte == b'\n').count();
            let message = match error.as_bytes() {
                [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "the file is in UTF-16",
                _ => "the line is not in UTF-8",
            };
            self.refuse(problem(&name(path), Some(line), message).expected("text in UTF-8"))
        })
    }

    /// The content of a file of at most `max_bytes` bytes, and its hash.
    pub(super) fn bytes(&mut self, named: &NamedFile, max_bytes: usize) -> Result<(Vec<u8>, Fingerprint), Refused> {
        let (bytes, looked) = files::read(&self.path(named), max_bytes);
        let print = looked.print.clone();
        self.seen.push(looked);
        let bytes = bytes.map_err(|reason| self.refuse(self.unfit(named, reason)))?;
        Ok((bytes, print))
    }

    pub(super) fn text(&mut self, named: &NamedFile, max_bytes: usize) -> Result<String, Refused> {
        let (bytes, _) = self.bytes(named, max_bytes)?;
        self.decode(bytes, &self.path(named))
    }

    /// The content of a file of certificates or of a key.
    pub(super) fn pem(&mut self, named: &NamedFile) -> Result<Vec<u8>, Refused> {
        self.bytes(named, MAX_PEM).map(|(bytes, _)| bytes)
    }

    /// The text of a file, without line breaks at its end.
    pub(super) fn secret(&mut self, named: &NamedFile) -> Result<String, Refused> {
        Ok(self.text(named, MAX_SECRET)?.trim_end_matches(['\r', '\n']).to_owned())
    }

    /// The text of a file that holds a password, which is not empty.
    pub(super) fn password(&mut self, named: &NamedFile) -> Result<String, Refused> {
        let text = self.secret(named)?;
        if text.is_empty() { Err(self.refuse(self.unfit(named, "is empty"))) } else { Ok(text) }
    }

    /// The text of a file that holds a secret of all gateways, which has a minimum length.
    pub(super) fn shared_secret(&mut self, named: &NamedFile) -> Result<String, Refused> {
        let text = self.secret(named)?;
        self.long_enough(named, ("secret", text), ", the same on all gateways")
    }

    /// The text of a file that holds the token of operators, which has a minimum length.
    pub(super) fn long_token(&mut self, named: &NamedFile) -> Result<String, Refused> {
        let text = self.token(named)?;
        self.long_enough(named, ("token", text), "")
    }

    fn long_enough(
        &mut self,
        named: &NamedFile,
        (what, text): (&str, String),
        expected: &str,
    ) -> Result<String, Refused> {
        if text.len() >= MIN_SECRET {
            return Ok(text);
        }
        let problem = self.unfit(named, format!("holds too short a {what}"));
        let problem = problem.found(format!("{} bytes in {}", text.len(), name(&self.path(named))));
        let expected = format!("at least {MIN_SECRET} bytes{expected}");
        Err(self.refuse(problem.expected(expected).hint("`openssl rand -hex 32` makes one")))
    }

    /// The text of a file that holds a token: characters that a header field can hold, without blanks.
    pub(super) fn token(&mut self, named: &NamedFile) -> Result<String, Refused> {
        let text = self.secret(named)?.trim().to_owned();
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Ok(text);
        }
        let what = if text.is_empty() { "nothing" } else { "blanks or other characters" };
        let problem = self.unfit(named, "holds no token").found(format!("{what} in {}", name(&self.path(named))));
        Err(self.refuse(problem.expected("one line of letters, digits and signs, as a header field can hold them")))
    }

    /// The TLS settings for connections from the section `tls`, and a hash of the files that it names.
    pub(super) fn tls_client(&mut self, tls: &ClientTls) -> Result<(TlsClient, u128), Refused> {
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
            self.refuse(problem.hint(fault.hint().map(str::to_owned)))
        })
    }

    /// Refuses `written` files and directories if tollgate has read one for something else, or if two are the same.
    pub(super) fn check_written<'n>(&mut self, written: impl Iterator<Item = &'n NamedFile>) -> Result<(), Refused> {
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
        self.check(errors)
    }

    /// The problem with a file whose content does not fit; `says` follows "a file that".
    pub(super) fn unfit(&self, named: &NamedFile, says: impl Display) -> Problem {
        Problem::error(named.place.clone(), format!("names a file that {says}")).found(name(&self.path(named)))
    }
}

/// All values, if each could be read. Unlike `collect` it does not stop at the first that could not, so that each is read.
pub(super) fn all_read<T>(values: impl Iterator<Item = Result<T, Refused>>) -> Result<Vec<T>, Refused> {
    let values: Vec<Result<T, Refused>> = values.collect();
    values.into_iter().collect()
}
