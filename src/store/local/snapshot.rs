//! Snapshots: the states of a store as bytes, for the next process. Their times are those of the wall clock, with which
//! the next process begins.
//!
//! A snapshot is a mark with a version, a sequence of parts (each after its length), and a checksum of all that. The
//! parts are the head, the parameters that each limit had in the configuration, states in the batches in which gateways
//! of a cluster send them ([`StateBatch`]), and an empty part. A reader gets a whole store, or the reason why there is
//! none. States come with the parameters that they were written under, so that the algorithm's rule migrates them if the
//! configuration has changed meanwhile. Tokens that limits hold while requests run
//! ([`Core::HOLDS_SLOTS`](crate::algorithm::Core::HOLDS_SLOTS)) are left out: those requests end with their process.
//!
//! Requests continue while a snapshot is written: each lock is held only while one shard's cells of one limit are
//! copied. So every cell is as it was at some time between begin and end. If a request was charged meanwhile by two
//! limits, the snapshot may contain one charge without the other.

use std::hash::Hasher;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::migration::StateBatchBuilder;
use super::table::Cells;
use super::{LimitTable, LocalStore};
use crate::algorithm::Parameters;
use crate::cluster::migration::ImportCounts;
use crate::cluster::wire::{LimitIdentity, StateBatch};
use crate::store::LimitSpec;
use crate::units::Nanos;

#[cfg(test)]
pub(super) mod tests;

/// The first bytes of a snapshot.
pub const MARK: &[u8; 15] = b"tollgate-state\n";
/// Incremented whenever the encoding of parts, of an algorithm's states or of hashed keys changes.
const VERSION: u8 = 3;
/// The size in bytes at which a batch of states is written.
const BATCH: usize = 1 << 20;
/// The longest part: longer ones are neither written nor read.
const MAX_PART: u64 = 1 << 30;

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
    #[error("is of version {0}, and this program reads version {VERSION}")]
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

/// The parameters that a limit had in the configuration.
#[derive(Serialize, Deserialize)]
struct ConfiguredRules {
    limit: LimitIdentity,
    rules: Vec<Parameters>,
}

// === writing ===

impl LocalStore {
    /// Writes a snapshot.
    pub fn write_snapshot(&self, head: &SnapshotHead, out: impl Write) -> io::Result<SnapshotSize> {
        let mut writer = Writer { out, hasher: SipHasher13::new(), written: SnapshotSize { keys: 0, bytes: 0 } };
        writer.write(MARK)?;
        writer.write(&[VERSION])?;
        writer.part(head)?;
        // the tables keep their positions while this vector holds them
        let tables: Vec<Arc<LimitTable>> = self.tables.read().iter().filter(|table| table.is_kept()).cloned().collect();
        writer.part(&tables.iter().map(|table| table.configured_rules()).collect::<Vec<_>>())?;
        for table in &tables {
            self.write_table(table, &mut writer)?;
        }
        writer.end()
    }

