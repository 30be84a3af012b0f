//! A Redis server of a test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use super::tls::Authority;
use super::{Folder, free_port, wait_until};

/// A running server without persistence.
#[derive(Debug)]
pub struct Redis {
    child: Child,
    pub port: u16,
    password: Option<String>,
    tls: Option<RedisTls>,
    /// The TLS port, if the server has one.
    pub tls_port: Option<u16>,
}

/// The options of servers that use TLS with clients and with each other. Every client has to show a certificate of the same
/// authority.
#[derive(Clone, Debug)]
pub struct RedisTls(Vec<[String; 2]>);

impl RedisTls {
    /// Writes the files of servers at 127.0.0.1 into `folder`.
    pub fn of(authority: &Authority, folder: &Folder) -> Self {
        let signed = authority.sign(&["127.0.0.1"]);
        let files = [("ca-cert", authority.pem()), ("cert", signed.certificate), ("key", signed.key)];
        let files = files.map(|(kind, text)| {
            [format!("tls-{kind}-file"), folder.write(&format!("{kind}.pem"), &text).display().to_string()]
        });
        let among_servers = ["tls-replication", "tls-cluster"].map(|option| [option, "yes"].map(str::to_owned));
        Self(files.into_iter().chain(among_servers).collect())
    }

    fn arguments(&self, port: u16) -> Vec<String> {
        let port = [["tls-port".to_owned(), port.to_string()]];
        self.0.iter().chain(&port).flat_map(|[option, value]| [format!("--{option}"), value.clone()]).collect()
    }
}

impl Redis {
    pub fn start() -> Self {
        Self::start_on(free_port(), None)
    }

    /// Starts a server with an additional TLS port.
    pub fn start_with_tls(tls: &RedisTls) -> Self {
        Self::start_secured(Some(tls), &[])
    }

    fn start_secured(tls: Option<&RedisTls>, options: &[&str]) -> Self {
        let tls_port = tls.map(|_| free_port());
        let secured = tls.zip(tls_port).map(|(tls, port)| tls.arguments(port)).unwrap_or_default();
        let options: Vec<&str> = secured.iter().map(String::as_str).chain(options.iter().copied()).collect();
        let mut redis = Self::start_on_with(free_port(), None, &options);
        (redis.tls, redis.tls_port) = (tls.cloned(), tls_port);
        redis
    }

    pub fn start_with_password(password: &str) -> Self {
        Self::start_on(free_port(), Some(password))
    }

    pub fn start_on(port: u16, password: Option<&str>) -> Self {
        Self::start_on_with(port, password, &[])
    }

