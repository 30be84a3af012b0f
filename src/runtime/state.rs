//! The state that outlives the process: the state that a process starts with, and the snapshots that it writes.
//!
//! A snapshot that cannot be used does not prevent the start: the gateway moves it aside (`<file>.refused`, or
//! `<file>.refused.2` and so on where there are such files), logs an error, and every key starts afresh. The gateway never
//! moves or overwrites a file that is no snapshot; an empty file counts as none.

use std::fs;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use crate::admin::snapshots::{Recovery, RestoredFrom, Snapshot, Snapshots};
use crate::clock::{Clock, SystemClock};
use crate::files::{self, ReadError, Stamp};
use crate::gateway::Gateway;
use crate::store::local::snapshot::{self, Restored, SnapshotError};
use crate::store::{LocalStore, SnapshotHead, SnapshotSize};
use crate::telemetry::Telemetry;
use crate::units::Nanos;

/// The snapshot file, which keeps the state while no process runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateFile {
    /// The file.
    pub path: PathBuf,
    /// The interval between two snapshots.
    pub every: Nanos,
}

/// How far the wall clock may have gone back since a snapshot was written. Up to this step the process's clock continues
/// from the snapshot; a snapshot from further ahead is refused, because its states could deny requests for as long.
const MAX_STEP_BACK: Nanos = Nanos::from_secs(60);
/// The maximum number of unusable files that are kept beside a state file.
const MAX_REFUSED: usize = 9;

// === the state at the start ===

/// The state that a process starts with.
pub(super) struct RestoredState {
    pub(super) store: LocalStore,
    /// The seed that keys are hashed with.
    pub(super) seed: [u8; 16],
    pub(super) clock: SystemClock,
    pub(super) recovery: Recovery,
    /// A refused file that could not be moved aside.
    pub(super) refused: Option<Stamp>,
    /// The snapshot of the old process, which keeps it locked until it ends.
    pub(super) last: Option<fs::File>,
}

/// The state file of a process that hands over, as its successor has to treat it.
#[derive(Debug, Default)]
pub(super) struct PredecessorFile {
    /// The file if it has the last snapshot of that process.
    pub(super) written: Option<PathBuf>,
    /// The file if that process has refused it and could not move it aside.
    pub(super) refused: Option<PathBuf>,
}

impl RestoredState {
    /// An empty state. Keys are hashed with `seed` if other gateways use it too, else with a random one.
    fn fresh(recovery: Recovery, seed: Option<&[u8; 16]>) -> Self {
        let seed = seed.copied().unwrap_or_else(rand::random);
        Self { store: LocalStore::new(), seed, clock: SystemClock::new(), recovery, refused: None, last: None }
    }

    fn from(restored: Restored, origin: RestoredFrom) -> Self {
        let Restored { store, head, keys, unknown } = restored;
        let clock = SystemClock::new().not_before(head.at);
        let recovery = Recovery::Restored { origin, keys, unknown, at: head.at };
        Self { store, seed: head.seed, clock, recovery, refused: None, last: None }
    }

    /// The state of a process that hands over now. This process continues its clock, whatever the wall clock says. `seed` as
    /// in [`RestoredState::from_file`].
    pub(super) fn from_predecessor(state: impl Read, seed: Option<&[u8; 16]>) -> Result<Self, SnapshotError> {
        let restored = LocalStore::read_snapshot(BufReader::new(state), Nanos::MAX)?;
        if !fits(&restored, seed) {
            let reason = format!("the state of the old process {OTHER_NAMES}");
            let clock = SystemClock::new().not_before(restored.head.at);
            return Ok(Self { clock, ..Self::fresh(Recovery::Refused { reason }, seed) });
        }
        Ok(Self::from(restored, RestoredFrom::Predecessor))
    }

    /// Continues the snapshots of the old process in `file` if it wrote there, and leaves the file alone if it refused it.
    pub(super) fn with_file(self, file: Option<&StateFile>, before: &PredecessorFile) -> Self {
        let Some(StateFile { path, .. }) = file else { return self };
        // the configurations of the two processes may spell the path differently
        let is_at = |known: &Option<PathBuf>| {
            known.as_ref().is_some_and(|known| files::resolved(known) == files::resolved(path))
        };
        let last = if is_at(&before.written) { files::open(path).ok() } else { None };
        Self { last, refused: is_at(&before.refused).then(|| Stamp::of(path)), ..self }
    }

