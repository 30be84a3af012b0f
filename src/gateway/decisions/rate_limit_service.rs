//! Envoy's rate limit service, `envoy.service.ratelimit.v3`: `domains` leads from a domain and descriptors to limits.
//!
//! The gateway makes all charges of all descriptors or none. A limit that several descriptors lead to is charged once for
//! each of its keys.

use std::rc::Rc;

use prost::Message;

use super::grpc::{self, HeaderValue};
use super::request_limits::UNITS;
use crate::algorithm::Decision;
use crate::charge::Charge;
use crate::fields::Fields;
use crate::gateway::queue::Queue;
use crate::gateway::request_context::{Admission, RequestContext};
use crate::gateway::respond::{self, Answer};
use crate::gateway::{charging, denials, forward};
use crate::http::head::RequestHead;
use crate::http::service::Response;
use crate::ruleset::domains::{Domain, Hits};
use crate::ruleset::matcher::RouteId;
use crate::ruleset::verdict::Standing;
use crate::ruleset::{PlanId, key};
use crate::store::{AmendError, Amendment};
use crate::units::{Cost, Nanos};

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// The maximum number of descriptors in a question, and of entries in a descriptor.
const MAX_DESCRIPTORS: usize = 100;
const MAX_ENTRIES: usize = 32;
/// `RateLimitResponse.Code`. With 0, which is UNKNOWN, Envoy lets a request pass, whatever its configuration says.
const OK: i32 = 1;
const OVER_LIMIT: i32 = 2;

/// The part of a question that one descriptor asks for.
struct DescriptorCharges<'q> {
    /// The position of the descriptor in the question.
    number: usize,
    entries: Vec<(&'q str, &'q [u8])>,
    /// The positions of its charges.
    charges: Vec<usize>,
    /// Whether the descriptor is denied, whatever its limits decide.
    denied: bool,
}

/// The charges and refunds that all descriptors ask for.
#[derive(Default)]
struct Batch {
    /// The charges to make: those that take no hit first, because they are about what is left before the question.
    charges: Vec<Charge>,
    /// The plan of each of them.
    plans: Vec<Option<PlanId>>,
    /// The charges to give back.
    refunds: Vec<Charge>,
}

/// Answers a call.
pub(super) async fn decide(context: &mut RequestContext, head: &RequestHead, body: &[u8]) -> Result<Response, Answer> {
    let question: RateLimitRequest = grpc::decode_request(head, body, SHOULD_RATE_LIMIT)?;
    check(&question)?;
    let active = Rc::clone(&context.active);
    let Some(domain) = active.ruleset.domains.get(&question.domain) else {
        context.set_route(None);
        context.status = Some(200);
        let statuses = vec![DescriptorStatus { code: OK, ..DescriptorStatus::default() }; question.descriptors.len()];
        return Ok(grpc::encode_response(&RateLimitResponse {
            overall_code: OK,
            statuses,
            ..RateLimitResponse::default()
        }));
    };
    context.set_route(Some(domain.route));
    let mut batch = Batch::default();
    let mut descriptors: Vec<_> = question.descriptors.iter().enumerate().collect();
    descriptors.sort_by_key(|(_, descriptor)| descriptor.hits(question.hits_addend) != Hits::Peek);
    let mut asked: Vec<DescriptorCharges<'_>> = descriptors
        .into_iter()
        .map(|descriptor| batch.add(context, domain, descriptor, question.hits_addend))
        .collect::<Result<_, _>>()?;
    asked.sort_by_key(|asked| asked.number);
    if asked.iter().any(|asked| asked.denied) {
        settle(context, Err(Answer::Limited), batch.refunds).await?;
        return Ok(grpc::encode_response(&denied(context, &asked)));
    }
    context.charge_plans = batch.plans;
    let decided = charge(context, domain.route, batch.charges).await;
    let summary = context.verdict.summary(&active.ruleset, context.bypassed);
    context.plan = summary.standing.and_then(|position| context.plan_of(position));
    if denials::must_record(context) {
        let value = |position, part: &_| {
            let of = asked.iter().find(|asked| asked.charges.contains(&position))?;
            key::entry(part, &of.entries).ok()
        };
        denials::record_with(context, active.ruleset.matcher.route(domain.route), value, |position, _| {
            context.plan_of(position)
        });
    }
    settle(context, decided, batch.refunds).await?;
    let standings = |asked: &DescriptorCharges<'_>| {
        status(context, asked.charges.iter().filter_map(|position| context.verdict.standings.get(*position)))
    };
    let statuses = asked.iter().map(standings).collect();
    Ok(grpc::encode_response(&answer(context, statuses)))
}

