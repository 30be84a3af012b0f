//! How a request is charged: under all its limits or none, whether some of them were charged early or not; and the acts on the
//! verdict.

use std::rc::Rc;

use smallvec::SmallVec;

use crate::algorithm::{Decision, Denial};
use crate::charge::{AllCharged, Charge, Charged, DecisionSource, Enforcement, Refund};
use crate::gateway::cost_meter::CostMeter;
use crate::gateway::queue::{self, QueuePlace};
use crate::gateway::request_context::{Admission, RequestContext};
use crate::gateway::respond::Answer;
use crate::gateway::{WorkerConfig, WorkerGateway, bans};
use crate::http::service::Exchange as _;
use crate::panics::failpoint;
use crate::ruleset::matcher::RouteId;
use crate::ruleset::verdict::Verdict;
use crate::store::Receipt;
use crate::units::Nanos;

/// The wait of an admitted request, and its places in the queues of the limits that delay it.
pub(super) struct QueueWait {
    wait: Nanos,
    places: Vec<QueuePlace>,
}

/// Makes `charges`, those of a request for `route` that are due now, and sets the verdict. `Err`: a limit cannot be checked, and
/// denies in this case.
pub(super) async fn charge(
    context: &mut RequestContext,
    route: RouteId,
    mut charges: Vec<Charge>,
    cost_meter: Option<Box<CostMeter>>,
) -> Result<Nanos, Answer> {
    let active = Rc::clone(&context.active);
    let now = context.gateway.time().now();
    if deny_banned(context, &mut charges, now) {
        return Ok(now);
    }
    let receipt = match charge_in_memory(context, &mut charges, now) {
        Some(receipt) => receipt,
        // this future is large, and moves with every future that contains it
        None => Box::pin(charge_all(context, &mut charges, now)).await,
    };
    (context.charged_at, context.cost_meter) = (now, cost_meter);
    context.verdict.set(&active.ruleset, &charges, &receipt.charged);
    context.charges = charges;
    observe(context, route, &receipt)?;
    Ok(now)
}

/// Makes `charges`, those under the limits of a request for `route` that decide ahead of the others. `Err` is the response if one
/// of them denies; the marks and waits of these limits are for all its limits to decide.
pub(super) async fn charge_ahead(
    context: &mut RequestContext,
    route: RouteId,
    charges: Vec<Charge>,
    cost_meter: Option<Box<CostMeter>>,
) -> Result<(), Answer> {
    let now = charge(context, route, charges, cost_meter).await?;
    if context.verdict.is_denied() {
        return conclude(context, route, now).await.map(drop);
    }
    context.admission = Admission::PartlyCharged { at: now, route };
    Ok(())
}

/// Acts on the verdict on a request that was charged at `now`. `Err` is the response to a request that may not pass.
pub(super) async fn conclude(
    context: &mut RequestContext,
    route: RouteId,
    now: Nanos,
) -> Result<Option<QueueWait>, Answer> {
    let active = Rc::clone(&context.active);
    let places = match context.verdict.outcome {
        Decision::Admit { .. } => {
            // from here on the charges are refunded if the request ends before it has passed
            context.admission = Admission::Pending;
            failpoint("charged");
            take_places(context, now)
        }
        Decision::Deny(_) => {
            queue::await_places(&active.queues, &mut context.verdict, now);
            Vec::new()
        }
    };
    charge_candidate(context, now).await;
    context.attempts.diverted = context.verdict.divert_upstream(&active.ruleset);
    if context.attempts.diverted.is_some() {
        // the chosen node belongs to the route's own upstream
        context.attempts.chosen = None;
    }
    // a ban decides which limit denies, and for how long
    bans::record_denials(context, now);
    let plan_of = |position| context.plan_of(position);
    active.meters.observe_verdict(route, plan_of, &context.charges, &context.verdict);
    match context.verdict.outcome {
        Decision::Deny(_) => Err(Answer::Limited),
        Decision::Admit { wait: Nanos::ZERO } => {
            context.admission = Admission::Passed { at: now };
            Ok(None)
        }
        Decision::Admit { wait } => Ok(Some(QueueWait { wait, places })),
    }
}

