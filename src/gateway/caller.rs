//! Who takes a route, and on which terms: everything about a request between its route and its charges that needs no
//! node, no store and no connection. What a request meets and what is explained of it go through here.

use crate::charge::Charge;
use crate::gateway::identify::{self, CredentialLookup, Identity};
use crate::gateway::respond::Answer;
use crate::ruleset::key::{Facts, KeyFault, KeyPart, LimitHashers, Resolved, ValueFault};
use crate::ruleset::matcher::Route;
use crate::ruleset::{PlanId, Ruleset};

/// Who is calling.
#[derive(Clone, Debug)]
pub struct Caller {
    /// By which credential.
    pub identity: Identity,
    /// The plan that a trusted proxy says it has.
    pub told_plan: Option<PlanId>,
    /// Whether the request is never charged.
    pub bypassed: bool,
}

impl Caller {
    /// Nobody knows yet who is calling.
    pub const UNKNOWN: Self = Self { identity: Identity::Anonymous, told_plan: None, bypassed: false };

    /// The caller of a request that takes `route` and is let in. `Err` is what it is answered instead: it is kept out,
    /// or its credential is not good.
    pub async fn find(
        ruleset: &Ruleset,
        route: &Route,
        facts: &Facts<'_>,
        lookup: CredentialLookup<'_>,
    ) -> Result<Self, Answer> {
        Self::may_ask(ruleset, route, facts)?;
        let caller = Self::identify(ruleset, route, facts, lookup).await?;
        caller.is_let_in(ruleset, route, facts).map(|()| caller)
    }

    /// Whether anybody may make a request for `route`. `Err` is what it is answered instead, whoever is calling.
    pub fn may_ask(ruleset: &Ruleset, route: &Route, facts: &Facts<'_>) -> Result<(), Answer> {
        match () {
            () if ruleset.keeps_out_address(route, facts.address) => Err(Answer::AccessDenied),
            () if ruleset.answers_preflight(route, facts) => Err(Answer::Preflight),
            () => Ok(()),
        }
    }

    /// Whether this caller may make a request for `route`.
    pub fn is_let_in(&self, ruleset: &Ruleset, route: &Route, facts: &Facts<'_>) -> Result<(), Answer> {
        // a preflight is nobody's
        let is_preflight = route.bypass.covers_preflight(facts);
        match !is_preflight && ruleset.keeps_out(route, facts.address, self.customer()) {
            true => Err(Answer::AccessDenied),
            false => Ok(()),
        }
    }

    /// The caller of a request that takes `route`, whether it is let in or not. `Err`: its credential is not good.
    pub async fn identify(
        ruleset: &Ruleset,
        route: &Route,
        facts: &Facts<'_>,
        lookup: CredentialLookup<'_>,
    ) -> Result<Self, Answer> {
        let identity = match &ruleset.customers {
            Some(rules) if !route.bypass.covers_preflight(facts) => identify::identify(rules, facts, lookup).await?,
            _ => Identity::Anonymous,
        };
        Ok(Self::new(ruleset, route, facts, identity))
    }

    /// Who makes a request for `route` with this `identity`.
    pub fn new(ruleset: &Ruleset, route: &Route, facts: &Facts<'_>, identity: Identity) -> Self {
        let bypassed = route.bypass.covers(facts, identity.customer().map(|customer| &*customer.name));
        Self { identity, told_plan: ruleset.told_plan(facts), bypassed }
    }

    /// What a request for `route` is charged before its caller is identified. `Err` is what it is answered instead where it
    /// lacks a part of a key.
    pub fn early_charges(
        ruleset: &Ruleset,
        route: &Route,
        facts: &Facts<'_>,
        hashers: &LimitHashers,
    ) -> Result<Vec<Charge>, Answer> {
        let mut charges = Vec::with_capacity(route.early.len());
        if !route.bypass.covers(facts, None) {
            let resolved = ruleset.resolve_nobody(route);
            ruleset.add_charges_of(&route.early, facts, &resolved, hashers, &mut charges)?;
        }
        Ok(charges)
    }

    /// The customer's name.
    pub fn customer(&self) -> Option<&str> {
        self.identity.customer().map(|customer| &*customer.name)
    }

    /// What is known of the caller's request on `route`, as long as no node is chosen.
    pub fn resolved<'a>(&'a self, ruleset: &'a Ruleset, route: &'a Route) -> Resolved<'a> {
        let known = self.identity.customer().map(|customer| customer.known());
        ruleset.resolve(route, (known, self.told_plan), self.identity.claims())
    }

    /// What the request is charged. `Err` is what it is answered instead where it lacks a part of a key.
    pub fn charges(
        &self,
        ruleset: &Ruleset,
        route: &Route,
        facts: &Facts<'_>,
        resolved: &Resolved<'_>,
        hashers: &LimitHashers,
    ) -> Result<Vec<Charge>, Answer> {
        if self.bypassed {
            return Ok(Vec::new());
        }
        let mut charges = Vec::with_capacity(route.limits.len());
        match ruleset.add_charges(route, facts, resolved, hashers, &mut charges) {
            Ok(()) => Ok(charges),
            Err(fault) => Err(fault.into()),
        }
    }
}

impl From<KeyFault<'_>> for Answer {
    fn from(KeyFault { part, fault }: KeyFault<'_>) -> Self {
        match fault {
            ValueFault::Missing if *part == KeyPart::Customer => Self::CredentialMissing,
            ValueFault::Missing => Self::KeyMissing(part.describe()),
            ValueFault::Repeated => Self::KeyRepeated(part.describe()),
            ValueFault::Unreadable => Self::KeyUnreadable(part.describe()),
        }
    }
}
