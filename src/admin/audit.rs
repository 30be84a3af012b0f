//! The audit log of the admin port: a line of JSON for each change, and for attempts without the token. No line holds a
//! token or a credential.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use http::Method;
use jiff::Timestamp;
use parking_lot::Mutex;
use pingora::protocols::http::ServerSession;
use serde_json::{Value, json};

use super::access::Access;
use crate::clock::Clock;
use crate::customers::directory::is_key_id;
use crate::units::Nanos;

/// The most attempts without the token that are logged in a second.
const MAX_UNAUTHORIZED: u32 = 10;
/// The most characters of a path that are logged.
const MAX_PATH: usize = 512;

/// A request for a change: the client's address, the method and the path.
pub(super) struct ChangeAttempt {
    peer: Option<String>,
    method: Method,
    path: String,
}

impl ChangeAttempt {
    /// Reads the attempt from a request.
    pub(super) fn of(session: &ServerSession) -> Self {
        let head = session.req_header();
        Self {
            peer: session.client_addr().map(ToString::to_string),
            method: head.method.clone(),
            path: shown(head.uri.path()),
        }
    }
}

/// Writes changes to the file that the configuration names, or else to the gateway's log.
pub(super) struct Audit {
    access: Arc<Access>,
    clock: Arc<dyn Clock>,
    unauthorized: Mutex<Unauthorized>,
    /// Locked while a line is written.
    writing: Mutex<()>,
}

/// Logs an attempt when it is dropped: with the result that it has then, which is `unknown` if the request or the process
/// ended before the change did.
pub(super) struct NoteOnDrop {
    audit: Arc<Audit>,
    attempt: ChangeAttempt,
    /// The result, and its details.
    pub(super) outcome: (&'static str, Value),
}

impl NoteOnDrop {
    pub(super) fn new(audit: Arc<Audit>, attempt: ChangeAttempt) -> Self {
        let outcome = ("unknown", json!({ "reason": "the request ended before the change" }));
        Self { audit, attempt, outcome }
    }
}

impl Drop for NoteOnDrop {
    fn drop(&mut self) {
        let (result, more) = &self.outcome;
        self.audit.note(&self.attempt, result, more);
    }
}

/// Bounds the lines for attempts without the token: counts those of the last second that had one.
#[derive(Default)]
struct Unauthorized {
    second: u64,
    written: u32,
    left_out: u64,
}

impl Audit {
    pub(super) fn new(access: Arc<Access>, clock: Arc<dyn Clock>) -> Self {
        Self { access, clock, unauthorized: Mutex::default(), writing: Mutex::default() }
    }

    /// Checks that the audit log can be written now. Errors: why not.
    pub(super) fn check(&self) -> Result<(), String> {
        let unwritable = |error| format!("nothing is changed, because `admin.audit_log` cannot be written: {error}");
        self.access.audit_log().map_or(Ok(()), |path| opened(&path).map(drop).map_err(unwritable))
    }

    /// Logs an attempt and its `result`; `more` holds details.
    pub(super) fn note(&self, attempt: &ChangeAttempt, result: &str, more: &Value) {
        let now = self.clock.wall();
        let ChangeAttempt { peer, method, path } = attempt;
        let Some(file) = self.access.audit_log() else {
            tracing::info!(peer, %method, path, result, more = %more, "change requested over the admin port");
            return;
        };
        let mut line = json!({
            "time": moment(now),
            "peer": peer,
            "method": method.as_str(),
            "path": path,
            "result": result,
        });
        if let (Value::Object(line), Value::Object(more)) = (&mut line, more) {
            line.extend(more.clone());
        }
        let _writing = self.writing.lock();
        let added = opened(&file).and_then(|mut log| {
            let begin = if ends_within_line(&file) { "\n" } else { "" };
            log.write_all(format!("{begin}{line}\n").as_bytes())?;
            match log.sync_data() {
                // a pipe or a terminal, which cannot be synced
                Err(error) if error.kind() == ErrorKind::InvalidInput => Ok(()),
                synced => synced,
            }
        });
        if let Err(error) = added {
            tracing::error!(%error, peer, %method, path, result, %more, "cannot write the audit log");
        }
    }

