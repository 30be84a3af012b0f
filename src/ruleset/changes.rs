//! What another ruleset means for the states that limits have collected.

use std::collections::HashMap;

use crate::algorithm::Rule;
use crate::ruleset::Ruleset;
use crate::ruleset::limit::{Limit, OnChange, PlanId, Terms};

mod account;

pub use account::{Account, Change};

/// What becomes of the states of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitChange {
    /// There was no limit of this name.
    New,
    /// Nothing: its parameters are the same.
    Untouched,
    /// They are carried over to other parameters by the algorithm's rule.
    Carried,
    /// They are forgotten: the parameters changed, and the limit is to start afresh then.
    Reset,
    /// They are not met any more: nodes come to share the limit, or do not any more.
    OtherMode,
    /// They are not met any more: the limit counts by something else.
    OtherKey,
    /// They are not met any more: states of one algorithm say nothing to another.
    OtherAlgorithm,
}

impl LimitChange {
    /// In words, to be read after the limit's name; `None` where nothing becomes of them.
    pub const fn words(self) -> Option<&'static str> {
        match self {
            Self::New => Some("is new: every key starts fresh"),
            Self::Untouched => None,
            Self::Carried => Some("has other parameters: what is used stays used"),
            Self::Reset => Some("has other parameters and says `on_change: reset`: it starts afresh"),
            Self::OtherMode => Some("is kept in another place, where nothing is known yet: it starts afresh"),
            Self::OtherKey => Some("counts by another key, for which nothing is known yet: it starts afresh"),
            Self::OtherAlgorithm => Some("has another algorithm, which cannot use what was kept: it starts afresh"),
        }
    }
}

/// What becomes of the states of limits that there were before, where that is not what everybody expects.
pub fn notes(before: &Ruleset, after: &Ruleset) -> Vec<String> {
    let known = after.limits.iter().zip(of_limits(before, after)).filter(|(_, change)| *change != LimitChange::New);
    known.filter_map(|(limit, change)| Some(format!("limit `{}` {}", limit.name, change.words()?))).collect()
}

/// What becomes of the states of each limit of `after`, in order, when it takes the place of `before`.
pub fn of_limits(before: &Ruleset, after: &Ruleset) -> Vec<LimitChange> {
    let old: HashMap<&str, &Limit> = before.limits.iter().map(|limit| (limit.name.as_str(), limit)).collect();
    let positions: HashMap<&str, usize> =
        before.plans.iter().enumerate().map(|(position, plan)| (plan.as_str(), position)).collect();
    // The plans that both have, as the one and as the other knows them.
    let plans: Vec<(PlanId, PlanId)> = after
        .plans
        .iter()
        .enumerate()
        .filter_map(|(position, plan)| Some((PlanId(*positions.get(plan.as_str())?), PlanId(position))))
        .collect();
    after
        .limits
        .iter()
        .map(|limit| old.get(limit.name.as_str()).map_or(LimitChange::New, |old| of_limit(old, limit, &plans)))
        .collect()
}

fn of_limit(before: &Limit, after: &Limit, plans: &[(PlanId, PlanId)]) -> LimitChange {
    let same = |(old, new): (Option<PlanId>, Option<PlanId>)| asks(before, old) == asks(after, new);
    let pairs = plans.iter().map(|(old, new)| (Some(*old), Some(*new))).chain([(None, None)]);
    match () {
        () if before.algorithm.canonical() != after.algorithm.canonical() => LimitChange::OtherAlgorithm,
        () if before.key != after.key => LimitChange::OtherKey,
        () if before.mode.is_shared() != after.mode.is_shared() => LimitChange::OtherMode,
        () if pairs.into_iter().all(same) => LimitChange::Untouched,
        () => match after.on_change {
            OnChange::Carry => LimitChange::Carried,
            OnChange::Reset => LimitChange::Reset,
        },
    }
}

/// The parameters for a plan; `None` for none.
fn asks(limit: &Limit, plan: Option<PlanId>) -> Option<&Rule> {
    match limit.terms(plan) {
        Terms::Unlimited => None,
        Terms::Rule(position) => limit.rules.get(position),
    }
}
