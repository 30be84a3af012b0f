//! The value of a field in the Redis hash, or the response of a plain service: one customer as JSON.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::customers::Customer;
use crate::customers::directory::fault::Fault;
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
    interner.forget_if_grown();
    let first = |faults: Vec<Fault>| faults.first().map(Fault::to_string).unwrap_or_default();
    let says = |fault: Fault| fault.to_string();
    let mut named = value.groups.iter().flatten().map(|(level, group)| (level, group.as_deref().unwrap_or_default()));
    if !named.all(|(level, group)| row.set_group(table.levels(), level, group)) {
        return Err(says(Fault::UnknownLevel));
    }
    let groups = interner.groups(&row, table).map_err(says)?;
    let inherited = groups.as_ref().and_then(|groups| groups.plan());
    let terms = interner.terms(&row, inherited).map_err(first)?;
    Ok(Customer {
        name: row.name().map_err(says)?.into(),
        plan: terms.plan.ok_or_else(|| says(Fault::EmptyField("plan")))?,
        own: terms.own.clone(),
        suspended: terms.suspended || groups.as_ref().is_some_and(|groups| groups.suspended()),
        groups,
        valid_until: row.valid_until(terms.zone.as_ref()).map_err(says)?,
    })
}
