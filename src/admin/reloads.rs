//! Asking for a reload, and how the last one went.

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::units::Nanos;

/// How many that ask may wait for the reload before theirs; one reload answers all that wait.
const MOST_WAITING: usize = 64;

/// How many problems of the last attempt are shown.
const MOST_SHOWN: usize = 100;

/// Why a configuration is read.
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
}

impl Trigger {
    /// In a word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::File => "file",
            Self::Signal => "signal",
            Self::Request => "request",
        }
    }
}

/// A configuration was read.
#[derive(Clone, Debug)]
pub struct Attempt {
    /// When it was begun.
    pub at: Nanos,
    /// How long it took.
    pub took: Nanos,
    /// Why.
    pub trigger: Trigger,
    /// What came of it.
    pub outcome: ReloadOutcome,
}

/// What came of reading a configuration.
#[derive(Clone, Debug)]
pub enum ReloadOutcome {
    /// It is in force.
    Applied {
        /// What is suspicious about it.
        warnings: Vec<String>,
        /// What it means for the states of limits.
        notes: Vec<String>,
    },
    /// It is the one that was in force already.
    Unchanged,
    /// It is not in force, and nothing changed.
    Refused {
        /// Everything that is wrong with it.
        errors: Vec<String>,
    },
}

impl Attempt {
    /// Whether what was read is in force.
    pub const fn is_in_force(&self) -> bool {
        !matches!(self.outcome, ReloadOutcome::Refused { .. })
    }

    /// As `/status` and `/-/reload` show it, with at most `most` lines of each kind.
    fn to_json(&self, most: usize) -> Value {
        let shown = |lines: &[String]| lines.iter().take(most).cloned().collect::<Vec<_>>();
        let mut value = json!({
            "trigger": self.trigger.as_str(),
            "timestamp_seconds": self.at.as_secs_f64(),
            "duration_seconds": self.took.as_secs_f64(),
        });
        let more = match &self.outcome {
            ReloadOutcome::Applied { warnings, notes } => {
                json!({ "result": "applied", "warnings": shown(warnings), "notes": shown(notes) })
            }
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

    /// Everything about it.
    pub fn report(&self) -> Value {
        self.to_json(usize::MAX)
    }
}

/// Somebody who asks for a reload, and waits for how it went if there is a channel.
#[derive(Debug)]
pub struct ReloadRequest {
    /// Why.
    pub trigger: Trigger,
    /// Where the answer goes.
    pub answer: Option<oneshot::Sender<Attempt>>,
}

/// Between those who ask for reloads and the one who makes them.
#[derive(Debug)]
pub struct Reloads {
    asking: mpsc::Sender<ReloadRequest>,
    shown: Mutex<Shown>,
}

#[derive(Debug)]
struct Shown {
    last: Attempt,
    in_force_since: Nanos,
}

impl Reloads {
    /// For a process that starts `now` with a configuration of which there are `warnings`; who makes the reloads receives what is asked.
    pub fn new(now: Nanos, warnings: Vec<String>) -> (Self, mpsc::Receiver<ReloadRequest>) {
        let (asking, asked) = mpsc::channel(MOST_WAITING);
        let outcome = ReloadOutcome::Applied { warnings, notes: Vec::new() };
        let last = Attempt { at: now, took: Nanos::ZERO, trigger: Trigger::Start, outcome };
        (Self { asking, shown: Mutex::new(Shown { last, in_force_since: now }) }, asked)
    }

    /// Asks for a reload and waits for it; `None` where nobody makes them any more.
    pub async fn request(&self) -> Option<Attempt> {
        let (answer, answered) = oneshot::channel();
        self.asking.send(ReloadRequest { trigger: Trigger::Request, answer: Some(answer) }).await.ok()?;
        answered.await.ok()
    }

    /// Asks for a reload for the sake of a signal.
    pub fn signal(&self) {
        // Where too many wait, the reload that they wait for does.
        drop(self.asking.try_send(ReloadRequest { trigger: Trigger::Signal, answer: None }));
    }

    /// A reload is over.
    pub fn ended(&self, attempt: Attempt) {
        let mut shown = self.shown.lock();
        if matches!(attempt.outcome, ReloadOutcome::Applied { .. }) {
            shown.in_force_since = attempt.at.saturating_add(attempt.took);
        }
        shown.last = attempt;
    }

    /// For `/status`.
    pub(super) fn status(&self) -> Value {
        let shown = self.shown.lock();
        json!({
            "in_force_since_seconds": shown.in_force_since.as_secs_f64(),
            "last_attempt": shown.last.to_json(MOST_SHOWN),
        })
    }
}
