//! The metrics of one ruleset, resolved: what a request counts on.

use parking_lot::RwLock;
use prometheus::{Histogram, IntCounter, IntGauge};

use crate::algorithm::{Charge, Decision, Denial};
use crate::ruleset::Ruleset;
use crate::ruleset::limit::{Limit, LimitId, PlanId, Terms};
use crate::ruleset::matcher::RouteId;
use crate::ruleset::upstream::UpstreamId;
use crate::ruleset::verdict::{Outcome, Standing, Verdict};
use crate::telemetry::Telemetry;
use crate::telemetry::names::{NO_PLAN, NO_ROUTE, SOURCE_LOCAL};
use crate::units::Nanos;

/// The share of a quota from which a key counts as near its limit.
const NEAR: f64 = 0.8;

/// Handles for every route, limit and plan of one ruleset.
#[derive(Debug)]
pub struct Meters {
    routes: Vec<RouteMeters>,
    no_route: RouteMeters,
    upstreams: Vec<Histogram>,
    /// By limit, then by plan (the last one: no plan).
    limits: Vec<Vec<Option<LimitMeters>>>,
    /// By limit; only those whose responses tell costs.
    costs_invalid: Vec<Option<IntCounter>>,
    decision: Histogram,
}

/// What is counted for one route.
#[derive(Debug)]
pub struct RouteMeters {
    name: String,
    telemetry: Telemetry,
    /// Status codes met so far; few, and new ones are rare.
    codes: RwLock<Vec<(u16, IntCounter)>>,
    durations: [Histogram; 5],
    in_flight: IntGauge,
    /// By position among the route's limits, then by plan (the last one: no plan).
    outcomes: Vec<Vec<Option<Outcomes>>>,
}

/// What a limit made of the requests of one route and plan.
#[derive(Debug)]
struct Outcomes {
    admitted: IntCounter,
    delayed: IntCounter,
    denied: IntCounter,
}

/// What is counted for one limit and plan, over all routes.
#[derive(Debug)]
struct LimitMeters {
    tokens_admitted: IntCounter,
    tokens_denied: IntCounter,
    tokens_refunded: IntCounter,
    tokens_debited: IntCounter,
    near: IntCounter,
    utilization: Histogram,
    wait: Histogram,
    retry_after: Histogram,
}

// === impl Meters ===

impl Meters {
    /// Resolves everything that requests under `ruleset` count on.
    pub fn new(telemetry: &Telemetry, ruleset: &Ruleset) -> Self {
        let plans: Vec<&str> = ruleset.plans.iter().map(String::as_str).chain([NO_PLAN]).collect();
        let limits = ruleset.limits.iter().map(|limit| {
            let each = each_plan(ruleset).zip(&plans);
            each.map(|(id, plan)| applies(limit, id).then(|| LimitMeters::new(telemetry, &limit.name, plan))).collect()
        });
        let costs_invalid = ruleset.limits.iter().map(|limit| {
            let counter = || telemetry.limit_cost_invalid.with_label_values(&[&limit.name]);
            limit.cost.is_in_response().then(counter)
        });
        let routes = ruleset.matcher.routes().iter().map(|route| {
            let outcomes = route.limits.iter().map(|id| {
                let limit = &ruleset.limits[id.0];
                let each = each_plan(ruleset).zip(&plans);
                each.map(|(id, plan)| {
                    applies(limit, id).then(|| Outcomes::new(telemetry, &route.name, &limit.name, plan))
                })
                .collect()
            });
            RouteMeters::new(telemetry, &route.name, outcomes.collect())
        });
        Self {
            routes: routes.collect(),
            no_route: RouteMeters::new(telemetry, NO_ROUTE, Vec::new()),
            upstreams: ruleset
                .upstreams
                .iter()
                .map(|upstream| telemetry.http_upstream_duration.with_label_values(&[&upstream.name]))
                .collect(),
            limits: limits.collect(),
            costs_invalid: costs_invalid.collect(),
            decision: telemetry.decision_duration.with_label_values(&[SOURCE_LOCAL]),
        }
    }

