//! What the readers of proxies' YAML share: whatever nobody reads is named, never passed over.

use crate::config::problem::Problem;
use crate::config::read::{Field, Section};

/// A remark about a setting, at its name.
pub(super) fn note(field: &Field<'_>, message: &str) {
    field.findings().add(Problem::warning(field.key_place(), message));
}

/// Names what is in a mapping beside `read`.
pub(super) fn name_others(section: &Section<'_>, read: &[&str]) {
    for (_, field) in section.fields().filter(|(name, _)| !read.contains(name)) {
        note(&field, "is not carried over");
    }
}

/// A mapping, where there is one.
pub(super) fn section<'a>(of: &Section<'a>, name: &str) -> Option<Section<'a>> {
    of.get(name).filter(|field| !field.is_nothing()).and_then(|field| field.mapping("a mapping"))
}

/// The items of a list, where there is one.
pub(super) fn list<'a>(of: &Section<'a>, name: &str) -> Vec<Field<'a>> {
    of.get(name).filter(|field| !field.is_nothing()).and_then(|field| field.list("a list")).unwrap_or_default()
}

/// A single value, where there is one.
pub(super) fn text(of: &Section<'_>, name: &str) -> Option<String> {
    of.get(name).filter(|field| !field.is_nothing()).and_then(|field| Some(field.word("a value")?.text.into_owned()))
}

/// The single values of a list, or the one that stands in its place.
pub(super) fn texts(of: &Section<'_>, name: &str) -> Vec<String> {
    let Some(field) = of.get(name).filter(|field| !field.is_nothing()) else { return Vec::new() };
    let items = field.items_if().unwrap_or_else(|| vec![field]);
    items.iter().filter_map(|item| Some(item.word("a value")?.text.into_owned())).collect()
}

/// A whole number, where there is one.
pub(super) fn number(of: &Section<'_>, name: &str) -> Option<u64> {
    let field = of.get(name).filter(|field| !field.is_nothing())?;
    let number = field.word("a whole number")?.text.parse();
    number.map_err(|_| field.findings().add(field.error("is no whole number").expected("a whole number"))).ok()
}

/// Whether a flag is set; `default` where it is absent.
pub(super) fn flag(of: &Section<'_>, name: &str, default: bool) -> bool {
    text(of, name).map_or(default, |text| text == "true")
}
