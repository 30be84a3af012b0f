//! Warnings about limits that are valid, but probably not as the operator means them.

use crate::config::problem::Problem;
use crate::config::read::Section;
use crate::config::terms::AllTerms;
use crate::ruleset::cost::{ChargeRule, ChargeTime, CostRule, Reserve};
use crate::ruleset::graphql::GraphQlCost;
use crate::ruleset::limit::Share;
use crate::ruleset::request_field::RequestFieldCost;

/// Warns of a limit that applies to no customer or no key.
pub(super) fn warn_if_unused(section: &Section<'_>, terms: &AllTerms, enabled: Option<Share>) {
    let field = &section.field;
    if terms.rules.is_empty() && !terms.plans.is_empty() {
        field.findings().add(Problem::warning(field.key_place(), "limits nobody: every plan is unlimited"));
    }
    if let (Some(enabled), Some(Share(0))) = (section.get("enabled_percent"), enabled) {
        enabled.warn("applies to no key: the limit does nothing", None);
    }
}

/// Warns of a `max` above the limit's capacity: a client may report such a cost, and the request never passes.
pub(super) fn warn_if_cost_never_fits(
    section: &Section<'_>,
    (cost, charge): (&CostRule, &ChargeRule),
    (terms, priority): (&AllTerms, &[u8]),
) {
    let reserve = || section.get("charge").and_then(|charge| charge.as_mapping()?.get("reserve"));
    let (max, field) = match (&charge.when, cost, &charge.reserve) {
        (
            ChargeTime::Request,
            CostRule::Header { max, .. }
            | CostRule::RequestField(RequestFieldCost { max, .. })
            | CostRule::GraphQl(GraphQlCost { max, .. }),
            _,
        ) => (max, section.get("cost")),
        (
            ChargeTime::Response { .. },
            _,
            Some(Reserve::FromRequest { tokens: RequestFieldCost { max, .. }, price: None }),
        ) => (max, reserve()),
        _ => return,
    };
    let Some(field) = field else { return };
    let least = terms.largest_costs(priority).map(|(_, most)| most).min();
    if let Some(least) = least.filter(|least| max > least) {
        let message = format!(
            "believes costs up to {max}, and the limit admits at most {least} at once to some: what costs more can \
             never pass"
        );
        field.warn(&message, "lower `max`, or raise the limit");
    }
}
