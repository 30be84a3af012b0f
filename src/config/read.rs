//! A cursor over the document that reads fields and collects their problems.
//!
//! A reading method that returns `None` has already added a finding, so that callers simply go on: one error for each cause.
//! The methods of a section that cannot return `None`, or for which `None` is the value of an absent field, return the
//! default after an error: the finding refuses the file. Callers that compare a value with others ask by `get_or` or
//! `get_with`, which tell an error from the default.

use std::borrow::Cow;
use std::collections::HashSet;
use std::hash::Hash;
use std::rc::Rc;

use crate::config::document::{self, Content, YamlNode};
use crate::config::environment::{self, Environment};
use crate::config::findings::Findings;
use crate::config::problem::{Hint, Mark, Place, Problem};
use crate::config::scalar::InvalidValue;
use crate::config::settings::{FORMER_WORDS, Kind, Table, reference};
use crate::config::words;

mod section;

pub(super) use section::Section;

/// The context that all fields of a file share.
pub(super) struct ReadContext<'a> {
    pub(super) findings: &'a Findings,
    pub(super) environment: Environment<'a>,
}

/// A value and its place.
#[derive(Clone)]
pub(super) struct Field<'a> {
    context: &'a ReadContext<'a>,
    node: &'a YamlNode,
    /// The position of the field's name, or of the value where it has no name.
    key_mark: Mark,
    path: Path<'a>,
    secret: bool,
    /// The kind of the value and its default, from the table of the field's section; `None` for names that the operator
    /// chooses.
    kind: Option<&'static Kind>,
    default: Option<&'static str>,
}

/// The path of a value, which is written out only for findings.
#[derive(Clone, Default)]
struct Path<'a>(Option<Rc<Step<'a>>>);

struct Step<'a> {
    above: Path<'a>,
    below: PathStep<'a>,
}

/// One step down a path.
enum PathStep<'a> {
    Key(&'a str),
    Item(usize),
}

impl<'a> Path<'a> {
    fn to(&self, below: PathStep<'a>) -> Self {
        Self(Some(Rc::new(Step { above: self.clone(), below })))
    }

    fn written(&self) -> String {
        match self.0.as_deref() {
            None => String::new(),
            Some(Step { above, below: PathStep::Key(key) }) => document::join(&above.written(), key),
            Some(Step { above, below: PathStep::Item(position) }) => document::item(&above.written(), *position),
        }
    }
}

/// A single value.
pub(super) struct ScalarValue<'a> {
    pub(super) text: Cow<'a, str>,
    /// Whether the value is written without quotes.
    pub(super) plain: bool,
}

impl<'a> Field<'a> {
    /// The whole document.
    pub(super) fn root(context: &'a ReadContext<'a>, node: &'a YamlNode) -> Self {
        Self { context, node, key_mark: node.mark, path: Path::default(), secret: false, kind: None, default: None }
    }

    /// The same field, marked as secret: findings never show its value.
    #[must_use]
    pub(super) fn secret(mut self) -> Self {
        self.secret = true;
        self
    }

