//! Files about customers and groups as YAML: for a handful of them, kept by hand.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_yaml::Value;

use super::fault::Fault;
use super::row::{Content, Row, Rows};

/// One credential and whose it is.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Credential {
    credential: String,
    customer: String,
    #[serde(default)]
    plan: String,
    #[serde(default)]
    overrides: Value,
    #[serde(default)]
    time_zone: String,
    #[serde(default)]
    valid_until: String,
    suspended: Option<bool>,
    #[serde(default)]
    groups: BTreeMap<String, String>,
}

/// One group.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    level: String,
    group: String,
    #[serde(default)]
    plan: String,
    #[serde(default)]
    overrides: Value,
    #[serde(default)]
    time_zone: String,
    suspended: Option<bool>,
    #[serde(default)]
    groups: BTreeMap<String, String>,
}

/// An entry of the list.
trait Entry: DeserializeOwned {
    /// What an entry has, for those who wrote something else.
    const EXPECTED: &str;

    fn overrides(&self) -> &Value;

    fn groups(&self) -> &BTreeMap<String, String>;

    /// The row, without its groups.
    fn row<'e>(&'e self, overrides: &'e str) -> Row<'e>;
}

/// Reads `text` into `rows`.
pub(super) fn read(text: &str, rows: &mut impl Rows) {
    match rows.content() {
        Content::Credentials => read_entries::<Credential>(text, rows),
        Content::Groups => read_entries::<Group>(text, rows),
    }
}

fn read_entries<E: Entry>(text: &str, rows: &mut impl Rows) {
    let entries: Vec<E> = match serde_yaml::from_str(text) {
        Ok(entries) => entries,
        Err(error) => {
            // the library's own words may quote a value, and that may be a credential
            let line = error.location().map_or(1, |location| location.line());
            return rows.faults().add(u64::try_from(line).unwrap_or(u64::MAX), Fault::MalformedYaml(E::EXPECTED));
        }
    };
    let levels = rows.levels().to_vec();
    let lines = text.lines().zip(1..).filter(|(line, _)| line.trim_start().starts_with('-')).map(|(_, line)| line);
    // a list in JSON, which is YAML too, stands on one line
    for (line, entry) in lines.chain(std::iter::repeat(1)).zip(entries) {
        let overrides = match entry.overrides() {
            Value::Null => Ok(String::new()),
            value => serde_json::to_string(value),
        };
        let Ok(overrides) = overrides else {
            rows.faults().add(line, Fault::MalformedYaml(E::EXPECTED));
            continue;
        };
        let mut row = entry.row(&overrides);
        match entry.groups().iter().all(|(level, group)| row.set_group(&levels, level, group)) {
            true => rows.add(line, &row),
            false => rows.faults().add(line, Fault::UnknownLevel),
        }
    }
}

const fn flag(flag: Option<bool>) -> &'static [u8] {
    match flag {
        Some(true) => b"true",
        Some(false) | None => b"",
    }
}

impl Entry for Credential {
    const EXPECTED: &str = "credential: ..., customer: ..., plan: ...";

    fn overrides(&self) -> &Value {
        &self.overrides
    }

    fn groups(&self) -> &BTreeMap<String, String> {
        &self.groups
    }

    fn row<'e>(&'e self, overrides: &'e str) -> Row<'e> {
        Row {
            credential: self.credential.as_bytes(),
            customer: self.customer.as_bytes(),
            plan: self.plan.as_bytes(),
            overrides: overrides.as_bytes(),
            time_zone: self.time_zone.as_bytes(),
            valid_until: self.valid_until.as_bytes(),
            suspended: flag(self.suspended),
            ..Row::default()
        }
    }
}

impl Entry for Group {
    const EXPECTED: &str = "level: ..., group: ..., plan: ...";

    fn overrides(&self) -> &Value {
        &self.overrides
    }

    fn groups(&self) -> &BTreeMap<String, String> {
        &self.groups
    }

    fn row<'e>(&'e self, overrides: &'e str) -> Row<'e> {
        Row {
            level: self.level.as_bytes(),
            group: self.group.as_bytes(),
            plan: self.plan.as_bytes(),
            overrides: overrides.as_bytes(),
            time_zone: self.time_zone.as_bytes(),
            suspended: flag(self.suspended),
            ..Row::default()
        }
    }
}
