//! A directory as YAML: for a handful of customers, kept by hand.

use serde::Deserialize;

use super::{Building, Fault};

/// One credential and whose it is.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    credential: String,
    customer: String,
    plan: String,
}

/// Reads `text` into `building`.
pub(super) fn read(text: &str, building: &mut Building<'_>) {
    let rows: Vec<Row> = match serde_yaml::from_str(text) {
        Ok(rows) => rows,
        Err(error) => {
            // The library's own words may quote a value, and that may be a credential.
            let line = error.location().map_or(1, |location| location.line());
            return building.faults.add(u64::try_from(line).unwrap_or(u64::MAX), Fault::MalformedYaml);
        }
    };
    let mut lines = text.lines().zip(1..).filter(|(line, _)| line.trim_start().starts_with('-'));
    for row in rows {
        let line = lines.next().map_or(1, |(_, line)| line);
        building.row(line, row.credential.as_bytes(), row.customer.as_bytes(), row.plan.as_bytes());
    }
}
