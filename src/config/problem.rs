//! Problems in a configuration, with their places.

use std::fmt;
use std::sync::Arc;

/// A position in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mark {
    /// The number of the text: 0 is the configuration, 1 the first file that it includes.
    pub text: usize,
    /// The line, from 1.
    pub line: usize,
    /// The column in characters, from 1.
    pub column: usize,
}

impl Mark {
    /// The first character.
    pub const START: Self = Self { text: 0, line: 1, column: 1 };
}

/// A place in a file, for a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, as the caller named it.
    pub file: Arc<str>,
    /// The position in the file's text; `None` for a finding about a file whose text was not read.
    pub mark: Option<Mark>,
    /// The path from the top of the document (`limits.per-customer.rate`, `routes[2].match`); empty for the top.
    pub path: String,
}

impl Place {
    /// A text that names this place as the first of two, for a finding at `other`.
    pub(crate) fn as_first(&self, other: &Self) -> Option<String> {
        let Mark { line, column, .. } = self.mark?;
        let file = if self.file == other.file { String::new() } else { format!("in {}, ", self.file) };
        Some(format!("the first {file}on line {line}, column {column}"))
    }
}

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// tollgate refuses the configuration.
    Error,
    /// The configuration works, but probably not as the operator means it.
    Warning,
}

/// One finding. It holds no secret: it describes values that may be secrets, and does not quote them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The severity.
    pub severity: Severity,
    /// The place of the problem.
    pub place: Place,
    /// The message, which follows the path.
    pub message: String,
    /// The value in the file.
    pub found: Option<String>,
    /// A description of valid values.
    pub expected: Option<String>,
    /// A suggestion for the operator.
    pub hint: Option<String>,
}

/// A finding that does not make the configuration invalid; its severity is [`Severity::Warning`].
pub type Warning = Problem;

impl Problem {
    /// An error at `place`; `message` follows the path.
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

    /// The found value, the expected one and the hint, each on a new line.
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

/// A hint: a text, or an optional one.
pub(crate) struct Hint(pub(super) Option<String>);

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

/// The found value, the expected one and the hint, each on a new line.
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

/// All findings about a refused configuration, in the order of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problems {
    /// The errors; at least one.
    pub errors: Vec<Problem>,
    /// The warnings.
    pub warnings: Vec<Warning>,
    /// The number of errors beyond those in `errors`.
    pub more: usize,
}

impl From<Vec<Problem>> for Problems {
    fn from(errors: Vec<Problem>) -> Self {
        Self { errors, warnings: Vec::new(), more: 0 }
    }
}

impl From<Problem> for Problems {
    fn from(error: Problem) -> Self {
        vec![error].into()
    }
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
