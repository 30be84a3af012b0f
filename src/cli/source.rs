//! The configuration as files: what `run` and `check` read, so that they refuse the same.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use crate::config::{self, DirectoryFile, JwksFile, Limits, Loaded, Mark, Place, Problem, Problems};
use crate::customers::{Directory, Fault, Faults, Format, KeyFault, Keys, Tokens};

/// The largest directory of customers that is read: as CSV room for millions; as YAML, which takes many times its size
/// while it is read, for what is kept by hand.
const fn max_directory_bytes(format: Format) -> usize {
    match format {
        Format::Csv => 256 << 20,
        Format::Yaml => 1 << 20,
    }
}

/// The largest set of keys that is read.
const MAX_JWKS_BYTES: usize = 1 << 20;

/// A configuration with everything it names.
#[derive(Debug)]
pub struct Source {
    /// The configuration.
    pub loaded: Loaded,
    /// Its customers; nobody if it names no directory.
    pub directory: Directory,
    /// Whose tokens are good; absent where there are none.
    pub tokens: Option<Tokens>,
    /// The configuration's text.
    pub text: String,
}

/// Reads a configuration and the files that it names, which lie relative to the configuration.
pub fn open(path: &Path) -> Result<Source, Problems> {
    let text = read_config(path)?;
    let loaded =
        config::load(&text, &name(path), &environment).map_err(|problems| with_files(problems, path, &text))?;
    let opened = open_files(path, loaded.directory.as_ref(), loaded.jwks.as_ref(), &loaded.ruleset.plans);
    let (directory, tokens) = opened.map_err(|problems| Problems { warnings: loaded.warnings.clone(), ..problems })?;
    Ok(Source { loaded, directory, tokens, text })
}

/// Adds what is wrong with the files that a refused configuration names.
fn with_files(problems: Problems, path: &Path, text: &str) -> Problems {
    let file = name(path);
    let opened = config::load_customer_files(text, &file, &environment)
        .map(|named| open_files(path, named.directory.as_ref(), named.jwks.as_ref(), &named.plans));
    match opened {
        Some(Err(others)) => together(problems, others, &file),
        _ => problems,
    }
}

/// Those of the configuration `file` first.
fn together(mut problems: Problems, others: Problems, file: &str) -> Problems {
    problems.errors.extend(others.errors);
    problems.errors.sort_by_key(|problem| (*problem.place.file != *file, problem.place.mark));
    problems.more = problems.more.saturating_add(others.more);
    problems
}

/// Reads the files about customers that the configuration at `path` names.
fn open_files(
    path: &Path,
    named: Option<&DirectoryFile>,
    jwks: Option<&JwksFile>,
    plans: &[String],
) -> Result<(Directory, Option<Tokens>), Problems> {
    let directory = named.map(|named| open_directory(path, named, plans)).transpose();
    let tokens = jwks.map(|jwks| open_tokens(path, jwks, plans)).transpose();
    match (directory, tokens) {
        (Ok(directory), Ok(tokens)) => Ok((directory.unwrap_or_default(), tokens)),
        (Err(problems), Err(others)) => Err(together(problems, others, &name(path))),
        (Err(problems), Ok(_)) | (Ok(_), Err(problems)) => Err(problems),
    }
}

/// Reads the keys that tokens are verified with.
fn open_tokens(path: &Path, named: &JwksFile, plans: &[String]) -> Result<Tokens, Problems> {
    let file = path.parent().unwrap_or(Path::new("")).join(&named.path);
    let bytes = read(&file, MAX_JWKS_BYTES).map_err(|reason| unreadable(&named.place, &file, &reason))?;
    let keys = Keys::parse(&decode(bytes, &file)?).map_err(|faults| {
        let explain = |fault: KeyFault| {
            let mark = fault.position.map(|(line, column)| Mark { line, column });
            Problem::error(Place { file: name(&file).into(), mark, path: fault.path }, fault.message)
        };
        Problems { errors: faults.into_iter().map(explain).collect(), warnings: Vec::new(), more: 0 }
    })?;
    Tokens::new(Arc::clone(&named.rules), keys, plans, &rand::random()).ok_or_else(|| {
        let message = "names a file that holds no key for any of the `algorithms`";
        refuse(Problem::error(named.place.clone(), message).found(name(&file)))
    })
}

fn unreadable(place: &Place, file: &Path, reason: &Unreadable) -> Problems {
    refuse(Problem::error(place.clone(), format!("names a file that {reason}")).found(name(file)))
}