/// Checks a question against the protocol and the bounds.
fn check(question: &RateLimitRequest) -> Result<(), Answer> {
    let problem = if question.domain.is_empty() {
        Some("the domain is empty")
    } else if question.descriptors.is_empty() {
        Some("there are no descriptors")
    } else if question.descriptors.len() > MAX_DESCRIPTORS {
        Some("there are more than 100 descriptors")
    } else {
        question.descriptors.iter().find_map(Descriptor::problem)
    };
    problem.map_or(Ok(()), |problem| Err(Answer::Malformed(problem)))
}

impl Descriptor {
    fn problem(&self) -> Option<&'static str> {
        if self.entries.is_empty() {
            Some("there is a descriptor without entries")
        } else if self.entries.len() > MAX_ENTRIES {
            Some("there is a descriptor with more than 32 entries")
        } else if self.entries.iter().any(|entry| entry.key.is_empty()) {
            Some("there is an entry without a key")
        } else {
            None
        }
    }

    /// The hits that it asks for, where the question asks for `hits_addend`.
    fn hits(&self, hits_addend: u32) -> Hits {
        match &self.hits_addend {
            None => Hits::Take(u64::from(hits_addend).max(1)),
            Some(UInt64Value { value: 0 }) => Hits::Peek,
            Some(UInt64Value { value }) => Hits::Take(*value),
        }
    }
}

// === charging ===

impl Batch {
    /// Adds the charges and refunds that `descriptor`, at position `number` of the question, asks for.
    fn add<'q>(
        &mut self,
        context: &RequestContext,
        domain: &Domain,
        (number, descriptor): (usize, &'q Descriptor),
        hits_addend: u32,
    ) -> Result<DescriptorCharges<'q>, Answer> {
        let active = &context.active;
        let entries: Vec<_> = descriptor.entries.iter().map(|entry| (&*entry.key, &*entry.value)).collect();
        let plan = domain.plan.as_deref().and_then(|key| entries.iter().find(|(entry, _)| *entry == key));
        let plan = plan.and_then(|(_, name)| active.ruleset.plan_id(str::from_utf8(name).ok()?));
        let hits = descriptor.hits(hits_addend);
        let mut charges = Vec::new();
        let node = domain.find(&entries);
        let mut denied = node.is_some_and(|node| node.denies);
        let allows_none = descriptor.limit.as_ref().is_some_and(|limit| limit.requests_per_unit == 0);
        for id in node.iter().flat_map(|node| &node.limits) {
            let brought = descriptor.limit.as_ref().filter(|_| !allows_none).map(|limit| {
                active.request_limits.rule(&active.ruleset, *id, plan, (limit.requests_per_unit, limit.unit))
            });
            let terms = (plan, hits, brought.transpose().map_err(Answer::Malformed)?.flatten());
            let Some(charge) = active.ruleset.charge_descriptor(*id, &entries, terms, &active.hashers) else {
                continue;
            };
            match descriptor.is_negative_hits {
                // in place of any limit that could deny
                _ if allows_none => denied |= charge.enforcement.enforces,
                true => self.refunds.push(charge),
                false => charges.push(self.join(charge, plan)),
            }
        }
        Ok(DescriptorCharges { number, entries, charges, denied: denied && !descriptor.is_negative_hits })
    }

    /// Adds a charge under `plan`, to one of the same bucket if there is one. Returns its position.
    fn join(&mut self, charge: Charge, plan: Option<PlanId>) -> usize {
        let is_same = |other: &Charge| other.is_same_bucket(&charge) && other.enforcement == charge.enforcement;
        if let Some(position) = self.charges.iter().position(is_same) {
            if let Some(other) = self.charges.get_mut(position).filter(|_| charge.enforcement.consumes) {
                other.cost = other.cost.saturating_add(charge.cost);
            }
            return position;
        }
        self.charges.push(charge);
        self.plans.push(plan);
        self.charges.len().saturating_sub(1)
    }
}

