//! Snapshots: the states of a store as bytes, for the next process. Their times are those of the wall clock, with which
//! the next process begins.
//!
//! A snapshot is a mark with a version, a sequence of parts (each after its length), and a checksum of all that. A
//! reader gets a whole store, or the reason why there is none. States come with their limit's identity (name, algorithm
//! and kind of key) and with the parameters that they were written under, as arguments, so that the algorithm's rule
//! migrates them if the configuration has changed meanwhile. Tokens that limits hold while requests run
//! ([`Core::HOLDS_SLOTS`](crate::algorithm::Core::HOLDS_SLOTS)) are left out: those requests end with their process.
//!
//! Requests continue while a snapshot is written: each lock is held only while one shard's cells of one limit are
//! copied. So every cell is as it was at some time between begin and end. If a request was charged meanwhile by two
//! limits, the snapshot may contain one charge without the other.

use std::hash::Hasher;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::migration::CarriedRules;
use super::rules::RuleNumbers;
use super::table::{Cells, DetachedCell, KEY_BYTES, read_cell, write_cell};
use super::{LimitTable, LocalStore};
use crate::algorithm::Parameters;
use crate::cluster::wire::LimitIdentity;
use crate::store::LimitSpec;
use crate::units::Nanos;

#[cfg(test)]
pub(super) mod tests;

/// The first bytes of a snapshot.
pub const MARK: &[u8; 15] = b"tollgate-state\n";
/// Incremented whenever the encoding of parts, of an algorithm's states or of hashed keys changes.
const VERSION: u8 = 2;
/// The previous version, which is still read. Its keys have [`FORMER_KEY_BYTES`], whose lower half is the key of today.
const FORMER_VERSION: u8 = 1;
const FORMER_KEY_BYTES: usize = 16;
/// The size in bytes at which a part of cells is written.
const PART: usize = 1 << 20;
/// The longest part: longer ones are neither written nor read.
const LONGEST_PART: u64 = 1 << 30;

/// The data without which states are worthless.
#[derive(Clone, Serialize, Deserialize)]
pub struct SnapshotHead {
    /// The seed that keys are hashed with. A secret: somebody who knows it can aim at buckets.
    pub seed: [u8; 16],
    /// The wall clock's time when the snapshot was begun.
    pub at: Nanos,
}

/// The size of a written snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotSize {
    /// Keys.
    pub keys: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A store that was read from a snapshot.
pub struct Restored {
    /// The store.
    pub store: LocalStore,
    /// The head of the snapshot.
    pub head: SnapshotHead,
    /// The number of restored keys.
    pub keys: u64,
    /// The number of keys that were not restored, because this program does not know their algorithm or parameters.
    pub unknown: u64,
}

/// The reason why a snapshot is not restored, worded to follow the name of its source. No part of it is used then.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The source cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// The source is no snapshot.
    #[error("is not a snapshot of tollgate")]
    Foreign,
    /// Another version wrote the snapshot.
    #[error("is of version {0}, and this program reads versions {FORMER_VERSION} and {VERSION}")]
    Version(u8),
    /// The snapshot ends early.
    #[error("is cut short")]
    CutShort,
    /// The bytes are not those that were written.
    #[error("is damaged: {0}")]
    Damaged(&'static str),
    /// The clock has gone back since, so far that the snapshot's states would apply for a long time.
    #[error("is from the future: it was written {0} ahead of this machine's clock")]
    Future(Nanos),
}

/// One part of a snapshot.
#[derive(Serialize, Deserialize)]
enum Part {
    Head(SnapshotHead),
    /// The start of a limit: the parts that follow belong to it.
    Limit(Box<SnapshotLimit>),
    /// The limit's next sets of parameters; cells refer to them by position.
    Rules(Vec<Parameters>),
    /// This many cells of the limit, which follow in the same part.
    Cells(u64),
    End,
}

/// The limit that states belong to.
#[derive(Serialize, Deserialize)]
struct SnapshotLimit {
    identity: LimitIdentity,
    /// The positions of the parameters that the configuration contained.
    bound: Vec<u32>,
}

// === writing ===

impl LocalStore {
    /// Writes a snapshot.
    pub fn write_snapshot(&self, head: &SnapshotHead, out: impl Write) -> io::Result<SnapshotSize> {
        let mut writer = Writer { out, hasher: SipHasher13::new(), written: SnapshotSize { keys: 0, bytes: 0 } };
        writer.write(MARK)?;
        writer.write(&[VERSION])?;
        writer.part(&Part::Head(head.clone()), &[])?;
        // the tables keep their positions while this vector holds them
        let tables: Vec<Arc<LimitTable>> = self.tables.read().iter().cloned().collect();
        for table in tables.iter().filter(|table| table.is_kept()) {
            self.write_table(table, &mut writer)?;
        }
        writer.part(&Part::End, &[])?;
        let checksum = writer.hasher.finish128().as_bytes();
        writer.write(&checksum)?;
        writer.out.flush()?;
        Ok(writer.written)
    }

