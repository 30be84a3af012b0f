//! Request bodies without a declared length, under limits that count their bytes: the gateway charges them as they pass, and
//! stops them where a limit denies.

use smallvec::SmallVec;

use crate::algorithm::Decision;
use crate::charge::{AllCharged, Charge, ChargeSource, Charged, Enforcement, Refund, is_denied};
use crate::gateway::cost_meter::{CostMeter, add_length};
use crate::gateway::request_context::{Admission, RequestContext};
use crate::gateway::respond::Answer;
use crate::gateway::{bans, denials, queue};
use crate::ruleset::LimitId;
use crate::ruleset::cost::started_blocks;
use crate::ruleset::verdict::Verdict;
use crate::units::Nanos;

/// The maximum number of bytes that are charged in advance. With this, a long upload does not ask Redis or another gateway
/// for each of its parts.
const MAX_ADVANCE_BYTES: u64 = 1 << 20;

/// The charges for a part of a body, each with the position of its entry in the cost meter.
#[derive(Clone, Default)]
struct PartCharges {
    indices: SmallVec<[usize; 2]>,
    charges: SmallVec<[Charge; 2]>,
}

/// The charges for a part of a body, which were made at this time or denied.
struct ChargedPart {
    part: PartCharges,
    charged: AllCharged,
    at: Nanos,
}

/// Charges a part of the request's body, of so many bytes; `is_head_sent` says whether the upstream may have got the request's
/// head. Returns how long the part has to wait for its turn where a limit delays. `Err` is the response to the request where a
/// limit denies: the body ends here.
pub(super) async fn charge_part(
    context: &mut RequestContext,
    bytes: usize,
    is_head_sent: bool,
) -> Result<Nanos, Answer> {
    let Some(cost_meter) = &context.cost_meter else { return Ok(Nanos::ZERO) };
    let total = add_length(cost_meter.request_bytes, bytes);
    let due = due(context, cost_meter, total);
    let wait = match due.charges.is_empty() {
        true => Nanos::ZERO,
        // rare and large, so the future is boxed
        false => Box::pin(charge(context, due, total, is_head_sent)).await?,
    };
    if let Some(cost_meter) = &mut context.cost_meter {
        match wait {
            Nanos::ZERO => cost_meter.request_bytes = total,
            _ => cost_meter.delayed_bytes = total.saturating_sub(cost_meter.request_bytes),
        }
    }
    Ok(wait)
}

/// The charges that a body of `total` bytes has not been charged yet.
fn due(context: &RequestContext, cost_meter: &CostMeter, total: u64) -> PartCharges {
    let mut due = PartCharges::default();
    for (position, measurement) in cost_meter.measurements.iter().enumerate() {
        let Some(body) = measurement.body.as_ref().filter(|body| !body.is_over) else { continue };
        let missing = started_blocks(total, body.bytes_per_token).saturating_sub(body.charged);
        let (Some(charge), Some(standing)) =
            (context.charges.get(measurement.position), context.verdict.standings.get(measurement.position))
        else {
            continue;
        };
        if missing > 0 && standing.decision.is_admitted() {
            due.indices.push(position);
            due.charges.push(Charge {
                cost: missing,
                taken_from: ChargeSource::default(),
                slot: None,
                ..charge.clone()
            });
        }
    }
    due
}

