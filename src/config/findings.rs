//! Collects what is found wrong, so that one reading of a file tells everything at once.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::config::problem::{Mark, Place, Problem, Problems, Severity, Warning};
use crate::config::words;

/// How many findings are kept; further errors are only counted.
const MOST_KEPT: usize = 1_000;

/// How many words are compared in search of near misses, for all findings of a file.
const MOST_COMPARED: usize = 20_000;

/// Everything found in a configuration so far.
pub(super) struct Findings {
    /// The names of its texts.
    files: Vec<Arc<str>>,
    kept: RefCell<Vec<Problem>>,
    more: Cell<usize>,
    compared: Cell<usize>,
}

impl Findings {
    /// Nothing yet, about this file.
    pub(super) fn new(file: &str) -> Self {
        Self::of([file])
    }

    /// Nothing yet, about these files.
    pub(super) fn of<'f>(files: impl IntoIterator<Item = &'f str>) -> Self {
        let files = files.into_iter().map(Arc::from).collect();
        Self { files, kept: RefCell::default(), more: Cell::new(0), compared: Cell::new(0) }
    }

    /// The place at `mark`.
    pub(super) fn place(&self, mark: Mark, path: &str) -> Place {
        let file = self.files.get(mark.text).cloned().unwrap_or_default();
        Place { file, mark: Some(mark), path: path.to_owned() }
    }

    /// Adds a finding, unless the same was found at the same position (reached over another path) already.
    pub(super) fn add(&self, problem: Problem) {
        if problem.severity == Severity::Error && self.only_counts() {
            return;
        }
        let mut kept = self.kept.borrow_mut();
        if kept.len() >= MOST_KEPT {
            return;
        }
        let known = kept.iter().any(|other| {
            other.place.mark == problem.place.mark && other.message == problem.message && other.found == problem.found
        });
        if !known {
            kept.push(problem);
        }
    }

    /// Counts an error instead of keeping it, if there are enough already: where many come, they need not be made.
    pub(super) fn only_counts(&self) -> bool {
        let full = self.kept.borrow().len() >= MOST_KEPT;
        if full {
            self.more.set(self.more.get().saturating_add(1));
        }
        full
    }

    /// The near miss for `word` among `known`, as a hint.
    pub(super) fn suggest<'a>(&self, word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
        self.near_miss(word, known).map(words::did_you_mean)
    }

    /// The near miss for `word` among `known`.
    pub(super) fn near_miss<'a>(&self, word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
        let left = MOST_COMPARED.saturating_sub(self.compared.get());
        let known: Vec<&str> = known.into_iter().take(left).collect();
        self.compared.set(self.compared.get().saturating_add(known.len()));
        super::suggest::nearest(word, known)
    }

    /// Whether anything found so far refuses the file.
    pub(super) fn has_errors(&self) -> bool {
        self.more.get() > 0 || self.kept.borrow().iter().any(|problem| problem.severity == Severity::Error)
    }

    /// `value` with the warnings if there are no errors, else everything found.
    pub(super) fn finish<T>(self, value: Option<T>) -> Result<(T, Vec<Warning>), Problems> {
        let mut all = self.kept.into_inner();
        all.sort_by_key(|problem| problem.place.mark);
        let (errors, warnings): (Vec<_>, Vec<_>) =
            all.into_iter().partition(|problem| problem.severity == Severity::Error);
        match value {
            Some(value) if errors.is_empty() && self.more.get() == 0 => Ok((value, warnings)),
            _ => Err(Problems { errors, warnings, more: self.more.get() }),
        }
    }
}