    /// The same server after a change of its password.
    pub fn with_password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self
    }

    fn start_on_with(port: u16, password: Option<&str>, options: &[&str]) -> Self {
        let number = port.to_string();
        let mut command = Command::new("redis-server");
        command.args(["--port", &number, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        // a replication passes through a file, which the next server in this folder would load
        command.args(["--dir", env!("CARGO_TARGET_TMPDIR"), "--rdb-del-sync-files", "yes"]);
        command.args(["--dbfilename", &format!("{}-{port}.rdb", std::process::id())]);
        command.args(password.iter().flat_map(|password| ["--requirepass", password]));
        command.args(options);
        Self::spawn(&mut command, port, password)
    }

    fn spawn(command: &mut Command, port: u16, password: Option<&str>) -> Self {
        let spawned = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = spawned.unwrap_or_else(|error| panic!("redis-server: {error}; `make needs` installs it"));
        let redis = Self { child, port, password: password.map(str::to_owned), tls: None, tls_port: None };
        wait_until("Redis to answer", || redis.is_there());
        redis
    }

    /// The value of `store.redis` for this server.
    pub fn url(&self) -> String {
        match self.tls_port {
            Some(port) => format!("rediss://127.0.0.1:{port}"),
            None => format!("redis://127.0.0.1:{}", self.port),
        }
    }

    /// The port that other servers use.
    fn own_port(&self) -> u16 {
        self.tls_port.unwrap_or(self.port)
    }

    /// Sends a command; returns the first line of the answer.
    #[track_caller]
    pub fn command(&self, words: &[&str]) -> String {
        self.try_command(words).expect("Redis did not answer")
    }

    /// Sends a command to a server without a password; returns the whole answer unparsed.
    pub fn command_raw(&self, words: &[&str]) -> String {
        self.try_command_raw(words).unwrap()
    }

    /// The same for a server that may be about to close its connections.
    pub fn try_command_raw(&self, words: &[&str]) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.write_all(&encoded(words))?;
        stream.shutdown(std::net::Shutdown::Write)?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Sends a command, and does not wait for the answer.
    pub fn send(&self, words: &[&str]) {
        let stream = TcpStream::connect(("127.0.0.1", self.port));
        stream.and_then(|mut stream| stream.write_all(&encoded(words))).unwrap();
    }

    /// Whether the server answers.
    pub fn is_there(&self) -> bool {
        self.try_command(&["PING"]).is_some_and(|answer| answer == "+PONG")
    }

    fn try_command(&self, words: &[&str]) -> Option<String> {
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

    /// The names of the keys that match `pattern`.
    pub fn keys(&self, pattern: &str) -> Vec<String> {
        let text = self.command_raw(&["KEYS", pattern]);
        text.lines().filter(|line| !line.starts_with(['*', '$'])).map(str::to_owned).collect()
    }

    /// The number of commands of this name that the server has run.
    pub fn calls(&self, command: &str) -> u64 {
        let text = self.command_raw(&["INFO", "commandstats"]);
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
        line.and_then(|rest| rest.split(',').next()).map_or(0, |calls| calls.parse().unwrap())
    }

    /// Starts a replica of this server, and waits until it is in sync.
    pub fn start_replica(&self) -> Self {
        let replica = Self::start_secured(self.tls.as_ref(), &[]);
        self.command(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
        replica.command(&["REPLICAOF", "127.0.0.1", &self.own_port().to_string()]);
        wait_until("the replica to follow", || self.command_raw(&["INFO", "replication"]).contains("state=online"));
        replica
    }

    /// Starts a Sentinel for this server, which it calls `mymaster` at first. `folder` holds its configuration.
    pub fn start_sentinel(&self, folder: &Folder) -> Self {
        let (port, tls_port) = (free_port(), self.tls.as_ref().map(|_| free_port()));
        let secured = self.tls.iter().flat_map(|tls| &tls.0).map(|[option, value]| format!("{option} {value}\n"));
        let at = tls_port.map(|port| format!("tls-port {port}\n"));
        let secured: String = secured.chain(at).collect();
        let config = format!(
            "{secured}port {port}
bind 127.0.0.1
sentinel monitor mymaster 127.0.0.1 {} 1
sentinel down-after-milliseconds mymaster 300
sentinel failover-timeout mymaster 2000
",
            self.own_port()
        );
        let file = folder.write("sentinel.conf", &config).display().to_string();
        let mut sentinel = Self::spawn(Command::new("redis-server").args([&file, "--sentinel"]), port, None);
        sentinel.tls_port = tls_port;
        let known = || sentinel.command_raw(&["SENTINEL", "REPLICAS", "mymaster"]).contains("slave");
        wait_until("the sentinel to know the replica", known);
        sentinel
    }

    /// Starts three servers, each with a third of the slots. `folder` holds their configurations.
    pub fn start_cluster(folder: &Folder, tls: Option<&RedisTls>) -> Vec<Self> {
        let shares = [("0", "5460"), ("5461", "10922"), ("10923", "16383")];
        let members: Vec<(Self, String)> = shares.iter().map(|share| Self::start_member(folder, *share, tls)).collect();
        let (first, _) = &members[0];
        for (other, bus) in &members[1..] {
            first.command(&["CLUSTER", "MEET", "127.0.0.1", &other.own_port().to_string(), bus]);
        }
        let agrees = |info: &str| info.contains("cluster_state:ok") && info.contains("cluster_size:3");
        wait_until("the cluster to agree", || {
            members.iter().all(|(member, _)| agrees(&member.command_raw(&["CLUSTER", "INFO"])))
        });
        members.into_iter().map(|(member, _)| member).collect()
    }

    /// Starts a member of a cluster with its slots; returns it with the port of its cluster bus.
    fn start_member(folder: &Folder, (first, last): (&str, &str), tls: Option<&RedisTls>) -> (Self, String) {
        let bus = free_port().to_string();
        let (dir, file) = (folder.path().display().to_string(), format!("nodes-{bus}.conf"));
        let notes = [["--cluster-config-file", &file], ["--dir", &dir]];
        let options = [
            ["--cluster-enabled", "yes"],
            ["--cluster-port", &bus],
            ["--cluster-require-full-coverage", "no"],
            ["--cluster-node-timeout", "2000"],
            notes[0],
            notes[1],
        ];
        let member = Self::start_secured(tls, options.as_flattened());
        member.command(&["CLUSTER", "ADDSLOTSRANGE", first, last]);
        (member, bus)
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
