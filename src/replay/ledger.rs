//! What requests have taken on the time of a log, and what happens when they end.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use http::HeaderName;

use super::record::{ArrivalSpan, Record};
use crate::algorithm::{Completion, Denial};
use crate::charge::{Charge, Enforcement};
use crate::gateway::active_config::limit_specs;
use crate::gateway::cost_meter::Corrections;
use crate::gateway::queue::{self, Queue, QueuePlace};
use crate::gateway::respond::CALLER_REFUSED;
use crate::ruleset::Ruleset;
use crate::ruleset::cost::{CostRule, CostSum, End, Exchange, RealCost, ReportedCost, ResponseCost};
use crate::ruleset::key::Facts;
use crate::ruleset::verdict::{Outcome, Verdict};
use crate::store::floors::charge_local;
use crate::store::local::Binding;
use crate::store::{Amendment, LocalStore};
use crate::units::Nanos;

/// How often expired keys are forgotten, in requests, and in how many parts.
const SWEEP_EVERY: u64 = 1 << 16;
const SWEEP_PARTS: usize = 16;

/// The states of all keys, and the requests that wait or run.
pub(super) struct Ledger {
    store: LocalStore,
    binding: Binding,
    queues: Vec<Queue>,
    endings: BinaryHeap<Reverse<Ending>>,
    hold: Nanos,
    /// That of the last request.
    verdict: Verdict,
    /// The names of the response header fields in records.
    told_names: Vec<HeaderName>,
    count: u64,
    swept: usize,
    /// How many requests pass whose real cost only the response told.
    pub(super) untold_costs: u64,
}

/// What happens at a later time because of a request.
struct Ending {
    at: Nanos,
    order: u64,
    /// Places in queues become free.
    _places: Vec<QueuePlace>,
    /// What ran has ended.
    held: Vec<Charge>,
    completion: Completion,
    /// Its real cost is known.
    corrections: Corrections,
}

impl PartialEq for Ending {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ending {}

impl PartialOrd for Ending {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ending {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

// === impl Ledger ===

impl Ledger {
    /// All keys fresh; `hold` is how long requests take whose lines do not tell.
    pub(super) fn new(ruleset: &Ruleset, hold: Nanos, told_names: Vec<HeaderName>) -> Self {
        let store = LocalStore::for_one_thread();
        Self {
            binding: store.bind(&limit_specs(ruleset)),
            store,
            queues: ruleset.limits.iter().map(|limit| Queue::new(&limit.over_limit, None)).collect(),
            endings: BinaryHeap::new(),
            hold,
            verdict: Verdict::unlimited(),
            told_names,
            count: 0,
            swept: 0,
            untold_costs: 0,
        }
    }

    /// Charges of new keys for which a limit had no room, by the limit's name.
    pub(super) fn overflowed(&self) -> BTreeMap<String, u64> {
        let usage = self.store.usage(&self.binding).into_iter().filter(|usage| usage.overflowed > 0);
        usage.map(|usage| (usage.name, usage.overflowed)).collect()
    }

    /// The time is `now`: what ends until then has ended.
    pub(super) fn go_to(&mut self, now: Nanos) {
        self.end_until(now);
        self.count = self.count.wrapping_add(1);
        if self.count.is_multiple_of(SWEEP_EVERY) {
            self.store.sweep(self.swept % SWEEP_PARTS, SWEEP_PARTS, now);
            self.swept = self.swept.wrapping_add(1);
        }
    }

    fn end_until(&mut self, now: Nanos) {
        while self.endings.peek().is_some_and(|Reverse(first)| first.at <= now) {
            let Some(Reverse(ending)) = self.endings.pop() else { break };
            self.store.complete(&self.binding, &ending.held, ending.completion, ending.at);
            self.store.debit(&self.binding, &ending.corrections.owed, ending.at);
            self.store.refund(&self.binding, &ending.corrections.back, ending.at);
        }
    }