    /// The meters of a route, or of requests that matched none.
    pub fn route(&self, route: Option<RouteId>) -> &RouteMeters {
        route.and_then(|route| self.routes.get(route.0)).unwrap_or(&self.no_route)
    }

    /// The time that an upstream took to begin its answer.
    pub fn observe_upstream(&self, upstream: UpstreamId, duration: Nanos) {
        if let Some(histogram) = self.upstreams.get(upstream.0) {
            histogram.observe(duration.as_secs_f64());
        }
    }

    /// Counts what became of a request under the limits of its route.
    pub fn observe_verdict(
        &self,
        ruleset: &Ruleset,
        route: RouteId,
        plan: Option<PlanId>,
        charges: &[Charge],
        verdict: &Verdict,
        took: Nanos,
    ) {
        self.decision.observe(took.as_secs_f64());
        for (position, (standing, charge)) in verdict.standings.iter().zip(charges).enumerate() {
            let reported = verdict.tightest == Some(position);
            let place = ruleset.matcher.route(route).limits.iter().position(|id| *id == standing.limit);
            let outcomes = place.and_then(|place| self.route(Some(route)).outcomes(place, plan));
            if let Some(outcomes) = outcomes {
                outcomes.count(verdict.outcome, standing.decision, reported);
            }
            if let Some(limit) = self.limit(standing.limit, plan) {
                limit.count(verdict.outcome, standing, charge, reported);
            }
        }
    }

    /// A request under `plan` gets back what these charges say.
    pub fn refunded<'c>(&self, plan: Option<PlanId>, charges: impl IntoIterator<Item = &'c Charge>) {
        for charge in charges {
            if let Some(limit) = self.limit(LimitId(charge.limit), plan) {
                limit.tokens_refunded.inc_by(charge.cost);
            }
        }
    }

    /// A request under `plan` owes what these charges say.
    pub fn debited<'c>(&self, plan: Option<PlanId>, charges: impl IntoIterator<Item = &'c Charge>) {
        for charge in charges {
            if let Some(limit) = self.limit(LimitId(charge.limit), plan) {
                limit.tokens_debited.inc_by(charge.cost);
            }
        }
    }

    /// A response did not tell its cost under `limit`.
    pub fn cost_invalid(&self, limit: LimitId) {
        if let Some(Some(counter)) = self.costs_invalid.get(limit.0) {
            counter.inc();
        }
    }

    fn limit(&self, limit: LimitId, plan: Option<PlanId>) -> Option<&LimitMeters> {
        by_plan(self.limits.get(limit.0)?, plan)?.as_ref()
    }
}

/// Every plan, then none.
fn each_plan(ruleset: &Ruleset) -> impl Iterator<Item = Option<PlanId>> {
    (0..ruleset.plans.len()).map(|plan| Some(PlanId(plan))).chain([None])
}

/// Only what can happen is exported.
fn applies(limit: &Limit, plan: Option<PlanId>) -> bool {
    matches!(limit.terms(plan), Terms::Rule(_))
}

/// The entry of `plan` in a list that ends with the one for no plan.
fn by_plan<T>(entries: &[T], plan: Option<PlanId>) -> Option<&T> {
    match plan {
        Some(plan) => entries.get(plan.0),
        None => entries.last(),
    }
}

// === impl RouteMeters ===

impl RouteMeters {
    fn new(telemetry: &Telemetry, name: &str, outcomes: Vec<Vec<Option<Outcomes>>>) -> Self {
        let duration = |class| telemetry.http_duration.with_label_values(&[name, class]);
        Self {
            name: name.to_owned(),
            telemetry: telemetry.clone(),
            codes: RwLock::default(),
            durations: ["1xx", "2xx", "3xx", "4xx", "5xx"].map(duration),
            in_flight: telemetry.http_in_flight.with_label_values(&[name]),
            outcomes,
        }
    }

