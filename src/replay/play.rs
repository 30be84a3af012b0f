//! Plays lines through one or two sets of rules and counts the decisions.

use std::io::{self, Write};

use super::compare::Comparison;
use super::decisions::{DecisionSummary, DecisionWriter};
use super::fields::WantedFields;
use super::record::{ArrivalSpan, LogLine, LogPosition, Record, Unreadable};
use super::replayer::Replayer;
use super::tally::Tally;
use crate::ruleset::outcome::{OutcomeKind, OutcomeSummary};
use crate::units::Nanos;

/// How many unreadable lines are shown.
pub const SHOWN: usize = 5;

/// The status of a denied request, Too Many Requests.
const TOO_MANY: u16 = 429;

/// The time within its second at which a request is played whose timestamp is a whole second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecondPlacement {
    /// The time that results when the requests of a second are spread evenly over it.
    Spread,
    /// The first time in the second at which the limits admit the request, for [`Replayer::only_certain`].
    Best,
}

/// One set of rules and its counts.
pub struct RulesetRun {
    /// The name of the rules in messages.
    pub name: String,
    /// Decides by the rules.
    pub replayer: Replayer,
    /// The counts.
    pub tally: Tally,
}

/// Counts of the lines that do not depend on the rules.
#[derive(Clone, Debug, Default)]
pub struct LineCounts {
    /// The number of all lines.
    pub all: u64,
    /// The number of lines that cannot be used.
    pub unreadable: u64,
    /// The first lines that cannot be used.
    pub shown: Vec<(LogPosition, Unreadable)>,
    /// The time of the first request and of the last.
    pub times: Option<(Nanos, Nanos)>,
    /// The number of lines whose timestamps are whole seconds.
    pub whole_seconds: u64,
    /// The number of lines with status 429.
    pub too_many: u64,
    /// The number of lines that have each header field that the rules ask about.
    pub header_counts: Vec<u64>,
}

/// Plays lines through all sets of rules.
pub struct Player<W: Write> {
    /// The rules to try.
    pub side: RulesetRun,
    /// The rules to compare with, and the comparison.
    pub against: Option<(RulesetRun, Comparison)>,
    /// The time of requests whose timestamps are not exact.
    pub within: SecondPlacement,
    /// The output for every decision.
    pub decisions: Option<DecisionWriter<W>>,
    /// Counts of the lines.
    pub lines: LineCounts,
}

impl SecondPlacement {
    /// The arrival of a request that is placed `at` this time.
    fn arrival(self, at: Nanos, record: &Record) -> ArrivalSpan {
        let is_late = record.is_late(at);
        match record.within_second.filter(|_| self == Self::Best && !is_late) {
            None => ArrivalSpan { earliest: at, latest: at, is_late },
            Some(within) => {
                let max = Nanos::new(Nanos::SECOND.get() - 1);
                let (before, after) = match record.took {
                    None => (within, max.saturating_sub(within)),
                    // requests that took different times may have come in another order: the span is that of any place
                    Some(_) => (max, max),
                };
                ArrivalSpan { earliest: at.saturating_sub(before), latest: at.saturating_add(after), is_late }
            }
        }
    }
}

impl RulesetRun {
    /// A set of rules before the first line.
    pub fn new(name: String, replayer: Replayer, pictures: bool) -> Self {
        let tally = Tally::new(&replayer.rules().ruleset, pictures);
        Self { name, replayer, tally }
    }

    /// Decides a request and counts the decision, if it `counts`. Returns a summary if one `is_wanted`.
    fn play(
        &mut self,
        arrival: ArrivalSpan,
        record: &Record,
        counts: bool,
        is_wanted: bool,
    ) -> Option<DecisionSummary> {
        let Self { replayer, tally, .. } = self;
        replayer.decide(arrival, record, |decided, ruleset| {
            let summary = match decided.refused {
                Some(_) => OutcomeSummary::at_once(OutcomeKind::Refused, None),
                None => decided.verdict.summary(ruleset, decided.bypassed),
            };
            if counts {
                tally.add(ruleset, decided, summary.kind);
                if let (Some("no_route"), Some(target)) = (decided.refused, &record.target) {
                    tally.add_unrouted(target);
                }
            }
            is_wanted.then(|| DecisionSummary::of(decided, summary))
        })
    }
}

