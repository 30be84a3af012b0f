//! What there is to say when a log was played.

use std::io::Write;

use serde::Serialize;

use super::compare::{Cells, Comparison, Differing};
use super::fields::WantedFields;
use super::play::{Player, Side};
use super::record::LogPosition;
use super::reorder::Disorder;
use super::tally::{Count, Fates, LimitTally, Minute};
use super::top::Denied;
use super::{notes, when};
use crate::ruleset::limit::{Limit, OverLimit, PlanTerms};
use crate::ruleset::{PlanId, Ruleset};
use crate::units::Nanos;

/// Everything that there is to say.
#[derive(Clone, Debug, Serialize)]
pub struct Played {
    /// The logs.
    pub logs: Vec<String>,
    /// Their lines, empty ones left out.
    pub lines: u64,
    /// Lines that cannot be used.
    pub unreadable: u64,
    /// The first of those, each with its place.
    pub unreadable_first: Vec<String>,
    /// The time of the first request.
    #[serde(serialize_with = "when::serialize_if")]
    pub from: Option<Nanos>,
    /// The time of the last.
    #[serde(serialize_with = "when::serialize_if")]
    pub to: Option<Nanos>,
    /// Requests that came at the time of the one before, because their own was earlier.
    pub out_of_order: u64,
    /// Lines whose timestamps are whole seconds.
    pub whole_second_timestamps: u64,
    /// How many are denied whenever in their second such requests came, where `--fail-if-denied` asks for it; beside other
    /// rules, by the rules that are tried and not by the others.
    pub denied_at_least: Option<u64>,
    /// Lines whose status is 429.
    pub answered_429: u64,
    /// What to know about the numbers.
    pub notes: Vec<String>,
    /// What the rules make of the requests.
    pub rules: ReplayReport,
    /// What the other rules make of them.
    pub against: Option<ReplayReport>,
    /// How the two differ.
    pub comparison: Option<Difference>,
}

/// What one set of rules makes of the requests.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayReport {
    /// The configuration.
    pub config: String,
    /// All requests that are not refused before their limits.
    #[serde(flatten)]
    pub all: RequestCounts,
    /// What becomes of them, in the access log's words.
    pub decisions: Fates,
    /// Refused before any limit, by cause.
    pub refused: Fates,
    /// By limit.
    pub limits: Vec<LimitReport>,
    /// By route.
    pub routes: Vec<RouteReport>,
}

/// Requests, and those that were too many.
#[derive(Clone, Debug, Serialize)]
pub struct RequestCounts {
    /// How many came.
    pub offered: u64,
    /// How many are denied.
    pub denied: u64,
    /// Their share, 0 to 1.
    pub share: Option<f64>,
    /// When the first is denied.
    #[serde(serialize_with = "when::serialize_if")]
    pub first_denied: Option<Nanos>,
    /// When the last is.
    #[serde(serialize_with = "when::serialize_if")]
    pub last_denied: Option<Nanos>,
    /// The minute with the most denials.
    pub worst_minute: Option<Minute>,
}

/// What became of the requests under one limit.
#[derive(Clone, Debug, Serialize)]
pub struct LimitReport {
    /// The limit.
    pub limit: String,
    /// Its algorithm.
    pub algorithm: &'static str,
    /// What it does with those that are too many: `deny`, `delay`, `divert`, `mark`, `shadow` or `candidate`.
    pub over_limit: &'static str,
    /// How many requests it makes wait.
    pub delayed: u64,
    /// By plan.
    pub plans: Vec<PlanReport>,
    /// How many keys are denied; absent where there are so many that some were not counted.
    pub denied_keys: Option<usize>,
    /// Those that are denied most often.
    pub top: Vec<Denied>,
}

/// The same of one plan.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    /// The plan, if there is one.
    pub plan: Option<String>,
    /// Its parameters in plain words, apart from what customers have of their own.
    pub words: String,
    /// The numbers.
    #[serde(flatten)]
    pub line: RequestCounts,
}

/// The same of one route.
#[derive(Clone, Debug, Serialize)]
pub struct RouteReport {
    /// The route.
    pub route: String,
    /// The numbers.
    #[serde(flatten)]
    pub line: RequestCounts,
}

/// How two sets of rules differ.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// Over all requests; the first are the rules that are tried.
    #[serde(flatten)]
    pub cells: Cells,
    /// Requests that one refuses before any limit and the other does not, or for another cause.
    pub refused_differently: u64,
    /// By route of the rules that are tried.
    pub routes: Vec<RouteDifference>,
    /// Those that only the rules that are tried deny.
    pub denied_only_here: Onesided,
    /// Those that only the other rules deny.
    pub denied_only_there: Onesided,
}

/// Of one route.
#[derive(Clone, Debug, Serialize)]
pub struct RouteDifference {
    /// The route.
    pub route: String,
    /// The numbers.
    #[serde(flatten)]
    pub cells: Cells,
}

