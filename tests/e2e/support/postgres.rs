//! A PostgreSQL server of a test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use super::process::signal;
use super::tls::Signed;
use super::{free_port, wait_until};

/// The user that runs the server if the tests run as root; PostgreSQL refuses to run as root.
const USER: &str = "nobody";

/// A running server; its data is deleted at the end.
#[derive(Debug)]
pub struct Postgres {
    server: Option<Child>,
    pub port: u16,
    /// The data folder, outside the folders of tests, which the server's user may not be allowed to enter.
    data: PathBuf,
    password: String,
}

impl Postgres {
    /// Starts a server whose user `gate` has this password.
    pub fn start(password: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tollgate-postgres-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let data = std::env::temp_dir().join(name);
        fs::create_dir_all(&data).unwrap();
        if is_root() {
            let owned = Command::new("chown").arg(USER).arg(&data).status().unwrap();
            assert!(owned.success());
        }
        let initialised = as_user(&program("initdb"))
            .args(["--pgdata", &data.display().to_string(), "--username", "admin", "--auth-local", "trust"])
            .args(["--auth-host", "scram-sha-256", "--encoding", "UTF8", "--locale", "C", "--no-sync"])
            .current_dir(&data)
            .output()
            .unwrap();
        assert!(initialised.status.success(), "{}", String::from_utf8_lossy(&initialised.stderr));
        let mut postgres = Self { server: None, port: free_port(), data, password: password.to_owned() };
        postgres.run();
        postgres.run_sql(&format!("CREATE ROLE gate LOGIN PASSWORD '{password}'"));
        postgres
    }

    /// Starts the server again with its old data.
    pub fn run(&mut self) {
        let (port, data) = (self.port.to_string(), self.data.display().to_string());
        let spawned = as_user(&program("postgres"))
            .args(["-D", &data, "-p", &port, "-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"])
            .args(["-c", &format!("unix_socket_directories={data}")])
            .current_dir(&self.data)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        self.server = Some(spawned.unwrap());
        wait_until("PostgreSQL to answer", || self.try_run_sql("SELECT 1").is_ok());
    }

    /// Makes the server use TLS with this certificate from now on.
    pub fn secure(&self, signed: &Signed) {
        for (name, text) in [("server.crt", &signed.certificate), ("server.key", &signed.key)] {
            let file = self.data.join(name);
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
            if is_root() {
                assert!(Command::new("chown").arg(USER).arg(&file).status().unwrap().success());
            }
        }
        self.run_sql("ALTER SYSTEM SET ssl = on");
        self.run_sql("SELECT pg_reload_conf()");
        wait_until("TLS", || self.run_sql("SHOW ssl") == "on");
    }

    /// The URL of the database, for the user of gateways.
    pub fn url(&self) -> String {
        format!("postgres://gate:{}@127.0.0.1:{}/postgres", self.password, self.port)
    }

    /// Runs statements as the administrator; returns their output.
    #[track_caller]
    pub fn run_sql(&self, statements: &str) -> String {
        self.try_run_sql(statements).unwrap_or_else(|said| panic!("{said}"))
    }

    fn try_run_sql(&self, statements: &str) -> Result<String, String> {
        let output = Command::new(program("psql"))
            .args(["-h", &self.data.display().to_string(), "-p", &self.port.to_string(), "-U", "admin"])
            .args(["-v", "ON_ERROR_STOP=1", "-qAt", "-d", "postgres", "-c", statements])
            .output()
            .unwrap();
        match output.status.success() {
            true => Ok(String::from_utf8(output.stdout).unwrap().trim_end().to_owned()),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }

    /// Sends a signal by its name to the server, then to its worker processes: a server that is stopped first starts no
    /// worker that the list of workers does not have.
    pub fn signal(&self, name: &str) {
        let Some(server) = &self.server else { return };
        signal(server.id(), name);
        let listed = Command::new("ps").args(["-o", "pid=", "--ppid", &server.id().to_string()]).output().unwrap();
        let workers = String::from_utf8(listed.stdout).unwrap();
        // a worker may have ended meanwhile
        for worker in workers.split_whitespace() {
            drop(Command::new("kill").args([&format!("-{name}"), worker]).stderr(Stdio::null()).status());
        }
    }

    /// Stops the server at once, like a crash.
    pub fn kill(&mut self) {
        // a stopped process gets the second signal only after it continues
        self.signal("CONT");
        self.signal("QUIT");
        if let Some(mut server) = self.server.take() {
            drop(server.wait());
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
        drop(fs::remove_dir_all(&self.data));
    }
}

/// The program from Debian's packages, or from the user's path.
fn program(name: &str) -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("bin").join(name)).filter(|path| path.exists()).max();
    found.unwrap_or_else(|| PathBuf::from(name))
}

fn as_user(program: &Path) -> Command {
    if !is_root() {
        return Command::new(program);
    }
    // the server ends with the test, however the test ends
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--clear-groups", "--pdeathsig", "QUIT", "--"]).arg(program);
    command
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
