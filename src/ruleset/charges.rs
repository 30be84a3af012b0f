//! The step from the facts about a request to its charges.

use std::net::IpAddr;
use std::sync::Arc;

use crate::algorithm::Rule;
use crate::charge::{Charge, Enforcement, Mode, RuleRef};
use crate::ruleset::groups::{Group, Groups};
use crate::ruleset::key::{
    self, Claims, Facts, KeyFault, KeyHasher, KeyPart, LimitHashers, Resolved, SharedKey, Value, ValueFault,
};
use crate::ruleset::limit::{Limit, MissingKey, PlanTerms, Share};
use crate::ruleset::matcher::Route;
use crate::ruleset::overrides::{Override, Overrides};
use crate::ruleset::request_field::RequestFields;
use crate::ruleset::request_overrides::PlanRule;
use crate::ruleset::upstream::{Balance, UpstreamId};
use crate::ruleset::{LimitId, PlanId, Ruleset};
use crate::units::LimitKey;

/// The reason why a limit of its route does not charge a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uncharged<'r> {
    /// The limit does not apply to the plan.
    Unlimited,
    /// The limit does not apply to this customer or group, by its own terms.
    OwnUnlimited,
    /// The candidate is tried out on the terms of plans, and the customer has terms of its own.
    CandidateSkipped,
    /// The request lacks a part of its key, and such requests are let through.
    Skipped(KeyFault<'r>),
    /// The request has no key, and the limit only watches, so it does not refuse the request.
    NoKeyInShadow(KeyFault<'r>),
    /// The key is not in the share of keys that the limit applies to.
    NotEnabled,
    /// The request has no key, and is refused.
    Refused(KeyFault<'r>),
    /// The limit depends on the request's body, which is not read yet.
    AwaitsBody,
}

/// A caller whose credential is known.
#[derive(Clone, Copy, Debug)]
pub struct KnownCaller<'a> {
    /// The customer's name, by which limits count.
    pub name: &'a str,
    /// The plan.
    pub plan: PlanId,
    /// The customer's own terms, in place of the plan's.
    pub own: Option<&'a Overrides>,
    /// The groups that the customer belongs to.
    pub groups: Option<&'a Groups>,
}

/// The owner of the parameters that a limit applies to a request.
#[derive(Clone, Copy, Debug)]
pub struct TermsOwner<'a> {
    /// The group, where the limit counts by groups and the caller has one; otherwise it is the caller.
    pub group: Option<&'a Group>,
    /// The owner's plan.
    pub plan: Option<PlanId>,
    /// The owner's own terms, in place of its plan's.
    pub own: Option<&'a Overrides>,
}

impl<'a> TermsOwner<'a> {
    /// The owner for requests of this caller under `limit`. A group without a plan has that of the caller.
    pub fn of(limit: &Limit, resolved: &Resolved<'a>) -> Self {
        let plan = resolved.plan.map(|(plan, _)| plan);
        let Some(level) = &limit.level else { return Self { group: None, plan, own: resolved.own } };
        let group = resolved.groups.and_then(|groups| groups.at(level)).map(|group| &**group);
        let own = group.and_then(|group| group.own.as_deref());
        Self { group, plan: group.and_then(|group| group.plan).or(plan), own }
    }

    /// The rule of the owner's plan in the owner's time zone; `None` where the rule does not depend on it.
    pub fn zoned_rule(&self, id: LimitId, limit: &Limit) -> Option<&'a Arc<Rule>> {
        let PlanTerms::Rule(position) = limit.terms(self.plan) else { return None };
        self.rule_in_zone(id, position)
    }

    /// `rule` of the limit `id`, in the owner's time zone where the rule depends on it.
    pub fn in_zone(&self, id: LimitId, rule: RuleRef) -> RuleRef {
        let RuleRef::Listed(position) = rule else { return rule };
        self.rule_in_zone(id, position).map_or(rule, |rule| RuleRef::Own(Arc::clone(rule)))
    }

    fn rule_in_zone(&self, id: LimitId, position: usize) -> Option<&'a Arc<Rule>> {
        self.own?.zone.as_ref()?.rule(id, position)
    }

    /// The kind of owner: `customer`, or the level of the group.
    pub fn kind(&self) -> &'a str {
        self.group.map_or("customer", |group| &*group.level)
    }
}

