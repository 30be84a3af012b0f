//! `warn_at` of a limit: the shares of its quota from which on the gateway warns clients.

use crate::algorithm::{AlgorithmName, Rule};
use crate::config::read::{Field, all_or_none};
use crate::units::Nanos;

const EXPECTED: &str = "up to four percents, each above the one before, like `[80, 95]`";
const MAX_MARKS: usize = 4;

/// Reads the percentages, which must rise.
pub(super) fn read(field: &Field<'_>) -> Option<Vec<u8>> {
    let items = field.list_up_to(MAX_MARKS, "marks", EXPECTED)?;
    let marks: Vec<u8> = all_or_none(items.iter().map(Field::whole))?;
    let mut pairs = marks.iter().zip(marks.iter().skip(1));
    match pairs.position(|(mark, next)| next <= mark).and_then(|position| items.get(position.saturating_add(1))) {
        Some(item) => item.fail(item.error("is not above the mark before").expected(EXPECTED)),
        None => Some(marks),
    }
}

/// Refuses, at `field`, rules without a fixed quota, of which no share can be in use.
pub(super) fn check<'r>(field: &Field<'_>, rules: impl IntoIterator<Item = &'r Rule>) -> Option<()> {
    match rules.into_iter().find(|rule| !has_share_in_use(rule)) {
        None => Some(()),
        Some(rule) => {
            let message =
                format!("goes by the share of a fixed quota that is used, and here is none: {}", rule.describe());
            let hint = "leave out `warn_at`, or take what has a fixed quota, like `gcra` without `delay_after`";
            field.fail(field.key_error(message).hint(hint.to_owned()))
        }
    }
}

/// Whether a new key may use the whole quota at once, and the quota does not change.
pub(super) fn has_share_in_use(rule: &Rule) -> bool {
    let left = rule.headroom(None, Nanos::ZERO).remaining;
    left == Some(rule.policy().quota) && rule.name() != AlgorithmName::AdaptiveConcurrency
}
