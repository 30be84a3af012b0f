//! The keys of all limits that are denied most, counted in bounded memory over whole minutes.
//!
//! Two minutes are kept, the current one and the one before it, each in 16 sketches of 64 counters. A key belongs to one
//! sketch. A count is never too low, and too high by at most the error beside it; a key with more denials than
//! [`TopOffenders::error`] always has a count. That error is at most the denials of a sketch divided by its counters: of n
//! denials about n/1024, whatever their keys.

mod sketch;

pub use sketch::{Counter, Sketch};

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::units::{LimitKey, Nanos};

/// The number of shards, each with a lock of its own.
const SHARDS: usize = 16;
/// How many keys each shard counts in a minute.
const COUNTERS: usize = 64;
const MINUTE: Nanos = Nanos::from_secs(60);

/// A denied key and its limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitedKey {
    /// The limit's name.
    pub limit: String,
    /// The parts of the key, each with the request's value in a form that may be shown; `None` if the request had none.
    pub key: Vec<(String, Option<String>)>,
}

/// Counts denials by key.
#[derive(Debug)]
pub struct Offenders {
    shards: Box<[Mutex<Shard>]>,
}

/// The counts under one lock.
#[derive(Debug)]
struct Shard {
    /// The current minute, counted from 1970.
    minute: u64,
    /// The denials of the last whole minute, then those of the current one.
    minutes: [Denials; 2],
}

/// The denials of one minute.
type Denials = Sketch<Arc<LimitedKey>>;

/// The keys that were denied most in a period.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TopOffenders {
    /// The start of the period.
    pub from: Nanos,
    /// The end of the period.
    pub until: Nanos,
    /// All denials in the period.
    pub denials: u64,
    /// A key that was denied more often than this is among the offenders.
    pub error: u64,
    /// The keys, the most denied first.
    pub offenders: Vec<Offender>,
}

/// A key that was denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offender {
    /// The key and its limit.
    pub subject: Arc<LimitedKey>,
    /// How often it was denied, at most.
    pub denied: u64,
    /// By how much `denied` may be too high.
    pub error: u64,
}

impl LimitedKey {
    /// The values of the key in one line; `all` if the limit has one bucket for all requests.
    pub fn line(&self) -> String {
        match self.key.as_slice() {
            [] => "all".to_owned(),
            parts => {
                let values = parts.iter().map(|(part, value)| value.clone().unwrap_or_else(|| format!("no {part}")));
                values.collect::<Vec<_>>().join(", ")
            }
        }
    }
}

impl Default for Offenders {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::new(Shard::new())).collect() }
    }
}

impl Offenders {
    /// Counts a denial of the bucket `key` at `now`. `subject` describes the key, and is called only for a key without a
    /// counter.
    pub fn denied(&self, key: LimitKey, now: Nanos, subject: impl FnOnce() -> LimitedKey) {
        let shard = usize::try_from(key.0 % SHARDS as u128).unwrap_or_default();
        if let Some(shard) = self.shards.get(shard) {
            let mut shard = shard.lock();
            shard.advance_to(minute_of(now));
            shard.minutes[1].add(key.0, || Arc::new(subject()));
        }
    }

    /// The keys that were denied most in the last whole minute.
    pub fn of_last_minute(&self, now: Nanos) -> TopOffenders {
        self.top(now, start_of(minute_of(now)), |shard| &shard.minutes[..1])
    }

    /// The keys that were denied most in the last whole minute and the current one.
    pub fn recent(&self, now: Nanos) -> TopOffenders {
        self.top(now, now, |shard| &shard.minutes)
    }

    fn top(&self, now: Nanos, until: Nanos, minutes: fn(&Shard) -> &[Denials]) -> TopOffenders {
        let minute = minute_of(now);
        let from = start_of(minute).saturating_sub(MINUTE);
        let mut top = TopOffenders { from, until, ..TopOffenders::default() };
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.advance_to(minute);
            top.add(minutes(&shard));
        }
        top.in_order()
    }
}

impl Shard {
    fn new() -> Self {
        Self { minute: 0, minutes: [Sketch::new(COUNTERS), Sketch::new(COUNTERS)] }
    }

    /// Makes `minute` the current minute, unless it is an earlier one.
    fn advance_to(&mut self, minute: u64) {
        if minute <= self.minute {
            return;
        }
        self.minutes.swap(0, 1);
        self.minutes[1].clear();
        if minute > self.minute.saturating_add(1) {
            self.minutes[0].clear();
        }
        self.minute = minute;
    }
}

impl TopOffenders {
    /// Adds the keys that were denied in any of the `minutes` of a shard.
    fn add(&mut self, minutes: &[Denials]) {
        let sum = |of: &dyn Fn(&Denials) -> u64| minutes.iter().map(of).fold(0, u64::saturating_add);
        self.denials = self.denials.saturating_add(sum(&Sketch::events));
        self.error = self.error.max(sum(&Sketch::floor));
        let counters = minutes.iter().flat_map(Sketch::counters);
        let keys: HashMap<u128, &Arc<LimitedKey>> = counters.map(|counter| (counter.key, counter.name)).collect();
        self.offenders.extend(keys.into_iter().map(|(key, subject)| Offender {
            subject: Arc::clone(subject),
            denied: sum(&|minute| minute.count(key).0),
            error: sum(&|minute| minute.count(key).1),
        }));
    }

    fn in_order(mut self) -> Self {
        self.offenders.sort_by(|a, b| {
            let by = |one: &Offender| std::cmp::Reverse((one.denied, one.denied.saturating_sub(one.error)));
            by(a)
                .cmp(&by(b))
                .then_with(|| a.subject.limit.cmp(&b.subject.limit))
                .then_with(|| a.subject.key.cmp(&b.subject.key))
        });
        self
    }
}

fn minute_of(now: Nanos) -> u64 {
    now.get() / MINUTE.get()
}

fn start_of(minute: u64) -> Nanos {
    Nanos::new(minute.saturating_mul(MINUTE.get()))
}

#[cfg(test)]
mod tests;
