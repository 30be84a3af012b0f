//! Decides the requests of a log by the gateway's own rules, on the time of the log.
//!
//! The gateway's code makes targets canonical, matches routes, finds callers, computes keys and costs, charges the store,
//! combines the verdict, runs queues and settles charges at the end of a request. The replayer calls it in the order of
//! `gateway/admit.rs`, without the network.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;

use http::HeaderName;

use super::fields::WantedFields;
use super::ledger::Ledger;
use super::record::{ArrivalSpan, Record};
use super::rules::{CallerFinder, MissingInputs, ReplayRules, is_preflight, set_headers};
use crate::charge::Charge;
use crate::fields::Fields;
use crate::gateway::awaited_body::BodySource;
use crate::gateway::caller::{self, Caller};
use crate::gateway::facts;
use crate::gateway::keys::{ChargeQuestion, KeyContext};
use crate::gateway::respond::{Answer, CALLER_REFUSAL_CAUSES, CAUSES_BEFORE_LIMITS};
use crate::ruleset::key::{self, Facts, KeyHasher, KeyPart, LimitHashers, Resolved, ValueFault};
use crate::ruleset::matcher::{Route, RouteId};
use crate::ruleset::request_field::RequestFields;
use crate::ruleset::verdict::Verdict;
use crate::ruleset::{LimitId, PlanId, Ruleset, path};
use crate::units::Nanos;

/// The decision on a request.
pub struct ReplayDecision<'d> {
    /// When the request came.
    pub at: Nanos,
    /// The route that the request takes.
    pub route: Option<RouteId>,
    /// The caller's plan.
    pub plan: Option<PlanId>,
    /// Why the gateway refused the request before it asked any limit.
    pub refused: Option<&'static str>,
    /// Whether the request is exempt from charges.
    pub bypassed: bool,
    /// The charges of the request.
    pub charges: &'d [Charge],
    /// The combined decision of its limits.
    pub verdict: &'d Verdict,
    /// The input of the keys; absent for a refused request.
    pub known: Option<KeySource<'d>>,
}

/// The input of the keys that are charged.
#[derive(Clone, Copy)]
pub enum KeySource<'d> {
    /// A request.
    Request(&'d Facts<'d>, &'d Resolved<'d>),
    /// The charges of a program that is not a proxy.
    Program(&'d ChargeQuestion),
}

/// A set of rules and the state of its limits.
pub struct Replayer {
    rules: ReplayRules,
    names: Vec<HeaderName>,
    headers: Fields,
    host: Host,
    charger: RequestCharger,
}

/// Charges requests.
struct RequestCharger {
    callers: CallerFinder,
    hashers: LimitHashers,
    ledger: Ledger,
    /// The charges of the last request; the vector is reused.
    charges: Vec<Charge>,
    missing_inputs: MissingInputs,
    missing: Vec<MissingKeyPart>,
}

/// A request whose target could be read.
struct ReplayedRequest<'r> {
    record: &'r Record,
    arrival: ArrivalSpan,
    target: &'r CanonicalTarget<'r>,
    facts: &'r Facts<'r>,
    /// The cause for which the gateway that wrote the line refused the request before it asked all limits.
    refused_before: Option<&'static str>,
}

/// What became of a request that was not refused.
struct RequestCharge<'c> {
    route: RouteId,
    /// The caller; `None` if a limit denied the request before the caller was identified.
    caller: Option<Caller>,
    bypassed: bool,
    charges: &'c [Charge],
    verdict: &'c Verdict,
}

/// A refusal of a request before it was charged under all its limits.
struct Refusal {
    route: Option<RouteId>,
    cause: &'static str,
}

/// The number of requests that lack a part of a limit's key.
#[derive(Clone, Debug, PartialEq, Eq)]
struct MissingKeyPart {
    limit: LimitId,
    part: KeyPart,
    count: u64,
}

