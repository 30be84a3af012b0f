//! Counts the decisions on the requests of a log under one set of rules.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::replayer::ReplayDecision;
use super::top::TopKeys;
use super::{when, who};
use crate::algorithm::Decision;
use crate::charge::Charge;
use crate::ruleset::Ruleset;
use crate::ruleset::outcome::OutcomeKind;
use crate::ruleset::verdict::Standing;
use crate::simulation::render::ratio;
use crate::simulation::series::{Bin, Series};
use crate::units::{Cost, Nanos};

/// The most first segments of paths without a route that are counted, and the characters of each.
const MAX_SEGMENTS: usize = 4096;
const MAX_SEGMENT_LENGTH: usize = 40;

const MINUTE: u64 = 60 * Nanos::SECOND.get();

/// Counts of requests and of denials.
#[derive(Clone, Debug, Default)]
pub struct DenialCounts {
    /// The number of requests.
    pub offered: u64,
    /// The number of requests that were denied, or would be if the limit were in force.
    pub denied: u64,
    /// The time of the first denial.
    pub first: Option<Nanos>,
    /// The time of the last denial.
    pub last: Option<Nanos>,
    minute: (u64, u64),
    worst: (u64, u64),
}

/// The minute with the most denials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Minute {
    /// The minute's start.
    #[serde(serialize_with = "when::serialize")]
    pub begins: Nanos,
    /// The number of denials in the minute.
    pub denied: u64,
}

/// The number of requests by outcome, in the access log's words, or by the cause of a refusal.
pub type OutcomeCounts = BTreeMap<&'static str, u64>;

/// The counts of one limit.
#[derive(Clone, Debug, Default)]
pub struct LimitTally {
    /// The counts by plan; requests without a plan come first.
    pub plans: Vec<DenialCounts>,
    /// How many admitted requests the limit delayed.
    pub delayed: u64,
    /// The keys that were denied most.
    pub top: TopKeys,
    /// The course over time, if the report has pictures.
    pub series: Option<Series>,
}

/// The counts of one set of rules.
#[derive(Clone, Debug)]
pub struct Tally {
    /// The requests that were not refused before the limits.
    pub all: DenialCounts,
    /// The outcomes, which are few, and their counts.
    outcome_counts: Vec<(OutcomeKind, u64)>,
    /// Requests refused before any limit, by cause.
    pub refused: OutcomeCounts,
    /// The requests that take no route, by the first segment of their paths.
    unrouted: BTreeMap<String, u64>,
    /// The counts by route.
    pub routes: Vec<DenialCounts>,
    /// The counts by limit.
    pub limits: Vec<LimitTally>,
    /// The time of the first request; pictures begin with its minute.
    began: Option<Nanos>,
}

// === impl DenialCounts ===

impl DenialCounts {
    pub(super) fn add(&mut self, at: Nanos, denied: bool) {
        self.offered += 1;
        if denied {
            self.deny(at);
        }
    }

    fn deny(&mut self, at: Nanos) {
        self.denied += 1;
        self.first.get_or_insert(at);
        self.last = Some(at);
        let minute = at.get() / MINUTE;
        self.minute = if self.minute.0 == minute { (minute, self.minute.1 + 1) } else { (minute, 1) };
        if self.minute.1 > self.worst.1 {
            self.worst = self.minute;
        }
    }

    /// The share of denied requests, 0 to 1; `None` if there was no request.
    pub(super) fn share(&self) -> Option<f64> {
        ratio(self.denied, self.offered)
    }

    /// The first minute with the most denials, if there is a denial.
    pub fn worst(&self) -> Option<Minute> {
        let (minute, denied) = self.worst;
        (denied > 0).then(|| Minute { begins: Nanos::new(minute.saturating_mul(MINUTE)), denied })
    }
}

impl Serialize for DenialCounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct("DenialCounts", 6)?;
        object.serialize_field("offered", &self.offered)?;
        object.serialize_field("denied", &self.denied)?;
        object.serialize_field("share", &self.share())?;
        object.serialize_field("first_denied", &self.first.map(when::utc))?;
        object.serialize_field("last_denied", &self.last.map(when::utc))?;
        object.serialize_field("worst_minute", &self.worst())?;
        object.end()
    }
}

// === impl Tally ===

impl Tally {
    /// An empty tally; `pictures` says whether it records the course over time.
    pub fn new(ruleset: &Ruleset, pictures: bool) -> Self {
        let limit = |_| LimitTally {
            plans: vec![DenialCounts::default(); ruleset.plans.len() + 1],
            series: pictures.then(Series::default),
            ..LimitTally::default()
        };
        Self {
            all: DenialCounts::default(),
            outcome_counts: Vec::new(),
            refused: OutcomeCounts::new(),
            unrouted: BTreeMap::new(),
            routes: vec![DenialCounts::default(); ruleset.matcher.routes().len()],
            limits: ruleset.limits.iter().map(limit).collect(),
            began: None,
        }
    }

    /// The time that is 0 in pictures: the minute of the first request.
    pub fn begins(&self) -> Nanos {
        let began = self.began.unwrap_or_default().get();
        Nanos::new(began - began % MINUTE)
    }

