//! The traffic of the last minute: the increase of the meters, sampled once a second (a look).
//!
//! Meters only grow, and live as long as a ruleset names their route and limit. The increase of each since the last look
//! is kept by the names of routes and limits, so that a reload interrupts no curve: a meter that new handles have not
//! counted on yet reads 0, which adds nothing and lowers nothing.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use parking_lot::Mutex;

use crate::ruleset::Ruleset;
use crate::telemetry::meters::{Meters, RequestTotals, Total};
use crate::telemetry::names::NO_ROUTE;
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
    /// Identifies the configuration that was in force.
    config: String,
    /// The highest totals of each meter, by a hash of its names, with a hash of its route's name.
    last_totals: HashMap<u64, (u64, RequestTotals)>,
    routes: IncreaseSeries,
    limits: IncreaseSeries,
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
    /// Takes a look at the meters of `ruleset`, which `config` identifies, at `now`.
    pub fn take_sample(&self, meters: &Meters, (ruleset, config): (&Ruleset, &str), now: Nanos) {
        let mut kept = self.0.lock();
        if kept.config != config {
            kept.forget_others(ruleset);
            config.clone_into(&mut kept.config);
        }
        let Samples { samples, number, last_totals, routes, limits, .. } = &mut *kept;
        *number = number.saturating_add(1);
        samples.push_back(now);
        // there is one look more than there are intervals
        while samples.len() > MAX_SAMPLES.saturating_add(1) {
            samples.pop_front();
        }
        let is_first = samples.len() == 1;
        meters.totals(ruleset, |total| {
            let counts = counts_of(&total);
            let (route, name) = names_of(&total);
            let (_, before) = last_totals.entry(name).or_insert((route, RequestTotals::default()));
            let increase = counts.since(*before);
            *before = before.most(counts);
            if is_first || increase == RequestTotals::default() {
                return;
            }
            match total {
                Total::Answers { route, .. } => routes.add(route, *number, increase),
                Total::Outcomes { route, limit, denies, .. } => {
                    let over = if denies { increase.over } else { 0 };
                    routes.add(
                        route,
                        *number,
                        RequestTotals { over, delayed: increase.delayed, ..RequestTotals::default() },
                    );
                    limits.add(limit, *number, increase);
                }
            }
        });
        let oldest = number.saturating_sub(MAX_SAMPLES as u64);
        routes.forget(oldest);
        limits.forget(oldest);
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
    /// Forgets the totals of routes that `ruleset` does not have: their meters are gone, and begin at 0 if they come back.
    fn forget_others(&mut self, ruleset: &Ruleset) {
        let routes = ruleset.matcher.all().iter().map(|route| hash_of(route.name.as_str()));
        let known: HashSet<u64> = routes.chain([hash_of(NO_ROUTE)]).collect();
        self.last_totals.retain(|_, (route, _)| known.contains(route));
    }

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

    /// The requests at the last `most` samples.
    fn rate_over(&self, samples: &[RequestTotals], most: usize) -> RequestRate {
        let some = samples.len().min(most);
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

fn counts_of(total: &Total<'_>) -> RequestTotals {
    match *total {
        Total::Answers { code, count, .. } => {
            RequestTotals { answered: count, failed: if code >= 500 { count } else { 0 }, ..RequestTotals::default() }
        }
        Total::Outcomes { counts, .. } => counts,
    }
}

/// The hash of a meter's route name, and the hash of all its names.
fn names_of(total: &Total<'_>) -> (u64, u64) {
    match total {
        Total::Answers { route, code, .. } => (hash_of(route), hash_of(&(route, code))),
        Total::Outcomes { route, limit, plan, .. } => (hash_of(route), hash_of(&(route, limit, plan))),
    }
}

fn hash_of(name: &(impl Hash + ?Sized)) -> u64 {
    let mut hash = DefaultHasher::new();
    name.hash(&mut hash);
    hash.finish()
}
