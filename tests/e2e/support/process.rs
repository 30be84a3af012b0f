//! The program as a process: its output is kept, and it never outlives the test.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use super::wait_for;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tollgate");

/// A running program.
#[derive(Debug)]
pub struct Process {
    child: Child,
    stdout: Output,
    stderr: Output,
}

/// The output of a program so far.
#[derive(Debug)]
struct Output {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Output {
    fn of(mut pipe: impl Read + Send + 'static) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&bytes);
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length) = pipe.read(&mut buffer) {
                if length == 0 {
                    break;
                }
                kept.lock().extend(buffer.iter().take(length));
            }
        });
        Self { bytes, reader: Some(reader) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock()).into_owned()
    }

    fn finish(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
    }
}

impl Process {
    /// Starts tollgate.
    pub fn tollgate(arguments: &[&str], folder: &Path, environment: &[(&str, &str)]) -> Self {
        Self::start(Command::new(PROGRAM).args(arguments), folder, environment)
    }

    /// Starts an installed program.
    pub fn program(name: &str, arguments: &[&str], folder: &Path) -> Self {
        Self::start(Command::new(name).args(arguments), folder, &[])
    }

    /// Starts tollgate with at most this many descriptors.
    pub fn tollgate_within(descriptors: u32, arguments: &[&str], folder: &Path) -> Self {
        let limited = format!("ulimit -n {descriptors} && exec \"$0\" \"$@\"");
        Self::start(Command::new("sh").args(["-c", &limited, PROGRAM]).args(arguments), folder, &[])
    }

    /// Starts tollgate with socket activation, as systemd does.
    pub fn tollgate_on(socket: impl Into<OwnedFd>, arguments: &[&str], folder: &Path) -> Self {
        let activate = "exec 3<&0 </dev/null; export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$0\" \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", activate, PROGRAM]).args(arguments).stdin(Stdio::from(socket.into()));
        Self::start_from(&mut command, folder, &[])
    }

    fn start(command: &mut Command, folder: &Path, environment: &[(&str, &str)]) -> Self {
        Self::start_from(command.stdin(Stdio::null()), folder, environment)
    }

    fn start_from(command: &mut Command, folder: &Path, environment: &[(&str, &str)]) -> Self {
        let mut child = command
            .current_dir(folder)
            .env_remove("RUST_LOG")
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}; `make needs` installs what is missing"));
        let stdout = Output::of(child.stdout.take().unwrap());
        let stderr = Output::of(child.stderr.take().unwrap());
        Self { child, stdout, stderr }
    }

    pub fn stdout(&self) -> String {
        self.stdout.text()
    }

    pub fn stderr(&self) -> String {
        self.stderr.text()
    }

    /// The first line of the access log that contains `text`.
    pub fn wait_for_access(&self, text: &str) -> serde_json::Value {
        let line = wait_for(&format!("{text} in the access log"), || {
            self.stdout().lines().find(|line| line.contains(text)).map(str::to_owned)
        });
        serde_json::from_str(&line).unwrap()
    }

    /// The exit status of the process, if it has ended.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        let status = self.child.try_wait().unwrap();
        if status.is_some() {
            self.stdout.finish();
            self.stderr.finish();
        }
        status
    }

    /// Whether the process has ended; output of its child processes may still arrive.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the process ends.
    pub fn wait(&mut self) -> ExitStatus {
        wait_for("the end of the process", || self.exit_status())
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// The resident memory in bytes.
    pub fn memory(&self) -> u64 {
        self.memory_called("VmRSS:")
    }

    /// The peak of resident memory in bytes.
    pub fn peak_memory(&self) -> u64 {
        self.memory_called("VmHWM:")
    }

    fn memory_called(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let resident = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        resident.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// The number of open descriptors.
    pub fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// The number of threads whose names begin with `name`.
    pub fn threads(&self, name: &str) -> usize {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let of_thread =
            |thread: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok();
        threads.filter_map(of_thread).filter(|of_thread| of_thread.starts_with(name)).count()
    }

    /// The CPU time so far.
    pub fn processor_time(&self) -> Duration {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let of_thread = |thread: std::io::Result<std::fs::DirEntry>| -> Option<u64> {
            let times = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            times.split(' ').next()?.parse().ok()
        };
        Duration::from_nanos(threads.filter_map(of_thread).sum())
    }

    /// Whether the process has a handler for the signal with this number.
    pub fn catches(&self, signal: u32) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        caught.is_some_and(|mask| u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal - 1) & 1 == 1)
    }
}

/// Sends a signal by its name to a process that a test started.
pub fn signal(process: u32, name: &str) {
    let kill = format!("kill -{name} {process}");
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        self.stdout.finish();
        self.stderr.finish();
        if std::thread::panicking() {
            let mut err = std::io::stderr();
            drop(std::io::Write::write_all(&mut err, format!("--- tollgate said:\n{}---\n", self.stderr()).as_bytes()));
        }
    }
}
