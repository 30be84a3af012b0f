//! The resolved metric handles of one ruleset, on which its requests count.

use prometheus::IntCounter;

use crate::algorithm::{Decision, Denial};
use crate::charge::{Charge, ChargeSource, DecisionSource, OnStoreDown};
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
pub use totals::{RequestTotals, Total};

use grid::{Grid, LazyMetric};

/// The share of a quota from which a key counts as near its limit.
const NEAR: f64 = 0.8;

/// Up to this many combinations of route, limit and plan have their series from the start; in larger rulesets the first
/// request that counts on a series creates it.
const MOST_PREPARED: usize = 10_000;

/// Handles for every route, limit and plan of one ruleset.
pub struct Meters {
    telemetry: Telemetry,
    labels: Vec<LimitLabels>,
    plan_names: Vec<String>,
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

/// The labels of a limit's series, and the properties that say which series the limit has.
#[derive(Debug)]
struct LimitLabels {
    limit: String,
    /// The outcome of a request over the limit.
    over: &'static str,
    /// Whether the limit delays requests.
    delays: bool,
    /// How the limit treats requests while the store is unavailable, if gateways share its states.
    without_store: Option<OnStoreDown>,
    /// Whether costs are settled by responses.
    settles: bool,
    /// Whether the limit bans keys.
    bans: bool,
    /// The limit's `warn_at` marks, in percent.
    warn_at: Vec<u8>,
    /// The limit that this candidate is compared with; a candidate has no outcomes of its own.
    candidate_of: Option<LimitId>,
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
    pub fn new(telemetry: &Telemetry, ruleset: &Ruleset) -> Self {
        let plans = ruleset.plans.len().saturating_add(1);
        let routes = ruleset.matcher.all().iter();
        let costs_invalid = ruleset.limits.iter().map(|limit| {
            let counter = || telemetry.limit_cost_invalid.with_label_values(&[&limit.name]);
            (limit.cost.is_in_response() && limit.candidate_of.is_none()).then(counter)
        });
        let meters = Self {
            telemetry: telemetry.clone(),
            labels: ruleset.limits.iter().map(LimitLabels::new).collect(),
            plan_names: ruleset.plans.clone(),
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
        if pairs.saturating_mul(plans) <= MOST_PREPARED && meters.limits.len() <= MOST_PREPARED {
            meters.prepare(ruleset);
        }
        meters
    }

    /// Creates all series that are to be expected, so that they begin at zero.
    fn prepare(&self, ruleset: &Ruleset) {
        for upstream in &ruleset.upstreams {
            if upstream.ejection.is_some() {
                self.telemetry.upstream_ejections.with_label_values(&[&upstream.name]);
            }
            if upstream.max_requests.is_some() {
                self.telemetry.upstream_refused.with_label_values(&[&upstream.name]);
            }
        }
        for (route, meters) in ruleset.matcher.all().iter().zip(&self.routes) {
            meters.prepare_duration();
            for (place, limit) in route.limits.iter().enumerate() {
                let (limit, label) = (&ruleset.limits[limit.0], &self.labels[limit.0]);
                for plan in each_plan(ruleset).filter(|plan| applies(limit, *plan)) {
                    meters.outcomes(label, self.plan_name(plan), place, plan);
                }
            }
        }
        for (id, limit) in ruleset.limits.iter().enumerate() {
            for plan in each_plan(ruleset).filter(|plan| applies(limit, *plan)) {
                self.limit(LimitId(id), plan);
                self.comparison(LimitId(id), plan);
            }
        }
    }

    /// The meters of a route, or of requests that matched none.
    pub fn route(&self, route: Option<RouteId>) -> &RouteMeters {
        route.and_then(|route| self.routes.get(route.0)).unwrap_or(&self.no_route)
    }

    /// An upstream took this long to begin its response.
    pub fn observe_upstream(&self, upstream: UpstreamId, duration: Nanos) {
        if let Some(histogram) = self.upstreams.get(upstream.0) {
            histogram.observe(duration.as_secs_f64());
        }
    }

    /// The gateway ejected a node of an upstream.
    pub fn upstream_ejected(&self, upstream: &str) {
        self.telemetry.upstream_ejections.with_label_values(&[upstream]).inc();
    }

    /// A request was refused: the upstream has its maximum number of requests.
    pub fn upstream_full(&self, upstream: &str) {
        self.telemetry.upstream_refused.with_label_values(&[upstream]).inc();
    }

    /// The charges of a request were decided at `source`.
    pub fn observe_decision(&self, source: DecisionSource, took: Nanos) {
        if let Some(histogram) = self.decisions.get(source as usize) {
            histogram.observe(took.as_secs_f64());
        }
    }

    /// The gateway answered a question of another proxy.
    pub fn decided(&self, serves: &str, result: &str) {
        self.telemetry.decisions.with_label_values(&[serves, result]).inc();
    }

    /// A span of a request was dropped: too many spans wait.
    pub fn span_dropped(&self) {
        self.telemetry.spans.ended("dropped", 1);
    }

    /// A connection was closed to keep within bounds, for this reason.
    pub fn shed(&self, reason: &str) {
        self.telemetry.connections_shed.with_label_values(&[reason]).inc();
    }

    /// A request was refused because the decision of `limit` cannot be known.
    pub fn observe_refusal(&self, ruleset: &Ruleset, route: RouteId, plan: Option<PlanId>, limit: LimitId) {
        let place = ruleset.matcher.route(route).limits.iter().position(|id| *id == limit);
        let (Some(place), Some(label)) = (place, self.labels.get(limit.0)) else { return };
        if let Some(outcomes) = self.route(Some(route)).outcomes(label, self.plan_name(plan), place, plan) {
            outcomes.error_denied.get().inc();
        }
    }

    /// Counts the outcome of a request under each limit of its route; `plan_of` gives the plan of the charge at a position.
    pub fn observe_verdict(
        &self,
        ruleset: &Ruleset,
        route: RouteId,
        plan_of: impl Fn(usize) -> Option<PlanId>,
        charges: &[Charge],
        verdict: &Verdict,
    ) {
        for (position, live) in verdict.candidate_comparisons(ruleset) {
            let standing = &verdict.standings[position];
            if let Some(CandidateComparison(counters)) = self.comparison(standing.limit, plan_of(position)) {
                counters[word_of(live)][word_of(standing.decision)].inc();
            }
        }
        for (position, (standing, charge)) in verdict.standings.iter().zip(charges).enumerate() {
            let (plan, reported) = (plan_of(position), verdict.tightest == Some(position));
            let place = ruleset.matcher.route(route).limits.iter().position(|id| *id == standing.limit);
            let label = &self.labels[standing.limit.0];
            let outcomes =
                place.and_then(|place| self.route(Some(route)).outcomes(label, self.plan_name(plan), place, plan));
            if let Some(outcomes) = outcomes {
                outcomes.count(verdict, standing.decision, charge, reported);
            }
            if let Some(limit) = self.limit(standing.limit, plan) {
                limit.count(verdict, standing, charge, reported);
            }
        }
    }

    /// Counts a request that is exempt from the limits of its route. The plan of a preflight is unknown: it counts for every
    /// limit that applies to any plan.
    pub fn observe_bypass(&self, ruleset: &Ruleset, route: RouteId, plan: Option<PlanId>) {
        for (place, id) in ruleset.matcher.route(route).limits.iter().enumerate() {
            let limit = &ruleset.limits[id.0];
            let exempt = match plan {
                Some(_) => applies(limit, plan),
                None => each_plan(ruleset).any(|plan| applies(limit, plan)),
            };
            if !exempt {
                continue;
            }
            let label = &self.labels[id.0];
            if let Some(outcomes) = self.route(Some(route)).outcomes(label, self.plan_name(plan), place, plan) {
                outcomes.bypassed.get().inc();
            }
        }
    }

    /// A request under `plan` takes the tokens of `charge`, in addition to those on its arrival.
    pub fn charged(&self, plan: Option<PlanId>, charge: &Charge) {
        if let Some(limit) = self.limit(LimitId(charge.limit), plan) {
            limit.tokens_admitted.inc_by(charge.cost);
        }
    }

    /// A request under `plan` gets back the tokens of these charges.
    pub fn refunded<'c>(&self, plan: Option<PlanId>, charges: impl IntoIterator<Item = &'c Charge>) {
        for charge in charges {
            if let Some(limit) = self.limit(LimitId(charge.limit), plan) {
                limit.tokens_refunded.get().inc_by(charge.cost);
            }
        }
    }