/// Makes all of `charges` or none.
async fn charge(context: &mut RequestContext, route: RouteId, mut charges: Vec<Charge>) -> Result<(), Answer> {
    let (active, gateway) = (Rc::clone(&context.active), context.gateway.clone());
    let now = gateway.time().now();
    context.charged_at = now;
    if charges.is_empty() || charging::deny_banned(context, &mut charges, now) {
        return charging::conclude(context, route, now).await.map(drop);
    }
    let mut receipt = gateway.store.charge(&active.binding, &mut charges, now).await;
    let is_charged = !receipt.is_denied(&charges);
    let asked = charges.iter().zip(&mut receipt.charged).filter(|(charge, _)| !charge.enforcement.consumes);
    for (charge, charged) in asked {
        charged.decision = without_wait(&active.queues[charge.limit], charged.decision, now);
    }
    context.verdict.set(&active.ruleset, &charges, &receipt.charged);
    context.charges = charges;
    if is_charged {
        // from here on the charges are refunded if the question ends before it has passed
        context.admission = Admission::Pending;
    }
    charging::observe(context, route, &receipt)?;
    if context.verdict.is_denied() {
        // a question that takes no hit can be denied after the store has admitted all
        context.refund_as_denied(now);
    }
    match charging::conclude(context, route, now).await? {
        Some(turn) => Box::pin(charging::wait_for(turn, context)).await,
        None => Ok(()),
    }
}

/// The decision on a question that takes no hit. It is answered at once, and denied if a hit would find no place in `queue`.
fn without_wait(queue: &Queue, decision: Decision, now: Nanos) -> Decision {
    match queue.decide_without_place(decision, now) {
        Decision::Admit { .. } => Decision::ADMIT,
        denied @ Decision::Deny(_) => denied,
    }
}

/// Makes `refunds` after the charges of a question are `decided`. Where that fails, a question that passes is charged
/// nothing, so that the proxy can ask again.
async fn settle(context: &mut RequestContext, decided: Result<(), Answer>, refunds: Vec<Charge>) -> Result<(), Answer> {
    let is_admitted = match decided {
        Ok(()) => true,
        Err(Answer::Limited) => false,
        Err(answer) => return Err(answer),
    };
    match refund(context, refunds).await {
        Err(unamended) if is_admitted => {
            context.refund_as_failed(context.gateway.time().now());
            Err(match unamended {
                AmendError::Elsewhere(owner) => Answer::KeyElsewhere(owner),
                AmendError::RedisUnavailable => Answer::StoreUnavailable,
                AmendError::Holds | AmendError::TableFull => Answer::Internal,
            })
        }
        // the traffic that the hits of a denied question stood for is over, too
        _ => Ok(()),
    }
}

/// Gives back the tokens of descriptors with negative hits, never more than were taken. None is given back where this gateway
/// knows that a key cannot be amended; keys in Redis, which may fail to answer, come first.
async fn refund(context: &RequestContext, mut refunds: Vec<Charge>) -> Result<(), AmendError> {
    let (gateway, binding) = (&context.gateway, &context.active.binding);
    refunds.retain(|charge| charge.enforcement.consumes);
    refunds.iter().try_for_each(|charge| gateway.store.check_amendable(binding, charge))?;
    refunds.sort_by_key(|charge| gateway.store.is_decided_locally(binding, charge));
    for charge in &refunds {
        match gateway.store.amend(binding, charge, Amendment::Grant(charge.cost), gateway.time().now()).await {
            // a full table keeps what it has
            Ok(()) | Err(AmendError::TableFull) => {}
            Err(unamended) => return Err(unamended),
        }
    }
    Ok(())
}

// === answering ===

/// The status of one descriptor: that of its tightest limit, or of a limit that denies.
fn status<'s>(context: &RequestContext, standings: impl Iterator<Item = &'s Standing>) -> DescriptorStatus {
    let left = |standing: &Standing| standing.headroom.remaining.unwrap_or(standing.policy.quota);
    let visible = standings.filter(|standing| standing.visible || standing.denies());
    let Some(tightest) = visible.min_by_key(|standing| (!standing.denies(), left(standing))) else {
        return DescriptorStatus { code: OK, ..DescriptorStatus::default() };
    };
    let small = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let seconds = tightest.policy.window.map(|window| window.secs_ceil());
    let unit = UNITS.iter().find(|(_, length)| Some(*length) == seconds).map_or(0, |(unit, _)| *unit);
    let name = context.active.ruleset.limits.get(tightest.limit.0).map(|limit| limit.name.clone());
    let reset = match tightest.decision {
        Decision::Admit { .. } => tightest.headroom.until_full,
        Decision::Deny(denial) => respond::retry_after(denial).unwrap_or(tightest.headroom.until_full),
    };
    DescriptorStatus {
        code: if tightest.denies() { OVER_LIMIT } else { OK },
        current_limit: Some(CurrentLimit {
            requests_per_unit: small(tightest.policy.quota),
            unit,
            name: name.unwrap_or_default(),
        }),
        limit_remaining: small(left(tightest)),
        duration_until_reset: Some(Duration { seconds: i64::try_from(reset.secs_ceil()).unwrap_or(i64::MAX) }),
    }
}

