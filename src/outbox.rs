//! A queue of records on disk, for a receiver that may be unavailable: the oldest record is delivered first, and each record
//! is kept until it is acknowledged.
//!
//! The queue is a directory of numbered files. A file holds the position up to which it is acknowledged, then its records,
//! each with its length and its hash. A record is on disk when [`Outbox::append`] returns. If a process is killed while it
//! writes a record, the hash does not match, and the next process cuts the record off. If a disk damages a record, the next
//! process takes out that record only. A record that was delivered and not acknowledged before a crash is delivered again,
//! so receivers have to recognize duplicates. Only one process at a time opens a queue.

use std::collections::VecDeque;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::files;

/// The first bytes of a file; behind them is the position up to which the file is acknowledged.
const MARK: &[u8; 8] = b"tgoutbx1";
/// The position of the first record of a file.
const BEGIN: u64 = 16;
/// The size of a record's length; the length and a hash of 128 bits are in front of each record.
const LENGTH: usize = 4;
const HEAD: usize = LENGTH + 16;
/// The size from which on a file is full and the next record begins a new file.
const FILE_BYTES: u64 = 1 << 20;
/// The longest record, in bytes.
pub const MAX_RECORD: usize = 1 << 20;
const SUFFIX: &str = ".records";
const LOCK: &str = "lock";

/// A queue of records on disk.
#[derive(Debug)]
pub struct Outbox {
    directory: PathBuf,
    /// The maximum size of all files together, in bytes.
    max_bytes: u64,
    /// The oldest file first; records are appended to the last one.
    files: VecDeque<RecordFile>,
    /// The lock file, locked as long as this process has the queue open.
    _lock: File,
}

/// One file of records.
#[derive(Debug)]
struct RecordFile {
    number: u64,
    file: File,
    /// The position of the first record that is not acknowledged.
    acknowledged: u64,
    /// The end of the last whole record.
    end: u64,
    /// The number of records between these positions.
    records: u64,
}

/// The bytes in the files of a queue that were no whole records when it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Damage {
    /// How many bytes at the ends of files were cut off: a process was killed while it wrote them.
    pub cut: usize,
    /// At how many places in front of whole records there was something else: at each, at least one record is lost.
    pub lost: usize,
}

/// The reason why a queue cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it open.
    #[error("another process has it open")]
    InUse,
    /// Its files cannot be read or written, or one of them is no file of a queue.
    #[error("{0}")]
    Failed(#[from] io::Error),
}

// === impl Outbox ===