impl<'a> Resolved<'a> {
    /// The facts about a request of the same caller for `route`.
    pub fn on(self, route: &'a Route) -> Self {
        Self { route: &route.name, path_pattern: &route.path_pattern, ..self }
    }
}

/// One bucket of a caller, and the routes that charge it.
#[derive(Clone, Debug, PartialEq)]
pub struct Bucket<'r> {
    /// A charge that asks for the bucket's headroom, and takes nothing.
    pub charge: Charge,
    /// The names of the routes whose requests are charged to it.
    pub routes: Vec<&'r str>,
}

impl Ruleset {
    /// The hashers of the ruleset's limits.
    pub fn hashers(&self, hasher: KeyHasher) -> LimitHashers {
        hasher.of_limits(self.limits.iter().map(|limit| limit.name.as_str()))
    }

    /// Whether a request from `address` is denied access to `route`, whoever its caller is.
    pub fn denies_address_access(&self, route: &Route, address: Option<IpAddr>) -> bool {
        !self.is_open(route) && [&self.access, &route.access].iter().any(|access| access.denies_address(address))
    }

    /// Whether a request of `customer` (`None`: a caller without a credential) from `address` is denied access to `route`.
    pub fn denies_access(&self, route: &Route, address: Option<IpAddr>, customer: Option<&str>) -> bool {
        !self.is_open(route) && [&self.access, &route.access].iter().any(|access| access.denies(address, customer))
    }

    /// Whether `route` is open to every caller, as most routes are.
    fn is_open(&self, route: &Route) -> bool {
        self.access.is_open() && route.access.is_open()
    }

    /// The plan that a trusted proxy names for the caller of a request. A plan that it may not give, or a field that comes
    /// twice, is ignored.
    pub fn proxy_plan(&self, facts: &Facts<'_>) -> Option<PlanId> {
        let plan_header = self.customers.as_ref()?.plan_from.as_ref().filter(|_| facts.from_trusted_proxy)?;
        let mut lines = facts.headers.get_all(plan_header.name.as_str());
        let (line, None) = (lines.next()?, lines.next()) else { return None };
        let is_named = |plan: &PlanId| self.plan_name(Some(*plan)).is_some_and(|name| name.as_bytes() == line);
        plan_header.plans.iter().copied().find(is_named)
    }

    /// Whether a trusted proxy may name `plan` for the caller of a request.
    pub fn may_proxy_name(&self, plan: PlanId) -> bool {
        let plan_header = self.customers.as_ref().and_then(|rules| rules.plan_from.as_ref());
        plan_header.is_some_and(|header| header.plans.contains(&plan))
    }

