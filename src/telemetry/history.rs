//! The traffic of the last minute: the increase of the meters, sampled once a second (a look).
//!
//! Meters only grow, and live until no ruleset in use names their route, limit and plan ([`History::retain`]). The increase
//! of each since the last look is kept by these names, so that a reload interrupts no curve: a meter that new handles have
//! not counted on yet reads 0, which adds nothing and lowers nothing.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use parking_lot::Mutex;

use crate::ruleset::Ruleset;
use crate::telemetry::meters::{Counted, Meters, RequestTotals, Total};
use crate::telemetry::series::NamedSeries;
use crate::units::Nanos;

/// The number of samples that are kept, one a second.
pub const MAX_SAMPLES: usize = 60;
/// The number of last samples from which momentary rates are computed.
const MOMENT: usize = 5;

/// The results of the last samples.
#[derive(Debug, Default)]
pub struct History(Mutex<Samples>);

#[derive(Debug, Default)]
struct Samples {
    /// The times of the samples, the last one last, and the number of all samples ever taken.
    samples: VecDeque<Nanos>,
    number: u64,
    /// The highest totals of each meter, by a hash of its names.
    last_totals: HashMap<u64, LastTotals>,
    routes: IncreaseSeries,
    limits: IncreaseSeries,
}

/// The highest totals of one meter.
#[derive(Debug)]
struct LastTotals {
    /// The labels of the meter that come from the configuration.
    labels: Vec<(&'static str, String)>,
    totals: RequestTotals,
}

/// The increase of each name at each look, by the look's number; samples without an increase are left out.
#[derive(Debug, Default)]
struct IncreaseSeries(HashMap<String, VecDeque<(u64, RequestTotals)>>);

/// The traffic of a route or limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Activity {
    /// The rate of the last seconds.
    pub moment: RequestRate,
    /// The rate of the last minute.
    pub minute: RequestRate,
    /// The increase at each look, the last one last; one for each interval between samples.
    pub samples: Vec<RequestTotals>,
}

/// The number of requests in a period.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RequestRate {
    /// The length of the period; 0 before the second look.
    pub time: Nanos,
    /// The requests in the period, by outcome.
    pub counts: RequestTotals,
}

impl RequestRate {
    /// A count of the period as a number per second.
    #[expect(clippy::cast_precision_loss, reason = "a report")]
    pub fn per_second(&self, count: u64) -> f64 {
        match self.time {
            Nanos::ZERO => 0.0,
            time => count as f64 / time.as_secs_f64(),
        }
    }
}

impl History {
    /// Takes a look at `meters` at `now`.
    pub fn take_sample(&self, meters: &Meters, now: Nanos) {
        let mut kept = self.0.lock();
        let Samples { samples, number, last_totals, routes, limits, .. } = &mut *kept;
        *number = number.saturating_add(1);
        samples.push_back(now);
        // there is one look more than there are intervals
        while samples.len() > MAX_SAMPLES.saturating_add(1) {
            samples.pop_front();
        }
        let is_first = samples.len() == 1;
        meters.totals(|total| {
            let new = || LastTotals { labels: labels_of(&total), totals: RequestTotals::default() };
            let before = &mut last_totals.entry(hash_of(&total)).or_insert_with(new).totals;
            let increase = total.counts.since(*before);
            *before = before.max(total.counts);
            if is_first {
                return;
            }
            let over = if total.denies { increase.over } else { 0 };
            let of_route = RequestTotals { admitted: 0, over, bypassed: 0, unknown: 0, ..increase };
            routes.add(total.route, *number, of_route);
            if let Counted::Outcomes { limit, .. } = total.counted {
                limits.add(limit, *number, increase);
            }
        });
        let oldest = number.saturating_sub(MAX_SAMPLES as u64);
        routes.forget(oldest);
        limits.forget(oldest);
    }

    /// Forgets the totals of meters that no ruleset of `rulesets` has, after [`super::Telemetry::retain`]: they begin at 0 if
    /// they come back.
    pub fn retain(&self, rulesets: &[&Ruleset]) {
        let wanted = NamedSeries::of(rulesets);
        self.0.lock().last_totals.retain(|_, last| {
            let labels = last.labels.iter().map(|(label, name)| (*label, name.as_str()));
            wanted.has(&labels.collect())
        });
    }

    /// The traffic of the route of this name: responses, and the requests that limits denied or delayed.
    pub fn of_route(&self, name: &str) -> Activity {
        let kept = self.0.lock();
        kept.activity(&kept.routes, name)
    }

    /// The traffic of the limit of this name.
    pub fn of_limit(&self, name: &str) -> Activity {
        let kept = self.0.lock();
        kept.activity(&kept.limits, name)
    }
}

impl Samples {
    fn activity(&self, tracks: &IncreaseSeries, name: &str) -> Activity {
        let intervals = self.samples.len().saturating_sub(1);
        let mut samples = vec![RequestTotals::default(); intervals];
        let last = self.number;
        for (number, increase) in tracks.0.get(name).into_iter().flatten() {
            let ago = usize::try_from(last.saturating_sub(*number)).unwrap_or(usize::MAX);
            let place = intervals.checked_sub(1).and_then(|newest| newest.checked_sub(ago));
            if let Some(look) = place.and_then(|place| samples.get_mut(place)) {
                *look = look.plus(*increase);
            }
        }
        Activity { moment: self.rate_over(&samples, MOMENT), minute: self.rate_over(&samples, MAX_SAMPLES), samples }
    }

    /// The requests at the last `max_samples` samples.
    fn rate_over(&self, samples: &[RequestTotals], max_samples: usize) -> RequestRate {
        let some = samples.len().min(max_samples);
        let began = self.samples.iter().rev().nth(some).copied();
        let time = self.samples.back().zip(began).map_or(Nanos::ZERO, |(ended, began)| ended.saturating_sub(began));
        let counts = samples.iter().rev().take(some).fold(RequestTotals::default(), |sum, look| sum.plus(*look));
        RequestRate { time, counts }
    }
}

impl IncreaseSeries {
    fn add(&mut self, name: &str, number: u64, increase: RequestTotals) {
        if increase == RequestTotals::default() {
            return;
        }
        match self.0.get_mut(name) {
            Some(track) => match track.back_mut() {
                Some((last, sum)) if *last == number => *sum = sum.plus(increase),
                _ => track.push_back((number, increase)),
            },
            None => drop(self.0.insert(name.to_owned(), VecDeque::from([(number, increase)]))),
        }
    }

    /// Forgets the increases at samples up to `oldest`.
    fn forget(&mut self, oldest: u64) {
        self.0.retain(|_, track| {
            while track.front().is_some_and(|(number, _)| *number <= oldest) {
                track.pop_front();
            }
            !track.is_empty()
        });
    }
}

fn labels_of(total: &Total<'_>) -> Vec<(&'static str, String)> {
    let labels = match total.counted {
        Counted::Answers(_) => vec![("route", total.route)],
        Counted::Outcomes { limit, plan } => vec![("route", total.route), ("limit", limit), ("plan", plan)],
    };
    labels.into_iter().map(|(label, name)| (label, name.to_owned())).collect()
}

/// The hash of all names of a meter.
fn hash_of(total: &Total<'_>) -> u64 {
    let mut hash = DefaultHasher::new();
    (total.route, total.counted).hash(&mut hash);
    hash.finish()
}
