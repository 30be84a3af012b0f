//! Snapshots: the states of a store as bytes, for the process that comes next. The times in them are those of the wall clock,
//! with which the next process begins.
//!
//! A snapshot is a mark with a version, a row of parts (each with its length before it), and a checksum of all that. Who
//! reads one gets a whole store or the reason why there is none. States go with what they belong to (a limit's name,
//! algorithm and kind of key) and with the parameters that they were written under, as arguments, so that they are
//! carried over by the algorithm's rule where the configuration has changed meanwhile. What limits hold while requests
//! run ([`Core::HOLDS`](crate::algorithm::Core::HOLDS)) is left out: those requests end with their process.
//!
//! Requests go on while a snapshot is written: each lock is held as long as it takes to copy one shard's cells of one
//! limit. So every cell is as it was at some time between begin and end, and of a request that was charged meanwhile by
//! two limits the one charge may be in and the other not.

use std::hash::Hasher;
use std::io::{self, ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::table::{Cells, KEY_BYTES, read_cell};
use super::{BoundRule, LimitTable, LocalStore};
use crate::algorithm::{AlgorithmName, Parameters, Rule};
use crate::charge::Mode;
use crate::store::LimitSpec;
use crate::units::Nanos;

#[cfg(test)]
pub(super) mod tests;

/// What a snapshot begins with.
pub const MARK: &[u8; 15] = b"tollgate-state\n";
/// Counted up whenever the parts, the states of an algorithm or the hashing of keys are written in another way.
const VERSION: u8 = 2;
/// Still read. Its keys have [`FORMER_KEY_BYTES`], of which the lower half says where states are now.
const FORMER_VERSION: u8 = 1;
const FORMER_KEY_BYTES: usize = 16;
/// Cells are put together up to this many bytes.
const PART: usize = 1 << 20;
/// No part is longer: it would not be written.
const LONGEST_PART: u64 = 1 << 30;

/// What states are worth nothing without.
#[derive(Clone, Serialize, Deserialize)]
pub struct Head {
    /// What keys are hashed with. A secret: who knows it can aim at buckets.
    pub seed: [u8; 16],
    /// What the wall clock said when the snapshot was begun.
    pub at: Nanos,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Keys.
    pub keys: u64,
    /// Bytes.
    pub bytes: u64,
}

/// A store as a snapshot had it.
pub struct Restored {
    /// The store.
    pub store: LocalStore,
    /// What came with it.
    pub head: Head,
    /// Keys that are in it.
    pub keys: u64,
    /// Keys that are not, because this program does not know their algorithm or parameters.
    pub unknown: u64,
}

/// Why a snapshot is not restored, to be said after what was read. Nothing of it is used then.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// It cannot be read.
    #[error("cannot be read: {0}")]
    Unreadable(io::Error),
    /// It is something else.
    #[error("is no snapshot of tollgate's")]
    Foreign,
    /// It was written by another version.
    #[error("is of version {0}, and this program reads versions {FORMER_VERSION} and {VERSION}")]
    Version(u8),
    /// It ends early.
    #[error("is cut short")]
    CutShort,
    /// Its bytes are not those that were written.
    #[error("is damaged: {0}")]
    Damaged(&'static str),
    /// The clock has gone back since, so far that its states would hold for a long time.
    #[error("is from the future: it was written {0} ahead of this machine's clock")]
    Future(Nanos),
}

/// One part of a snapshot.
#[derive(Serialize, Deserialize)]
enum Part {
    Head(Head),
    /// What follows belongs to this limit.
    Limit(Box<Identity>),
    /// The limit's next sets of parameters; cells know them by their positions.
    Rules(Vec<Parameters>),
    /// This many cells of the limit, which follow in the same part.
    Cells(u64),
    End,
}

/// The limit that states belong to.
#[derive(Serialize, Deserialize)]
struct Identity {
    name: String,
    algorithm: String,
    key: u64,
    max_keys: u64,
    /// The positions of the parameters that the configuration had.
    bound: Vec<u32>,
}

// === writing ===

impl LocalStore {
    /// Writes a snapshot.
    pub fn write_snapshot(&self, head: &Head, out: impl Write) -> io::Result<Written> {
        let mut writer = Writer { out, hasher: SipHasher13::new(), written: Written { keys: 0, bytes: 0 } };
        writer.write(MARK)?;
        writer.write(&[VERSION])?;
        writer.part(&Part::Head(head.clone()), &[])?;
        // Held, they keep their places while this lasts.
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
        let identity = Identity {
            name: table.name.clone(),
            algorithm: table.algorithm.as_str().to_owned(),
            key: table.key,
            max_keys: table.max_keys.load(Ordering::Relaxed),
            bound: table.bound.lock().clone(),
        };
        writer.part(&Part::Limit(Box::new(identity)), &[])?;
        let (mut rules_written, mut cells) = (0, Vec::new());
        for shard in self.shards.iter() {
            let copy: Cells = shard.lock().cells[table.position].clone();
            // Parameters become known before anything is written under them.
            let rules: Vec<Parameters> = table.rules.read().from(rules_written).map(Parameters::of).collect();
            if !rules.is_empty() {
                rules_written = rules_written.saturating_add(rules.len());
                writer.part(&Part::Rules(rules), &[])?;
            }
            let mut count = 0_u64;
            copy.write(table, &mut cells, |cells| {
                count = count.saturating_add(1);
                if cells.len() >= PART {
                    writer.cells(&mut count, cells)?;
                }
                Ok(())
            })?;
            writer.cells(&mut count, &mut cells)?;
        }
        Ok(())
    }
}

struct Writer<W> {
    out: W,
    hasher: SipHasher13,
    written: Written,
}

impl<W: Write> Writer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.write(bytes);
        self.written.bytes = self.written.bytes.saturating_add(bytes.len().try_into().unwrap_or(u64::MAX));
        self.out.write_all(bytes)
    }

    /// Writes a part, and what follows in it.
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

    /// Writes what was put together of cells, if anything was.
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
    pub fn read_snapshot(input: impl Read, latest: Nanos) -> Result<Restored, Refused> {
        let mut reader = Reader { input, hasher: SipHasher13::new(), part: Vec::new() };
        reader.mark()?;
        let mut version = [0];
        reader.fill(&mut version)?;
        let [version] = version;
        let key_bytes = match version {
            VERSION => KEY_BYTES,
            FORMER_VERSION => FORMER_KEY_BYTES,
            _ => return Err(Refused::Version(version)),
        };
        let (Part::Head(head), _) = reader.part()? else { return Err(Refused::Damaged("it lacks its head")) };
        if head.at > latest {
            return Err(Refused::Future(head.at.saturating_sub(latest)));
        }
        let mut restored = Restored { store: Self::new(), head, keys: 0, unknown: 0 };
        let mut limit = None;
        loop {
            match reader.part()? {
                (Part::Limit(identity), _) => limit = Some(restored.store.restored_limit(&identity)),
                (Part::Rules(rules), _) => match &mut limit {
                    Some(limit) => limit.learn(&rules),
                    None => return Err(Refused::Damaged("parameters belong to no limit")),
                },
                (Part::Cells(count), cells) => match &limit {
                    Some(Limit { known: Some(known), .. }) => restored.take(known, count, key_bytes, cells)?,
                    Some(Limit { known: None, .. }) => restored.unknown = restored.unknown.saturating_add(count),
                    None => return Err(Refused::Damaged("states belong to no limit")),
                },
                (Part::End, _) => break,
                (Part::Head(_), _) => return Err(Refused::Damaged("it has two heads")),
            }
        }
        let expected = reader.hasher.finish128().as_bytes();
        let mut found = [0; 16];
        reader.fill(&mut found)?;
        if found != expected {
            return Err(Refused::Damaged("its checksum is another"));
        }
        Ok(restored)
    }

    fn restored_limit(&self, identity: &Identity) -> Limit {
        let algorithm = AlgorithmName::canonical_of(&identity.algorithm);
        let known = algorithm.filter(|algorithm| !algorithm.holds()).map(|algorithm| {
            let Identity { name, key, max_keys, .. } = identity;
            let spec = LimitSpec {
                name,
                algorithm,
                mode: Mode::default(),
                key: *key,
                afresh: false,
                rules: &[],
                max_keys: *max_keys,
                gives_back: false,
            };
            KnownLimit { table: self.table(&spec), rules: Vec::new() }
        });
        Limit { known, bound: identity.bound.clone() }
    }

    /// Whether the states that there are for a limit are from a process that knew it with other parameters.
    pub fn was_bound_otherwise(&self, spec: &LimitSpec<'_>) -> bool {
        let Some(table) = self.tables.read().find(spec) else { return false };
        let before = table.bound.lock();
        let now: Vec<Option<u32>> = spec.rules.iter().map(|rule| table.rules.read().find(rule)).collect();
        let is_new = now.iter().any(|number| number.is_none_or(|number| !before.contains(&number)));
        is_new || before.iter().any(|number| !now.contains(&Some(*number)))
    }
}

