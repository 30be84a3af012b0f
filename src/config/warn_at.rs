//! `warn_at` of a limit: from which shares of its quota on clients are warned.

use crate::algorithm::{AlgorithmName, Rule};
use crate::config::problem::Problem;
use crate::config::read::{Field, every};
use crate::units::Nanos;

const EXPECTED: &str = "up to four percents, each above the one before, like `[80, 95]`";
const MOST: usize = 4;

/// Reads the marks.
pub(super) fn read(field: &Field<'_>) -> Option<Vec<u8>> {
    let items = field.nonempty_list(EXPECTED)?;
    if items.len() > MOST {
        let problem = Problem::error(field.place(), "has too many marks").found(format!("{} marks", items.len()));
        return field.fail(problem.expected(EXPECTED));
    }
    let marks: Vec<u8> = every(items.iter().map(Field::whole))?;
    let mut pairs = marks.iter().zip(marks.iter().skip(1));
    match pairs.position(|(mark, next)| next <= mark).and_then(|position| items.get(position.saturating_add(1))) {
        Some(item) => item.fail(item.error("is not above the mark before").expected(EXPECTED)),
        None => Some(marks),
    }
}

/// Refuses rules under which no share of a quota is in use, at `field`.
pub(super) fn check<'r>(field: &Field<'_>, rules: impl IntoIterator<Item = &'r Rule>) -> Option<()> {
    match rules.into_iter().find(|rule| !has_share_in_use(rule)) {
        None => Some(()),
        Some(rule) => {
            let message =
                format!("goes by the share of a fixed quota that is used, and here is none: {}", rule.describe());
            let hint = "leave out `warn_at`, or take what has a fixed quota, like `gcra` without `delay_after`";
            field.fail(Problem::error(field.key_place(), message).hint(hint.to_owned()))
        }
    }
}

/// Whether a new key may spend the whole quota at once, and whether the quota stays what it is.
pub(super) fn has_share_in_use(rule: &Rule) -> bool {
    let left = rule.headroom(None, Nanos::ZERO).remaining;
    left == Some(rule.policy().quota) && rule.name() != AlgorithmName::AdaptiveConcurrency
}