    /// A request under `plan` owes the tokens of these charges.
    pub fn debited<'c>(&self, plan: Option<PlanId>, charges: impl IntoIterator<Item = &'c Charge>) {
        for charge in charges {
            if let Some(limit) = self.limit(LimitId(charge.limit), plan) {
                limit.tokens_debited.get().inc_by(charge.cost);
            }
        }
    }

    /// A request under `plan` made `limit` ban its key.
    pub fn banned(&self, limit: LimitId, plan: Option<PlanId>) {
        if let Some(limit) = self.limit(limit, plan) {
            limit.bans.get().inc();
        }
    }

    /// A response did not tell its cost under `limit`.
    pub fn cost_invalid(&self, limit: LimitId) {
        if let Some(Some(counter)) = self.costs_invalid.get(limit.0) {
            counter.inc();
        }
    }

    fn limit(&self, limit: LimitId, plan: Option<PlanId>) -> Option<&LimitMeters> {
        let label = self.labels.get(limit.0).filter(|label| label.candidate_of.is_none())?;
        self.limits.get(limit.0, plan, || LimitMeters::new(&self.telemetry, label, self.plan_name(plan)))
    }

    fn comparison(&self, candidate: LimitId, plan: Option<PlanId>) -> Option<&CandidateComparison> {
        let live = &self.labels.get(self.labels.get(candidate.0)?.candidate_of?.0)?.limit;
        self.candidates.get(candidate.0, plan, || CandidateComparison::new(&self.telemetry, live, self.plan_name(plan)))
    }