    fn write_table(&self, table: &Arc<LimitTable>, writer: &mut Writer<impl Write>) -> io::Result<()> {
        let empty = || StateBatchBuilder::of(self, Arc::clone(table));
        let mut batch = empty();
        for shard in self.shards.iter() {
            let copy: Cells = shard.lock().cells[table.position].clone();
            for cell in copy.into_detached() {
                batch.add(cell)?;
                if batch.bytes() >= BATCH {
                    writer.states(std::mem::replace(&mut batch, empty()))?;
                }
            }
        }
        writer.states(batch)
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

    fn part(&mut self, part: &impl Serialize) -> io::Result<()> {
        let part = postcard::to_stdvec(part).map_err(io::Error::other)?;
        let length = u64::try_from(part.len()).unwrap_or(u64::MAX);
        if length > MAX_PART {
            return Err(io::Error::other("the state of one key is larger than a snapshot can hold"));
        }
        self.write(&length.to_le_bytes())?;
        self.write(&part)
    }

    fn states(&mut self, batch: StateBatchBuilder<'_>) -> io::Result<()> {
        let Some(states) = batch.finish() else { return Ok(()) };
        self.written.keys = self.written.keys.saturating_add(states.count);
        self.part(&states)
    }

    /// Writes the empty part and the checksum.
    fn end(mut self) -> io::Result<SnapshotSize> {
        self.write(&0_u64.to_le_bytes())?;
        let checksum = self.hasher.finish128().as_bytes();
        self.write(&checksum)?;
        self.out.flush()?;
        Ok(self.written)
    }
}

// === reading ===

impl LocalStore {
    /// Reads a snapshot, which must not have been begun after `latest`.
    pub fn read_snapshot(input: impl Read, latest: Nanos) -> Result<Restored, SnapshotError> {
        let mut reader = Reader { input, hasher: SipHasher13::new(), part: Vec::new() };
        reader.mark()?;
        let head: SnapshotHead = reader.part()?.ok_or(SnapshotError::Damaged("it lacks its head"))?;
        if head.at > latest {
            return Err(SnapshotError::Future(head.at.saturating_sub(latest)));
        }
        let configured: Vec<ConfiguredRules> =
            reader.part()?.ok_or(SnapshotError::Damaged("it lacks the limits' parameters"))?;
        let mut restored = Restored { store: Self::new(), head, keys: 0, unknown: 0 };
        configured.iter().for_each(|limit| restored.store.restore_limit(limit));
        while let Some(states) = reader.part::<StateBatch>()? {
            // at the beginning of time no state is as good as new, so all are kept
            let ImportCounts { kept, merged, unknown } = restored.store.put(&states, Nanos::ZERO);
            restored.keys = restored.keys.saturating_add(kept).saturating_add(merged);
            restored.unknown = restored.unknown.saturating_add(unknown);
        }
        reader.check_sum()?;
        Ok(restored)
    }

    fn restore_limit(&self, ConfiguredRules { limit, rules }: &ConfiguredRules) {
        let Some(spec) = LimitSpec::of(limit) else { return };
        let table = self.table(&spec);
        // parameters that this program does not know get a number that no parameters have
        let number = |rule: &Parameters| rule.rule(spec.algorithm).map_or(u32::MAX, |rule| table.number(&rule));
        *table.bound.lock() = rules.iter().map(number).collect();
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

struct Reader<R> {
    input: R,
    hasher: SipHasher13,
    part: Vec<u8>,
}

impl<R: Read> Reader<R> {
    /// Reads the mark and the version. An input with another mark is foreign, even if it is shorter than the mark.
    fn mark(&mut self) -> Result<(), SnapshotError> {
        let mut mark = Vec::with_capacity(MARK.len());
        self.input.by_ref().take(MARK.len() as u64).read_to_end(&mut mark).map_err(SnapshotError::Unreadable)?;
        self.hasher.write(&mark);
        match mark.len() == MARK.len() {
            _ if !MARK.starts_with(&mark) => return Err(SnapshotError::Foreign),
            true => {}
            false => return Err(SnapshotError::CutShort),
        }
        let mut version = [0];
        self.fill(&mut version)?;
        if version == [VERSION] { Ok(()) } else { Err(SnapshotError::Version(version[0])) }
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

    /// The next part; `None` if it is empty.
    fn part<T: DeserializeOwned>(&mut self) -> Result<Option<T>, SnapshotError> {
        let mut length = [0; 8];
        self.fill(&mut length)?;
        let length = match u64::from_le_bytes(length) {
            0 => return Ok(None),
            length @ ..=MAX_PART => length,
            _ => return Err(SnapshotError::Damaged("a part of it is too long")),
        };
        self.part.clear();
        // the buffer grows with the bytes that exist, not with the length that is announced
        let read = self.input.by_ref().take(length).read_to_end(&mut self.part).map_err(SnapshotError::Unreadable)?;
        if u64::try_from(read) != Ok(length) {
            return Err(SnapshotError::CutShort);
        }
        self.hasher.write(&self.part);
        postcard::from_bytes(&self.part).map(Some).map_err(|_| SnapshotError::Damaged("a part of it is none"))
    }
}

impl LimitTable {
    /// Whether snapshots contain the table's states.
    fn is_kept(&self) -> bool {
        let abandoned: &AtomicBool = &self.abandoned;
        !self.algorithm.holds_slots() && !abandoned.load(Ordering::Relaxed) && self.keys.load(Ordering::Relaxed) > 0
    }

    fn configured_rules(&self) -> ConfiguredRules {
        let (bound, known) = (self.bound.lock().clone(), self.rules.read());
        let rules = bound.iter().filter_map(|number| known.get(*number)).map(Parameters::of).collect();
        ConfiguredRules { limit: self.spec().identity(), rules }
    }
}
