//! Reading and writing whole files, and detecting their changes.
//!
//! Only regular files up to a maximum size are read: a directory, a pipe or a device is an error at once. A hash
//! ([`Fingerprint`]) identifies the content of a file; its [`Stamp`] is a cheap sign that the content may have changed.

use std::fs::{self, File, Metadata, OpenOptions};
use std::hash::Hasher;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use siphasher::sip128::{Hasher128, SipHasher13};

use crate::pattern::Pattern;

/// The number of bytes that one read takes from a file.
const CHUNK: usize = 64 << 10;
/// The maximum number of symbolic links in a row that are followed, as by the system.
const MAX_LINKS: usize = 40;

/// The reason why a file is not read; messages put it after the file's name.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system reports an error.
    #[error("cannot be read: {0}")]
    Failed(#[from] io::Error),
    /// It is a directory, a pipe, a device or a socket.
    #[error("cannot be read: it is {0}, not a regular file")]
    NoFile(&'static str),
    /// It is larger than this number of bytes, which is the most it may have.
    #[error("is larger than {} KiB", .0 >> 10)]
    TooLarge(usize),
}

/// The metadata of a file, after following links. A different stamp means that the content may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// There is no file, or its metadata cannot be read.
    Missing,
    /// The path is a pattern, whose names are read at every check: other files come and go without a change of them.
    Pattern,
    /// The file exists.
    Present {
        /// The numbers of the device and of the inode.
        identity: (u64, u64),
        /// The size in bytes.
        size: u64,
        /// When it was last written, in seconds and nanoseconds.
        written: (i64, i64),
        /// When its content or metadata last changed, in seconds and nanoseconds.
        changed: (i64, i64),
    },
}

/// The content of a file: a hash of its bytes, or of the paths that match a pattern, or the reason why it could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fingerprint {
    /// The hash.
    Bytes(u128),
    /// The reason.
    Unreadable(String),
    /// The process or the system had no descriptor left to read it with.
    Unknown,
}

/// A file as it was when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileVersion {
    /// Its path, or the pattern of several.
    pub path: PathBuf,
    /// The maximum size, in bytes.
    pub max_bytes: usize,
    /// Its stamp, taken before it was read.
    pub stamp: Stamp,
    /// Its content.
    pub print: Fingerprint,
}

/// Reads a whole file of at most `max_bytes` bytes.
pub fn read(path: &Path, max_bytes: usize) -> (Result<Vec<u8>, ReadError>, FileVersion) {
    let mut bytes = Vec::new();
    let (outcome, seen) = look_through(path, max_bytes, |part| bytes.extend_from_slice(part));
    (outcome.map(|()| bytes), seen)
}

/// Reads a file of at most `max_bytes` bytes part by part. Only the bytes that `take` keeps stay in memory.
fn look_through(path: &Path, max_bytes: usize, mut take: impl FnMut(&[u8])) -> (Result<(), ReadError>, FileVersion) {
    let (mut stamp, mut hasher) = (Stamp::Missing, SipHasher13::new());
    let outcome = parts(path, max_bytes, &mut stamp, |part| {
        hasher.write(part);
        take(part);
    });
    let print = match &outcome {
        Ok(()) => Fingerprint::Bytes(hasher.finish128().as_u128()),
        Err(ReadError::Failed(error)) if lacks_descriptors(error) => Fingerprint::Unknown,
        Err(reason) => Fingerprint::Unreadable(reason.to_string()),
    };
    (outcome, FileVersion { path: path.to_owned(), max_bytes, stamp, print })
}

fn parts(path: &Path, max_bytes: usize, stamp: &mut Stamp, mut take: impl FnMut(&[u8])) -> Result<(), ReadError> {
    let opened = open(path);
    *stamp = Stamp::of(path);
    let mut file = opened?;
    *stamp = Stamp::from(&file.metadata()?);
    let mut chunk = vec![0; CHUNK];
    let mut total: usize = 0;
    loop {
        let length = match file.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        total = total.saturating_add(length);
        if total > max_bytes {
            return Err(ReadError::TooLarge(max_bytes));
        }
        take(chunk.get(..length).unwrap_or_default());
    }
}

