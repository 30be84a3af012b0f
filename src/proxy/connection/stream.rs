//! The client's stream as pingora sees it: it tells the connection what passes.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskContext, Poll, Waker, ready};

use async_trait::async_trait;
use bytes::{Buf, BytesMut};
use parking_lot::Mutex;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::{
    GetProxyDigest, GetSocketDigest, GetTimingDigest, Peek, Shutdown, SocketDigest, Ssl, Stream, TimingDigest,
    UniqueID, UniqueIDType,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufWriter, ReadBuf};
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use super::{Connection, LINGER};

/// For how many bytes a closing connection is still read so that the client can read its answer.
const LINGER_BYTES: usize = 64 << 20;
/// How much is read ahead of a client that waits in a queue.
const AHEAD: usize = 64 << 10;
/// How much is written together: what fits into one packet.
const PACKET: usize = 1460;

/// What bytes go over.
pub(super) enum Transport {
    Clear(Stream),
    Tls(Box<TlsStream<Stream>>),
}

/// The client's stream, and what was read of it ahead of time.
pub(super) struct Shared {
    /// A head and a small body become one packet: pingora writes them one after the other, and then flushes.
    stream: BufWriter<Transport>,
    ahead: BytesMut,
}

impl Shared {
    pub(super) fn new(transport: Transport, ahead: BytesMut) -> Self {
        Self { stream: BufWriter::with_capacity(PACKET, transport), ahead }
    }

    /// What pingora knows of the socket.
    fn socket(&self) -> &Stream {
        match self.stream.get_ref() {
            Transport::Clear(stream) => stream,
            Transport::Tls(stream) => stream.get_ref().0,
        }
    }

    /// Reads ahead to see whether the client is still there.
    pub(super) fn client_is_gone(&mut self, task: &mut TaskContext<'_>) -> bool {
        while self.ahead.len() < AHEAD {
            let mut chunk = [0; 4096];
            let mut buffer = ReadBuf::new(&mut chunk);
            match Pin::new(&mut self.stream).poll_read(task, &mut buffer) {
                Poll::Pending => return false,
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => self.ahead.extend_from_slice(buffer.filled()),
                Poll::Ready(_) => return true,
            }
        }
        false
    }
}

impl AsyncRead for Transport {
    fn poll_read(self: Pin<&mut Self>, task: &mut TaskContext<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Clear(stream) => Pin::new(stream).poll_read(task, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(task, buffer),
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(self: Pin<&mut Self>, task: &mut TaskContext<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Clear(stream) => Pin::new(stream).poll_write(task, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(task, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        task: &mut TaskContext<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Clear(stream) => Pin::new(stream).poll_write_vectored(task, slices),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(task, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Clear(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Clear(stream) => Pin::new(stream).poll_flush(task),
            Self::Tls(stream) => Pin::new(stream).poll_flush(task),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Clear(stream) => Pin::new(stream).poll_shutdown(task),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(task),
        }
    }
}

impl Drop for Shared {
    /// The start of an answer that breaks off goes out as far as the system takes it without waiting.
    fn drop(&mut self) {
        drop(Pin::new(&mut self.stream).poll_flush(&mut TaskContext::from_waker(Waker::noop())));
    }
}

/// Tells the connection what passes.
pub(super) struct WatchedStream {
    pub(super) shared: Arc<Mutex<Shared>>,
    pub(super) connection: Arc<Connection>,
}

impl WatchedStream {
    /// The same stream once more.
    pub(super) fn again(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), connection: Arc::clone(&self.connection) }
    }
}

impl fmt::Debug for WatchedStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WatchedStream")
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(self: Pin<&mut Self>, task: &mut TaskContext<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let mut shared = self.shared.lock();
        if shared.ahead.is_empty() {
            let polled = Pin::new(&mut shared.stream).poll_read(task, buffer);
            if polled.is_pending() {
                drop(shared);
                self.connection.awaits();
                return Poll::Pending;
            }
            ready!(polled)?;
        } else {
            let length = shared.ahead.len().min(buffer.remaining());
            buffer.put_slice(&shared.ahead[..length]);
            shared.ahead.advance(length);
        }
        drop(shared);
        let came = buffer.filled().len().saturating_sub(before);
        if came > 0 {
            self.connection.received(came);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(self: Pin<&mut Self>, task: &mut TaskContext<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.connection.sending(bytes);
        Pin::new(&mut self.shared.lock().stream).poll_write(task, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        task: &mut TaskContext<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.connection.sending(slices.first().map_or(&[], |slice| slice));
        Pin::new(&mut self.shared.lock().stream).poll_write_vectored(task, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.shared.lock().stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.shared.lock().stream).poll_flush(task)
    }

    fn poll_shutdown(self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.shared.lock().stream).poll_shutdown(task)
    }
}

#[async_trait]
impl Shutdown for WatchedStream {
    /// Closes this side, then reads on for a moment: closing a socket with unread bytes would make the client's system
    /// throw away the answer that it has not read yet.
    async fn shutdown(&mut self) {
        if AsyncWriteExt::shutdown(self).await.is_err() {
            return;
        }
        let connection = Arc::clone(&self.connection);
        connection.set_deadline(None);
        let drain = async {
            let (mut chunk, mut drained) = ([0; 4096], 0);
            while drained < LINGER_BYTES {
                match self.read(&mut chunk).await {
                    Ok(length) if length > 0 => drained += length,
                    _ => return,
                }
            }
        };
        // However it ends, the connection is closed next.
        drop(timeout(LINGER.to_duration(), drain).await);
    }
}

impl UniqueID for WatchedStream {
    fn id(&self) -> UniqueIDType {
        self.shared.lock().socket().id()
    }
}

impl Ssl for WatchedStream {
    fn get_ssl_digest(&self) -> Option<Arc<pingora::protocols::tls::SslDigest>> {
        self.shared.lock().socket().get_ssl_digest()
    }

    /// HTTP/1.1, as far as pingora has to know: what speaks HTTP/2 goes another way.
    fn selected_alpn_proto(&self) -> Option<pingora::protocols::ALPN> {
        None
    }
}

impl GetTimingDigest for WatchedStream {
    fn get_timing_digest(&self) -> Vec<Option<TimingDigest>> {
        self.shared.lock().socket().get_timing_digest()
    }
}

impl GetProxyDigest for WatchedStream {
    fn get_proxy_digest(&self) -> Option<Arc<ProxyDigest>> {
        self.shared.lock().socket().get_proxy_digest()
    }
}

impl GetSocketDigest for WatchedStream {
    fn get_socket_digest(&self) -> Option<Arc<SocketDigest>> {
        self.shared.lock().socket().get_socket_digest()
    }
}

impl Peek for WatchedStream {}
