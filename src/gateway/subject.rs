//! The bucket that a charge belongs to: its identifier, and its description for operators.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::charge::Charge;
use crate::gateway::explain::masked;
use crate::ruleset::Ruleset;
use crate::ruleset::key::{KeyPart, Value};
use crate::ruleset::limit::Limit;
use crate::store::local::is_overflow;
use crate::telemetry::offenders::LimitedKey;
use crate::units::LimitKey;

/// The maximum length of a value; longer ones are cut, because clients choose some of them.
const LONGEST: usize = 100;

/// The identifier of a charge's bucket. The overflow buckets, which new keys share, have one key under all limits, so the
/// limit's name identifies them.
pub(super) fn bucket(limit: &Limit, charge: &Charge) -> LimitKey {
    match is_overflow(charge.key) {
        true => {
            let mut hash = DefaultHasher::new();
            limit.name.hash(&mut hash);
            LimitKey(hash.finish().into())
        }
        false => charge.key,
    }
}

/// The limit and the parts of the key, masked if they may be secret.
pub(super) fn subject<'v>(
    ruleset: &Ruleset,
    limit: &Limit,
    charge: &Charge,
    value: impl Fn(&KeyPart) -> Option<Value<'v>>,
) -> LimitedKey {
    if is_overflow(charge.key) {
        let beyond = ("room for more keys".to_owned(), None);
        return LimitedKey { limit: limit.name.clone(), key: vec![beyond] };
    }
    let parts = limit.key.parts.iter().map(|part| {
        (part.describe(), value(part).map(|value| cut(masked::masked_value(part, &value, ruleset.customers.as_ref()))))
    });
    LimitedKey { limit: limit.name.clone(), key: parts.collect() }
}

fn cut(value: String) -> String {
    match value.char_indices().nth(LONGEST) {
        Some(_) => value.chars().take(LONGEST).chain(['.', '.', '.']).collect(),
        None => value,
    }
}
