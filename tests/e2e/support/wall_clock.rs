//! A wall clock that a test sets while gateways run; their steady clock stays the machine's clock.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Folder;

/// The wall clock of the programs that start with its environment.
pub struct WallClock(Folder);

impl WallClock {
    /// A clock with the machine's time.
    pub fn new() -> Self {
        let clock = Self(Folder::new());
        clock.set(0);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/e2e/support/wall_clock.c");
        let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([clock.library(), source]).status();
        assert!(compiled.expect("a C compiler; `make needs` installs it").success());
        clock
    }

    /// Sets the clock to `ahead` seconds ahead of the machine's, or behind if negative.
    pub fn set(&self, ahead: i64) {
        let file = OpenOptions::new().create(true).write(true).truncate(false).open(self.ahead()).unwrap();
        // in place, because the programs have mapped the file
        file.write_all_at(&ahead.to_ne_bytes(), 0).unwrap();
    }

    /// The environment variables for a program that uses the clock.
    pub fn environment(&self) -> [(&'static str, String); 2] {
        [("LD_PRELOAD", self.library()), ("WALL_CLOCK_AHEAD", self.ahead())]
            .map(|(name, path)| (name, path.display().to_string()))
    }

    fn library(&self) -> PathBuf {
        self.0.path().join("wall_clock.so")
    }

    fn ahead(&self) -> PathBuf {
        self.0.path().join("ahead")
    }
}
