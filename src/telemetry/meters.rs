//! The resolved metric handles of one ruleset, on which its requests count.

use std::sync::Arc;

use prometheus::IntCounter;

use crate::algorithm::{Decision, Denial};
use crate::charge::{Charge, ChargeSource, DecisionSource};
use crate::ruleset::limit::{Limit, OverLimit};
use crate::ruleset::matcher::RouteId;
use crate::ruleset::upstream::UpstreamId;
use crate::ruleset::verdict::{Standing, Verdict};
use crate::ruleset::{LimitId, PlanId, Ruleset};
use crate::telemetry::Telemetry;
use crate::telemetry::names::{NO_PLAN, NO_ROUTE};
use crate::telemetry::striped::{HotCounter, HotHistogram};
use crate::units::Nanos;

mod grid;
mod route;
mod totals;

pub use route::RouteMeters;
pub use totals::{Counted, RequestTotals, Total};

use grid::{Grid, LazyMetric};
use route::Outcomes;

/// The share of a quota from which a key counts as near its limit.
const NEAR: f64 = 0.8;

/// Up to this many combinations of route, limit and plan have their series from the start; in larger rulesets the first
/// request that counts on a series creates it.
const MAX_PREPARED: usize = 10_000;

/// Handles for every route, limit and plan of one ruleset.
pub struct Meters {
    telemetry: Telemetry,
    ruleset: Arc<Ruleset>,
    routes: Vec<RouteMeters>,
    no_route: RouteMeters,
    upstreams: Vec<HotHistogram>,
    /// The meters by limit and plan.
    limits: Grid<LimitMeters>,
    /// The comparisons by candidate and plan.
    candidates: Grid<CandidateComparison>,
    /// The counters of invalid costs, by limit; only for limits whose costs are in the response.
    costs_invalid: Vec<Option<IntCounter>>,
    /// The durations of decisions, by the position of their source.
    decisions: [HotHistogram; DecisionSource::ALL.len()],
}

/// The decisions of a limit and its candidate on the same requests: by the limit's decision, then by the candidate's.
#[derive(Debug)]
struct CandidateComparison([[IntCounter; 3]; 3]);

/// The meters of one limit and plan, over all routes.
struct LimitMeters {
    tokens_admitted: HotCounter,
    tokens_over: HotCounter,
    tokens_refunded: LazyMetric<HotCounter>,
    tokens_debited: LazyMetric<HotCounter>,
    near: HotCounter,
    bans: LazyMetric<HotCounter>,
    /// The warnings by mark.
    warnings: Box<[(u8, HotCounter)]>,
    utilization: HotHistogram,
    wait: LazyMetric<HotHistogram>,
    retry_after: HotHistogram,
}

// === impl Meters ===

impl Meters {
    /// The meters of requests under `ruleset`.
    pub fn new(telemetry: &Telemetry, ruleset: &Arc<Ruleset>) -> Self {
        let plans = ruleset.plans.len().saturating_add(1);
        let routes = ruleset.matcher.all().iter();
        let costs_invalid = ruleset.limits.iter().map(|limit| {
            let counter = || telemetry.limit_cost_invalid.with_label_values(&[&limit.name]);
            (limit.cost.is_in_response() && limit.candidate_of.is_none()).then(counter)
        });
        let meters = Self {
            telemetry: telemetry.clone(),
            ruleset: Arc::clone(ruleset),
            routes: routes
                .map(|route| RouteMeters::new(telemetry, &route.name, Grid::new(route.limits.len(), plans)))
                .collect(),
            no_route: RouteMeters::new(telemetry, NO_ROUTE, Grid::new(0, plans)),
            upstreams: ruleset
                .upstreams
                .iter()
                .map(|upstream| telemetry.http_upstream_duration.with_label_values(&[&upstream.name]))
                .collect(),
            limits: Grid::new(ruleset.limits.len(), plans),
            candidates: Grid::new(ruleset.limits.len(), plans),
            costs_invalid: costs_invalid.collect(),
            decisions: DecisionSource::ALL
                .map(|source| telemetry.decision_duration.with_label_values(&[source.as_str()])),
        };
        let pairs: usize = ruleset.matcher.all().iter().map(|route| route.limits.len().saturating_add(1)).sum();
        if pairs.saturating_mul(plans) <= MAX_PREPARED && meters.limits.len() <= MAX_PREPARED {
            meters.prepare();
        }
        meters
    }

