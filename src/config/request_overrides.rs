//! `request_overrides` of a limit: the parameters that requests can set, and the bounds on their values.

use std::cmp::Ordering;

use crate::algorithm::{AlgorithmName, Parameter, ParameterKind};
use crate::config::identify::CLAIM;
use crate::config::key::named;
use crate::config::read::{Field, Section, all_or_none};
use crate::config::settings::REQUEST_OVERRIDE;
use crate::config::terms::{CostBounds, FileScope};
use crate::config::{cost, scalar, sharing, warn_at, words};
use crate::ruleset::request_overrides::{Bounds, ParameterSource, RequestOverrides, RequestParameter};
use crate::units::{Cost, Nanos, Rate};

const A_RATE: &str = "a number of tokens per time, like `100/s`";

/// Reads the overrides for a limit of `algorithm`.
pub(super) fn read(field: &Field<'_>, algorithm: AlgorithmName, scope: FileScope) -> Option<RequestOverrides> {
    let can_be = |parameter: &&Parameter| matches!(parameter.kind, ParameterKind::Rate | ParameterKind::Whole);
    let names = words::alternatives(algorithm.parameters().iter().filter(can_be).map(|parameter| parameter.name));
    let section = field.mapping(&format!("parameters by their names ({names})"))?;
    let parameters = section.fields().map(|(name, field)| {
        match algorithm.parameters().iter().filter(can_be).find(|parameter| parameter.name == name) {
            Some(parameter) => one(&field, parameter, scope),
            None => {
                field.fail(field.key_error("is not a number that requests may bring along").expected(names.clone()))
            }
        }
    });
    all_or_none(parameters).map(RequestOverrides::new)
}

fn one(field: &Field<'_>, parameter: &Parameter, scope: FileScope) -> Option<RequestParameter> {
    let section = field.section(&REQUEST_OVERRIDE)?;
    let source = source(&section, scope);
    let bounds = match parameter.kind {
        ParameterKind::Rate => rates(&section),
        _ => numbers(&section),
    };
    Some(RequestParameter { name: parameter.name, source: source?, bounds: bounds? })
}

fn source(section: &Section<'_>, scope: FileScope) -> Option<ParameterSource> {
    match section.one_of(&["jwt_claim", "header"], "`jwt_claim: NAME` or `header: NAME`")? {
        ("jwt_claim", claim) => {
            if let FileScope::Gateway { tokens: false, .. } = scope {
                claim.warn("no request has a token: `customers.identify` has no `jwt`", None);
            }
            claim.parsed(CLAIM, named).map(ParameterSource::JwtClaim)
        }
        (_, header) => {
            if let FileScope::Gateway { proxies: false, .. } = scope {
                header.warn("is believed of no request: `client_address` has no `trusted_proxies`", None);
            }
            header.request_header_name().map(ParameterSource::Header)
        }
    }
}

fn numbers(section: &Section<'_>) -> Option<Bounds> {
    let max = section.required("max", "the most that is believed").and_then(|field| Some((field.whole()?, field)));
    let min = section.get_or("min", 1, Field::whole);
    let ((max, field), min) = (max?, min?);
    in_order(&field, min <= max)?;
    Some(Bounds::Whole { min, max })
}

fn rates(section: &Section<'_>) -> Option<Bounds> {
    let max = section.required("max", A_RATE).and_then(|field| Some((field.parsed(A_RATE, with_time)?, field)));
    let min = section.get_with("min", |field| field.parsed(A_RATE, scalar::rate));
    let (((max, per), field), min): (_, Option<Rate>) = (max?, min?);
    in_order(&field, min.is_none_or(|min| min.compare(max) != Ordering::Greater))?;
    Some(Bounds::Rate { min, max, per, read: |text| scalar::rate(text).ok() })
}

/// Parses a rate, and the time in it.
fn with_time(text: &str) -> Result<(Rate, Nanos), scalar::InvalidValue> {
    let rate = scalar::rate(text)?;
    let time = text.split_once('/').map_or("s", |(_, time)| time);
    Ok((rate, scalar::rate(&format!("1/{time}"))?.period()))
}

fn in_order(max: &Field<'_>, are: bool) -> Option<()> {
    match are {
        true => Some(()),
        false => max.fail(max.key_error("is less than `min`")),
    }
}

/// Refuses, at `field`, bounds within which some of the limit's rules would be invalid, or would not suit the limit's
/// other settings.
pub(super) fn check(
    field: &Field<'_>,
    limit: &Section<'_>,
    overrides: &RequestOverrides,
    cost_bounds: &CostBounds<'_>,
    largest_cost: Cost,
) -> Option<()> {
    if limit.has("candidate") {
        let message = "cannot stand beside `candidate`, which is tried on the parameters of plans";
        return field.fail(field.key_error(message).hint("leave one of them out".to_owned()));
    }
    for (position, rule) in cost_bounds.terms.rules.iter().enumerate() {
        let extremes = match overrides.extremes(rule) {
            Ok(extremes) => extremes,
            Err(name) => {
                let message = format!("has bounds of `{name}` that make no limit of: {}", rule.describe());
                return field.fail(field.key_error(message));
            }
        };
        sharing::check(field, cost_bounds.mode, &extremes)?;
        if limit.has("warn_at") {
            warn_at::check(field, &extremes)?;
        }
        let plan = cost_bounds.lowest_plan(position);
        extremes
            .iter()
            .try_for_each(|rule| cost::check_room(field, cost_bounds.largest_cost(rule, plan), largest_cost))?;
    }
    Some(())
}