    pub(super) fn findings(&self) -> &'a Findings {
        self.context.findings
    }

    pub(super) const fn mark(&self) -> Mark {
        self.node.mark
    }

    /// The place of the value.
    pub(super) fn place(&self) -> Place {
        self.findings().place(self.node.mark, &self.path.written())
    }

    /// The place of the field's name.
    pub(super) fn key_place(&self) -> Place {
        self.findings().place(self.key_mark, &self.path.written())
    }

    /// An error about the value, with a description of the value.
    pub(super) fn error(&self, message: impl Into<String>) -> Problem {
        Problem::error(self.place(), message).found(self.describe())
    }

    /// An error about the field's name, or about the whole field.
    pub(super) fn key_error(&self, message: impl Into<String>) -> Problem {
        Problem::error(self.key_place(), message)
    }

    /// Adds `problem` and returns `None`.
    pub(super) fn fail<T>(&self, problem: Problem) -> Option<T> {
        self.findings().add(problem);
        None
    }

    /// Adds a warning about the value.
    pub(super) fn warn(&self, message: impl Into<String>, hint: impl Into<Hint>) {
        self.findings().add(Problem::warning(self.place(), message).hint(hint));
    }

    /// Adds a warning about the field's name, or about the whole field.
    pub(super) fn warn_key(&self, message: impl Into<String>, hint: impl Into<Hint>) {
        self.findings().add(Problem::warning(self.key_place(), message).hint(hint));
    }

    /// A description of the value, for `found`.
    pub(super) fn describe(&self) -> String {
        match &self.node.content {
            Content::Sequence(_) => "a list".to_owned(),
            Content::Mapping(_) => "a mapping".to_owned(),
            Content::Scalar { .. } if self.is_null() => "nothing".to_owned(),
            Content::Scalar { text, .. } if self.secret => words::hidden(text),
            Content::Scalar { text, .. } if environment::is_used(text) => {
                format!("the value of {}", words::shown(text))
            }
            Content::Scalar { text, .. } => words::shown(text),
        }
    }

    /// Whether there is no value (`key:` or `key: null`).
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.node.content, Content::Scalar { text, plain: true }
            if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// Whether the value is a single value.
    pub(super) fn is_scalar(&self) -> bool {
        matches!(self.node.content, Content::Scalar { .. }) && !self.is_null()
    }

    /// Whether the value is a list.
    pub(super) fn is_list(&self) -> bool {
        matches!(self.node.content, Content::Sequence(_))
    }

    fn wrong_shape<T>(&self, expected: &str) -> Option<T> {
        let message = if self.is_null() { "has no value" } else { "is of the wrong kind" };
        self.fail(self.error(message).expected(expected))
    }

    /// The single value, with environment variables replaced; `expected` describes valid values.
    pub(super) fn scalar_value(&self, expected: &str) -> Option<ScalarValue<'a>> {
        self.scalar_value_with(expected, |value| value)
    }

    fn scalar_value_with(&self, expected: &str, quote: impl Fn(String) -> String) -> Option<ScalarValue<'a>> {
        let Content::Scalar { text, plain } = &self.node.content else {
            return self.wrong_shape(expected);
        };
        if self.is_null() {
            return self.wrong_shape(expected);
        }
        match environment::expand(text, &|name| (self.context.environment)(name).map(&quote)) {
            Ok(text) => Some(ScalarValue { text, plain: *plain }),
            Err(invalid) => {
                self.fail(Problem::error(self.place(), invalid.message).expected(expected).hint(invalid.hint))
            }
        }
    }

    /// The single value, parsed by `parse`.
    pub(super) fn parsed<T>(&self, expected: &str, parse: impl FnOnce(&str) -> Result<T, InvalidValue>) -> Option<T> {
        self.parsed_with(expected, |value| value, parse)
    }

    /// [`Field::parsed`] for a setting whose table describes valid values as well as a message can.
    pub(super) fn read<T>(&self, parse: impl FnOnce(&str) -> Result<T, InvalidValue>) -> Option<T> {
        self.parsed(&self.expected(), parse)
    }

    /// The table's description of valid values.
    pub(super) fn expected(&self) -> String {
        self.kind.map(reference::written).unwrap_or_default()
    }

    /// [`Field::parsed`] for texts with a syntax of their own: `quote` protects the values of environment variables.
    pub(super) fn parsed_with<T>(
        &self,
        expected: &str,
        quote: impl Fn(String) -> String,
        parse: impl FnOnce(&str) -> Result<T, InvalidValue>,
    ) -> Option<T> {
        let word = self.scalar_value_with(expected, quote)?;
        match parse(&word.text) {
            Ok(value) => Some(value),
            Err(invalid) => {
                // a hint may repeat the value, which may be a secret
                let hint = invalid.hint.filter(|_| !self.secret && matches!(word.text, Cow::Borrowed(_)));
                self.fail(self.error(invalid.message).expected(expected).hint(hint))
            }
        }
    }

    /// The value as one of these words.
    pub(super) fn choice<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        self.choice_or(words, &words::alternatives(words.iter().map(|(word, _)| *word)))
    }

    /// [`Field::choice`] where some words may have been renamed. This accepts a former word with a warning.
    pub(super) fn choice_renamed<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        let is_today = |today: &str| words.iter().any(|(word, _)| *word == today);
        let former: Vec<_> = FORMER_WORDS.into_iter().filter(|(_, today)| is_today(today)).collect();
        let renamed = self.renamed(&former);
        match words.iter().find(|(word, _)| renamed == Some(*word)) {
            Some((_, value)) => Some(*value),
            None => self.choice(words),
        }
    }

    /// The current word, if the value is a former one; adds a warning then.
    pub(super) fn renamed<'w>(&self, former: &[(&str, &'w str)]) -> Option<&'w str> {
        let Content::Scalar { text, .. } = &self.node.content else { return None };
        let (_, today) = former.iter().find(|(former, _)| former == text)?;
        self.warn(format!("is called `{today}` now"), format!("write `{today}`: the next release refuses `{text}`"));
        Some(today)
    }

    /// [`Field::choice`] where other values than words are valid too; `expected` describes all of them.
    pub(super) fn choice_or<T: Copy>(&self, words: &[(&str, T)], expected: &str) -> Option<T> {
        debug_assert!(
            self.kind.and_then(Kind::words).is_none_or(|known| known.iter().eq(words.iter().map(|(word, _)| word))),
            "the table has other words than {expected}"
        );
        let word = self.scalar_value(expected)?;
        if let Some((_, value)) = words.iter().find(|(known, _)| *known == word.text) {
            return Some(*value);
        }
        let hint = match word.text {
            Cow::Borrowed(text) if !self.secret => self.findings().suggest(text, words.iter().map(|(word, _)| *word)),
            Cow::Borrowed(_) | Cow::Owned(_) => None,
        };
        self.fail(self.error("is not one of the words known here").expected(expected).hint(hint))
    }

    /// The items of a list.
    pub(super) fn list(&self, expected: &str) -> Option<Vec<Self>> {
        self.as_list().or_else(|| self.wrong_shape(expected))
    }

    /// The items of a list, if the value is a list.
    pub(super) fn as_list(&self) -> Option<Vec<Self>> {
        let Content::Sequence(items) = &self.node.content else {
            return None;
        };
        let field = |(position, node): (usize, &'a Rc<YamlNode>)| {
            let path = self.path.to(PathStep::Item(position));
            let kind = self.kind.and_then(Kind::inner);
            Self { context: self.context, node, key_mark: node.mark, path, secret: self.secret, kind, default: None }
        };
        Some(items.iter().enumerate().map(field).collect())
    }

    /// The items of a list that must not be empty.
    pub(super) fn nonempty_list(&self, expected: &str) -> Option<Vec<Self>> {
        let items = self.list(expected)?;
        if items.is_empty() {
            return self.fail(Problem::error(self.place(), "is empty").expected(expected));
        }
        Some(items)
    }

    /// The items of a list that must have at least one item and at most `max`; `what` names the items in the message.
    pub(super) fn list_up_to(&self, max: usize, what: &str, expected: &str) -> Option<Vec<Self>> {
        let items = self.nonempty_list(expected)?;
        match items.len() > max {
            true => self.fail(self.key_error(format!("has more than {max} {what}"))),
            false => Some(items),
        }
    }

    /// A mapping, without a check of its names.
    pub(super) fn mapping(&self, expected: &str) -> Option<Section<'a>> {
        self.as_mapping().or_else(|| self.wrong_shape(expected))
    }

    /// A mapping, if the value is a mapping.
    pub(super) fn as_mapping(&self) -> Option<Section<'a>> {
        match &self.node.content {
            Content::Mapping(entries) => Some(Section::new(self.clone(), entries)),
            Content::Sequence(_) | Content::Scalar { .. } => None,
        }
    }

    /// A mapping of the settings in `table`. Unknown names are errors.
    pub(super) fn section(&self, table: &'static Table) -> Option<Section<'a>> {
        self.section_or(table, &format!("a mapping of {}", words::all_of(table.names())))
    }

    /// [`Field::section`] where other values than a mapping are valid too; `expected` describes all of them.
    pub(super) fn section_or(&self, table: &'static Table, expected: &str) -> Option<Section<'a>> {
        let section = self.mapping(expected)?.with(table);
        section.reject_unknown(&table.names());
        Some(section)
    }

    /// The kind of the value, from the table.
    pub(super) const fn kind(&self) -> Option<&'static Kind> {
        self.kind
    }

    /// The default of the setting, from the table.
    pub(super) const fn default(&self) -> Option<&'static str> {
        self.default
    }
}

/// All values, if none is `None`. Unlike `collect` it does not stop at the first `None`, so that every value is read.
pub(super) fn all_or_none<T>(values: impl Iterator<Item = Option<T>>) -> Option<Vec<T>> {
    let mut whole = true;
    let found = values.filter_map(|value| {
        whole &= value.is_some();
        value
    });
    let found = found.collect();
    whole.then_some(found)
}

/// Reads each item of a list with `read`; two items with the same `key` are an error.
pub(super) fn unique_items<'a, T, K: Eq + Hash>(
    items: &[Field<'a>],
    read: impl Fn(&Field<'a>) -> Option<T>,
    key: impl Fn(&T) -> K,
) -> Option<Vec<T>> {
    let mut seen = HashSet::new();
    all_or_none(items.iter().map(|item| match read(item)? {
        value if seen.insert(key(&value)) => Some(value),
        _ => item.fail(item.error("is in the list twice").expected("each once")),
    }))
}
