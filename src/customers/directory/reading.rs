//! A directory's text while it is read: checked row by row, and compared with what is known already.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::credential::{KeyedHash, Written};
use super::fault::{Fault, Faults};
use super::file::{FileDirectory, Known};
use super::intern::{Interner, Terms};
use super::row::Row;
use crate::customers::Customer;
use crate::ruleset::limit::OwnTerms;
use crate::units::Nanos;

/// What a text changes.
pub(super) struct Read {
    /// The rows that are new or say something new, sorted by hash.
    pub(super) changed: Vec<Known>,
    /// The hashes of those that are gone, sorted.
    pub(super) gone: Vec<KeyedHash>,
    /// How many rows there are.
    pub(super) credentials: usize,
    /// Whether any credential is written as its SHA-256.
    pub(super) has_hashed: bool,
}

/// A row that was glanced at.
#[derive(Clone, Copy)]
struct Glanced {
    hash: KeyedHash,
    print: u64,
    /// A few bits of the customer's hash: all rows of a customer have the same.
    name: u32,
    line: u32,
    at: usize,
}

/// A customer that was read.
#[derive(Clone, Copy)]
struct Named {
    name: KeyedHash,
    terms: u32,
    line: u32,
}

/// A text while it is read.
///
/// Every row is glanced at first. What differs from what is known is read then, in the order of the lines, together with
/// all else that the text says of the same customers; the rest agreed when it was read.
pub(super) struct Reading<'d> {
    directory: &'d FileDirectory,
    interner: &'d mut Interner,
    glanced: Vec<Glanced>,
    /// Where the rows are that are read whatever is known, and their lines.
    unclear: Vec<(usize, u64)>,
    /// The names in rows that are read.
    names: HashSet<u32>,
    /// The lines of rows with a credential that was there before, and the lines where that was.
    repeated: Vec<(u32, u32)>,
    /// The different terms so far, and their positions by what stands in the row; `None` of what is wrong.
    terms: Vec<Terms>,
    positions: HashMap<Box<[u8]>, Option<u32>>,
    key: Vec<u8>,
    named: Vec<Named>,
    /// The last customer's name: several credentials of one often stand together.
    last: Option<Arc<str>>,
    pub(super) faults: Faults,
    read: Read,
}

impl<'d> Reading<'d> {
    pub(super) fn new(directory: &'d FileDirectory, interner: &'d mut Interner) -> Self {
        Self {
            directory,
            interner,
            glanced: Vec::with_capacity(directory.credentials()),
            unclear: Vec::new(),
            names: HashSet::new(),
            repeated: Vec::new(),
            terms: Vec::new(),
            positions: HashMap::new(),
            key: Vec::new(),
            named: Vec::new(),
            last: None,
            faults: Faults::default(),
            read: Read { changed: Vec::new(), gone: Vec::new(), credentials: 0, has_hashed: false },
        }
    }

    /// Looks at the row that begins on `line` without understanding it; `at` tells where it is, and grows. There is no
    /// `row` where something is wrong with it.
    pub(super) fn glance(&mut self, at: usize, line: u64, row: Option<&Row<'_>>) {
        let Some(row) = row else { return self.unclear.push((at, line)) };
        let name = bits(self.directory.hashes().name(row.customer));
        match credential(row) {
            Ok(credential) => {
                self.read.has_hashed |= matches!(credential, Written::Hashed(_));
                let hash = self.directory.hashes().credential(credential);
                let print = self.print(row);
                self.glanced.push(Glanced { hash, print, name, line: bounded(line), at });
            }
            Err(_) => {
                self.unclear.push((at, line));
                self.names.insert(name);
            }
        }
    }

