//! A directory as YAML: for a handful of customers, kept by hand.

use serde::Deserialize;
use serde_yaml::Value;

use super::fault::Fault;
use super::reading::Reading;
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

/// Reads `text` into `reading`.
pub(super) fn read(text: &str, reading: &mut Reading<'_>) {
    let entries: Vec<Entry> = match serde_yaml::from_str(text) {
        Ok(entries) => entries,
        Err(error) => {
            // The library's own words may quote a value, and that may be a credential.
            let line = error.location().map_or(1, |location| location.line());
            return reading.faults.add(u64::try_from(line).unwrap_or(u64::MAX), Fault::MalformedYaml);
        }
    };
    let lines = text.lines().zip(1..).filter(|(line, _)| line.trim_start().starts_with('-')).map(|(_, line)| line);
    // JSON is YAML on one line
    let overrides = |entry: &Entry| match &entry.overrides {
        Value::Null => Ok(String::new()),
        value => serde_json::to_string(value).map_err(|_| Fault::MalformedYaml),
    };
    let entries: Vec<(u64, Entry, Result<String, Fault>)> = lines
        .chain(std::iter::repeat(1))
        .zip(entries)
        .map(|(line, entry)| {
            let overrides = overrides(&entry);
            (line, entry, overrides)
        })
        .collect();
    for (at, (line, entry, overrides)) in entries.iter().enumerate() {
        reading.glance(at, *line, overrides.as_ref().ok().map(|overrides| entry.row(overrides)).as_ref());
    }
    for (at, line) in reading.worth_reading() {
        match entries.get(at) {
            Some((_, entry, Ok(overrides))) => reading.row(line, &entry.row(overrides)),
            Some((_, _, Err(fault))) => reading.faults.add(line, fault.clone()),
            None => {}
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
