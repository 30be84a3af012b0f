//! The report of a replay.

use std::io::Write;

use serde::Serialize;

use super::compare::{Comparison, DenialMatrix, DifferingRequests};
use super::fields::WantedFields;
use super::play::{Player, RulesetRun};
use super::record::LogPosition;
use super::reorder::ReorderStats;
use super::tally::{DenialCounts, LimitTally, Minute, OutcomeCounts};
use super::top::DeniedKey;
use super::{notes, when};
use crate::algorithm::Rule;
use crate::ruleset::limit::{Limit, OverLimit};
use crate::ruleset::{PlanId, Ruleset};
use crate::simulation::render::ratio;
use crate::units::Nanos;

/// The complete report of a replay.
#[derive(Clone, Debug, Serialize)]
pub struct CompleteReport {
    /// The logs.
    pub logs: Vec<String>,
    /// The number of lines, without empty ones.
    pub lines: u64,
    /// The number of lines that cannot be used.
    pub unreadable: u64,
    /// The first of these lines, each with its place and the reason.
    pub unreadable_first: Vec<String>,
    /// The time of the first request.
    #[serde(serialize_with = "when::serialize_if")]
    pub from: Option<Nanos>,
    /// The time of the last request.
    #[serde(serialize_with = "when::serialize_if")]
    pub to: Option<Nanos>,
    /// The number of requests that were played at the time of the request before, because their own time was earlier.
    pub out_of_order: u64,
    /// The number of lines whose timestamps are whole seconds.
    pub whole_second_timestamps: u64,
    /// How many requests are denied for certain, at whatever times in their seconds they came, with `--fail-if-denied`; in a
    /// comparison, how many of these the other rules may let pass.
    pub denied_at_least: Option<u64>,
    /// The number of lines whose status is 429.
    pub answered_429: u64,
    /// Notes on the numbers.
    pub notes: Vec<String>,
    /// The report of the rules to try.
    pub rules: ReplayReport,
    /// The report of the other rules.
    pub against: Option<ReplayReport>,
    /// The difference between the two.
    pub comparison: Option<Difference>,
}

/// The report of one set of rules.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayReport {
    /// The name of the configuration.
    pub config: String,
    /// All requests that are not refused before their limits.
    #[serde(flatten)]
    pub all: DenialCounts,
    /// The number of these requests by outcome, in the access log's words.
    pub decisions: OutcomeCounts,
    /// Requests refused before any limit, by cause.
    pub refused: OutcomeCounts,
    /// The reports of the limits.
    pub limits: Vec<LimitReport>,
    /// The counts by route.
    pub routes: Vec<OfRoute<DenialCounts>>,
}

/// The report of one limit.
#[derive(Clone, Debug, Serialize)]
pub struct LimitReport {
    /// The limit.
    pub limit: String,
    /// Its algorithm.
    pub algorithm: &'static str,
    /// The action on requests over the limit: `deny`, `delay`, `divert`, `mark`, `shadow` or `candidate`.
    pub over_limit: &'static str,
    /// The number of requests that the limit delays.
    pub delayed: u64,
    /// The counts by plan.
    pub plans: Vec<PlanReport>,
    /// The number of denied keys; `None` if there are so many that some were not counted.
    pub denied_keys: Option<usize>,
    /// The keys that are denied most often.
    pub top: Vec<DeniedKey>,
}

/// The counts of one plan under a limit.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    /// The plan, if there is one.
    pub plan: Option<String>,
    /// The plan's parameters in plain words, without the overrides of customers.
    pub words: String,
    /// The numbers.
    #[serde(flatten)]
    pub line: DenialCounts,
}

/// The counts of one route.
#[derive(Clone, Debug, Serialize)]
pub struct OfRoute<T> {
    /// The route.
    pub route: String,
    /// The numbers.
    #[serde(flatten)]
    pub counts: T,
}

/// The difference between two sets of rules.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// The counts of all requests; the first set is the rules to try.
    #[serde(flatten)]
    pub cells: DenialMatrix,
    /// The number of requests that only one set refuses before any limit, or that both refuse for different causes.
    pub refused_differently: u64,
    /// The counts by route of the rules to try.
    pub routes: Vec<OfRoute<DenialMatrix>>,
    /// The requests that only the rules to try deny.
    pub denied_only_here: OneSidedDenials,
    /// The requests that only the other rules deny.
    pub denied_only_there: OneSidedDenials,
}

/// Requests that one set of rules denies and the other does not.
#[derive(Clone, Debug, Serialize)]
pub struct OneSidedDenials {
    /// The time of the first of these requests.
    #[serde(serialize_with = "when::serialize_if")]
    pub first: Option<Nanos>,
    /// The time of the last of these requests.
    #[serde(serialize_with = "when::serialize_if")]
    pub last: Option<Nanos>,
    /// The minute with the most of these requests.
    pub worst_minute: Option<Minute>,
    /// The callers with the most of these requests.
    pub top: Vec<DeniedKey>,
    /// The first of these requests: place, time and limit.
    pub examples: Vec<String>,
}