    /// Creates all series that are to be expected, so that they begin at zero.
    fn prepare(&self) {
        for upstream in &self.ruleset.upstreams {
            if upstream.ejection.is_some() {
                self.telemetry.upstream_ejections.with_label_values(&[&upstream.name]);
            }
            if upstream.max_requests.is_some() {
                self.telemetry.upstream_refused.with_label_values(&[&upstream.name]);
            }
        }
        for (id, route) in self.ruleset.matcher.all().iter().enumerate() {
            self.route(Some(RouteId(id))).prepare_duration();
            for limit in &route.limits {
                for (plan, _) in self.ruleset.limits[limit.0].plan_rules() {
                    self.outcomes(RouteId(id), *limit, plan);
                }
            }
        }
        for (id, limit) in self.ruleset.limits.iter().enumerate() {
            for (plan, _) in limit.plan_rules() {
                self.limit(LimitId(id), plan);
                self.comparison(LimitId(id), plan);
            }
        }
    }

    /// The meters of a route, or of requests that matched none.
    pub fn route(&self, route: Option<RouteId>) -> &RouteMeters {
        route.and_then(|route| self.routes.get(route.0)).unwrap_or(&self.no_route)
    }

    /// Records the time that an upstream took to begin its response.
    pub fn observe_upstream(&self, upstream: UpstreamId, duration: Nanos) {
        if let Some(histogram) = self.upstreams.get(upstream.0) {
            histogram.observe(duration.as_secs_f64());
        }
    }

    /// Counts a node of an upstream that was ejected.
    pub fn count_ejection(&self, upstream: &str) {
        self.telemetry.upstream_ejections.with_label_values(&[upstream]).inc();
    }

    /// Counts a request that was refused because the upstream has its maximum number of requests.
    pub fn count_upstream_full(&self, upstream: &str) {
        self.telemetry.upstream_refused.with_label_values(&[upstream]).inc();
    }

    /// Records the time that it took to decide the charges of a request at `source`.
    pub fn observe_decision(&self, source: DecisionSource, took: Nanos) {
        if let Some(histogram) = self.decisions.get(source as usize) {
            histogram.observe(took.as_secs_f64());
        }
    }

    /// Counts an answer to a question of another proxy.
    pub fn count_answer(&self, serves: &str, result: &str) {
        self.telemetry.decisions.with_label_values(&[serves, result]).inc();
    }

    /// Counts a span that was dropped because too many spans wait.
    pub fn count_dropped_span(&self) {
        self.telemetry.spans.ended("dropped", 1);
    }

    /// Counts a connection that was closed to keep within bounds, for this reason.
    pub fn count_shed_connection(&self, reason: &str) {
        self.telemetry.connections_shed.with_label_values(&[reason]).inc();
    }

    /// Counts a request that was refused because the decision of `limit` cannot be known.
    pub fn count_refusal(&self, route: RouteId, plan: Option<PlanId>, limit: LimitId) {
        if let Some(outcomes) = self.outcomes(route, limit, plan) {
            outcomes.error_denied.get().inc();
        }
    }

    /// Counts the outcome of a request under each limit of its route; `plan_of` gives the plan of the charge at a position.
    pub fn observe_verdict(
        &self,
        route: RouteId,
        plan_of: impl Fn(usize) -> Option<PlanId>,
        charges: &[Charge],
        verdict: &Verdict,
    ) {
        for (position, live) in verdict.candidate_comparisons(&self.ruleset) {
            let standing = &verdict.standings[position];
            if let Some(CandidateComparison(counters)) = self.comparison(standing.limit, plan_of(position)) {
                counters[decision_index(live)][decision_index(standing.decision)].inc();
            }
        }
        for (position, (standing, charge)) in verdict.standings.iter().zip(charges).enumerate() {
            let (plan, reported) = (plan_of(position), verdict.tightest == Some(position));
            if let Some(outcomes) = self.outcomes(route, standing.limit, plan) {
                outcomes.count(verdict, standing.decision, charge, reported);
            }
            if let Some(limit) = self.limit(standing.limit, plan) {
                limit.count(verdict, standing, charge, reported);
            }
        }
    }

