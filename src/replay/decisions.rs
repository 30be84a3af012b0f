//! The decision on every line, as CSV.

use std::io::{self, Write};

use super::record::LogPosition;
use super::replayer::ReplayDecision;
use super::{when, who};
use crate::algorithm::{Decision, Denial};
use crate::ruleset::matcher::RouteId;
use crate::ruleset::outcome::{OutcomeKind, OutcomeSummary};
use crate::ruleset::{LimitId, PlanId, Ruleset};
use crate::units::Nanos;

/// The decision on a request in short.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionSummary {
    /// The outcome, which has one word here and in the access log.
    pub outcome: OutcomeKind,
    /// Why the request was refused.
    pub cause: Option<&'static str>,
    /// The limit that the access log names for the decision.
    pub limit: Option<LimitId>,
    /// Whether a limit denies the request.
    pub denied: bool,
    /// How long the request waits.
    pub wait: Nanos,
    /// After what time the client may try again.
    pub retry_after: Option<Nanos>,
    /// The route of the request.
    pub route: Option<RouteId>,
    /// The caller.
    pub caller: Option<String>,
    /// The caller's plan.
    pub plan: Option<PlanId>,
}

/// Writes a header line, then a row for each line of the logs in the order in which their requests came. Times are RFC
/// 3339 in UTC; a field that does not apply is empty.
pub struct DecisionWriter<W: Write> {
    to: csv::Writer<W>,
    names: Vec<String>,
    compares: bool,
}

const COLUMNS: [&str; 11] =
    ["log", "line", "time", "route", "plan", "caller", "decision", "cause", "limit", "wait_ns", "retry_after_ns"];

/// The columns that a comparison of two sets of rules adds.
const AGAINST: [&str; 3] = ["against_decision", "against_cause", "against_limit"];

/// The decision in the row of a line that cannot be used.
const UNREADABLE: &str = "unreadable";

// === impl DecisionSummary ===

impl DecisionSummary {
    #[inline(never)] // most replays write no decisions
    pub(super) fn of(decided: &ReplayDecision<'_>, OutcomeSummary { kind, standing, wait }: OutcomeSummary) -> Self {
        let retry_after = match decided.verdict.outcome {
            Decision::Deny(Denial::Later { retry_after }) => Some(retry_after),
            _ => None,
        };
        let caller = decided.known.map(who::caller);
        Self {
            outcome: kind,
            cause: decided.refused,
            limit: standing.and_then(|position| decided.verdict.standings.get(position)).map(|named| named.limit),
            denied: decided.verdict.is_denied(),
            wait,
            retry_after,
            route: decided.route,
            caller,
            plan: decided.plan,
        }
    }
}

// === impl DecisionWriter ===

impl<W: Write> DecisionWriter<W> {
    /// Writes the header line; `names` are the names of the logs, and `compares` says whether there are two sets of rules.
    pub fn new(to: W, names: Vec<String>, compares: bool) -> io::Result<Self> {
        let mut to = csv::Writer::from_writer(to);
        to.write_record(COLUMNS.iter().chain(AGAINST.iter().filter(|_| compares)))?;
        Ok(Self { to, names, compares })
    }

    /// Writes the row of a line that cannot be used.
    pub fn unreadable(&mut self, spot: LogPosition) -> io::Result<()> {
        let line = spot.line.to_string();
        let name = self.names.get(spot.log).map_or("", String::as_str);
        let rest = if self.compares { 4 + AGAINST.len() } else { 4 };
        let row = [name, &line, "", "", "", "", UNREADABLE].into_iter().chain(std::iter::repeat_n("", rest));
        Ok(self.to.write_record(row)?)
    }

    /// Writes the row of a request that came at the time `at`.
    pub fn write(
        &mut self,
        spot: LogPosition,
        at: Nanos,
        ruleset: &Ruleset,
        summary: &DecisionSummary,
        against: Option<(&Ruleset, &DecisionSummary)>,
    ) -> io::Result<()> {
        let line = spot.line.to_string();
        let time = when::utc(at);
        let wait =
            if summary.denied || summary.cause.is_some() { String::new() } else { summary.wait.get().to_string() };
        let retry_after = summary.retry_after.map(|time| time.get().to_string()).unwrap_or_default();
        let route = summary.route.map_or("", |route| &ruleset.matcher.route(route).name);
        let plan = ruleset.plan_name(summary.plan).unwrap_or_default();
        let row = [
            self.names.get(spot.log).map_or("", String::as_str),
            &line,
            &time,
            route,
            plan,
            summary.caller.as_deref().unwrap_or_default(),
            summary.outcome.as_str(),
            summary.cause.unwrap_or_default(),
            limit(ruleset, summary),
            &wait,
            &retry_after,
        ];
        let against = against.map(|(rules, summary)| {
            [summary.outcome.as_str(), summary.cause.unwrap_or_default(), limit(rules, summary)]
        });
        Ok(self.to.write_record(row.into_iter().chain(against.into_iter().flatten()))?)
    }

    /// Writes the rows that are still buffered.
    pub fn finish(mut self) -> io::Result<()> {
        self.to.flush()
    }
}

fn limit<'r>(ruleset: &'r Ruleset, summary: &DecisionSummary) -> &'r str {
    summary.limit.map_or("", |limit| &ruleset.limits[limit.0].name)
}
