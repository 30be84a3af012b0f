//! Finds keys that are named by their parts.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use super::{FoundKey, KeyContext, KeyQuestionError, peek_charge};
use crate::charge::{Charge, Enforcement, RuleRef};
use crate::customers::Customer;
use crate::gateway::explain::{KeyPartValue, masked, uncharged_because};
use crate::gateway::facts;
use crate::gateway::upstream::Pool;
use crate::ruleset::charges::{TermsOwner, Uncharged};
use crate::ruleset::groups::Groups;
use crate::ruleset::key::{self, KeyFault, KeyPart, Resolved, SharedKey, Value};
use crate::ruleset::limit::Limit;
use crate::ruleset::{LimitId, PlanId, Ruleset};

/// The key of the limit `id` that has these parts. `plan` is the plan whose parameters apply where the key's owner has none
/// here.
pub(super) fn find(
    context: &KeyContext<'_>,
    id: LimitId,
    named: &[(String, String)],
    plan: Option<&str>,
) -> Result<FoundKey, KeyQuestionError> {
    let ruleset = context.ruleset;
    let limit = &ruleset.limits[id.0];
    let (values, owner) = read_values(context, limit, named)?;
    let plan = plan.or(plan_in(named)).map(|name| plan_id(ruleset, name)).transpose()?;
    let resolved = owner.resolved(ruleset, plan);
    let plan = TermsOwner::of(limit, &resolved).plan;
    check_plan(context, id, &owner, &resolved)?;
    let missing = |fault: KeyFault<'_>| wrong_parts(limit, format!("{:?} has to be named", fault.part.describe()));
    let value = |part: &KeyPart| key::named_value(part, &values);
    let keyed = context.hasher.key(&limit.name, limit.mode, &limit.key, value);
    let SharedKey { key, tag } = keyed.map_err(missing)?;
    let rule = match ruleset.is_enabled(id, value).map_err(missing)? {
        true => rule_for_owner(ruleset, id, &resolved),
        false => Err(Uncharged::NotEnabled),
    };
    let shown = values.iter().map(|(part, value)| KeyPartValue {
        part: part.describe(),
        value: Some(masked::masked_value(part, value, ruleset.customers.as_ref())),
    });
    let shown = shown.collect();
    let charge = rule.map(|rule| {
        let floor = limit.floor(plan, limit.rule(&rule));
        peek_charge(Charge { tag, floor, ..Charge::new(id.0, rule, key, 1, Enforcement::DRY_RUN) })
    });
    Ok(FoundKey {
        limit: limit.name.clone(),
        key: shown,
        plan: ruleset.plan_name(plan).map(str::to_owned),
        customer: owner.customer.clone(),
        is_group_suspended: owner.groups.as_ref().is_some_and(Groups::suspended),
        charge: charge.map_err(|uncharged| uncharged_because(uncharged, ruleset, limit, &resolved)),
    })
}

/// Reads the value of each part of the key of `limit`, and finds the owner of the key.
fn read_values<'q>(
    context: &KeyContext<'_>,
    limit: &Limit,
    named: &'q [(String, String)],
) -> Result<(Vec<(KeyPart, Value<'static>)>, KeyOwner<'q>), KeyQuestionError> {
    if let Some((other, _)) = named.iter().find(|(name, _)| !limit.key.parts.iter().any(|part| part.is_called(name))) {
        return Err(wrong_parts(limit, format!("{other:?} is not a part of it")));
    }
    let mut values = Vec::new();
    let mut owner = KeyOwner::default();
    for part in &limit.key.parts {
        let mut of_part = named.iter().filter(|(name, _)| part.is_called(name));
        let (Some((_, text)), None) = (of_part.next(), of_part.next()) else {
            return Err(wrong_parts(limit, format!("{:?} has to be named, once", part.describe())));
        };
        let customer = (*part == KeyPart::Customer).then(|| context.directory.named(text).ok()?).flatten();
        let value = match &customer {
            Some(customer) => Value::Bytes(Cow::Owned(customer.name.as_bytes().to_vec())),
            None => value(part, text, context).map_err(|problem| KeyQuestionError::Value {
                part: part.describe(),
                value: text.clone(),
                problem,
            })?,
        };
        match part {
            KeyPart::Customer if customer.is_some() => owner.customer = customer,
            KeyPart::Customer if matches!(value, Value::Address(_)) => owner.is_anonymous = true,
            KeyPart::Customer => owner.unlisted_customer = Some(text),
            KeyPart::Group(level) if limit.level.as_ref() == Some(level) => {
                owner.groups = context.groups.find(level, text);
            }
            _ => {}
        }
        values.push((part.clone(), value));
    }
    Ok((values, owner))
}

fn wrong_parts(limit: &Limit, problem: String) -> KeyQuestionError {
    KeyQuestionError::Parts { limit: limit.name.clone(), parts: parts_of(limit), problem }
}

/// The plan that is a part of a key.
pub(super) fn plan_in(named: &[(String, String)]) -> Option<&str> {
    named.iter().find(|(name, _)| KeyPart::Plan.is_called(name)).map(|(_, plan)| plan.as_str())
}

/// The owner of a key, as far as the key names one.
#[derive(Default)]
struct KeyOwner<'q> {
    customer: Option<Arc<Customer>>,
    /// The name of a customer that this gateway does not know.
    unlisted_customer: Option<&'q str>,
    /// Whether it is a caller without a credential.
    is_anonymous: bool,
    /// The group, listed in a file, whose parameters apply.
    groups: Option<Groups>,
}

