//! The bucket that a charge belongs to: its identifier, and its description for operators.

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::charge::Charge;
use crate::gateway::active_config::ActiveConfig;
use crate::gateway::explain::masked;
use crate::ruleset::key::{KeyFault, KeyPart, Value, ValueFault};
use crate::ruleset::limit::Limit;
use crate::store::local::is_overflow;
use crate::telemetry::offenders::LimitedKey;
use crate::units::LimitKey;

/// The maximum length of a value; longer ones are cut, because clients choose some of them.
const MAX_VALUE_LENGTH: usize = 100;

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

/// The limit and the parts of the key, masked if they may be secret. A bucket that requests without a key share has no other
/// part than the one that they lack.
pub(super) fn subject<'v>(
    active: &ActiveConfig,
    limit: &Limit,
    charge: &Charge,
    value: impl Fn(&KeyPart) -> Option<Value<'v>>,
) -> LimitedKey {
    let customers = active.ruleset.customers.as_ref();
    let shown = |part: &KeyPart| value(part).map(|value| cut(masked::masked_value(part, &value, customers)));
    let parts: Vec<_> = limit.key.parts.iter().map(|part| (part.describe(), shown(part))).collect();
    let lacks_part = parts.iter().any(|(_, value)| value.is_none());
    let key = match lacks_part.then(|| shared_because(active, limit, charge, &value)).flatten() {
        _ if is_overflow(charge.key) => vec![("room for more keys".to_owned(), None)],
        Some(KeyFault { part, fault: ValueFault::Unreadable }) => vec![(format!("readable {}", part.describe()), None)],
        Some(KeyFault { part, .. }) => vec![(part.describe(), None)],
        None => parts,
    };
    LimitedKey { limit: limit.name.clone(), key }
}

/// The fault because of which requests share the bucket of `charge`; `None` for the bucket of a key.
pub(super) fn shared_because<'l, 'v>(
    active: &ActiveConfig,
    limit: &'l Limit,
    charge: &Charge,
    value: impl Fn(&KeyPart) -> Option<Value<'v>>,
) -> Option<KeyFault<'l>> {
    let hasher = active.hashers.hasher();
    let without_value = limit.key.parts.iter().filter(|part| value(part).is_none());
    let mut faults = without_value
        .flat_map(|part| [ValueFault::Missing, ValueFault::Unreadable].map(|fault| KeyFault { part, fault }));
    faults.find(|fault| hasher.missing_part_key(&limit.name, limit.mode, *fault).key == charge.key)
}

fn cut(value: String) -> String {
    match value.char_indices().nth(MAX_VALUE_LENGTH) {
        Some(_) => value.chars().take(MAX_VALUE_LENGTH).chain(['.', '.', '.']).collect(),
        None => value,
    }
}
