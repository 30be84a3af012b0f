//! Builds the index of a directory from rows, and collects all faults of the text.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::credential::{Hashes, KeyedHash};
use super::fault::{Fault, Faults};
use super::groups::GroupTable;
use super::index::{CredentialIndex, Entry};
use super::intern::{CustomerTerms, Interner};
use super::row::{Row, RowSet};
use crate::customers::Customer;

/// A directory while its text is read.
pub(super) struct DirectoryBuilder<'d> {
    hashes: &'d Hashes,
    /// The index so far. An unchanged customer keeps its copy in memory.
    before: &'d CredentialIndex,
    interner: &'d mut Interner,
    groups: &'d GroupTable,
    credentials: Vec<CredentialRow>,
    customers: Vec<CustomerRow>,
    /// The names of the customers of rows without a usable credential.
    unidentified: Vec<KeyedHash>,
}

/// The reason why rows are not merged.
#[derive(Debug)]
pub(super) enum MergeError {
    /// The first line has these faults.
    Header(Faults),
    /// A changed row contradicts a row of its customer that did not change: all rows have to be read.
    Contradiction,
}

/// A row with a valid credential; `customer` is absent if the rest of the row has faults.
struct CredentialRow {
    hash: KeyedHash,
    line: u32,
    customer: Option<Arc<Customer>>,
}

/// A row with a customer and valid terms.
struct CustomerRow {
    name: KeyedHash,
    line: u32,
    terms: Arc<CustomerTerms>,
    /// Whether the row has the plan of its groups.
    inherits_plan: bool,
}

impl<'d> DirectoryBuilder<'d> {
    pub(super) fn new(
        hashes: &'d Hashes,
        before: &'d CredentialIndex,
        interner: &'d mut Interner,
        groups: &'d GroupTable,
    ) -> Self {
        let rows = before.entries.len();
        let (credentials, customers) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
        Self { hashes, before, interner, groups, credentials, customers, unidentified: Vec::new() }
    }

    /// Takes a row; its faults are added to `faults`.
    pub(super) fn add(&mut self, row: &Row<'_>, faults: &mut Faults) {
        let (line, name) = (bounded(row.line), self.hashes.of(row.customer.as_bytes()));
        let digest = faults.keep(row.line, row.digest());
        let (terms, customer) = self.interner.customer(row, self.groups, faults).unzip();
        let inherits_plan = row.plan.is_empty();
        self.customers.extend(terms.map(|terms| CustomerRow { name, line, terms, inherits_plan }));
        let Some(hash) = digest.map(|digest| self.hashes.of(&digest)) else {
            self.unidentified.push(name);
            return;
        };
        let customer = customer.flatten().map(|customer| {
            let unchanged = self.before.find(hash).filter(|known| ***known == customer);
            unchanged.cloned().unwrap_or_else(|| Arc::new(customer))
        });
        self.credentials.push(CredentialRow { hash, line, customer });
    }

    /// The index of the directory, or all faults of the text.
    pub(super) fn finish(mut self, mut faults: Faults) -> Result<CredentialIndex, Faults> {
        self.find_conflicts(&mut faults);
        faults.into_result()?;
        let entry = |row: CredentialRow| Some(Entry { hash: row.hash, customer: row.customer? });
        let entries = self.credentials.into_iter().filter_map(entry).collect();
        Ok(CredentialIndex::new(entries, HashSet::new()))
    }

    /// The index with these `rows` of the `text`, and its faults. Credentials of rows with faults keep their old customer.
    pub(super) fn finish_with_faults(
        mut self,
        text: &str,
        rows: RowSet,
        mut faults: Faults,
    ) -> Result<(CredentialIndex, Faults), MergeError> {
        if faults.faults.iter().any(|(line, _)| *line == 1) {
            return Err(MergeError::Header(faults));
        }
        if rows == RowSet::Log {
            self.drop_replaced(text, &mut faults);
        }
        let conflicting = self.find_conflicts(&mut faults);
        if rows == RowSet::Changed && self.contradicts_unchanged() {
            return Err(MergeError::Contradiction);
        }
        faults.sort();
        let (mut entries, mut refused) = (Vec::new(), HashSet::new());
        if rows == RowSet::Changed {
            refused.clone_from(&self.before.refused);
        }
        refused.extend(self.unidentified);
        for rows in self.credentials.chunk_by(|a, b| a.hash == b.hash) {
            let Some((CredentialRow { hash, line, customer }, others)) = rows.split_first() else { continue };
            let read = customer.as_ref().filter(|_| others.is_empty() && !conflicting.contains(line));
            match read {
                Some(_) => refused.remove(hash),
                None => refused.insert(*hash),
            };
            let customer = read.or_else(|| self.before.find(*hash)).map(Arc::clone);
            entries.extend(customer.map(|customer| Entry { hash: *hash, customer }));
        }
        let index = match rows {
            RowSet::All | RowSet::Log => CredentialIndex::new(entries.into(), refused),
            RowSet::Changed => self.before.with(entries, refused),
        };
        Ok((index, faults))
    }

