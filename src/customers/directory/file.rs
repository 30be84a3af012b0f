//! A directory that was read from a file, and follows it row by row.
//!
//! Every credential has one entry: its hash and its customer in one allocation, found through a table that holds
//! pointers only, since tables are half empty at times. The tables are many and locked one by one, so that requests
//! hardly notice an update: it is read and compared beforehand, and takes each lock only for the rows that changed there.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use parking_lot::{Mutex, RwLock};

use super::credential::{Hashes, KeyedHash, Written};
use super::fault::Faults;
use super::intern::Interner;
use super::reading::{Read, Reading, Seen};
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

/// Every customer of a file, found by credential.
pub struct FileDirectory {
    format: Format,
    hashes: Hashes,
    shards: Box<[RwLock<HashTable<Box<Known>>>]>,
    credentials: AtomicUsize,
    /// Whether a credential may be known by its SHA-256 only.
    has_hashed: AtomicBool,
    /// Also held while an update goes on, so that there is one at a time.
    interner: Mutex<Interner>,
}

/// A credential and whose it is.
pub(super) struct Known {
    pub(super) hash: KeyedHash,
    pub(super) customer: Customer,
}

/// What an update changed, in credentials.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Not there before.
    pub added: usize,
    /// There before with something else beside them.
    pub changed: usize,
    /// Not there any more.
    pub removed: usize,
}

/// So many that the rows that change in one are few, and a lock is held for microseconds.
const SHARDS: usize = 1 << SHARD_BITS;
const SHARD_BITS: u32 = 8;

impl FileDirectory {
    /// Reads a directory. A customer may have several credentials, each in a row of its own.
    ///
    /// `seed` keys the hashes of credentials, `reader` understands plans, time zones and overrides.
    pub fn load(text: &str, format: Format, seed: &[u8; 16], reader: Arc<dyn OwnTermsReader>) -> Result<Self, Faults> {
        let directory = Self {
            format,
            hashes: Hashes::new(seed),
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
            credentials: AtomicUsize::new(0),
            has_hashed: AtomicBool::new(false),
            interner: Mutex::new(Interner::new(reader)),
        };
        directory.update(text)?;
        Ok(directory)
    }

    /// Follows the file to its new `text`: rows that are new or differ are taken up, rows that are gone are forgotten.
    /// Where anything is wrong with the text, nothing changes.
    ///
    /// Takes about as long as reading the text; requests that come meanwhile find what is there.
    pub fn update(&self, text: &str) -> Result<Changes, Faults> {
        let mut interner = self.interner.lock();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let mut reading = Reading::new(self, &mut interner);
        match self.format {
            Format::Csv => csv::read(text, &mut reading),
            Format::Yaml => yaml::read(text, &mut reading),
        }
        let changes = self.apply(reading.finish()?);
        interner.forget_unused();
        Ok(changes)
    }

    /// Whose credential this is.
    pub fn find(&self, credential: &[u8]) -> Option<Arc<Customer>> {
        let find = |credential| self.look(self.hashes.credential(credential), |customer| Arc::new(customer.clone()));
        let known = find(Written::Plain(credential));
        match self.has_hashed.load(Ordering::Relaxed) {
            true => known.or_else(|| find(Written::hashed(credential))),
            false => known,
        }
    }

    /// How many credentials there are.
    pub fn credentials(&self) -> usize {
        self.credentials.load(Ordering::Relaxed)
    }

    pub(super) const fn hashes(&self) -> &Hashes {
        &self.hashes
    }

    /// What `look` makes of the customer whose credential has this hash.
    pub(super) fn look<T>(&self, hash: KeyedHash, look: impl FnOnce(&Customer) -> T) -> Option<T> {
        let shard = self.shards.get(shard_of(hash))?.read();
        shard.find(hash[1], |known| known.hash == hash).map(|known| look(&known.customer))
    }

    fn apply(&self, read: Read) -> Changes {
        // before the first of them can be found
        self.has_hashed.fetch_or(read.has_hashed, Ordering::Relaxed);
        let mut changes = Changes::default();
        let mut seen = read.seen.as_slice();
        let mut changed = read.changed.into_iter().peekable();
        for (number, shard) in self.shards.iter().enumerate() {
            let (here, rest) = seen.split_at(seen.partition_point(|row| shard_of(row.hash) == number));
            seen = rest;
            let gone = missing(&shard.read(), here);
            let new: Vec<Box<Known>> =
                std::iter::from_fn(|| changed.next_if(|known| shard_of(known.hash) == number)).collect();
            if !gone.is_empty() || !new.is_empty() {
                change(&mut shard.write(), &gone, new.into_iter(), &mut changes);
            }
        }
        self.credentials.store(read.seen.len(), Ordering::Relaxed);
        self.has_hashed.store(read.has_hashed, Ordering::Relaxed);
        changes
    }
}

/// The hashes of `shard` that are not in `seen`, which is sorted.
fn missing(shard: &HashTable<Box<Known>>, seen: &[Seen]) -> Vec<KeyedHash> {
    let is_gone = |hash: &KeyedHash| seen.binary_search_by_key(hash, |row| row.hash).is_err();
    shard.iter().map(|known| known.hash).filter(is_gone).collect()
}

fn change(
    shard: &mut HashTable<Box<Known>>,
    gone: &[KeyedHash],
    new: impl ExactSizeIterator<Item = Box<Known>>,
    changes: &mut Changes,
) {
    for hash in gone {
        if let Ok(entry) = shard.find_entry(hash[1], |known| known.hash == *hash) {
            drop(entry.remove());
            changes.removed = changes.removed.saturating_add(1);
        }
    }
    shard.reserve(new.len(), |known| known.hash[1]);
    for known in new {
        match shard.entry(known.hash[1], |other| other.hash == known.hash, |other| other.hash[1]) {
            Entry::Occupied(mut entry) => {
                *entry.get_mut() = known;
                changes.changed = changes.changed.saturating_add(1);
            }
            Entry::Vacant(entry) => {
                entry.insert(known);
                changes.added = changes.added.saturating_add(1);
            }
        }
    }
}

/// By the upper bits of one half of the hash; the other half is the hash within the shard.
const fn shard_of(hash: KeyedHash) -> usize {
    (hash[0] >> (u64::BITS - SHARD_BITS)) as usize
}

impl fmt::Debug for FileDirectory {
    /// The seed is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileDirectory({} credentials)", self.credentials())
    }
}

#[cfg(test)]
mod tests;
