//! Finds keys that are named by their parts.

use std::borrow::Cow;
use std::net::IpAddr;
use std::sync::Arc;

use super::{FoundKey, KeyContext, KeyQuestionError, peek_charge};
use crate::charge::{Charge, Enforcement, Mode, RuleRef};
use crate::customers::Customer;
use crate::gateway::explain::{KeyPartValue, masked};
use crate::gateway::facts;
use crate::ruleset::groups::Group;
use crate::ruleset::key::{KeyFault, KeyPart, SharedKey, Value};
use crate::ruleset::limit::{Limit, PlanTerms};
use crate::ruleset::overrides::Override;
use crate::ruleset::{LimitId, PlanId, Ruleset};

/// The key of the limit `id` that has these parts; `plan` is the plan whose parameters apply, if the question names it.
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
    let (mut caller, mut group) = (None, None);
    for part in &limit.key.parts {
        let mut of_part = named.iter().filter(|(name, _)| part.is_called(name));
        let (Some((_, text)), None) = (of_part.next(), of_part.next()) else {
            return Err(wrong(format!("{:?} has to be named, once", part.describe())));
        };
        let customer = (*part == KeyPart::Customer).then(|| context.directory.named(text).ok()?).flatten();
        let value = match &customer {
            Some(customer) => Value::Bytes(Cow::Owned(customer.name.as_bytes().to_vec())),
            None => value(part, text, ruleset).map_err(|problem| KeyQuestionError::Value {
                part: part.describe(),
                value: text.clone(),
                problem,
            })?,
        };
        if *part == KeyPart::Customer {
            caller = Some(match customer {
                Some(customer) => KeyOwner::Customer(customer),
                None if matches!(value, Value::Address(_)) => KeyOwner::Anonymous,
                None => KeyOwner::Stranger(text),
            });
        }
        if let KeyPart::Group(level) = part
            && limit.level.as_ref() == Some(level)
        {
            group = context.groups.find(level, text);
        }
        values.push((part.clone(), value));
    }
    let in_key = named.iter().find(|(name, _)| KeyPart::Plan.is_called(name)).map(|(_, plan)| plan.as_str());
    let owner = group.map(|group| KeyOwner::Group(group)).or(caller);
    let (rule, plan) = rule(context, id, owner.as_ref(), plan.or(in_key))?;
    let missing = |fault: KeyFault<'_>| wrong(format!("{:?} has to be named", fault.part.describe()));
    let hasher = context.hasher;
    let SharedKey { key, tag } = match limit.mode {
        Mode::Sticky => {
            let key = hasher.key_of_values(&limit.name, &limit.key, &values).map_err(missing)?;
            SharedKey { key, tag: key }
        }
        Mode::Shared(_) => hasher.key_of_values_of_all_nodes(&limit.name, &limit.key, &values).map_err(missing)?,
    };
    let shown = values.iter().map(|(part, value)| KeyPartValue {
        part: part.describe(),
        value: Some(masked::masked_value(part, value, ruleset.customers.as_ref())),
    });
    let key_shown = shown.collect();
    let terms = limit.rule(&rule);
    let of_plan = plan.as_ref().and_then(|plan| ruleset.plans.iter().position(|known| known == plan)).map(PlanId);
    let floor = limit.floor(of_plan, terms);
    let charge = peek_charge(Charge { tag, floor, ..Charge::new(id.0, rule, key, 1, Enforcement::DRY_RUN) });
    Ok(FoundKey { charge, key: key_shown, plan })
}

