//! Files that are read or written whole, and what tells whether they changed.
//!
//! Only regular files are read, and none that is too large: a directory, a pipe or a disk full of zeros is an error at
//! once. What a file held is known by a hash ([`Print`]); its [`Stamp`] tells cheaply that it may hold something else.

use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::hash::Hasher;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use siphasher::sip128::{Hasher128, SipHasher13};

/// How much of a file is read at a time, in bytes.
const CHUNK: usize = 64 << 10;

/// Why a file is not read, to be said after its name.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The system does not let it be read.
    #[error("cannot be read: {0}")]
    Failed(#[from] io::Error),
    /// It is a directory, a pipe, a device or a socket.
    #[error("cannot be read: it is {0}, not a regular file")]
    NoFile(&'static str),
    /// It is longer than it may be.
    #[error("is larger than {} KiB", .0 >> 10)]
    TooLarge(usize),
}

/// What a file is known by from outside, links followed. Another stamp means that it may hold something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// There is none, or what is there cannot be looked at.
    Missing,
    /// There is one.
    There {
        /// Which device and which file on it.
        identity: (u64, u64),
        /// In bytes.
        size: u64,
        /// When it was last written, in seconds and nanoseconds.
        written: (i64, i64),
        /// When anything about it last changed, in seconds and nanoseconds.
        changed: (i64, i64),
    },
}

/// What a file held: a hash of its bytes, or of the names in a directory, or why it could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Print {
    /// The hash of its bytes.
    Bytes(u128),
    /// As [`Unreadable`] says it.
    Unreadable(String),
}

/// A file as it was when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileVersion {
    /// Where it is.
    pub path: PathBuf,
    /// The most bytes it may have.
    pub most: usize,
    /// From before it was read.
    pub stamp: Stamp,
    /// What it held.
    pub print: Print,
}

/// Reads a file whole, `most` bytes at most.
pub fn read(path: &Path, most: usize) -> (Result<Vec<u8>, Unreadable>, FileVersion) {
    let mut bytes = Vec::new();
    let (outcome, seen) = look_through(path, most, |part| bytes.extend_from_slice(part));
    (outcome.map(|()| bytes), seen)
}

/// Reads a file part by part, `most` bytes at most, of which no more is kept than `take` keeps.
fn look_through(path: &Path, most: usize, mut take: impl FnMut(&[u8])) -> (Result<(), Unreadable>, FileVersion) {
    let (mut stamp, mut hasher) = (Stamp::Missing, SipHasher13::new());
    let outcome = parts(path, most, &mut stamp, |part| {
        hasher.write(part);
        take(part);
    });
    let print = match &outcome {
        Ok(()) => Print::Bytes(hasher.finish128().as_u128()),
        Err(Unreadable::NoFile(_)) if path.is_dir() => Print::Bytes(hash(format!("{:?}", names_in(path)).as_bytes())),
        Err(reason) => Print::Unreadable(reason.to_string()),
    };
    (outcome, FileVersion { path: path.to_owned(), most, stamp, print })
}

fn parts(path: &Path, most: usize, stamp: &mut Stamp, mut take: impl FnMut(&[u8])) -> Result<(), Unreadable> {
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
        if total > most {
            return Err(Unreadable::TooLarge(most));
        }
        take(chunk.get(..length).unwrap_or_default());
    }
}

/// Opens a regular file to be read.
pub fn open(path: &Path) -> Result<File, Unreadable> {
    // Without waiting: a pipe would wait for a writer, and is found out below.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    match other_than_file(&file.metadata()?) {
        Some(kind) => Err(Unreadable::NoFile(kind)),
        None => Ok(file),
    }
}

/// Puts what `write` writes at `path`, whole or not at all, whatever happens meanwhile, so that it is there after a
/// crash of the machine, too. Only its owner may read it. It is written to `<path>.new` first.
pub fn replace<T>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<T>) -> io::Result<T> {
    let mut next = path.as_os_str().to_owned();
    next.push(".new");
    let next = Path::new(&next);
    // What a process left that was killed, whoever may read it and wherever it leads.
    match fs::remove_file(next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let put = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(next)?;
        let written = write(&mut file)?;
        file.sync_all()?;
        fs::rename(next, path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder)?.sync_all()?;
        Ok(written)
    };
    put().inspect_err(|_| drop(fs::remove_file(next)))
}

/// The names in a directory, in their order. How it was before they were read goes to `seen`.
pub fn list(directory: &Path, seen: &mut Vec<FileVersion>) -> io::Result<Vec<OsString>> {
    seen.push(read(directory, 0).1);
    names_in(directory).map_err(io::Error::from)
}

fn names_in(directory: &Path) -> Result<Vec<OsString>, io::ErrorKind> {
    let kind = |error: io::Error| error.kind();
    let names = fs::read_dir(directory).map_err(kind)?.map(|entry| entry.map(|entry| entry.file_name()).map_err(kind));
    let mut names = names.collect::<Result<Vec<_>, _>>()?;
    names.sort_unstable();
    Ok(names)
}

/// A hash of `bytes`, the same everywhere.
pub fn hash(bytes: &[u8]) -> u128 {
    let mut hasher = SipHasher13::new();
    hasher.write(bytes);
    hasher.finish128().as_u128()
}

fn other_than_file(metadata: &Metadata) -> Option<&'static str> {
    use std::os::unix::fs::FileTypeExt;
    let kind = metadata.file_type();
    match () {
        () if kind.is_file() => None,
        () if kind.is_dir() => Some("a directory"),
        () if kind.is_fifo() => Some("a pipe"),
        () if kind.is_socket() => Some("a socket"),
        () => Some("a device"),
    }
}

// === impl Stamp ===

impl Stamp {
    /// Of what is at `path` now.
    pub fn of(path: &Path) -> Self {
        fs::metadata(path).map_or(Self::Missing, |metadata| Self::from(&metadata))
    }
}

impl From<&Metadata> for Stamp {
    fn from(metadata: &Metadata) -> Self {
        Self::There {
            identity: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            written: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

// === impl FileVersion ===

impl FileVersion {
    /// The same file as it is now.
    #[must_use]
    pub fn again(&self) -> Self {
        look_through(&self.path, self.most, |_| ()).1
    }

    /// The same file with the stamp that it has now: it is not read.
    #[must_use]
    pub fn stamped(&self) -> Self {
        Self { stamp: Stamp::of(&self.path), ..self.clone() }
    }
}

#[cfg(test)]
mod tests;
