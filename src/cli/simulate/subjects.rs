//! The subjects of a simulation, from the limits of a configuration.

use crate::algorithm::InvalidParameter;
use crate::config::{self, LimitSpec, Limits};
use crate::simulation::SimulatedLimit;

/// Why a limit cannot be simulated.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// The configuration has no limit of that name.
    #[error("found no limit `{name}`, expected {known}")]
    NoLimit {
        /// The name.
        name: String,
        /// The limits that it has.
        known: String,
    },
    /// The configuration has no plan of that name.
    #[error("found no plan `{plan}`, expected {known}")]
    NoPlan {
        /// The name.
        plan: String,
        /// The plans that it has.
        known: String,
    },
    /// Without a plan the limit has no parameters.
    #[error("limit `{name}` has parameters per plan: choose one with --plan, {known}")]
    NeedsPlan {
        /// The limit.
        name: String,
        /// Its plans.
        known: String,
    },
    /// There is nothing to simulate.
    #[error("limit `{name}` does not apply to plan `{plan}`: it is unlimited")]
    Unlimited {
        /// The limit.
        name: String,
        /// The plan.
        plan: String,
    },
    /// The parameters make no sense.
    #[error(transparent)]
    InvalidParameter(#[from] InvalidParameter),
}

/// The limit `name` with the parameters of `plan`.
pub(super) fn subject(limits: &Limits, name: &str, plan: Option<&str>) -> Result<SimulatedLimit, SubjectError> {
    let found = limits.limits.iter().find(|limit| limit.name == name);
    let limit = found.ok_or_else(|| SubjectError::NoLimit {
        name: name.to_owned(),
        known: one_of(name, limits.limits.iter().map(|limit| limit.name.as_str())),
    })?;
    if let Some(plan) = plan.filter(|plan| !limits.plans.iter().any(|known| known == plan)) {
        let known = one_of(plan, limits.plans.iter().map(String::as_str));
        return Err(SubjectError::NoPlan { plan: plan.to_owned(), known });
    }
    let arguments = limit
        .arguments(plan)
        .ok_or_else(|| SubjectError::Unlimited { name: name.to_owned(), plan: plan.unwrap_or_default().to_owned() })?;
    if plan.is_none() && needs_plan(limit) {
        let known = listed(limit.plans.iter().map(|(plan, _)| plan.as_str()));
        return Err(SubjectError::NeedsPlan { name: name.to_owned(), known });
    }
    Ok(SimulatedLimit {
        name: name.to_owned(),
        algorithm: limit.algorithm,
        arguments: arguments.clone(),
        max_waiting: limit.max_waiting,
    })
}

fn needs_plan(limit: &LimitSpec) -> bool {
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
