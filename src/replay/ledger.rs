//! Charges the requests of a log on the log's time, and settles their charges when they end.

use std::collections::{BTreeMap, HashMap};
use std::slice;

use http::HeaderName;

use super::record::{ArrivalSpan, Record};
use crate::algorithm::{AlgorithmName, Completion, Decision, Denial, Rule};
use crate::charge::{AllCharged, Charge, Enforcement, Refund, is_denied};
use crate::gateway::active_config::limit_specs;
use crate::gateway::cost_meter::Corrections;
use crate::gateway::queue::{self, Queue, QueuePlace};
use crate::gateway::respond::CALLER_REFUSAL_CAUSES;
use crate::ruleset::Ruleset;
use crate::ruleset::cost::{
    CompletedRequest, CostRule, CostSum, RealCost, ReportedCost, RequestEnd, ResponseCost, UpstreamResponse,
};
use crate::ruleset::key::Facts;
use crate::ruleset::verdict::Verdict;
use crate::store::floors::charge_local;
use crate::store::local::Binding;
use crate::store::{Amendment, LocalStore};
use crate::units::{LimitKey, Nanos};

/// The number of requests between two sweeps of expired keys, each of one part of the store, and the number of parts.
const SWEEP_EVERY: u64 = 1 << 16;
const SWEEP_PARTS: usize = 16;

/// The states of all keys, and the requests that wait or run.
pub(super) struct Ledger {
    store: LocalStore,
    binding: Binding,
    queues: Vec<Queue>,
    /// By time; at one time in the order in which they were scheduled.
    completions: BTreeMap<(Nanos, u64), ScheduledCompletion>,
    /// The number of ends that were scheduled.
    scheduled: u64,
    hold: Nanos,
    /// The verdict on the last request.
    verdict: Verdict,
    /// The names of the response header fields in records.
    response_header_names: Vec<HeaderName>,
    count: u64,
    swept: usize,
    /// The end of the first window of each key whose windows start with requests, by limit and key; `None` if uncertain
    /// denials are denials too.
    first_windows: Option<HashMap<(usize, LimitKey), Nanos>>,
    /// How many admitted requests have a real cost that only their response told.
    pub(super) missing_costs: u64,
}

/// The end of a request's wait, or of the request itself.
struct ScheduledCompletion {
    /// The places in queues that become free.
    _places: Vec<QueuePlace>,
    /// The charges whose slots become free.
    held: Vec<Charge>,
    completion: Completion,
    /// The refunds and debits that settle the request's real cost.
    corrections: Corrections,
}

// === impl Ledger ===

impl Ledger {
    /// A ledger in which all keys are fresh; `hold` is the duration of requests whose lines tell none.
    pub(super) fn new(ruleset: &Ruleset, hold: Nanos, response_header_names: Vec<HeaderName>) -> Self {
        let store = LocalStore::for_one_thread();
        Self {
            binding: store.bind(&limit_specs(ruleset)),
            store,
            queues: ruleset.limits.iter().map(|limit| Queue::new(&limit.over_limit, None)).collect(),
            completions: BTreeMap::new(),
            scheduled: 0,
            hold,
            verdict: Verdict::unlimited(),
            response_header_names,
            count: 0,
            swept: 0,
            first_windows: None,
            missing_costs: 0,
        }
    }

    /// Makes limits let requests pass whose denials are not certain, because times of earlier requests are not exact.
    pub(super) fn deny_only_for_certain(&mut self) {
        self.first_windows = Some(HashMap::new());
    }

    /// Charges of new keys for which a limit had no room, by the limit's name.
    pub(super) fn overflowed(&self) -> BTreeMap<String, u64> {
        let usage = self.store.usage(&self.binding).into_iter().filter(|usage| usage.overflowed > 0);
        usage.map(|usage| (usage.name, usage.overflowed)).collect()
    }

    /// Moves the time on to `now`: ends the requests that end until then, and sweeps expired keys from time to time.
    pub(super) fn advance_to(&mut self, now: Nanos) {
        self.complete_until(now);
        self.count = self.count.wrapping_add(1);
        if self.count.is_multiple_of(SWEEP_EVERY) {
            self.store.sweep(self.swept % SWEEP_PARTS, SWEEP_PARTS, now);
            self.swept = self.swept.wrapping_add(1);
        }
    }