impl CompleteReport {
    /// The report, with at most `max_keys` keys for each limit. `best` played the same lines with `SecondPlacement::Best`.
    pub fn new<W: Write>(
        player: &Player<W>,
        best: Option<&Player<W>>,
        names: Vec<String>,
        disorder: ReorderStats,
        wanted: &WantedFields,
        max_keys: usize,
    ) -> Self {
        let lines = &player.lines;
        let place = |spot: &LogPosition| format!("{}:{}", names.get(spot.log).map_or("", String::as_str), spot.line);
        let against = player.against.as_ref();
        let comparison = against.map(|(other, comparison)| {
            let rulesets = [&player.side, other].map(|side| &side.replayer.rules().ruleset);
            Difference::of(comparison, rulesets, max_keys, place)
        });
        Self {
            lines: lines.all,
            unreadable: lines.unreadable,
            unreadable_first: lines.shown.iter().map(|(spot, why)| format!("{}: {why}", place(spot))).collect(),
            from: lines.times.map(|(first, _)| first),
            to: lines.times.map(|(_, last)| last),
            out_of_order: disorder.late,
            whole_second_timestamps: lines.whole_seconds,
            denied_at_least: best.map(|best| match lines.whole_seconds + disorder.late {
                0 => player.denied(),
                _ => best.denied().min(player.denied()),
            }),
            answered_429: lines.too_many,
            notes: notes::of(player, disorder, wanted),
            rules: ReplayReport::of(&player.side, max_keys),
            against: against.map(|(side, _)| ReplayReport::of(side, max_keys)),
            comparison,
            logs: names,
        }
    }

    /// The share of all requests that are denied for certain; in a comparison, the share of those that the other rules may
    /// let pass. `None` if no request got as far as the limits.
    pub fn denied_share(&self) -> Option<f64> {
        let all = self.comparison.as_ref().map_or(self.rules.all.offered, |difference| difference.cells.all());
        self.denied_at_least.and_then(|denied| ratio(denied, all))
    }
}

impl ReplayReport {
    fn of(side: &RulesetRun, max_keys: usize) -> Self {
        let ruleset = &side.replayer.rules().ruleset;
        let limits = ruleset.limits.iter().zip(&side.tally.limits);
        let routes = ruleset.matcher.routes().iter().zip(&side.tally.routes);
        Self {
            config: side.name.clone(),
            all: side.tally.all.clone(),
            decisions: side.tally.outcome_counts(),
            refused: side.tally.refused.clone(),
            limits: limits.map(|(limit, tally)| LimitReport::of(ruleset, limit, tally, max_keys)).collect(),
            routes: routes.map(|(route, count)| OfRoute { route: route.name.clone(), counts: count.clone() }).collect(),
        }
    }
}

impl LimitReport {
    fn of(ruleset: &Ruleset, limit: &Limit, tally: &LimitTally, max_keys: usize) -> Self {
        let plans = tally.plans.iter().enumerate().filter(|(_, count)| count.offered > 0);
        let plans = plans.map(|(position, count)| {
            let plan = position.checked_sub(1).map(PlanId);
            let words = match limit.without_plan {
                // requests that are denied before their plans are known, and charges of programs
                None if plan.is_none() => limit.rules.iter().map(Rule::describe).collect::<Vec<_>>().join("; "),
                _ => limit.describe(plan),
            };
            let plan = ruleset.plan_name(plan).map(str::to_owned);
            PlanReport { plan, words, line: count.clone() }
        });
        Self {
            limit: limit.name.clone(),
            algorithm: limit.algorithm.as_str(),
            over_limit: over_limit(limit),
            delayed: tally.delayed,
            plans: plans.collect(),
            denied_keys: tally.top.keys(),
            top: tally.top.first(max_keys),
        }
    }
}

const fn over_limit(limit: &Limit) -> &'static str {
    match &limit.over_limit {
        _ if limit.candidate_of.is_some() => "candidate",
        _ if limit.shadow => "shadow",
        OverLimit::Deny(_) => "deny",
        OverLimit::Delay { .. } => "delay",
        OverLimit::Divert(_) => "divert",
        OverLimit::Mark(_) => "mark",
    }
}

impl Difference {
    fn of(
        comparison: &Comparison,
        [first, second]: [&Ruleset; 2],
        max_keys: usize,
        place: impl Fn(&LogPosition) -> String,
    ) -> Self {
        let side = |differing: &DifferingRequests, ruleset: &Ruleset| OneSidedDenials {
            first: differing.count.first,
            last: differing.count.last,
            worst_minute: differing.count.worst(),
            top: differing.top.first(max_keys),
            examples: differing
                .shown
                .iter()
                .map(|(spot, at, limit)| {
                    let limit = limit.map_or("", |limit| &ruleset.limits[limit.0].name);
                    format!("{} at {}: denied by {limit}", place(spot), when::utc(*at))
                })
                .collect(),
        };
        let routes = comparison.routes.iter().filter_map(|(route, cells)| {
            let route = first.matcher.routes().get(*route)?.name.clone();
            Some(OfRoute { route, counts: *cells })
        });
        Self {
            cells: comparison.cells,
            refused_differently: comparison.refused_differently,
            routes: routes.collect(),
            denied_only_here: side(&comparison.only_first, first),
            denied_only_there: side(&comparison.only_second, second),
        }
    }
}
