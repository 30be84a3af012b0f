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
    let mut lines = text.lines().zip(1..).filter(|(line, _)| line.trim_start().starts_with('-'));
    for entry in entries {
        let line = lines.next().map_or(1, |(_, line)| line);
        // JSON is YAML on one line
        let overrides = match &entry.overrides {
            Value::Null => String::new(),
            value => match serde_json::to_string(value) {
                Ok(text) => text,
                Err(_) => {
                    reading.faults.add(line, Fault::MalformedYaml);
                    continue;
                }
            },
        };
        let suspended: &[u8] = if entry.suspended == Some(true) { b"true" } else { b"" };
        reading.row(
            line,
            &Row {
                credential: entry.credential.as_bytes(),
                customer: entry.customer.as_bytes(),
                plan: entry.plan.as_bytes(),
                overrides: overrides.as_bytes(),
                time_zone: entry.time_zone.as_bytes(),
                valid_until: entry.valid_until.as_bytes(),
                suspended,
            },
        );
    }
}