/// The canonical form of the last host; most lines of a log have the same host.
#[derive(Debug, Default)]
struct Host {
    raw: Vec<u8>,
    canonical: Option<String>,
}

// === impl Replayer ===

impl Replayer {
    /// A replayer in which all keys are fresh. `wanted` names the header fields of records, `hold` is the duration of
    /// requests whose lines tell none, and `hasher` hashes keys.
    pub fn new(rules: ReplayRules, wanted: &WantedFields, hold: Nanos, hasher: KeyHasher) -> Self {
        let doubtful =
            |part: &&KeyPart| !matches!(part, KeyPart::Host | KeyPart::Route | KeyPart::RoutePattern | KeyPart::Method);
        let missing = rules.ruleset.limits.iter().enumerate().flat_map(|(limit, of)| {
            let parts = of.key.parts.iter().filter(doubtful);
            parts.map(move |part| MissingKeyPart { limit: LimitId(limit), part: part.clone(), count: 0 })
        });
        let charger = RequestCharger {
            callers: CallerFinder::new(&rules),
            hashers: rules.ruleset.hashers(hasher),
            ledger: Ledger::new(&rules.ruleset, hold, wanted.response_headers.clone()),
            charges: Vec::new(),
            missing_inputs: MissingInputs::default(),
            missing: missing.collect(),
        };
        Self { names: wanted.headers.clone(), headers: Fields::default(), host: Host::default(), charger, rules }
    }

    /// The same replayer, in which each limit decides by itself, and denies no more requests than it does, or other limits
    /// do in its place, whenever the requests came in their spans.
    #[must_use]
    pub fn only_certain(mut self) -> Self {
        self.charger.ledger.deny_only_for_certain();
        self
    }

    /// The rules.
    pub const fn rules(&self) -> &ReplayRules {
        &self.rules
    }

    /// The number of requests that lack each kind of value.
    pub const fn missing_inputs(&self) -> MissingInputs {
        MissingInputs { costs: self.charger.ledger.missing_costs, ..self.charger.missing_inputs }
    }

    /// The missing parts of keys, and how many requests lack each.
    pub fn missing(&self) -> impl Iterator<Item = (LimitId, &KeyPart, u64)> {
        let missing = self.charger.missing.iter().filter(|missing| missing.count > 0);
        missing.map(|missing| (missing.limit, &missing.part, missing.count))
    }

    /// Charges of new keys for which a limit had no room, by the limit's name.
    pub fn overflowed(&self) -> BTreeMap<String, u64> {
        self.charger.ledger.overflowed()
    }