impl<W: Write> Player<W> {
    /// A player before the first line.
    pub fn new(
        side: RulesetRun,
        against: Option<RulesetRun>,
        within: SecondPlacement,
        decisions: Option<DecisionWriter<W>>,
        wanted: &WantedFields,
    ) -> Self {
        let lines = LineCounts { header_counts: vec![0; wanted.headers.len()], ..LineCounts::default() };
        Self { side, against: against.map(|side| (side, Comparison::default())), within, decisions, lines }
    }

    /// How many requests are denied (with `SecondPlacement::Best` for certain); in a comparison, how many the rules to try
    /// deny and the other rules do not.
    pub fn denied(&self) -> u64 {
        match &self.against {
            _ if self.within == SecondPlacement::Best => self.denied_for_certain(),
            Some((_, comparison)) => comparison.cells.only_first,
            None => self.side.tally.all.denied,
        }
    }

    /// The denials of each limit, and only the most where limits share a route: they may deny the same requests.
    fn denied_for_certain(&self) -> u64 {
        let ruleset = &self.side.replayer.rules().ruleset;
        let mut groups: Vec<usize> = (0..ruleset.limits.len()).collect();
        for neighbours in ruleset.matcher.routes().iter().flat_map(|route| route.limits.windows(2)) {
            let (one, other) = (groups[neighbours[0].0], groups[neighbours[1].0]);
            groups.iter_mut().filter(|group| **group == other).for_each(|group| *group = one);
        }
        let mut denied = vec![0; groups.len()];
        for (group, (limit, tally)) in groups.into_iter().zip(ruleset.limits.iter().zip(&self.side.tally.limits)) {
            if limit.enforces() {
                denied[group] = tally.plans.iter().map(|plan| plan.denied).sum::<u64>().max(denied[group]);
            }
        }
        denied.into_iter().sum()
    }

    /// Plays one line.
    pub fn play(&mut self, line: &LogLine<'_>) -> io::Result<()> {
        self.lines.all += 1;
        let (spot, at, record) = match *line {
            LogLine::Request { spot, at, record } => (spot, at, record),
            LogLine::Unreadable { spot, ref why } => {
                self.lines.unreadable += 1;
                if let Some(decisions) = &mut self.decisions {
                    decisions.unreadable(spot)?;
                }
                if self.lines.shown.len() < SHOWN {
                    self.lines.shown.push((spot, why.clone()));
                }
                return Ok(());
            }
        };
        let first = self.lines.times.map_or(at, |(first, _)| first);
        self.lines.times = Some((first, at));
        self.lines.whole_seconds += u64::from(record.within_second.is_some());
        self.lines.too_many += u64::from(record.status == Some(TOO_MANY));
        for (position, _) in &record.headers {
            if let Some(count) = self.lines.header_counts.get_mut(*position) {
                *count += 1;
            }
        }
        let is_wanted = self.decisions.is_some() || self.against.is_some();
        let arrival = self.within.arrival(at, record);
        let other = self.against.as_mut().and_then(|(side, _)| side.play(arrival, record, true, is_wanted));
        let counts = self.within == SecondPlacement::Spread || other.as_ref().is_none_or(|other| !other.denied);
        let Some(summary) = self.side.play(arrival, record, counts, is_wanted) else { return Ok(()) };
        if let (Some((_, comparison)), Some(other)) = (&mut self.against, &other) {
            comparison.add(spot, at, &summary, other);
        }
        if let Some(decisions) = &mut self.decisions {
            let ruleset = &self.side.replayer.rules().ruleset;
            let against = self.against.as_ref().map(|(side, _)| &side.replayer.rules().ruleset).zip(other.as_ref());
            decisions.write(spot, at, ruleset, &summary, against)?;
        }
        Ok(())
    }
}
