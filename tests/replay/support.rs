//! The command as a process, and a folder for its files.

use std::collections::HashMap;
use std::process::{Command, Output};

#[path = "../e2e/support/folder.rs"]
mod folder;

pub use folder::Folder;

/// The seed of random traffic: always the same, unless `SEED` is set. It is printed, so that a failed test shows it.
pub fn seed() -> u64 {
    let seed = std::env::var("SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut err = std::io::stderr();
    drop(std::io::Write::write_all(&mut err, format!("SEED={seed}\n").as_bytes()));
    seed
}

impl Folder {
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path().join(name)).unwrap()
    }

    /// Runs `tollgate replay` in this folder.
    pub fn replay(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.current_dir(self.path()).arg("replay").args(arguments).output().unwrap()
    }

    /// The output of `tollgate replay`, which has to succeed.
    #[track_caller]
    pub fn replayed(&self, arguments: &[&str]) -> String {
        let output = self.replay(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// The rows of a CSV file, by column names.
    pub fn rows(&self, name: &str) -> Vec<HashMap<String, String>> {
        let mut reader = csv::Reader::from_path(self.path().join(name)).unwrap();
        reader.deserialize().map(|row| row.unwrap()).collect()
    }
}