    fn complete_until(&mut self, now: Nanos) {
        while let Some(first) = self.completions.first_entry().filter(|first| first.key().0 <= now) {
            let ((at, _), ending) = first.remove_entry();
            self.store.complete(&self.binding, &ending.held, ending.completion, at);
            self.store.debit(&self.binding, &ending.corrections.debits, at);
            self.store.refund(&self.binding, &ending.corrections.refunds, at);
        }
    }

    /// The first time within its `arrival` at which a request is admitted; if there is none, a time at which it is denied.
    /// Charges nothing. The verdict is that at this time.
    fn admitted_at(&mut self, ruleset: &Ruleset, charges: &[Charge], arrival: ArrivalSpan) -> Nanos {
        let asked = |charge: &Charge| Charge {
            enforcement: Enforcement { consumes: false, counts_denied: false, ..charge.enforcement },
            ..charge.clone()
        };
        let mut asked: Vec<Charge> = charges.iter().map(asked).collect();
        let mut now = arrival.earliest;
        loop {
            let charged = charge_local(&self.store, &self.binding, &mut asked, now);
            self.verdict.set(ruleset, &asked, &charged);
            let next = match self.verdict.outcome {
                _ if now >= arrival.latest => break,
                Decision::Admit { wait: Nanos::ZERO } | Decision::Deny(Denial::Never { .. }) => break,
                Decision::Admit { .. } => match queue::enter_all(&self.queues, &self.verdict, now) {
                    Ok(_) => break,
                    Err(full) => now.saturating_add(full.retry_after),
                },
                Decision::Deny(Denial::Later { retry_after }) => {
                    now.saturating_add(self.until_more(ruleset, &asked).unwrap_or(retry_after))
                }
                Decision::Deny(Denial::Busy) => match self.completions.first_key_value() {
                    Some(((first, _), _)) if *first <= arrival.latest => now.max(*first),
                    _ => break,
                },
            };
            now = next.min(arrival.latest);
            self.complete_until(now);
        }
        now
    }

    /// The time until a denying limit that also counts denials has more tokens; `None` if no such limit denies. The
    /// `retry_after` of such a limit assumes that the denial was counted.
    fn until_more(&self, ruleset: &Ruleset, charges: &[Charge]) -> Option<Nanos> {
        let standings = charges.iter().zip(&self.verdict.standings);
        let counting =
            standings.filter(|(charge, standing)| standing.denies() && ruleset.rule_of_charge(charge).denials_count());
        counting.map(|(_, standing)| standing.headroom.until_more).filter(|until| *until > Nanos::ZERO).max()
    }

    /// The verdict on the last request.
    pub(super) const fn verdict(&self) -> &Verdict {
        &self.verdict
    }

    /// Whether a limit denies these charges now. Takes no tokens.
    pub(super) fn would_deny(&self, charges: &[Charge], now: Nanos) -> bool {
        let mut asked: Vec<Charge> = charges.iter().map(Charge::dry_run).collect();
        let charged = charge_local(&self.store, &self.binding, &mut asked, now);
        is_denied(charges, &charged)
    }

    /// Charges a request that comes now, and is refused or denied, under the limits that need no caller. It waits in no
    /// queue.
    pub(super) fn charge_early(
        &mut self,
        ruleset: &Ruleset,
        record: &Record,
        facts: &Facts<'_>,
        charges: &mut [Charge],
        arrival: ArrivalSpan,
    ) -> &Verdict {
        if self.first_windows.is_some() {
            return self.charge_for_certain(ruleset, charges, arrival);
        }
        let now = arrival.earliest;
        let charged = charge_local(&self.store, &self.binding, charges, now);
        self.verdict.set(ruleset, charges, &charged);
        self.charge_candidate(ruleset, charges, now);
        if self.verdict.outcome.is_admitted() {
            self.schedule_end(ruleset, record, facts, charges, now, now);
        }
        &self.verdict
    }

    /// Repeats the charges of a program that is not a proxy, or gives tokens back: such charges never wait or end later.
    pub(super) fn charge_program(
        &mut self,
        ruleset: &Ruleset,
        (charges, is_refund): (&mut [Charge], bool),
        now: Nanos,
    ) -> &Verdict {
        if is_refund {
            for charge in &*charges {
                // as the gateway does, it gives nothing back where the limit's table is full
                let (Ok(()) | Err(_)) = self.store.amend(&self.binding, charge, Amendment::Grant(charge.cost), now);
            }
            self.verdict.set(ruleset, &[], &[]);
        } else {
            let charged = charge_local(&self.store, &self.binding, charges, now);
            self.verdict.set(ruleset, charges, &charged);
        }
        &self.verdict
    }

