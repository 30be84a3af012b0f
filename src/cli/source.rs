//! The configuration as files: what `run` and `check` read, so that they refuse the same.

use std::path::Path;
use std::sync::Arc;

use crate::config::{self, DirectoryFile, Limits, Loaded, Mark, Place, Problem, Problems};
use crate::customers::{Directory, Fault, Faults, Format};
use crate::files::{self, Print, Seen, Unreadable};

/// The largest directory of customers that is read: as CSV room for millions; as YAML, which takes many times its size
/// while it is read, for what is kept by hand.
const fn max_directory_bytes(format: Format) -> usize {
    match format {
        Format::Csv => 256 << 20,
        Format::Yaml => 1 << 20,
    }
}

/// A configuration with everything it names.
#[derive(Debug)]
pub struct Source {
    /// The configuration.
    pub loaded: Loaded,
    /// Its customers; nobody if it names no directory.
    pub directory: Arc<Directory>,
    /// The configuration's text.
    pub text: String,
}

/// A directory, and what it was read from.
#[derive(Debug)]
pub struct KnownDirectory {
    print: Print,
    plans: Vec<String>,
    directory: Arc<Directory>,
}

/// Reads a configuration and the directory that it names, which lies relative to the configuration.
pub fn open(path: &Path) -> Result<Source, Problems> {
    open_again(path, &mut None, &mut Vec::new())
}

/// The same, with the directory that is `known` if nothing about it changed. `seen` gets every file that was looked at.
pub fn open_again(path: &Path, known: &mut Option<KnownDirectory>, seen: &mut Vec<Seen>) -> Result<Source, Problems> {
    let text = read_config_seen(path, seen)?;
    let loaded = config::load(&text, &name(path), &environment)
        .map_err(|problems| with_directory(problems, path, &text, seen))?;
    let directory = match &loaded.directory {
        None => {
            *known = None;
            Arc::default()
        }
        Some(named) => open_directory(path, named, &loaded.ruleset.plans, known, seen)
            .map_err(|problems| Problems { warnings: loaded.warnings.clone(), ..problems })?,
    };
    Ok(Source { loaded, directory, text })
}

/// Adds what is wrong with the directory that a refused configuration names.
fn with_directory(mut problems: Problems, path: &Path, text: &str, seen: &mut Vec<Seen>) -> Problems {
    let file = name(path);
    let opened = config::load_directory(text, &file, &environment)
        .map(|(plans, named)| open_directory(path, &named, &plans, &mut None, seen));
    if let Some(Err(others)) = opened {
        problems.errors.extend(others.errors);
        problems.errors.sort_by_key(|problem| (*problem.place.file != *file, problem.place.mark));
        problems.more = problems.more.saturating_add(others.more);
    }
    problems
}

/// Reads the directory that the configuration at `path` names.
fn open_directory(
    path: &Path,
    named: &DirectoryFile,
    plans: &[String],
    known: &mut Option<KnownDirectory>,
    seen: &mut Vec<Seen>,
) -> Result<Arc<Directory>, Problems> {
    let file = path.parent().unwrap_or(Path::new("")).join(&named.path);
    let (bytes, looked) = files::read(&file, max_directory_bytes(format(&name(&file))));
    let print = looked.print.clone();
    seen.push(looked);
    let bytes = bytes.map_err(|reason| {
        refuse(Problem::error(named.place.clone(), format!("names a file that {reason}")).found(name(&file)))
    })?;
    match known {
        Some(known) if known.print == print && known.plans == plans => Ok(Arc::clone(&known.directory)),
        _ => {
            let directory = Arc::new(directory(plans, &decode(bytes, &file)?, &name(&file))?);
            *known = Some(KnownDirectory { print, plans: plans.to_owned(), directory: Arc::clone(&directory) });
            Ok(directory)
        }
    }
}

/// Reads the limits of a configuration, which may hold nothing else.
pub fn open_limits(path: &Path) -> Result<Limits, Problems> {
    config::load_limits(&read_config(path)?, &name(path), &environment)
}

/// Reads the text of a configuration. What is larger than a configuration may be is not read to its end.
pub fn read_config(path: &Path) -> Result<String, Problems> {
    read_config_seen(path, &mut Vec::new())
}

fn read_config_seen(path: &Path, seen: &mut Vec<Seen>) -> Result<String, Problems> {
    let (bytes, looked) = files::read(path, config::MAX_BYTES);
    seen.push(looked);
    let bytes = bytes.map_err(|reason| {
        let problem = problem(&name(path), None, reason.to_string());
        refuse(match reason {
            Unreadable::TooLarge(_) => problem.hint("customers belong in the file that `customers.directory` names"),
            Unreadable::Failed(_) | Unreadable::NoFile(_) => problem,
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
