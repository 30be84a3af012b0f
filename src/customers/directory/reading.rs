//! A directory's text while it is read: checked row by row, and compared with what is known already.

use std::collections::HashMap;
use std::sync::Arc;

use super::credential::{KeyedHash, Written};
use super::fault::{Fault, Faults};
use super::file::{FileDirectory, Known};
use super::intern::{Interner, Terms};
use super::row::Row;
use crate::customers::Customer;
use crate::ruleset::limit::OwnTerms;
use crate::units::Nanos;

/// A text that was read. Rows that say what is known already leave no more than their hash.
pub(super) struct Read {
    /// Every row, sorted by hash.
    pub(super) seen: Vec<Seen>,
    /// The rows that are new or say something new, sorted by hash.
    #[expect(clippy::vec_box, reason = "they go on to tables of pointers")]
    pub(super) changed: Vec<Box<Known>>,
    /// Whether any credential is written as its SHA-256.
    pub(super) has_hashed: bool,
}

/// A credential that was read.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    pub(super) hash: KeyedHash,
    line: u32,
}

/// A customer that was read.
#[derive(Clone, Copy)]
struct Named {
    name: KeyedHash,
    terms: u32,
    line: u32,
}

/// A text while it is read.
pub(super) struct Reading<'d> {
    directory: &'d FileDirectory,
    interner: &'d mut Interner,
    /// The different terms so far, and their positions by what stands in the row; `None` of what is wrong.
    terms: Vec<Terms>,
    positions: HashMap<Box<[u8]>, Option<u32>>,
    key: Vec<u8>,
    seen: Vec<Seen>,
    named: Vec<Named>,
    #[expect(clippy::vec_box, reason = "they go on to tables of pointers")]
    changed: Vec<Box<Known>>,
    /// The last customer's name: several credentials of one often stand together.
    last: Option<Arc<str>>,
    has_hashed: bool,
    pub(super) faults: Faults,
}

impl<'d> Reading<'d> {
    pub(super) fn new(directory: &'d FileDirectory, interner: &'d mut Interner) -> Self {
        let expected = directory.credentials();
        Self {
            directory,
            interner,
            terms: Vec::new(),
            positions: HashMap::new(),
            key: Vec::new(),
            seen: Vec::with_capacity(expected),
            named: Vec::with_capacity(expected),
            changed: Vec::new(),
            last: None,
            has_hashed: false,
            faults: Faults::default(),
        }
    }

    /// Takes the row that begins on `line`.
    pub(super) fn row(&mut self, line: u64, row: &Row<'_>) {
        let at = u32::try_from(line).unwrap_or(u32::MAX);
        let hash = self.credential(line, row.credential);
        self.seen.extend(hash.map(|hash| Seen { hash, line: at }));
        let terms = self.terms(line, row);
        let name = row.name().map_err(|fault| self.faults.add(line, fault)).ok();
        let (Some(position), Some(name)) = (terms, name) else { return };
        self.named.push(Named { name: self.directory.hashes().name(name.as_bytes()), terms: position, line: at });
        let Some(terms) = get(&self.terms, position) else { return };
        match (row.valid_until(terms.zone.as_ref()), hash) {
            (Ok(valid_until), Some(hash)) => {
                let is = |customer: &Customer| is_known(customer, name, terms, valid_until);
                if self.directory.look(hash, is) != Some(true) {
                    let (plan, own, suspended) = (terms.plan, terms.own.clone(), terms.suspended);
                    let name = self.name(name);
                    let customer = Customer { name, plan, own, valid_until, suspended };
                    self.changed.push(Box::new(Known { hash, customer }));
                }
            }
            (Ok(_), None) => {}
            (Err(fault), _) => self.faults.add(line, fault),
        }
    }

