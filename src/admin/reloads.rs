//! Requests for reloads, and the result of the last reload.

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::units::Nanos;

/// The most requests that wait while a reload runs; the next reload answers all of them.
const MAX_WAITING: usize = 64;

/// The most problems of the last attempt that `/status` shows, of each kind.
const MAX_SHOWN: usize = 100;

/// The reason for reading a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// The process started.
    Start,
    /// A file changed.
    File,
    /// SIGHUP.
    Signal,
    /// `POST /-/reload`.
    Request,
    /// The last attempt failed for a cause outside the files.
    Retry,
}

impl Trigger {
    /// The name in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::File => "file",
            Self::Signal => "signal",
            Self::Request => "request",
            Self::Retry => "retry",
        }
    }
}

/// One reading of the configuration.
#[derive(Clone, Debug)]
pub struct ReloadAttempt {
    /// When it began.
    pub at: Nanos,
    /// How long it took.
    pub took: Nanos,
    /// The reason for it.
    pub trigger: Trigger,
    /// The warnings about the configuration that was read.
    pub warnings: Vec<String>,
    /// The result.
    pub outcome: ReloadOutcome,
}

/// The result of reading a configuration.
#[derive(Clone, Debug)]
pub enum ReloadOutcome {
    /// The configuration is in force now.
    Applied {
        /// The effects of the change on the states of limits.
        notes: Vec<String>,
    },
    /// The configuration was in force already.
    Unchanged,
    /// The configuration is refused; the one before stays in force.
    Refused {
        /// All its errors.
        errors: Vec<String>,
    },
}

impl ReloadAttempt {
    /// Whether the configuration that was read is in force.
    pub const fn is_in_force(&self) -> bool {
        !matches!(self.outcome, ReloadOutcome::Refused { .. })
    }

    /// As `/status` and `/-/reload` show it, with at most `max_lines` lines of each kind.
    fn to_json(&self, max_lines: usize) -> Value {
        let shown = |lines: &[String]| lines.iter().take(max_lines).cloned().collect::<Vec<_>>();
        let mut value = json!({
            "trigger": self.trigger.as_str(),
            "timestamp_seconds": self.at.as_secs_f64(),
            "duration_seconds": self.took.as_secs_f64(),
            "warnings": shown(&self.warnings),
        });
        let more = match &self.outcome {
            ReloadOutcome::Applied { notes } => json!({ "result": "applied", "notes": shown(notes) }),
            ReloadOutcome::Unchanged => json!({ "result": "unchanged" }),
            ReloadOutcome::Refused { errors } => {
                json!({ "result": "refused", "errors": shown(errors), "error_count": errors.len() })
            }
        };
        if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
            value.extend(more);
        }
        value
    }

    /// The attempt as JSON, with all lines.
    pub fn report(&self) -> Value {
        self.to_json(usize::MAX)
    }
}

/// A request for a reload; the caller waits for the result if there is a channel.
#[derive(Debug)]
pub struct ReloadRequest {
    /// The reason for the reload.
    pub trigger: Trigger,
    /// The channel for the result.
    pub answer: Option<oneshot::Sender<ReloadAttempt>>,
}

/// The queue from callers that request reloads to the task that makes them, and the last result.
#[derive(Debug)]
pub struct Reloads {
    requests: mpsc::Sender<ReloadRequest>,
    shown: Mutex<ReloadStatus>,
}

#[derive(Debug)]
struct ReloadStatus {
    last: ReloadAttempt,
    in_force_since: Nanos,
}

impl Reloads {
    /// Creates the queue for a process that starts at `now` with a configuration that has these `warnings`. The task that
    /// makes the reloads receives the requests.
    pub fn new(now: Nanos, warnings: Vec<String>) -> (Self, mpsc::Receiver<ReloadRequest>) {
        let (requests, receiver) = mpsc::channel(MAX_WAITING);
        let outcome = ReloadOutcome::Applied { notes: Vec::new() };
        let last = ReloadAttempt { at: now, took: Nanos::ZERO, trigger: Trigger::Start, warnings, outcome };
        (Self { requests, shown: Mutex::new(ReloadStatus { last, in_force_since: now }) }, receiver)
    }

    /// Requests a reload and waits for its result; `None` if the task that makes reloads has ended.
    pub async fn request(&self) -> Option<ReloadAttempt> {
        let (answer, attempt) = oneshot::channel();
        self.requests.send(ReloadRequest { trigger: Trigger::Request, answer: Some(answer) }).await.ok()?;
        attempt.await.ok()
    }

    /// Requests a reload because of a signal.
    pub fn signal(&self) {
        // if the queue is full, the reload that the waiting requests get serves this one too
        drop(self.requests.try_send(ReloadRequest { trigger: Trigger::Signal, answer: None }));
    }

    /// Records the result of a reload.
    pub fn record(&self, attempt: ReloadAttempt) {
        let mut shown = self.shown.lock();
        if matches!(attempt.outcome, ReloadOutcome::Applied { .. }) {
            shown.in_force_since = attempt.at.saturating_add(attempt.took);
        }
        shown.last = attempt;
    }

    /// The last reload as `/status` shows it.
    pub(super) fn status(&self) -> Value {
        let shown = self.shown.lock();
        json!({
            "in_force_since_seconds": shown.in_force_since.as_secs_f64(),
            "last_attempt": shown.last.to_json(MAX_SHOWN),
        })
    }
}