    /// The number of requests by outcome, in the access log's words.
    pub fn outcome_counts(&self) -> OutcomeCounts {
        self.outcome_counts.iter().map(|(outcome, count)| (outcome.as_str(), *count)).collect()
    }

    /// Counts a request and its decision; requests come in the order of time.
    pub fn add(&mut self, ruleset: &Ruleset, decided: &ReplayDecision<'_>, outcome: OutcomeKind) {
        if self.began.is_none() {
            self.begin(decided.at);
        }
        if let Some(cause) = decided.refused {
            self.add_refused(cause);
            return;
        }
        match self.outcome_counts.iter_mut().find(|(known, _)| *known == outcome) {
            Some((_, count)) => *count += 1,
            None => self.outcome_counts.push((outcome, 1)),
        }
        let denied = decided.verdict.is_denied();
        self.all.add(decided.at, denied);
        if let Some(route) = decided.route.and_then(|route| self.routes.get_mut(route.0)) {
            route.add(decided.at, denied);
        }
        for (position, (charge, standing)) in decided.charges.iter().zip(&decided.verdict.standings).enumerate() {
            // a candidate's decision is known only where no other limit denies
            let is_compared =
                || decided.verdict.candidate_comparisons(ruleset).any(|(compared, _)| compared == position);
            if ruleset.limits[charge.limit].candidate_of.is_none() || is_compared() {
                self.add_charge(ruleset, decided, charge, standing);
            }
        }
    }

    #[cold]
    fn begin(&mut self, at: Nanos) {
        self.began = Some(at);
        let series = self.limits.iter_mut().filter_map(|limit| limit.series.as_mut());
        series.for_each(|series| series.note(Nanos::ZERO, Bin::default()));
    }

    #[cold]
    fn add_refused(&mut self, cause: &'static str) {
        *self.refused.entry(cause).or_default() += 1;
    }

    /// Counts a request for `target` that takes no route. Of paths with other first segments than the first thousands nothing
    /// is kept.
    #[cold]
    pub fn add_unrouted(&mut self, target: &[u8]) {
        let target = String::from_utf8_lossy(target);
        // before the path of a whole URL, its scheme and its host
        let skipped = if target.starts_with('/') { 0 } else { 3 };
        let mut parts = target.trim_start_matches('/').split(['/', '?']).skip(skipped);
        let first = parts.next().unwrap_or_default();
        let first = format!("/{}", first.escape_debug().take(MAX_SEGMENT_LENGTH).collect::<String>());
        if self.unrouted.len() < MAX_SEGMENTS || self.unrouted.contains_key(&first) {
            *self.unrouted.entry(first).or_default() += 1;
        }
    }

    /// The first segments of paths that most often take no route, and how often.
    pub fn most_unrouted(&self) -> Vec<(&str, u64)> {
        let mut counts: Vec<(&str, u64)> =
            self.unrouted.iter().map(|(first, count)| (first.as_str(), *count)).collect();
        counts.sort_by_key(|(_, count)| Reverse(*count));
        counts
    }

    fn add_charge(&mut self, ruleset: &Ruleset, decided: &ReplayDecision<'_>, charge: &Charge, standing: &Standing) {
        let limit = &ruleset.limits[charge.limit];
        let begins = self.begins();
        let Some(tally) = self.limits.get_mut(charge.limit) else { return };
        let over = !standing.decision.is_admitted();
        let request_denied = decided.verdict.is_denied();
        let denied = over && (standing.enforces || limit.candidate_of.is_some() || !request_denied);
        let plan = decided.plan.map_or(0, |plan| plan.0 + 1);
        if let Some(count) = tally.plans.get_mut(plan) {
            count.add(decided.at, denied);
        }
        let waits = matches!(standing.decision, Decision::Admit { wait } if wait > Nanos::ZERO);
        tally.delayed += u64::from(waits && !request_denied);
        if let (true, Some(source)) = (denied, decided.known) {
            tally.top.add(charge.key, decided.at, || who::describe(ruleset, limit, source));
        }
        if let Some(series) = &mut tally.series {
            note(series, decided.at.saturating_sub(begins), charge.cost, over, denied);
        }
    }
}

#[inline(never)] // most reports have no pictures
fn note(series: &mut Series, at: Nanos, cost: Cost, over: bool, denied: bool) {
    let passed = if over { 0 } else { cost };
    series.note(at, Bin { offered: cost, passed, denied: if denied { cost } else { 0 }, ..Bin::default() });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_minute_is_the_first_with_the_most_denials() {
        let mut count = DenialCounts::default();
        assert_eq!(count.worst(), None);
        for (second, denied) in [(0, true), (59, true), (60, true), (61, false), (119, true), (600, true)] {
            count.add(Nanos::from_secs(second), denied);
        }
        assert_eq!(count.worst(), Some(Minute { begins: Nanos::ZERO, denied: 2 }));
        assert_eq!((count.offered, count.denied, count.last), (6, 5, Some(Nanos::from_secs(600))));
    }
}