    fn write_table(&self, table: &LimitTable, writer: &mut Writer<impl Write>) -> io::Result<()> {
        let (bound, mut numbers) = (table.bound.lock().clone(), RuleNumbers::default());
        let is_known = |number| table.rules.read().get(number).is_some();
        let bound = bound.into_iter().map(|number| if is_known(number) { numbers.position(number) } else { u32::MAX });
        let limit = SnapshotLimit { identity: table.spec().identity(), bound: bound.collect() };
        writer.part(&Part::Limit(Box::new(limit)), &[])?;
        let (mut rules_written, mut count, mut cells) = (0, 0_u64, Vec::new());
        // cells follow the rules to which they refer
        let mut write = |numbers: &RuleNumbers, count: &mut u64, cells: &mut Vec<u8>| {
            let rules = table.rules.read();
            let new = numbers.from(rules_written).filter_map(|number| rules.get(number));
            let new: Vec<Parameters> = new.map(Parameters::of).collect();
            drop(rules);
            if !new.is_empty() {
                rules_written = rules_written.saturating_add(new.len());
                writer.part(&Part::Rules(new), &[])?;
            }
            writer.cells(count, cells)
        };
        for shard in self.shards.iter() {
            let copy: Cells = shard.lock().cells[table.position].clone();
            for DetachedCell { key, rule, state } in copy.into_detached() {
                write_cell(key, numbers.position(rule), &table.with_wall_times(rule, state), &mut cells)?;
                count = count.saturating_add(1);
                if cells.len() >= PART {
                    write(&numbers, &mut count, &mut cells)?;
                }
            }
            write(&numbers, &mut count, &mut cells)?;
        }
        Ok(())
    }
}

struct Writer<W> {
    out: W,
    hasher: SipHasher13,
    written: SnapshotSize,
}

impl<W: Write> Writer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.write(bytes);
        self.written.bytes = self.written.bytes.saturating_add(bytes.len().try_into().unwrap_or(u64::MAX));
        self.out.write_all(bytes)
    }

    /// Writes a part, followed by the bytes of `rest`.
    fn part(&mut self, part: &Part, rest: &[u8]) -> io::Result<()> {
        let part = postcard::to_stdvec(part).map_err(io::Error::other)?;
        let length = u64::try_from(part.len().saturating_add(rest.len())).unwrap_or(u64::MAX);
        if length > LONGEST_PART {
            return Err(io::Error::other("the state of one key is larger than a snapshot can hold"));
        }
        self.write(&length.to_le_bytes())?;
        self.write(&part)?;
        self.write(rest)
    }

    /// Writes the collected cells, if there are any.
    fn cells(&mut self, count: &mut u64, cells: &mut Vec<u8>) -> io::Result<()> {
        if *count > 0 {
            self.part(&Part::Cells(*count), cells)?;
        }
        self.written.keys = self.written.keys.saturating_add(*count);
        *count = 0;
        cells.clear();
        Ok(())
    }
}

// === reading ===

impl LocalStore {
    /// Reads a snapshot, which must not have been begun after `latest`.
    pub fn read_snapshot(input: impl Read, latest: Nanos) -> Result<Restored, SnapshotError> {
        let mut reader = Reader { input, hasher: SipHasher13::new(), part: Vec::new() };
        reader.mark()?;
        let key_bytes = reader.key_bytes()?;
        let (Part::Head(head), _) = reader.part()? else { return Err(SnapshotError::Damaged("it lacks its head")) };
        if head.at > latest {
            return Err(SnapshotError::Future(head.at.saturating_sub(latest)));
        }
        let mut restored = Restored { store: Self::new(), head, keys: 0, unknown: 0 };
        restored.read_parts(&mut reader, key_bytes)?;
        reader.check_sum()?;
        Ok(restored)
    }

    /// Whether a limit's states come from a process that had other parameters for it.
    pub fn was_bound_otherwise(&self, spec: &LimitSpec<'_>) -> bool {
        let Some(table) = self.tables.read().find(spec) else { return false };
        let before = table.bound.lock();
        let now: Vec<Option<u32>> = spec.rules.iter().map(|rule| table.rules.read().find(rule)).collect();
        let is_new = now.iter().any(|number| number.is_none_or(|number| !before.contains(&number)));
        is_new || before.iter().any(|number| !now.contains(&Some(*number)))
    }
}

