//! The handover from a process to a new one, which may have another version: first the sockets, then the state. In
//! between, each process waits for the other's message.
//!
//! The old process starts the new one with a Unix socket as its standard input, and sends the listening sockets through
//! it. The new one reads its configuration, and sends [`READY`] when only the state is missing. Then the old one stops
//! accepting, while the system queues connections, and writes the state. The new one accepts, and sends [`SERVING`].
//! Until then the old one can undo every step: if the new one fails, the old one goes on as before.

use std::ffi::OsString;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use serde_json::json;

use super::inherit::{HANDOVER_VARIABLE, SYSTEMD_VARIABLES};
use super::socket::{FileOwner, Socket};
use super::state::PredecessorFile;
use crate::customers::source::Refresher;
use crate::gateway::active_config::ActiveConfig;
use crate::gateway::upstream::Pool;
use crate::ruleset::upstream::Upstream;

/// The first bytes that the old process sends; another number means another protocol.
const GREETING: [u8; 10] = *b"tollgate/1";
/// From the new process: only the state is missing.
const READY: u8 = b'R';
/// From the new process: it accepts connections.
const SERVING: u8 = b'S';
/// The variable that tells the new process which upstreams have an address in the old one: a JSON list of their names.
const UPSTREAMS_VARIABLE: &str = "TOLLGATE_HANDOVER_UPSTREAMS";
/// The variable that tells the new process which sources of customers and keys have data in the old one, in the same form.
const SOURCES_VARIABLE: &str = "TOLLGATE_HANDOVER_SOURCES";
/// The variables that tell the new process the state file that the old one writes, and the one that it has refused.
const WRITTEN_STATE_VARIABLE: &str = "TOLLGATE_HANDOVER_STATE";
const REFUSED_STATE_VARIABLE: &str = "TOLLGATE_HANDOVER_STATE_REFUSED";
/// The most bytes of a variable; Linux starts no process with 128 KiB or more in one.
const MAX_VARIABLE_BYTES: usize = 100 << 10;
/// The variable that tells the new process the number by which Redis counts this gateway.
const MEMBER_VARIABLE: &str = "TOLLGATE_HANDOVER_MEMBER";
/// The variable in which systemd tells the main process of a service its process ID.
const SYSTEMD_VARIABLE: &str = "SYSTEMD_EXEC_PID";
/// The byte that accompanies each socket: whether a supervisor has opened it.
const OWN_SOCKET: u8 = b's';
const SUPERVISED_SOCKET: u8 = b'v';
/// The timeout of each process for the other's message.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(60);

/// The reason why a handover failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum UpgradeError {
    /// The program cannot be started.
    #[error("cannot start {program:?}: {error}")]
    Start { program: OsString, error: io::Error },
    /// This process is process 1 of a container, so the new process would end with it.
    #[error(
        "this process is process 1 of its container, and the new process would end with it; start another container"
    )]
    IsInit,
    /// This process is the main process of a systemd service, which ends with it.
    #[error(
        "this process is the main process of its systemd service, which ends with it; use `systemctl restart`, which \
         refuses no connection with a socket unit and keeps the counts with `state`"
    )]
    IsService,
    /// The new process ended.
    #[error("the new process ended before it served; see its log lines for the reason")]
    SuccessorExited,
    /// The new process did not reach the named step in time.
    #[error("the new process was not {0} after {MESSAGE_TIMEOUT:?}")]
    StepTimeout(&'static str),
    /// The connection between the processes failed.
    #[error("cannot hand over to the new process: {0}")]
    Failed(io::Error),
}

impl From<io::Error> for UpgradeError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset | ErrorKind::UnexpectedEof => Self::SuccessorExited,
            _ => Self::Failed(error),
        }
    }
}

// === the old process ===

/// A process that is to take over. Dropping this value before that process serves kills it.
pub(super) struct Successor {
    stream: UnixStream,
    child: Child,
    serves: bool,
}

