//! The numbered sets of parameters that a limit was charged under.

use hashbrown::DefaultHashBuilder;
use indexmap::IndexSet;

use crate::algorithm::Rule;

/// The sets of parameters, by number and by value.
#[derive(Debug, Default)]
pub(super) struct Rules(IndexSet<Rule, DefaultHashBuilder>);

/// The numbers of the sets that a batch of states has, by the positions that it has them at: only those that its states
/// refer to.
#[derive(Debug, Default)]
pub(super) struct RuleNumbers(IndexSet<u32, DefaultHashBuilder>);

impl Rules {
    /// The set with this number.
    pub(super) fn get(&self, number: u32) -> Option<&Rule> {
        self.0.get_index(usize::try_from(number).ok()?)
    }

    /// The number of `rule`, if it is known.
    pub(super) fn find(&self, rule: &Rule) -> Option<u32> {
        u32::try_from(self.0.get_index_of(rule)?).ok()
    }

    /// The number of `rule`; adds the rule if it is new.
    pub(super) fn insert(&mut self, rule: &Rule) -> u32 {
        let (position, _) = self.0.insert_full(rule.clone());
        u32::try_from(position).expect("fewer than 2^32 sets of parameters fit into memory")
    }
}

impl RuleNumbers {
    /// The position of the set with this number, which is added if it is new.
    pub(super) fn position(&mut self, number: u32) -> u32 {
        u32::try_from(self.0.insert_full(number).0).unwrap_or(u32::MAX)
    }

    /// The numbers in the order of their positions.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }
}
