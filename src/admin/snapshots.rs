//! What became of the state that outlives the process, for `/status`.

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::units::Nanos;

/// What a process began with.
#[derive(Clone, Debug)]
pub enum Recovery {
    /// Nothing was kept for it.
    Nothing,
    /// There is a file to be, but none yet.
    Absent,
    /// What another process left.
    Restored {
        /// Whether that handed over while both ran; otherwise it is from the file.
        handed_over: bool,
        /// Keys.
        keys: u64,
        /// Keys that were left out because their limits are not understood.
        unknown: u64,
        /// When it was written.
        at: Nanos,
    },
    /// There is a file, but it cannot be used.
    Refused {
        /// Why.
        reason: String,
    },
}

impl Recovery {
    /// In a word, as metrics have it.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Absent => "absent",
            Self::Restored { handed_over: false, .. } => "restored",
            Self::Restored { handed_over: true, .. } => "handed_over",
            Self::Refused { .. } => "refused",
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Nothing | Self::Absent => json!({ "result": self.as_str() }),
            Self::Refused { reason } => json!({ "result": self.as_str(), "error": reason }),
            Self::Restored { keys, unknown, at, .. } => json!({
                "result": self.as_str(),
                "keys": keys,
                "unknown_keys": unknown,
                "written_timestamp_seconds": at.as_secs_f64(),
            }),
        }
    }
}

/// A snapshot that was written.
#[derive(Clone, Copy, Debug)]
pub struct Snapshot {
    /// When it was begun.
    pub at: Nanos,
    /// How long it took.
    pub took: Nanos,
    /// Keys.
    pub keys: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Between the one who writes snapshots and those who want to know.
#[derive(Debug)]
pub struct Snapshots {
    recovery: Recovery,
    shown: Mutex<Shown>,
}

#[derive(Debug, Default)]
struct Shown {
    /// Where they are written, if anywhere.
    file: Option<String>,
    last: Option<Snapshot>,
    /// What was wrong with the last attempt.
    error: Option<String>,
}

impl Snapshots {
    /// For a process that began like this.
    pub fn new(recovery: Recovery) -> Self {
        Self { recovery, shown: Mutex::default() }
    }

    /// Snapshots are written to this file from here on, or to none.
    pub fn follow(&self, file: Option<String>) {
        self.shown.lock().file = file;
    }

    /// One was written.
    pub fn written(&self, snapshot: Snapshot) {
        let mut shown = self.shown.lock();
        (shown.last, shown.error) = (Some(snapshot), None);
    }

    /// One could not be written.
    pub fn failed(&self, error: String) {
        self.shown.lock().error = Some(error);
    }

    /// For `/status`.
    pub(super) fn status(&self) -> Value {
        let shown = self.shown.lock();
        json!({
            "file": shown.file,
            "recovery": self.recovery.to_json(),
            "last_snapshot": shown.last.map(|last| json!({
                "timestamp_seconds": last.at.as_secs_f64(),
                "duration_seconds": last.took.as_secs_f64(),
                "keys": last.keys,
                "bytes": last.bytes,
            })),
            "last_error": shown.error,
        })
    }
}
