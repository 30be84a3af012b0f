//! `priority` of a limit: the share of its quota that requests of each plan may use.

use crate::algorithm::{AlgorithmName, Rule};
use crate::charge::{Consistency, Mode, Sharing};
use crate::config::names::Names;
use crate::config::over_limit::lets_pass;
use crate::config::read::{Field, Section, all_or_none};
use crate::config::warn_at::has_share_in_use;

/// Reads the percentage of each plan, at the plan's position.
pub(super) fn read(field: &Field<'_>, plans: &Names) -> Option<Vec<u8>> {
    let mut percents = vec![100; plans.len()];
    let section = field.mapping("plans by their names, each with the percent of the room that it may use")?;
    let named = all_or_none(section.fields().map(|(name, field)| {
        let (plan, percent) = (plans.resolve_key(name, &field), field.whole());
        Some((plan?, percent?))
    }));
    for (plan, percent) in named? {
        if let Some(place) = percents.get_mut(plan) {
            *place = percent;
        }
    }
    Some(percents)
}

/// Refuses a priority for a limit that never denies, has a candidate, is leased, or has no fixed quota.
pub(super) fn check(limit: &Section<'_>, (shadow, mode): (bool, Mode), rules: &[Rule]) -> Option<()> {
    let Some(field) = limit.get("priority") else { return Some(()) };
    let refuse = |message: String, hint: &str| field.fail(field.key_error(message).hint(hint.to_owned()));
    if shadow || limit.has("candidate") {
        let message = "is for a limit that denies requests, and neither only watches nor tries other parameters";
        return refuse(message.to_owned(), "leave out `shadow` and `candidate`");
    }
    if lets_pass(limit) {
        let message = "is for a limit that denies requests, and `over_limit` lets them pass";
        return refuse(message.to_owned(), "leave one of them out");
    }
    if let Mode::Shared(Sharing { consistency: Consistency::Leased { .. } | Consistency::Eventual, .. }) = mode {
        let message = "needs each request to be decided where the states are".to_owned();
        return refuse(message, "write `consistency: exact`, or leave `priority` out");
    }
    match rules.iter().find(|rule| !has_room(rule)) {
        None => Some(()),
        Some(rule) => refuse(
            format!("goes by the part of a fixed room that is used, and here is none: {}", rule.describe()),
            "take `concurrency`, a window, or a bucket without `delay_after`",
        ),
    }
}

/// Whether the used part of the rule's quota is one number, to which each request adds its cost.
fn has_room(rule: &Rule) -> bool {
    has_share_in_use(rule) && !rule.can_delay() && !rule.denials_count() && rule.name() != AlgorithmName::Exponential
}