impl Outbox {
    /// Opens the queue in `directory`, which is created if it is missing; its files have at most `max_bytes` bytes together.
    pub fn open(directory: &Path, max_bytes: u64) -> Result<(Self, Damage), OpenError> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let lock = private().create(true).truncate(false).open(directory.join(LOCK))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(OpenError::InUse),
            Err(error) => return Err(OpenError::Failed(error.into())),
        }
        let mut numbers = Vec::new();
        for entry in fs::read_dir(directory)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_suffix(SUFFIX));
            let number = number.and_then(|number| number.parse::<u64>().ok());
            numbers.extend(number);
        }
        numbers.sort_unstable();
        let mut outbox = Self { directory: directory.to_owned(), max_bytes, files: VecDeque::new(), _lock: lock };
        let mut damage = Damage::default();
        for number in numbers {
            let (file, found) = RecordFile::open(number, &outbox.path_of(number))?;
            outbox.files.push_back(file);
            damage.cut = damage.cut.saturating_add(found.cut);
            damage.lost = damage.lost.saturating_add(found.lost);
        }
        outbox.drop_acknowledged()?;
        Ok((outbox, damage))
    }

    /// The number of records that are not acknowledged.
    pub fn len(&self) -> u64 {
        self.files.iter().map(|file| file.records).sum()
    }

    /// Whether every record is acknowledged.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The size of all files in bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.end).sum()
    }

    /// Appends records in their order, and returns how many are in the queue: the first record that does not fit is left
    /// out, and so are all behind it. The appended records are on disk when this function returns without an error.
    ///
    /// Errors: the record behind those in the queue cannot be written, or the disk does not confirm that it has them.
    pub fn append<'r>(&mut self, records: impl IntoIterator<Item = &'r [u8]>) -> (usize, io::Result<()>) {
        let mut taken: usize = 0;
        for record in records {
            match self.put(record) {
                Ok(true) => taken = taken.saturating_add(1),
                Ok(false) => break,
                Err(error) => return (taken, Err(error)),
            }
        }
        (taken, self.files.back().map_or(Ok(()), |file| file.file.sync_data()))
    }

    /// Writes a record behind the others. Returns whether it fits.
    fn put(&mut self, record: &[u8]) -> io::Result<bool> {
        let head = head_of(record)?;
        let begins_file = self.files.back().is_none_or(|file| file.end >= FILE_BYTES);
        let needed = length_of([&head, record]).saturating_add(if begins_file { BEGIN } else { 0 });
        if self.bytes().saturating_add(needed) > self.max_bytes {
            return Ok(false);
        }
        if begins_file {
            self.begin_file()?;
        }
        if let Some(file) = self.files.back_mut() {
            file.put(&[&head, record].concat())?;
        }
        Ok(true)
    }

    /// The oldest records that are not acknowledged: at most `max_records`.
    ///
    /// Errors: the records cannot be read.
    pub fn batch(&self, max_records: usize) -> io::Result<Vec<Vec<u8>>> {
        let mut batch = Vec::new();
        for file in &self.files {
            let mut at = file.acknowledged;
            while at < file.end && batch.len() < max_records {
                let (record, next) = file.record(at)?;
                batch.push(record);
                at = next;
            }
        }
        Ok(batch)
    }

    /// Acknowledges the `count` oldest records.
    pub fn acknowledge(&mut self, count: usize) -> io::Result<()> {
        let mut left = count;
        for file in &mut self.files {
            while left > 0 && file.acknowledged < file.end {
                file.acknowledged = file.behind(file.acknowledged)?;
                file.records = file.records.saturating_sub(1);
                left = left.saturating_sub(1);
            }
            file.file.write_all_at(&file.acknowledged.to_le_bytes(), MARK.len() as u64)?;
            if left == 0 {
                break;
            }
        }
        self.drop_acknowledged()
    }

    /// Removes the oldest files as long as all their records are acknowledged.
    fn drop_acknowledged(&mut self) -> io::Result<()> {
        while let Some(file) = self.files.front().filter(|file| file.records == 0) {
            fs::remove_file(self.path_of(file.number))?;
            self.files.pop_front();
        }
        Ok(())
    }

    fn begin_file(&mut self) -> io::Result<()> {
        self.files.back().map_or(Ok(()), |file| file.file.sync_data())?;
        let number = self.files.back().map_or(1, |file| file.number.saturating_add(1));
        // an attempt that failed, for want of space, may have left the file
        let file = private().create(true).truncate(true).open(self.path_of(number))?;
        file.write_all_at(&begin(), 0)?;
        File::open(&self.directory)?.sync_all()?;
        self.files.push_back(RecordFile { number, file, acknowledged: BEGIN, end: BEGIN, records: 0 });
        Ok(())
    }

    fn path_of(&self, number: u64) -> PathBuf {
        self.directory.join(format!("{number:020}{SUFFIX}"))
    }
}

// === impl RecordFile ===

