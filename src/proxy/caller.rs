//! Who takes a route, and on which terms: everything about a request between its route and its charges that needs no
//! node, no store and no connection. What a request meets and what is explained of it go through here.

use crate::algorithm::Charge;
use crate::proxy::identify::{self, Identity, Register};
use crate::proxy::respond::Answer;
use crate::ruleset::Ruleset;
use crate::ruleset::access::{Access, Exemption};
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
    /// Why the request is never charged; `None` if it is.
    pub exempt: Option<Exemption>,
}

/// Whose list keeps a request out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptOut {
    /// The one for all routes.
    Everywhere,
    /// The route's.
    Here,
}

impl KeptOut {
    fn of(ruleset: &Ruleset, route: &Route, denies: impl Fn(&Access) -> bool) -> Result<(), Self> {
        match () {
            () if denies(&ruleset.access) => Err(Self::Everywhere),
            () if denies(&route.access) => Err(Self::Here),
            () => Ok(()),
        }
    }

    /// By where it comes from, whoever is calling.
    pub fn by_address(ruleset: &Ruleset, route: &Route, facts: &Facts<'_>) -> Result<(), Self> {
        Self::of(ruleset, route, |access| access.denies_address(facts.address))
    }

    /// By who is calling. Preflights are of nobody.
    pub fn by_caller(ruleset: &Ruleset, route: &Route, facts: &Facts<'_>, caller: &Caller) -> Result<(), Self> {
        match route.bypass.covers_preflight(facts.method, facts.headers) {
            true => Ok(()),
            false => Self::of(ruleset, route, |access| access.denies(facts.address, caller.customer())),
        }
    }
}

impl From<KeptOut> for Answer {
    fn from(_: KeptOut) -> Self {
        Self::AccessDenied
    }
}

impl Caller {
    /// The caller of a request that takes `route` and is let in. `Err` is what it is answered instead: it is kept out,
    /// or its credential is not good.
    pub async fn find(
        ruleset: &Ruleset,
        route: &Route,
        facts: &Facts<'_>,
        register: Register<'_>,
    ) -> Result<Self, Answer> {
        KeptOut::by_address(ruleset, route, facts)?;
        let caller = Self::identify(ruleset, route, facts, register).await?;
        KeptOut::by_caller(ruleset, route, facts, &caller)?;
        Ok(caller)
    }

    /// The caller of a request that takes `route`, whether it is let in or not. `Err`: its credential is not good.
    pub async fn identify(
        ruleset: &Ruleset,
        route: &Route,
        facts: &Facts<'_>,
        register: Register<'_>,
    ) -> Result<Self, Answer> {
        let identity = match &ruleset.customers {
            Some(rules) if !route.bypass.covers_preflight(facts.method, facts.headers) => {
                identify::identify(rules, facts, register).await?
            }
            _ => Identity::Anonymous,
        };
        let customer = identity.customer();
        let anonymous_plan = ruleset.customers.as_ref().and_then(|rules| rules.anonymous);
        let plan = customer.map(|customer| customer.plan).or(anonymous_plan);
        let exempt = route.bypass.covers(facts, customer.map(|customer| &*customer.name));
        Ok(Self { identity, plan, exempt })
    }

    /// The customer's name.
    pub fn customer(&self) -> Option<&str> {
        self.identity.customer().map(|customer| &*customer.name)
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
        if self.exempt.is_some() {
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