impl KeyOwner<'_> {
    /// The facts by which limits find the owner's parameters. The `named` plan is that of a customer that is not known here,
    /// and the one of requests for which a trusted proxy may name it.
    fn resolved<'r>(&'r self, ruleset: &'r Ruleset, named: Option<PlanId>) -> Resolved<'r> {
        let customer = self.customer.as_deref().map(Customer::known);
        let anonymous = ruleset.customers.as_ref().and_then(|rules| rules.anonymous).filter(|_| self.is_anonymous);
        let proxy_plan = named.filter(|plan| ruleset.may_proxy_name(*plan));
        let plan = proxy_plan.or(customer.map(|customer| customer.plan)).or(named).or(anonymous);
        Resolved {
            customer: customer.map(|customer| customer.name),
            plan: ruleset.named_plan(plan),
            own: customer.and_then(|customer| customer.own),
            groups: self.groups.as_ref(),
            ..Resolved::default()
        }
    }
}

fn parts_of(limit: &Limit) -> String {
    match limit.key.parts.as_slice() {
        [] => "nothing, it is one bucket for all".to_owned(),
        parts => parts.iter().map(KeyPart::describe).collect::<Vec<_>>().join(", "),
    }
}

/// Whether no terms are known for the owner of a key: neither its own, nor a plan's.
fn has_no_terms(owner: TermsOwner<'_>, id: LimitId) -> bool {
    owner.plan.is_none() && owner.own.and_then(|own| own.of(id)).is_none()
}

/// Checks that the plan of a key's owner is known, if the parameters of its charges depend on it.
fn check_plan(
    context: &KeyContext<'_>,
    id: LimitId,
    owner: &KeyOwner<'_>,
    resolved: &Resolved<'_>,
) -> Result<(), KeyQuestionError> {
    let ruleset = context.ruleset;
    let limit = &ruleset.limits[id.0];
    // descriptors need no plan
    let needs_plan = || ruleset.customers.is_some() && ruleset.domain_limits().all(|of| of != id);
    match limit.rules.len() != 1 && has_no_terms(TermsOwner::of(limit, resolved), id) && needs_plan() {
        true => Err(unknown_plan(context, owner)),
        false => Ok(()),
    }
}

/// The parameters of the charges of a key's owner, or the reason why the limit does not apply to it.
fn rule_for_owner<'r>(ruleset: &'r Ruleset, id: LimitId, resolved: &Resolved<'_>) -> Result<RuleRef, Uncharged<'r>> {
    let limit = &ruleset.limits[id.0];
    let owner = TermsOwner::of(limit, resolved);
    let rule = match limit.rules.as_slice() {
        [_] if has_no_terms(owner, id) => RuleRef::Listed(0),
        _ => ruleset.rule_of(id, resolved)?,
    };
    Ok(owner.in_zone(id, rule))
}

fn unknown_plan(context: &KeyContext<'_>, owner: &KeyOwner<'_>) -> KeyQuestionError {
    let whose = match (owner.unlisted_customer, context.directory.table()) {
        (Some(name), Some(_)) => format!("the directory has no customer named {name:?}"),
        _ => "the key does not determine the plan".to_owned(),
    };
    let plans = context.ruleset.plans.join(", ");
    KeyQuestionError::Plan(format!(
        "which plan's parameters apply? {whose}; name the plan beside the key, one of: {plans}"
    ))
}

fn plan_id(ruleset: &Ruleset, name: &str) -> Result<PlanId, KeyQuestionError> {
    ruleset.plan_id(name).ok_or_else(|| {
        KeyQuestionError::Plan(format!("there is no plan {name:?}; there are: {}", ruleset.plans.join(", ")))
    })
}

/// Reads the value of a part, as an operator writes it. `Err` says what is wrong.
fn value(part: &KeyPart, text: &str, context: &KeyContext<'_>) -> Result<Value<'static>, String> {
    let ruleset = context.ruleset;
    let network = |address: IpAddr| Value::Address(ruleset.client_address.prefixes.network(address.to_canonical()));
    let bytes = |text: &str| Value::Bytes(Cow::Owned(text.as_bytes().to_vec()));
    let one_of = |is_one: bool, what: &str| match is_one {
        true => Ok(bytes(text)),
        false => Err(format!("there is no such {what}")),
    };
    let routes = ruleset.matcher.routes();
    match part {
        KeyPart::ClientAddress => text.parse().map(network).map_err(|_| "is not an IP address".to_owned()),
        // callers without a credential are counted by their address
        KeyPart::Customer => Ok(text.parse().map_or_else(|_| bytes(text), network)),
        KeyPart::Host => facts::canonical_host(text).map(|(host, _)| bytes(&host)).map_err(|_| "is no host".to_owned()),
        KeyPart::Plan => one_of(ruleset.plan_id(text).is_some(), "plan"),
        KeyPart::Route => one_of(routes.iter().any(|route| route.name == text), "route"),
        KeyPart::RoutePattern => one_of(routes.iter().any(|route| route.path_pattern == text), "path of a route"),
        KeyPart::UpstreamNode => {
            // requests are counted by the address, also where a node has a host name
            let is_address =
                |pools: &[Arc<Pool>]| pools.iter().any(|pool| pool.instance_names().iter().any(|name| name == text));
            one_of(context.pools.is_none_or(is_address), "node")
        }
        KeyPart::Header(name, _) => Ok(Value::Bytes(Cow::Owned(key::header_value(name, text.as_bytes()).into_owned()))),
        KeyPart::Method
        | KeyPart::Group(_)
        | KeyPart::Query(..)
        | KeyPart::Cookie(..)
        | KeyPart::PathSegment(_)
        | KeyPart::JwtClaim(_)
        | KeyPart::RequestField(_)
        | KeyPart::Descriptor(_) => Ok(bytes(text)),
    }
}