/// Takes a place in the queue of every limit that makes an admitted request wait. If a queue is full, the request is denied,
/// and its charges are refunded.
fn take_places(context: &mut RequestContext, now: Nanos) -> Vec<QueuePlace> {
    match queue::enter_all(&context.active.queues, &context.verdict, now) {
        Ok(places) => places,
        Err(full) => {
            context.refund_as_denied(now);
            context.verdict.deny(full.position, Denial::Later { retry_after: full.retry_after });
            context.verdict.await_kept_charges(&context.active.ruleset, &context.charges);
            Vec::new()
        }
    }
}

/// Holds the request back, at most until its deadline. A client that goes away meanwhile drops this future, and the charges
/// are refunded.
pub(super) async fn wait_for(
    QueueWait { wait, places }: QueueWait,
    context: &mut RequestContext,
) -> Result<(), Answer> {
    let now = context.gateway.time().now();
    let left = context.timing().due.map_or(Nanos::MAX, |due| due.saturating_sub(now));
    tokio::time::sleep(wait.min(left).to_duration()).await;
    failpoint("waiting");
    if wait > left {
        return Err(Answer::UpstreamTimeout);
    }
    drop(places);
    context.admission = Admission::Passed { at: context.gateway.time().now() };
    Ok(())
}

/// Charges the request in memory. `None`, with nothing charged, if Redis or another gateway has to be asked or if early charges
/// exist.
fn charge_in_memory(context: &RequestContext, charges: &mut [Charge], now: Nanos) -> Option<Receipt> {
    let is_first = context.charges.is_empty();
    is_first.then(|| context.gateway.store.charge_in_memory(&context.active.binding, charges, now))?
}

/// Makes `charges`, all the charges of a request, as far as they are not made yet, and refunds earlier charges that are not
/// among them. If a limit denies, the request is charged nothing.
async fn charge_all(context: &mut RequestContext, charges: &mut [Charge], now: Nanos) -> Receipt {
    match context.charges.is_empty() {
        true => context.gateway.store.charge(&context.active.binding, charges, now).await,
        false => charge_remaining(context, charges, now).await,
    }
}

/// Denies a request if one of its keys is banned, and returns whether it does. Such a request is charged nothing.
pub(super) fn deny_banned(context: &mut RequestContext, charges: &mut Vec<Charge>, now: Nanos) -> bool {
    let Some(ban) = context.gateway.bans.longest_ban(&context.active.ruleset, charges, now) else { return false };
    refund_early(context);
    context.verdict = Verdict::of_banned(&context.active.ruleset, charges, ban, now);
    context.charges = std::mem::take(charges);
    context.charged_at = now;
    true
}

/// The case of [`charge_all`] in which some charges were made early.
async fn charge_remaining(context: &mut RequestContext, charges: &mut [Charge], now: Nanos) -> Receipt {
    let (active, gateway) = (Rc::clone(&context.active), context.gateway.clone());
    let mut early = PriorCharges::take(context, now);
    let mut results: SmallVec<[Option<Charged>; 4]> = charges.iter_mut().map(|charge| early.find(charge)).collect();
    early.refund_except(charges);
    let pending: SmallVec<[usize; 4]> = (0..charges.len()).filter(|position| results[*position].is_none()).collect();
    let mut rest: Vec<Charge> = pending.iter().map(|position| charges[*position].clone()).collect();
    let mut receipt = Receipt { charged: SmallVec::new(), source: DecisionSource::Local, failed_closed: None };
    if !rest.is_empty() {
        receipt = gateway.store.charge(&active.binding, &mut rest, now).await;
    }
    if receipt.is_denied(&rest) {
        // clients are told what is left after the refund of the early charges
        for (charge, charged) in charges.iter().zip(&mut results) {
            let Some(Charged { decision, headroom }) = charged else { continue };
            if charge.enforcement.refunds_if_denied(*decision) {
                let policy = active.ruleset.rule_of_charge(charge).policy().above(charge.floor);
                *headroom = headroom.after_refund(charge.cost, policy);
            }
        }
    } else {
        early.taken.clear();
    }
    for ((position, charge), charged) in pending.iter().zip(rest).zip(&receipt.charged) {
        charges[*position] = charge;
        results[*position] = Some(*charged);
    }
    let failed_closed = receipt.failed_closed.and_then(|refused| pending.get(refused).copied());
    Receipt { charged: results.into_iter().flatten().collect(), source: receipt.source, failed_closed }
}

