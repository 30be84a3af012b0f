//! How two sets of rules differ on the same requests.

use std::collections::BTreeMap;
use std::hash::BuildHasher;

use hashbrown::DefaultHashBuilder;
use serde::Serialize;

use super::decisions::DecisionSummary;
use super::record::LogPosition;
use super::tally::Count;
use super::top::Top;
use crate::ruleset::LimitId;
use crate::ruleset::matcher::RouteId;
use crate::units::{LimitKey, Nanos};

/// How many requests that are decided differently are shown.
const SHOWN: usize = 5;

/// What two sets of rules make of the same requests.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// All that neither refuses before its limits.
    pub cells: Cells,
    /// By the route that they take under the first.
    pub routes: BTreeMap<usize, Cells>,
    /// Those that only the first denies.
    pub only_first: Differing,
    /// Those that only the second denies.
    pub only_second: Differing,
    /// Those that one refuses before any limit, for another cause or where the other does not.
    pub refused_differently: u64,
    hasher: DefaultHashBuilder,
}

/// How many requests each of two denies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cells {
    /// Denied by neither.
    pub neither: u64,
    /// Denied by both.
    pub both: u64,
    /// Denied by the first only.
    pub only_first: u64,
    /// Denied by the second only.
    pub only_second: u64,
}

/// Requests that one denies and the other does not.
#[derive(Clone, Debug, Default)]
pub struct Differing {
    /// When.
    pub count: Count,
    /// Whose.
    pub top: Top,
    /// The first of them, and the limits that deny them.
    pub shown: Vec<(LogPosition, Nanos, Option<LimitId>)>,
}

impl Cells {
    /// How many requests there are.
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
    /// A request and what becomes of it under each.
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
