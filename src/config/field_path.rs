//! The path to a field in JSON.

use crate::config::scalar::InvalidValue;
use crate::ruleset::request_field::FieldPath;

pub(super) const A_PATH: &str = "the names on the way to a field in JSON, like `usage.total_tokens`";

pub(super) fn parse_path(text: &str) -> Result<FieldPath, InvalidValue> {
    let path: Vec<String> = text.split('.').map(str::to_owned).collect();
    let invalid = |message: &str| Err(InvalidValue { message: message.to_owned(), hint: None });
    match path.len() {
        _ if path.iter().any(String::is_empty) => invalid("has an empty name"),
        0..=FieldPath::MOST_NAMES => Ok(FieldPath(path)),
        _ => invalid("has more than 16 names"),
    }
}