    fn charge_candidate(&mut self, ruleset: &Ruleset, charges: &[Charge], now: Nanos) {
        let candidate = self.verdict.candidate_to_charge(ruleset, charges);
        if candidate.is_empty() {
            return;
        }
        let (positions, mut alone): (Vec<usize>, Vec<Charge>) = candidate.into_iter().unzip();
        let charged = charge_local(&self.store, &self.binding, &mut alone, now);
        for (position, charged) in positions.into_iter().zip(charged) {
            self.verdict.replace(position, charged);
        }
    }

    /// Charges a request that comes now under all its limits.
    pub(super) fn charge(
        &mut self,
        ruleset: &Ruleset,
        record: &Record,
        facts: &Facts<'_>,
        charges: &mut [Charge],
        arrival: ArrivalSpan,
    ) -> &Verdict {
        if self.first_windows.is_some() {
            return self.charge_for_certain(ruleset, charges, arrival);
        }
        let now = match arrival.is_exact() {
            true => arrival.earliest,
            false => self.admitted_at(ruleset, charges, arrival),
        };
        let charged = charge_local(&self.store, &self.binding, charges, now);
        self.verdict.set(ruleset, charges, &charged);
        match self.verdict.outcome {
            Decision::Admit { wait: Nanos::ZERO } => {}
            Decision::Admit { wait } => self.enqueue(ruleset, charges, now, wait),
            Decision::Deny(_) => queue::await_places(&self.queues, &mut self.verdict, now),
        }
        self.charge_candidate(ruleset, charges, now);
        if let Decision::Admit { wait } = self.verdict.outcome {
            self.schedule_end(ruleset, record, facts, charges, now, now.saturating_add(wait));
        }
        &self.verdict
    }

    /// Charges a request under each of its limits as if that were its only one, and at its own best time. Whenever the
    /// requests came, the limit or others in its place deny at least as many.
    fn charge_for_certain(&mut self, ruleset: &Ruleset, charges: &mut [Charge], arrival: ArrivalSpan) -> &Verdict {
        let mut all = AllCharged::new();
        for charge in &mut *charges {
            self.pass_uncertain(ruleset, charge, arrival);
            let now = self.admitted_at(ruleset, slice::from_ref(charge), arrival);
            charge.enforcement.consumes &= !self.verdict.is_denied();
            all.extend(charge_local(&self.store, &self.binding, slice::from_mut(charge), now));
            if let (false, Some(uncertain)) = (charge.enforcement.enforces, all.last_mut()) {
                uncertain.decision = Decision::ADMIT;
            }
        }
        self.verdict.set(ruleset, charges, &all);
        &self.verdict
    }

    /// Keeps a limit from taking tokens for a request that is late, and where not all requests take the same: others could
    /// have had these tokens. Keeps limits whose later windows depend on the times of earlier requests from denying one that
    /// comes after the first window of its key.
    fn pass_uncertain(&mut self, ruleset: &Ruleset, charge: &mut Charge, arrival: ArrivalSpan) {
        let limit = &ruleset.limits[charge.limit];
        let is_same_for_all = matches!(limit.cost, CostRule::Fixed(_)) && limit.is_settled_at_once();
        let enforcement = &mut charge.enforcement;
        enforcement.enforces &= !arrival.is_late;
        enforcement.consumes &= !arrival.is_late && is_same_for_all;
        enforcement.counts_denied = false;
        if let (Some(window), Some(first_windows)) = (certain_window(limit.rule(&charge.rule)), &mut self.first_windows)
        {
            let ends = if arrival.is_late { Nanos::ZERO } else { arrival.earliest.saturating_add(window) };
            let end = first_windows.entry((charge.limit, charge.key)).or_insert(ends);
            *end = ends.min(*end);
            enforcement.enforces &= arrival.latest < *end;
        }
    }

    /// Puts a request into the queues of the limits that delay it. If a queue is full, refunds and denies the request.
    fn enqueue(&mut self, ruleset: &Ruleset, charges: &[Charge], now: Nanos, wait: Nanos) {
        match queue::enter_all(&self.queues, &self.verdict, now) {
            Ok(places) => {
                self.push_completion(now.saturating_add(wait), places, Vec::new(), Corrections::default(), UNMEASURED);
            }
            Err(full) => {
                let taken = self.verdict.consuming_charges(charges);
                let refunds: Vec<_> = taken
                    .filter(|(charge, standing)| charge.enforcement.refunds_if_denied(standing.decision))
                    .map(|(charge, standing)| Refund::of(charge.clone(), standing.headroom, now))
                    .collect();
                self.store.refund(&self.binding, &refunds, now);
                self.verdict.deny(full.position, Denial::Later { retry_after: full.retry_after });
                self.verdict.await_kept_charges(ruleset, charges);
            }
        }
    }

