//! A redis-server of the test's own.

use std::fs;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::{Client, Connection};

/// A redis-server on a free port; ended with the value.
pub(crate) struct Server {
    child: Child,
    port: u16,
    folder: PathBuf,
}

impl Server {
    /// Panics where there is no redis-server, or none starts.
    pub(crate) fn start() -> Self {
        for _ in 0..5 {
            let port = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a port").port();
            let folder = std::env::temp_dir().join(format!("tollgate-redis-{}-{port}", std::process::id()));
            fs::create_dir_all(&folder).expect("a folder");
            let child = Command::new("redis-server")
                .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
                .args(["--loglevel", "warning", "--dir"])
                .arg(&folder)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("redis-server starts (scripts/install-needs.sh installs it)");
            let mut server = Self { child, port, folder };
            if server.answers() {
                return server;
            }
        }
        panic!("no redis-server has come up");
    }

    /// Waits until it answers; false if it ended instead, as it does where somebody else was faster to take the port.
    fn answers(&mut self) -> bool {
        let deadline = Instant::now() + Duration::from_secs(60);
        while Instant::now() < deadline {
            if self.child.try_wait().expect("a child").is_some() {
                return false;
            }
            let pong = self.client().get_connection().and_then(|mut one| redis::cmd("PING").query::<String>(&mut one));
            if pong.is_ok() {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }

    fn client(&self) -> Client {
        Client::open(("127.0.0.1", self.port())).expect("an address")
    }

    /// Where it listens, on loopback.
    pub(crate) const fn port(&self) -> u16 {
        self.port
    }

    /// A new connection.
    pub(crate) fn connect(&self) -> Connection {
        self.client().get_connection().expect("a connection")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        drop(fs::remove_dir_all(&self.folder));
    }
}
