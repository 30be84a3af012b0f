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

/// The number of looks that are kept, one a second.
pub const LOOKS: usize = 60;
/// The number of last looks from which momentary rates are computed.
const MOMENT: usize = 5;

/// The results of the last looks.
#[derive(Debug, Default)]
pub struct History(Mutex<Samples>);

#[derive(Debug, Default)]
struct Samples {
    /// The times of the looks, the last one last, and the number of all looks ever taken.
    looks: VecDeque<Nanos>,
    number: u64,
    /// Identifies the configuration that was in force.
    config: String,
    /// The highest totals of each meter, by a hash of its names, with a hash of its route's name.
    said: HashMap<u64, (u64, RequestTotals)>,
    routes: Tracks,
    limits: Tracks,
}

/// The increase of each name at each look, by the look's number; looks without an increase are left out.
#[derive(Debug, Default)]
struct Tracks(HashMap<String, VecDeque<(u64, RequestTotals)>>);

/// The traffic of a route or limit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Activity {
    /// The rate of the last seconds.
    pub moment: RequestRate,
    /// The rate of the last minute.
    pub minute: RequestRate,
    /// The increase at each look, the last one last; one for each interval between looks.
    pub looks: Vec<RequestTotals>,
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
    pub fn look(&self, meters: &Meters, (ruleset, config): (&Ruleset, &str), now: Nanos) {
        let mut kept = self.0.lock();
        if kept.config != config {
            kept.forget_others(ruleset);
            config.clone_into(&mut kept.config);
        }
        let Samples { looks, number, said, routes, limits, .. } = &mut *kept;
        *number = number.saturating_add(1);
        looks.push_back(now);
        // there is one look more than there are intervals
        while looks.len() > LOOKS.saturating_add(1) {
            looks.pop_front();
        }
        let is_first = looks.len() == 1;
        meters.totals(ruleset, |total| {
            let counts = counts_of(&total);
            let (route, name) = names_of(&total);
            let (_, before) = said.entry(name).or_insert((route, RequestTotals::default()));
            let came = counts.since(*before);
            *before = before.most(counts);
            if is_first || came == RequestTotals::default() {
                return;
            }
            match total {
                Total::Answers { route, .. } => routes.add(route, *number, came),
                Total::Outcomes { route, limit, denies, .. } => {
                    let over = if denies { came.over } else { 0 };
                    routes.add(
                        route,
                        *number,
                        RequestTotals { over, delayed: came.delayed, ..RequestTotals::default() },
                    );
                    limits.add(limit, *number, came);
                }
            }
        });
        let oldest = number.saturating_sub(LOOKS as u64);
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
        self.said.retain(|_, (route, _)| known.contains(route));
    }

    fn activity(&self, tracks: &Tracks, name: &str) -> Activity {
        let intervals = self.looks.len().saturating_sub(1);
        let mut looks = vec![RequestTotals::default(); intervals];
        let last = self.number;
        for (number, came) in tracks.0.get(name).into_iter().flatten() {
            let ago = usize::try_from(last.saturating_sub(*number)).unwrap_or(usize::MAX);
            let place = intervals.checked_sub(1).and_then(|newest| newest.checked_sub(ago));
            if let Some(look) = place.and_then(|place| looks.get_mut(place)) {
                *look = look.plus(*came);
            }
        }
        Activity { moment: self.pace(&looks, MOMENT), minute: self.pace(&looks, LOOKS), looks }
    }

    /// The requests at the last `most` looks.
    fn pace(&self, looks: &[RequestTotals], most: usize) -> RequestRate {
        let some = looks.len().min(most);
        let began = self.looks.iter().rev().nth(some).copied();
        let time = self.looks.back().zip(began).map_or(Nanos::ZERO, |(ended, began)| ended.saturating_sub(began));
        let counts = looks.iter().rev().take(some).fold(RequestTotals::default(), |sum, look| sum.plus(*look));
        RequestRate { time, counts }
    }
}

impl Tracks {
    fn add(&mut self, name: &str, number: u64, came: RequestTotals) {
        if came == RequestTotals::default() {
            return;
        }
        match self.0.get_mut(name) {
            Some(track) => match track.back_mut() {
                Some((last, sum)) if *last == number => *sum = sum.plus(came),
                _ => track.push_back((number, came)),
            },
            None => drop(self.0.insert(name.to_owned(), VecDeque::from([(number, came)]))),
        }
    }

    /// Forgets the increases at looks up to `oldest`.
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
