//! YAML files of customers and groups, for small numbers of them that are edited by hand.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use serde_yaml::Value;

use super::fault::{Fault, Faults};
use super::row::{Row, RowKind};

/// One credential with its customer, or one group.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Entry {
    credential: Option<String>,
    customer: Option<String>,
    level: Option<String>,
    group: Option<String>,
    plan: String,
    overrides: Value,
    time_zone: String,
    valid_until: Option<String>,
    suspended: Option<bool>,
    groups: BTreeMap<String, String>,
}

/// Reads the rows of `text`; see [`Format::read`](super::table::Format::read).
pub(super) fn read(
    text: &str,
    kind: RowKind,
    levels: &[Arc<str>],
    mut take: impl FnMut(&Row<'_>, &mut Faults),
) -> Faults {
    let mut faults = Faults::default();
    let expected = match kind {
        RowKind::Credentials => "credential: ..., customer: ..., plan: ...",
        RowKind::Groups => "level: ..., group: ..., plan: ...",
    };
    let entries: Vec<Entry> = match serde_yaml::from_str(text) {
        Ok(entries) => entries,
        Err(error) => {
            // the library's own message may quote a value, which may be a credential
            let line = error.location().map_or(1, |location| location.line());
            faults.add(u64::try_from(line).unwrap_or(u64::MAX), Fault::MalformedYaml(expected));
            return faults;
        }
    };
    // a JSON list, which is also YAML, has all its entries on one line
    for (line, entry) in entry_lines(text).chain(std::iter::repeat(1)).zip(entries) {
        let overrides = match &entry.overrides {
            Value::Null => Some(String::new()),
            value => serde_json::to_string(value).ok(),
        };
        let Some(overrides) = overrides.filter(|_| entry.fits(kind)) else {
            faults.add(line, Fault::MalformedYaml(expected));
            continue;
        };
        let mut row = entry.row(line, &overrides);
        match entry.groups.iter().all(|(level, group)| row.set_group(levels, level, group)) {
            true => take(&row, &mut faults),
            false => faults.add(line, Fault::UnknownLevel),
        }
    }
    faults
}

/// The numbers of the lines on which the entries of a list begin: those with a dash at the indent of the first one.
fn entry_lines(text: &str) -> impl Iterator<Item = u64> {
    let dashes = text.lines().zip(1..).filter_map(|(line, number)| {
        let entry = line.trim_start();
        let is_dash = entry.strip_prefix('-').is_some_and(|rest| rest.chars().next().is_none_or(char::is_whitespace));
        is_dash.then_some((line.len().saturating_sub(entry.len()), number))
    });
    let mut dashes = dashes.peekable();
    let first = dashes.peek().map(|(indent, _)| *indent);
    dashes.filter(move |(indent, _)| Some(*indent) == first).map(|(_, number)| number)
}

/// The overrides of a row, in YAML or JSON, as JSON; null without any.
pub(super) fn overrides_as_json(text: &str) -> serde_json::Value {
    match text {
        "" => serde_json::Value::Null,
        text => serde_yaml::from_str(text).unwrap_or_else(|_| text.into()),
    }
}

impl Entry {
    /// Whether the entry has the required fields of such a file, and none of the other kind.
    fn fits(&self, kind: RowKind) -> bool {
        let Self { credential, customer, level, group, valid_until, .. } = self;
        match kind {
            RowKind::Credentials => (credential.is_some() && customer.is_some()) && level.is_none() && group.is_none(),
            RowKind::Groups => {
                (level.is_some() && group.is_some())
                    && (credential.is_none() && customer.is_none() && valid_until.is_none())
            }
        }
    }

    /// The row, without its groups.
    fn row<'e>(&'e self, line: u64, overrides: &'e str) -> Row<'e> {
        let text = |text: &'e Option<String>| text.as_deref().unwrap_or_default();
        Row {
            line,
            credential: text(&self.credential),
            customer: text(&self.customer),
            level: text(&self.level),
            group: text(&self.group),
            plan: &self.plan,
            overrides,
            time_zone: &self.time_zone,
            valid_until: text(&self.valid_until),
            suspended: if self.suspended == Some(true) { "true" } else { "" },
            ..Row::default()
        }
    }
}
