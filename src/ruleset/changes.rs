//! The effect of a new ruleset on the existing states of limits.

use std::collections::{BTreeMap, HashMap};

use crate::algorithm::Rule;
use crate::ruleset::limit::{Limit, OnChange};
use crate::ruleset::matcher::Route;
use crate::ruleset::words::{self, DescriptionLine};
use crate::ruleset::{PlanId, Ruleset};
use crate::units::{Cost, Nanos};

/// The effect of a change on the states of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitChange {
    /// The limit is new: there was no limit of this name. The store may still have states of one that was removed.
    New,
    /// The states stay as they are: the parameters are the same.
    Untouched,
    /// The states are migrated to other parameters by the algorithm's rule.
    Carried,
    /// The states are discarded: the parameters changed, and the limit is configured to start afresh then.
    Reset,
    /// The states are not used until the change is undone: gateways begin to share the limit, or stop sharing it.
    OtherMode,
    /// The states are not used until the change is undone: the limit has another key.
    OtherKey,
    /// The states are not used until the change is undone: the limit has another algorithm, which cannot read them.
    OtherAlgorithm,
}

impl LimitChange {
    /// The effect in words, to be read after the limit's name; `None` where the states stay as they are.
    pub const fn describe(self) -> Option<&'static str> {
        match self {
            Self::New => Some("is new: every key starts fresh, or goes on where a removed limit of this name left it"),
            Self::Untouched => None,
            Self::Carried => Some("has other parameters: what is used stays used"),
            Self::Reset => Some("has other parameters and says `on_change: reset`: it starts afresh"),
            Self::OtherMode => {
                Some("is kept in another place: it starts afresh, or goes on from what was kept there before")
            }
            Self::OtherKey => {
                Some("counts by another key: it starts afresh, or goes on from what was counted by that key before")
            }
            Self::OtherAlgorithm => Some(
                "has another algorithm, which cannot use what was kept: it starts afresh, or goes on from what that algorithm \
                 kept before",
            ),
        }
    }
}

/// The effects on the states of limits that both rulesets have, except for untouched limits.
pub fn describe_limit_changes(before: &Ruleset, after: &Ruleset) -> Vec<String> {
    let known = after.limits.iter().zip(limit_changes(before, after)).filter(|(_, change)| *change != LimitChange::New);
    known.filter_map(|(limit, change)| Some(format!("limit `{}` {}", limit.name, change.describe()?))).collect()
}

/// The effect on the states of each limit of `after`, in order, when `after` replaces `before`.
pub fn limit_changes(before: &Ruleset, after: &Ruleset) -> Vec<LimitChange> {
    let old: HashMap<&str, &Limit> = before.limits.iter().map(|limit| (limit.name.as_str(), limit)).collect();
    let plans = common_plans(before, after);
    after
        .limits
        .iter()
        .map(|limit| old.get(limit.name.as_str()).map_or(LimitChange::New, |old| limit_change(old, limit, &plans)))
        .collect()
}

/// The plans that both rulesets have, by their positions in each.
fn common_plans(before: &Ruleset, after: &Ruleset) -> Vec<(PlanId, PlanId)> {
    let positions: HashMap<&str, usize> =
        before.plans.iter().enumerate().map(|(position, plan)| (plan.as_str(), position)).collect();
    let plans = after.plans.iter().enumerate();
    plans.filter_map(|(position, plan)| Some((PlanId(*positions.get(plan.as_str())?), PlanId(position)))).collect()
}

fn limit_change(before: &Limit, after: &Limit, plans: &[(PlanId, PlanId)]) -> LimitChange {
    let same = |(old, new): (Option<PlanId>, Option<PlanId>)| before.plan_rule(old) == after.plan_rule(new);
    let pairs = plans.iter().map(|(old, new)| (Some(*old), Some(*new))).chain([(None, None)]);
    if before.algorithm.canonical() != after.algorithm.canonical() {
        return LimitChange::OtherAlgorithm;
    }
    if before.key.kind() != after.key.kind() {
        return LimitChange::OtherKey;
    }
    if before.mode.is_shared() != after.mode.is_shared() {
        return LimitChange::OtherMode;
    }
    // plans with other parameters may have come or gone, although those that both have keep theirs
    if pairs.into_iter().all(same) && have_same_rules(before, after) {
        return LimitChange::Untouched;
    }
    match after.on_change {
        OnChange::Carry => LimitChange::Carried,
        OnChange::Reset => LimitChange::Reset,
    }
}