/// The due charges with up to as much again as was charged before, in advance for later parts; `None` if this saves nothing.
fn with_advance(context: &RequestContext, due: &PartCharges) -> Option<PartCharges> {
    let active = &context.active;
    if due.charges.iter().all(|charge| context.gateway.store.is_decided_locally(&active.binding, charge)) {
        return None;
    }
    let cost_meter = context.cost_meter.as_ref()?;
    let advance = |(index, charge): (&usize, &Charge)| {
        let measurement = cost_meter.measurements.get(*index)?;
        let body = measurement.body.as_ref().filter(|_| charge.enforcement.enforces)?;
        let left = context.verdict.standings.get(measurement.position)?.headroom.remaining.unwrap_or(u64::MAX);
        let max = MAX_ADVANCE_BYTES.checked_div(body.bytes_per_token)?.min(left.saturating_sub(charge.cost) / 2);
        Some(body.charged.min(max))
    };
    let (mut part, mut is_more) = (due.clone(), false);
    for (index, charge) in part.indices.iter().zip(&mut part.charges) {
        let advance = advance((index, charge)).unwrap_or_default();
        charge.cost = charge.cost.saturating_add(advance);
        // if this is denied, the gateway asks for the due charges alone
        charge.enforcement.counts_denied &= !charge.enforcement.enforces;
        is_more |= advance > 0;
    }
    is_more.then_some(part)
}

/// Makes the due charges for a body of `total` bytes, with some in advance where that fits. Returns how long the part has to
/// wait.
async fn charge(
    context: &mut RequestContext,
    due: PartCharges,
    total: u64,
    is_head_sent: bool,
) -> Result<Nanos, Answer> {
    if let Some(part) = with_advance(context, &due) {
        let charged = charge_batch(context, part).await?;
        if !charged.is_denied() {
            return charged.apply(context);
        }
    }
    let charged = charge_batch(context, due).await?;
    let is_first = context.cost_meter.as_ref().is_some_and(|cost_meter| cost_meter.request_bytes == 0);
    if charged.is_denied() && is_first && !is_head_sent {
        refund_unsent(context, charged.at);
    }
    let applied = charged.apply(context);
    if applied == Err(Answer::Limited) {
        await_whole_body(context, total, charged.at).await;
        bans::record_denials(context, charged.at);
        denials::record_without_head(context);
    }
    applied
}

/// Refunds the charges of a request that is denied before the upstream has got anything of it, except those of limits that
/// count denials. Other requests stay charged: clients could send the upstream any number of them otherwise.
fn refund_unsent(context: &mut RequestContext, now: Nanos) {
    let refunded = context.verdict.consuming_charges(&context.charges).map(|(charge, _)| charge);
    let refunded = refunded.filter(|charge| !charge.enforcement.counts_denied);
    context.active.meters.count_refunded_tokens(context.plan, refunded);
    context.admission = Admission::Pending;
    context.refund_as_denied(now);
}

/// Lengthens the denial of a request whose body a limit has ended after `total` bytes. The client has to send all of it
/// again, so it waits until each limit would admit a request with such a body.
async fn await_whole_body(context: &mut RequestContext, total: u64, now: Nanos) {
    let (active, gateway) = (&context.active, &context.gateway);
    let Some(cost_meter) = &context.cost_meter else { return };
    let (mut positions, mut questions) = (Vec::new(), Vec::new());
    for (position, charge) in context.charges.iter().enumerate() {
        // a slot that the request holds is free when the client sends it again
        let holds_slots = active.ruleset.limits[charge.limit].rule(&charge.rule).holds_slots();
        if charge.enforcement.enforces && !holds_slots {
            let cost = cost_meter.whole_cost(position, total).unwrap_or(charge.cost);
            let (enforcement, taken_from) = (Enforcement::DRY_RUN, ChargeSource::default());
            positions.push(position);
            questions.push(Charge { cost, enforcement, taken_from, slot: None, ..charge.clone() });
        }
    }
    let receipt = gateway.store.charge(&active.binding, &mut questions, now).await;
    for (position, charged) in positions.into_iter().zip(receipt.charged) {
        if let Decision::Deny(denial) = charged.decision {
            context.verdict.lengthen_denial_to(position, denial);
        }
    }
    queue::await_places(&active.queues, &mut context.verdict, now);
}