    /// The first time at which a request is admitted that may have come at any time of its `arrival`; the last one, if it
    /// is admitted at none. Charges nothing.
    fn admitted_at(&mut self, ruleset: &Ruleset, charges: &[Charge], arrival: ArrivalSpan) -> Nanos {
        let asked = |charge: &Charge| Charge {
            enforcement: Enforcement { consumes: false, counts_denied: false, ..charge.enforcement },
            ..charge.clone()
        };
        let mut asked: Vec<Charge> = charges.iter().map(asked).collect();
        let mut now = arrival.earliest;
        while now < arrival.latest {
            let charged = charge_local(&self.store, &self.binding, &mut asked, now);
            self.verdict.set(ruleset, &asked, &charged);
            let next = match self.verdict.outcome {
                Outcome::Admit { wait: Nanos::ZERO } | Outcome::Deny(Denial::Never { .. }) => break,
                Outcome::Admit { .. } => match queue::enter_all(&self.queues, &self.verdict, now) {
                    Ok(_) => break,
                    Err(full) => now.saturating_add(full.retry_after),
                },
                Outcome::Deny(Denial::Later { retry_after }) => {
                    now.saturating_add(self.until_more(ruleset, &asked).unwrap_or(retry_after))
                }
                Outcome::Deny(Denial::Busy) => match self.endings.peek() {
                    Some(Reverse(first)) if first.at <= arrival.latest => first.at.max(now),
                    _ => break,
                },
            };
            now = next.min(arrival.latest);
            self.end_until(now);
        }
        now
    }

    /// How long it takes until there is more at a limit that denies and counts what it denies: its `retry_after` is that of
    /// a denial that was counted.
    fn until_more(&self, ruleset: &Ruleset, charges: &[Charge]) -> Option<Nanos> {
        let standings = charges.iter().zip(&self.verdict.standings);
        let counting = standings.filter(|(charge, standing)| {
            let rule = ruleset.limits[charge.limit].rule(&charge.rule);
            standing.enforces && !standing.decision.is_admitted() && rule.denials_count()
        });
        counting.map(|(_, standing)| standing.headroom.until_more).filter(|until| *until > Nanos::ZERO).max()
    }

    /// Whether a limit denies what is charged so now. Takes nothing.
    pub(super) fn denies(&self, charges: &[Charge], now: Nanos) -> bool {
        let asks = |charge: &Charge| Charge { enforcement: Enforcement::ASKS, ..charge.clone() };
        let mut asked: Vec<Charge> = charges.iter().map(asks).collect();
        let told = charge_local(&self.store, &self.binding, &mut asked, now);
        charges.iter().zip(told).any(|(charge, told)| charge.enforcement.enforces && !told.decision.is_admitted())
    }

    /// Charges a request that comes now, and is refused or denied, under the limits that ask nothing about its caller: it waits
    /// in no queue.
    pub(super) fn charge_early(
        &mut self,
        ruleset: &Ruleset,
        record: &Record<'_>,
        facts: &Facts<'_>,
        charges: &mut [Charge],
        now: Nanos,
    ) -> &Verdict {
        let charged = charge_local(&self.store, &self.binding, charges, now);
        self.verdict.set(ruleset, charges, &charged);
        self.charge_candidate(ruleset, charges, now);
        if let Outcome::Admit { .. } = self.verdict.outcome {
            self.run(ruleset, record, facts, charges, now, now);
        }
        &self.verdict
    }

    /// Charges what a program that is no proxy was charged, or gives it back: nothing waits and nothing ends.
    pub(super) fn charge_program(
        &mut self,
        ruleset: &Ruleset,
        (charges, gives_back): (&mut [Charge], bool),
        now: Nanos,
    ) -> &Verdict {
        if gives_back {
            for charge in &*charges {
                self.store.amend(&self.binding, charge, Amendment::Grant(charge.cost), now);
            }
            self.verdict.set(ruleset, &[], &[]);
        } else {
            let charged = charge_local(&self.store, &self.binding, charges, now);
            self.verdict.set(ruleset, charges, &charged);
        }
        &self.verdict
    }

    fn charge_candidate(&mut self, ruleset: &Ruleset, charges: &[Charge], now: Nanos) {
        if let Some((position, alone)) = self.verdict.candidate_to_charge(ruleset, charges)
            && let [charged] = *charge_local(&self.store, &self.binding, &mut [alone], now)
        {
            self.verdict.replace(position, charged);
        }
    }

    /// Charges a request that comes now under all its limits.
    pub(super) fn charge(
        &mut self,
        ruleset: &Ruleset,
        record: &Record<'_>,
        facts: &Facts<'_>,
        charges: &mut [Charge],
        arrival: ArrivalSpan,
    ) -> &Verdict {
        let now = match arrival.is_exact() {
            true => arrival.earliest,
            false => self.admitted_at(ruleset, charges, arrival),
        };
        let charged = charge_local(&self.store, &self.binding, charges, now);
        self.verdict.set(ruleset, charges, &charged);
        if let Outcome::Admit { wait } = self.verdict.outcome
            && wait > Nanos::ZERO
        {
            self.queue(charges, now, wait);
        }
        self.charge_candidate(ruleset, charges, now);
        if let Outcome::Admit { wait } = self.verdict.outcome {
            self.run(ruleset, record, facts, charges, now, now.saturating_add(wait));
        }
        &self.verdict
    }

