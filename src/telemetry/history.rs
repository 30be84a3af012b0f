//! How much there was to do in the last minute: what the meters say, looked at once a second.
//!
//! Meters only grow, and live as long as something names their route and limit. What came to each since the last look is
//! kept by the names of routes and limits, so that a reload breaks no line: what new handles have not touched yet reads
//! as nothing, and stands where it stood.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};

use parking_lot::Mutex;

use crate::ruleset::Ruleset;
use crate::telemetry::meters::{Meters, RequestTotals, Total};
use crate::telemetry::names::NO_ROUTE;
use crate::units::Nanos;

/// How many looks are kept, one a second.
pub const LOOKS: usize = 60;
/// The last of them, which rates of the moment are taken from.
const MOMENT: usize = 5;

/// What the last looks showed.
#[derive(Debug, Default)]
pub struct History(Mutex<Samples>);

#[derive(Debug, Default)]
struct Samples {
    /// The times of the looks, the last one last, and how many there were in all.
    looks: VecDeque<Nanos>,
    number: u64,
    /// Identifies the configuration that was in force.
    config: String,
    /// The most that each meter said, by a hash of its names, and a hash of the name of its route.
    said: HashMap<u64, (u64, RequestTotals)>,
    routes: Tracks,
    limits: Tracks,
}

/// What came to each name at some looks: those at which anything did, by their number.
#[derive(Debug, Default)]
struct Tracks(HashMap<String, VecDeque<(u64, RequestTotals)>>);

/// How much came to something.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Activity {
    /// In the last seconds.
    pub moment: RequestRate,
    /// In the last minute.
    pub minute: RequestRate,
    /// At each look, the last one last; as many as there were.
    pub looks: Vec<RequestTotals>,
}

/// How much came in some time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RequestRate {
    /// How long it was; 0 where nobody has looked twice yet.
    pub time: Nanos,
    /// What came in it.
    pub counts: RequestTotals,
}

impl RequestRate {
    /// So many in a second.
    #[expect(clippy::cast_precision_loss, reason = "a report")]
    pub fn per_second(&self, count: u64) -> f64 {
        match self.time {
            Nanos::ZERO => 0.0,
            time => count as f64 / time.as_secs_f64(),
        }
    }
}

impl History {
    /// Looks at the meters of `ruleset`, which `config` identifies, at `now`.
    pub fn look(&self, meters: &Meters, (ruleset, config): (&Ruleset, &str), now: Nanos) {
        let mut kept = self.0.lock();
        if kept.config != config {
            kept.forget_others(ruleset);
            config.clone_into(&mut kept.config);
        }
        let Samples { looks, number, said, routes, limits, .. } = &mut *kept;
        *number = number.saturating_add(1);
        looks.push_back(now);
        // one more than intervals
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

    /// How much came to the route of this name: answers, and what limits denied or delayed.
    pub fn of_route(&self, name: &str) -> Activity {
        let kept = self.0.lock();
        kept.activity(&kept.routes, name)
    }

    /// How much came to the limit of this name.
    pub fn of_limit(&self, name: &str) -> Activity {
        let kept = self.0.lock();
        kept.activity(&kept.limits, name)
    }
}

impl Samples {
    /// Forgets meters of routes that `ruleset` does not have: they are gone, and begin anew when they come back.
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

    /// What came at the last `most` looks.
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

    /// Forgets what came at looks up to `oldest`.
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

/// Of the route, and of all names of a meter.
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
