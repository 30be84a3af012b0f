//! The Redis connections of one thread.

use std::collections::HashMap;
use std::io;

use parking_lot::Mutex;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use super::connection::{Connection, failed, io_error};
use super::shared_future::SharedFuture;
use super::{Address, CallError, Layout, Servers, cluster, sentinel};

/// Connections that the pool opens when they are needed, shares among all callers, and drops when they fail.
pub struct Pool {
    servers: Servers,
    open: Mutex<HashMap<Target, Opening>>,
}

/// The destination of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Target {
    /// The primary, which holds all data.
    Primary,
    /// One server of a cluster.
    Node(Address),
}

/// The way to send a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendMode {
    Normal,
    /// After `ASKING`, to a server that is about to take over the key.
    AfterAsking,
}

type Opening = SharedFuture<RedisResult<Connection>>;

/// How often a call follows a redirect to another server.
const MAX_REDIRECTS: usize = 4;
/// The most connections. No cluster has more servers: only a faulty server names more.
const MAX_CONNECTIONS: usize = 1_024;

// === impl Pool ===

impl Pool {
    /// A pool without connections: it connects at the first call.
    pub fn new(servers: Servers) -> Self {
        Self { servers, open: Mutex::default() }
    }

    /// The reply to `command` of the server that holds `key`. The client cuts the connection to a server that sends no
    /// reply to any caller for a second; the command stays sent if the caller drops the future.
    pub async fn run(&self, key: &str, command: &Cmd) -> RedisResult<Value> {
        match &self.servers.0.layout {
            Layout::Cluster { seeds } => self.run_in_cluster(seeds, cluster::slot_of(key), command).await,
            Layout::Standalone { .. } | Layout::Sentinel { .. } => {
                self.ask(&Target::Primary, SendMode::Normal, command).await
            }
        }
    }

    /// Connects to all servers that hold data, as far as they are reachable.
    pub async fn open(&self) {
        let targets = match &self.servers.0.layout {
            Layout::Standalone { .. } | Layout::Sentinel { .. } => vec![Target::Primary],
            Layout::Cluster { seeds } => match self.servers.0.cluster.topology(&self.servers, seeds).await {
                Ok(topology) => topology.holders().cloned().map(Target::Node).collect(),
                Err(_) => return,
            },
        };
        let openings: Vec<Opening> = targets.iter().map(|target| self.opening(target)).collect();
        for opening in openings {
            drop(opening.wait().await);
        }
    }

    /// Whether there is a connection to the server that holds `key`, as far as the client knows.
    pub fn is_connected_to(&self, key: &str) -> bool {
        let Some(target) = self.target_of(key) else { return false };
        let opening = self.open.lock().get(&target).cloned();
        opening
            .and_then(|opening| opening.result())
            .is_some_and(|result| result.is_ok_and(|connection| connection.is_open()))
    }

    /// Begins to connect to the server that holds `key`, if the client knows it.
    pub fn start_connecting(&self, key: &str) {
        if let Some(target) = self.target_of(key) {
            drop(self.opening(&target));
        }
    }

    fn target_of(&self, key: &str) -> Option<Target> {
        match &self.servers.0.layout {
            Layout::Standalone { .. } | Layout::Sentinel { .. } => Some(Target::Primary),
            Layout::Cluster { .. } => {
                let topology = self.servers.0.cluster.known()?;
                topology.holder(cluster::slot_of(key)).cloned().map(Target::Node)
            }
        }
    }

    /// Closes the connection to the server with this number ([`Servers::holder_number`]): the next call opens a new one,
    /// and callers that wait for replies get none.
    pub fn close(&self, server: usize) {
        self.close_target(match self.servers.is_cluster() {
            true => self.servers.0.cluster.numbered(server).map(Target::Node),
            false => Some(Target::Primary),
        });
    }

    /// [`Pool::close`] for the server that holds `key`, as far as the client knows.
    pub fn close_holder(&self, key: &str) {
        self.close_target(self.target_of(key));
    }

    fn close_target(&self, target: Option<Target>) {
        self.servers.0.cluster.mark_topology_stale();
        if let Some(opening) = target.and_then(|target| self.open.lock().remove(&target)) {
            end(&opening);
        }
    }

    /// Runs the command, and follows redirects from server to server.
    async fn run_in_cluster(&self, seeds: &[Address], slot: u16, command: &Cmd) -> RedisResult<Value> {
        let cluster = &self.servers.0.cluster;
        let topology = cluster.topology(&self.servers, seeds).await?;
        let Some(mut address) = topology.holder(slot).cloned() else {
            cluster.mark_topology_stale();
            return Err(failed(format!("no server holds slot {slot}")));
        };
        let mut mode = SendMode::Normal;
        let mut redirected: usize = 0;
        loop {
            let asked = self.ask(&Target::Node(address.clone()), mode, command).await;
            let Err(error) = &asked else { return asked };
            mode = match error.kind() {
                ErrorKind::Server(ServerErrorKind::Ask) => SendMode::AfterAsking,
                ErrorKind::Server(ServerErrorKind::Moved | ServerErrorKind::ClusterDown) => {
                    cluster.mark_topology_stale();
                    SendMode::Normal
                }
                _ => return asked,
            };
            redirected = redirected.saturating_add(1);
            match cluster::redirected(error, &address) {
                Some(elsewhere) if redirected <= MAX_REDIRECTS => address = elsewhere,
                _ => return asked,
            }
        }
    }