    /// The facts about a request of `route` by which limits count. `known` is the caller; `None` is a caller without a
    /// credential, which has the plan of anonymous callers; `proxy_plan` is the plan that a trusted proxy names. The
    /// upstream node is not known here.
    pub fn resolve<'a>(
        &'a self,
        route: &'a Route,
        (known, proxy_plan): (Option<KnownCaller<'a>>, Option<PlanId>),
        claims: Option<&'a dyn Claims>,
    ) -> Resolved<'a> {
        let anonymous_plan = self.customers.as_ref().and_then(|rules| rules.anonymous);
        let plan = proxy_plan.or(known.map(|known| known.plan)).or(anonymous_plan);
        Resolved {
            route: &route.name,
            path_pattern: &route.path_pattern,
            upstream_node: None,
            customer: known.map(|known| known.name),
            plan: self.named_plan(plan),
            own: known.and_then(|known| known.own),
            groups: known.and_then(|known| known.groups),
            claims,
        }
    }

    /// The plan with its name.
    pub fn named_plan(&self, plan: Option<PlanId>) -> Option<(PlanId, &str)> {
        plan.and_then(|plan| Some((plan, self.plan_name(Some(plan))?)))
    }

    /// The facts about a request of `route` by which early limits count, before its caller is identified. It has the first
    /// plan, because early limits have the same parameters for every plan.
    pub fn resolve_unidentified<'a>(&'a self, route: &'a Route) -> Resolved<'a> {
        let plan = self.plans.first().map(|name| (PlanId(0), name.as_str()));
        Resolved { plan, ..self.resolve(route, (None, None), None) }
    }

    /// The buckets that the caller's requests are charged to, on any route that is open to it and charges it; `resolved`
    /// names the caller. Limits whose key needs a part that this request lacks are left out, also where such requests share a
    /// bucket, unless all requests of the caller lack it; and so are limits that clients do not see.
    pub fn buckets<'r>(
        &'r self,
        facts: &Facts<'_>,
        resolved: &Resolved<'_>,
        hashers: &LimitHashers,
    ) -> Vec<Bucket<'r>> {
        let mut buckets: Vec<Bucket<'r>> = Vec::new();
        // the costs do not matter here
        let facts = &Facts { body: Some(&RequestFields::NoBody), ..facts.clone() };
        let (address, customer) = (facts.address, resolved.customer);
        let charges = |route: &&Route| {
            !route.bypass.covers_caller(address, customer) && !self.denies_access(route, address, customer)
        };
        for route in self.matcher.routes().iter().filter(charges) {
            let here = resolved.on(route);
            let is_of_caller = |part: &KeyPart| matches!(part, KeyPart::Group(_) | KeyPart::JwtClaim(_));
            let has_part = |part: &KeyPart| is_of_caller(part) || key::value(part, facts, &here).is_ok();
            let has_key = |id: &&LimitId| self.limits[id.0].key.parts.iter().all(has_part);
            let limits = route.limits.iter().filter(has_key);
            for charge in limits.filter_map(|id| self.charge(*id, facts, &here, hashers).ok()) {
                let limit = &self.limits[charge.limit];
                if limit.key.counts_by_node() || limit.key.counts_by_body() || !limit.is_visible() {
                    continue;
                }
                match buckets.iter_mut().find(|known| known.charge.is_same_key(&charge)) {
                    Some(known) => known.routes.push(&route.name),
                    None => buckets.push(Bucket {
                        charge: Charge { cost: 0, enforcement: Enforcement::DRY_RUN, ..charge },
                        routes: vec![&route.name],
                    }),
                }
            }
        }
        buckets
    }

    /// Whether a limit of `route` counts by the upstream node, so that the node has to be chosen before the charge.
    pub fn counts_by_node(&self, route: &Route) -> bool {
        route.limits.iter().any(|id| self.limits[id.0].key.counts_by_node())
    }

    /// The hashes by which `consistent_hash` chooses nodes, for the upstreams of `route` that use it.
    pub fn balance_hashes(
        &self,
        route: &Route,
        facts: &Facts<'_>,
        resolved: &Resolved<'_>,
        hasher: &KeyHasher,
    ) -> Result<Vec<(UpstreamId, LimitKey)>, KeyFault<'_>> {
        let mut hashes = Vec::new();
        for upstream in self.route_upstreams(route) {
            let Balance::ConsistentHash(part) = &self.upstreams[upstream.0].balance else { continue };
            match hasher.part(part, facts, resolved) {
                Ok(hash) => hashes.push((upstream, hash)),
                Err(ValueFault::Missing) => {}
                Err(fault) => return Err(KeyFault { part, fault }),
            }
        }
        Ok(hashes)
    }

    /// Adds the charges of a request under those of `limits` that apply to it to `charges`. An error refuses the request.
    pub fn add_charges(
        &self,
        limits: &[LimitId],
        facts: &Facts<'_>,
        resolved: &Resolved<'_>,
        hashers: &LimitHashers,
        charges: &mut Vec<Charge>,
    ) -> Result<(), KeyFault<'_>> {
        for id in limits {
            match self.charge(*id, facts, resolved, hashers) {
                Ok(charge) => charges.push(charge),
                Err(Uncharged::Refused(fault)) => return Err(fault),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// All charges of a request for `route` whose body is known; `others` are those under limits that do not depend on it.
    pub fn charges_with_body(
        &self,
        route: &Route,
        facts: &Facts<'_>,
        resolved: &Resolved<'_>,
        hashers: &LimitHashers,
        others: &[Charge],
    ) -> Result<Vec<Charge>, KeyFault<'_>> {
        let mut charges = Vec::with_capacity(route.limits.len());
        for id in &route.limits {
            match self.limits[id.0].depends_on_body() {
                true => self.add_charges(&[*id], facts, resolved, hashers, &mut charges)?,
                false => charges.extend(others.iter().find(|other| other.limit == id.0).cloned()),
            }
        }
        Ok(charges)
    }

    /// Whether a limit of `route` depends on the request's body.
    pub fn depends_on_body(&self, route: &Route, resolved: &Resolved<'_>) -> bool {
        let depends_on_body = |id: &LimitId| {
            let limit = &self.limits[id.0];
            limit.depends_on_body() && self.rule_of(*id, resolved).is_ok()
        };
        !route.body_fields.is_empty() && route.limits.iter().any(depends_on_body)
    }

    /// The parameters of a limit for a caller, or the reason why it does not apply.
    pub fn rule_of(&self, id: LimitId, resolved: &Resolved<'_>) -> Result<RuleRef, Uncharged<'_>> {
        let limit = &self.limits[id.0];
        let TermsOwner { plan, own, .. } = TermsOwner::of(limit, resolved);
        // a candidate is tried in place of the plan's terms, so not on customers with terms of their own
        let live_id = limit.candidate_of.unwrap_or(id);
        match (own.and_then(|own| own.of(live_id)), limit.terms(plan)) {
            (Some(_), _) if limit.candidate_of.is_some() => Err(Uncharged::CandidateSkipped),
            (Some(Override::Rule(rule)), _) => Ok(RuleRef::Own(Arc::clone(rule))),
            (None, PlanTerms::Rule(rule)) => Ok(RuleRef::Listed(rule)),
            (Some(Override::Unlimited), _) => Err(Uncharged::OwnUnlimited),
            (None, PlanTerms::Unlimited) => Err(Uncharged::Unlimited),
        }
    }

    /// Whether the key with these values of its parts is in the share of keys that a limit applies to.
    pub fn is_enabled<'v>(
        &self,
        id: LimitId,
        value: impl Fn(&KeyPart) -> Result<Value<'v>, ValueFault>,
    ) -> Result<bool, KeyFault<'_>> {
        let enabled = self.limits[id.0].enabled;
        Ok(enabled == Share::WHOLE || enabled.contains_key_hash(self.stable_key(id, value)?.key))
    }

    /// Whether the key of a request is in the share of keys that a limit applies to.
    #[inline(never)] // a second hash needs much stack space, which most requests do not need
    fn is_enabled_for(&self, id: LimitId, facts: &Facts<'_>, resolved: &Resolved<'_>) -> Result<bool, Uncharged<'_>> {
        let limit = &self.limits[id.0];
        let key = self.stable_key(id, |part| key::value(part, facts, resolved));
        let key = or_missing_key(limit, key, &KeyHasher::stable(), self.live_name(id), Mode::Sticky)?;
        Ok(limit.enabled.contains_key_hash(key.key))
    }

    /// The key with these values of its parts, hashed in the same way everywhere, and alike for a limit and its candidate.
    fn stable_key<'v>(
        &self,
        id: LimitId,
        value: impl Fn(&KeyPart) -> Result<Value<'v>, ValueFault>,
    ) -> Result<SharedKey, KeyFault<'_>> {
        KeyHasher::stable().key(self.live_name(id), Mode::Sticky, &self.limits[id.0].key, value)
    }

    /// The name of a limit; for a candidate, that of the limit beside which it is tried.
    fn live_name(&self, id: LimitId) -> &str {
        &self.limits[self.limits[id.0].candidate_of.unwrap_or(id).0].name
    }

    /// The rule at `position` of a limit's list in the time zone of its owner, and with the parameters that the request
    /// carries; `None` where neither changes it.
    fn adapted_rule(
        &self,
        (id, position): (LimitId, usize),
        facts: &Facts<'_>,
        resolved: &Resolved<'_>,
    ) -> Option<Arc<Rule>> {
        let limit = &self.limits[id.0];
        let zone = TermsOwner::of(limit, resolved).own.and_then(|own| own.zone.as_deref());
        let zoned = zone.and_then(|zone| zone.rule(id, position));
        if limit.request_overrides.is_empty() {
            return zoned.cloned();
        }
        let plan = PlanRule {
            position,
            zone: zoned.and(zone).map(|zone| &zone.zone),
            rule: zoned.map_or(&limit.rules[position], |rule| &**rule),
        };
        limit.request_overrides.rule(plan, facts, resolved.claims).or_else(|| zoned.cloned())
    }

    /// The charge of a request under one limit, or the reason why there is none.
    pub fn charge(
        &self,
        id: LimitId,
        facts: &Facts<'_>,
        resolved: &Resolved<'_>,
        hashers: &LimitHashers,
    ) -> Result<Charge, Uncharged<'_>> {
        let limit = &self.limits[id.0];
        let mut rule = self.rule_of(id, resolved)?;
        if let RuleRef::Listed(position) = rule {
            rule = self.adapted_rule((id, position), facts, resolved).map_or(rule, RuleRef::Own);
        }
        if facts.body.is_none() && limit.depends_on_body() {
            return Err(Uncharged::AwaitsBody);
        }
        let key = hashers.key(id, limit.mode, &limit.key, |part| key::value(part, facts, resolved));
        let SharedKey { key, tag } = or_missing_key(limit, key, hashers.hasher(), &limit.name, limit.mode)?;
        if limit.enabled < Share::WHOLE && !self.is_enabled_for(id, facts, resolved)? {
            return Err(Uncharged::NotEnabled);
        }
        let terms = limit.rule(&rule);
        let (cost, enforcement) = limit.charge_on_arrival(terms, facts);
        let floor =
            if limit.priority.is_empty() { 0 } else { limit.floor(TermsOwner::of(limit, resolved).plan, terms) };
        Ok(Charge { tag, floor, ..Charge::new(id.0, rule, key, cost, enforcement) })
    }
}

/// The key, or the substitute that `limit` configures for a missing part, by this hasher and name. A part that comes more than
/// once is not missing, and a client that makes a part unreadable is not exempt from the limit.
fn or_missing_key<'r>(
    limit: &'r Limit,
    key: Result<SharedKey, KeyFault<'r>>,
    hasher: &KeyHasher,
    name: &str,
    mode: Mode,
) -> Result<SharedKey, Uncharged<'r>> {
    key.or_else(|fault| match (fault.fault, limit.missing_key) {
        (ValueFault::Missing, MissingKey::Skip) => Err(Uncharged::Skipped(fault)),
        (ValueFault::Missing, MissingKey::SharedBucket)
        | (ValueFault::Unreadable, MissingKey::SharedBucket | MissingKey::Skip) => {
            Ok(hasher.missing_part_key(name, mode, fault))
        }
        (ValueFault::Missing | ValueFault::Unreadable, MissingKey::Deny) | (ValueFault::Repeated, _) => {
            match limit.acts() {
                true => Err(Uncharged::Refused(fault)),
                false => Err(Uncharged::NoKeyInShadow(fault)),
            }
        }
    })
}
