//! The customers of a file or a database, in memory. An update builds a new index and swaps it in, so requests never wait
//! for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::builder::{DirectoryBuilder, MergeError};
use super::credential::{Hashes, digest_of};
use super::fault::Faults;
use super::groups::GroupTable;
use super::index::{Changes, CredentialIndex, Entry};
use super::intern::Interner;
use super::row::{Row, RowKind, RowSet};
use super::{csv, yaml};
use crate::customers::Customer;
use crate::ruleset::key::sha256;
use crate::ruleset::overrides::OverridesReader;

/// The format of a directory, or of a file of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A header line with `credential`, `customer`, `plan`, and optionally `overrides`, `time_zone`, `valid_until`,
    /// `suspended` and levels of groups, in any order; then a line for each credential. Spaces around fields are ignored.
    /// For groups: `level`, `group`, and optionally `plan`, `overrides`, `time_zone`, `suspended` and the levels above.
    Csv,
    /// A list of mappings with the same names, each beginning on a line of its own.
    Yaml,
}

impl Format {
    /// Reads the rows of a file of this `kind`, whose groups are of these `levels`. Calls `take` for each row, with all faults
    /// so far; rows that cannot be read are faults. Returns all faults.
    pub(super) fn read(
        self,
        text: &str,
        kind: RowKind,
        levels: &[Arc<str>],
        take: impl FnMut(&Row<'_>, &mut Faults),
    ) -> Faults {
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        match self {
            Self::Csv => csv::read(text, kind, levels, take),
            Self::Yaml => yaml::read(text, kind, levels, take),
        }
    }
}

/// The customers of a directory that lists them, indexed by credential.
pub struct CustomerTable {
    format: Format,
    hashes: Hashes,
    index: ArcSwap<CredentialIndex>,
    /// An update holds this lock, so updates happen one at a time.
    interner: Mutex<Interner>,
}

impl CustomerTable {
    /// Reads a directory. A customer may have several credentials, each in a row of its own.
    ///
    /// `seed` is the key of the hashes of credentials, `reader` parses plans, time zones and overrides, and `groups` are the
    /// groups that customers may belong to.
    pub fn load(
        text: &str,
        format: Format,
        seed: &[u8; 16],
        reader: Arc<dyn OverridesReader>,
        groups: &GroupTable,
    ) -> Result<Self, Faults> {
        let table = Self::new(format, seed, reader);
        table.update(text, groups)?;
        Ok(table)
    }

    /// A table without customers, for rows in this format.
    pub(super) fn new(format: Format, seed: &[u8; 16], reader: Arc<dyn OverridesReader>) -> Self {
        let (hashes, interner) = (Hashes::new(seed), Mutex::new(Interner::new(reader)));
        Self { format, hashes, index: ArcSwap::default(), interner }
    }

    /// Reads the new `text` of the file, whose customers belong to `groups`. If the text has any fault, nothing changes.
    /// Requests use the old index until the new one is complete.
    pub fn update(&self, text: &str, groups: &GroupTable) -> Result<Changes, Faults> {
        self.replace(text, groups, |builder, faults| Ok((builder.finish(faults)?, ()))).map(|(changes, ())| changes)
    }

    /// Merges the rows in `text`, whose customers belong to `groups`. The credential of a row with a fault keeps its old
    /// customer. Returns the changes and the faults. After an error nothing changes.
    pub(super) fn merge(&self, text: &str, rows: RowSet, groups: &GroupTable) -> Result<(Changes, Faults), MergeError> {
        self.replace(text, groups, |builder, faults| builder.finish_with_faults(text, rows, faults))
    }

    fn replace<T, E>(
        &self,
        text: &str,
        groups: &GroupTable,
        finish: impl FnOnce(DirectoryBuilder<'_>, Faults) -> Result<(CredentialIndex, T), E>,
    ) -> Result<(Changes, T), E> {
        let mut interner = self.interner.lock();
        let before = self.index.load_full();
        let mut builder = DirectoryBuilder::new(&self.hashes, &before, &mut interner, groups);
        let take = |row: &Row<'_>, faults: &mut Faults| builder.add(row, faults);
        let faults = self.format.read(text, RowKind::Credentials, groups.levels(), take);
        let finished = finish(builder, faults);
        interner.forget_groups();
        let (index, more) = finished?;
        let changes = before.changes_to(&index);
        if before.has_names() {
            index.index_names(&self.hashes);
        }
        self.index.store(Arc::new(index));
        drop(before);
        interner.forget_unused();
        Ok((changes, more))
    }

    /// The customer of a credential.
    pub fn find(&self, credential: &[u8]) -> Option<Arc<Customer>> {
        self.index.load().find(self.hashes.of(&sha256(credential))).cloned()
    }

    /// The customer of a credential that is written as in a directory.
    pub(super) fn written(&self, credential: &str) -> Option<Arc<Customer>> {
        self.index.load().find(self.hashes.of(&digest_of(credential.as_bytes())?)).cloned()
    }

    /// The first `max` names of customers, in order, after the name `after`. Searches all credentials.
    pub fn names(&self, after: &str, max: usize) -> Vec<Arc<str>> {
        let (index, mut first) = (self.index.load(), BTreeSet::new());
        for name in index.entries.iter().map(|entry| &entry.customer.name).filter(|name| ***name > *after) {
            if first.len() < max || first.last().is_some_and(|last| name < last) {
                first.insert(Arc::clone(name));
            }
            if first.len() > max {
                first.pop_last();
            }
        }
        first.into_iter().collect()
    }

    /// Builds the index that makes [`CustomerTable::named`] fast, and keeps it up to date.
    pub fn index_names(&self) {
        // locked, so that no update starts from an index without names
        let _interner = self.interner.lock();
        self.index.load().index_names(&self.hashes);
    }

    /// The customer with this name, with the terms of one of its credentials: the one whose groups come first by name. Slow
    /// in a large directory without [`CustomerTable::index_names`].
    pub fn named(&self, name: &str) -> Option<Arc<Customer>> {
        self.index.load().named(name, &self.hashes).cloned()
    }

    /// All customers by name, each with the terms of all of its credentials, in no order.
    pub fn customers(&self) -> BTreeMap<Arc<str>, Vec<Arc<Customer>>> {
        let (index, mut customers) = (self.index.load(), BTreeMap::<_, Vec<_>>::new());
        for Entry { customer, .. } in &index.entries {
            customers.entry(Arc::clone(&customer.name)).or_default().push(Arc::clone(customer));
        }
        customers
    }

    /// The customer with this name, with the terms of each of its credentials. Searches all credentials.
    pub fn all_named(&self, name: &str) -> Vec<Arc<Customer>> {
        let index = self.index.load();
        let all = index.entries.iter().map(|entry| &entry.customer);
        all.filter(|customer| *customer.name == *name).cloned().collect()
    }

    /// The number of credentials.
    pub fn credentials(&self) -> usize {
        self.index.load().entries.len()
    }

    /// The number of merged rows that are left out because they are invalid.
    pub(super) fn refused(&self) -> usize {
        self.index.load().refused.len()
    }
}

#[cfg(test)]
mod tests;
