//! The settings of `admin:` other than its address: the rights of operators, and the data that the admin port shows.

use crate::config::read::{Field, Section, unique_items};
use crate::config::scalar::{InvalidValue, invalid};
use crate::config::settings::ADMIN;
use crate::config::values::{NamedFile, check_ascii};
use crate::config::words;

/// The rights of operators, and the data that they see.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operators {
    /// The file of the token that a request for a change must carry; `None` allows no changes.
    pub token_file: Option<NamedFile>,
    /// The file to which the gateway appends each change; without one, changes go to the log.
    pub audit_log: Option<NamedFile>,
    /// The host names by which browsers may reach the admin port, beside `localhost` and addresses. Lower case, no port.
    pub hosts: Vec<String>,
    /// The number of most denied keys that have a metric of their own.
    pub top_denied_metrics: usize,
    /// The access logs that operators may replay.
    pub replay_logs: Vec<NamedFile>,
}

/// Reads the settings. `listeners::read` has already checked the section's names.
pub(super) fn read(top: &Section<'_>) -> Operators {
    let Some(section) = top.get("admin").and_then(|field| Some(field.as_mapping()?.with(&ADMIN))) else {
        return Operators::default();
    };
    Operators {
        token_file: section.optional("token_file", Field::file),
        audit_log: section.optional("audit_log", Field::file),
        hosts: section.value_or("hosts", Vec::new(), hosts),
        top_denied_metrics: section.whole("top_denied_metrics"),
        replay_logs: section.value_or("replay_logs", Vec::new(), |field| {
            let items = field.nonempty_list("a list of access logs")?;
            unique_items(&items, Field::file, |log| log.path.clone())
        }),
    }
}

fn hosts(field: &Field<'_>) -> Option<Vec<String>> {
    let items = field.nonempty_list("a list of host names")?;
    unique_items(&items, |item| item.read(host), String::clone)
}

fn host(text: &str) -> Result<String, InvalidValue> {
    check_ascii(text)?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        return Ok(text.to_ascii_lowercase());
    }
    let name = text.rsplit_once(':').filter(|(name, port)| {
        !name.is_empty() && name.bytes().all(plain) && port.bytes().all(|byte| byte.is_ascii_digit())
    });
    Err(invalid("is not a host name").hint(name.map(|(name, _)| words::did_you_mean(name))))
}
