//! Listening sockets of both kinds: at an address, and at a path in the file system.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use pingora::protocols::l4::stream::Stream as PingoraStream;
use pingora::protocols::{GetSocketDigest, SocketDigest, Stream};
use socket2::{Domain, SockAddr, Socket as Socket2, Type};

use crate::http::socket::RawSocket;
use crate::ruleset::{Endpoint, SocketPath};

/// The maximum number of connections that the system queues for a socket; its own limit may be lower.
pub(super) const BACKLOG: i32 = 65_535;

/// A listening socket.
#[derive(Debug)]
pub(super) struct Socket {
    socket: Socket2,
    /// The owner of its file, if it has one.
    owner: FileOwner,
}

/// The owner of a socket's file, which sets its mode and removes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileOwner {
    /// This gateway, or the one that handed over to it.
    Gateway,
    /// The process that started the gateway, such as systemd.
    Supervisor,
}

impl Socket {
    /// A listening socket that is already open; `owner` has its file if it has one.
    pub(super) fn new(socket: impl Into<Socket2>, owner: FileOwner) -> Self {
        Self { socket: socket.into(), owner }
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { socket: self.socket.try_clone()?, owner: self.owner })
    }

    pub(super) fn set_nonblocking(&self) -> io::Result<()> {
        self.socket.set_nonblocking(true)
    }

    /// Whether the socket is at `endpoint`.
    pub(super) fn is_at(&self, endpoint: &Endpoint) -> bool {
        match endpoint {
            Endpoint::Inet(at) => self.inet() == Some(*at),
            Endpoint::Path(at) => self.path().as_ref() == Some(&at.path),
        }
    }

    /// Whether the socket's file belongs to the process that started the gateway.
    pub(super) fn is_supervised(&self) -> bool {
        self.owner == FileOwner::Supervisor
    }

    /// The socket's address and port.
    pub(super) fn inet(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()?.as_socket()
    }

    /// The socket's path in the file system.
    pub(super) fn path(&self) -> Option<PathBuf> {
        self.socket.local_addr().ok()?.as_pathname().map(Path::to_owned)
    }

    /// The socket, which is not at a path.
    pub(super) fn into_tcp(self) -> TcpListener {
        self.socket.into()
    }

    /// The socket's address for log lines.
    pub(super) fn name(&self) -> String {
        match self.socket.local_addr() {
            Ok(at) => match at.as_socket() {
                Some(at) => at.to_string(),
                None => format!("unix:{}", at.as_pathname().unwrap_or(Path::new("")).display()),
            },
            Err(error) => error.to_string(),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

// === accepting ===

/// The maximum number of unsent bytes of a response that the kernel takes. Without it, the kernel takes megabytes for a
/// client that reads nothing, and the gateway does not notice.
const MAX_UNSENT: u32 = 32 << 10;

/// A listening socket on the worker's runtime, which accepts connections.
#[derive(Debug)]
pub(super) enum Acceptor {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Acceptor {
    pub(super) fn new(Socket { socket, .. }: Socket) -> io::Result<Self> {
        if socket.local_addr()?.is_unix() {
            return tokio::net::UnixListener::from_std(socket.into()).map(Self::Unix);
        }
        // each accepted connection inherits this option
        socket.set_tcp_notsent_lowat(MAX_UNSENT)?;
        tokio::net::TcpListener::from_std(socket.into()).map(Self::Tcp)
    }

    /// Accepts the next connection.
    pub(super) async fn accept(&self) -> io::Result<RawSocket> {
        match self {
            Self::Tcp(socket) => {
                let (stream, _) = socket.accept().await?;
                // fails only on a connection that has ended, and then the first read reports it
                drop(stream.set_nodelay(true));
                Ok(RawSocket::Tcp(stream))
            }
            Self::Unix(socket) => socket.accept().await.map(|(stream, _)| RawSocket::Unix(stream)),
        }
    }
}

/// A connection with the data that pingora's own listener adds.
pub(super) fn for_pingora(socket: RawSocket) -> Stream {
    let digest = SocketDigest::from_raw_fd(socket.as_fd().as_raw_fd());
    let mut stream = match socket {
        RawSocket::Tcp(stream) => {
            // the digest is new, so `set` succeeds; without a value, pingora would ask the socket
            drop(digest.peer_addr.set(stream.peer_addr().ok().map(Into::into)));
            PingoraStream::from(stream)
        }
        RawSocket::Unix(stream) => {
            drop(digest.peer_addr.set(None));
            PingoraStream::from(stream)
        }
    };
    stream.set_socket_digest(digest);
    Box::new(stream)
}

// === paths ===

/// A socket at `at`. Removes the socket of an earlier process there, and no other file.
pub(super) fn open_path(at: &SocketPath) -> io::Result<Socket> {
    clear(&at.path)?;
    let socket = Socket2::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SockAddr::unix(&at.path)?).map_err(|error| match (error.kind(), at.path.parent()) {
        (ErrorKind::NotFound, Some(folder)) => io::Error::other(format!("there is no directory {}", folder.display())),
        _ => error,
    })?;
    // no client can connect before the socket listens
    set_mode(at)?;
    socket.listen(BACKLOG)?;
    Ok(Socket::new(socket, FileOwner::Gateway))
}

/// Sets who may connect.
pub(super) fn set_mode(at: &SocketPath) -> io::Result<()> {
    fs::set_permissions(&at.path, fs::Permissions::from_mode(at.mode))
}

/// Removes the socket at `path` if no process listens on it.
fn clear(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found?,
    };
    if !found.file_type().is_socket() {
        return Err(io::Error::other("the file at this path is not a socket; move it, or configure another path"));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path),
        Ok(_) => Err(io::Error::other("another process listens on this socket (address in use)")),
        Err(error) => Err(error),
    }
}