    /// Where the rows are that have to be read, and their lines, in their order.
    pub(super) fn worth_reading(&mut self) -> Vec<(usize, u64)> {
        let mut glanced = std::mem::take(&mut self.glanced);
        glanced.sort_unstable_by_key(|row| (row.hash, row.at));
        for run in glanced.chunk_by(|a, b| a.hash == b.hash) {
            if let [first, again @ ..] = run {
                self.repeated.extend(again.iter().map(|row| (row.line, first.line)));
            }
        }
        let mut names = std::mem::take(&mut self.names);
        let mut rows = glanced.iter().peekable();
        self.directory.each(|known| {
            while let Some(row) = rows.next_if(|row| row.hash < known.hash) {
                names.insert(row.name);
            }
            let mut is_gone = true;
            while let Some(row) = rows.next_if(|row| row.hash == known.hash) {
                is_gone = false;
                if row.print != known.print {
                    names.insert(row.name);
                }
            }
            if is_gone {
                self.read.gone.push(known.hash);
            }
        });
        names.extend(rows.map(|row| row.name));
        self.read.credentials = glanced.len();
        let mut places = std::mem::take(&mut self.unclear);
        let differing = glanced.iter().filter(|row| names.contains(&row.name));
        places.extend(differing.map(|row| (row.at, u64::from(row.line))));
        places.sort_unstable();
        self.named.reserve_exact(places.len());
        self.read.changed.reserve_exact(places.len());
        places
    }

    /// Takes the row that begins on `line`.
    pub(super) fn row(&mut self, line: u64, row: &Row<'_>) {
        let hash = credential(row).map(|credential| self.directory.hashes().credential(credential));
        let hash = hash.map_err(|fault| self.faults.add(line, fault)).ok();
        let terms = self.terms(line, row);
        let name = row.name().map_err(|fault| self.faults.add(line, fault)).ok();
        let (Some(position), Some(name)) = (terms, name) else { return };
        let named = self.directory.hashes().name(name.as_bytes());
        self.named.push(Named { name: named, terms: position, line: bounded(line) });
        let Some(terms) = get(&self.terms, position) else { return };
        match (row.valid_until(terms.zone.as_ref()), hash) {
            (Ok(valid_until), Some(hash)) => {
                let known = self.directory.known(hash).filter(|known| says(&known.customer, name, terms, valid_until));
                let customer = match known {
                    Some(known) => known.customer,
                    None => {
                        let (plan, own, suspended) = (terms.plan, terms.own.clone(), terms.suspended);
                        Arc::new(Customer { name: self.name(name), plan, own, valid_until, suspended })
                    }
                };
                let print = self.print(row);
                self.read.changed.push(Known { hash, print, customer });
            }
            (Ok(_), None) => {}
            (Err(fault), _) => self.faults.add(line, fault),
        }
    }

    fn print(&mut self, row: &Row<'_>) -> u64 {
        row.join(&mut self.key);
        self.directory.hashes().row(&self.key)
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
        self.repeated.sort_unstable();
        for (line, first) in self.repeated {
            self.faults.add(line.into(), Fault::RepeatedCredential(first.into()));
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
        self.read.changed.sort_unstable_by_key(|known| known.hash);
        Ok(self.read)
    }
}

/// The credential of a row, or what is wrong with it.
fn credential<'t>(row: &Row<'t>) -> Result<Written<'t>, Fault> {
    match row.credential {
        b"" => Err(Fault::EmptyField("credential")),
        credential => Written::read(credential).ok_or(Fault::BadHash),
    }
}

/// Enough of a hash to tell most customers apart.
const fn bits([hash, _]: KeyedHash) -> u32 {
    hash as u32
}

fn bounded(line: u64) -> u32 {
    u32::try_from(line).unwrap_or(u32::MAX)
}

fn get(terms: &[Terms], position: u32) -> Option<&Terms> {
    terms.get(usize::try_from(position).ok()?)
}

/// Whether this is known of a customer already. Own terms that are the same are one.
fn says(customer: &Customer, name: &str, terms: &Terms, valid_until: Option<Nanos>) -> bool {
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
