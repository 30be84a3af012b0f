//! A cursor over the document that reads fields and collects what is wrong with them.
//!
//! A reading method that returns `None` has added a finding already, so callers just go on: one error per cause.

use std::borrow::Cow;
use std::cell::{OnceCell, RefCell};
use std::collections::HashSet;
use std::hash::Hash;
use std::rc::Rc;

use crate::config::document::{self, Content, Entry, YamlNode};
use crate::config::environment::{self, Environment};
use crate::config::findings::Findings;
use crate::config::problem::{Hint, Mark, Place, Problem};
use crate::config::scalar::InvalidValue;
use crate::config::settings::{Kind, Presence, Table};
use crate::config::{unneeded, words};

/// What all fields of a file share.
pub(super) struct ReadContext<'a> {
    pub(super) findings: &'a Findings,
    pub(super) environment: Environment<'a>,
}

/// A value and where it is.
#[derive(Clone)]
pub(super) struct Field<'a> {
    context: &'a ReadContext<'a>,
    node: &'a YamlNode,
    /// Where its name stands; the value itself where it has none.
    key_mark: Mark,
    path: Path<'a>,
    secret: bool,
    /// What it takes, and what it is where it is left out, as the table of its section says; absent of names that a file
    /// chooses.
    kind: Option<&'static Kind>,
    default: Option<&'static str>,
}

/// The way to a value, which is written out for findings only.
#[derive(Clone, Default)]
struct Path<'a>(Option<Rc<Step<'a>>>);

struct Step<'a> {
    above: Path<'a>,
    below: Below<'a>,
}

/// What is one step below.
enum Below<'a> {
    Key(&'a str),
    Item(usize),
}

impl<'a> Path<'a> {
    fn to(&self, below: Below<'a>) -> Self {
        Self(Some(Rc::new(Step { above: self.clone(), below })))
    }

    fn written(&self) -> String {
        match self.0.as_deref() {
            None => String::new(),
            Some(Step { above, below: Below::Key(key) }) => document::join(&above.written(), key),
            Some(Step { above, below: Below::Item(position) }) => document::item(&above.written(), *position),
        }
    }
}

/// A single value.
pub(super) struct Word<'a> {
    pub(super) text: Cow<'a, str>,
    /// Whether it was written without quotes.
    pub(super) plain: bool,
}

impl<'a> Field<'a> {
    /// The whole document.
    pub(super) fn root(context: &'a ReadContext<'a>, node: &'a YamlNode) -> Self {
        Self { context, node, key_mark: node.mark, path: Path::default(), secret: false, kind: None, default: None }
    }

    /// The same field, whose value must never be shown.
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

    /// Where the value stands.
    pub(super) fn place(&self) -> Place {
        self.findings().place(self.node.mark, &self.path.written())
    }

    /// Where its name stands.
    pub(super) fn key_place(&self) -> Place {
        self.findings().place(self.key_mark, &self.path.written())
    }

    /// An error about the value, which says what was found.
    pub(super) fn error(&self, message: impl Into<String>) -> Problem {
        Problem::error(self.place(), message).found(self.describe())
    }

    /// Adds `problem`; `None`, for `return`.
    pub(super) fn fail<T>(&self, problem: Problem) -> Option<T> {
        self.findings().add(problem);
        None
    }

    /// Adds a warning about the value.
    pub(super) fn warn(&self, message: impl Into<String>, hint: impl Into<Hint>) {
        self.findings().add(Problem::warning(self.place(), message).hint(hint));
    }

    /// The value in words, for `found`.
    pub(super) fn describe(&self) -> String {
        match &self.node.content {
            Content::Sequence(_) => "a list".to_owned(),
            Content::Mapping(_) => "a mapping".to_owned(),
            Content::Scalar { .. } if self.is_nothing() => "nothing".to_owned(),
            Content::Scalar { text, .. } if self.secret => words::hidden(text),
            Content::Scalar { text, .. } if environment::is_used(text) => {
                format!("the value of {}", words::shown(text))
            }
            Content::Scalar { text, .. } => words::shown(text),
        }
    }

