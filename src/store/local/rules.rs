//! The numbered sets of parameters that a limit was charged under.

use std::fmt;
use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use crate::algorithm::Rule;

/// The sets of parameters, by number and by value.
#[derive(Default)]
pub(super) struct Rules {
    all: Vec<Rule>,
    numbers: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl Rules {
    /// The set with this number.
    pub(super) fn get(&self, number: u32) -> Option<&Rule> {
        self.all.get(usize::try_from(number).ok()?)
    }

    /// The sets with this number and larger ones.
    pub(super) fn from(&self, number: usize) -> impl Iterator<Item = &Rule> {
        self.all.iter().skip(number)
    }

    /// The number of `rule`, if it is known.
    pub(super) fn find(&self, rule: &Rule) -> Option<u32> {
        self.numbers.find(self.hasher.hash_one(rule), |number| self.get(*number) == Some(rule)).copied()
    }

    /// The number of `rule`; adds the rule if it is new.
    pub(super) fn insert(&mut self, rule: &Rule) -> u32 {
        if let Some(known) = self.find(rule) {
            return known;
        }
        let number = u32::try_from(self.all.len()).expect("fewer than 2^32 sets of parameters fit into memory");
        self.all.push(rule.clone());
        let Self { all, numbers, hasher } = self;
        let rehash =
            |number: &u32| usize::try_from(*number).ok().and_then(|at| all.get(at)).map(|rule| hasher.hash_one(rule));
        numbers.insert_unique(hasher.hash_one(rule), number, |number| rehash(number).unwrap_or_default());
        number
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.all.fmt(f)
    }
}