    /// The state that an earlier process wrote, if any. `seed` is the cluster's, if gateways have to hash keys alike.
    pub(super) fn from_file(file: Option<&StateFile>, seed: Option<&[u8; 16]>) -> Self {
        let Some(StateFile { path, .. }) = file else { return Self::fresh(Recovery::NotConfigured, seed) };
        let (why, is_snapshot) = match read(path) {
            Ok(Some(restored)) if fits(&restored, seed) => return Self::from(restored, RestoredFrom::File),
            Ok(None) => return Self::fresh(Recovery::Absent, seed),
            Ok(Some(_)) => (OTHER_NAMES.to_owned(), true),
            Err(why @ (SnapshotError::Foreign | SnapshotError::Unreadable(_))) => (why.to_string(), false),
            Err(why) => (why.to_string(), true),
        };
        let refused = if is_snapshot { put_aside(path) } else { Some(Stamp::of(path)) };
        let reason = format!("the state in {} {why}", path.display());
        Self { refused, ..Self::fresh(Recovery::Refused { reason }, seed) }
    }

    /// Reports the recovery to the log and the metrics.
    pub(super) fn report(&self, telemetry: &Telemetry) {
        telemetry.state_recovered(self.recovery.as_str());
        match &self.recovery {
            Recovery::NotConfigured => {}
            Recovery::Absent => tracing::info!("the state file is missing or empty: every key starts afresh"),
            Recovery::Restored { keys, unknown, at, .. } => {
                let age = self.clock.now().saturating_sub(*at).as_secs_f64();
                tracing::info!(keys, age_seconds = age, from = self.recovery.as_str(), "state restored");
                if *unknown > 0 {
                    tracing::warn!(keys = unknown, "state of limits that this version cannot read is ignored");
                }
            }
            Recovery::Refused { reason } => {
                tracing::error!(reason, "the saved state cannot be used: every key starts afresh")
            }
        }
    }
}

/// The reason why states with another seed cannot be used; it follows the place of the states.
const OTHER_NAMES: &str = "was written without this cluster's secret, and its keys are hashed differently";

/// Whether a snapshot's keys are hashed with the same seed as in this process.
fn fits(restored: &Restored, seed: Option<&[u8; 16]>) -> bool {
    seed.is_none_or(|seed| restored.head.seed == *seed)
}

/// The snapshot in a file; `None` if the file is missing or empty.
fn read(path: &Path) -> Result<Option<Restored>, SnapshotError> {
    let file = match files::open(path) {
        Ok(file) if file.metadata().is_ok_and(|about| about.len() == 0) => return Ok(None),
        Ok(file) => file,
        Err(ReadError::Failed(error)) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(ReadError::Failed(error)) => return Err(SnapshotError::Unreadable(error)),
        Err(ReadError::NoFile(kind)) => {
            return Err(SnapshotError::Unreadable(io::Error::other(format!("it is {kind}, not a regular file"))));
        }
        Err(other @ ReadError::TooLarge(_)) => return Err(SnapshotError::Unreadable(io::Error::other(other))),
    };
    let latest = SystemClock::new().now().saturating_add(MAX_STEP_BACK);
    let mut file = BufReader::new(file);
    let restored = LocalStore::read_snapshot(&mut file, latest)?;
    match file.read(&mut [0]) {
        Ok(0) => Ok(Some(restored)),
        Ok(_) => Err(SnapshotError::Damaged("bytes follow its end")),
        Err(error) => Err(SnapshotError::Unreadable(error)),
    }
}

/// Moves the unusable file aside. Returns its stamp if that fails.
fn put_aside(path: &Path) -> Option<Stamp> {
    let path = &files::followed(path);
    let moved = free_name(path).and_then(|aside| fs::rename(path, &aside).map(|()| aside));
    match moved {
        Ok(aside) => {
            tracing::warn!(file = %aside.display(), "the unusable state file was moved here");
            None
        }
        Err(error) => {
            tracing::error!(%error, file = %path.display(), "cannot move the unusable state file aside");
            Some(Stamp::of(path))
        }
    }
}

/// A name for the unusable file at `path` that no earlier one has.
fn free_name(path: &Path) -> io::Result<PathBuf> {
    let named = |number: usize| {
        let mut name = path.as_os_str().to_owned();
        name.push(if number == 1 { ".refused".to_owned() } else { format!(".refused.{number}") });
        PathBuf::from(name)
    };
    let free = (1..=MAX_REFUSED).map(named).find(|name| fs::symlink_metadata(name).is_err());
    free.ok_or_else(|| io::Error::other(format!("there are {MAX_REFUSED} of them already: remove some")))
}