    fn credential(&mut self, line: u64, credential: &[u8]) -> Option<KeyedHash> {
        let fault = match Written::read(credential) {
            _ if credential.is_empty() => Fault::EmptyField("credential"),
            Some(written) => {
                self.has_hashed |= matches!(written, Written::Hashed(_));
                return Some(self.directory.hashes().credential(written));
            }
            None => Fault::BadHash,
        };
        self.faults.add(line, fault);
        None
    }

    /// The position of the row's terms, which most rows share with others.
    fn terms(&mut self, line: u64, row: &Row<'_>) -> Option<u32> {
        // what is known is free of line breaks in the fields that come first, so that no two rows look alike
        self.key.clear();
        for field in [row.plan, row.time_zone, row.suspended, row.overrides] {
            self.key.extend_from_slice(field);
            self.key.push(b'\n');
        }
        match self.positions.get(self.key.as_slice()) {
            Some(Some(position)) => return Some(*position),
            // what could be said would not be kept, and reading it takes long
            _ if self.faults.is_full() => {
                self.faults.more = self.faults.more.saturating_add(1);
                return None;
            }
            Some(None) | None => {}
        }
        let read = self.interner.terms(row).map(|terms| {
            self.terms.push(terms);
            u32::try_from(self.terms.len().saturating_sub(1)).unwrap_or(u32::MAX)
        });
        self.positions.insert(self.key.as_slice().into(), read.as_ref().ok().copied());
        read.map_err(|faults| faults.into_iter().for_each(|fault| self.faults.add(line, fault))).ok()
    }

    fn name(&mut self, name: &str) -> Arc<str> {
        match &self.last {
            Some(last) if **last == *name => Arc::clone(last),
            _ => Arc::clone(self.last.insert(name.into())),
        }
    }

    /// What was read, or everything that is wrong with it.
    pub(super) fn finish(mut self) -> Result<Read, Faults> {
        self.seen.sort_unstable_by_key(|row| (row.hash, row.line));
        for run in self.seen.chunk_by(|a, b| a.hash == b.hash) {
            if let [first, again @ ..] = run {
                again.iter().for_each(|row| {
                    self.faults.add(row.line.into(), Fault::RepeatedCredential(first.line.into()));
                });
            }
        }
        self.named.sort_unstable_by_key(|row| (row.name, row.line));
        for run in self.named.chunk_by(|a, b| a.name == b.name) {
            if let [first, others @ ..] = run {
                for other in others.iter().filter(|other| other.terms != first.terms) {
                    if let Some(what) = disagreement(get(&self.terms, first.terms), get(&self.terms, other.terms)) {
                        let fault = Fault::Disagrees { what, line: first.line.into() };
                        self.faults.add(other.line.into(), fault);
                    }
                }
            }
        }
        if !self.faults.is_empty() {
            self.faults.sort();
            return Err(self.faults);
        }
        self.changed.sort_unstable_by_key(|known| known.hash);
        Ok(Read { seen: self.seen, changed: self.changed, has_hashed: self.has_hashed })
    }
}

fn get(terms: &[Terms], position: u32) -> Option<&Terms> {
    terms.get(usize::try_from(position).ok()?)
}

/// Whether a row says what is known. Own terms that are the same are one.
fn is_known(customer: &Customer, name: &str, terms: &Terms, valid_until: Option<Nanos>) -> bool {
    let address = |own: &Option<Arc<OwnTerms>>| own.as_ref().map(Arc::as_ptr);
    *customer.name == *name
        && customer.plan == terms.plan
        && customer.valid_until == valid_until
        && customer.suspended == terms.suspended
        && address(&customer.own) == address(&terms.own)
}

/// What two rows of a customer do not agree on.
fn disagreement(one: Option<&Terms>, other: Option<&Terms>) -> Option<&'static str> {
    let (one, other) = (one?, other?);
    match () {
        () if one.plan != other.plan => Some("plan"),
        () if one.suspended != other.suspended => Some("`suspended`"),
        () if one.zone != other.zone => Some("time zone"),
        () if one.own != other.own => Some("set of overrides"),
        () => None,
    }
}