/// The response to a question with descriptors that are denied, whatever their limits decide: nothing is charged.
fn denied(context: &mut RequestContext, asked: &[DescriptorCharges<'_>]) -> RateLimitResponse {
    respond::answer(context, &Answer::AccessDenied, &Fields::default());
    // the status that Envoy sends to the client
    context.status = Some(429);
    let code = |asked: &DescriptorCharges<'_>| if asked.denied { OVER_LIMIT } else { OK };
    let statuses = asked.iter().map(|asked| DescriptorStatus { code: code(asked), ..DescriptorStatus::default() });
    RateLimitResponse { overall_code: OVER_LIMIT, statuses: statuses.collect(), ..RateLimitResponse::default() }
}

/// The response to a question whose descriptors have these statuses.
fn answer(context: &mut RequestContext, statuses: Vec<DescriptorStatus>) -> RateLimitResponse {
    let values = |fields: &Fields| fields.iter().map(|field| HeaderValue::new(field.name, field.value)).collect();
    if context.verdict.is_denied() {
        // this response goes to the client, which need not speak gRPC
        context.grpc_type = None;
        let denied = respond::answer(context, &Answer::Limited, &Fields::default());
        return RateLimitResponse {
            overall_code: OVER_LIMIT,
            statuses,
            response_headers_to_add: values(&denied.fields),
            raw_body: denied.body,
            ..RateLimitResponse::default()
        };
    }
    context.status = Some(200);
    let marks = forward::marks(context).map(|(name, limits)| HeaderValue::new(name.as_ref(), limits.as_bytes()));
    RateLimitResponse {
        overall_code: OK,
        statuses,
        request_headers_to_add: marks.collect(),
        response_headers_to_add: values(&respond::admitted_fields(context)),
        raw_body: Vec::new(),
    }
}

// === the messages, with the fields that are read or written ===

#[derive(Clone, PartialEq, Message)]
struct RateLimitRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<DescriptorEntry>,
    #[prost(message, optional, tag = "2")]
    limit: Option<LimitOverride>,
    #[prost(message, optional, tag = "3")]
    hits_addend: Option<UInt64Value>,
    #[prost(bool, tag = "4")]
    is_negative_hits: bool,
}

#[derive(Clone, PartialEq, Message)]
struct DescriptorEntry {
    #[prost(string, tag = "1")]
    key: String,
    /// A string of the protocol. But Envoy sends on what its clients sent, and a message that cannot be read limits nothing.
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct LimitOverride {
    #[prost(uint32, tag = "1")]
    requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    unit: i32,
}

#[derive(Clone, PartialEq, Message)]
struct UInt64Value {
    #[prost(uint64, tag = "1")]
    value: Cost,
}

#[derive(Clone, PartialEq, Message)]
struct RateLimitResponse {
    #[prost(int32, tag = "1")]
    overall_code: i32,
    #[prost(message, repeated, tag = "2")]
    statuses: Vec<DescriptorStatus>,
    #[prost(message, repeated, tag = "3")]
    response_headers_to_add: Vec<HeaderValue>,
    #[prost(message, repeated, tag = "4")]
    request_headers_to_add: Vec<HeaderValue>,
    #[prost(bytes = "vec", tag = "5")]
    raw_body: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct DescriptorStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(message, optional, tag = "2")]
    current_limit: Option<CurrentLimit>,
    #[prost(uint32, tag = "3")]
    limit_remaining: u32,
    #[prost(message, optional, tag = "4")]
    duration_until_reset: Option<Duration>,
}

#[derive(Clone, PartialEq, Message)]
struct CurrentLimit {
    #[prost(uint32, tag = "1")]
    requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    unit: i32,
    #[prost(string, tag = "3")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct Duration {
    #[prost(int64, tag = "1")]
    seconds: i64,
}
