//! The values of a configuration as the file writes them, by their paths.

use std::collections::BTreeMap;

use super::document::{Content, YamlNode, join};
use super::read::ReadContext;
use super::shape::{self, ConfigText};

/// A section of a configuration; for `limits`, `routes`, `upstreams` and `listeners`, one item of the section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SectionValues {
    /// The name of the section.
    pub section: String,
    /// The name of the limit, the route or the upstream, or the address of the listener; empty for other sections.
    pub name: String,
    /// The text of every value, by the path to it. A list is one value.
    pub values: BTreeMap<String, String>,
}

impl ConfigText<'_> {
    /// The sections of a valid configuration, with includes, defaults and groups written out. `environment` looks up the
    /// variables in the lengths of windows and in the names of groups; the values keep theirs.
    pub fn section_values(&self, environment: &dyn Fn(&str) -> Option<String>) -> Vec<SectionValues> {
        let findings = self.findings();
        let root = shape::document(self, &ReadContext { findings: &findings, environment });
        let Some(Content::Mapping(top)) = root.as_deref().map(|root| &root.content) else { return Vec::new() };
        let mut sections = Vec::new();
        for section in top {
            let named = |name: &str, node: &YamlNode| {
                let mut values = BTreeMap::new();
                add_values("", node, &mut values);
                SectionValues { section: section.key.clone(), name: name.to_owned(), values }
            };
            match (section.key.as_str(), &section.value.content) {
                ("limits" | "upstreams", Content::Mapping(entries)) => {
                    sections.extend(entries.iter().map(|entry| named(&entry.key, &entry.value)));
                }
                (list @ ("routes" | "listeners"), Content::Sequence(items)) => {
                    let key = if list == "routes" { "name" } else { "address" };
                    sections.extend(items.iter().map(|item| {
                        let SectionValues { section, mut values, .. } = named("", item);
                        SectionValues { section, name: values.remove(key).unwrap_or_default(), values }
                    }));
                }
                _ => sections.push(named("", &section.value)),
            }
        }
        sections
    }
}

fn add_values(path: &str, node: &YamlNode, values: &mut BTreeMap<String, String>) {
    match &node.content {
        Content::Mapping(entries) => {
            entries.iter().for_each(|entry| add_values(&join(path, &entry.key), &entry.value, values));
        }
        Content::Scalar { .. } | Content::Sequence(_) => _ = values.insert(path.to_owned(), text(node)),
    }
}

fn text(node: &YamlNode) -> String {
    match &node.content {
        Content::Scalar { text, .. } => text.clone(),
        Content::Sequence(items) => items.iter().map(|item| text(item)).collect::<Vec<_>>().join(", "),
        Content::Mapping(entries) => {
            let entries: Vec<_> =
                entries.iter().map(|entry| format!("{}: {}", entry.key, text(&entry.value))).collect();
            format!("{{{}}}", entries.join(", "))
        }
    }
}
