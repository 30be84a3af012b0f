//! Who the customers are, from where the configuration says.

use std::path::Path;
use std::sync::Arc;

use super::{Unreadable, decode, name, problem, read, refuse};
use crate::config::{DirectorySource, NamedFile, Overrides, Problem, Problems, RedisHash, RedisServer};
use crate::customers::Directory;
use crate::customers::directory::{Changes, Fault, Faults, FileDirectory, Format, Hash, RedisDirectory};
use crate::ruleset::own::Misread;

/// The largest directory of customers that is read: as CSV room for millions; as YAML, which takes many times its size
/// while it is read, for what is kept by hand.
const fn max_bytes(format: Format) -> usize {
    match format {
        Format::Csv => 256 << 20,
        Format::Yaml => 1 << 20,
    }
}

/// The longest password that is read from a file.
const MAX_PASSWORD: usize = 4 << 10;

/// Opens the directory that the configuration at `path` names; `overrides` reads its rows.
pub(super) fn open(path: &Path, source: &DirectorySource, overrides: &Overrides) -> Result<Directory, Problems> {
    match source {
        DirectorySource::File(named) => open_file(path, named, overrides).map(Directory::File),
        DirectorySource::Redis(hash) => open_redis(path, hash, overrides).map(Directory::Redis),
    }
}

/// Reads the file `named` by the configuration at `path`.
pub(super) fn open_file(path: &Path, named: &NamedFile, overrides: &Overrides) -> Result<FileDirectory, Problems> {
    let (text, file) = text(path, named)?;
    load(&text, &file, overrides)
}

/// The directory from the text of the file that is called `file`.
pub fn load(text: &str, file: &str, overrides: &Overrides) -> Result<FileDirectory, Problems> {
    FileDirectory::load(text, format(file), &rand::random(), Arc::new(overrides.clone()))
        .map_err(|faults| explain_all(file, faults))
}

/// Reads the file `named` by the configuration at `path` again and takes up what changed. Where anything is wrong with
/// it, nothing changes.
pub fn update(path: &Path, named: &NamedFile, directory: &FileDirectory) -> Result<Changes, Problems> {
    let (text, file) = text(path, named)?;
    directory.update(&text).map_err(|faults| explain_all(&file, faults))
}

/// The text of the file `named` by the configuration at `path`, and what the file is called.
fn text(path: &Path, named: &NamedFile) -> Result<(String, String), Problems> {
    let file = beside(path, named);
    let bytes = read(&file, max_bytes(format(&name(&file)))).map_err(|reason| unreadable(named, &file, &reason))?;
    Ok((decode(bytes, &file)?, name(&file)))
}

fn beside(path: &Path, named: &NamedFile) -> std::path::PathBuf {
    path.parent().unwrap_or(Path::new("")).join(&named.path)
}

fn unreadable(named: &NamedFile, file: &Path, reason: &Unreadable) -> Problems {
    refuse(Problem::error(named.place.clone(), format!("names a file that {reason}")).found(name(file)))
}

/// What the directory `file` is written in, by the end of its name.
fn format(file: &str) -> Format {
    match Path::new(file).extension().and_then(|extension| extension.to_str()) {
        Some("yaml" | "yml") => Format::Yaml,
        _ => Format::Csv,
    }
}

fn open_redis(path: &Path, hash: &RedisHash, overrides: &Overrides) -> Result<RedisDirectory, Problems> {
    let RedisHash { server, key, ttl, negative_ttl, max_cached } = hash.clone();
    let server = connection(path, &server)?;
    let hash = Hash { server, key, ttl, negative_ttl, max_cached };
    RedisDirectory::new(hash, &rand::random(), Arc::new(overrides.clone()))
        .map_err(|error| refuse(problem(&name(path), None, format!("cannot use `store.redis`: {error}"))))
}

/// What opens a connection to `server`, its password read from where the configuration at `path` says.
fn connection(path: &Path, server: &RedisServer) -> Result<redis::ConnectionInfo, Problems> {
    let address = redis::ConnectionAddr::Tcp(server.host.clone(), server.port);
    let mut login = redis::RedisConnectionInfo::default().set_db(server.database.into());
    if let Some(username) = &server.username {
        login = login.set_username(username);
    }
    if let Some(password) = &server.password {
        login = login.set_password(password.expose());
    }
    if let Some(named) = &server.password_file {
        let file = beside(path, named);
        let bytes = read(&file, MAX_PASSWORD).map_err(|reason| unreadable(named, &file, &reason))?;
        login = login.set_password(decode(bytes, &file)?.trim_end_matches(['\r', '\n']));
    }
    let made = redis::IntoConnectionInfo::into_connection_info(address);
    let made = made.map_err(|error| refuse(problem(&name(path), None, format!("cannot use `store.redis`: {error}"))));
    Ok(made?.set_redis_settings(login))
}

fn explain_all(file: &str, Faults { faults, more }: Faults) -> Problems {
    let errors = faults.into_iter().map(|(line, fault)| explain(file, line, fault)).collect();
    Problems { errors, warnings: Vec::new(), more }
}

fn explain(file: &str, line: u64, fault: Fault) -> Problem {
    let at = |message: String| problem(file, usize::try_from(line).ok(), message);
    let says = at(fault.to_string());
    match fault {
        Fault::Empty | Fault::MissingColumn(_) | Fault::UnknownColumn(_) => says.expected(
            "a first line `credential,customer,plan` and perhaps `overrides,time_zone,valid_until,suspended`, in any \
             order",
        ),
        Fault::Plan(misread) => with(at(format!("the plan {}", misread.message)), misread),
        Fault::TimeZone(misread) => with(at(format!("the time zone {}", misread.message)), misread),
        Fault::Overrides(mut misread) => {
            let path = std::mem::take(&mut misread.path);
            let mut problem = at(misread.message.clone());
            problem.place.path = if path.is_empty() { "overrides".to_owned() } else { format!("overrides.{path}") };
            with(problem, misread)
        }
        Fault::LineBreak => says.hint("is a quote missing?"),
        Fault::Disagrees { what, .. } => says.expected(format!("the same {what} on all lines of a customer")),
        Fault::RepeatedColumn(_)
        | Fault::FieldCount { .. }
        | Fault::EmptyField(_)
        | Fault::NotText(_)
        | Fault::BadName
        | Fault::BadHash
        | Fault::BadValidUntil
        | Fault::BadSuspended
        | Fault::RepeatedCredential(_)
        | Fault::Malformed
        | Fault::MalformedYaml => says,
    }
}

/// What the configuration found wrong, beside `problem`.
fn with(problem: Problem, misread: Misread) -> Problem {
    Problem { found: misread.found, expected: misread.expected, hint: misread.hint, ..problem }
}
