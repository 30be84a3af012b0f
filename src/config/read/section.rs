//! The mappings of the document, and the readers of their settings.

use std::cell::{OnceCell, RefCell};

use super::{Field, PathStep};
use crate::config::document::Entry;
use crate::config::problem::Place;
use crate::config::scalar::{self, InvalidValue};
use crate::config::settings::{Kind, Setting, Table, reference};
use crate::config::{unneeded, words};
use crate::units::Nanos;

/// A mapping.
pub(in crate::config) struct Section<'a> {
    /// The field of the mapping.
    pub(in crate::config) field: Field<'a>,
    entries: &'a [Entry],
    /// The settings of the mapping; `None` where the operator chooses the names.
    table: Option<&'static Table>,
    /// Known names that are similar to unknown ones in the mapping. The unknown names have findings already.
    misspelt: RefCell<Vec<String>>,
}

impl<'a> Section<'a> {
    pub(super) fn new(field: Field<'a>, entries: &'a [Entry]) -> Self {
        Self { field, entries, table: None, misspelt: RefCell::default() }
    }

    /// The same mapping, with the settings of `table`.
    #[must_use]
    pub(in crate::config) fn with(self, table: &'static Table) -> Self {
        Self { table: Some(table), ..self }
    }

    fn entry(&self, entry: &'a Entry) -> Field<'a> {
        let setting = self.table.and_then(|table| table.find(&entry.key));
        let of_any_name = || self.field.kind.filter(|_| self.table.is_none()).and_then(Kind::inner);
        Field {
            kind: setting.map(|setting| &setting.kind).or_else(of_any_name),
            default: setting.and_then(Setting::default_text),
            context: self.field.context,
            node: &entry.value,
            key_mark: entry.key_mark,
            path: self.field.path.to(PathStep::Key(&entry.key)),
            secret: self.field.secret,
        }
    }

    /// The field `key`, if the mapping has it.
    pub(in crate::config) fn get(&self, key: &str) -> Option<Field<'a>> {
        self.entries.iter().find(|entry| entry.key == key).map(|entry| self.entry(entry))
    }