    /// Whether there is no value (`key:` or `key: null`).
    pub(super) fn is_nothing(&self) -> bool {
        matches!(&self.node.content, Content::Scalar { text, plain: true }
            if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// Whether the value is a single one.
    pub(super) fn is_word(&self) -> bool {
        matches!(self.node.content, Content::Scalar { .. }) && !self.is_nothing()
    }

    /// Whether the value is a list.
    pub(super) fn is_list(&self) -> bool {
        matches!(self.node.content, Content::Sequence(_))
    }

    fn wrong_shape<T>(&self, expected: &str) -> Option<T> {
        let message = if self.is_nothing() { "has no value" } else { "is of the wrong kind" };
        self.fail(self.error(message).expected(expected))
    }

    /// The single value, environment variables put in; `expected` says what it should be.
    pub(super) fn word(&self, expected: &str) -> Option<Word<'a>> {
        self.word_with(expected, |value| value)
    }

    fn word_with(&self, expected: &str, quote: impl Fn(String) -> String) -> Option<Word<'a>> {
        let Content::Scalar { text, plain } = &self.node.content else {
            return self.wrong_shape(expected);
        };
        if self.is_nothing() {
            return self.wrong_shape(expected);
        }
        match environment::expand(text, &|name| (self.context.environment)(name).map(&quote)) {
            Ok(text) => Some(Word { text, plain: *plain }),
            Err(invalid) => {
                self.fail(Problem::error(self.place(), invalid.message).expected(expected).hint(invalid.hint))
            }
        }
    }

    /// The single value as `parse` reads it.
    pub(super) fn parsed<T>(&self, expected: &str, parse: impl FnOnce(&str) -> Result<T, InvalidValue>) -> Option<T> {
        self.parsed_with(expected, |value| value, parse)
    }

    /// [`Field::parsed`] where what environment variables hold would mean something if it were not quoted first.
    pub(super) fn parsed_with<T>(
        &self,
        expected: &str,
        quote: impl Fn(String) -> String,
        parse: impl FnOnce(&str) -> Result<T, InvalidValue>,
    ) -> Option<T> {
        let word = self.word_with(expected, quote)?;
        match parse(&word.text) {
            Ok(value) => Some(value),
            Err(invalid) => {
                // a hint may repeat the value, and that may be a secret
                let hint = invalid.hint.filter(|_| !self.secret && matches!(word.text, Cow::Borrowed(_)));
                self.fail(self.error(invalid.message).expected(expected).hint(hint))
            }
        }
    }

    /// One of these words.
    pub(super) fn choice<T: Copy>(&self, words: &[(&str, T)]) -> Option<T> {
        self.choice_or(words, &words::alternatives(words.iter().map(|(word, _)| *word)))
    }

    /// [`Field::choice`] in which some words were called otherwise before: pairs of the former word and the one of today. The
    /// former one is read, with a warning.
    pub(super) fn choice_renamed<T: Copy>(&self, words: &[(&str, T)], former: &[(&str, &str)]) -> Option<T> {
        let renamed = self.renamed(former);
        match words.iter().find(|(word, _)| renamed == Some(*word)) {
            Some((_, value)) => Some(*value),
            None => self.choice(words),
        }
    }