impl Successor {
    /// Starts this process's program again, with the same arguments. `active` is the configuration in force, `state` the state
    /// file of this process, and `member` its number in Redis.
    pub(super) fn start(
        active: &ActiveConfig,
        state: PredecessorFile,
        member: Option<u64>,
    ) -> Result<Self, UpgradeError> {
        if std::process::id() == 1 {
            return Err(UpgradeError::IsInit);
        }
        if std::env::var(SYSTEMD_VARIABLE).is_ok_and(|process| process == std::process::id().to_string()) {
            return Err(UpgradeError::IsService);
        }
        let mut arguments = std::env::args_os();
        let program = arguments.next().unwrap_or_else(|| "tollgate".into());
        let (ours, theirs) = UnixStream::pair()?;
        let with_address = active.pools.iter().filter(|pool| pool.has_address()).map(|pool| &pool.upstream.name);
        let upstreams = json!(with_address.collect::<Vec<_>>()).to_string();
        let mut sources = active.sources();
        sources.retain(|source| source.has_data());
        let sources = json!(sources.iter().map(|source| source.name()).collect::<Vec<_>>()).to_string();
        let mut command = Command::new(&program);
        command
            .args(arguments)
            .env(HANDOVER_VARIABLE, "1")
            .env(UPSTREAMS_VARIABLE, if upstreams.len() > MAX_VARIABLE_BYTES { "[]" } else { &upstreams })
            .env(SOURCES_VARIABLE, sources)
            .env(WRITTEN_STATE_VARIABLE, state.written.unwrap_or_default())
            .env(REFUSED_STATE_VARIABLE, state.refused.unwrap_or_default())
            .env(MEMBER_VARIABLE, member.map(|member| member.to_string()).unwrap_or_default())
            .stdin(Stdio::from(OwnedFd::from(theirs)));
        // the new process receives the sockets through the Unix socket, not from systemd
        for name in SYSTEMD_VARIABLES {
            command.env_remove(name);
        }
        let child = command.spawn().map_err(|error| UpgradeError::Start { program, error })?;
        // otherwise the new process's end of the socket stays open in this process
        drop(command);
        let successor = Self { stream: ours, child, serves: false };
        successor.stream.set_read_timeout(Some(MESSAGE_TIMEOUT))?;
        successor.stream.set_write_timeout(Some(MESSAGE_TIMEOUT))?;
        Ok(successor)
    }

    /// The process's number.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The blocking work that sends `sockets` to the new process and waits until it lacks only the state. Dropping the
    /// successor ends that work.
    pub(super) fn preparation(
        &self,
        sockets: Vec<Socket>,
    ) -> io::Result<impl FnOnce() -> Result<(), UpgradeError> + Send + 'static> {
        let stream = self.stream.try_clone()?;
        Ok(move || {
            send(&stream, &sockets)?;
            wait_for(&stream, READY, "ready")
        })
    }

    /// Calls `write` to send the state, and waits until the new process serves.
    pub(super) fn send_state<T>(
        mut self,
        write: impl FnOnce(&mut UnixStream) -> io::Result<T>,
    ) -> Result<T, UpgradeError> {
        let written = write(&mut self.stream)?;
        wait_for(&self.stream, SERVING, "serving")?;
        self.serves = true;
        Ok(written)
    }
}

impl Drop for Successor {
    fn drop(&mut self) {
        if !self.serves {
            // an error is harmless: the process may have ended by itself
            drop(self.child.kill());
            drop(self.child.wait());
        }
    }
}

fn send(mut stream: &UnixStream, sockets: &[Socket]) -> io::Result<()> {
    stream.write_all(&GREETING)?;
    stream.write_all(&u32::try_from(sockets.len()).unwrap_or(u32::MAX).to_le_bytes())?;
    for socket in sockets {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [socket.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let byte = if socket.is_supervised() { SUPERVISED_SOCKET } else { OWN_SOCKET };
        rustix::net::sendmsg(stream, &[IoSlice::new(&[byte])], &mut control, SendFlags::NOSIGNAL)?;
    }
    Ok(())
}

fn wait_for(mut stream: &UnixStream, word: u8, name: &'static str) -> Result<(), UpgradeError> {
    let mut said = [0];
    match stream.read_exact(&mut said) {
        Ok(()) if said == [word] => Ok(()),
        Ok(()) => Err(io::Error::from(ErrorKind::InvalidData).into()),
        Err(error) => Err(match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => UpgradeError::StepTimeout(name),
            _ => error.into(),
        }),
    }
}

// === the new process ===

/// The process that hands over to this one.
pub(super) struct Predecessor {
    stream: UnixStream,
}

