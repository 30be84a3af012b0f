//! A directory that is read from a file. An update reads the whole file into new rows and swaps them in, so that requests
//! never wait for it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::builder::DirectoryBuilder;
use super::credential::{Hashes, KeyedHash, Written};
use super::fault::Faults;
use super::intern::Interner;
use super::{csv, yaml};
use crate::customers::Customer;
use crate::ruleset::own::OwnTermsReader;

/// How a directory is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// A header line of `credential`, `customer`, `plan` and perhaps `overrides`, `time_zone`, `valid_until` and
    /// `suspended` in any order, then a line for each credential. Spaces around fields do not count.
    Csv,
    /// A list of mappings of the same names, each beginning on a line of its own.
    Yaml,
}

/// The customers of a file, found by credential.
pub struct FileDirectory {
    format: Format,
    hashes: Hashes,
    rows: ArcSwap<Rows>,
    /// An update holds this lock, so that there is one update at a time.
    interner: Mutex<Interner>,
}

/// The rows of a file.
#[derive(Default)]
pub(super) struct Rows {
    /// Sorted by hash.
    pub(super) entries: Box<[Entry]>,
    /// Whether the file gives any credential by its SHA-256.
    pub(super) has_hashed: bool,
}

/// A credential and its customer.
pub(super) struct Entry {
    pub(super) hash: KeyedHash,
    pub(super) customer: Arc<Customer>,
}

/// What an update changed, in credentials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Credentials that the file did not have before.
    pub added: usize,
    /// Credentials whose customer or terms are others.
    pub changed: usize,
    /// Credentials that the file has no longer.
    pub removed: usize,
}

impl FileDirectory {
    /// Reads a directory. A customer may have several credentials, each in a row of its own.
    ///
    /// `seed` keys the hashes of credentials, `reader` understands plans, time zones and overrides.
    pub fn load(text: &str, format: Format, seed: &[u8; 16], reader: Arc<dyn OwnTermsReader>) -> Result<Self, Faults> {
        let (hashes, interner) = (Hashes::new(seed), Mutex::new(Interner::new(reader)));
        let directory = Self { format, hashes, rows: ArcSwap::default(), interner };
        directory.update(text)?;
        Ok(directory)
    }

    /// Reads the new `text` of the file. If anything is wrong with the text, nothing changes. Until the new rows are
    /// complete, requests find the old ones.
    pub fn update(&self, text: &str) -> Result<Changes, Faults> {
        let mut interner = self.interner.lock();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let before = self.rows.load_full();
        let mut builder = DirectoryBuilder::new(&self.hashes, &before, &mut interner);
        match self.format {
            Format::Csv => csv::read(text, &mut builder),
            Format::Yaml => yaml::read(text, &mut builder),
        }
        let rows = builder.finish()?;
        let changes = before.changes_to(&rows);
        self.rows.store(Arc::new(rows));
        drop(before);
        interner.forget_unused();
        Ok(changes)
    }

    /// The customer of a credential.
    pub fn find(&self, credential: &[u8]) -> Option<Arc<Customer>> {
        let rows = self.rows.load();
        let find = |credential| rows.find(self.hashes.credential(credential)).cloned();
        let known = find(Written::Plain(credential));
        if rows.has_hashed { known.or_else(|| find(Written::hashed(credential))) } else { known }
    }

    /// The customer of this name. Looks through all rows.
    pub fn named(&self, name: &str) -> Option<Arc<Customer>> {
        let rows = self.rows.load();
        let mut customers = rows.entries.iter().map(|entry| &entry.customer);
        customers.find(|customer| *customer.name == *name).cloned()
    }

    /// Every customer by name, with the terms of one of its credentials.
    pub fn customers(&self) -> BTreeMap<Arc<str>, Arc<Customer>> {
        let rows = self.rows.load();
        let customers = rows.entries.iter().map(|entry| &entry.customer);
        customers.map(|customer| (Arc::clone(&customer.name), Arc::clone(customer))).collect()
    }

    /// How many credentials there are.
    pub fn credentials(&self) -> usize {
        self.rows.load().entries.len()
    }
}

impl Rows {
    /// The customer of the credential with this hash.
    pub(super) fn find(&self, hash: KeyedHash) -> Option<&Arc<Customer>> {
        let around = self.entries.get(self.around(hash))?;
        let position = around.binary_search_by_key(&hash, |entry| entry.hash).ok()?;
        around.get(position).map(|entry| &entry.customer)
    }

    /// Where the hash stands if it is there. Hashes are spread evenly, so that the place of one among n is off by about √n:
    /// looking near it touches less memory than halving all of them.
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

    /// How `after` differs from these rows.
    fn changes_to(&self, after: &Self) -> Changes {
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

impl fmt::Debug for FileDirectory {
    /// The seed is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileDirectory({} credentials)", self.credentials())
    }
}

#[cfg(test)]
mod tests;
