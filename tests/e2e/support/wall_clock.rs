//! A wall clock that a test sets while gateways run (libfaketime); their steady clock stays the machine's.

use std::fs;
use std::process::Command;

use super::Folder;

/// What time it is for the programs that are started with its environment.
pub struct WallClock {
    folder: Folder,
    library: String,
}

impl WallClock {
    /// One that says what the machine's says.
    pub fn new() -> Self {
        let said = Command::new("faketime").args(["-m", "-f", "+30s", "printenv", "LD_PRELOAD"]).output();
        let said = said.unwrap_or_else(|error| panic!("faketime: {error}; `make needs` installs it"));
        let library = String::from_utf8(said.stdout).unwrap().trim().to_owned();
        let clock = Self { folder: Folder::new(), library };
        clock.set(0);
        clock
    }

    /// It is `ahead` seconds ahead of the machine's from here on, behind if negative.
    pub fn set(&self, ahead: i64) {
        // renamed: it is read at every moment
        self.folder.write("next", format!("{ahead:+}s"));
        fs::rename(self.folder.path().join("next"), self.folder.path().join("ahead")).unwrap();
    }

    /// What a program is started with.
    pub fn environment(&self) -> [(&'static str, String); 4] {
        [
            ("LD_PRELOAD", self.library.clone()),
            ("FAKETIME_TIMESTAMP_FILE", self.folder.path().join("ahead").display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }
}
