//! Sockets that are already open: from the process before this one, or from systemd (`LISTEN_FDS`), which keeps them while
//! the gateway restarts.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;

use listenfd::ListenFd;

use super::socket::{FileOwner, OwnedSocketFiles, Socket};
use crate::ruleset::Endpoint;

/// The variable that tells a process that its standard input is the socket to the old process.
pub(super) const HANDOVER_VARIABLE: &str = "TOLLGATE_HANDOVER";
/// The variables in which systemd describes its sockets.
pub(super) const SYSTEMD_VARIABLES: [&str; 3] = ["LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"];

/// Inherited listening sockets that are not in use yet.
#[derive(Debug, Default)]
pub(super) struct Inherited(Vec<Socket>);

impl Inherited {
    pub(super) fn new(sockets: Vec<Socket>) -> Self {
        let is_usable = |socket: &Socket| {
            let usable = socket.set_nonblocking();
            usable.inspect_err(|error| tracing::error!(%error, "cannot use an inherited socket; it is ignored")).is_ok()
        };
        Self(sockets.into_iter().filter(is_usable).collect())
    }

    /// The sockets that systemd passes to this process.
    pub(super) fn from_systemd() -> Self {
        let mut handed = ListenFd::from_env();
        let count = handed.len();
        let mut listener = |position| {
            // each `take` checks the kind of the socket, and leaves a socket of another kind in place
            let tcp = |socket: TcpListener| Socket::new(socket, FileOwner::Gateway);
            let tcp = handed.take_tcp_listener(position).map(|socket| socket.map(tcp));
            let unix = |socket: UnixListener| Socket::new(socket, FileOwner::Supervisor);
            match tcp.or_else(|_| handed.take_unix_listener(position).map(|socket| socket.map(unix))) {
                Ok(listener) => listener,
                Err(error) => {
                    tracing::error!(%error, "systemd passed a descriptor that is not a listening socket; it is ignored");
                    None
                }
            }
        };
        Self::new((0..count).filter_map(&mut listener).collect())
    }

    pub(super) fn has(&self, endpoint: &Endpoint) -> bool {
        self.0.iter().any(|socket| socket.is_at(endpoint))
    }

    /// Whether the process that started the gateway keeps the socket at `endpoint` open, and its file in the file system.
    pub(super) fn is_supervised(&self, endpoint: &Endpoint) -> bool {
        self.0.iter().any(|socket| socket.is_supervised() && socket.is_at(endpoint))
    }

    /// The reason why this process cannot listen on `address`: `error`, or an inherited socket that has its port.
    pub(super) fn explain(&self, address: SocketAddr, error: io::Error) -> io::Error {
        let mut inherited = self.0.iter().filter_map(Socket::inet);
        match inherited.find(|inherited| inherited.port() == address.port()) {
            Some(inherited) if error.kind() == ErrorKind::AddrInUse => io::Error::other(format!(
                "the inherited socket on {inherited} has this port; stop tollgate and start it again, because a socket \
                 that is handed over keeps its address"
            )),
            _ => error,
        }
    }

    /// Takes the sockets at `endpoint`.
    pub(super) fn take(&mut self, endpoint: &Endpoint) -> Vec<Socket> {
        let (taken, left) = std::mem::take(&mut self.0).into_iter().partition(|socket| socket.is_at(endpoint));
        self.0 = left;
        taken
    }

    /// The files of the gateway's own sockets that no listener has taken.
    pub(super) fn files(&self) -> OwnedSocketFiles {
        OwnedSocketFiles::at(self.0.iter().filter(|socket| !socket.is_supervised()).filter_map(Socket::path))
    }
}

impl Drop for Inherited {
    /// Warns about sockets that no listener took: connections to them wait for ever.
    fn drop(&mut self) {
        for socket in &self.0 {
            let address = socket.name();
            tracing::warn!(
                address,
                "an inherited socket is on no address of the configuration; its connections are not accepted"
            );
        }
    }
}
