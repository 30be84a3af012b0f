//! The subjects of a simulation, from the limits of a configuration.

use crate::config::{self, Limits, WrittenLimit};
use crate::simulation::SimulatedLimit;

/// The limit `name` with the parameters of `plan`. `Err` says why it cannot be simulated.
pub(super) fn subject(limits: &Limits, name: &str, plan: Option<&str>) -> Result<SimulatedLimit, String> {
    let found = limits.limits.iter().find(|limit| limit.name == name);
    let limit = found.ok_or_else(|| {
        let known = one_of(name, limits.limits.iter().map(|limit| limit.name.as_str()));
        format!("found no limit `{name}`, expected {known}")
    })?;
    if let Some(plan) = plan.filter(|plan| !limits.plans.iter().any(|known| known == plan)) {
        let known = one_of(plan, limits.plans.iter().map(String::as_str));
        return Err(format!("found no plan `{plan}`, expected {known}"));
    }
    let arguments = limit.arguments(plan).ok_or_else(|| {
        let plan = plan.unwrap_or_default();
        format!("limit `{name}` does not apply to plan `{plan}`: it is unlimited")
    })?;
    if plan.is_none() && needs_plan(limit) {
        let known = listed(limit.plans.iter().map(|(plan, _)| plan.as_str()));
        return Err(format!("limit `{name}` has parameters per plan: choose one with --plan, {known}"));
    }
    let subject = SimulatedLimit::new(name, limit.algorithm, arguments.clone());
    let floor = subject.rule().map_or(0, |rule| limit.floor(&rule, plan, &limits.plans));
    Ok(SimulatedLimit { max_waiting: limit.max_waiting, floor, charges_denied: limit.charges_denied, ..subject })
}

fn needs_plan(limit: &WrittenLimit) -> bool {
    let required = limit.algorithm.parameters().iter().filter(|parameter| parameter.required);
    !limit.plans.is_empty() && required.into_iter().any(|parameter| !limit.base.has(parameter.name))
}

/// The valid names in place of `found`, with a suggestion.
fn one_of<'a>(found: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let near = config::nearest(found, known.clone());
    match (near, listed(known)) {
        (_, list) if list.is_empty() => "none: the file has none".to_owned(),
        (None, list) => format!("one of {list}"),
        (Some(near), list) => format!("one of {list}: did you mean `{near}`?"),
    }
}

fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