    /// Decides a request, and passes the decision to `seen`. Requests come in the order of time. A request that may have
    /// come at several times comes at the first time at which it is admitted.
    pub fn decide<T>(
        &mut self,
        arrival: ArrivalSpan,
        record: &Record,
        seen: impl FnOnce(&ReplayDecision<'_>, &Ruleset) -> T,
    ) -> T {
        self.charger.ledger.advance_to(arrival.earliest);
        match record.charges.as_deref() {
            Some(text) => self.decide_program(arrival.earliest, text, seen),
            None => self.decide_request(arrival, record, seen),
        }
    }

    /// Repeats the charges of a program that is not a proxy.
    fn decide_program<T>(&mut self, at: Nanos, text: &str, seen: impl FnOnce(&ReplayDecision<'_>, &Ruleset) -> T) -> T {
        let Self { rules: ReplayRules { ruleset, directory, groups, .. }, charger, .. } = self;
        let RequestCharger { hashers, ledger, charges, .. } = charger;
        let context = KeyContext { hasher: hashers.hasher(), ruleset, directory, groups, pools: None };
        let question = ChargeQuestion::from_log(text).ok();
        let made = question.as_ref().and_then(|question| question.charges(&context));
        let is_refund = made.iter().flatten().any(|(_, tokens)| *tokens < 0);
        charges.clear();
        charges.extend(made.iter().flatten().map(|(charge, _)| charge.clone()));
        let verdict = ledger.charge_program(ruleset, (charges, is_refund), at);
        let charges = if is_refund { &[] } else { charges.as_slice() };
        let (refused, bypassed) = (made.is_none().then_some(UNCHARGEABLE), is_refund);
        let known = question.as_ref().filter(|_| made.is_some()).map(KeySource::Program);
        seen(&ReplayDecision { at, route: None, plan: None, refused, bypassed, charges, verdict, known }, ruleset)
    }

    fn decide_request<T>(
        &mut self,
        arrival: ArrivalSpan,
        record: &Record,
        seen: impl FnOnce(&ReplayDecision<'_>, &Ruleset) -> T,
    ) -> T {
        let at = arrival.earliest;
        let Self { rules, names, headers, host, charger } = self;
        let ruleset = &rules.ruleset;
        let unlimited = Verdict::unlimited();
        let refused = |Refusal { route, cause }| ReplayDecision {
            at,
            route,
            plan: None,
            refused: Some(cause),
            bypassed: false,
            charges: &[],
            verdict: &unlimited,
            known: None,
        };
        set_headers(headers, record, names);
        let refused_before = refused_before(record);
        let is_final = |cause: &&str| record.target.is_none() || !CALLER_REFUSAL_CAUSES.contains(cause);
        let host = host.of(record, &rules.default_host);
        let missing_inputs = &mut charger.missing_inputs;
        let target = match refused_before.filter(is_final) {
            Some(cause) => Err(cause),
            None => target_of(ruleset, record, headers, host, missing_inputs).map_err(|answer| answer.cause()),
        };
        let target = match target {
            Ok(target) => target,
            Err(cause) => return seen(&refused(Refusal { route: None, cause }), ruleset),
        };
        let facts = target.borrowed(headers);
        let request = ReplayedRequest { record, arrival, target: &target, facts: &facts, refused_before };
        let RequestCharge { route: id, caller, bypassed, charges, verdict } = match charger.charge(rules, &request) {
            Ok(charged) => charged,
            Err(refusal) => return seen(&refused(refusal), ruleset),
        };
        let route = ruleset.matcher.route(id);
        let resolved = match &caller {
            Some(caller) => request.resolved(ruleset, route, caller),
            None => ruleset.resolve_unidentified(route),
        };
        let plan = caller.as_ref().and(resolved.plan).map(|(plan, _)| plan);
        let known = Some(KeySource::Request(&facts, &resolved));
        seen(&ReplayDecision { at, route: Some(id), plan, refused: None, bypassed, charges, verdict, known }, ruleset)
    }
}

impl ReplayedRequest<'_> {
    fn resolved<'a>(&'a self, ruleset: &'a Ruleset, route: &'a Route, caller: &'a Caller) -> Resolved<'a> {
        Resolved { upstream_node: self.record.node.as_deref(), ..caller.resolved(ruleset, route) }
    }
}

impl RequestCharger {
    /// Charges a request under the limits of its route, in the order of the gateway.
    fn charge(&mut self, rules: &ReplayRules, request: &ReplayedRequest<'_>) -> Result<RequestCharge<'_>, Refusal> {
        let ReplayedRequest { record, arrival, target, facts, refused_before } = *request;
        let ruleset = &rules.ruleset;
        // a request for the page of the caller's own usage takes no route
        let asks_usage = ruleset.usage.as_deref() == Some(&*target.path);
        let found = ruleset.route_of(facts);
        let refuse = |cause| Refusal { route: found.filter(|_| !asks_usage), cause };
        let Some(id) = found else {
            let cause = if asks_usage { USAGE } else { Answer::NoRoute.cause() };
            return Err(refuse(refused_before.unwrap_or(cause)));
        };
        let route = ruleset.matcher.route(id);
        let checked = match asks_usage {
            true => Ok(()),
            false => caller::check_route(route, target.has_parameters, BodySource::Unavailable, facts),
        };
        checked
            .and_then(|()| Caller::check_before_identification(ruleset, route, facts))
            .map_err(|answer| refuse(answer.cause()))?;
        let is_preflight = is_preflight(route, record, facts);
        let caller = match refused_before.or(asks_usage.then_some(USAGE)) {
            Some(cause) => Err(cause),
            None if is_preflight => Ok(Caller::UNKNOWN),
            None => self.caller(rules, request),
        };
        let is_denied = self.charge_early(ruleset, route, request, &caller).map_err(|answer| refuse(answer.cause()))?;
        if is_denied && !asks_usage {
            let (charges, verdict) = (self.charges.as_slice(), self.ledger.verdict());
            return Ok(RequestCharge { route: id, caller: None, bypassed: false, charges, verdict });
        }
        let caller = caller.map_err(refuse)?;
        if !is_preflight && ruleset.denies_access(route, facts.address, caller.customer()) {
            return Err(refuse(Answer::AccessDenied.cause()));
        }
        let resolved = request.resolved(ruleset, route, &caller);
        self.count_missing(route, facts, &resolved);
        let bypassed = is_preflight || route.bypass.covers(facts, caller.customer());
        self.charges.clear();
        let made =
            ruleset.balance_hashes(route, facts, &resolved, self.hashers.hasher()).and_then(|_| match bypassed {
                true => Ok(()),
                false => ruleset.add_charges(&route.limits, facts, &resolved, &self.hashers, &mut self.charges),
            });
        made.map_err(|fault| refuse(Answer::from(fault).cause()))?;
        let verdict = self.ledger.charge(ruleset, record, facts, &mut self.charges, arrival);
        Ok(RequestCharge { route: id, caller: Some(caller), bypassed, charges: &self.charges, verdict })
    }

    fn caller(&mut self, rules: &ReplayRules, request: &ReplayedRequest<'_>) -> Result<Caller, &'static str> {
        let ReplayedRequest { record, arrival, facts, .. } = *request;
        let Some(asked) = &rules.ruleset.customers else { return Ok(Caller::UNKNOWN) };
        let found = self.callers.find(rules, asked, record, facts, arrival.earliest, &mut self.missing_inputs);
        found.map_err(|answer| answer.cause())
    }

    /// Counts the parts of the keys of the route's limits that a request lacks.
    fn count_missing(&mut self, route: &Route, facts: &Facts<'_>, resolved: &Resolved<'_>) {
        for missing in self.missing.iter_mut().filter(|missing| route.limits.contains(&missing.limit)) {
            let is_missing = key::value(&missing.part, facts, resolved) == Err(ValueFault::Missing);
            missing.count += u64::from(is_missing);
        }
    }

    /// Charges a request under the limits that need no caller, if it is refused, or if one of them denies it and the
    /// gateway that wrote the line did so, too. Returns whether one denies it.
    fn charge_early(
        &mut self,
        ruleset: &Ruleset,
        route: &Route,
        &ReplayedRequest { record, arrival, facts, .. }: &ReplayedRequest<'_>,
        caller: &Result<Caller, &'static str>,
    ) -> Result<bool, Answer> {
        let is_refused = caller.as_ref().err().is_some_and(|cause| *cause != USAGE);
        if !is_refused && (caller.is_err() || !was_unidentified(record)) {
            return Ok(false);
        }
        self.charges = Caller::early_charges(ruleset, route, facts, &self.hashers)?;
        if self.charges.is_empty() || !(is_refused || self.ledger.would_deny(&self.charges, arrival.earliest)) {
            return Ok(false);
        }
        Ok(self.ledger.charge_early(ruleset, record, facts, &mut self.charges, arrival).is_denied())
    }
}

const USAGE: &str = "usage";

/// The cause of a refusal: a program's charges name limits or keys that the rules do not have.
const UNCHARGEABLE: &str = "unknown_charge";

/// The cause for which the gateway that wrote the line refused the request before it asked all limits. Such a line may
/// not tell the caller.
fn refused_before(record: &Record) -> Option<&'static str> {
    let answered = record.answered.as_deref()?;
    let is_before = |cause: &&str| *cause == answered && (record.target.is_none() || !NO_NODE.contains(cause));
    CAUSES_BEFORE_LIMITS.into_iter().chain(CALLER_REFUSAL_CAUSES).find(is_before)
}

/// The causes of refusals that follow the limits: such requests were charged, unless their lines tell no path.
const NO_NODE: [&str; 2] = [Answer::NoHealthyNode.cause(), Answer::UpstreamFull.cause()];

/// Whether a limit of the gateway that wrote the line denied the request before the gateway identified the caller: an
/// identified caller has a plan.
fn was_unidentified(record: &Record) -> bool {
    record.answered.as_deref() == Some(Answer::Limited.cause()) && record.plan.is_none() && record.customer.is_none()
}

/// The canonical parts of a request, without its header fields.
struct CanonicalTarget<'r> {
    method: &'r str,
    host: &'r str,
    /// The path without its parameters.
    path: Cow<'r, str>,
    has_parameters: bool,
    query: Option<&'r str>,
    address: Option<IpAddr>,
    client: Option<IpAddr>,
}

impl CanonicalTarget<'_> {
    fn borrowed<'a>(&'a self, headers: &'a Fields) -> Facts<'a> {
        Facts {
            method: self.method,
            host: self.host,
            path: &self.path,
            query: self.query,
            client: self.client,
            address: self.address,
            body: Some(&RequestFields::Unreadable),
            ..Facts::of(headers)
        }
    }
}

fn target_of<'r>(
    ruleset: &Ruleset,
    record: &'r Record,
    headers: &Fields,
    host: Option<&'r str>,
    missing_inputs: &mut MissingInputs,
) -> Result<CanonicalTarget<'r>, Answer> {
    let host = host.ok_or(Answer::Malformed("the host is no host name"))?;
    let Some((method, raw)) = record.method.as_deref().zip(record.target.as_deref()) else {
        missing_inputs.requests = missing_inputs.requests.saturating_add(1);
        return Err(Answer::Malformed("the line holds no request"));
    };
    if raw.len() > ruleset.request_head.max_target {
        return Err(Answer::TargetTooLong);
    }
    facts::check_method(method)?;
    let (path, query) = facts::path_and_query(method, raw, host)?;
    let has_parameters = path::has_parameters(&path);
    let path = path::matched_form(&path).map_or(path, Cow::Owned);
    let peer = record.client.as_deref().and_then(facts::read_address);
    missing_inputs.addresses += u64::from(peer.is_none());
    let rules = &ruleset.client_address;
    let is_proxy = peer.is_some_and(|peer| rules.is_trusted(Some(peer.to_canonical())));
    missing_inputs.clients += u64::from(is_proxy && !headers.contains(rules.header.name()));
    let address = peer.and_then(|peer| facts::client_address(Some(peer), headers, rules));
    let client = address.map(|address| ruleset.client_address.prefixes.network(address));
    Ok(CanonicalTarget { method, host, path, has_parameters, query, address, client })
}

impl Host {
    /// The canonical host of a request; `None` if it is no host name.
    fn of(&mut self, record: &Record, default: &str) -> Option<&str> {
        let in_target = || {
            let target = record.target.as_deref().filter(|target| !target.starts_with(b"/"))?;
            facts::absolute_form(str::from_utf8(target).ok()?).map(|(_, authority, _)| authority.as_bytes())
        };
        let raw = record.host.as_deref().or_else(in_target).unwrap_or(default.as_bytes());
        if raw.is_empty() {
            return Some("");
        }
        if self.canonical.is_none() || self.raw != raw {
            raw.clone_into(&mut self.raw);
            let host = str::from_utf8(raw).ok().and_then(|host| facts::canonical_host(host).ok());
            self.canonical = host.map(|(host, _)| host);
        }
        self.canonical.as_deref()
    }
}
