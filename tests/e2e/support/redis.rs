//! A Redis server of a test's own.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use super::{free_port, wait_until};

/// A running server that keeps nothing on disk.
#[derive(Debug)]
pub struct Redis {
    child: Child,
    pub port: u16,
    password: Option<String>,
}

impl Redis {
    pub fn start() -> Self {
        Self::start_on(free_port(), None)
    }

    pub fn start_with_password(password: &str) -> Self {
        Self::start_on(free_port(), Some(password))
    }

    pub fn start_on(port: u16, password: Option<&str>) -> Self {
        Self::start_on_with(port, password, &[])
    }

    /// Starts with more options.
    pub fn start_with(options: &[[&str; 2]]) -> Self {
        Self::start_on_with(free_port(), None, options.as_flattened())
    }

    /// The same server, whose password is another now.
    pub fn with_password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    fn start_on_with(port: u16, password: Option<&str>, options: &[&str]) -> Self {
        let number = port.to_string();
        let mut command = Command::new("redis-server");
        command.args(["--port", &number, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command.args(password.iter().flat_map(|password| ["--requirepass", password]));
        command.args(options);
        let spawned = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = spawned.unwrap_or_else(|error| panic!("redis-server: {error}; `make needs` installs it"));
        let redis = Self { child, port, password: password.map(str::to_owned) };
        wait_until("Redis to answer", || redis.try_say(&["PING"]).is_some_and(|answer| answer == "+PONG"));
        redis
    }

    /// What `store.redis` has to be.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Sends a command; the first line of its answer.
    #[track_caller]
    pub fn say(&self, words: &[&str]) -> String {
        self.try_say(words).expect("Redis did not answer")
    }

    fn try_say(&self, words: &[&str]) -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        if let Some(password) = &self.password {
            stream.write_all(&encoded(&["AUTH", password])).ok()?;
            let mut ok = [0; 5];
            stream.read_exact(&mut ok).ok()?;
        }
        stream.write_all(&encoded(words)).ok()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).ok()?;
        Some(line.trim_end().to_owned())
    }

    /// The names of the keys that fit `pattern`.
    pub fn keys(&self, pattern: &str) -> Vec<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(&encoded(&["KEYS", pattern])).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text.lines().filter(|line| !line.starts_with(['*', '$'])).map(str::to_owned).collect()
    }

    /// How many commands of this name it has been sent.
    pub fn calls(&self, command: &str) -> u64 {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.write_all(&encoded(&["INFO", "commandstats"])).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.and_then(|rest| rest.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
    }

    /// Sends a signal by its name.
    pub fn signal(&self, name: &str) {
        let kill = format!("kill -{name} {}", self.child.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn encoded(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
    }
    bytes
}
