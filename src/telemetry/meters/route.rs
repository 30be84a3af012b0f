//! What requests of one route count on.

use std::sync::OnceLock;

use parking_lot::RwLock;
use prometheus::{Histogram, IntCounter, IntGauge};

use crate::algorithm::Decision;
use crate::charge::{Charge, OnStoreDown, Taken};
use crate::ruleset::limit::PlanId;
use crate::ruleset::verdict::Outcome;
use crate::telemetry::Telemetry;
use crate::telemetry::meters::Label;
use crate::telemetry::meters::grid::Grid;
use crate::telemetry::meters::late::Late;
use crate::telemetry::meters::totals::Counts;
use crate::units::Nanos;

/// The classes of status codes, as labels.
const CODE_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// What is counted for one route.
#[derive(Debug)]
pub struct RouteMeters {
    name: String,
    telemetry: Telemetry,
    /// Status codes met so far; few, and new ones are rare.
    codes: RwLock<Vec<(u16, IntCounter)>>,
    durations: [OnceLock<Histogram>; 5],
    in_flight: IntGauge,
    /// By position among the route's limits, and plan.
    outcomes: Grid<Outcomes>,
}

/// What a limit made of the requests of one route and plan.
#[derive(Debug)]
pub(super) struct Outcomes {
    admitted: IntCounter,
    delayed: Late<IntCounter>,
    /// What is over the limit: denied, or what is done instead.
    over: IntCounter,
    /// What is exempt from it.
    pub(super) bypassed: Late<IntCounter>,
    error_admitted: Late<IntCounter>,
    pub(super) error_denied: Late<IntCounter>,
}

// === impl RouteMeters ===

impl RouteMeters {
    pub(super) fn new(telemetry: &Telemetry, name: &str, outcomes: Grid<Outcomes>) -> Self {
        Self {
            name: name.to_owned(),
            telemetry: telemetry.clone(),
            codes: RwLock::default(),
            durations: Default::default(),
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
        self.duration(class).observe(duration.as_secs_f64());
    }

    /// What every route has, be it a good one.
    pub(super) fn prepare_duration(&self) {
        self.duration(1);
    }

    fn duration(&self, class: usize) -> &Histogram {
        let make = || self.telemetry.http_duration.with_label_values(&[self.name.as_str(), CODE_CLASSES[class]]);
        self.durations[class].get_or_init(make)
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

    /// Its name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Each status that was answered, and how often.
    pub(super) fn each_answer(&self, mut each: impl FnMut(u16, u64)) {
        for (code, counter) in &*self.codes.read() {
            each(*code, counter.get());
        }
    }

    /// What each limit made of requests, by its place and the position of their plan.
    pub(super) fn each_outcome(&self, mut each: impl FnMut(usize, usize, Counts)) {
        for (place, plan, outcomes) in self.outcomes.made() {
            each(place, plan, outcomes.counts());
        }
    }

    /// For the limit at `place`, and `plan`; both also by their names.
    pub(super) fn outcomes(
        &self,
        limit: &Label,
        plan_name: &str,
        place: usize,
        plan: Option<PlanId>,
    ) -> Option<&Outcomes> {
        if limit.candidate_of.is_some() {
            return None;
        }
        self.outcomes.get(place, plan, || Outcomes::new(&self.telemetry, &self.name, limit, plan_name))
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
    fn new(telemetry: &Telemetry, route: &str, limit: &Label, plan: &str) -> Self {
        let outcome = |outcome| telemetry.limit_requests.with_label_values(&[route, &limit.limit, plan, outcome]);
        let late = |outcome| Late::new(&telemetry.limit_requests, &[route, &limit.limit, plan, outcome]);
        Self {
            admitted: outcome("admitted"),
            delayed: late("delayed").expected(limit.delays),
            over: outcome(limit.over),
            bypassed: late("bypassed"),
            error_admitted: late("error_admitted").expected(limit.without_store == Some(OnStoreDown::Allow)),
            error_denied: late("error_denied").expected(limit.without_store == Some(OnStoreDown::Deny)),
        }
    }

    fn counts(&self) -> Counts {
        let late = |counter: &Late<IntCounter>| counter.made().map_or(0, IntCounter::get);
        Counts {
            admitted: self.admitted.get(),
            delayed: late(&self.delayed),
            over: self.over.get(),
            bypassed: late(&self.bypassed),
            unknown: late(&self.error_admitted).saturating_add(late(&self.error_denied)),
            ..Counts::default()
        }
    }

    pub(super) fn count(&self, outcome: Outcome, decision: Decision, charge: &Charge, reported: bool) {
        match (outcome, decision) {
            (Outcome::Admit { .. }, _) if charge.taken == Taken::Nowhere => self.error_admitted.get().inc(),
            (Outcome::Admit { .. }, Decision::Admit { wait: Nanos::ZERO }) => self.admitted.inc(),
            (Outcome::Admit { .. }, Decision::Admit { .. }) => self.delayed.get().inc(),
            (Outcome::Admit { .. }, Decision::Deny(_)) => self.over.inc(),
            (Outcome::Deny(_), _) if reported => self.over.inc(),
            (Outcome::Deny(_), _) => {}
        }
    }
}
