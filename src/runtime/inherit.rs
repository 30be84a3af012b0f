//! Sockets that are open already: of the process before this one, or of systemd (`LISTEN_FDS`), which keeps them while
//! the gateway restarts.

use std::net::{SocketAddr, TcpListener};

use listenfd::ListenFd;

/// Listening sockets that nobody has taken yet.
#[derive(Debug, Default)]
pub(super) struct Inherited(Vec<(SocketAddr, TcpListener)>);

impl Inherited {
    pub(super) fn new(sockets: Vec<TcpListener>) -> Self {
        let usable = |socket: TcpListener| {
            let address = socket.local_addr().and_then(|address| socket.set_nonblocking(true).map(|()| address));
            let complain = |error| tracing::error!(%error, "a socket that was handed to this process cannot be used");
            Some((address.map_err(complain).ok()?, socket))
        };
        Self(sockets.into_iter().filter_map(usable).collect())
    }

    /// What systemd hands to this process.
    pub(super) fn from_systemd() -> Self {
        let mut handed = ListenFd::from_env();
        let count = handed.len();
        let listener = |position| match handed.take_tcp_listener(position) {
            Ok(listener) => listener,
            Err(error) => {
                tracing::error!(%error, "systemd hands this process something that is no listening TCP socket");
                None
            }
        };
        Self::new((0..count).filter_map(listener).collect())
    }

    pub(super) fn has(&self, address: SocketAddr) -> bool {
        self.0.iter().any(|(of, _)| *of == address)
    }

    /// Those on `address`.
    pub(super) fn take(&mut self, address: SocketAddr) -> Vec<TcpListener> {
        let (taken, left) = std::mem::take(&mut self.0).into_iter().partition(|(of, _)| *of == address);
        self.0 = left;
        let taken: Vec<_> = taken;
        taken.into_iter().map(|(_, socket)| socket).collect()
    }
}

impl Drop for Inherited {
    /// Connections to what is left would wait for ever.
    fn drop(&mut self) {
        for (address, _) in &self.0 {
            tracing::warn!(%address, "a socket that was handed to this process is on no address of the configuration");
        }
    }
}