    /// The word of today for the value, if it is a former one, of which a warning tells.
    pub(super) fn renamed<'w>(&self, former: &[(&str, &'w str)]) -> Option<&'w str> {
        let Content::Scalar { text, .. } = &self.node.content else { return None };
        let (_, today) = former.iter().find(|(former, _)| former == text)?;
        self.warn(format!("is called `{today}` now"), format!("write `{today}`: the next release refuses `{text}`"));
        Some(today)
    }

    /// [`Field::choice`] where something else than words may stand too, so that `expected` says it all.
    pub(super) fn choice_or<T: Copy>(&self, words: &[(&str, T)], expected: &str) -> Option<T> {
        debug_assert!(
            self.kind.and_then(Kind::words).is_none_or(|known| known.iter().eq(words.iter().map(|(word, _)| word))),
            "the table has other words than {expected}"
        );
        let word = self.word(expected)?;
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
        self.items_if().or_else(|| self.wrong_shape(expected))
    }

    /// The items of a list, if it is one.
    pub(super) fn items_if(&self) -> Option<Vec<Self>> {
        let Content::Sequence(items) = &self.node.content else {
            return None;
        };
        let field = |(position, node): (usize, &'a Rc<YamlNode>)| {
            let path = self.path.to(Below::Item(position));
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

    /// A mapping whose names are not looked at yet.
    pub(super) fn mapping(&self, expected: &str) -> Option<Section<'a>> {
        self.mapping_if().or_else(|| self.wrong_shape(expected))
    }

    /// A mapping, if it is one.
    pub(super) fn mapping_if(&self) -> Option<Section<'a>> {
        match &self.node.content {
            Content::Mapping(entries) => Some(Section::new(self.clone(), entries)),
            Content::Sequence(_) | Content::Scalar { .. } => None,
        }
    }

    /// A mapping of the settings in `table`. Unknown names are errors.
    pub(super) fn section(&self, table: &'static Table) -> Option<Section<'a>> {
        self.section_or(table, &format!("a mapping of {}", words::all_of(table.names())))
    }

    /// [`Field::section`] where something else may stand too, so that `expected` says it all.
    pub(super) fn section_or(&self, table: &'static Table, expected: &str) -> Option<Section<'a>> {
        let section = self.mapping(expected)?.with(table);
        section.refuse_others(&table.names());
        Some(section)
    }

    /// What the value is, as the table says.
    pub(super) const fn kind(&self) -> Option<&'static Kind> {
        self.kind
    }

    /// What it is where it is left out, as the table says.
    pub(super) const fn default(&self) -> Option<&'static str> {
        self.default
    }
}

/// All values, if none is missing. Unlike `collect` it goes on after the first that is, so that all are looked at.
pub(super) fn every<T>(values: impl Iterator<Item = Option<T>>) -> Option<Vec<T>> {
    let mut whole = true;
    let found = values.filter_map(|value| {
        whole &= value.is_some();
        value
    });
    let found = found.collect();
    whole.then_some(found)
}

/// What `read` makes of each item of a list, each once as `key` tells them apart.
pub(super) fn each_once<'a, T, K: Eq + Hash>(
    items: &[Field<'a>],
    read: impl Fn(&Field<'a>) -> Option<T>,
    key: impl Fn(&T) -> K,
) -> Option<Vec<T>> {
    let mut seen = HashSet::new();
    every(items.iter().map(|item| match read(item)? {
        value if seen.insert(key(&value)) => Some(value),
        _ => item.fail(item.error("is in the list twice").expected("each once")),
    }))
}

/// A mapping.
pub(super) struct Section<'a> {
    /// The mapping as a value.
    pub(super) field: Field<'a>,
    entries: &'a [Entry],
    /// Its settings, where the file does not choose its names.
    table: Option<&'static Table>,
    /// Names that are probably meant by unknown ones, which were reported as such.
    misspelt: RefCell<Vec<String>>,
}

impl<'a> Section<'a> {
    fn new(field: Field<'a>, entries: &'a [Entry]) -> Self {
        Self { field, entries, table: None, misspelt: RefCell::default() }
    }

    /// The same mapping, whose values are what `table` says.
    #[must_use]
    pub(super) fn with(self, table: &'static Table) -> Self {
        Self { table: Some(table), ..self }
    }

