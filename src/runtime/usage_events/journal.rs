//! The file in which a process saves the sums that are not in the queue yet, beside the queue, so that they outlive the
//! process.
//!
//! The file holds the events that would exist if the interval ended now. The process that has the queue adopts the files of
//! processes that have ended: each process holds a lock on a second file as long as it lives.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use super::ledger::Instance;
use crate::files;

const SUMS: &str = ".sums";
const LOCK: &str = ".alive";
/// The largest file that is read.
const MOST_BYTES: usize = 256 << 20;

/// The file of this process.
#[derive(Debug)]
pub(super) struct Journal {
    directory: PathBuf,
    name: String,
    /// Locked as long as this process uses the directory.
    _lock: File,
}

impl Journal {
    /// The file of the process `instance`, in `directory`, which is created if it is missing.
    pub(super) fn open(directory: &Path, instance: Instance) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let name = format!("{instance:032x}");
        // takes the lock before the file has the name by which other processes find it
        let unlocked = directory.join(format!("{name}.new"));
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&unlocked)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
        fs::rename(unlocked, directory.join(format!("{name}{LOCK}")))?;
        Ok(Self { directory: directory.to_owned(), name, _lock: lock })
    }

    /// Whether the file is in `directory`.
    pub(super) fn is_in(&self, directory: &Path) -> bool {
        self.directory == directory
    }

    /// Saves `events` in place of the earlier ones.
    pub(super) fn save(&self, events: &[Vec<u8>]) -> io::Result<()> {
        let path = self.path_of(&self.name, SUMS);
        if events.is_empty() {
            return remove(&path);
        }
        let bytes = postcard::to_stdvec(events).map_err(io::Error::other)?;
        files::replace(&path, |file| file.write_all(&bytes))
    }

    /// Passes the events of processes that have ended to `queue`, which returns how many it took; removes a file if the
    /// queue took all its events. Returns the number of events from removed files.
    pub(super) fn adopt(&self, queue: impl Fn(&[Vec<u8>]) -> io::Result<usize>) -> io::Result<usize> {
        let mut adopted: usize = 0;
        for entry in fs::read_dir(&self.directory)? {
            let file = entry?.file_name();
            let Some(name) = file.to_str().and_then(|file| file.strip_suffix(LOCK)).filter(|name| *name != self.name)
            else {
                continue;
            };
            let lock = File::open(self.path_of(name, LOCK))?;
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            let events = self.left_by(name)?;
            if queue(&events)? < events.len() {
                // the events that the queue took come again with the same identifiers
                break;
            }
            adopted = adopted.saturating_add(events.len());
            remove(&self.path_of(name, SUMS))?;
            remove(&self.path_of(name, LOCK))?;
        }
        Ok(adopted)
    }

    fn left_by(&self, name: &str) -> io::Result<Vec<Vec<u8>>> {
        match files::read(&self.path_of(name, SUMS), MOST_BYTES).0 {
            Ok(bytes) => postcard::from_bytes(&bytes).map_err(io::Error::other),
            Err(files::ReadError::Failed(error)) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn path_of(&self, name: &str, suffix: &str) -> PathBuf {
        self.directory.join(format!("{name}{suffix}"))
    }
}

impl Drop for Journal {
    /// Keeps the lock file if there are saved events: other processes find them by it.
    fn drop(&mut self) {
        if !self.path_of(&self.name, SUMS).exists() {
            drop(remove(&self.path_of(&self.name, LOCK)));
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// A directory for a test, which is removed at its end.
    struct Directory(PathBuf);

    impl Directory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("tollgate-journal-{name}-{}", std::process::id()));
            drop(fs::remove_dir_all(&path));
            Self(path)
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            drop(fs::remove_dir_all(&self.0));
        }
    }

    fn events(texts: &[&str]) -> Vec<Vec<u8>> {
        texts.iter().map(|text| text.as_bytes().to_vec()).collect()
    }

    #[test]
    fn what_a_process_leaves_is_adopted_once_when_it_has_ended() {
        let directory = Directory::new("left");
        let [one, other] = [1, 2].map(|instance| Journal::open(&directory.0, instance).unwrap());
        one.save(&events(&["a"])).unwrap();
        one.save(&events(&["a", "b"])).unwrap();
        let queue = RefCell::new(Vec::new());
        let take = |room: usize| {
            let queue = &queue;
            other.adopt(move |events| {
                queue.borrow_mut().extend(events.iter().take(room).cloned());
                Ok(events.len().min(room))
            })
        };
        assert_eq!(take(9).unwrap(), 0, "it lives");
        drop(one);
        assert_eq!(take(1).unwrap(), 0, "there is no room for all");
        assert_eq!(take(9).unwrap(), 2);
        assert_eq!(take(9).unwrap(), 0);
        assert_eq!(queue.into_inner(), events(&["a", "a", "b"]));
        drop(other);
        assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 0, "nothing stays");
    }

    #[test]
    fn what_is_over_is_not_saved_any_more() {
        let directory = Directory::new("over");
        let journal = Journal::open(&directory.0, 1).unwrap();
        journal.save(&events(&["a"])).unwrap();
        journal.save(&[]).unwrap();
        drop(journal);
        assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 0);
    }
}
