//! The caller of a route and its terms: all steps between a request's route and its charges that need no node, no store and
//! no connection. Both admission and explanation use them.

use crate::charge::Charge;
use crate::gateway::awaited_body::BodySource;
use crate::gateway::identify::{self, CredentialLookup, Identity};
use crate::gateway::respond::Answer;
use crate::ruleset::key::{Facts, KeyFault, KeyPart, LimitHashers, Resolved, ValueFault};
use crate::ruleset::matcher::Route;
use crate::ruleset::{PlanId, Ruleset};

/// The refusal of a path with parameters: some upstreams strip them, and others do not.
const PATH_PARAMETERS: Answer = Answer::Malformed("the path holds path parameters (`;`), which are not allowed here");
/// The refusal of a request that takes a route by one of several values, of which an upstream may take another.
const CONTESTED: Answer = Answer::Malformed("the request repeats what its route asks for, with another value");

/// The caller of a request.
#[derive(Clone)]
pub struct Caller {
    /// The identity, found by the credential.
    pub identity: Identity,
    /// The caller's plan according to a trusted proxy.
    pub proxy_plan: Option<PlanId>,
    /// Whether the request is never charged.
    pub bypassed: bool,
}

impl Caller {
    /// A caller that is not identified yet.
    pub const UNKNOWN: Self = Self { identity: Identity::Anonymous, proxy_plan: None, bypassed: false };

    /// Finds the caller of a request that takes `route` and is let in. `Err` is the response that the request gets instead:
    /// access rules keep it out, or its credential is not good.
    pub async fn find(
        ruleset: &Ruleset,
        route: &Route,
        facts: &Facts<'_>,
        lookup: CredentialLookup<'_>,
    ) -> Result<Self, Answer> {
        Self::check_before_identification(ruleset, route, facts)?;
        let caller = Self::identify(ruleset, route, facts, lookup).await?;
        caller.check_access(ruleset, route, facts).map(|()| caller)
    }

    /// Checks whether anyone may make a request for `route`. `Err` is the response that the request gets instead.
    pub fn check_before_identification(ruleset: &Ruleset, route: &Route, facts: &Facts<'_>) -> Result<(), Answer> {
        if ruleset.denies_address_access(route, facts.address) {
            Err(Answer::AccessDenied)
        } else if ruleset.answers_preflight(route, facts) {
            Err(Answer::Preflight)
        } else {
            Ok(())
        }
    }

    /// Checks whether the access rules let this caller make a request for `route`.
    pub fn check_access(&self, ruleset: &Ruleset, route: &Route, facts: &Facts<'_>) -> Result<(), Answer> {
        // a preflight has no caller
        let is_preflight = route.bypass.covers_preflight(facts);
        match !is_preflight && ruleset.denies_access(route, facts.address, self.customer()) {
            true => Err(Answer::AccessDenied),
            false => Ok(()),
        }
    }

    /// Identifies the caller of a request that takes `route`, whether it is let in or not. `Err`: a bad credential.
    pub async fn identify(
        ruleset: &Ruleset,
        route: &Route,
        facts: &Facts<'_>,
        lookup: CredentialLookup<'_>,
    ) -> Result<Self, Answer> {
        let identity = match route.bypass.covers_preflight(facts) {
            true => Identity::Anonymous,
            false => identify::identify(ruleset, facts, lookup).await?,
        };
        Ok(Self::new(ruleset, route, facts, identity))
    }

    /// The caller of a request for `route` with this `identity`.
    pub fn new(ruleset: &Ruleset, route: &Route, facts: &Facts<'_>, identity: Identity) -> Self {
        let bypassed = route.bypass.covers(facts, identity.customer().map(|customer| &*customer.name));
        Self { identity, proxy_plan: ruleset.proxy_plan(facts), bypassed }
    }

    /// The charges of a request for `route` before its caller is identified. `Err` is the response that it gets instead if a
    /// part of a key is missing or unusable.
    pub fn early_charges(
        ruleset: &Ruleset,
        route: &Route,
        facts: &Facts<'_>,
        hashers: &LimitHashers,
    ) -> Result<Vec<Charge>, Answer> {
        let mut charges = Vec::with_capacity(route.early.len());
        if !route.bypass.covers(facts, None) {
            let resolved = ruleset.resolve_unidentified(route);
            ruleset.add_charges(&route.early, facts, &resolved, hashers, &mut charges)?;
        }
        Ok(charges)
    }

    /// The customer's name.
    pub fn customer(&self) -> Option<&str> {
        self.identity.customer().map(|customer| &*customer.name)
    }

    /// The facts about the caller's request on `route` that keys and limits need, before a node is chosen.
    pub fn resolved<'a>(&'a self, ruleset: &'a Ruleset, route: &'a Route) -> Resolved<'a> {
        let known = self.identity.customer().map(|customer| customer.known());
        ruleset.resolve(route, (known, self.proxy_plan), self.identity.claims())
    }

    /// The charges of the request. `Err` is the response that it gets instead if a part of a key is missing or unusable.
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
        match ruleset.add_charges(&route.limits, facts, resolved, hashers, &mut charges) {
            Ok(()) => Ok(charges),
            Err(fault) => Err(fault.into()),
        }
    }
}

/// Checks whether anyone may send a request with such a path, values and `body` to `route`.
pub fn check_route(route: &Route, has_parameters: bool, body: BodySource<'_>, facts: &Facts<'_>) -> Result<(), Answer> {
    if has_parameters && !route.path_parameters {
        Err(PATH_PARAMETERS)
    } else if route.is_contested_by(facts) {
        Err(CONTESTED)
    } else if route.max_request_body.is_some_and(|max| body.is_longer_than(max, facts)) {
        Err(Answer::BodyTooLarge)
    } else {
        Ok(())
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
