//! The connections of one thread.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};

use super::flight::Flight;
use super::wire::{Wire, failed, io_error};
use super::{CallError, Layout, Servers};

/// Connections that are opened when they are needed, shared by all who call, and given up when they fail.
pub struct Pool {
    servers: Servers,
    open: Arc<Mutex<HashMap<Goal, Opening>>>,
}

/// What a connection leads to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Goal {
    /// Whoever holds the data.
    Primary,
}

type Opening = Flight<RedisResult<Wire>>;

// === impl Pool ===

impl Pool {
    /// Connects when it is first asked.
    pub fn new(servers: Servers) -> Self {
        Self { servers, open: Arc::default() }
    }

    /// What a server answers to `command`. May take for ever; dropping the future does not undo what is sent.
    pub async fn run(&self, command: &Cmd) -> RedisResult<Value> {
        self.ask(&Goal::Primary, command).await
    }

    /// Forgets all connections: the next calls open others, and those that wait for answers get none.
    pub fn give_up(&self) {
        for (_, opening) in self.open.lock().drain() {
            end(&opening);
        }
    }

    async fn ask(&self, goal: &Goal, command: &Cmd) -> RedisResult<Value> {
        let opening = self.opening(goal);
        let landed = opening.clone().land().await;
        let wire = match landed.unwrap_or_else(|| Err(failed("given up".to_owned()))) {
            Ok(wire) => wire,
            Err(error) => {
                self.forget(goal, &opening);
                return Err(error);
            }
        };
        let asked = wire.ask(command).await;
        if asked.as_ref().is_err_and(is_over) {
            self.forget(goal, &opening);
        }
        asked
    }

    /// The connection that is there, or else another; those who come while one is opened wait for it.
    fn opening(&self, goal: &Goal) -> Opening {
        let mut open = self.open.lock();
        if let Some(opening) = open.get(goal).filter(|opening| is_good(opening)) {
            return opening.clone();
        }
        let opening = Flight::begin(connect(self.servers.clone(), goal.clone()));
        open.insert(goal.clone(), opening.clone());
        opening
    }

    /// Gives `opening` up, unless another one took its place.
    fn forget(&self, goal: &Goal, opening: &Opening) {
        let mut open = self.open.lock();
        if open.get(goal).is_some_and(|there| there.is(opening)) {
            open.remove(goal);
        }
        drop(open);
        end(opening);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.give_up();
    }
}

fn end(opening: &Opening) {
    opening.call_off();
    if let Some(Ok(wire)) = opening.landed() {
        wire.cut();
    }
}

fn is_good(opening: &Opening) -> bool {
    match opening.landed() {
        Some(Ok(wire)) => wire.is_open(),
        Some(Err(_)) => false,
        None => !opening.is_over(),
    }
}

async fn connect(servers: Servers, goal: Goal) -> RedisResult<Wire> {
    let credentials = servers.0.credentials.load_full();
    let login = servers.login(&credentials);
    let (Goal::Primary, Layout::Standalone { server, .. }) = (goal, &servers.0.layout);
    let wire = Wire::open(server, credentials.tls.clone(), &login).await?;
    servers.raise_generation();
    Ok(wire)
}

/// Whether a connection on which this came is good for nothing more.
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
        /// What an error says is up to the server.
        const LONGEST: usize = 200;
        let text: String = error.to_string().chars().filter(|each| !each.is_control()).take(LONGEST).collect();
        match error.kind() {
            ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => Self::Refused(text),
            ErrorKind::Parse | ErrorKind::UnexpectedReturnType => Self::Nonsense(text),
            ErrorKind::Io if io_error(error).is_some_and(|error| error.kind() == io::ErrorKind::InvalidData) => {
                Self::Nonsense(text)
            }
            _ => Self::Unreachable(text),
        }
    }
}