/// The owner of a key, if the key belongs to a customer or a group.
enum KeyOwner<'a> {
    Customer(Arc<Customer>),
    /// A group that a file lists, whose parameters apply.
    Group(&'a Group),
    /// A caller without a credential.
    Anonymous,
    /// A customer whose name this gateway does not know.
    Stranger(&'a str),
}

fn parts_of(limit: &Limit) -> String {
    match limit.key.parts.as_slice() {
        [] => "nothing, it is one bucket for all".to_owned(),
        parts => parts.iter().map(KeyPart::describe).collect::<Vec<_>>().join(", "),
    }
}

/// The parameters of a caller's charges, and the name of the plan that they belong to.
fn rule(
    context: &KeyContext<'_>,
    id: LimitId,
    who: Option<&KeyOwner<'_>>,
    named: Option<&str>,
) -> Result<(RuleRef, Option<String>), KeyQuestionError> {
    let ruleset = context.ruleset;
    let limit = &ruleset.limits[id.0];
    let not_applicable = |why: String| KeyQuestionError::NotApplicable { limit: limit.name.clone(), why };
    let named = named.map(|name| plan_called(ruleset, name)).transpose()?;
    let (kind, plan, own) = match who {
        Some(KeyOwner::Customer(customer)) => ("customer", Some(customer.plan), customer.own.as_ref()),
        Some(KeyOwner::Group(group)) => (&*group.level, group.plan, group.own.as_ref()),
        Some(KeyOwner::Anonymous | KeyOwner::Stranger(_)) | None => ("", None, None),
    };
    if let (Some(own), None) = (own.and_then(|own| own.of(id)), named) {
        return match own {
            Override::Rule(rule) => {
                Ok((RuleRef::Own(Arc::clone(rule)), plan.and_then(|plan| plan_name(ruleset, plan))))
            }
            Override::Unlimited => Err(not_applicable(format!("the {kind}'s own parameters say that it is unlimited"))),
        };
    }
    let plan = named.or(match who {
        Some(KeyOwner::Customer(_) | KeyOwner::Group(_)) => plan,
        Some(KeyOwner::Anonymous) => ruleset.customers.as_ref().and_then(|rules| rules.anonymous),
        Some(KeyOwner::Stranger(_)) | None => None,
    });
    let terms = match (plan, limit.rules.as_slice()) {
        (Some(_), _) => limit.terms(plan),
        (None, [_]) => PlanTerms::Rule(0),
        (None, _) if ruleset.customers.is_none() => limit.terms(None),
        (None, _) => {
            let whose = match (who, context.directory.table()) {
                (Some(KeyOwner::Stranger(name)), Some(_)) => {
                    format!("the directory has no customer named {name:?}")
                }
                _ => "the key does not determine the plan".to_owned(),
            };
            let plans = ruleset.plans.join(", ");
            return Err(KeyQuestionError::Plan(format!(
                "which plan's parameters apply? {whose}; name it beside the key (\"plan\", or --plan), one of: {plans}"
            )));
        }
    };
    let name = plan.and_then(|plan| plan_name(ruleset, plan));
    match terms {
        PlanTerms::Rule(rule) => Ok((RuleRef::Listed(rule), name)),
        PlanTerms::Unlimited => Err(not_applicable(match name {
            Some(plan) => format!("the plan {plan} is unlimited"),
            None => "requests without a plan are unlimited".to_owned(),
        })),
    }
}

fn plan_called(ruleset: &Ruleset, name: &str) -> Result<PlanId, KeyQuestionError> {
    let found = ruleset.plans.iter().position(|plan| plan == name).map(PlanId);
    found.ok_or_else(|| {
        KeyQuestionError::Plan(format!("there is no plan {name:?}; there are: {}", ruleset.plans.join(", ")))
    })
}

fn plan_name(ruleset: &Ruleset, plan: PlanId) -> Option<String> {
    ruleset.plans.get(plan.0).cloned()
}

/// Reads the value of a part, as an operator writes it. `Err` says what is wrong.
fn value(part: &KeyPart, text: &str, ruleset: &Ruleset) -> Result<Value<'static>, String> {
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
        KeyPart::Plan => one_of(ruleset.plans.iter().any(|plan| plan == text), "plan"),
        KeyPart::Route => one_of(routes.iter().any(|route| route.name == text), "route"),
        KeyPart::RoutePattern => one_of(routes.iter().any(|route| route.path_pattern == text), "path of a route"),
        KeyPart::UpstreamNode => {
            let mut nodes = ruleset.upstreams.iter().flat_map(|upstream| &upstream.nodes);
            one_of(nodes.any(|node| node.address == text), "node")
        }
        KeyPart::Method
        | KeyPart::Group(_)
        | KeyPart::Header(..)
        | KeyPart::Query(..)
        | KeyPart::Cookie(..)
        | KeyPart::PathSegment(_)
        | KeyPart::JwtClaim(_)
        | KeyPart::RequestField(_)
        | KeyPart::Descriptor(_) => Ok(bytes(text)),
    }
}