// === the snapshots of a running process ===

/// What the snapshots of a process begin from.
pub(super) struct SnapshotOrigin {
    /// The seed that keys are hashed with.
    pub(super) seed: [u8; 16],
    /// A refused file, which is not overwritten.
    pub(super) refused: Option<Stamp>,
    /// The last snapshot, which the old process keeps locked until it ends.
    pub(super) last: Option<fs::File>,
}

pub(super) struct SnapshotWriter {
    gateway: Gateway,
    telemetry: Telemetry,
    snapshots: Arc<Snapshots>,
    seed: [u8; 16],
    file: watch::Sender<Option<StateFile>>,
    /// A refused file, which is not overwritten.
    refused: Option<Stamp>,
    /// The last snapshot, locked, so that no other process replaces it; at first that of the old process.
    last: Mutex<Option<fs::File>>,
    /// Whether another process has the state now. Locked while a snapshot is written.
    handed_over: Mutex<bool>,
}

impl SnapshotWriter {
    pub(super) fn new(
        gateway: Gateway,
        telemetry: Telemetry,
        snapshots: Arc<Snapshots>,
        SnapshotOrigin { seed, refused, last }: SnapshotOrigin,
        file: Option<StateFile>,
    ) -> Self {
        let snapshot_writer = Self {
            gateway,
            telemetry,
            snapshots,
            seed,
            file: watch::Sender::new(None),
            refused,
            last: Mutex::new(None),
            handed_over: Mutex::new(false),
        };
        snapshot_writer.set_file(file);
        *snapshot_writer.last.lock() = last;
        snapshot_writer
    }

    /// Writes later snapshots to `file`.
    pub(super) fn set_file(&self, file: Option<StateFile>) {
        self.file.send_if_modified(|before| {
            let path = file.as_ref().map(|file| &file.path);
            if before.as_ref().map(|before| &before.path) != path {
                *self.last.lock() = None;
                self.snapshots.set_file(path.map(|path| path.display().to_string()));
                self.telemetry.state_file_changed();
            }
            let differs = *before != file;
            *before = file;
            differs
        });
    }

    /// Writes a snapshot at once, and then at each interval, until dropped.
    pub(super) async fn run(self: Arc<Self>) {
        let mut file = self.file.subscribe();
        loop {
            let every = file.borrow_and_update().as_ref().map(|file| file.every);
            match every {
                Some(every) => {
                    let snapshot_writer = Arc::clone(&self);
                    if let Err(error) = spawn_blocking(move || snapshot_writer.write()).await {
                        tracing::error!(%error, "the task that writes the state file failed; retrying");
                    }
                    tokio::select! {
                        () = sleep(every.to_duration()) => {}
                        _ = file.changed() => {}
                    }
                }
                // never an error: `self` holds the sender
                None => drop(file.changed().await),
            }
        }
    }

    /// Writes a snapshot now, if there is a file for it and this process still owns the state.
    pub(super) fn write(&self) {
        let Some(StateFile { path, .. }) = self.file.borrow().clone() else { return };
        let handed_over = self.handed_over.lock();
        if *handed_over {
            return;
        }
        let clock = &self.gateway.clock;
        let (began, at) = (clock.now(), clock.wall());
        let written = self.check_replaceable(&path);
        let written = written.and_then(|()| write_to(&path, |out| self.write_snapshot(at, out)));
        let took = clock.now().saturating_sub(began);
        // Held while the result is reported, so that it is not reported after a change to another file.
        let file = self.file.borrow();
        if file.as_ref().is_none_or(|file| file.path != path) {
            return;
        }
        match written {
            Ok((SnapshotSize { keys, bytes }, snapshot)) => {
                *self.last.lock() = Some(snapshot);
                self.telemetry.state_written(at, took, bytes);
                self.snapshots.written(Snapshot { at, took, keys, bytes });
            }
            Err(error) => {
                let error = format!("cannot write the state to {}: {error}", path.display());
                let is_usable = self.has_snapshot(&path) && !self.is_refused(&path);
                let after_restart =
                    if is_usable { "limits continue from the last snapshot" } else { "every key starts afresh" };
                tracing::error!(error, after_restart, "cannot write the state");
                self.telemetry.state_not_written();
                self.snapshots.failed(error);
            }
        }
    }