/// Whether the process or the system has no descriptor left: the same file may be readable a moment later.
pub fn lacks_descriptors(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

/// Opens a regular file for reading.
pub fn open(path: &Path) -> Result<File, ReadError> {
    // non-blocking, because opening a pipe would wait for a writer; the check below refuses pipes
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match other_than_file(&file.metadata()?) {
        Some(kind) => Err(ReadError::NoFile(kind)),
        None => Ok(file),
    }
}

/// Replaces the file at `path` atomically with the content that `write` writes; the new file survives a crash of the
/// machine. Only its owner may read it. It is written to `<path>.new` first. A symbolic link stays; its target is replaced.
pub fn replace<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    let path = &followed(path);
    let mut next = path.as_os_str().to_owned();
    next.push(".new");
    let next = Path::new(&next);
    // a killed process may have left this file; its mode may be too open, or it may be a symbolic link
    match fs::remove_file(next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let put = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(next)?;
        let written = write(&mut file)?;
        file.sync_all()?;
        fs::rename(next, path)?;
        File::open(folder_of(path))?.sync_all()?;
        Ok(written)
    };
    put().inspect_err(|_| drop(fs::remove_file(next)))
}

/// The path behind the symbolic links at `path`, whether there is a file or not.
pub fn followed(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(target) = fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    path
}

/// The path behind all links of `path`, to compare it with others; the file itself may be missing.
pub fn resolved(path: &Path) -> PathBuf {
    let path = followed(path);
    match (fs::canonicalize(folder_of(&path)), path.file_name()) {
        (Ok(folder), Some(file)) => folder.join(file),
        _ => path,
    }
}

/// The paths that match `pattern` in its last part, sorted. As in shells, a `*` at its beginning matches no hidden file.
/// `seen` gets their version.
pub fn list(pattern: &Path, seen: &mut Vec<FileVersion>) -> io::Result<Vec<PathBuf>> {
    let (paths, version) = look_for(pattern);
    seen.push(version);
    paths
}

fn look_for(pattern: &Path) -> (io::Result<Vec<PathBuf>>, FileVersion) {
    let paths = matching(pattern);
    let print = match &paths {
        Ok(paths) => Fingerprint::Bytes(hash(format!("{paths:?}").as_bytes())),
        Err(error) if lacks_descriptors(error) => Fingerprint::Unknown,
        Err(reason) => Fingerprint::Unreadable(reason.to_string()),
    };
    (paths, FileVersion { path: pattern.to_owned(), max_bytes: 0, stamp: Stamp::Pattern, print })
}

fn matching(pattern: &Path) -> io::Result<Vec<PathBuf>> {
    let called = pattern.file_name().and_then(|called| called.to_str()).unwrap_or_default();
    let wanted = Pattern::new(called);
    let is_one = |found: &str| {
        (!found.starts_with('.') || called.starts_with('.'))
            && wanted.as_ref().is_some_and(|wanted| wanted.matches(found.as_bytes()))
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder_of(pattern))? {
        let name = entry?.file_name();
        if name.to_str().is_some_and(is_one) {
            paths.push(pattern.with_file_name(name));
        }
    }
    paths.sort_unstable();
    Ok(paths)
}

/// The directory of the file at `path`.
fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A hash of `bytes`, the same on every machine.
pub fn hash(bytes: &[u8]) -> u128 {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    hasher.finish128().as_u128()
}

fn other_than_file(metadata: &Metadata) -> Option<&'static str> {
    use std::os::unix::fs::FileTypeExt;
    let kind = metadata.file_type();
    if kind.is_file() {
        None
    } else if kind.is_dir() {
        Some("a directory")
    } else if kind.is_fifo() {
        Some("a pipe")
    } else if kind.is_socket() {
        Some("a socket")
    } else {
        Some("a device")
    }
}

// === impl Stamp ===

impl Stamp {
    /// The stamp of the file that is at `path` now.
    pub fn of(path: &Path) -> Self {
        fs::metadata(path).map_or(Self::Missing, |metadata| Self::from(&metadata))
    }
}

impl From<&Metadata> for Stamp {
    fn from(metadata: &Metadata) -> Self {
        Self::Present {
            identity: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            written: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

// === impl FileVersion ===

impl FileVersion {
    /// The file's current version: the file is read again. The same version if there is no descriptor left for that.
    #[must_use]
    pub fn reread(&self) -> Self {
        let now = match self.stamp {
            Stamp::Pattern => look_for(&self.path).1,
            Stamp::Missing | Stamp::Present { .. } => look_through(&self.path, self.max_bytes, |_| ()).1,
        };
        if now.print == Fingerprint::Unknown { self.clone() } else { now }
    }

    /// The same version with the file's current stamp: the file is not read. The paths of a pattern are.
    #[must_use]
    pub fn restamped(&self) -> Self {
        match self.stamp {
            Stamp::Pattern => self.reread(),
            Stamp::Missing | Stamp::Present { .. } => Self { stamp: Stamp::of(&self.path), ..self.clone() },
        }
    }
}

#[cfg(test)]
mod tests;