    /// Logs an attempt without the token. Attempts over the bound are not logged; the next line has their number.
    pub(super) fn note_unauthorized(&self, attempt: &ChangeAttempt) {
        if let Some(left_out) = self.unauthorized.lock().admit(self.clock.now()) {
            self.note(attempt, "unauthorized", &json!({ "left_out": left_out }));
        }
    }
}

impl Unauthorized {
    /// The number of attempts left out since the last line; `None` if this attempt is left out too.
    fn admit(&mut self, now: Nanos) -> Option<u64> {
        let second = now.get() / Nanos::SECOND.get();
        if self.second != second {
            (self.second, self.written) = (second, 0);
        }
        if self.written >= MAX_UNAUTHORIZED {
            self.left_out = self.left_out.saturating_add(1);
            return None;
        }
        self.written = self.written.saturating_add(1);
        Some(std::mem::take(&mut self.left_out))
    }
}

/// The path for the log. If the part for a key's id is no valid id, it is replaced, since it may be the key itself.
fn shown(path: &str) -> String {
    let path: String = path.chars().take(MAX_PATH).collect();
    match path.strip_prefix("/v1/customers/").and_then(|rest| rest.rsplit_once("/keys/")) {
        Some((customer, id)) if !is_key_id(id) => format!("/v1/customers/{customer}/keys/(no id)"),
        _ => path,
    }
}

/// A wall-clock time as text, like `2027-12-31T18:00:00Z`.
pub(super) fn moment(at: Nanos) -> String {
    Timestamp::from_nanosecond(at.get().into()).map(|at| at.to_string()).unwrap_or_default()
}

/// Opens the file for appending. If there is none, creates one that only its owner may read. A FIFO that no process reads
/// is an error.
fn opened(path: &Path) -> io::Result<File> {
    // without it, the thread of the admin port would wait for a process that reads the FIFO
    OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Whether a file ends with a part of a line: a process was killed while it wrote, or the disk was full.
fn ends_within_line(path: &Path) -> bool {
    let mut last = *b"\n";
    if let Ok(file) = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
        && let Some(position) = file.metadata().ok().and_then(|about| about.len().checked_sub(1))
    {
        // a byte that cannot be read counts as the end of a line
        drop(file.read_exact_at(&mut last, position));
    }
    last != *b"\n"
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::path::PathBuf;

    use super::super::access::AccessRules;
    use super::*;
    use crate::clock::SystemClock;

    fn attempt() -> ChangeAttempt {
        ChangeAttempt { peer: None, method: Method::POST, path: "/v1/reload".to_owned() }
    }

    fn rules(audit_log: &Path) -> AccessRules {
        AccessRules { audit_log: Some(audit_log.to_owned()), ..AccessRules::default() }
    }

    /// A file for a test, which does not exist yet.
    fn file(name: &str) -> PathBuf {
        let file = std::env::temp_dir().join(format!("tollgate-audit-{name}-{}", std::process::id()));
        drop(std::fs::remove_file(&file));
        file
    }

    #[test]
    fn a_line_after_a_failed_one_begins_on_a_line_of_its_own() {
        let file = file("part");
        let access = Arc::new(Access::new(rules(Path::new("/dev/full"))));
        let audit = Audit::new(Arc::clone(&access), Arc::new(SystemClock::new()));
        assert_eq!(audit.check(), Ok(()), "only the write fails");
        audit.note(&attempt(), "done", &json!({}));
        // what a disk that fills up has of a line
        std::fs::write(&file, "{\"time\"").unwrap();
        access.replace_rules(rules(&file));
        audit.note(&attempt(), "done", &json!({}));
        audit.note(&attempt(), "done", &json!({}));
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let are_whole: Vec<_> = text.lines().map(|line| serde_json::from_str::<Value>(line).is_ok()).collect();
        assert_eq!(are_whole, [false, true, true], "{text}");
    }

    #[test]
    fn a_line_after_the_torn_one_of_an_earlier_process_begins_on_a_line_of_its_own() {
        let file = file("torn");
        std::fs::write(&file, "{\"time\"").unwrap();
        let audit = Audit::new(Arc::new(Access::new(rules(&file))), Arc::new(SystemClock::new()));
        audit.note(&attempt(), "done", &json!({}));
        audit.note(&attempt(), "done", &json!({}));
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let are_whole: Vec<_> = text.lines().map(|line| serde_json::from_str::<Value>(line).is_ok()).collect();
        assert_eq!(are_whole, [false, true, true], "{text}");
    }

    #[test]
    fn a_pipe_has_each_line_once_and_one_without_a_reader_is_an_error() {
        let pipe = file("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let audit = Audit::new(Arc::new(Access::new(rules(&pipe))), Arc::new(SystemClock::new()));
        let unread = audit.check().unwrap_err();
        assert!(unread.contains("`admin.audit_log` cannot be written"), "{unread}");
        // a FIFO that is opened for both does not wait for the other side
        let mut reader = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
        for _ in 0..2 {
            audit.note(&attempt(), "done", &json!({}));
        }
        let mut bytes = [0; 1024];
        let length = reader.read(&mut bytes).unwrap();
        std::fs::remove_file(&pipe).unwrap();
        let lines = String::from_utf8_lossy(&bytes[..length]).into_owned();
        let are_whole: Vec<_> = lines.lines().map(|line| serde_json::from_str::<Value>(line).is_ok()).collect();
        assert_eq!(are_whole, [true; 2], "{lines}");
    }

    #[test]
    fn an_attempt_whose_result_nobody_waits_for_is_logged() {
        let file = file("given-up");
        let audit = Arc::new(Audit::new(Arc::new(Access::new(rules(&file))), Arc::new(SystemClock::new())));
        drop(NoteOnDrop::new(Arc::clone(&audit), attempt()));
        NoteOnDrop::new(audit, attempt()).outcome = ("done", json!({ "status": 200 }));
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((&lines[0]["result"], &lines[1]["result"]), (&json!("unknown"), &json!("done")));
        assert_eq!(lines[1]["status"], 200);
    }

    #[test]
    fn attempts_without_the_token_are_bounded_and_counted() {
        let (mut attempts, second) = (Unauthorized::default(), Nanos::SECOND);
        let admitted: Vec<_> = (0..13).map(|_| attempts.admit(second)).collect();
        assert_eq!(admitted, [vec![Some(0); 10], vec![None; 3]].concat());
        assert_eq!(attempts.admit(second.saturating_add(second)), Some(3));
        assert_eq!(attempts.admit(second.saturating_add(second)), Some(0));
    }

    #[test]
    fn a_key_in_place_of_an_id_is_not_written_down() {
        assert_eq!(shown("/v1/customers/acme/keys/0123456789ab"), "/v1/customers/acme/keys/0123456789ab");
        assert_eq!(shown("/v1/customers/acme/keys/tg_canary"), "/v1/customers/acme/keys/(no id)");
        assert_eq!(shown("/v1/customers/acme/keys"), "/v1/customers/acme/keys");
    }

    #[test]
    fn a_moment_is_written_in_utc() {
        assert_eq!(moment(Nanos::from_secs(1_735_686_000)), "2024-12-31T23:00:00Z");
    }
}
