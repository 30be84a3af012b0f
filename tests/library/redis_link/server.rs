//! Redis servers of a test.

use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::folder::Folder;
use super::ports::free_port;

/// The longest time that a test waits for a condition, on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A redis-server process; dropping this ends it.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    /// The port of the cluster bus.
    pub(crate) bus_port: u16,
    password: Option<&'static str>,
    _folder: Folder,
}

impl Server {
    /// Starts a server without persistence.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(options: &[&str]) -> Self {
        Self::start_on(free_port(), options)
    }

    pub(crate) fn start_on(port: u16, options: &[&str]) -> Self {
        let number = port.to_string();
        let listen = ["--port", &number, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
        let at_once = ["--repl-diskless-sync-delay", "0"];
        Self::spawn(port, &[listen.as_slice(), &at_once, options].concat())
    }

    /// Starts a server that listens with TLS only.
    pub(crate) fn start_with_tls(options: &[&str]) -> Self {
        let port = free_port();
        let number = port.to_string();
        let listen = ["--port", "0", "--tls-port", &number, "--bind", "127.0.0.1", "--save", ""];
        Self::spawn(port, &[&listen, options].concat())
    }

    /// Starts a process, and waits until it listens.
    pub(crate) fn spawn(port: u16, arguments: &[&str]) -> Self {
        let folder = Folder::new();
        let mut command = Command::new("redis-server");
        command.args(arguments).arg("--dir").arg(folder.path());
        let spawned = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = spawned.expect("redis-server starts (scripts/install-needs.sh installs it)");
        let mut server = Self { child, port, bus_port: 0, password: None, _folder: folder };
        wait_until("the server to listen", || {
            assert!(server.child.try_wait().unwrap().is_none(), "redis-server ended: {arguments:?}");
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        server
    }

    /// The same server; connections use this password.
    pub(crate) fn with_password(mut self, password: &'static str) -> Self {
        self.password = Some(password);
        self
    }

    /// A new connection.
    pub(crate) fn connect(&self) -> redis::Connection {
        let client = redis::Client::open(("127.0.0.1", self.port)).unwrap();
        client.get_connection_with_timeout(PATIENCE).unwrap()
    }

    /// Sends a command; returns the answer, with lists in Rust's debug format.
    pub(crate) fn command(&self, words: &[&str]) -> String {
        let said = self.try_command(words);
        said.unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    pub(crate) fn try_command(&self, words: &[&str]) -> Result<String, redis::RedisError> {
        let client = redis::Client::open(("127.0.0.1", self.port))?;
        let mut connection = client.get_connection_with_timeout(PATIENCE)?;
        if let Some(password) = self.password {
            redis::cmd("AUTH").arg(password).exec(&mut connection)?;
        }
        let mut command = redis::cmd(words[0]);
        let value: redis::Value = command.arg(&words[1..]).query(&mut connection)?;
        Ok(match value {
            redis::Value::BulkString(text) => String::from_utf8_lossy(&text).into_owned(),
            redis::Value::Int(number) => number.to_string(),
            redis::Value::SimpleString(text) => text,
            other => format!("{other:?}"),
        })
    }

    /// The IDs of the client connections, without that of this command.
    pub(crate) fn clients(&self) -> Vec<String> {
        let list = self.command(&["CLIENT", "LIST", "TYPE", "normal"]);
        let others = list.lines().filter(|line| !line.contains(" cmd=client"));
        others.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
    }

    /// Sends a signal by its name.
    pub(crate) fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Calls `probe` until it returns true.
pub(crate) fn wait_until(what: &str, mut probe: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !probe() {
        assert!(Instant::now() < end, "waited {PATIENCE:?} in vain for {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}