    /// Whether a row contradicts a row of the same customer that the text leaves as it was. The rows are sorted.
    fn contradicts_unchanged(&self) -> bool {
        let mut changed = HashMap::<&str, Vec<&Customer>>::new();
        for customer in self.credentials.iter().filter_map(|row| row.customer.as_deref()) {
            changed.entry(&customer.name).or_default().push(customer);
        }
        let is_unchanged = |hash| self.credentials.binary_search_by_key(&hash, |row| row.hash).is_err();
        self.before.entries.iter().any(|Entry { hash, customer }| {
            let rows = changed.get(&*customer.name).filter(|_| is_unchanged(*hash));
            rows.is_some_and(|rows| rows.iter().any(|row| contradicts(row, customer)))
        })
    }

    /// Drops the rows that a row of the same credential in a later part of the `text` replaces.
    fn drop_replaced(&mut self, text: &str, faults: &mut Faults) {
        let ends = text.lines().zip(1..).filter(|(line, _)| line.is_empty());
        let ends: Vec<u32> = ends.map(|(_, number)| number).collect();
        let part = |row: &CredentialRow| ends.partition_point(|end| *end < row.line);
        self.credentials.sort_unstable_by_key(|row| (row.hash, row.line));
        let mut replaced = HashSet::new();
        for rows in self.credentials.chunk_by(|a, b| a.hash == b.hash) {
            let last = rows.last().map(part);
            replaced.extend(rows.iter().filter(|row| Some(part(row)) != last).map(|row| row.line));
        }
        if !replaced.is_empty() {
            self.credentials.retain(|row| !replaced.contains(&row.line));
            self.customers.retain(|row| !replaced.contains(&row.line));
            faults.faults.retain(|(line, _)| !replaced.contains(&bounded(*line)));
        }
    }

    /// Sorts the rows, and adds a fault for each repeated credential and each contradiction between rows of a customer.
    /// Returns the lines of the customers with contradictions.
    fn find_conflicts(&mut self, faults: &mut Faults) -> HashSet<u32> {
        self.credentials.sort_unstable_by_key(|row| (row.hash, row.line));
        for rows in self.credentials.chunk_by(|a, b| a.hash == b.hash) {
            if let [first, others @ ..] = rows {
                let fault = Fault::RepeatedCredential(first.line.into());
                others.iter().for_each(|other| faults.add(other.line.into(), fault.clone()));
            }
        }
        let mut conflicting = HashSet::new();
        self.customers.sort_unstable_by_key(|row| (row.name, row.line));
        for rows in self.customers.chunk_by(|a, b| a.name == b.name) {
            let [first, others @ ..] = rows else { continue };
            for other in others {
                if let Some(fault) = disagreement(first, other) {
                    faults.add(other.line.into(), fault);
                    conflicting.extend(rows.iter().map(|row| row.line));
                }
            }
        }
        conflicting
    }
}

fn bounded(line: u64) -> u32 {
    u32::try_from(line).unwrap_or(u32::MAX)
}

/// Whether two customers of the same name have contradictory terms. A time zone that changes no limit is not seen, nor the
/// suspension of a member of a suspended group.
fn contradicts(one: &Customer, other: &Customer) -> bool {
    let in_suspended_group = |customer: &Customer| customer.groups.as_ref().is_some_and(|groups| groups.suspended());
    let suspended = one.suspended != other.suspended && !in_suspended_group(one) && !in_suspended_group(other);
    suspended || one.plan != other.plan || one.own != other.own
}

/// The fault of a row that contradicts the `first` row of its customer, by the first field that does.
fn disagreement(first: &CustomerRow, row: &CustomerRow) -> Option<Fault> {
    let (one, other, line) = (&first.terms, &row.terms, first.line.into());
    let disagrees = |what| Some(Fault::Disagrees { what, line });
    if Arc::ptr_eq(one, other) {
        None
    } else if one.plan != other.plan && (first.inherits_plan || row.inherits_plan) {
        Some(Fault::GroupsDisagree { line })
    } else if one.plan != other.plan {
        disagrees("plan")
    } else if one.suspended != other.suspended {
        disagrees("`suspended`")
    } else if one.zone != other.zone {
        disagrees("time zone")
    } else if one.own != other.own {
        disagrees("set of overrides")
    } else {
        None
    }
}