/// Makes all charges of `part` or none.
async fn charge_batch(context: &RequestContext, mut part: PartCharges) -> Result<ChargedPart, Answer> {
    let (active, gateway) = (&context.active, &context.gateway);
    let at = gateway.time().now();
    let receipt = gateway.store.charge(&active.binding, &mut part.charges, at).await;
    active.meters.observe_decision(receipt.source, gateway.time().tick().saturating_sub(at));
    match (receipt.failed_closed.and_then(|position| part.charges.get(position)), context.route) {
        (Some(refused), Some(route)) => {
            active.meters.count_refusal(route, context.plan, LimitId(refused.limit));
            Err(Answer::StoreUnavailable)
        }
        _ => Ok(ChargedPart { part, charged: receipt.charged, at }),
    }
}

impl ChargedPart {
    /// The charges, each with the position of its entry in the cost meter and the decision on it.
    fn iter(&self) -> impl Iterator<Item = (usize, &Charge, &Charged)> {
        let charges = self.part.charges.iter().zip(&self.charged);
        self.part.indices.iter().zip(charges).map(|(index, (charge, charged))| (*index, charge, charged))
    }

    /// The charges that were denied.
    fn denied(&self) -> impl Iterator<Item = (usize, &Charge, &Charged)> {
        self.iter().filter(|(_, _, charged)| !charged.decision.is_admitted())
    }

    /// Whether a limit ends the request.
    fn is_denied(&self) -> bool {
        is_denied(&self.part.charges, &self.charged)
    }

    /// Notes the results of the charges. Returns how long the part has to wait; `Err` where a limit ends the request.
    fn apply(&self, context: &mut RequestContext) -> Result<Nanos, Answer> {
        if let Some(cost_meter) = &mut context.cost_meter {
            cost_meter.body_charged_at = self.at;
        }
        self.count_denials(context)?;
        let mut longest = Nanos::ZERO;
        let Some(cost_meter) = &mut context.cost_meter else { return Ok(longest) };
        for (index, charge, charged) in self.iter() {
            let Some(measurement) = cost_meter.measurements.get_mut(index) else { continue };
            let Some(body) = &mut measurement.body else { continue };
            let Decision::Admit { wait } = charged.decision else {
                body.is_over = true;
                continue;
            };
            if charge.enforcement.enforces {
                longest = longest.max(wait);
            }
            body.charged = body.charged.saturating_add(charge.cost);
            body.last = Some(Refund::of(charge.clone(), charged.headroom, self.at));
            if let Some(standing) = context.verdict.standings.get_mut(measurement.position) {
                standing.headroom = charged.headroom;
            }
            context.active.meters.count_charged_tokens(context.plan, charge);
        }
        Ok(longest)
    }

    /// Counts the limits that deny the part. `Err` where one of them ends the request.
    fn count_denials(&self, context: &mut RequestContext) -> Result<(), Answer> {
        let active = &context.active;
        let (charges, charged): (Vec<Charge>, AllCharged) =
            self.denied().map(|(_, charge, charged)| (charge.clone(), *charged)).unzip();
        let (Some(route), Some(cost_meter), false) = (context.route, &context.cost_meter, charges.is_empty()) else {
            return Ok(());
        };
        let verdict = Verdict::new(&active.ruleset, &charges, &charged);
        active.meters.observe_verdict(route, |_| context.plan, &charges, &verdict);
        let (Decision::Deny(denial), Some(tightest)) = (verdict.outcome, verdict.tightest) else { return Ok(()) };
        for (number, (index, charge, charged)) in self.denied().enumerate() {
            let Some(measurement) = cost_meter.measurements.get(index) else { continue };
            let standing = context.verdict.standings.get(measurement.position);
            if let Some(standing) = standing.filter(|standing| standing.enforces) {
                // a request that the upstream has got nothing of is refunded by now
                let is_refunded = context.admission == Admission::None && !charge.enforcement.counts_denied;
                let headroom = if is_refunded { standing.headroom } else { charged.headroom };
                context.verdict.replace(measurement.position, Charged { headroom, ..*charged });
            }
            if number == tightest {
                context.verdict.deny(measurement.position, denial);
            }
        }
        Err(Answer::Limited)
    }
}
