//! `POST /v1/replay`: tries a change of limits on a log. A separate process with the lowest priority replays the log, so
//! that it gets only the processor time that the gateway does not use.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use rustix::process::{Pid, setpriority_process};
use serde::Deserialize;
use tokio::process::Command;
use tokio::sync::Mutex;

use super::{JSON, PlainResponse, failure};

/// The longest time that a replay may take; the admin listener closes the client's connection a little later.
const REPLAY_TIMEOUT: Duration = Duration::from_secs(50);

/// The niceness of a process with the lowest priority.
const LOWEST_PRIORITY: i32 = 19;

/// The logs that may be replayed, and the settings that may be tried.
#[derive(Clone, Debug)]
pub struct ReplaySettings {
    /// The configuration file.
    pub config: PathBuf,
    /// The logs, by the names that the configuration gives them.
    pub logs: Vec<(String, PathBuf)>,
    /// The settings that can be tried: for each limit, its values as they are written, by their paths below it.
    pub settings: BTreeMap<String, BTreeMap<String, String>>,
}

/// Makes replays, one at a time.
#[derive(Debug, Default)]
pub(super) struct Replays(Mutex<()>);

/// The body of a request for a replay.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object")]
struct ReplayRequest {
    /// The name of a log.
    log: String,
    /// The values to try, by their paths.
    set: BTreeMap<String, String>,
}

impl Replays {
    /// Replays the log that `body` names, with the settings in it.
    pub(super) async fn answer(&self, settings: Option<Arc<ReplaySettings>>, body: &[u8]) -> PlainResponse {
        let Some(settings) = settings else {
            let message = "this gateway may not replay any log: name some in the configuration, \
                 `admin: { replay_logs: [access.log.1] }`";
            return failure(StatusCode::CONFLICT, message);
        };
        let question: ReplayRequest = match serde_json::from_slice(body) {
            Ok(question) => question,
            Err(error) => {
                let message = format!(
                    "the body of the request cannot be read ({error}); it is written \
                     {{\"log\": \"access.log.1\", \"set\": {{\"limits.per-customer.rate\": \"20/m\"}}}}"
                );
                return failure(StatusCode::BAD_REQUEST, &message);
            }
        };
        let Some((_, log)) = settings.logs.iter().find(|(name, _)| *name == question.log) else {
            let known: Vec<&str> = settings.logs.iter().map(|(name, _)| name.as_str()).collect();
            let message = format!("`admin.replay_logs` does not have this log, only {}", known.join(", "));
            return failure(StatusCode::NOT_FOUND, &message);
        };
        if question.set.is_empty() {
            return failure(StatusCode::BAD_REQUEST, "`set` names no setting to try");
        }
        let Ok(_turn) = self.0.try_lock() else {
            return failure(StatusCode::CONFLICT, "another replay is running; try again when it has ended");
        };
        let mut arguments: Vec<OsString> = ["replay", "--format", "json", "--config"].map(OsString::from).to_vec();
        arguments.push((&settings.config).into());
        arguments.extend(question.set.iter().map(|(path, value)| format!("--set={path}={value}").into()));
        arguments.extend(["--".into(), log.as_path().into()]);
        match tokio::time::timeout(REPLAY_TIMEOUT, replayed(arguments)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => match error.kind() {
                ErrorKind::InvalidInput => failure(StatusCode::UNPROCESSABLE_ENTITY, "`set` has a zero byte"),
                ErrorKind::ArgumentListTooLong => {
                    failure(StatusCode::UNPROCESSABLE_ENTITY, "a value in `set` is too long")
                }
                _ => failure(StatusCode::SERVICE_UNAVAILABLE, &format!("the replay cannot be started: {error}")),
            },
            Err(_) => {
                let message = format!(
                    "the replay has not reached the end of the log within {} s; `tollgate replay` has no such bound",
                    REPLAY_TIMEOUT.as_secs()
                );
                failure(StatusCode::SERVICE_UNAVAILABLE, &message)
            }
        }
    }
}

/// An error of the command without the option by which it names the text of a setting, and the position in that text.
fn without_option(error: &str) -> String {
    let lines = error.lines().map(|line| match line.strip_prefix("--set:").and_then(|rest| rest.split_once(": ")) {
        Some((_, problem)) => problem,
        None => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Runs this program with `arguments`. If the caller stops waiting, the process is killed.
async fn replayed(arguments: Vec<OsString>) -> io::Result<PlainResponse> {
    // on Linux this path is the running program, even if a newer file has replaced it
    let program = if cfg!(target_os = "linux") { PathBuf::from("/proc/self/exe") } else { std::env::current_exe()? };
    let child = Command::new(program)
        .arg0("tollgate")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    if let Some(pid) = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?)) {
        setpriority_process(Some(pid), LOWEST_PRIORITY)?;
        // if memory runs out, the kernel kills the replay and not the gateway; only Linux has this file
        drop(std::fs::write(format!("/proc/{pid}/oom_score_adj"), "1000"));
    }
    let output = child.wait_with_output().await?;
    if output.status.success() {
        return Ok((StatusCode::OK, JSON, String::from_utf8_lossy(&output.stdout).into_owned()));
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let reason = if errors.trim().is_empty() { output.status.to_string() } else { without_option(errors.trim()) };
    Ok(failure(StatusCode::UNPROCESSABLE_ENTITY, &reason))
}