/// Sockets in the file system that this process removes: at its end, unless a successor has taken them over, or when it
/// has taken over.
#[derive(Debug, Default)]
pub(super) struct OwnedSocketFiles(Vec<(PathBuf, FileIdentity)>);

/// A file's identity: its device, its inode number, which the system reuses, and the time of its last change.
type FileIdentity = (u64, u64, i64, i64);

impl OwnedSocketFiles {
    /// The sockets at `paths`. Records each file's identity, to recognize a later file at the path.
    pub(super) fn at(paths: impl Iterator<Item = PathBuf>) -> Self {
        Self(paths.filter_map(|path| identity(&path).map(|identity| (path, identity))).collect())
    }

    /// Removes the sockets that are still the same files.
    pub(super) fn clear(&self) {
        for (path, known) in &self.0 {
            if identity(path) == Some(*known)
                && let Err(error) = fs::remove_file(path)
            {
                tracing::warn!(path = %path.display(), %error, "cannot remove the socket");
            }
        }
    }
}

fn identity(path: &Path) -> Option<FileIdentity> {
    fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino(), found.mtime(), found.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: PathBuf) -> SocketPath {
        SocketPath { path, mode: 0o600 }
    }

    #[test]
    fn only_a_socket_that_nobody_listens_on_is_taken_away() {
        let folder = std::env::temp_dir().join(format!("tollgate-socket-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.sock");
        let socket = open_path(&at(path.clone())).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(open_path(&at(path.clone())).unwrap_err().to_string().contains("in use"));
        let endpoint = Endpoint::Path(at(path.clone()));
        assert!(socket.is_at(&endpoint) && socket.inet().is_none());
        let left = OwnedSocketFiles::at([path.clone()].into_iter());
        drop(socket);
        let began = fs::metadata(&path).unwrap().modified().unwrap();
        // the file system's times are coarse
        while fs::metadata(&path).is_ok_and(|found| found.modified().unwrap() == began) {
            drop(open_path(&at(path.clone())).unwrap());
        }
        left.clear();
        assert!(path.exists(), "it is another one now");
        OwnedSocketFiles::at([path.clone()].into_iter()).clear();
        assert!(!path.exists());
        fs::write(&path, "important").unwrap();
        assert!(open_path(&at(path.clone())).unwrap_err().to_string().contains("not a socket"));
        assert_eq!(fs::read(&path).unwrap(), b"important");
        let nowhere = open_path(&at(folder.join("none/a.sock"))).unwrap_err();
        assert!(nowhere.to_string().contains("no directory"), "{nowhere}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