    /// An error if the file is neither a snapshot nor empty, was refused, or is another process's.
    fn check_replaceable(&self, path: &Path) -> io::Result<()> {
        let file = match files::open(path) {
            Ok(file) => file,
            Err(ReadError::Failed(error)) if error.kind() == ErrorKind::NotFound => return Ok(()),
            Err(ReadError::Failed(error)) if files::lacks_descriptors(&error) => return Err(error),
            Err(unreadable) => {
                let error = format!("the existing file {unreadable}; it is not overwritten: move it away");
                return Err(io::Error::other(error));
            }
        };
        let begin = mark(&file)?;
        let problem = if !begin.is_empty() && begin != snapshot::MARK {
            "the file is not a snapshot of tollgate, and is not overwritten: move it away"
        } else if self.is_refused(path) {
            "the file was refused at the start, and is not overwritten: move it away"
        } else if !self.is_last(&file)? && flock(&file, LOCK) == Err(Errno::WOULDBLOCK) {
            "another process writes its state to this file: give each process a file of its own"
        } else {
            return Ok(());
        };
        Err(io::Error::other(problem))
    }

    /// Whether the file has a snapshot, of this process or an earlier one.
    fn has_snapshot(&self, path: &Path) -> bool {
        match files::open(path) {
            Ok(file) => mark(&file).is_ok_and(|begin| begin == snapshot::MARK),
            Err(ReadError::Failed(error)) if files::lacks_descriptors(&error) => self.last.lock().is_some(),
            Err(_) => false,
        }
    }

    fn is_refused(&self, path: &Path) -> bool {
        self.refused.is_some_and(|refused| refused == Stamp::of(path))
    }

    /// Whether `file` is the last snapshot of this process, or at first of the old one.
    fn is_last(&self, file: &fs::File) -> io::Result<bool> {
        let identity = |file: &fs::File| file.metadata().map(|about| (about.dev(), about.ino()));
        let last = self.last.lock();
        Ok(last.as_ref().map(identity).transpose()? == Some(identity(file)?))
    }

    fn write_snapshot(&self, at: Nanos, out: &mut dyn Write) -> io::Result<SnapshotSize> {
        self.gateway.store.write_snapshot(&SnapshotHead { seed: self.seed, at }, out)
    }

    /// The state file, for the successor.
    pub(super) fn for_successor(&self) -> PredecessorFile {
        // locked, so that `last` is the snapshot that is in the file
        let _handed_over = self.handed_over.lock();
        let Some(StateFile { path, .. }) = self.file.borrow().clone() else { return PredecessorFile::default() };
        let is_written = files::open(&path).is_ok_and(|file| self.is_last(&file).unwrap_or(false));
        let is_refused = self.is_refused(&path);
        PredecessorFile { written: is_written.then(|| path.clone()), refused: is_refused.then_some(path) }
    }

    /// Stops snapshots, because another process is about to own the state; [`SnapshotWriter::resume`] undoes this.
    /// Returns when no snapshot is being written.
    pub(super) fn suspend(&self) {
        *self.handed_over.lock() = true;
    }

    /// Writes the state to the successor.
    pub(super) fn hand_over(&self, out: &mut dyn Write) -> io::Result<SnapshotSize> {
        self.write_snapshot(self.gateway.clock.wall(), out)
    }

    /// Undoes [`SnapshotWriter::suspend`].
    pub(super) fn resume(&self) {
        *self.handed_over.lock() = false;
    }
}

/// Replaces the file as a whole or not at all. Returns also the new file, which is locked where the file system has locks.
fn write_to(
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> io::Result<SnapshotSize>,
) -> io::Result<(SnapshotSize, fs::File)> {
    files::replace(path, |file| {
        let (Ok(()) | Err(_)) = flock(&*file, LOCK);
        let mut out = BufWriter::with_capacity(BUFFER, &*file);
        let written = write(&mut out)?;
        out.flush()?;
        Ok((written, file.try_clone()?))
    })
}

/// The first bytes of a file, which tell whether it is a snapshot.
fn mark(file: &fs::File) -> io::Result<Vec<u8>> {
    let mut begin = Vec::new();
    file.take(snapshot::MARK.len() as u64).read_to_end(&mut begin)?;
    Ok(begin)
}

/// The size of a write to the file, in bytes.
const BUFFER: usize = 1 << 20;
/// The lock on the file that a process writes.
const LOCK: FlockOperation = FlockOperation::NonBlockingLockExclusive;

#[cfg(test)]
mod tests;
