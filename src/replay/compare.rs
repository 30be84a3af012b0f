//! Compares two sets of rules on the same requests.

use std::collections::BTreeMap;
use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;
use serde::Serialize;

use super::decisions::DecisionSummary;
use super::record::LogPosition;
use super::tally::DenialCounts;
use super::top::TopKeys;
use crate::ruleset::LimitId;
use crate::ruleset::matcher::RouteId;
use crate::units::{LimitKey, Nanos};

/// The number of requests that are kept as examples of those that only one set of rules denies.
const SHOWN: usize = 5;

/// The comparison of two sets of rules on the same requests.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// All requests except those that both sets refuse before any limit.
    pub cells: DenialMatrix,
    /// The same requests, by their route under the first set.
    pub routes: BTreeMap<usize, DenialMatrix>,
    /// The requests that only the first set denies.
    pub only_first: DifferingRequests,
    /// The requests that only the second set denies.
    pub only_second: DifferingRequests,
    /// The number of requests that only one set refuses before any limit, or that both refuse for different causes.
    pub refused_differently: u64,
    hasher: DefaultHashBuilder,
}

/// The number of requests, by which of two sets of rules deny them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DenialMatrix {
    /// Denied by neither.
    pub neither: u64,
    /// Denied by both.
    pub both: u64,
    /// Denied by the first only.
    pub only_first: u64,
    /// Denied by the second only.
    pub only_second: u64,
}

/// Requests that one set of rules denies and the other does not.
#[derive(Clone, Debug, Default)]
pub struct DifferingRequests {
    /// Their number and times.
    pub count: DenialCounts,
    /// The callers with the most of them.
    pub top: TopKeys,
    /// The first of them, each with its position, its time and the limit that denies it.
    pub shown: Vec<(LogPosition, Nanos, Option<LimitId>)>,
}

impl DenialMatrix {
    /// The number of all requests.
    pub const fn all(&self) -> u64 {
        self.neither + self.both + self.only_first + self.only_second
    }

    fn add(&mut self, first: bool, second: bool) {
        match (first, second) {
            (false, false) => self.neither += 1,
            (true, true) => self.both += 1,
            (true, false) => self.only_first += 1,
            (false, true) => self.only_second += 1,
        }
    }
}

impl Comparison {
    /// Counts a request and the decisions of both sets on it.
    pub fn add(&mut self, spot: LogPosition, at: Nanos, first: &DecisionSummary, second: &DecisionSummary) {
        if first.cause != second.cause {
            self.refused_differently += 1;
        }
        if first.cause.is_some() && second.cause.is_some() {
            return;
        }
        self.cells.add(first.denied, second.denied);
        if let Some(RouteId(route)) = first.route {
            self.routes.entry(route).or_default().add(first.denied, second.denied);
        }
        let (differing, denied) = match (first.denied, second.denied) {
            (true, false) => (&mut self.only_first, first),
            (false, true) => (&mut self.only_second, second),
            _ => return,
        };
        differing.count.add(at, true);
        let who = denied.caller.as_deref().unwrap_or_default();
        let key = LimitKey(u128::from(self.hasher.hash_one(who)));
        differing.top.add(key, at, || who.to_owned());
        if differing.shown.len() < SHOWN {
            differing.shown.push((spot, at, denied.limit));
        }
    }
}