impl Predecessor {
    /// The process that started this one for a handover, if one did, and its sockets.
    pub(super) fn detect() -> io::Result<Option<(Self, Vec<Socket>)>> {
        if std::env::var_os(HANDOVER_VARIABLE).is_none() {
            return Ok(None);
        }
        let mut stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        stream.set_read_timeout(Some(MESSAGE_TIMEOUT))?;
        let (mut greeting, mut count) = ([0; GREETING.len()], [0; 4]);
        stream.read_exact(&mut greeting)?;
        if greeting != GREETING {
            return Err(io::Error::other("it has another version of the handover protocol; restart tollgate instead"));
        }
        stream.read_exact(&mut count)?;
        let sockets = (0..u32::from_le_bytes(count)).map(|_| socket(&stream)).collect::<io::Result<_>>()?;
        Ok(Some((Self { stream }, sockets)))
    }

    /// Checks that each upstream that has an address in the old process has one here too, so that a failure of DNS does not
    /// leave a process in service that can reach no node. An old process of an earlier version names no upstreams.
    pub(super) fn check_upstreams(&self, pools: &[Arc<Pool>]) -> Result<(), String> {
        let with_address = names_in(UPSTREAMS_VARIABLE);
        let is_lost = |pool: &&Arc<Pool>| !pool.has_address() && with_address.contains(&pool.upstream.name);
        pools.iter().find(is_lost).map_or(Ok(()), |pool| {
            let Upstream { name, nodes, .. } = &pool.upstream;
            let hosts: Vec<&str> = nodes.iter().map(|node| node.address.as_str()).collect();
            Err(format!("upstreams.{name}: no address of its nodes is found here: {}", hosts.join(", ")))
        })
    }

    /// Checks that each source of customers and keys that has data in the old process has some here too, as
    /// [`Predecessor::check_upstreams`].
    pub(super) fn check_sources(&self, sources: &[Arc<Refresher>]) -> Result<(), String> {
        let with_data = names_in(SOURCES_VARIABLE);
        let is_lost =
            |source: &&Arc<Refresher>| !source.has_data() && with_data.iter().any(|name| name == source.name());
        sources.iter().find(is_lost).map_or(Ok(()), |source| {
            Err(format!("the source {} cannot be read here, and the old process has its data", source.name()))
        })
    }

    /// The number by which Redis counts the old process, if this one takes over from one and it has one.
    pub(super) fn member() -> Option<u64> {
        std::env::var(HANDOVER_VARIABLE).ok()?;
        std::env::var(MEMBER_VARIABLE).ok()?.parse().ok()
    }

    /// The state file of the old process. One of an earlier version names none.
    pub(super) fn state_file() -> PredecessorFile {
        let path = |variable| std::env::var_os(variable).filter(|path| !path.is_empty()).map(PathBuf::from);
        PredecessorFile { written: path(WRITTEN_STATE_VARIABLE), refused: path(REFUSED_STATE_VARIABLE) }
    }

    /// Tells the old process that only the state is missing. Returns the stream to read the state from.
    pub(super) fn ask_for_state(&mut self) -> io::Result<&mut impl Read> {
        self.stream.write_all(&[READY])?;
        Ok(&mut self.stream)
    }

    /// Tells the old process that this one accepts connections.
    pub(super) fn confirm_serving(mut self) {
        if let Err(error) = self.stream.write_all(&[SERVING]) {
            tracing::warn!(%error, "the old process ended before the new one confirmed the handover");
        }
    }
}

/// The names in a variable that the old process has set.
fn names_in(variable: &str) -> Vec<String> {
    serde_json::from_str(&std::env::var(variable).unwrap_or_default()).unwrap_or_default()
}

fn socket(stream: &UnixStream) -> io::Result<Socket> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = control.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    let owner = if byte == [SUPERVISED_SOCKET] { FileOwner::Supervisor } else { FileOwner::Gateway };
    Ok(Socket::new(descriptors.next().ok_or(ErrorKind::UnexpectedEof)?, owner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_successor_that_ends_before_it_has_read_anything_is_said_to_have_ended() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(theirs);
        let error = UpgradeError::from(send(&ours, &[]).unwrap_err());
        assert!(matches!(error, UpgradeError::SuccessorExited), "{error}");
    }
}
