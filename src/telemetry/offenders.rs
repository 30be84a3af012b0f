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
    running: Sketch<Arc<LimitedKey>>,
    closed: Sketch<Arc<LimitedKey>>,
}

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
            shard.running.add(key.0, || Arc::new(subject()));
        }
    }

    /// The keys that were denied most in the last whole minute.
    pub fn of_last_minute(&self, now: Nanos) -> TopOffenders {
        let minute = minute_of(now);
        let until = start_of(minute);
        let mut top = TopOffenders { from: until.saturating_sub(MINUTE), until, ..TopOffenders::default() };
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.advance_to(minute);
            top.denials = top.denials.saturating_add(shard.closed.events());
            top.error = top.error.max(shard.closed.floor());
            let counters = shard.closed.counters();
            top.offenders.extend(counters.map(|Counter { name, count, error, .. }| Offender {
                subject: Arc::clone(name),
                denied: count,
                error,
            }));
        }
        top.in_order()
    }

    /// The keys that were denied most in the last whole minute and the current one.
    pub fn recent(&self, now: Nanos) -> TopOffenders {
        let minute = minute_of(now);
        let mut top =
            TopOffenders { from: start_of(minute).saturating_sub(MINUTE), until: now, ..TopOffenders::default() };
        for shard in &self.shards {
            let mut shard = shard.lock();
            shard.advance_to(minute);
            shard.add_both(&mut top);
        }
        top.in_order()
    }
}

impl Shard {
    fn new() -> Self {
        Self { minute: 0, running: Sketch::new(COUNTERS), closed: Sketch::new(COUNTERS) }
    }

    /// Makes `minute` the current minute, unless it is an earlier one.
    fn advance_to(&mut self, minute: u64) {
        if minute <= self.minute {
            return;
        }
        std::mem::swap(&mut self.running, &mut self.closed);
        self.running.clear();
        if minute > self.minute.saturating_add(1) {
            self.closed.clear();
        }
        self.minute = minute;
    }

    /// Adds the keys of both minutes. A key without a counter in a minute may have been denied there as often as the
    /// key with the lowest count.
    fn add_both(&self, top: &mut TopOffenders) {
        top.denials = top.denials.saturating_add(self.closed.events()).saturating_add(self.running.events());
        let floor = self.closed.floor().saturating_add(self.running.floor());
        top.error = top.error.max(floor);
        let before: HashMap<u128, (u64, u64)> =
            self.closed.counters().map(|counter| (counter.key, (counter.count, counter.error))).collect();
        let unknown = |sketch: &Sketch<Arc<LimitedKey>>| (sketch.floor(), sketch.floor());
        let mut both = |name: &Arc<LimitedKey>, here: (u64, u64), there: (u64, u64)| {
            top.offenders.push(Offender {
                subject: Arc::clone(name),
                denied: here.0.saturating_add(there.0),
                error: here.1.saturating_add(there.1),
            });
        };
        let mut runs = std::collections::HashSet::new();
        for Counter { key, name, count, error } in self.running.counters() {
            let there = before.get(&key).copied().unwrap_or_else(|| unknown(&self.closed));
            both(name, (count, error), there);
            runs.insert(key);
        }
        for Counter { name, count, error, .. } in self.closed.counters().filter(|known| !runs.contains(&known.key)) {
            both(name, (count, error), unknown(&self.running));
        }
    }
}

impl TopOffenders {
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
