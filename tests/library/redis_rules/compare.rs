//! The comparison of two answers.

use tollgate::algorithm::{Decision, Denial, Headroom, Rule};
use tollgate::charge::{AllCharged, Charged};
use tollgate::units::Nanos;

/// The tolerance between two times in nanoseconds.
const CLOSE: u64 = 1_000;

/// Whether a rule uses functions whose last digit depends on the library.
pub(crate) fn is_approximate(rule: &Rule) -> bool {
    matches!(rule, Rule::Exponential(_))
}

/// Checks that a charge has the expected result; otherwise returns the difference.
pub(crate) fn charged(rules: &[&Rule], expected: &AllCharged, found: &AllCharged) -> Result<(), String> {
    if expected.len() != found.len() {
        return Err(format!("{} answers and not {}", found.len(), expected.len()));
    }
    rules.iter().zip(expected.iter().zip(found)).try_for_each(|(rule, (expected, found))| one(rule, expected, found))
}

fn one(rule: &Rule, expected: &Charged, found: &Charged) -> Result<(), String> {
    let same = match (expected.decision, found.decision) {
        (Decision::Admit { wait: expected }, Decision::Admit { wait: found }) => close(rule, expected, found),
        (
            Decision::Deny(Denial::Later { retry_after: expected }),
            Decision::Deny(Denial::Later { retry_after: found }),
        ) => close(rule, expected, found),
        (expected, found) => expected == found,
    };
    if !same {
        return Err(format!("{:?} and not {:?}", found.decision, expected.decision));
    }
    headroom(rule, &expected.headroom, &found.headroom)
}

/// Checks that a key has the expected headroom.
pub(crate) fn headroom(rule: &Rule, expected: &Headroom, found: &Headroom) -> Result<(), String> {
    let same = match is_approximate(rule) {
        false => expected == found,
        true => {
            let remaining = |headroom: &Headroom| headroom.remaining.unwrap_or(u64::MAX);
            remaining(expected).abs_diff(remaining(found)) <= 1 && close(rule, expected.until_full, found.until_full)
        }
    };
    if same { Ok(()) } else { Err(format!("{found:?} and not {expected:?}")) }
}

fn close(rule: &Rule, expected: Nanos, found: Nanos) -> bool {
    let apart = if is_approximate(rule) { CLOSE.max(expected.get() / 1_000_000_000_000) } else { 0 };
    expected.get().abs_diff(found.get()) <= apart
}
