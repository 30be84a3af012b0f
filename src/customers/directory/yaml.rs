//! A directory as YAML: for a handful of customers, kept by hand.

use serde::Deserialize;
use serde_yaml::Value;

use super::builder::DirectoryBuilder;
use super::fault::Fault;
use super::row::Row;

/// One credential and whose it is.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    credential: String,
    customer: String,
    plan: String,
    #[serde(default)]
    overrides: Value,
    #[serde(default)]
    time_zone: String,
    #[serde(default)]
    valid_until: String,
    suspended: Option<bool>,
}

/// Reads `text` into `builder`.
pub(super) fn read(text: &str, builder: &mut DirectoryBuilder<'_>) {
    let entries: Vec<Entry> = match serde_yaml::from_str(text) {
        Ok(entries) => entries,
        Err(error) => {
            // the library's own words may quote a value, and that may be a credential
            let line = error.location().map_or(1, |location| location.line());
            return builder.faults.add(u64::try_from(line).unwrap_or(u64::MAX), Fault::MalformedYaml);
        }
    };
    let lines = text.lines().zip(1..).filter(|(line, _)| line.trim_start().starts_with('-')).map(|(_, line)| line);
    // a list in JSON, which is YAML too, stands on one line
    for (line, entry) in lines.chain(std::iter::repeat(1)).zip(entries) {
        let overrides = match &entry.overrides {
            Value::Null => Ok(String::new()),
            value => serde_json::to_string(value),
        };
        match overrides {
            Ok(overrides) => builder.add(line, &entry.row(&overrides)),
            Err(_) => builder.faults.add(line, Fault::MalformedYaml),
        }
    }
}

impl Entry {
    fn row<'e>(&'e self, overrides: &'e str) -> Row<'e> {
        Row {
            credential: self.credential.as_bytes(),
            customer: self.customer.as_bytes(),
            plan: self.plan.as_bytes(),
            overrides: overrides.as_bytes(),
            time_zone: self.time_zone.as_bytes(),
            valid_until: self.valid_until.as_bytes(),
            suspended: if self.suspended == Some(true) { b"true" } else { b"" },
        }
    }
}