    /// Counts a request that is exempt from the limits of its route. The plan of a preflight is unknown: it counts for every
    /// limit that applies to any plan.
    pub fn count_bypass(&self, route: RouteId, plan: Option<PlanId>) {
        for id in &self.ruleset.matcher.route(route).limits {
            let limit = &self.ruleset.limits[id.0];
            let is_exempt = limit.plan_rule(plan).is_some() || plan.is_none() && limit.plan_rules().next().is_some();
            if is_exempt && let Some(outcomes) = self.outcomes(route, *id, plan) {
                outcomes.bypassed.get().inc();
            }
        }
    }

    /// Counts the tokens of `charge`, which a request under `plan` takes in addition to those on its arrival.
    pub fn count_charged_tokens(&self, plan: Option<PlanId>, charge: &Charge) {
        if let Some(limit) = self.limit(LimitId(charge.limit), plan) {
            limit.tokens_admitted.inc_by(charge.cost);
        }
    }

    /// Counts the tokens of these charges, which a request under `plan` gets back.
    pub fn count_refunded_tokens<'c>(&self, plan: Option<PlanId>, charges: impl IntoIterator<Item = &'c Charge>) {
        for charge in charges {
            if let Some(limit) = self.limit(LimitId(charge.limit), plan) {
                limit.tokens_refunded.get().inc_by(charge.cost);
            }
        }
    }

    /// Counts the tokens of these charges, which a request under `plan` owes.
    pub fn count_debited_tokens<'c>(&self, plan: Option<PlanId>, charges: impl IntoIterator<Item = &'c Charge>) {
        for charge in charges {
            if let Some(limit) = self.limit(LimitId(charge.limit), plan) {
                limit.tokens_debited.get().inc_by(charge.cost);
            }
        }
    }

    /// Counts a ban by `limit` of the key of a request under `plan`.
    pub fn count_ban(&self, limit: LimitId, plan: Option<PlanId>) {
        if let Some(limit) = self.limit(limit, plan) {
            limit.bans.get().inc();
        }
    }

    /// Counts a response that did not report its cost under `limit`.
    pub fn count_invalid_cost(&self, limit: LimitId) {
        if let Some(Some(counter)) = self.costs_invalid.get(limit.0) {
            counter.inc();
        }
    }

    /// The outcomes of requests of `route` and `plan` under a limit of the route.
    fn outcomes(&self, route: RouteId, limit: LimitId, plan: Option<PlanId>) -> Option<&Outcomes> {
        let place = self.ruleset.matcher.route(route).limits.iter().position(|id| *id == limit)?;
        let (limit, meters) = (self.live(limit)?, self.route(Some(route)));
        let make = || Outcomes::new(&self.telemetry, &meters.name, limit, plan_label(&self.ruleset, plan));
        meters.outcomes.get(place, plan, make)
    }

    fn limit(&self, limit: LimitId, plan: Option<PlanId>) -> Option<&LimitMeters> {
        let live = self.live(limit)?;
        self.limits.get(limit.0, plan, || LimitMeters::new(&self.telemetry, live, plan_label(&self.ruleset, plan)))
    }

    fn comparison(&self, candidate: LimitId, plan: Option<PlanId>) -> Option<&CandidateComparison> {
        let live = self.live(self.ruleset.limits.get(candidate.0)?.candidate_of?)?;
        let plan_label = plan_label(&self.ruleset, plan);
        self.candidates.get(candidate.0, plan, || CandidateComparison::new(&self.telemetry, &live.name, plan_label))
    }

    /// The limit `limit`; `None` for a candidate, which has no series of its own.
    fn live(&self, limit: LimitId) -> Option<&Limit> {
        self.ruleset.limits.get(limit.0).filter(|limit| limit.candidate_of.is_none())
    }
}

/// The name of a plan, as a label.
pub(super) fn plan_label(ruleset: &Ruleset, plan: Option<PlanId>) -> &str {
    ruleset.plan_name(plan).unwrap_or(NO_PLAN)
}

/// The outcome of a request over this limit, as a label.
const fn over(limit: &Limit) -> &'static str {
    match limit.over_limit {
        _ if limit.shadow => "shadow_denied",
        OverLimit::Deny(_) | OverLimit::Delay { .. } => "denied",
        OverLimit::Divert(_) => "diverted",
        OverLimit::Mark(_) => "marked",
    }
}

