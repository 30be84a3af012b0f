//! What is wrong with a configuration, and where.

use std::fmt;
use std::sync::Arc;

/// A position in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// Of which text: 0 is the configuration, 1 the first file that it includes.
    pub text: usize,
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
}

impl Mark {
    /// The first character.
    pub const START: Self = Self { text: 0, line: 1, column: 1 };
}

/// A place in a file: what a finding is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, as the caller named it.
    pub file: Arc<str>,
    /// Where in its text; `None` if it is about the file, whose text was not read.
    pub mark: Option<Mark>,
    /// The way there from the top of the document (`limits.per-customer.rate`, `routes[2].match`); empty for the top.
    pub path: String,
}

impl Place {
    /// This place as the first of two, for a finding at `other`.
    pub(crate) fn as_first(&self, other: &Self) -> Option<String> {
        let Mark { line, column, .. } = self.mark?;
        let file = if self.file == other.file { String::new() } else { format!("in {}, ", self.file) };
        Some(format!("the first {file}on line {line}, column {column}"))
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The configuration is refused.
    Error,
    /// The configuration works, but probably not as meant.
    Warning,
}

/// One finding. Holds no secret: values that may be one are described, not quoted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// How bad it is.
    pub severity: Severity,
    /// Where it is.
    pub place: Place,
    /// What is wrong, to be read after the path.
    pub message: String,
    /// What is there.
    pub found: Option<String>,
    /// What should be there.
    pub expected: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
}

/// A finding that does not refuse the configuration; its severity is [`Severity::Warning`].
pub type Warning = Problem;

impl Problem {
    /// An error at `place`; `message` is read after the path.
    pub(crate) fn error(place: Place, message: impl Into<String>) -> Self {
        Self { severity: Severity::Error, place, message: message.into(), found: None, expected: None, hint: None }
    }

    /// A warning at `place`.
    pub(crate) fn warning(place: Place, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, ..Self::error(place, message) }
    }

    /// `file:line:column: path: message`, or `file: message` without a line.
    pub fn headline(&self) -> impl fmt::Display {
        Headline(self)
    }

    /// What was found, what was expected and a hint, each behind the end of a line.
    pub fn details(&self) -> impl fmt::Display {
        Details(self)
    }

    #[must_use]
    pub(crate) fn found(mut self, found: impl Into<String>) -> Self {
        self.found = Some(found.into());
        self
    }

    #[must_use]
    pub(crate) fn expected(mut self, expected: impl Into<String>) -> Self {
        self.expected = Some(expected.into());
        self
    }

    #[must_use]
    pub(crate) fn hint(mut self, hint: impl Into<Hint>) -> Self {
        self.hint = hint.into().0;
        self
    }
}

/// What may be given as a hint: a text, or perhaps one.
pub(crate) struct Hint(Option<String>);

impl From<&str> for Hint {
    fn from(hint: &str) -> Self {
        Self(Some(hint.to_owned()))
    }
}

impl From<String> for Hint {
    fn from(hint: String) -> Self {
        Self(Some(hint))
    }
}

impl From<Option<String>> for Hint {
    fn from(hint: Option<String>) -> Self {
        Self(hint)
    }
}

impl fmt::Display for Problem {
    /// The headline, then the details.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.headline().fmt(f)?;
        self.details().fmt(f)
    }
}

/// `file:line:column: path: message`, or `file: message` without a line.
struct Headline<'p>(&'p Problem);

impl fmt::Display for Headline<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { place: Place { file, mark, path }, severity, message, .. } = self.0;
        match mark {
            Some(Mark { line, column, .. }) => write!(f, "{file}:{line}:{column}: ")?,
            None => write!(f, "{file}: ")?,
        }
        if *severity == Severity::Warning {
            f.write_str("warning: ")?;
        }
        if !path.is_empty() {
            write!(f, "{path}: ")?;
        }
        f.write_str(message)
    }
}

/// What was found, what was expected and a hint, each behind the end of a line.
struct Details<'p>(&'p Problem);

impl fmt::Display for Details<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { found, expected, hint, .. } = self.0;
        let details = [("found", found), ("expected", expected), ("hint", hint)];
        for (label, text) in details {
            if let Some(text) = text {
                write!(f, "\n  {label}: {text}")?;
            }
        }
        Ok(())
    }
}

/// Everything found in a configuration that is refused, in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    /// Why it is refused; at least one.
    pub errors: Vec<Problem>,
    /// What is suspicious besides.
    pub warnings: Vec<Warning>,
    /// How many errors there are beyond those kept.
    pub more: usize,
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, problem) in self.errors.iter().enumerate() {
            if position > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        if self.more > 0 {
            write!(f, "\nand {} more", self.more)?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}