/// Requests that one denies and the other does not.
#[derive(Clone, Debug, Serialize)]
pub struct Onesided {
    /// When the first is.
    #[serde(serialize_with = "when::serialize_if")]
    pub first: Option<Nanos>,
    /// When the last is.
    #[serde(serialize_with = "when::serialize_if")]
    pub last: Option<Nanos>,
    /// The minute with the most of them.
    pub worst_minute: Option<Minute>,
    /// Whose they are.
    pub top: Vec<Denied>,
    /// The first of them: place, time and limit.
    pub examples: Vec<String>,
}

impl Played {
    /// What there is to say; `most` keys are named for each limit. `best` played the same lines with the best times.
    pub fn new<W: Write>(
        player: &Player<W>,
        best: Option<&Player<W>>,
        names: Vec<String>,
        disorder: Disorder,
        wanted: &WantedFields,
        most: usize,
    ) -> Self {
        let lines = &player.lines;
        let place = |spot: &LogPosition| format!("{}:{}", names.get(spot.log).map_or("", String::as_str), spot.line);
        let against = player.against.as_ref();
        let comparison = against.map(|(other, comparison)| {
            let rulesets = [&player.side, other].map(|side| &side.replayer.rules().ruleset);
            Difference::of(comparison, rulesets, most, place)
        });
        Self {
            lines: lines.all,
            unreadable: lines.unreadable,
            unreadable_first: lines.shown.iter().map(|(spot, why)| format!("{}: {why}", place(spot))).collect(),
            from: lines.times.map(|(first, _)| first),
            to: lines.times.map(|(_, last)| last),
            out_of_order: disorder.late,
            whole_second_timestamps: lines.whole_seconds,
            denied_at_least: best.map(|best| best.denied().min(player.denied())),
            answered_429: lines.too_many,
            notes: notes::of(player, disorder, wanted),
            rules: ReplayReport::of(&player.side, most),
            against: against.map(|(side, _)| ReplayReport::of(side, most)),
            comparison,
            logs: names,
        }
    }

    /// The share of all requests that are denied for certain; beside other rules, of those that only the rules that are
    /// tried deny.
    pub fn denied_share(&self) -> f64 {
        let all = self.comparison.as_ref().map_or(self.rules.all.offered, |difference| difference.cells.all());
        self.denied_at_least.and_then(|denied| share(denied, all)).unwrap_or_default()
    }
}

impl ReplayReport {
    fn of(side: &Side, most: usize) -> Self {
        let ruleset = &side.replayer.rules().ruleset;
        let limits = ruleset.limits.iter().zip(&side.tally.limits);
        let routes = ruleset.matcher.routes().iter().zip(&side.tally.routes);
        Self {
            config: side.name.clone(),
            all: RequestCounts::of(&side.tally.all),
            decisions: side.tally.fates(),
            refused: side.tally.refused.clone(),
            limits: limits.map(|(limit, tally)| LimitReport::of(ruleset, limit, tally, most)).collect(),
            routes: routes
                .map(|(route, count)| RouteReport { route: route.name.clone(), line: RequestCounts::of(count) })
                .collect(),
        }
    }
}

impl RequestCounts {
    fn of(count: &Count) -> Self {
        Self {
            offered: count.offered,
            denied: count.denied,
            share: share(count.denied, count.offered),
            first_denied: count.first,
            last_denied: count.last,
            worst_minute: count.worst(),
        }
    }
}

impl LimitReport {
    fn of(ruleset: &Ruleset, limit: &Limit, tally: &LimitTally, most: usize) -> Self {
        let plans = tally.plans.iter().enumerate().filter(|(_, count)| count.offered > 0);
        let plans = plans.map(|(position, count)| {
            let plan = position.checked_sub(1);
            let words = match limit.terms(plan.map(PlanId)) {
                PlanTerms::Rule(rule) => {
                    limit.rules.get(rule).map_or_else(String::new, crate::algorithm::Rule::describe)
                }
                PlanTerms::Unlimited => "unlimited".to_owned(),
            };
            let plan = plan.and_then(|plan| ruleset.plans.get(plan)).cloned();
            PlanReport { plan, words, line: RequestCounts::of(count) }
        });
        Self {
            limit: limit.name.clone(),
            algorithm: limit.algorithm.as_str(),
            over_limit: over_limit(limit),
            delayed: tally.delayed,
            plans: plans.collect(),
            denied_keys: tally.top.keys(),
            top: tally.top.first(most),
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
        most: usize,
        place: impl Fn(&LogPosition) -> String,
    ) -> Self {
        let side = |differing: &Differing, ruleset: &Ruleset| Onesided {
            first: differing.count.first,
            last: differing.count.last,
            worst_minute: differing.count.worst(),
            top: differing.top.first(most),
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
            Some(RouteDifference { route, cells: *cells })
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

#[expect(clippy::cast_precision_loss, reason = "a report, never a decision")]
fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}
