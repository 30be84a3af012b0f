//! The value of a field in the Redis hash, or the response of a plain service: one customer as JSON.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::customers::Customer;
use crate::customers::directory::fault::{Fault, Faults};
use crate::customers::directory::groups::GroupTable;
use crate::customers::directory::intern::Interner;
use crate::customers::directory::row::Row;

/// `{"customer": "acme", "plan": "pro", "overrides": {...}, "time_zone": "...", "valid_until": "...", "suspended": false,
/// "groups": {"team": "search"}}`; null stands for an absent value.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Value {
    customer: String,
    plan: Option<String>,
    #[serde(default)]
    overrides: serde_json::Value,
    time_zone: Option<String>,
    valid_until: Option<String>,
    suspended: Option<bool>,
    groups: Option<BTreeMap<String, Option<String>>>,
}

/// The customer, or the first fault, without quoting the value.
pub(super) fn read(text: &[u8], interner: &mut Interner, table: &GroupTable) -> Result<Customer, String> {
    let value: Value = serde_json::from_slice(text).map_err(|error| {
        // the library's own message may quote a value
        format!("not JSON like {{\"customer\": \"acme\", \"plan\": \"pro\"}}, see column {}", error.column())
    })?;
    let overrides = match &value.overrides {
        serde_json::Value::Null => String::new(),
        overrides => overrides.to_string(),
    };
    let mut row = Row {
        customer: &value.customer,
        plan: value.plan.as_deref().unwrap_or_default(),
        overrides: &overrides,
        time_zone: value.time_zone.as_deref().unwrap_or_default(),
        valid_until: value.valid_until.as_deref().unwrap_or_default(),
        suspended: if value.suspended == Some(true) { "true" } else { "" },
        ..Row::default()
    };
    let mut named = value.groups.iter().flatten().map(|(level, group)| (level, group.as_deref().unwrap_or_default()));
    if !named.all(|(level, group)| row.set_group(table.levels(), level, group)) {
        return Err(Fault::UnknownLevel.to_string());
    }
    interner.forget_if_grown();
    let mut faults = Faults::default();
    let read = interner.customer(&row, table, &mut faults).and_then(|(_, customer)| customer);
    read.ok_or_else(|| faults.faults.first().map(|(_, fault)| fault.to_string()).unwrap_or_default())
}