    fn plan_name(&self, plan: Option<PlanId>) -> &str {
        plan_name(&self.plan_names, plan)
    }
}

/// The name of a plan, as a label.
pub(super) fn plan_name(plans: &[String], plan: Option<PlanId>) -> &str {
    plan.and_then(|plan| plans.get(plan.0)).map_or(NO_PLAN, String::as_str)
}

/// Every plan, then `None` for requests without a plan.
pub(super) fn each_plan(ruleset: &Ruleset) -> impl Iterator<Item = Option<PlanId>> {
    (0..ruleset.plans.len()).map(|plan| Some(PlanId(plan))).chain([None])
}

/// Whether a limit applies to a plan: only series that can count are created from the start.
fn applies(limit: &Limit, plan: Option<PlanId>) -> bool {
    limit.plan_rule(plan).is_some()
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

/// The decisions of a limit, as labels.
const WORDS: [&str; 3] = ["admitted", "delayed", "denied"];

/// The position of a decision in [`WORDS`].
const fn word_of(decision: Decision) -> usize {
    match decision {
        Decision::Admit { wait: Nanos::ZERO } => 0,
        Decision::Admit { .. } => 1,
        Decision::Deny(_) => 2,
    }
}

// === impl LimitLabels ===

impl LimitLabels {
    fn new(limit: &Limit) -> Self {
        Self {
            limit: limit.name.clone(),
            over: over(limit),
            delays: matches!(limit.over_limit, OverLimit::Delay { .. }),
            without_store: limit.mode.on_store_down(),
            settles: limit.cost.is_in_response(),
            bans: limit.ban.is_some() && limit.enforces(),
            warn_at: limit.warn_at.clone(),
            candidate_of: limit.candidate_of,
        }
    }
}

// === impl CandidateComparison ===

impl CandidateComparison {
    fn new(telemetry: &Telemetry, limit: &str, plan: &str) -> Self {
        let counter =
            |live, candidate| telemetry.limit_candidate_requests.with_label_values(&[limit, plan, live, candidate]);
        Self(WORDS.map(|live| WORDS.map(|candidate| counter(live, candidate))))
    }
}

// === impl LimitMeters ===

impl LimitMeters {
    fn new(telemetry: &Telemetry, limit: &LimitLabels, plan: &str) -> Self {
        let name = limit.limit.as_str();
        let warning = |at: &u8| (*at, telemetry.limit_warnings.with_label_values(&[name, plan, &at.to_string()]));
        Self {
            tokens_admitted: telemetry.limit_tokens.with_label_values(&[name, plan, "admitted"]),
            tokens_over: telemetry.limit_tokens.with_label_values(&[name, plan, limit.over]),
            tokens_refunded: LazyMetric::new(&telemetry.limit_tokens, &[name, plan, "refunded"])
                .expected(limit.settles),
            tokens_debited: LazyMetric::new(&telemetry.limit_tokens, &[name, plan, "debited"]).expected(limit.settles),
            near: telemetry.limit_near.with_label_values(&[name, plan]),
            bans: LazyMetric::new(&telemetry.limit_bans, &[name, plan]).expected(limit.bans),
            warnings: limit.warn_at.iter().map(warning).collect(),
            utilization: telemetry.limit_utilization.with_label_values(&[name, plan]),
            wait: LazyMetric::new(&telemetry.limit_wait, &[name]).expected(limit.delays),
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
