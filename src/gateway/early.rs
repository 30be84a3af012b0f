//! Limits that ask nothing about the caller are charged before its credential is looked up, so that guessing credentials
//! costs tokens and, over a limit, nobody is asked.
//!
//! A request is charged under all its limits or under none all the same. Where a look-up has to be waited for, the early
//! limits are charged by a call of their own; what they took is given back when another limit denies, when the request goes
//! away, and when it turns out that the caller is never charged or has parameters of its own. Where the answer is known
//! without a look-up, a good credential is charged under all limits in one call, and a bad one under the early limits alone.
//! What a request took that tollgate refuses for its credential stays taken.

use std::rc::Rc;

use smallvec::SmallVec;

use crate::charge::{Charge, Charged, Source};
use crate::gateway::active_config::ActiveConfig;
use crate::gateway::admit;
use crate::gateway::caller::Caller;
use crate::gateway::cost_meter::CostMeter;
use crate::gateway::denials;
use crate::gateway::identify::{self, Identity};
use crate::gateway::request_context::{Admission, RequestContext};
use crate::gateway::respond::Answer;
use crate::gateway::{WorkerConfig, WorkerGateway};
use crate::ruleset::key::Facts;
use crate::ruleset::matcher::RouteId;
use crate::ruleset::verdict::{Outcome, Verdict};
use crate::store::Receipt;
use crate::units::Nanos;

/// Whose credential a request for `route` carries. The request is charged under the early limits before a look-up has to be
/// waited for; `Err` is what it is answered instead.
pub async fn identify(
    context: &mut RequestContext,
    route: Option<RouteId>,
    facts: &Facts<'_>,
) -> Result<Identity, Answer> {
    let active = Rc::clone(&context.active);
    let Some(rules) = &active.ruleset.customers else { return Ok(Identity::Anonymous) };
    let gateway = context.gateway.clone();
    let lookup = active.lookup(&gateway.clock);
    if let Some(known) = identify::known(rules, facts, lookup) {
        return known;
    }
    if has_early_limits(&active, route) {
        Box::pin(charge(context, route, facts)).await?;
    }
    Box::pin(identify::identify(rules, facts, lookup)).await
}

fn has_early_limits(active: &ActiveConfig, route: Option<RouteId>) -> bool {
    route.is_some_and(|route| !active.ruleset.matcher.route(route).early.is_empty())
}

/// What a request is told that is refused with `answer` before all its limits are known: it is charged under the early limits,
/// which may deny it.
pub async fn refuse(context: &mut RequestContext, route: Option<RouteId>, facts: &Facts<'_>, answer: Answer) -> Answer {
    match answer {
        Answer::Limited | Answer::StoreAway => return answer,
        // that is not the client's fault
        Answer::NoNode => {
            give_back(context);
            return answer;
        }
        _ => {}
    }
    if let Err(denied) = charge(context, route, facts).await {
        return denied;
    }
    if let (Some(route), Admission::Passed { .. }) = (route, context.admission) {
        context.active.meters.observe_verdict(&context.active.ruleset, route, None, &context.charges, &context.verdict);
    }
    answer
}

/// Charges a request for `route` under the early limits, once. `Err` is what it is answered instead.
async fn charge(context: &mut RequestContext, route: Option<RouteId>, facts: &Facts<'_>) -> Result<(), Answer> {
    let active = Rc::clone(&context.active);
    let ruleset = &active.ruleset;
    let Some(id) = route.filter(|_| has_early_limits(&active, route) && !context.is_early_charged) else {
        return Ok(());
    };
    context.is_early_charged = true;
    let mut charges = Caller::early_charges(ruleset, ruleset.matcher.route(id), facts, &active.hashers)?;
    if charges.is_empty() {
        return Ok(());
    }
    let now = context.gateway.clock.now();
    let receipt = context.gateway.store.charge(&active.binding, &mut charges, now).await;
    context.charged_at = now;
    context.verdict = Verdict::new(ruleset, &charges, &receipt.charged);
    context.cost_meter = CostMeter::new(ruleset, &charges, facts);
    context.charges = charges;
    admit::observe(context, id, &receipt)?;
    let Outcome::Deny(_) = context.verdict.outcome else {
        context.admission = Admission::Passed { at: now };
        return Ok(());
    };
    admit::charge_candidate(context, now).await;
    active.meters.observe_verdict(ruleset, id, None, &context.charges, &context.verdict);
    denials::note(context, facts, &Caller::UNKNOWN);
    Err(Answer::Limited)
}

