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
/// The largest file that is read; one with as many sums as a process may have, each under many limits, is smaller.
const MAX_BYTES: usize = 1 << 30;

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
        self.replace(&self.name, events)
    }

    /// Replaces the file of the process `name`.
    fn replace(&self, name: &str, events: &[Vec<u8>]) -> io::Result<()> {
        let path = self.path_of(name, SUMS);
        if events.is_empty() {
            return remove(&path);
        }
        let bytes = postcard::to_stdvec(events).map_err(io::Error::other)?;
        files::replace(&path, |file| file.write_all(&bytes))
    }

    /// Passes the events of processes that have ended to `queue`, which returns how many it took and its error, and removes
    /// these from the files. Returns their number, and the last error; the other files are adopted all the same.
    pub(super) fn adopt(&self, queue: impl Fn(&[Vec<u8>]) -> (usize, io::Result<()>)) -> (usize, io::Result<()>) {
        let (mut adopted, mut done) = (0_usize, Ok(()));
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) => return (adopted, Err(error)),
        };
        for file in entries.flatten().map(|entry| entry.file_name()) {
            let Some(name) = file.to_str().and_then(|file| file.strip_suffix(LOCK)).filter(|name| *name != self.name)
            else {
                continue;
            };
            match self.adopt_from(name, &queue) {
                Ok((taken, has_room)) => {
                    adopted = adopted.saturating_add(taken);
                    if !has_room {
                        break;
                    }
                }
                Err(error) => done = Err(error),
            }
        }
        (adopted, done)
    }

    /// Adopts the events of the process `name` if it has ended. Returns how many the queue took, and whether that is all.
    fn adopt_from(
        &self,
        name: &str,
        queue: impl Fn(&[Vec<u8>]) -> (usize, io::Result<()>),
    ) -> io::Result<(usize, bool)> {
        let lock = File::open(self.path_of(name, LOCK))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok((0, true));
        }
        let mut events = self.left_by(name)?;
        let (taken, done) = queue(&events);
        let taken = taken.min(events.len());
        drop(events.drain(..taken));
        if taken > 0 || events.is_empty() {
            self.replace(name, &events)?;
        }
        done?;
        if events.is_empty() {
            remove(&self.path_of(name, LOCK))?;
        }
        Ok((taken, events.is_empty()))
    }

    fn left_by(&self, name: &str) -> io::Result<Vec<Vec<u8>>> {
        match files::read(&self.path_of(name, SUMS), MAX_BYTES).0 {
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
    fn the_events_that_a_process_leaves_are_adopted_once_when_it_has_ended() {
        let directory = Directory::new("left");
        let [one, other] = [1, 2].map(|instance| Journal::open(&directory.0, instance).unwrap());
        one.save(&events(&["a"])).unwrap();
        one.save(&events(&["a", "b"])).unwrap();
        let queue = RefCell::new(Vec::new());
        let take = |room: usize| {
            let queue = &queue;
            let (adopted, done) = other.adopt(move |events| {
                queue.borrow_mut().extend(events.iter().take(room).cloned());
                (events.len().min(room), Ok(()))
            });
            done.unwrap();
            adopted
        };
        assert_eq!(take(9), 0, "it lives");
        drop(one);
        assert_eq!(take(0), 0, "there is no room");
        assert_eq!(take(1), 1, "there is no room for all");
        assert_eq!(take(9), 1);
        assert_eq!(take(9), 0);
        assert_eq!(queue.into_inner(), events(&["a", "b"]));
        drop(other);
        assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 0, "nothing stays");
    }

    #[test]
    fn an_unreadable_file_keeps_nobody_from_adopting_the_others() {
        let directory = Directory::new("unreadable");
        let [own, before, broken, after] = [1, 2, 3, 4].map(|instance| Journal::open(&directory.0, instance).unwrap());
        for left in [before, broken, after] {
            left.save(&events(&[&left.name])).unwrap();
        }
        fs::write(own.path_of(&format!("{:032x}", 3), SUMS), [0xff; 9]).unwrap();
        let queue = RefCell::new(Vec::new());
        let take = |events: &[Vec<u8>]| {
            queue.borrow_mut().extend_from_slice(events);
            (events.len(), Ok(()))
        };
        let (adopted, done) = own.adopt(take);
        assert_eq!((adopted, done.is_err()), (2, true));
        assert_eq!(own.adopt(take).0, 0);
        queue.borrow_mut().sort();
        assert_eq!(queue.take(), events(&[&format!("{:032x}", 2), &format!("{:032x}", 4)]));
        assert!(own.path_of(&format!("{:032x}", 3), SUMS).exists(), "an operator may repair it");
    }

    #[test]
    fn events_that_are_over_are_not_saved_any_more() {
        let directory = Directory::new("over");
        let journal = Journal::open(&directory.0, 1).unwrap();
        journal.save(&events(&["a"])).unwrap();
        journal.save(&[]).unwrap();
        drop(journal);
        assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 0);
    }
}
