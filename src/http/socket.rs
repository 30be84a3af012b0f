//! Sockets of clients and upstreams, with or without TLS.

use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use rustix::net::RecvFlags;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsStream;

use super::buffer::Readable;

/// A socket of the operating system.
#[derive(Debug)]
pub enum RawSocket {
    /// A TCP socket.
    Tcp(TcpStream),
    /// A Unix domain socket.
    Unix(UnixStream),
}

/// A socket, with or without TLS.
#[derive(Debug)]
pub enum Socket {
    /// Without TLS.
    Plain(RawSocket),
    /// With TLS.
    Tls(Box<TlsStream<RawSocket>>),
}

impl RawSocket {
    /// The descriptor of the socket, to hand it to another thread.
    pub(super) fn into_descriptor(self) -> io::Result<OwnedFd> {
        Ok(match self {
            Self::Tcp(socket) => socket.into_std()?.into(),
            Self::Unix(socket) => socket.into_std()?.into(),
        })
    }

    /// The socket of a descriptor that another thread handed over.
    pub(super) fn from_descriptor(descriptor: OwnedFd) -> io::Result<Self> {
        Ok(match SockRef::from(&descriptor).local_addr()?.is_unix() {
            true => Self::Unix(UnixStream::from_std(descriptor.into())?),
            false => Self::Tcp(TcpStream::from_std(descriptor.into())?),
        })
    }

    /// The address of the other end; `None` for a Unix domain socket.
    pub fn peer(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(socket) => socket.peer_addr().ok().map(|address| address.ip()),
            Self::Unix(_) => None,
        }
    }

    /// Whether something may have arrived since the socket was last read empty, as far as the runtime knows.
    fn may_be_readable(&self) -> bool {
        // `try_io` calls the closure only if the runtime considers the socket readable
        let tried = match self {
            Self::Tcp(socket) => socket.try_io(Interest::READABLE, || Ok(())),
            Self::Unix(socket) => socket.try_io(Interest::READABLE, || Ok(())),
        };
        tried.is_ok()
    }
}

impl AsFd for RawSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(socket) => socket.as_fd(),
            Self::Unix(socket) => socket.as_fd(),
        }
    }
}

impl Socket {
    fn raw(&self) -> &RawSocket {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(socket) => socket.get_ref().0,
        }
    }

    /// Whether a kept connection is usable: neither bytes nor its end have arrived. Relies on the runtime, which polls
    /// all sockets before it continues, unless `is_asked`: then it asks the operating system.
    pub fn is_silent(&mut self, is_asked: bool) -> bool {
        if !is_asked && !self.raw().may_be_readable() {
            return true;
        }
        let mut byte = [0];
        match rustix::net::recv(self.raw(), &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Err(rustix::io::Errno::AGAIN) => true,
            Err(_) | Ok((0, _)) => false,
            // under TLS these bytes may be a message of TLS itself
            Ok(_) => {
                let mut room = ReadBuf::new(&mut byte);
                let mut task = Context::from_waker(Waker::noop());
                !matches!(self, Self::Plain(_)) && Pin::new(self).poll_read(&mut task, &mut room).is_pending()
            }
        }
    }
}

impl Readable for Socket {
    /// Always ready under TLS: bytes that were already received may not be read yet.
    fn poll_readable(&self, task: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(RawSocket::Tcp(socket)) => socket.poll_read_ready(task),
            Self::Plain(RawSocket::Unix(socket)) => socket.poll_read_ready(task),
            Self::Tls(_) => Poll::Ready(Ok(())),
        }
    }
}

/// Reads from and writes to the socket of the variant at hand.
macro_rules! delegate {
    ($socket:ident { $($variant:ident),+ }) => {
        impl AsyncRead for $socket {
            fn poll_read(self: Pin<&mut Self>, task: &mut Context<'_>, room: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $(Self::$variant(socket) => Pin::new(socket).poll_read(task, room),)+
                }
            }
        }

        impl AsyncWrite for $socket {
            fn poll_write(self: Pin<&mut Self>, task: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    $(Self::$variant(socket) => Pin::new(socket).poll_write(task, bytes),)+
                }
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                task: &mut Context<'_>,
                slices: &[io::IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                match self.get_mut() {
                    $(Self::$variant(socket) => Pin::new(socket).poll_write_vectored(task, slices),)+
                }
            }

            fn is_write_vectored(&self) -> bool {
                true
            }

            fn poll_flush(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $(Self::$variant(socket) => Pin::new(socket).poll_flush(task),)+
                }
            }

            fn poll_shutdown(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<io::Result<()>> {
                match self.get_mut() {
                    $(Self::$variant(socket) => Pin::new(socket).poll_shutdown(task),)+
                }
            }
        }
    };
}

delegate!(RawSocket { Tcp, Unix });
delegate!(Socket { Plain, Tls });
