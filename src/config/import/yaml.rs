//! Functions that the readers of proxies' YAML share. Every setting that is not read gets a note; `null` stands for an absent one.

use std::fmt::Display;
use std::str::FromStr;

use crate::config::read::{Field, Section};

/// Adds a note about a setting, at the setting's name.
pub(super) fn note(field: &Field<'_>, message: &str) {
    field.warn_key(message, None);
}

/// Adds several notes about a setting.
pub(super) fn notes(field: &Field<'_>, messages: impl IntoIterator<Item = String>) {
    messages.into_iter().for_each(|message| note(field, &message));
}

/// Leaves a setting out, with a note that says why.
pub(super) fn left_out<T>(field: &Field<'_>, why: impl Display) -> Option<T> {
    note(field, &format!("is left out: {why}"));
    None
}

/// Adds a note for each setting of a mapping that is not in `read`.
pub(super) fn name_others(section: &Section<'_>, read: &[&str]) {
    for (_, field) in section.fields().filter(|(name, field)| !read.contains(name) && !field.is_null()) {
        note(&field, "is not carried over");
    }
}

/// A mapping, with a note for each of its settings that is not in `read`.
pub(super) fn settings<'a>(field: &Field<'a>, read: &[&str]) -> Option<Section<'a>> {
    let section = field.mapping("a mapping")?;
    name_others(&section, read);
    Some(section)
}

/// The setting `name`, if it is there.
pub(super) fn get<'a>(of: &Section<'a>, name: &str) -> Option<Field<'a>> {
    of.get(name).filter(|field| !field.is_null())
}

/// The mapping `name`, if it is there.
pub(super) fn section<'a>(of: &Section<'a>, name: &str) -> Option<Section<'a>> {
    get(of, name)?.mapping("a mapping")
}

/// The items of the list `name`; empty if it is absent.
pub(super) fn list<'a>(of: &Section<'a>, name: &str) -> Vec<Field<'a>> {
    get(of, name).and_then(|field| field.list("a list")).unwrap_or_default()
}

/// The single value `name`, if it is there.
pub(super) fn text(of: &Section<'_>, name: &str) -> Option<String> {
    Some(get(of, name)?.scalar_value("a value")?.text.into_owned())
}

/// The values of the list `name`, or the single value in its place.
pub(super) fn texts(of: &Section<'_>, name: &str) -> Vec<String> {
    let Some(field) = get(of, name) else { return Vec::new() };
    let items = field.as_list().unwrap_or_else(|| vec![field]);
    items.iter().filter_map(|item| Some(item.scalar_value("a value")?.text.into_owned())).collect()
}

/// The whole number `name`, if it is there.
pub(super) fn number(of: &Section<'_>, name: &str) -> Option<u64> {
    whole(of, name)
}

/// The same, in any type: `i64` for a number that may be below 0.
pub(super) fn whole<T: FromStr>(of: &Section<'_>, name: &str) -> Option<T> {
    let field = get(of, name)?;
    let number = field.scalar_value("a whole number")?.text.parse();
    number.map_err(|_| field.findings().add(field.error("is no whole number").expected("a whole number"))).ok()
}

/// The flag `name`; `default` if it is absent.
pub(super) fn flag(of: &Section<'_>, name: &str, default: bool) -> bool {
    text(of, name).map_or(default, |text| text == "true")
}