impl RecordFile {
    /// Opens an existing file, and takes out the bytes that are no whole records.
    ///
    /// Errors: the file cannot be read or written, or is no file of a queue.
    fn open(number: u64, path: &Path) -> io::Result<(Self, Damage)> {
        let mut file = private().open(path)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        if length_of([&bytes]) < BEGIN {
            // a process was killed while it created the file
            bytes = begin();
            file.write_all_at(&bytes, 0)?;
        }
        let Some(acknowledged) = bytes.strip_prefix(MARK).and_then(|rest| rest.first_chunk()) else {
            return Err(io::Error::other(format!("{} is not a queue file of tollgate", path.display())));
        };
        let acknowledged = usize::try_from(u64::from_le_bytes(*acknowledged)).unwrap_or_default();
        let (mut records, mut at, mut damage) = (Vec::new(), begin().len(), Damage::default());
        loop {
            if let Some(end) = end_of_record(&bytes, at) {
                records.push(at..end);
                at = end;
            } else if let Some(next) = (at..bytes.len()).find(|at| end_of_record(&bytes, *at).is_some()) {
                damage.lost = damage.lost.saturating_add(1);
                at = next;
            } else {
                break;
            }
            if at == acknowledged {
                (records, damage) = (Vec::new(), Damage::default());
            }
        }
        damage.cut = bytes.len().saturating_sub(at);
        let mut acknowledged = records.first().map_or(at, |first| first.start);
        if damage.lost > 0 {
            let records = records.iter().filter_map(|record| bytes.get(record.clone()));
            let whole = [begin()].iter().map(Vec::as_slice).chain(records).collect::<Vec<_>>().concat();
            files::replace(path, |file| file.write_all(&whole))?;
            file = private().open(path)?;
            (acknowledged, at) = (begin().len(), whole.len());
        } else if damage.cut > 0 {
            file.set_len(at as u64)?;
        }
        let opened =
            Self { number, file, acknowledged: acknowledged as u64, end: at as u64, records: records.len() as u64 };
        Ok((opened, damage))
    }

    /// Appends a record with its head.
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        if let Err(error) = self.file.write_all_at(bytes, self.end) {
            // a partial record would stay in front of the next ones
            drop(self.file.set_len(self.end));
            return Err(error);
        }
        self.end = self.end.saturating_add(length_of([bytes]));
        self.records = self.records.saturating_add(1);
        Ok(())
    }

    /// The record at a position, and its end.
    fn record(&self, at: u64) -> io::Result<(Vec<u8>, u64)> {
        let end = self.behind(at)?;
        let length = usize::try_from(end.saturating_sub(at)).ok().filter(|length| *length <= HEAD + MAX_RECORD);
        let mut bytes = vec![0; length.ok_or(io::ErrorKind::InvalidData)?];
        self.file.read_exact_at(&mut bytes, at)?;
        match end_of_record(&bytes, 0) {
            Some(_) => Ok((bytes.split_off(HEAD), end)),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// The end of the record that begins at a position.
    fn behind(&self, at: u64) -> io::Result<u64> {
        let mut length = [0; LENGTH];
        self.file.read_exact_at(&mut length, at)?;
        Ok(at.saturating_add(length_of([&[0; HEAD]])).saturating_add(u32::from_le_bytes(length).into()))
    }
}

fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    options
}

/// The bytes of a file without records.
fn begin() -> Vec<u8> {
    [*MARK, BEGIN.to_le_bytes()].concat()
}

/// The end of the whole record that begins at a position of `bytes`.
fn end_of_record(bytes: &[u8], at: usize) -> Option<usize> {
    let (head, rest) = bytes.get(at..)?.split_at_checked(HEAD)?;
    let length = usize::try_from(u32::from_le_bytes(*head.first_chunk()?)).ok()?;
    let record = rest.get(..length)?;
    (head_of(record).ok()? == head).then(|| at.saturating_add(HEAD).saturating_add(length))
}

/// The head of a record: its length and its hash.
fn head_of(record: &[u8]) -> io::Result<[u8; HEAD]> {
    let length = u32::try_from(record.len()).ok().filter(|_| record.len() <= MAX_RECORD);
    let length = length.ok_or_else(|| io::Error::other("a record is longer than 1 MiB"))?;
    let mut head = [0; HEAD];
    let (of_length, of_hash) = head.split_at_mut(LENGTH);
    of_length.copy_from_slice(&length.to_le_bytes());
    of_hash.copy_from_slice(&files::hash(record).to_le_bytes());
    Ok(head)
}

fn length_of<const N: usize>(parts: [&[u8]; N]) -> u64 {
    parts.iter().map(|part| part.len() as u64).sum()
}

#[cfg(test)]
mod tests;
