//! The index of a directory's credentials, sorted by their hashes.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::iter;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::credential::{Hashes, KeyedHash};
use crate::customers::Customer;

/// The customers of a directory by the hashes of their credentials.
#[derive(Default)]
pub(super) struct CredentialIndex {
    /// Sorted by hash.
    pub(super) entries: Box<[Entry]>,
    /// The credentials of the rows that are left out because they are invalid; of a row without a usable credential, the
    /// hash of its customer's name.
    pub(super) refused: HashSet<KeyedHash>,
    /// The position in `entries` of the first credential of each customer [`by_groups`], sorted by half of the keyed hash of
    /// the customer's name; set once customers are looked up by name.
    names: OnceLock<Box<[(u64, u32)]>>,
}

/// A credential and its customer.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) hash: KeyedHash,
    pub(super) customer: Arc<Customer>,
}

/// The changes of an update, counted in credentials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Credentials that are new.
    pub added: usize,
    /// Credentials with another customer or other terms.
    pub changed: usize,
    /// Credentials that are gone.
    pub removed: usize,
}

impl CredentialIndex {
    /// An index of `entries`, which are sorted by hash; the rows of `refused` credentials are left out.
    pub(super) const fn new(entries: Box<[Entry]>, refused: HashSet<KeyedHash>) -> Self {
        Self { entries, refused, names: OnceLock::new() }
    }

    /// Sorts the customers by name, so that [`CredentialIndex::named`] is fast; takes 16 bytes per customer.
    pub(super) fn index_names(&self, hashes: &Hashes) {
        self.names.get_or_init(|| {
            let of_name = |entry: &Entry| hashes.of(entry.customer.name.as_bytes())[0];
            let mut names: Vec<(u64, u32)> = self.entries.iter().map(of_name).zip(0..).collect();
            names.sort_unstable();
            names.dedup_by(|(hash, at), (known, first)| {
                let customer = |at: u32| self.entries.get(at as usize).map(|entry| &*entry.customer);
                let (Some(other), Some(kept)) = (customer(*at), customer(*first)) else { return false };
                let is_same = hash == known && other.name == kept.name;
                if is_same && by_groups(other, kept).is_lt() {
                    *first = *at;
                }
                is_same
            });
            names.into()
        });
    }

    /// Whether there is an index of names.
    pub(super) fn has_names(&self) -> bool {
        self.names.get().is_some()
    }

    /// The customer with this name, with the terms of its first credential [`by_groups`]. Searches all credentials if there
    /// is no index of names.
    pub(super) fn named(&self, name: &str, hashes: &Hashes) -> Option<&Arc<Customer>> {
        let is_named = |customer: &&Arc<Customer>| *customer.name == *name;
        let Some(names) = self.names.get() else {
            return self
                .entries
                .iter()
                .map(|entry| &entry.customer)
                .filter(is_named)
                .min_by(|one, other| by_groups(one, other));
        };
        let hash = hashes.of(name.as_bytes())[0];
        let start = names.partition_point(|(known, _)| *known < hash);
        let alike = names.get(start..)?.iter().take_while(|(known, _)| *known == hash);
        alike.filter_map(|(_, at)| Some(&self.entries.get(*at as usize)?.customer)).find(is_named)
    }

    /// The customer of the credential with this hash.
    pub(super) fn find(&self, hash: KeyedHash) -> Option<&Arc<Customer>> {
        let around = self.entries.get(self.around(hash))?;
        let position = around.binary_search_by_key(&hash, |entry| entry.hash).ok()?;
        around.get(position).map(|entry| &entry.customer)
    }

    /// The range of positions that contains the hash, if it is there. Hashes are spread evenly, so a guess among n entries
    /// is off by about √n: a search near it touches less memory than a binary search of all.
    fn around(&self, hash: KeyedHash) -> Range<usize> {
        let at = |position: usize| self.entries.get(position).map(|entry| entry.hash);
        let count = u128::try_from(self.entries.len()).unwrap_or(u128::MAX);
        let guess = usize::try_from(u128::from(hash[0]).saturating_mul(count) >> 64).unwrap_or(usize::MAX);
        let mut step = self.entries.len().isqrt().saturating_add(1);
        let (mut first, mut end) = (guess.saturating_sub(step), guess.saturating_add(step));
        while first > 0 && at(first).is_none_or(|there| there > hash) {
            step = step.saturating_mul(2);
            first = first.saturating_sub(step);
        }
        while at(end).is_some_and(|there| there <= hash) {
            step = step.saturating_mul(2);
            end = end.saturating_add(step);
        }
        first.min(self.entries.len())..end.min(self.entries.len())
    }

    /// A copy of this index with the `changed` entries, which are sorted: they replace entries of the same credentials, or
    /// are added. The rows of `refused` credentials are left out.
    pub(super) fn with(&self, changed: Vec<Entry>, refused: HashSet<KeyedHash>) -> Self {
        let mut entries = Vec::with_capacity(self.entries.len().saturating_add(changed.len()));
        let mut before = self.entries.iter().peekable();
        for entry in changed {
            entries.extend(iter::from_fn(|| before.next_if(|old| old.hash < entry.hash)).cloned());
            before.next_if(|old| old.hash == entry.hash);
            entries.push(entry);
        }
        entries.extend(before.cloned());
        Self::new(entries.into(), refused)
    }

    /// The changes from this index to `after`.
    pub(super) fn changes_to(&self, after: &Self) -> Changes {
        let (mut changes, mut before) = (Changes::default(), self.entries.iter().peekable());
        for entry in &after.entries {
            while before.next_if(|old| old.hash < entry.hash).is_some() {
                changes.removed += 1;
            }
            match before.next_if(|old| old.hash == entry.hash) {
                Some(old) if Arc::ptr_eq(&old.customer, &entry.customer) => {}
                Some(_) => changes.changed += 1,
                None => changes.added += 1,
            }
        }
        changes.removed += before.count();
        changes
    }
}

/// The order of a customer's credentials where only its name is known: those with groups first, by the names of the groups.
/// So every process chooses the same one.
fn by_groups(one: &Customer, other: &Customer) -> Ordering {
    fn names(customer: &Customer) -> impl Iterator<Item = (&str, &str)> {
        customer.groups.iter().flat_map(|groups| &groups.0).map(|group| (&*group.level, &*group.name))
    }
    let by_presence = one.groups.is_none().cmp(&other.groups.is_none());
    by_presence.then_with(|| names(one).cmp(names(other)))
}