    /// One more request is being handled until the guard is dropped.
    pub fn start(&self) -> InFlight {
        self.in_flight.inc();
        InFlight(self.in_flight.clone())
    }

    /// A request was answered with `code` after `duration`.
    pub fn finish(&self, code: u16, duration: Nanos) {
        self.count(code);
        let class = usize::from(code / 100).clamp(1, self.durations.len()) - 1;
        self.durations[class].observe(duration.as_secs_f64());
    }

    /// A request was answered with `code` by the connection, before anything was known of it.
    pub fn count(&self, code: u16) {
        let known = self.codes.read().iter().find(|(known, _)| *known == code).map(|(_, counter)| counter.inc());
        if known.is_none() {
            let counter = self.telemetry.http_requests.with_label_values(&[self.name.as_str(), &code.to_string()]);
            counter.inc();
            let mut codes = self.codes.write();
            if !codes.iter().any(|(known, _)| *known == code) {
                codes.push((code, counter));
            }
        }
    }

    fn outcomes(&self, place: usize, plan: Option<PlanId>) -> Option<&Outcomes> {
        by_plan(self.outcomes.get(place)?, plan)?.as_ref()
    }
}

/// A request that is being handled; counts down when dropped.
#[derive(Debug)]
pub struct InFlight(IntGauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}

// === impl Outcomes ===

impl Outcomes {
    fn new(telemetry: &Telemetry, route: &str, limit: &str, plan: &str) -> Self {
        let outcome = |outcome| telemetry.limit_requests.with_label_values(&[route, limit, plan, outcome]);
        Self { admitted: outcome("admitted"), delayed: outcome("delayed"), denied: outcome("denied") }
    }

    fn count(&self, outcome: Outcome, decision: Decision, reported: bool) {
        match (outcome, decision) {
            (Outcome::Admit { .. }, Decision::Admit { wait: Nanos::ZERO }) => self.admitted.inc(),
            (Outcome::Admit { .. }, _) => self.delayed.inc(),
            (Outcome::Deny(_), _) if reported => self.denied.inc(),
            (Outcome::Deny(_), _) => {}
        }
    }
}

// === impl LimitMeters ===

impl LimitMeters {
    fn new(telemetry: &Telemetry, limit: &str, plan: &str) -> Self {
        Self {
            tokens_admitted: telemetry.limit_tokens.with_label_values(&[limit, plan, "admitted"]),
            tokens_denied: telemetry.limit_tokens.with_label_values(&[limit, plan, "denied"]),
            tokens_refunded: telemetry.limit_tokens.with_label_values(&[limit, plan, "refunded"]),
            tokens_debited: telemetry.limit_tokens.with_label_values(&[limit, plan, "debited"]),
            near: telemetry.limit_near.with_label_values(&[limit, plan]),
            utilization: telemetry.limit_utilization.with_label_values(&[limit, plan]),
            wait: telemetry.limit_wait.with_label_values(&[limit]),
            retry_after: telemetry.limit_retry_after.with_label_values(&[limit]),
        }
    }

    fn count(&self, outcome: Outcome, standing: &Standing, charge: &Charge, reported: bool) {
        if charge.manner.counts_denied && matches!(outcome, Outcome::Deny(_)) {
            self.tokens_debited.inc_by(charge.cost);
        }
        match (outcome, standing.decision) {
            (Outcome::Admit { .. }, decision) => {
                if charge.manner.takes {
                    self.tokens_admitted.inc_by(charge.cost);
                }
                let utilization = standing.utilization();
                self.utilization.observe(utilization);
                if utilization >= NEAR {
                    self.near.inc();
                }
                if let Decision::Admit { wait } = decision
                    && wait > Nanos::ZERO
                {
                    self.wait.observe(wait.as_secs_f64());
                }
            }
            (Outcome::Deny(denial), _) if reported => {
                self.tokens_denied.inc_by(charge.cost);
                if let Denial::Later { retry_after } = denial {
                    self.retry_after.observe(retry_after.as_secs_f64());
                }
            }
            (Outcome::Deny(_), _) => {}
        }
    }
}