/// The limit that is being restored.
struct Limit {
    /// `None` if this program does not know it.
    known: Option<KnownLimit>,
    /// The positions of its parameters that the configuration had.
    bound: Vec<u32>,
}

struct KnownLimit {
    table: Arc<LimitTable>,
    /// The parameters by their positions, with their numbers in this store; none for those that are not understood.
    rules: Vec<Option<(u32, Rule)>>,
}

impl Limit {
    fn learn(&mut self, parameters: &[Parameters]) {
        let Some(KnownLimit { table, rules }) = &mut self.known else { return };
        rules.extend(parameters.iter().map(|parameters| {
            let rule = parameters.rule(table.algorithm)?;
            Some((table.number(&rule), rule))
        }));
        // Those not understood get a number that no parameters have.
        let number = |position: &u32| {
            let rule = usize::try_from(*position).ok().and_then(|position| rules.get(position)?.as_ref());
            rule.map_or(u32::MAX, |(number, _)| *number)
        };
        *table.bound.lock() = self.bound.iter().map(number).collect();
    }
}

impl Restored {
    fn take(&mut self, limit: &KnownLimit, count: u64, key_bytes: usize, mut cells: &[u8]) -> Result<(), Refused> {
        let KnownLimit { table, rules } = limit;
        for _ in 0..count {
            let ((key, rule, state), rest) = read_cell(table.algorithm, key_bytes, cells)
                .ok_or(Refused::Damaged("a state is not one of its algorithm"))?;
            cells = rest;
            match usize::try_from(rule).ok().and_then(|position| rules.get(position)?.as_ref()) {
                Some((number, rule)) => {
                    let mut shard = self.store.shards.of(key).lock();
                    let bound = BoundRule { number: *number, rule };
                    shard.cells[table.position].put(table, bound, key, Some(state));
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
    /// Reads what every snapshot begins with. A shorter input that begins with other bytes is no snapshot either.
    fn mark(&mut self) -> Result<(), Refused> {
        let mut mark = Vec::with_capacity(MARK.len());
        self.input.by_ref().take(MARK.len() as u64).read_to_end(&mut mark).map_err(Refused::Unreadable)?;
        self.hasher.write(&mark);
        match mark.len() == MARK.len() {
            _ if !MARK.starts_with(&mark) => Err(Refused::Foreign),
            true => Ok(()),
            false => Err(Refused::CutShort),
        }
    }

    fn fill(&mut self, bytes: &mut [u8]) -> Result<(), Refused> {
        self.input.read_exact(bytes).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => Refused::CutShort,
            _ => Refused::Unreadable(error),
        })?;
        self.hasher.write(bytes);
        Ok(())
    }

    /// The next part, and what follows in it.
    fn part(&mut self) -> Result<(Part, &[u8]), Refused> {
        let mut length = [0; 8];
        self.fill(&mut length)?;
        let length = u64::from_le_bytes(length);
        if length > LONGEST_PART {
            return Err(Refused::Damaged("a part of it is too long"));
        }
        self.part.clear();
        // Grows with what is there, not with what is promised.
        let read = self.input.by_ref().take(length).read_to_end(&mut self.part).map_err(Refused::Unreadable)?;
        if u64::try_from(read) != Ok(length) {
            return Err(Refused::CutShort);
        }
        self.hasher.write(&self.part);
        postcard::take_from_bytes(&self.part).map_err(|_| Refused::Damaged("a part of it is none"))
    }
}

impl LimitTable {
    /// Whether its states outlive the process.
    fn is_kept(&self) -> bool {
        let abandoned: &AtomicBool = &self.abandoned;
        !self.algorithm.holds() && !abandoned.load(Ordering::Relaxed) && self.keys.load(Ordering::Relaxed) > 0
    }
}
