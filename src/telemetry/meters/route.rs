//! The meters that requests of one route count on.

use std::sync::OnceLock;

use crate::algorithm::Decision;
use crate::charge::{Charge, ChargeSource, OnStoreDown};
use crate::ruleset::limit::Limit;
use crate::ruleset::verdict::Verdict;
use crate::telemetry::Telemetry;
use crate::telemetry::meters::grid::{Grid, LazyMetric};
use crate::telemetry::meters::totals::{Counted, RequestTotals, Total};
use crate::telemetry::meters::{bans, delays, over};
use crate::telemetry::striped::{HotCounter, HotGauge, HotHistogram};
use crate::units::Nanos;

/// The classes of status codes, as labels.
const CODE_CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// The meters of one route.
pub struct RouteMeters {
    pub(super) name: String,
    telemetry: Telemetry,
    /// The counter of the first status code that occurred; it links to the others.
    codes: OnceLock<Box<CodeCounter>>,
    durations: [OnceLock<HotHistogram>; 5],
    in_flight: HotGauge,
    /// The outcomes by the limit's position among the route's limits, and by plan.
    pub(super) outcomes: Grid<Outcomes>,
}

/// How often responses had a status code. A linked list, because there are few codes: every request reads them, and few
/// requests add one.
#[derive(Debug)]
struct CodeCounter {
    code: u16,
    counter: HotCounter,
    next: OnceLock<Box<Self>>,
}

/// The outcomes of one route's and plan's requests under a limit.
pub(super) struct Outcomes {
    admitted: HotCounter,
    delayed: LazyMetric<HotCounter>,
    /// Requests over the limit: denied, or diverted, marked or let pass by a shadow limit.
    over: HotCounter,
    /// Requests that are denied because the key is banned.
    banned: LazyMetric<HotCounter>,
    /// Requests that are exempt from the limit.
    pub(super) bypassed: LazyMetric<HotCounter>,
    error_admitted: LazyMetric<HotCounter>,
    pub(super) error_denied: LazyMetric<HotCounter>,
}

// === impl RouteMeters ===

impl RouteMeters {
    pub(super) fn new(telemetry: &Telemetry, name: &str, outcomes: Grid<Outcomes>) -> Self {
        Self {
            name: name.to_owned(),
            telemetry: telemetry.clone(),
            codes: OnceLock::new(),
            durations: Default::default(),
            in_flight: telemetry.http_in_flight.with_label_values(&[name]),
            outcomes,
        }
    }

    /// One more request is being handled, until [`RouteMeters::end`].
    pub fn start(&self) {
        self.in_flight.inc();
    }

    /// One request fewer is being handled.
    pub fn end(&self) {
        self.in_flight.dec();
    }

    /// A request was answered with `code` after `duration`.
    pub fn finish(&self, code: u16, duration: Nanos) {
        self.count(code);
        let class = usize::from(code / 100).clamp(1, self.durations.len()) - 1;
        self.duration(class).observe(duration.as_secs_f64());
    }

    /// Creates the series of 2xx durations: every route that works has one.
    pub(super) fn prepare_duration(&self) {
        self.duration(1);
    }

    fn duration(&self, class: usize) -> &HotHistogram {
        let make = || self.telemetry.http_duration.with_label_values(&[self.name.as_str(), CODE_CLASSES[class]]);
        self.durations[class].get_or_init(make)
    }

    /// Counts a response with `code`, without its duration.
    pub fn count(&self, code: u16) {
        let mut place = &self.codes;
        loop {
            let at = place.get_or_init(|| {
                let labels = [self.name.as_str(), &code.to_string()];
                let counter = self.telemetry.http_requests.with_label_values(&labels);
                Box::new(CodeCounter { code, counter, next: OnceLock::new() })
            });
            if at.code == code {
                return at.counter.inc();
            }
            place = &at.next;
        }
    }

    /// Passes the number of responses with each status to `each`.
    pub(super) fn each_answer(&self, each: &mut impl FnMut(Total<'_>)) {
        let mut place = &self.codes;
        while let Some(at) = place.get() {
            let answered = at.counter.get();
            let failed = if at.code >= 500 { answered } else { 0 };
            let counts = RequestTotals { answered, failed, ..RequestTotals::default() };
            each(Total { route: &self.name, counted: Counted::Answers(at.code), denies: false, counts });
            place = &at.next;
        }
    }
}

// === impl Outcomes ===

impl Outcomes {
    pub(super) fn new(telemetry: &Telemetry, route: &str, limit: &Limit, plan: &str) -> Self {
        let outcome = |outcome| telemetry.limit_requests.with_label_values(&[route, &limit.name, plan, outcome]);
        let lazy = |outcome| LazyMetric::new(&telemetry.limit_requests, &[route, &limit.name, plan, outcome]);
        let without_store = limit.mode.on_store_down();
        Self {
            admitted: outcome("admitted"),
            delayed: lazy("delayed").expected(delays(limit)),
            over: outcome(over(limit)),
            banned: lazy("banned").expected(bans(limit)),
            bypassed: lazy("bypassed"),
            error_admitted: lazy("error_admitted").expected(without_store == Some(OnStoreDown::Allow)),
            error_denied: lazy("error_denied").expected(without_store == Some(OnStoreDown::Deny)),
        }
    }

    pub(super) fn counts(&self) -> RequestTotals {
        let lazy = |counter: &LazyMetric<HotCounter>| counter.made().map_or(0, HotCounter::get);
        RequestTotals {
            admitted: self.admitted.get(),
            delayed: lazy(&self.delayed),
            over: self.over.get().saturating_add(lazy(&self.banned)),
            bypassed: lazy(&self.bypassed),
            unknown: lazy(&self.error_admitted).saturating_add(lazy(&self.error_denied)),
            ..RequestTotals::default()
        }
    }

    /// Counts a verdict under this limit. A denial counts only under the limit that is `reported`.
    pub(super) fn count(&self, verdict: &Verdict, decision: Decision, charge: &Charge, reported: bool) {
        match (verdict.outcome, decision) {
            (Decision::Admit { .. }, _) if charge.taken_from == ChargeSource::FailedOpen => {
                self.error_admitted.get().inc()
            }
            (Decision::Admit { .. }, Decision::Admit { wait: Nanos::ZERO }) => self.admitted.inc(),
            (Decision::Admit { .. }, Decision::Admit { .. }) => self.delayed.get().inc(),
            (Decision::Admit { .. }, Decision::Deny(_)) => self.over.inc(),
            (Decision::Deny(_), _) if reported && verdict.banned => self.banned.get().inc(),
            (Decision::Deny(_), _) if reported => self.over.inc(),
            (Decision::Deny(_), _) => {}
        }
    }
}
