//! The course of a run over time, in a bounded number of equal bins, however long the run is.

use std::ops::AddAssign;

use crate::algorithm::Decision;
use crate::simulation::Arrival;
use crate::simulation::run::{Pass, RequestOutcome};
use crate::units::{Cost, Nanos};

/// The events in one bin of time, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bin {
    /// The tokens that requests asked for.
    pub offered: u64,
    /// The tokens of requests that passed, at the time of passing.
    pub passed: u64,
    /// The tokens of denied requests.
    pub denied: u64,
    /// The longest wait of a request that came in this bin.
    pub wait: Option<Nanos>,
    /// The longest time that the upstream takes for a request that came in this bin.
    pub latency: Option<Nanos>,
    /// The level of the state after each request.
    pub level: Option<Level>,
}

/// The range of the state's level within a bin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// The lowest level.
    pub low: f64,
    /// The highest level.
    pub high: f64,
    /// The level after the last request.
    pub last: f64,
}

/// The meaning of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelKind {
    /// Tokens that would be admitted at once.
    Remaining,
    /// The rate that the algorithm measures, in tokens per its period.
    MeasuredRate,
}

/// The bins of a run, from the whole second of its first request to the end of the traffic, or to the last pass after it.
#[derive(Clone, Debug)]
pub struct Series {
    start: Option<Nanos>,
    width: u64,
    bins: Vec<Bin>,
    level: Option<LevelKind>,
}

/// The most bins while collecting. Their width is a power of ten, and grows tenfold when more bins would be needed.
const MAX_COLLECTED: usize = 4000;

// === impl Series ===

impl Default for Series {
    fn default() -> Self {
        Self { start: None, width: 1, bins: Vec::new(), level: None }
    }
}

impl Series {
    /// Adds a request and its outcome, in the order of the run.
    pub fn add(&mut self, arrival: &Arrival, outcome: &RequestOutcome<'_>) {
        for pass in outcome.passes {
            self.note(pass.at, Bin { passed: pass.cost, ..Bin::default() });
        }
        let (wait, denied) = match outcome.decision {
            Decision::Admit { wait } => (Some(wait), 0),
            Decision::Deny(_) => (None, arrival.cost),
        };
        let level = match (outcome.measured_rate, outcome.headroom.remaining) {
            (Some(rate), _) => Some((LevelKind::MeasuredRate, rate)),
            (None, remaining) => remaining.map(|remaining| (LevelKind::Remaining, tokens(remaining))),
        };
        self.level = self.level.or(level.map(|(kind, _)| kind));
        let level = level.map(|(_, level)| Level { low: level, high: level, last: level });
        self.note(arrival.at, Bin { offered: arrival.cost, passed: 0, denied, wait, latency: outcome.latency, level });
    }

    /// Ends the series: `passes` are the last passes, and the traffic lasted until `until`, even if no request came.
    pub fn finish(&mut self, passes: &[Pass], until: Option<Nanos>) {
        for pass in passes {
            self.note(pass.at, Bin { passed: pass.cost, ..Bin::default() });
        }
        if let Some(last) = until.filter(|until| *until > Nanos::ZERO) {
            self.start.get_or_insert(Nanos::ZERO);
            self.note(last.saturating_sub(Nanos::new(1)), Bin::default());
        }
    }

    /// The bins, at most `max` of them and as many as that allows, and their width: 1, 2 or 5 times a power of ten.
    pub fn bins(&self, max: usize) -> (Nanos, Vec<Bin>) {
        let (mut width, mut steps) = (self.width, [2, 5, 10].into_iter().cycle());
        let (mut per_bin, mut decade) = (1_usize, 1_usize);
        while self.bins.len().div_ceil(per_bin) > max.max(1) {
            let step = steps.next().unwrap_or(10);
            per_bin = decade * step;
            if step == 10 {
                decade *= 10;
            }
            width = self.width.saturating_mul(per_bin as u64);
        }
        (Nanos::new(width), merged(&self.bins, per_bin))
    }

    /// The time at which the first bin begins.
    pub fn start(&self) -> Nanos {
        self.start.unwrap_or_default()
    }

    /// The meaning of the levels; `None` if there are none.
    pub const fn level(&self) -> Option<LevelKind> {
        self.level
    }