/// Whether both limits have the same parameters, whichever plans have them.
fn have_same_rules(before: &Limit, after: &Limit) -> bool {
    let has_all = |limit: &Limit, other: &Limit| other.rules.iter().all(|rule| limit.rules.contains(rule));
    before.rules == after.rules || has_all(before, after) && has_all(after, before)
}

/// The pairs of routes that swap their order, where only the order decides which of the two takes a request that both
/// match. The route that comes first in `after` is the first of its pair.
pub fn swapped_routes<'r>(before: &Ruleset, after: &'r Ruleset) -> Vec<(&'r str, &'r str)> {
    let positions: HashMap<&str, usize> =
        before.matcher.routes().iter().enumerate().map(|(position, route)| (route.name.as_str(), position)).collect();
    let mut by_path: BTreeMap<String, Vec<(usize, &Route)>> = BTreeMap::new();
    for route in after.matcher.routes() {
        if let Some(position) = positions.get(route.name.as_str()) {
            by_path.entry(route.path.to_string()).or_default().push((*position, route));
        }
    }
    let mut swapped = Vec::new();
    for mut routes in by_path.values().map(Vec::as_slice) {
        while let Some(((position, first), later)) = routes.split_first() {
            let overtaken = later.iter().filter(|(other, route)| other < position && first.ties_with(route));
            swapped.extend(overtaken.map(|(_, route)| (first.name.as_str(), route.name.as_str())));
            routes = later;
        }
    }
    swapped
}

/// The changed parameters of a limit for each plan that both rulesets have, with the effect on the usage of keys.
pub fn parameters((before, was): (&Ruleset, &Limit), (after, limit): (&Ruleset, &Limit)) -> Vec<DescriptionLine> {
    let plans = common_plans(before, after);
    let change = limit_change(was, limit, &plans);
    let of_plans = plans.iter().map(|(old, new)| {
        let name = after.plan_name(Some(*new)).unwrap_or_default();
        (name, was.plan_rule(Some(*old)), limit.plan_rule(Some(*new)))
    });
    let planless = was.without_plan.and(limit.without_plan);
    let planless = planless.map(|_| (words::planless(&after.plans), was.plan_rule(None), limit.plan_rule(None)));
    let all: Vec<_> = of_plans.chain(planless).collect();
    let shown = |rule: Option<&Rule>| rule.map_or_else(|| words::UNLIMITED.to_owned(), Rule::describe);
    let lines = all.iter().filter(|(_, old, new)| old != new).filter_map(|(who, old, new)| {
        let (was, is) = (shown(*old), shown(*new));
        let says_nothing = change == LimitChange::OtherAlgorithm && was == is;
        (!says_nothing).then(|| ((*who).to_owned(), format!("{was} -> {is}{}", carried(*old, *new, change))))
    });
    let lines: Vec<DescriptionLine> = lines.collect();
    if lines.len() == all.len() { words::merged(lines) } else { lines }
}

/// The effect on the usage that was counted under `old`.
fn carried(old: Option<&Rule>, new: Option<&Rule>, change: LimitChange) -> String {
    match (old, new, change) {
        (Some(_), Some(new), LimitChange::Carried) if new.holds_slots() => {
            "; what is in flight stays counted".to_owned()
        }
        (Some(old), Some(new), LimitChange::Carried) => match left_of_spent(old, new) {
            Some(0) => "; a spent bucket stays spent".to_owned(),
            Some(left) => format!("; a spent bucket has {left} left at once"),
            None => "; what is used stays used".to_owned(),
        },
        (None, Some(_), LimitChange::Carried) => "; nothing was counted yet".to_owned(),
        _ => String::new(),
    }
}

/// The tokens that a bucket just spent under `old` has at once under `new`; `None` where there is no such number.
fn left_of_spent(old: &Rule, new: &Rule) -> Option<Cost> {
    // any time gives the same result
    let now = Nanos::from_secs(1_700_000_000);
    let all = old.headroom(None, now).remaining?;
    let (_, spent) = old.decide(None, all, now);
    new.headroom(new.migrate_state(old, spent?, now).as_ref(), now).remaining
}