    /// Passes a request that came at `now` on at the time `passes`, and schedules its end by the duration in its line.
    fn schedule_end(
        &mut self,
        ruleset: &Ruleset,
        record: &Record,
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
            if rule.holds_slots() && charge.enforcement.takes(standing.decision) {
                held.push(charge.clone());
                continue;
            }
            let known = limit.cost.on_request(facts);
            if !limit.settles_later(rule, known) {
                continue;
            }
            let real = limit.real_cost(
                known,
                &exchange(record, facts),
                reported_cost(&limit.cost, record, &self.response_header_names),
            );
            let only_response = matches!(limit.cost, CostRule::Response(_));
            self.missing_costs += u64::from(only_response && real == RealCost::Unreadable);
            corrections.add(charge, standing, now, real);
        }
        if !held.is_empty() || !corrections.is_empty() {
            let latency = record.took.map_or(self.hold, |took| took.saturating_sub(record.waited));
            let measured = record.answered.is_none() && record.status.is_some_and(|status| status < 500);
            let completion = Completion { latency, measured };
            self.push_completion(passes.saturating_add(latency), Vec::new(), held, corrections, completion);
        }
    }

    fn push_completion(
        &mut self,
        at: Nanos,
        places: Vec<QueuePlace>,
        held: Vec<Charge>,
        corrections: Corrections,
        completion: Completion,
    ) {
        let ending = ScheduledCompletion { _places: places, held, completion, corrections };
        self.completions.insert((at, self.scheduled), ending);
        self.scheduled = self.scheduled.wrapping_add(1);
    }
}

/// For rules under which an earlier request may bring about a denial of a later one: how long after a key's first request
/// the denials are certain all the same. `None` for other rules: under these, a request that comes earlier denies no more.
fn certain_window(rule: &Rule) -> Option<Nanos> {
    match rule.name() {
        AlgorithmName::QuotaReset | AlgorithmName::QuotaLinear => rule.policy().window,
        AlgorithmName::Cycle => rule.arguments().duration("period").ok(),
        // the longer a key rests, the colder it is
        AlgorithmName::SmoothWarmingUp => Some(Nanos::ZERO),
        _ => None,
    }
}

const UNMEASURED: Completion = Completion { latency: Nanos::ZERO, measured: false };

/// The status in the log of a request whose client went away.
const CLIENT_GONE: u16 = 499;

/// How a request went, as far as its line tells. A response that the gateway itself made says nothing about the upstream,
/// unless the upstream failed.
fn exchange(record: &Record, facts: &Facts<'_>) -> CompletedRequest {
    let end = match (record.status, record.answered.as_deref()) {
        (own, Some("upstream_failed" | "upstream_timeout" | "no_healthy_node" | "upstream_full")) => {
            RequestEnd::NoResponse { own }
        }
        (own, Some(cause)) if CALLER_REFUSAL_CAUSES.contains(&cause) => RequestEnd::NoResponse { own },
        (None | Some(CLIENT_GONE), _) | (_, Some(_)) => RequestEnd::ClientAborted,
        (Some(status), None) => RequestEnd::Answered(UpstreamResponse::of(facts.method, status, true)),
    };
    let (request_bytes, response_bytes) = (record.request_bytes, record.response_bytes);
    CompletedRequest {
        end,
        request_bytes: request_bytes.unwrap_or_default(),
        response_bytes: response_bytes.unwrap_or_default(),
    }
}

/// The cost that the response's header fields in the line report. No line has the body, which may hold a part of it.
fn reported_cost(cost: &CostRule, record: &Record, names: &[HeaderName]) -> ReportedCost {
    let mut sum = CostSum::default();
    if let CostRule::Response(cost) = cost
        && cost.fields.is_empty()
    {
        // no line tells the model
        let prices = cost.prices(None);
        for (name, weight) in &cost.headers {
            let of_name = |(position, _): &&(usize, _)| names.get(*position) == Some(name);
            let values = record.response_headers.iter().filter(of_name).map(|(_, value)| value.as_str());
            sum.add_header(values, ResponseCost::price(*weight, prices));
        }
    }
    sum.total()
}
