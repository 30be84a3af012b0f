//! The results of restoring and of writing the state that outlives the process, for `/status`.

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::units::Nanos;

/// The state that a process started with.
#[derive(Clone, Debug)]
pub enum Recovery {
    /// None: no state file is configured.
    NotConfigured,
    /// None: a state file is configured, but it does not exist yet.
    Absent,
    /// The state of an earlier process.
    Restored {
        /// Where it comes from.
        origin: RestoredFrom,
        /// The number of restored keys.
        keys: u64,
        /// The number of keys that were left out because this version does not understand their limits.
        unknown: u64,
        /// When the state was written.
        at: Nanos,
    },
    /// None: there is a state, but this process cannot use it.
    Refused {
        /// Why.
        reason: String,
    },
}

/// Where the state of an earlier process comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestoredFrom {
    /// From that process, which handed it over while both ran.
    Predecessor,
    /// From the state file.
    File,
}

impl Recovery {
    /// The name in the metrics.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::NotConfigured => "nothing",
            Self::Absent => "absent",
            Self::Restored { origin: RestoredFrom::File, .. } => "restored",
            Self::Restored { origin: RestoredFrom::Predecessor, .. } => "handed_over",
            Self::Refused { .. } => "refused",
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::NotConfigured | Self::Absent => json!({ "result": self.as_str() }),
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
    /// When writing it began.
    pub at: Nanos,
    /// How long it took.
    pub took: Nanos,
    /// The number of keys.
    pub keys: u64,
    /// The size in bytes.
    pub bytes: u64,
}

/// The record of snapshots: the snapshot writer updates it, and `/status` shows it.
#[derive(Debug)]
pub struct Snapshots {
    recovery: Recovery,
    shown: Mutex<SnapshotStatus>,
}

#[derive(Debug, Default)]
struct SnapshotStatus {
    /// The state file, if one is configured.
    file: Option<String>,
    last: Option<Snapshot>,
    /// The error of the last attempt; `None` if it succeeded.
    error: Option<String>,
}

impl Snapshots {
    /// Creates the record of a process that started with `recovery`.
    pub fn new(recovery: Recovery) -> Self {
        Self { recovery, shown: Mutex::default() }
    }

    /// Sets the file that snapshots are written to from now on; `None` if they are not written. It has no snapshot of this
    /// process yet.
    pub fn set_file(&self, file: Option<String>) {
        *self.shown.lock() = SnapshotStatus { file, ..SnapshotStatus::default() };
    }

    /// Records a snapshot that was written.
    pub fn written(&self, snapshot: Snapshot) {
        let mut shown = self.shown.lock();
        (shown.last, shown.error) = (Some(snapshot), None);
    }

    /// Records that a snapshot could not be written.
    pub fn failed(&self, error: String) {
        self.shown.lock().error = Some(error);
    }

    /// The record as `/status` shows it.
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