/// Charges `charges`, all that a request is to be charged, as far as it is not charged yet, and gives back what it was charged
/// beside them. When a limit denies, none is charged.
pub async fn charge_all(context: &mut RequestContext, charges: &mut [Charge], now: Nanos) -> Receipt {
    let active = Rc::clone(&context.active);
    let gateway = context.gateway.clone();
    if context.charges.is_empty() {
        return match gateway.store.charge_in_memory(&active.binding, charges, now) {
            Some(receipt) => receipt,
            None => Box::pin(gateway.store.charge(&active.binding, charges, now)).await,
        };
    }
    Box::pin(charge_the_rest(context, charges, now)).await
}

/// The same where some of them are charged already.
async fn charge_the_rest(context: &mut RequestContext, charges: &mut [Charge], now: Nanos) -> Receipt {
    let (active, gateway) = (Rc::clone(&context.active), context.gateway.clone());
    let mut early = Early::take(context, now);
    let mut told: SmallVec<[Option<Charged>; 4]> = charges.iter_mut().map(|charge| early.find(charge)).collect();
    early.give_back_all_but(charges);
    let open: SmallVec<[usize; 4]> = (0..charges.len()).filter(|position| told[*position].is_none()).collect();
    let mut rest: Vec<Charge> = open.iter().map(|position| charges[*position].clone()).collect();
    let mut receipt = Receipt { charged: SmallVec::new(), source: Source::Local, refused: None };
    if !rest.is_empty() {
        receipt = gateway.store.charge(&active.binding, &mut rest, now).await;
    }
    let denies =
        |(charge, charged): (&Charge, &Charged)| charge.enforcement.enforces && !charged.decision.is_admitted();
    let denied = receipt.refused.is_some() || rest.iter().zip(&receipt.charged).any(denies);
    for ((position, charge), charged) in open.iter().zip(rest).zip(&receipt.charged) {
        charges[*position] = charge;
        told[*position] = Some(*charged);
    }
    if !denied {
        early.taken.clear();
    }
    let refused = receipt.refused.and_then(|refused| open.get(refused).copied());
    Receipt { charged: told.into_iter().flatten().collect(), source: receipt.source, refused }
}

/// Gives back what a request was charged early: it turns out to be none that is charged.
pub fn give_back(context: &mut RequestContext) {
    if context.charges.is_empty() {
        return;
    }
    let now = context.gateway.clock.now();
    Early::take(context, now).give_back_all_but(&[]);
}

/// What a request was charged early, until it is known whether its other limits admit it. What is left in it when it is dropped
/// is given back, but for what counts although it is denied.
struct Early {
    gateway: WorkerGateway,
    active: WorkerConfig,
    taken: Vec<(Charge, Charged)>,
    now: Nanos,
}

impl Early {
    /// Takes it over from `context`, which has no charges from here on.
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

    /// What came of `charge`, if it was made; it then notes where.
    fn find(&self, charge: &mut Charge) -> Option<Charged> {
        let (made, charged) = self.taken.iter().find(|(made, _)| is_same(made, charge))?;
        *charge = made.clone();
        Some(*charged)
    }

    /// Gives back what is not one of `charges`.
    fn give_back_all_but(&mut self, charges: &[Charge]) {
        let is_one = |(made, _): &(Charge, Charged)| charges.iter().any(|charge| is_same(made, charge));
        let (kept, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.taken).into_iter().partition(is_one);
        self.taken = kept;
        self.refund(others, |_| true);
    }

    fn refund(&self, charges: Vec<(Charge, Charged)>, goes_back: impl Fn(&Charge) -> bool) {
        let took =
            |(charge, charged): &(Charge, Charged)| charge.enforcement.consumes && charged.decision.is_admitted();
        let back = charges.into_iter().filter(took).filter(|(charge, _)| goes_back(charge));
        let full_at = |charged: Charged| self.now.saturating_add(charged.headroom.until_full);
        let back: Vec<_> = back.map(|(charge, charged)| (charge, full_at(charged))).collect();
        if !back.is_empty() {
            self.gateway.store.refund(&self.active.binding, &back, self.now);
        }
    }
}

impl Drop for Early {
    fn drop(&mut self) {
        let taken = std::mem::take(&mut self.taken);
        self.refund(taken, |charge| !charge.enforcement.counts_denied);
    }
}

/// Whether two charges of a request are the same, wherever they were taken.
fn is_same(one: &Charge, other: &Charge) -> bool {
    (one.limit, one.key) == (other.limit, other.key) && one.rule == other.rule
}