    /// Adds the events at a time. Calls may come in any order of time.
    pub fn note(&mut self, at: Nanos, part: Bin) {
        let start = *self.start.get_or_insert(Nanos::new(at.get() - at.get() % Nanos::SECOND.get()));
        let since = at.saturating_sub(start).get();
        while since / self.width >= MAX_COLLECTED as u64 {
            self.bins = merged(&self.bins, 10);
            self.width = self.width.saturating_mul(10);
        }
        let index = since / self.width;
        let index = usize::try_from(index).unwrap_or(MAX_COLLECTED);
        if index >= self.bins.len() {
            self.bins.resize(index + 1, Bin::default());
        }
        if let Some(bin) = self.bins.get_mut(index) {
            *bin += part;
        }
    }
}

impl AddAssign for Bin {
    fn add_assign(&mut self, later: Self) {
        self.offered = self.offered.saturating_add(later.offered);
        self.passed = self.passed.saturating_add(later.passed);
        self.denied = self.denied.saturating_add(later.denied);
        self.wait = self.wait.max(later.wait);
        self.latency = self.latency.max(later.latency);
        self.level = match (self.level, later.level) {
            (Some(level), Some(later)) => {
                Some(Level { low: level.low.min(later.low), high: level.high.max(later.high), last: later.last })
            }
            (level, later) => later.or(level),
        };
    }
}

fn merged(bins: &[Bin], per_bin: usize) -> Vec<Bin> {
    let merge = |bins: &[Bin]| {
        bins.iter().fold(Bin::default(), |mut sum, bin| {
            sum += *bin;
            sum
        })
    };
    bins.chunks(per_bin.max(1)).map(merge).collect()
}

#[expect(clippy::cast_precision_loss, reason = "for a picture")]
const fn tokens(count: Cost) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::KeyNumber;
    use crate::simulation::run::Run;
    use crate::simulation::testing::{UPSTREAM, queue};

    #[test]
    fn bins_widen_so_that_their_number_stays_bounded_and_nothing_is_lost() {
        let mut series = Series::default();
        for second in 0..10_000 {
            series.note(Nanos::from_secs(second), Bin { offered: 1, ..Bin::default() });
        }
        let (width, bins) = series.bins(100);
        assert_eq!((width, bins.len()), (Nanos::from_secs(100), 100));
        assert!(bins.iter().all(|bin| bin.offered == 100));
        let (width, bins) = series.bins(60);
        assert_eq!((width, bins.len()), (Nanos::from_secs(200), 50));
        series.note(Nanos::MAX, Bin { offered: 1, ..Bin::default() });
        assert_eq!(series.bins(10).1.iter().map(|bin| bin.offered).sum::<u64>(), 10_001);
    }

    #[test]
    fn a_series_goes_on_to_the_end_of_the_traffic_and_to_what_passes_last() {
        let ends = |until: Option<u64>| {
            let mut run = Run::new(queue(1, 9, Nanos::from_secs(60), None), UPSTREAM).unwrap();
            let mut series = Series::default();
            let arrival = Arrival { at: Nanos::ZERO, key: KeyNumber(0), cost: 1, set_rate: None };
            for _ in 0..4 {
                series.add(&arrival, &run.step(&arrival).unwrap());
            }
            series.finish(run.finish(), until.map(Nanos::from_secs));
            let (width, bins) = series.bins(10);
            assert_eq!(bins.iter().map(|bin| bin.passed).sum::<u64>(), 4);
            width.get() * bins.len() as u64
        };
        assert!((3_000_000_001..=4_000_000_000).contains(&ends(None)));
        assert_eq!([ends(Some(2)), ends(Some(10))], [ends(None), 10_000_000_000]);
        let mut silent = Series::default();
        silent.finish(&[], Some(Nanos::from_secs(60)));
        assert_eq!((silent.start(), silent.bins(6).1.len()), (Nanos::ZERO, 6));
    }

    #[test]
    fn a_bin_keeps_the_longest_wait_and_the_range_of_the_level() {
        let level = |level| Some(Level { low: level, high: level, last: level });
        let mut bin = Bin { wait: Some(Nanos::new(5)), level: level(3.0), ..Bin::default() };
        bin += Bin { wait: Some(Nanos::new(2)), level: level(7.0), ..Bin::default() };
        bin += Bin { level: level(4.0), ..Bin::default() };
        assert_eq!(bin.wait, Some(Nanos::new(5)));
        assert_eq!(bin.level, Some(Level { low: 3.0, high: 7.0, last: 4.0 }));
    }
}
