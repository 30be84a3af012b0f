//! Files that are read whole, and what tells whether they changed.
//!
//! Only regular files are read, and none that is too large: a directory, a pipe or a disk full of zeros is an error at
//! once. What a file held is known by a hash ([`Print`]); its [`Stamp`] tells cheaply that it may hold something else.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, Metadata, OpenOptions};
use std::hash::Hasher;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use siphasher::sip128::{Hasher128, SipHasher13};

/// A file up to this many bytes is read again at every look: some file systems keep times in whole seconds.
const SMALL: u64 = 1 << 20;

/// The most symbolic links on the way to a file.
const MOST_LINKS: usize = 40;

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

/// What a file held: a hash of its bytes, or why it could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Print {
    /// The hash of its bytes.
    Bytes(u128),
    /// As [`Unreadable`] says it.
    Unreadable(String),
}

/// A file as it was when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
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
pub fn read(path: &Path, most: usize) -> (Result<Vec<u8>, Unreadable>, Seen) {
    let mut stamp = Stamp::Missing;
    let bytes = read_stamped(path, most, &mut stamp);
    let print = match &bytes {
        Ok(bytes) => Print::Bytes(hash(bytes)),
        Err(reason) => Print::Unreadable(reason.to_string()),
    };
    (bytes, Seen { path: path.to_owned(), most, stamp, print })
}

fn read_stamped(path: &Path, most: usize, stamp: &mut Stamp) -> Result<Vec<u8>, Unreadable> {
    // Opened without waiting: a pipe would wait for a writer, and is found out below.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    *stamp = Stamp::of(path);
    let file = opened?;
    let metadata = file.metadata()?;
    *stamp = Stamp::from(&metadata);
    if let Some(kind) = other_than_file(&metadata) {
        return Err(Unreadable::NoFile(kind));
    }
    let mut bytes = Vec::new();
    // One byte more than may be is enough to tell that it is too much.
    let limit = u64::try_from(most).unwrap_or(u64::MAX).saturating_add(1);
    read_to_end(&file, limit, &mut bytes)?;
    match bytes.len() > most {
        true => Err(Unreadable::TooLarge(most)),
        false => Ok(bytes),
    }
}

fn read_to_end(file: &File, limit: u64, bytes: &mut Vec<u8>) -> io::Result<usize> {
    file.take(limit).read_to_end(bytes)
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

    fn is_small(self) -> bool {
        matches!(self, Self::There { size, .. } if size <= SMALL)
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

// === impl Seen ===

impl Seen {
    /// Whether the file may have changed, going by its stamp, and by its contents where that costs little.
    pub fn may_differ(&self) -> bool {
        let stamp = Stamp::of(&self.path);
        stamp != self.stamp || (stamp.is_small() && read(&self.path, self.most).1.print != self.print)
    }

    /// The same file as it is now.
    pub fn again(&self) -> Self {
        read(&self.path, self.most).1
    }

    /// Every directory in which something may happen that makes `path` another file: its own, and those of all links on
    /// the way.
    pub fn directories(&self) -> BTreeSet<PathBuf> {
        let mut found = BTreeSet::new();
        let mut rest: Vec<OsString> = components(&self.path);
        let mut at = if self.path.is_absolute() { PathBuf::from("/") } else { PathBuf::new() };
        let mut links = 0;
        while let Some(component) = rest.pop() {
            let next = at.join(&component);
            match fs::read_link(&next) {
                Ok(target) if links < MOST_LINKS => {
                    links += 1;
                    found.insert(or_here(&at));
                    if target.is_absolute() {
                        at = PathBuf::from("/");
                    }
                    rest.extend(components(&target));
                }
                _ if rest.is_empty() => {
                    found.insert(or_here(&at));
                }
                _ => at = next,
            }
        }
        found
    }
}

/// The names on the way, the last one first.
fn components(path: &Path) -> Vec<OsString> {
    let names = path.components().filter(|component| !matches!(component, Component::RootDir | Component::CurDir));
    let mut names: Vec<OsString> = names.map(|component| component.as_os_str().to_owned()).collect();
    names.reverse();
    names
}

fn or_here(directory: &Path) -> PathBuf {
    if directory.as_os_str().is_empty() { PathBuf::from(".") } else { directory.to_owned() }
}

#[cfg(test)]
mod tests;