impl Restored {
    /// Reads the parts after the head, with keys of `key_bytes` bytes.
    fn read_parts(&mut self, reader: &mut Reader<impl Read>, key_bytes: usize) -> Result<(), SnapshotError> {
        let mut limit = None;
        loop {
            match reader.part()? {
                (Part::Limit(found), _) => {
                    // the requests that held slots have ended with their process
                    let spec = LimitSpec::of(&found.identity).filter(|spec| !spec.algorithm.holds_slots());
                    let rules = spec.map(|spec| CarriedRules::of(self.store.table(&spec)));
                    limit = Some((rules, found.bound));
                }
                (Part::Rules(parameters), _) => match &mut limit {
                    Some((Some(rules), bound)) => {
                        rules.learn(&parameters);
                        // unknown parameters get a number that no parameters have
                        let number = |position: &u32| rules.at(*position).map_or(u32::MAX, |bound| bound.number);
                        *rules.table.bound.lock() = bound.iter().map(number).collect();
                    }
                    Some((None, _)) => {}
                    None => return Err(SnapshotError::Damaged("parameters belong to no limit")),
                },
                (Part::Cells(count), cells) => match &limit {
                    Some((Some(rules), _)) => self.take(rules, count, key_bytes, cells)?,
                    Some((None, _)) => self.unknown = self.unknown.saturating_add(count),
                    None => return Err(SnapshotError::Damaged("states belong to no limit")),
                },
                (Part::End, _) => return Ok(()),
                (Part::Head(_), _) => return Err(SnapshotError::Damaged("it has two heads")),
            }
        }
    }

    fn take(
        &mut self,
        rules: &CarriedRules,
        count: u64,
        key_bytes: usize,
        mut cells: &[u8],
    ) -> Result<(), SnapshotError> {
        let table = &rules.table;
        for _ in 0..count {
            let (DetachedCell { key, rule, state }, rest) = read_cell(table.algorithm, key_bytes, cells)
                .ok_or(SnapshotError::Damaged("a state is not one of its algorithm"))?;
            cells = rest;
            match rules.at(rule) {
                Some(bound) => {
                    let mut shard = self.store.shards.of(key).lock();
                    shard.cells[table.position].put(bound, key, Some(state));
                    self.keys = self.keys.saturating_add(1);
                }
                None => self.unknown = self.unknown.saturating_add(1),
            }
        }
        Ok(())
    }
}

struct Reader<R> {
    input: R,
    hasher: SipHasher13,
    part: Vec<u8>,
}

impl<R: Read> Reader<R> {
    /// Reads the mark. An input with other bytes is foreign, even if it is shorter than the mark.
    fn mark(&mut self) -> Result<(), SnapshotError> {
        let mut mark = Vec::with_capacity(MARK.len());
        self.input.by_ref().take(MARK.len() as u64).read_to_end(&mut mark).map_err(SnapshotError::Unreadable)?;
        self.hasher.write(&mark);
        match mark.len() == MARK.len() {
            _ if !MARK.starts_with(&mark) => Err(SnapshotError::Foreign),
            true => Ok(()),
            false => Err(SnapshotError::CutShort),
        }
    }

    /// Reads the version, and returns the length of its keys.
    fn key_bytes(&mut self) -> Result<usize, SnapshotError> {
        let mut version = [0];
        self.fill(&mut version)?;
        match version {
            [VERSION] => Ok(KEY_BYTES),
            [FORMER_VERSION] => Ok(FORMER_KEY_BYTES),
            [other] => Err(SnapshotError::Version(other)),
        }
    }

    /// Reads the checksum of all that was read before.
    fn check_sum(&mut self) -> Result<(), SnapshotError> {
        let expected = self.hasher.finish128().as_bytes();
        let mut found = [0; 16];
        self.fill(&mut found)?;
        if found == expected { Ok(()) } else { Err(SnapshotError::Damaged("its checksum is another")) }
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), SnapshotError> {
        self.input.read_exact(bytes).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => SnapshotError::CutShort,
            _ => SnapshotError::Unreadable(error),
        })?;
        self.hasher.write(bytes);
        Ok(())
    }

    /// The next part, and the bytes that follow in it.
    fn part(&mut self) -> Result<(Part, &[u8]), SnapshotError> {
        let mut length = [0; 8];
        self.fill(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > LONGEST_PART {
            return Err(SnapshotError::Damaged("a part of it is too long"));
        }
        self.part.clear();
        // the buffer grows with the bytes that exist, not with the length that is announced
        let read = self.input.by_ref().take(length).read_to_end(&mut self.part).map_err(SnapshotError::Unreadable)?;
        if u64::try_from(read) != Ok(length) {
            return Err(SnapshotError::CutShort);
        }
        self.hasher.write(&self.part);
        postcard::take_from_bytes(&self.part).map_err(|_| SnapshotError::Damaged("a part of it is none"))
    }
}

impl LimitTable {
    /// Whether snapshots contain the table's states.
    fn is_kept(&self) -> bool {
        let abandoned: &AtomicBool = &self.abandoned;
        !self.algorithm.holds_slots() && !abandoned.load(Ordering::Relaxed) && self.keys.load(Ordering::Relaxed) > 0
    }
}
