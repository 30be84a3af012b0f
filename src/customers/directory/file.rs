//! A directory that was read from a file, and follows it row by row.
//!
//! Every credential has one entry, and the entries lie sorted by hash in many short lists: as hashes are spread evenly,
//! an entry is near the place that its hash says, and nothing is kept empty. The lists are locked one by one, so that
//! requests hardly notice an update: it is read and compared beforehand, and takes each lock only for the rows that
//! changed there.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};

use super::credential::{Hashes, KeyedHash, Written};
use super::fault::Faults;
use super::intern::Interner;
use super::reading::{Read, Reading};
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
    /// Each sorted by hash.
    shards: Box<[RwLock<Vec<Known>>]>,
    credentials: AtomicUsize,
    /// Whether a credential may be known by its SHA-256 only.
    has_hashed: AtomicBool,
    /// Also held while an update goes on, so that there is one at a time.
    interner: Mutex<Interner>,
}

/// A credential and whose it is.
#[derive(Clone)]
pub(super) struct Known {
    pub(super) hash: KeyedHash,
    /// The hash of the row.
    pub(super) print: u64,
    pub(super) customer: Arc<Customer>,
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

/// So many that of a million rows only some hundreds are in one, and a lock is held for microseconds.
const SHARDS: usize = 1 << SHARD_BITS;
const SHARD_BITS: u32 = 12;

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
        let find = |credential| self.known(self.hashes.credential(credential)).map(|known| known.customer);
        let known = find(Written::Plain(credential));
        match self.has_hashed.load(Ordering::Relaxed) {
            true => known.or_else(|| find(Written::hashed(credential))),
            false => known,
        }
    }

    /// Every customer by name. Where credentials of one differ in what they say, one of those counts that are not
    /// suspended.
    pub fn by_name(&self) -> HashMap<Arc<str>, Arc<Customer>> {
        let mut by_name: HashMap<Arc<str>, Arc<Customer>> = HashMap::new();
        self.each(|known| {
            let entry = by_name.entry(Arc::clone(&known.customer.name)).or_insert_with(|| Arc::clone(&known.customer));
            if entry.suspended {
                *entry = Arc::clone(&known.customer);
            }
        });
        by_name
    }

    /// The customer of this name, as [`FileDirectory::by_name`] has it. Looks through all.
    pub fn named(&self, name: &str) -> Option<Arc<Customer>> {
        let mut found: Option<Arc<Customer>> = None;
        self.each(|known| {
            if *known.customer.name == *name && found.as_ref().is_none_or(|found| found.suspended) {
                found = Some(Arc::clone(&known.customer));
            }
        });
        found
    }

    /// How many credentials there are.
    pub fn credentials(&self) -> usize {
        self.credentials.load(Ordering::Relaxed)
    }

    /// Every customer by its name; of one with several credentials, what one of them says.
    pub fn customers(&self) -> BTreeMap<Arc<str>, Arc<Customer>> {
        let mut customers = BTreeMap::new();
        self.each(|known| {
            customers.insert(Arc::clone(&known.customer.name), Arc::clone(&known.customer));
        });
        customers
    }

    pub(super) const fn hashes(&self) -> &Hashes {
        &self.hashes
    }

    /// What is known of the credential with this hash.
    pub(super) fn known(&self, hash: KeyedHash) -> Option<Known> {
        let shard = self.shards.get(shard_of(hash))?.read();
        let (before, after) = shard.split_at_checked(place_of(hash, shard.len()))?;
        let after = after.iter().take_while(|known| known.hash <= hash);
        let before = before.iter().rev().take_while(|known| known.hash >= hash);
        after.chain(before).find(|known| known.hash == hash).cloned()
    }

    /// Shows all that is known, sorted by hash.
    pub(super) fn each(&self, mut show: impl FnMut(&Known)) {
        self.shards.iter().for_each(|shard| shard.read().iter().for_each(&mut show));
    }

    fn apply(&self, read: Read) -> Changes {
        // before the first of them can be found
        self.has_hashed.fetch_or(read.has_hashed, Ordering::Relaxed);
        let mut changes = Changes::default();
        let mut changed = read.changed.into_iter().peekable();
        let mut gone = read.gone.into_iter().peekable();
        for (number, shard) in self.shards.iter().enumerate() {
            let is_here = |hash| shard_of(hash) == number;
            let changed: Vec<Known> = std::iter::from_fn(|| changed.next_if(|known| is_here(known.hash))).collect();
            let gone: Vec<KeyedHash> = std::iter::from_fn(|| gone.next_if(|hash| is_here(*hash))).collect();
            if !changed.is_empty() || !gone.is_empty() {
                change(shard, changed, &gone, &mut changes);
            }
        }
        self.credentials.store(read.credentials, Ordering::Relaxed);
        self.has_hashed.store(read.has_hashed, Ordering::Relaxed);
        changes
    }
}

/// Makes a change to a shard; what is left over is dropped when its lock is free again.
fn change(shard: &RwLock<Vec<Known>>, changed: Vec<Known>, gone: &[KeyedHash], changes: &mut Changes) {
    let mut left_over = Vec::with_capacity(changed.len().saturating_add(gone.len()));
    let mut added = Vec::with_capacity(changed.len());
    let mut shard = shard.write();
    for known in changed {
        let position = shard.binary_search_by_key(&known.hash, |known| known.hash);
        match position.ok().and_then(|position| shard.get_mut(position)) {
            Some(before) => {
                let is_other = !Arc::ptr_eq(&before.customer, &known.customer);
                changes.changed = changes.changed.saturating_add(usize::from(is_other));
                left_over.push(std::mem::replace(before, known));
            }
            None => added.push(known),
        }
    }
    changes.added = changes.added.saturating_add(added.len());
    changes.removed = changes.removed.saturating_add(gone.len());
    if !gone.is_empty() {
        left_over.extend(shard.extract_if(.., |known| gone.binary_search(&known.hash).is_ok()));
    }
    if !added.is_empty() {
        shard.reserve_exact(added.len());
        shard.append(&mut added);
        shard.sort_unstable_by_key(|known| known.hash);
    }
    drop(shard);
}

/// By the upper bits of the hash, so that sorted hashes are sorted by shard.
const fn shard_of(hash: KeyedHash) -> usize {
    (hash[0] >> (u64::BITS - SHARD_BITS)) as usize
}

/// About where a hash is among the `count` of its shard, by the bits that follow.
const fn place_of([hash, _]: KeyedHash, count: usize) -> usize {
    (((hash << SHARD_BITS) as u128).saturating_mul(count as u128) >> u64::BITS) as usize
}

impl fmt::Debug for FileDirectory {
    /// The seed is a secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileDirectory({} credentials)", self.credentials())
    }
}

#[cfg(test)]
mod tests;
