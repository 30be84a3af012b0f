//! The configuration as files: what `run` and `check` read, so that they refuse the same.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::config::{self, Limits, Loaded, Mark, Place, Problem, Problems};
use crate::customers::Directory;

pub mod directory;

/// A configuration with everything it names.
#[derive(Debug)]
pub struct Source {
    /// The configuration.
    pub loaded: Loaded,
    /// Its customers; nobody if it names no directory.
    pub directory: Directory,
    /// The configuration's text.
    pub text: String,
}

/// Reads a configuration and the directory that it names, which lies relative to the configuration.
pub fn open(path: &Path) -> Result<Source, Problems> {
    let text = read_config(path)?;
    let loaded =
        config::load(&text, &name(path), &environment).map_err(|problems| with_directory(problems, path, &text))?;
    let directory = match &loaded.directory {
        None => Directory::Nobody,
        Some(named) => directory::open(path, named, &loaded.overrides)
            .map_err(|problems| Problems { warnings: loaded.warnings.clone(), ..problems })?,
    };
    Ok(Source { loaded, directory, text })
}

/// Adds what is wrong with the directory that a refused configuration names.
fn with_directory(mut problems: Problems, path: &Path, text: &str) -> Problems {
    let file = name(path);
    let opened = config::load_directory(text, &file, &environment)
        .map(|(overrides, named)| directory::open_file(path, &named, &overrides));
    if let Some(Err(others)) = opened {
        problems.errors.extend(others.errors);
        problems.errors.sort_by_key(|problem| (*problem.place.file != *file, problem.place.mark));
        problems.more = problems.more.saturating_add(others.more);
    }
    problems
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