/// Notes where the charges of `context` were decided, and counts that and the time it took. `Err`: a limit cannot be
/// checked, and lets no request pass in this case.
pub(super) fn observe(context: &mut RequestContext, route: RouteId, receipt: &Receipt) -> Result<(), Answer> {
    let active = Rc::clone(&context.active);
    let took = context.gateway.time().tick().saturating_sub(context.charged_at);
    active.meters.observe_decision(receipt.source, took);
    context.decision_source = Some(receipt.source);
    let Some(position) = receipt.failed_closed else { return Ok(()) };
    let limit = context.verdict.standings.get(position).map(|standing| standing.limit);
    if let Some(limit) = limit {
        active.meters.count_refusal(route, context.plan_of(position), limit);
    }
    Err(Answer::StoreUnavailable)
}

/// Charges the candidate that would have admitted a denied request, so that it continues as if it were in force.
async fn charge_candidate(context: &mut RequestContext, now: Nanos) {
    let candidate = context.verdict.candidate_to_charge(&context.active.ruleset, &context.charges);
    if candidate.is_empty() {
        return;
    }
    let (positions, mut alone): (Vec<usize>, Vec<Charge>) = candidate.into_iter().unzip();
    // rare and large, so the future is boxed
    let charged = Box::pin(charge_alone(context, &mut alone, now)).await;
    for (position, charged) in positions.into_iter().zip(charged) {
        context.verdict.replace(position, charged);
    }
}

async fn charge_alone(context: &RequestContext, alone: &mut [Charge], now: Nanos) -> AllCharged {
    context.gateway.store.charge(&context.active.binding, alone, now).await.charged
}

/// Refunds the early charges of a request that is not to be charged after all.
pub(super) fn refund_early(context: &mut RequestContext) {
    if context.charges.is_empty() {
        return;
    }
    let now = context.gateway.time().now();
    PriorCharges::take(context, now).refund_except(&[]);
}

/// The early charges of a request, until its other limits have decided. The charges that are left when this is dropped are
/// refunded, except those of limits that count denials.
struct PriorCharges {
    gateway: WorkerGateway,
    active: WorkerConfig,
    taken: Vec<(Charge, Charged)>,
    now: Nanos,
}

impl PriorCharges {
    /// Takes the charges over from `context`, which has none from here on.
    fn take(context: &mut RequestContext, now: Nanos) -> Self {
        let charges = std::mem::take(&mut context.charges);
        let verdict = std::mem::replace(&mut context.verdict, Verdict::unlimited());
        (context.admission, context.cost_meter) = (Admission::None, None);
        let since = now.saturating_sub(context.charged_at);
        let charged = verdict.standings.into_iter();
        let charged =
            charged.map(|standing| Charged { decision: standing.decision, headroom: standing.headroom }.after(since));
        let (gateway, active) = (context.gateway.clone(), Rc::clone(&context.active));
        Self { gateway, active, taken: charges.into_iter().zip(charged).collect(), now }
    }

    /// The result of `charge`, if it was made early; `charge` then also holds where it was made.
    fn find(&self, charge: &mut Charge) -> Option<Charged> {
        let (made, charged) = self.taken.iter().find(|(made, _)| made.is_same_bucket(charge))?;
        *charge = made.clone();
        Some(*charged)
    }

    /// Refunds the charges that are not among `charges`.
    fn refund_except(&mut self, charges: &[Charge]) {
        let is_one = |(made, _): &(Charge, Charged)| charges.iter().any(|charge| made.is_same_bucket(charge));
        let (kept, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.taken).into_iter().partition(is_one);
        self.taken = kept;
        self.refund(others, Enforcement::takes);
    }

    fn refund(&self, charges: Vec<(Charge, Charged)>, is_refunded: fn(Enforcement, Decision) -> bool) {
        let refunds: Vec<_> = charges
            .into_iter()
            .filter(|(charge, charged)| is_refunded(charge.enforcement, charged.decision))
            .map(|(charge, charged)| Refund::of(charge, charged.headroom, self.now))
            .collect();
        if !refunds.is_empty() {
            self.gateway.store.refund(&self.active.binding, &refunds, self.now);
        }
    }
}

impl Drop for PriorCharges {
    fn drop(&mut self) {
        let taken = std::mem::take(&mut self.taken);
        self.refund(taken, Enforcement::refunds_if_denied);
    }
}