/// Reads the directory that the configuration at `path` names.
fn open_directory(path: &Path, named: &DirectoryFile, plans: &[String]) -> Result<Directory, Problems> {
    let file = path.parent().unwrap_or(Path::new("")).join(&named.path);
    let bytes = read(&file, max_directory_bytes(format(&name(&file))))
        .map_err(|reason| unreadable(&named.place, &file, &reason))?;
    directory(plans, &decode(bytes, &file)?, &name(&file))
}

/// Reads the limits of a configuration, which may hold nothing else.
pub fn open_limits(path: &Path) -> Result<Limits, Problems> {
    config::load_limits(&read_config(path)?, &name(path), &environment)
}

/// Reads the text of a configuration. What is larger than a configuration may be is not read to its end.
pub fn read_config(path: &Path) -> Result<String, Problems> {
    let bytes = read(path, config::MAX_BYTES).map_err(|reason| {
        let problem = problem(&name(path), None, reason.to_string());
        refuse(match reason {
            Unreadable::TooLarge(_) => problem.hint("customers belong in the file that `customers.directory` names"),
            Unreadable::Failed(_) => problem,
        })
    })?;
    decode(bytes, path)
}

/// The directory from the text of the file that is called `file`; its customers are on these plans.
pub fn directory(plans: &[String], text: &str, file: &str) -> Result<Directory, Problems> {
    let plan = |wanted: &str| plans.iter().position(|plan| plan == wanted);
    Directory::load(text, format(file), &rand::random(), &plan).map_err(|Faults { faults, more }| Problems {
        errors: faults.into_iter().map(|(line, fault)| explain(file, line, &fault, plans)).collect(),
        warnings: Vec::new(),
        more,
    })
}

/// What the directory `file` is written in, by the end of its name.
fn format(file: &str) -> Format {
    match Path::new(file).extension().and_then(|extension| extension.to_str()) {
        Some("yaml" | "yml") => Format::Yaml,
        _ => Format::Csv,
    }
}

/// What `${NAME}` takes.
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn name(path: &Path) -> String {
    path.display().to_string()
}

/// Why a file is not read, to be said after its name.
#[derive(Debug, thiserror::Error)]
enum Unreadable {
    #[error("cannot be read: {0}")]
    Failed(std::io::Error),
    #[error("is larger than {} KiB", .0 >> 10)]
    TooLarge(usize),
}

/// At most one byte more than `most`: enough to tell that it is too much.
fn read(path: &Path, most: usize) -> Result<Vec<u8>, Unreadable> {
    let mut bytes = Vec::new();
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    let done = File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes));
    done.map_err(Unreadable::Failed)?;
    match bytes.len() > most {
        true => Err(Unreadable::TooLarge(most)),
        false => Ok(bytes),
    }
}

fn decode(bytes: Vec<u8>, path: &Path) -> Result<String, Problems> {
    String::from_utf8(bytes).map_err(|error| {
        let valid = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
        let line = valid.split(|byte| *byte == b'\n').count();
        let message = match error.as_bytes() {
            [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "the file is in UTF-16",
            _ => "the line is not in UTF-8",
        };
        refuse(problem(&name(path), Some(line), message).expected("text in UTF-8"))
    })
}

/// About a line of a file, or about the file.
fn problem(file: &str, line: Option<usize>, message: impl Into<String>) -> Problem {
    let mark = line.map(|line| Mark { line, column: 1 });
    Problem::error(Place { file: file.into(), mark, path: String::new() }, message)
}

fn refuse(problem: Problem) -> Problems {
    Problems { errors: vec![problem], warnings: Vec::new(), more: 0 }
}

fn explain(file: &str, line: u64, fault: &Fault, plans: &[String]) -> Problem {
    let problem = problem(file, usize::try_from(line).ok(), fault.to_string());
    match fault {
        Fault::Empty | Fault::MissingColumn(_) | Fault::UnknownColumn(_) | Fault::LaterColumn(_) => {
            problem.expected("a first line `credential,customer,plan`, in any order")
        }
        Fault::UnknownPlan(name) => {
            let near = config::nearest(name, plans.iter().map(String::as_str));
            problem
                .expected("one of the `plans` of the configuration")
                .hint(near.map(|near| format!("did you mean `{near}`?")))
        }
        Fault::LineBreak => problem.hint("is a quote missing?"),
        Fault::OtherPlan { .. } => problem.expected("the same plan on all lines of a customer"),
        Fault::RepeatedColumn(_)
        | Fault::FieldCount { .. }
        | Fault::EmptyField(_)
        | Fault::BadName
        | Fault::HashedCredential
        | Fault::RepeatedCredential(_)
        | Fault::TooMany
        | Fault::Malformed
        | Fault::MalformedYaml => problem,
    }
}