    fn entry(&self, entry: &'a Entry) -> Field<'a> {
        let setting = self.table.and_then(|table| table.find(&entry.key));
        let of_any_name = || self.field.kind.filter(|_| self.table.is_none()).and_then(Kind::inner);
        let default = setting.and_then(|setting| match setting.presence {
            Presence::Default(default) => Some(default),
            Presence::Required | Presence::Optional => None,
        });
        Field {
            kind: setting.map(|setting| &setting.kind).or_else(of_any_name),
            default,
            context: self.field.context,
            node: &entry.value,
            key_mark: entry.key_mark,
            path: self.field.path.to(Below::Key(&entry.key)),
            secret: self.field.secret,
        }
    }

    /// The field `key`, if it is there.
    pub(super) fn get(&self, key: &str) -> Option<Field<'a>> {
        self.entries.iter().find(|entry| entry.key == key).map(|entry| self.entry(entry))
    }

    /// Whether `key` is there.
    pub(super) fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == key)
    }

    /// Whether nothing is there.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether `key` is absent, but something like it was reported as unknown.
    pub(super) fn is_misspelt(&self, key: &str) -> bool {
        self.misspelt.borrow().iter().any(|meant| meant == key)
    }

    /// The field `key`, whose absence is an error.
    pub(super) fn required(&self, key: &str, expected: &str) -> Option<Field<'a>> {
        self.assert_described(key);
        if let Some(field) = self.get(key) {
            return Some(field);
        }
        if self.is_misspelt(key) {
            return None;
        }
        self.field.fail(Problem::error(self.field.key_place(), format!("`{key}` is missing")).expected(expected))
    }

    /// What `read` makes of the field `key`, or `default` where it is absent.
    pub(super) fn get_or<T>(&self, key: &str, default: T, read: impl FnOnce(&Field<'a>) -> Option<T>) -> Option<T> {
        self.assert_described(key);
        match self.get(key) {
            Some(field) => read(&field),
            None => Some(default),
        }
    }

    /// What `read` makes of the field `key`, if it is there: the outer `None` stands for a field that is wrong.
    pub(super) fn get_with<T>(&self, key: &str, read: impl FnOnce(&Field<'a>) -> Option<T>) -> Option<Option<T>> {
        self.get_or(key, None, |field| read(field).map(Some))
    }

    /// What is read stands in the table.
    fn assert_described(&self, key: &str) {
        debug_assert!(self.table.is_none_or(|table| table.find(key).is_some()), "`{key}` is in no table");
    }

    /// The entries as they stand in the document, each with its field.
    pub(super) fn entries(&self) -> impl Iterator<Item = (&'a Entry, Field<'a>)> {
        self.entries.iter().map(|entry| (entry, self.entry(entry)))
    }

    /// Names and values, in the order of the text.
    pub(super) fn fields(&self) -> impl Iterator<Item = (&'a str, Field<'a>)> {
        self.entries.iter().map(|entry| (entry.key.as_str(), self.entry(entry)))
    }

    /// Refuses all names but `keys`.
    pub(super) fn refuse_others(&self, keys: &[&str]) {
        let findings = self.field.findings();
        // looked up once, and only where a name is unknown: there may be many of both
        let absent = OnceCell::new();
        for entry in self.entries.iter().filter(|entry| !keys.contains(&entry.key.as_str())) {
            if findings.only_counts() {
                continue;
            }
            let (key, mut field) = (entry.key.as_str(), self.entry(entry));
            if words::may_be_secret(key) {
                // somebody may have written credentials as names
                field.path = self.field.path.to(Below::Key("*"));
            }
            if let Some((_, why)) = unneeded::NAMES.iter().find(|(name, _)| *name == key) {
                findings.add(Problem::error(field.key_place(), "is not needed").hint(*why));
                continue;
            }
            let absent: &Vec<&str> = absent.get_or_init(|| keys.iter().copied().filter(|key| !self.has(key)).collect());
            let near = findings.near_miss(key, absent.iter().copied());
            self.misspelt.borrow_mut().extend(near.map(str::to_owned));
            findings.add(
                Problem::error(field.key_place(), "is unknown here")
                    .expected(words::alternatives(keys.iter().copied()))
                    .hint(near.map(words::did_you_mean)),
            );
        }
    }
}