    /// The field at the end of `path`, if the mapping has it.
    pub(in crate::config) fn at(&self, path: &[&str]) -> Option<Field<'a>> {
        match path {
            [] => None,
            [key] => self.get(key),
            [key, below @ ..] => self.get(key)?.as_mapping()?.at(below),
        }
    }

    /// The items of the list `key`; none where there is no such list.
    pub(in crate::config) fn items(&self, key: &str) -> Vec<Field<'a>> {
        self.get(key).and_then(|field| field.as_list()).unwrap_or_default()
    }

    /// The names and fields in the mapping `key`; none where there is no such mapping.
    pub(in crate::config) fn named(&self, key: &str) -> Vec<(&'a str, Field<'a>)> {
        self.get(key).and_then(|field| field.as_mapping()).iter().flat_map(Section::fields).collect()
    }

    /// Whether the mapping has `key`.
    pub(in crate::config) fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == key)
    }

    /// The place of the field `key` in a mapping without it: the mapping's own.
    pub(in crate::config) fn place_without(&self, key: &'static str) -> Place {
        let path = self.field.path.to(PathStep::Key(key));
        self.field.findings().place(self.field.key_mark, &path.written())
    }

    /// Whether the mapping is empty.
    pub(in crate::config) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether `key` is absent and a similar unknown name has a finding.
    pub(in crate::config) fn is_misspelt(&self, key: &str) -> bool {
        self.misspelt.borrow().iter().any(|meant| meant == key)
    }

    /// The field `key`; its absence is an error.
    pub(in crate::config) fn required(&self, key: &str, expected: &str) -> Option<Field<'a>> {
        self.assert_described(key);
        if let Some(field) = self.get(key) {
            return Some(field);
        }
        if self.is_misspelt(key) {
            return None;
        }
        self.field.fail(self.field.key_error(format!("`{key}` is missing")).expected(expected))
    }

    /// The one field of `keys` that is there, with its name. That none or several are there is an error; `expected` describes
    /// valid values.
    pub(in crate::config) fn one_of(&self, keys: &[&'static str], expected: &str) -> Option<(&'static str, Field<'a>)> {
        let mut there = keys.iter().filter_map(|key| Some((*key, self.get(key)?)));
        let has = match (there.next(), there.next()) {
            (Some(one), None) => return Some(one),
            (None, _) if keys.iter().any(|key| self.is_misspelt(key)) => return None,
            (None, _) => "has none of",
            _ => "has more than one of",
        };
        let message = format!("{has} {}", words::all_of(keys.iter().copied()));
        self.field.fail(self.field.key_error(message).expected(expected))
    }

    /// Reads the field `key` with `read`. Its absence is an error, for which the table describes valid values.
    pub(in crate::config) fn must<T>(&self, key: &str, read: impl FnOnce(&Field<'a>) -> Option<T>) -> Option<T> {
        let setting = self.table.and_then(|table| table.find(key));
        let expected = setting.map(|setting| reference::written(&setting.kind)).unwrap_or_default();
        read(&self.required(key, &expected)?)
    }

    /// Reads the field `key` with `read`; `default` where it is absent.
    pub(in crate::config) fn get_or<T>(
        &self,
        key: &str,
        default: T,
        read: impl FnOnce(&Field<'a>) -> Option<T>,
    ) -> Option<T> {
        self.assert_described(key);
        match self.get(key) {
            Some(field) => read(&field),
            None => Some(default),
        }
    }

    /// Reads the field `key` with `read`, if it is there; the outer `None` means that the field has errors.
    pub(in crate::config) fn get_with<T>(
        &self,
        key: &str,
        read: impl FnOnce(&Field<'a>) -> Option<T>,
    ) -> Option<Option<T>> {
        self.get_or(key, None, |field| read(field).map(Some))
    }

    /// Reads the field `key` with `read`; `default` where it is absent or has errors.
    pub(in crate::config) fn value_or<T>(
        &self,
        key: &str,
        default: T,
        read: impl FnOnce(&Field<'a>) -> Option<T>,
    ) -> T {
        self.optional(key, read).unwrap_or(default)
    }

    /// Reads the field `key` with `read`; `None` where it is absent or has errors.
    pub(in crate::config) fn optional<T>(&self, key: &str, read: impl FnOnce(&Field<'a>) -> Option<T>) -> Option<T> {
        self.get_with(key, read).flatten()
    }

    /// Reads the field `key` with `read`; the table's default, parsed by `parse`, where it is absent or has errors.
    pub(in crate::config) fn value<T: Default>(
        &self,
        key: &str,
        read: impl FnOnce(&Field<'a>) -> Option<T>,
        parse: impl FnOnce(&str) -> Result<T, InvalidValue>,
    ) -> T {
        let default = || self.table?.find(key)?.default_text();
        debug_assert!(default().is_some(), "`{key}` has no default in the table");
        self.optional(key, read).or_else(|| parse(default()?).ok()).unwrap_or_default()
    }

    pub(in crate::config) fn duration(&self, key: &str) -> Nanos {
        self.value(key, Field::duration, scalar::duration)
    }

    pub(in crate::config) fn whole<T: TryFrom<u64> + Default>(&self, key: &str) -> T {
        self.value(key, Field::whole, |text| Ok(T::try_from(scalar::whole(text)?).unwrap_or_default()))
    }

    pub(in crate::config) fn size(&self, key: &str) -> usize {
        self.value(key, Field::size, |text| Ok(usize::try_from(scalar::size(text)?).unwrap_or(usize::MAX)))
    }

    pub(in crate::config) fn flag(&self, key: &str) -> bool {
        self.value(key, Field::flag, scalar::flag)
    }

    /// A text that `read` reads.
    pub(in crate::config) fn text(&self, key: &str, read: impl FnOnce(&Field<'a>) -> Option<String>) -> String {
        self.value(key, read, |text| Ok(text.to_owned()))
    }

    /// The mapping `key` of the settings in `table`; without any setting where it is absent or has errors.
    pub(in crate::config) fn below(&self, key: &str, table: &'static Table) -> Self {
        let empty = || Self::new(self.field.clone(), &[]).with(table);
        self.optional(key, |field| field.section(table)).unwrap_or_else(empty)
    }

    /// Asserts that `key` is in the table.
    fn assert_described(&self, key: &str) {
        debug_assert!(self.table.is_none_or(|table| table.find(key).is_some()), "`{key}` is in no table");
    }

    /// The entries of the document's mapping, each with its field.
    pub(in crate::config) fn entries(&self) -> impl Iterator<Item = (&'a Entry, Field<'a>)> {
        self.entries.iter().map(|entry| (entry, self.entry(entry)))
    }

    /// The names and their fields, in the order of the text.
    pub(in crate::config) fn fields(&self) -> impl Iterator<Item = (&'a str, Field<'a>)> {
        self.entries.iter().map(|entry| (entry.key.as_str(), self.entry(entry)))
    }

    /// A hint to the one setting, or the two, whose sections have `key`.
    fn sections_with(&self, key: &str) -> Option<String> {
        let knows = |setting: &&Setting| matches!(setting.kind, Kind::Section(table) if table.find(key).is_some());
        let settings = self.table?.settings.iter().filter(knows);
        let meant: Vec<String> = settings.map(|setting| format!("`{}: {{ {key}: ... }}`", setting.name)).collect();
        matches!(meant.len(), 1 | 2).then(|| format!("did you mean {}?", meant.join(" or ")))
    }

    /// Adds an error for each name that is not in `keys`.
    pub(in crate::config) fn reject_unknown(&self, keys: &[&str]) {
        let findings = self.field.findings();
        // computed once, and only for an unknown name: the mapping and `keys` may be long
        let absent = OnceCell::new();
        for entry in self.entries.iter().filter(|entry| !keys.contains(&entry.key.as_str())) {
            if findings.count_if_full() {
                continue;
            }
            let (key, mut field) = (entry.key.as_str(), self.entry(entry));
            if words::may_be_secret(key) {
                // the operator may have written credentials as names
                field.path = self.field.path.to(PathStep::Key("*"));
            }
            if let Some((_, why)) = unneeded::NAMES.iter().find(|(name, _)| *name == key) {
                findings.add(field.key_error("is not needed").hint(*why));
                continue;
            }
            // a setting that is set in another text, as by `--set`, stands beside the one that it means
            let known: &[&str] = match field.key_mark.text == self.field.node.mark.text {
                true => absent.get_or_init(|| keys.iter().copied().filter(|key| !self.has(key)).collect::<Vec<_>>()),
                false => keys,
            };
            let near = findings.near_miss(key, known.iter().copied());
            self.misspelt.borrow_mut().extend(near.map(str::to_owned));
            findings.add(
                field
                    .key_error("is unknown here")
                    .expected(words::alternatives(keys.iter().copied()))
                    .hint(near.map(words::did_you_mean).or_else(|| self.sections_with(key))),
            );
        }
    }
}