/// Whether the limit delays requests.
const fn delays(limit: &Limit) -> bool {
    matches!(limit.over_limit, OverLimit::Delay { .. })
}

/// Whether the limit bans keys.
const fn bans(limit: &Limit) -> bool {
    limit.ban.is_some() && limit.enforces()
}

/// The decisions of a limit, as labels.
const DECISION_LABELS: [&str; 3] = ["admitted", "delayed", "denied"];

/// The position of a decision in [`DECISION_LABELS`].
const fn decision_index(decision: Decision) -> usize {
    match decision {
        Decision::Admit { wait: Nanos::ZERO } => 0,
        Decision::Admit { .. } => 1,
        Decision::Deny(_) => 2,
    }
}

// === impl CandidateComparison ===

impl CandidateComparison {
    fn new(telemetry: &Telemetry, limit: &str, plan: &str) -> Self {
        let counter =
            |live, candidate| telemetry.limit_candidate_requests.with_label_values(&[limit, plan, live, candidate]);
        Self(DECISION_LABELS.map(|live| DECISION_LABELS.map(|candidate| counter(live, candidate))))
    }
}

// === impl LimitMeters ===

impl LimitMeters {
    fn new(telemetry: &Telemetry, limit: &Limit, plan: &str) -> Self {
        let (name, settles) = (limit.name.as_str(), limit.cost.is_in_response());
        let warning = |at: &u8| (*at, telemetry.limit_warnings.with_label_values(&[name, plan, &at.to_string()]));
        Self {
            tokens_admitted: telemetry.limit_tokens.with_label_values(&[name, plan, "admitted"]),
            tokens_over: telemetry.limit_tokens.with_label_values(&[name, plan, over(limit)]),
            tokens_refunded: LazyMetric::new(&telemetry.limit_tokens, &[name, plan, "refunded"]).expected(settles),
            tokens_debited: LazyMetric::new(&telemetry.limit_tokens, &[name, plan, "debited"]).expected(settles),
            near: telemetry.limit_near.with_label_values(&[name, plan]),
            bans: LazyMetric::new(&telemetry.limit_bans, &[name, plan]).expected(bans(limit)),
            warnings: limit.warn_at.iter().map(warning).collect(),
            utilization: telemetry.limit_utilization.with_label_values(&[name, plan]),
            wait: LazyMetric::new(&telemetry.limit_wait, &[name]).expected(delays(limit)),
            retry_after: telemetry.limit_retry_after.with_label_values(&[name]),
        }
    }

    fn count(&self, verdict: &Verdict, standing: &Standing, charge: &Charge, reported: bool) {
        let outcome = verdict.outcome;
        let passed = outcome.is_admitted() && standing.decision.is_admitted();
        let was_asked = !verdict.banned && charge.taken_from != ChargeSource::FailedOpen;
        if charge.enforcement.counts_denied && !passed && was_asked {
            self.tokens_debited.get().inc_by(charge.cost);
        }
        if outcome.is_admitted() && !self.warnings.is_empty() {
            let used = standing.used_percent();
            let reached = self.warnings.iter().take_while(|(at, _)| *at <= used);
            reached.for_each(|(_, counter)| counter.inc());
        }
        match (outcome, standing.decision) {
            (Decision::Admit { .. }, Decision::Deny(_)) => {
                self.tokens_over.inc_by(charge.cost);
                self.utilization.observe(standing.utilization());
            }
            (Decision::Admit { .. }, Decision::Admit { wait }) => {
                if charge.enforcement.consumes {
                    self.tokens_admitted.inc_by(charge.cost);
                }
                let utilization = standing.utilization();
                self.utilization.observe(utilization);
                if utilization >= NEAR {
                    self.near.inc();
                }
                if wait > Nanos::ZERO {
                    self.wait.get().observe(wait.as_secs_f64());
                }
            }
            (Decision::Deny(denial), _) if reported => {
                self.tokens_over.inc_by(charge.cost);
                if let Denial::Later { retry_after } = denial {
                    self.retry_after.observe(retry_after.as_secs_f64());
                }
            }
            (Decision::Deny(_), _) => {}
        }
    }
}
