//! Who takes a route, and on which terms: everything about a request between its route and its charges that needs no
//! node, no store and no connection. What a request meets and what is explained of it go through here.

use crate::algorithm::Charge;
use crate::proxy::identify::{self, Identity, Register};
use crate::proxy::respond::Answer;
use crate::ruleset::Ruleset;
use crate::ruleset::key::{self, Facts, KeyHasher, KeyPart, Resolved};
use crate::ruleset::limit::PlanId;
use crate::ruleset::matcher::Route;

/// Who is calling.
#[derive(Clone, Debug)]
pub struct Caller {
    /// By which credential.
    pub identity: Identity,
    /// The plan.
    pub plan: Option<PlanId>,
    /// Whether the request is never charged.
    pub bypassed: bool,
}

impl Caller {
    /// The caller of a request that takes `route`. `Err` is what it is answered instead: it is kept out, or its
    /// credential is not good.
    pub async fn find(
        ruleset: &Ruleset,
        route: &Route,
        facts: &Facts<'_>,
        register: Register<'_>,
    ) -> Result<Self, Answer> {
        let access = [&ruleset.access, &route.access];
        if access.iter().any(|access| access.denies_address(facts.address)) {
            return Err(Answer::AccessDenied);
        }
        let is_preflight = route.bypass.covers_preflight(facts.method, facts.headers);
        let identity = match &ruleset.customers {
            Some(rules) if !is_preflight => identify::identify(rules, facts, register).await?,
            _ => Identity::Anonymous,
        };
        let customer = identity.customer().map(|customer| &*customer.name);
        if !is_preflight && access.iter().any(|access| access.denies(facts.address, customer)) {
            return Err(Answer::AccessDenied);
        }
        let anonymous_plan = ruleset.customers.as_ref().and_then(|rules| rules.anonymous);
        let plan = identity.customer().map(|customer| customer.plan).or(anonymous_plan);
        let bypassed = route.bypass.covers(facts, customer);
        Ok(Self { identity, plan, bypassed })
    }

    /// What is known of the caller's request on `route`, as long as no node is chosen.
    pub fn resolved<'a>(&'a self, ruleset: &'a Ruleset, route: &'a Route) -> Resolved<'a> {
        let customer = self.identity.customer();
        Resolved {
            route: &route.name,
            path_pattern: &route.path_pattern,
            upstream_node: None,
            caller: customer.map_or(key::Caller::Anonymous, |customer| key::Caller::Customer(&customer.name)),
            plan: self.plan.and_then(|plan| Some((plan, ruleset.plans.get(plan.0)?.as_str()))),
            own: customer.and_then(|customer| customer.own.as_deref()),
            claims: self.identity.claims(),
        }
    }

    /// What the request is charged. `Err` is what it is answered instead where it lacks a part of a key.
    pub fn charges(
        &self,
        ruleset: &Ruleset,
        route: &Route,
        facts: &Facts<'_>,
        resolved: &Resolved<'_>,
        hasher: &KeyHasher,
    ) -> Result<Vec<Charge>, Answer> {
        if self.bypassed {
            return Ok(Vec::new());
        }
        ruleset.charges(route, facts, resolved, hasher).map_err(|missing| Answer::of_missing(missing.part))
    }
}

impl Answer {
    /// What a request is answered that lacks `part` of a key.
    pub fn of_missing(part: &KeyPart) -> Self {
        match part {
            KeyPart::Customer => Self::CredentialMissing,
            part => Self::KeyMissing(part.describe()),
        }
    }
}
