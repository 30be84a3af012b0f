//! `quota_unit` of a limit: the unit of its quota, for clients.

use crate::algorithm::AlgorithmName;
use crate::config::read::Field;
use crate::config::scalar::invalid;
use crate::ruleset::cost::CostRule;

/// The unit of a quota without `quota_unit`.
pub(super) const REQUESTS: &str = "requests";
/// The maximum length of a unit, in bytes.
const MAX_UNIT: usize = 40;

/// Reads `quota_unit`.
pub(super) fn read(field: &Field<'_>) -> Option<String> {
    let is_good = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
    field.parsed("a word of small letters, digits, `-` and `_`, like `tokens`", |text| {
        match !text.is_empty() && text.len() <= MAX_UNIT && text.bytes().all(is_good) {
            true => Ok(text.to_owned()),
            false => Err(invalid("is not one word")),
        }
    })
}

/// The IETF draft's word for the unit of a limit; `None` for requests, and where the draft has no word.
pub(super) const fn of(algorithm: AlgorithmName, cost: &CostRule) -> Option<&'static str> {
    match cost {
        _ if algorithm.holds_slots() => Some("concurrent-requests"),
        CostRule::RequestBytes(1) | CostRule::ResponseBytes(1) => Some("content-bytes"),
        _ => None,
    }
}
