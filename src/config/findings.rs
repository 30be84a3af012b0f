//! Collects all findings about a file, so that one pass reports them together.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::config::problem::{Mark, Place, Problem, Problems, Severity, Warning};
use crate::config::words;

/// The largest number of errors that are kept, and of warnings; further errors are only counted.
const MAX_KEPT: usize = 1_000;

/// The largest number of words that are compared to find near misses, for all findings of a file together.
const MAX_COMPARED: usize = 20_000;

/// All findings about a configuration so far.
pub(super) struct Findings {
    /// The names of the configuration's texts.
    files: Vec<Arc<str>>,
    errors: RefCell<Vec<Problem>>,
    warnings: RefCell<Vec<Warning>>,
    more: Cell<usize>,
    compared: Cell<usize>,
}

impl Findings {
    /// No findings yet, for this file.
    pub(super) fn new(file: &str) -> Self {
        Self::of([file])
    }

    /// No findings yet, for these files.
    pub(super) fn of<'f>(files: impl IntoIterator<Item = &'f str>) -> Self {
        let files = files.into_iter().map(Arc::from).collect();
        let (errors, warnings) = (RefCell::default(), RefCell::default());
        Self { files, errors, warnings, more: Cell::new(0), compared: Cell::new(0) }
    }

    /// The place at `mark`.
    pub(super) fn place(&self, mark: Mark, path: &str) -> Place {
        let file = self.files.get(mark.text).cloned().unwrap_or_default();
        Place { file, mark: Some(mark), path: path.to_owned() }
    }

    /// Adds a finding, unless the same finding exists at the same position: reached over another path, or for another window of
    /// a limit.
    pub(super) fn add(&self, problem: Problem) {
        let mut kept = match problem.severity {
            Severity::Error if self.count_if_full() => return,
            Severity::Error => self.errors.borrow_mut(),
            Severity::Warning => self.warnings.borrow_mut(),
        };
        if kept.len() >= MAX_KEPT {
            return;
        }
        let is_same = |other: &Problem| other.place.mark == problem.place.mark && other.message == problem.message;
        if !kept.iter().any(is_same) {
            kept.push(problem);
        }
    }

    /// Whether enough errors are kept. If so, counts one more error: the caller need not create the finding.
    pub(super) fn count_if_full(&self) -> bool {
        let full = self.errors.borrow().len() >= MAX_KEPT;
        if full {
            self.more.set(self.more.get().saturating_add(1));
        }
        full
    }

    /// A hint with the word among `known` that `word` probably means.
    pub(super) fn suggest<'a>(&self, word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
        self.near_miss(word, known).map(words::did_you_mean)
    }

    /// The word among `known` that `word` probably means: a near miss, or the same thing in the words of other gateways.
    pub(super) fn near_miss<'a>(&self, word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
        let left = MAX_COMPARED.saturating_sub(self.compared.get());
        let known: Vec<&str> = known.into_iter().take(left).collect();
        self.compared.set(self.compared.get().saturating_add(known.len()));
        words::nearest(word, known.iter().copied()).or_else(|| words::translated(word, &known))
    }

    /// The number of errors that are kept.
    pub(super) fn error_count(&self) -> usize {
        self.errors.borrow().len()
    }

    /// Whether any finding is an error, so that the file is refused.
    pub(super) fn has_errors(&self) -> bool {
        self.error_count() > 0
    }

    /// `value` with the warnings if there are no errors, else all findings.
    pub(super) fn finish<T>(self, value: Option<T>) -> Result<(T, Vec<Warning>), Problems> {
        let (mut errors, mut warnings) = (self.errors.into_inner(), self.warnings.into_inner());
        errors.sort_by_key(|problem| problem.place.mark);
        warnings.sort_by_key(|problem| problem.place.mark);
        match value {
            Some(value) if errors.is_empty() => Ok((value, warnings)),
            _ => Err(Problems { errors, warnings, more: self.more.get() }),
        }
    }
}
