//! What stands in a field of the hash: one customer as JSON.

use serde::Deserialize;

use crate::customers::Customer;
use crate::customers::directory::fault::Fault;
use crate::customers::directory::intern::Interner;
use crate::customers::directory::row::Row;

/// `{"customer": "acme", "plan": "pro", "overrides": {...}, "time_zone": "...", "valid_until": "...", "suspended": false}`
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Value {
    customer: String,
    plan: String,
    #[serde(default)]
    overrides: serde_json::Value,
    #[serde(default)]
    time_zone: Option<String>,
    #[serde(default)]
    valid_until: Option<String>,
    #[serde(default)]
    suspended: Option<bool>,
}

/// The customer, or the first thing that is wrong, without quoting what stands there.
pub(super) fn read(text: &[u8], interner: &mut Interner) -> Result<Customer, String> {
    let value: Value = serde_json::from_slice(text).map_err(|error| {
        // the library's own words may quote a value
        format!("not JSON like {{\"customer\": \"acme\", \"plan\": \"pro\"}}, see column {}", error.column())
    })?;
    let overrides = match &value.overrides {
        serde_json::Value::Null => String::new(),
        overrides => overrides.to_string(),
    };
    let row = Row {
        customer: value.customer.as_bytes(),
        plan: value.plan.as_bytes(),
        overrides: overrides.as_bytes(),
        time_zone: value.time_zone.as_deref().unwrap_or_default().as_bytes(),
        valid_until: value.valid_until.as_deref().unwrap_or_default().as_bytes(),
        suspended: if value.suspended == Some(true) { b"true" } else { b"" },
        ..Row::default()
    };
    interner.forget_if_grown();
    let first = |faults: Vec<Fault>| faults.first().map(Fault::to_string).unwrap_or_default();
    let terms = interner.terms(&row).map_err(first)?;
    let says = |fault: Fault| fault.to_string();
    Ok(Customer {
        name: row.name().map_err(says)?.into(),
        plan: terms.plan,
        own: terms.own.clone(),
        valid_until: row.valid_until(terms.zone.as_ref()).map_err(says)?,
        suspended: terms.suspended,
    })
}
