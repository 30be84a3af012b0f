//! Warnings about limits that are valid, but probably not as the operator means them.

use crate::algorithm::Rule;
use crate::config::problem::Problem;
use crate::config::read::Section;
use crate::config::terms::AllTerms;
use crate::ruleset::cost::{ChargeRule, CostRule, Reserve, When};
use crate::ruleset::graphql::GraphQlCost;
use crate::ruleset::limit::Share;
use crate::ruleset::request_field::SaidCost;

/// Warns of a limit that applies to no customer or no key.
pub(super) fn of_nobody(section: &Section<'_>, terms: &AllTerms, enabled: Option<Share>) {
    let field = &section.field;
    if terms.rules.is_empty() && !terms.plans.is_empty() {
        field.findings().add(Problem::warning(field.key_place(), "limits nobody: every plan is unlimited"));
    }
    if let (Some(enabled), Some(Share(0))) = (section.get("enabled_percent"), enabled) {
        enabled.warn("applies to no key: the limit does nothing", None);
    }
}

/// Warns of a `max` above the limit's capacity: a client may report such a cost, and the request never passes.
pub(super) fn of_told_costs(section: &Section<'_>, (cost, charge): (&CostRule, &ChargeRule), terms: &AllTerms) {
    let reserve = || section.get("charge").and_then(|charge| charge.mapping_if()?.get("reserve"));
    let (max, field) = match (&charge.when, cost, &charge.reserve) {
        (
            When::Request,
            CostRule::Header { max, .. }
            | CostRule::RequestField(SaidCost { max, .. })
            | CostRule::GraphQl(GraphQlCost { max, .. }),
            _,
        ) => (max, section.get("cost")),
        (When::Response { .. }, _, Some(Reserve::Said { tokens: SaidCost { max, .. }, price: None })) => {
            (max, reserve())
        }
        _ => return,
    };
    let Some(field) = field else { return };
    let least = terms.rules.iter().filter_map(Rule::largest_cost).min();
    if let Some(least) = least.filter(|least| max > least) {
        let message = format!(
            "believes costs up to {max}, and the limit admits at most {least} at once to some: what costs more can \
             never pass"
        );
        field.warn(&message, "lower `max`, or raise the limit");
    }
}
