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
    let wrong =
        |problem: String| KeyQuestionError::Parts { limit: limit.name.clone(), parts: parts_of(limit), problem };
    if let Some((other, _)) = named.iter().find(|(name, _)| !limit.key.parts.iter().any(|part| part.is_called(name))) {
        return Err(wrong(format!("{other:?} is not a part of it")));
    }
    let mut values = Vec::new();
    let mut owner = KeyOwner::default();
    for part in &limit.key.parts {
        let mut of_part = named.iter().filter(|(name, _)| part.is_called(name));
        let (Some((_, text)), None) = (of_part.next(), of_part.next()) else {
            return Err(wrong(format!("{:?} has to be named, once", part.describe())));
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
            KeyPart::Customer => owner.stranger = Some(text),
            KeyPart::Group(level) if limit.level.as_ref() == Some(level) => {
                owner.groups = context.groups.find(level, text);
            }
            _ => {}
        }
        values.push((part.clone(), value));
    }
    let plan = plan.or(plan_in(named)).map(|name| plan_called(ruleset, name)).transpose()?;
    let resolved = owner.resolved(ruleset, plan);
    let plan = TermsOwner::of(limit, &resolved).plan;
    let rule = rule(context, id, &owner, &resolved)?;
    let missing = |fault: KeyFault<'_>| wrong(format!("{:?} has to be named", fault.part.describe()));
    let value = |part: &KeyPart| key::named_value(part, &values);
    let keyed = context.hasher.key(&limit.name, limit.mode, &limit.key, value);
    let SharedKey { key, tag } = keyed.map_err(missing)?;
    let rule = match ruleset.is_enabled(id, value).map_err(missing)? {
        true => rule,
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

/// The plan that is a part of a key.
pub(super) fn plan_in(named: &[(String, String)]) -> Option<&str> {
    named.iter().find(|(name, _)| KeyPart::Plan.is_called(name)).map(|(_, plan)| plan.as_str())
}

/// The owner of a key, as far as the key names one.
#[derive(Default)]
struct KeyOwner<'q> {
    customer: Option<Arc<Customer>>,
    /// The name of a customer that this gateway does not know.
    stranger: Option<&'q str>,
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

/// The parameters of the charges of a key's owner, or the reason why the limit does not apply to it.
fn rule<'r>(
    context: &KeyContext<'r>,
    id: LimitId,
    owner: &KeyOwner<'_>,
    resolved: &Resolved<'_>,
) -> Result<Result<RuleRef, Uncharged<'r>>, KeyQuestionError> {
    let ruleset = context.ruleset;
    let limit = &ruleset.limits[id.0];
    let TermsOwner { plan, own, .. } = TermsOwner::of(limit, resolved);
    let has_no_terms = plan.is_none() && own.and_then(|own| own.of(id)).is_none();
    // descriptors need no plan
    let needs_plan = || ruleset.customers.is_some() && ruleset.domain_limits().all(|of| of != id);
    let rule = match limit.rules.as_slice() {
        [_] if has_no_terms => Ok(RuleRef::Listed(0)),
        _ if has_no_terms && needs_plan() => return Err(unknown_plan(context, owner)),
        _ => ruleset.rule_of(id, resolved),
    };
    let zone = own.and_then(|own| own.zone.as_ref());
    Ok(rule.map(|rule| match &rule {
        RuleRef::Listed(position) => {
            let zoned = zone.and_then(|zone| zone.rule(id, *position));
            zoned.map_or(rule, |rule| RuleRef::Own(Arc::clone(rule)))
        }
        RuleRef::Own(_) => rule,
    }))
}

fn unknown_plan(context: &KeyContext<'_>, owner: &KeyOwner<'_>) -> KeyQuestionError {
    let whose = match (owner.stranger, context.directory.table()) {
        (Some(name), Some(_)) => format!("the directory has no customer named {name:?}"),
        _ => "the key does not determine the plan".to_owned(),
    };
    let plans = context.ruleset.plans.join(", ");
    KeyQuestionError::Plan(format!(
        "which plan's parameters apply? {whose}; name the plan beside the key, one of: {plans}"
    ))
}

fn plan_called(ruleset: &Ruleset, name: &str) -> Result<PlanId, KeyQuestionError> {
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