    /// A request waits in the queues of the limits that make it; where one is full, it is denied after all.
    fn queue(&mut self, charges: &[Charge], now: Nanos, wait: Nanos) {
        match queue::enter_all(&self.queues, &self.verdict, now) {
            Ok(places) => {
                self.later(now.saturating_add(wait), places, Vec::new(), Corrections::default(), UNMEASURED);
            }
            Err(full) => {
                let taken = self.verdict.taken(charges).filter(|(charge, _)| !charge.enforcement.counts_denied);
                let full_at = |until: Nanos| now.saturating_add(until);
                let back: Vec<_> =
                    taken.map(|(charge, at)| (charge.clone(), full_at(at.headroom.until_full))).collect();
                self.store.refund(&self.binding, &back, now);
                self.verdict.deny(full.position, Denial::Later { retry_after: full.retry_after });
            }
        }
    }

    /// A request that came `now` passes, and ends when its line says.
    fn run(
        &mut self,
        ruleset: &Ruleset,
        record: &Record<'_>,
        facts: &Facts<'_>,
        charges: &[Charge],
        now: Nanos,
        passes: Nanos,
    ) {
        if charges.iter().all(|charge| ruleset.limits[charge.limit].is_settled_at_once()) {
            return;
        }
        let (mut held, mut corrections) = (Vec::new(), Corrections::default());
        for (charge, standing) in charges.iter().zip(&self.verdict.standings) {
            let limit = &ruleset.limits[charge.limit];
            let rule = limit.rule(&charge.rule);
            if rule.holds() && charge.enforcement.consumes && standing.decision.is_admitted() {
                held.push(charge.clone());
                continue;
            }
            let known = limit.cost.on_request(facts);
            if !limit.settles_later(rule, known) {
                continue;
            }
            let real = limit.real_cost(known, &exchange(record, facts), told(&limit.cost, record, &self.told_names));
            let only_response = matches!(limit.cost, CostRule::Response(_));
            self.untold_costs += u64::from(only_response && real == RealCost::Unreadable);
            corrections.add(charge, standing, now, real);
        }
        if !held.is_empty() || !corrections.is_empty() {
            let latency = record.took.map_or(self.hold, |took| took.saturating_sub(record.waited));
            let measured = record.answered.is_none() && record.status.is_some_and(|status| status < 500);
            let completion = Completion { latency, measured };
            self.later(passes.saturating_add(latency), Vec::new(), held, corrections, completion);
        }
    }

    fn later(
        &mut self,
        at: Nanos,
        places: Vec<QueuePlace>,
        held: Vec<Charge>,
        corrections: Corrections,
        completion: Completion,
    ) {
        self.endings.push(Reverse(Ending { at, order: self.count, _places: places, held, completion, corrections }));
    }
}

const UNMEASURED: Completion = Completion { latency: Nanos::ZERO, measured: false };

/// The status that is logged where the client went away.
const CLIENT_GONE: u16 = 499;

/// How a request went, as far as its line tells. What a gateway answered itself says nothing about the upstream, unless
/// that failed.
fn exchange(record: &Record<'_>, facts: &Facts<'_>) -> Exchange {
    let end = match (record.status, record.answered.as_deref()) {
        (own, Some("upstream_failed" | "upstream_timeout" | "no_healthy_node" | "upstream_full")) => {
            End::Unanswered { own }
        }
        (own, Some(cause)) if CALLER_REFUSED.contains(&cause) => End::Unanswered { own },
        (None | Some(CLIENT_GONE), _) | (_, Some(_)) => End::Abandoned,
        (Some(status), None) => {
            End::Answered { status, has_body: facts.method != "HEAD" && !matches!(status, 204 | 304), whole: true }
        }
    };
    let (request_bytes, response_bytes) = (record.request_bytes, record.response_bytes);
    Exchange {
        end,
        request_bytes: request_bytes.unwrap_or_default(),
        response_bytes: response_bytes.unwrap_or_default(),
    }
}

/// What the response's header fields in the line say of its cost. No line has the body, which may say a part of it.
fn told(cost: &CostRule, record: &Record<'_>, names: &[HeaderName]) -> ReportedCost {
    let mut sum = CostSum::default();
    if let CostRule::Response(cost) = cost
        && cost.fields.is_empty()
    {
        // no line tells the model
        let prices = cost.prices(None);
        for (name, weight) in &cost.headers {
            let of_name = |(position, _): &&(usize, _)| names.get(*position) == Some(name);
            let values = record.response_headers.iter().filter(of_name).map(|(_, value)| value.as_ref());
            sum.add_header(values, ResponseCost::price(*weight, prices));
        }
    }
    sum.told()
}