    async fn ask(&self, target: &Target, mode: SendMode, command: &Cmd) -> RedisResult<Value> {
        let opening = self.opening(target);
        let result = opening.clone().wait().await;
        let connection = match result.unwrap_or_else(|| Err(failed("given up".to_owned()))) {
            Ok(connection) => connection,
            Err(error) => {
                self.forget(target, &opening);
                return Err(unopened(error));
            }
        };
        let asked = match mode {
            SendMode::Normal => connection.ask(command).await,
            SendMode::AfterAsking => connection.ask_after_asking(command).await,
        };
        if asked.as_ref().is_err_and(is_over) {
            self.forget(target, &opening);
        }
        asked
    }

    /// The existing connection, or else a new one; callers that come while it opens wait for the same one.
    fn opening(&self, target: &Target) -> Opening {
        let mut open = self.open.lock();
        match open.get(target) {
            Some(opening) if is_good(opening) => return opening.clone(),
            Some(_) => self.servers.0.cluster.mark_topology_stale(),
            None => {}
        }
        if open.len() >= MAX_CONNECTIONS {
            open.drain().for_each(|(_, opening)| end(&opening));
        }
        let opening = SharedFuture::begin(connect(self.servers.clone(), target.clone()));
        open.insert(target.clone(), opening.clone());
        opening
    }

    /// Closes `opening` and removes it, unless another one has taken its place.
    fn forget(&self, target: &Target, opening: &Opening) {
        self.servers.0.cluster.mark_topology_stale();
        let mut open = self.open.lock();
        if open.get(target).is_some_and(|there| there.is(opening)) {
            open.remove(target);
        }
        drop(open);
        end(opening);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.open.lock().drain().for_each(|(_, opening)| end(&opening));
    }
}

fn end(opening: &Opening) {
    opening.cancel();
    if let Some(Ok(connection)) = opening.result() {
        connection.cut();
    }
}

fn is_good(opening: &Opening) -> bool {
    match opening.result() {
        Some(Ok(connection)) => connection.is_open(),
        Some(Err(_)) => false,
        None => !opening.is_over(),
    }
}

async fn connect(servers: Servers, target: Target) -> RedisResult<Connection> {
    let credentials = servers.0.credentials.load_full();
    let login = servers.login(&credentials);
    let tls = credentials.tls.clone();
    match (&target, &servers.0.layout) {
        (Target::Node(server), _) | (Target::Primary, Layout::Standalone { server, .. }) => {
            Connection::open(server, tls, &login).await
        }
        (Target::Primary, Layout::Sentinel { master, sentinels, username }) => {
            sentinel::primary(master, sentinels, username.as_deref(), &credentials, &login).await
        }
        (Target::Primary, Layout::Cluster { .. }) => Err(failed("a cluster has more than one primary".to_owned())),
    }
}

/// The error of a connection that did not open, as one of a command that was not sent.
fn unopened(error: RedisError) -> RedisError {
    match CallError::from(&error) {
        CallError::Broken(text) | CallError::InvalidReply(text) => failed(text),
        CallError::Unreachable(_) | CallError::Refused(_) | CallError::Moving(_) | CallError::TimedOut => error,
    }
}

/// Whether a connection that returned this error is useless from now on.
fn is_over(error: &RedisError) -> bool {
    match error.kind() {
        ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::MasterDown) => true,
        ErrorKind::Server(_) => false,
        ErrorKind::Extension => error.code() == Some("NOAUTH"),
        _ => true,
    }
}

// === impl CallError ===

impl From<&RedisError> for CallError {
    fn from(error: &RedisError) -> Self {
        /// The most characters of the error's text, which the server chooses.
        const MAX_CHARACTERS: usize = 200;
        let text: String = error.to_string().chars().filter(|each| !each.is_control()).take(MAX_CHARACTERS).collect();
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::TryAgain) => Self::Moving(text),
            ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => Self::Refused(text),
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Self::InvalidReply(text),
            _ => match io_error(error).map(io::Error::kind) {
                Some(io::ErrorKind::InvalidData) => Self::InvalidReply(text),
                None | Some(io::ErrorKind::ConnectionRefused) => Self::Unreachable(text),
                Some(_) => Self::Broken(text),
            },
        }
    }
}
