//! The command as a process, and a folder for its files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that is removed when dropped.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("replay-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap()
    }

    /// Runs `tollgate replay` here.
    pub fn replay(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.current_dir(&self.0).arg("replay").args(arguments).output().unwrap()
    }

    /// The same, which has to succeed: what it prints.
    #[track_caller]
    pub fn replayed(&self, arguments: &[&str]) -> String {
        let output = self.replay(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The rows of a CSV file by the names of their columns.
    pub fn rows(&self, name: &str) -> Vec<HashMap<String, String>> {
        let mut reader = csv::Reader::from_path(self.0.join(name)).unwrap();
        reader.deserialize().map(|row| row.unwrap()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}
