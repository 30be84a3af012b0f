//! The client's stream as pingora sees it: one request at a time, and only what can be read in one way; it tells the
//! connection what passes.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
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
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufWriter, ReadBuf};
use tokio::time::timeout;

use super::requests::Requests;
use super::room::Room;
use super::transport::Transport;
use super::{Connection, LINGER, LONGEST_LINGER};

/// For how many bytes a closing connection is still read so that the client can read its answer.
const LINGER_BYTES: usize = 64 << 20;
/// How much is read ahead of a client whose request is not over yet.
const AHEAD: usize = 64 << 10;
/// How much is read at once where it cannot go on as it is.
const PART: usize = 4 << 10;
/// How much is written together: what fits into one packet.
const PACKET: usize = 1460;

/// The client's stream, and what was read of it ahead of time.
pub(super) struct Shared {
    /// A head and a small body become one packet: pingora writes them one after the other, and then flushes.
    stream: BufWriter<Transport>,
    ahead: BytesMut,
    /// How much of that may go on.
    admitted: usize,
    requests: Requests,
    /// For what is written; of HTTP/2 the streams have their own.
    room: Arc<Room>,
    /// Whether something that is written is not over, for want of room.
    is_held_up: bool,
}

impl Shared {
    /// A stream of which `ahead` was read already, and on which `requests` come.
    pub(super) fn new(transport: Transport, ahead: BytesMut, requests: Requests) -> Self {
        let stream = BufWriter::with_capacity(PACKET, transport);
        Self { stream, ahead, admitted: 0, requests, room: Arc::default(), is_held_up: false }
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
            match self.poll_read_ahead(task) {
                Poll::Pending => return false,
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(_) => return true,
            }
        }
        false
    }

    /// Reads what nobody is interested in any more; 0 at the end.
    fn poll_discard(&mut self, task: &mut TaskContext<'_>) -> Poll<io::Result<usize>> {
        let mut part = [MaybeUninit::uninit(); 16 * PART];
        let mut buffer = ReadBuf::uninit(&mut part);
        ready!(Pin::new(&mut self.stream).poll_read(task, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    /// Reads a part more ahead; `false` at the end.
    fn poll_read_ahead(&mut self, task: &mut TaskContext<'_>) -> Poll<io::Result<bool>> {
        let mut part = [MaybeUninit::uninit(); PART];
        let mut buffer = ReadBuf::uninit(&mut part);
        ready!(Pin::new(&mut self.stream).poll_read(task, &mut buffer))?;
        self.ahead.extend_from_slice(buffer.filled());
        Poll::Ready(Ok(!buffer.filled().is_empty()))
    }

    /// The room for what goes to the client.
    pub(super) fn room(&self) -> Arc<Room> {
        Arc::clone(&self.room)
    }

    /// Reads ahead until a whole head may go on; `false` if the client ends before.
    pub(super) fn poll_head(&mut self, task: &mut TaskContext<'_>, connection: &Connection) -> Poll<bool> {
        while self.admitted == 0 {
            self.turn_to_next(connection);
            if self.requests.is_over() {
                return Poll::Ready(false);
            }
            if !self.ahead.is_empty() {
                match ready!(admit(&mut self.requests, &self.ahead, connection)) {
                    Ok(0) => {}
                    Ok(admitted) => {
                        self.admitted = admitted;
                        break;
                    }
                    Err(_) => return Poll::Ready(false),
                }
            }
            match self.poll_read_ahead(task) {
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(_) => return Poll::Ready(false),
                Poll::Pending => {
                    connection.awaits();
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(true)
    }

    /// Behind a request that is over comes the next one, once it may.
    fn turn_to_next(&mut self, connection: &Connection) {
        if self.requests.is_over()
            && let Some(next) = connection.next_requests()
        {
            self.requests = next;
        }
    }

    /// Writes `length` bytes, or a part of them, and tells the connection how long that waits.
    fn poll_out(
        &mut self,
        task: &mut TaskContext<'_>,
        length: usize,
        connection: &Connection,
        write: impl FnOnce(Pin<&mut BufWriter<Transport>>, &mut TaskContext<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let stream = Pin::new(&mut self.stream);
        if self.requests.is_http2() {
            return write(stream, task);
        }
        let written = self.room.poll(task, |task| write(stream, task));
        let is_held_up = match &written {
            Poll::Pending => true,
            Poll::Ready(Ok(written)) => self.is_held_up && *written < length,
            Poll::Ready(Err(_)) => false,
        };
        if is_held_up != self.is_held_up {
            self.is_held_up = is_held_up;
            connection.is_held_up(is_held_up);
        }
        written
    }

    /// Reads what may go on: of one request at a time, and nothing that two readers could read in two ways.
    fn poll_admitted(
        &mut self,
        task: &mut TaskContext<'_>,
        buffer: &mut ReadBuf<'_>,
        connection: &Connection,
    ) -> Poll<io::Result<()>> {
        loop {
            if self.admitted > 0 {
                let length = self.admitted.min(buffer.remaining());
                buffer.put_slice(&self.ahead[..length]);
                self.ahead.advance(length);
                self.admitted -= length;
                return Poll::Ready(Ok(()));
            }
            self.turn_to_next(connection);
            if !self.ahead.is_empty() {
                self.admitted = ready!(admit(&mut self.requests, &self.ahead, connection))?;
                if self.admitted > 0 {
                    continue;
                }
                if self.ahead.len() >= AHEAD && self.requests.is_over() {
                    return Poll::Pending;
                }
                if !ready!(self.poll_read_ahead(task))? {
                    return Poll::Ready(Ok(()));
                }
                continue;
            }
            // most of what comes goes on at once, from where it was read to
            let before = buffer.filled().len();
            ready!(Pin::new(&mut self.stream).poll_read(task, buffer))?;
            let came = buffer.filled().get(before..).unwrap_or_default();
            if came.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let admitted = match admit(&mut self.requests, came, connection) {
                Poll::Ready(Ok(admitted)) => admitted,
                refused => {
                    buffer.set_filled(before);
                    return refused.map_ok(drop);
                }
            };
            self.ahead.extend_from_slice(came.get(admitted..).unwrap_or_default());
            buffer.set_filled(before + admitted);
            if admitted > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

/// How many of `bytes` may go on. A head that is refused is answered by the connection, and nobody reads on; within a body
/// it is an error.
fn admit(requests: &mut Requests, bytes: &[u8], connection: &Connection) -> Poll<io::Result<usize>> {
    let in_head = requests.is_in_head();
    let admitted = requests.admit(bytes);
    if in_head && admitted == Ok(0) && !matches!(bytes, b"\r" | b"\r\n") {
        // it goes on when all of it is here, and has begun now
        connection.received(0);
    }
    match admitted {
        Ok(admitted) => Poll::Ready(Ok(admitted)),
        Err(refused) if in_head => {
            connection.refuse(refused.into());
            Poll::Pending
        }
        Err(refused) => Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, refused))),
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

    /// Closes this side, then reads on as long as something comes, whatever it is: closing a socket with unread bytes
    /// would make the client's system throw away the answer that it has not read yet.
    pub(super) async fn linger(&mut self) {
        if AsyncWriteExt::shutdown(self).await.is_err() {
            return;
        }
        let mut drained = 0;
        let drain = async {
            let next = || poll_fn(|task| self.shared.lock().poll_discard(task));
            while drained < LINGER_BYTES {
                match timeout(LINGER.to_duration(), next()).await {
                    Ok(Ok(length)) if length > 0 => drained += length,
                    _ => return,
                }
            }
        };
        // However it ends, the connection is closed next.
        drop(timeout(LONGEST_LINGER.to_duration(), drain).await);
    }

    /// Whether the client is in the middle of a request, or sent more behind it.
    pub(super) fn is_within_request(&self) -> bool {
        let shared = self.shared.lock();
        !shared.ahead.is_empty() || shared.requests.is_within()
    }

    /// Who is at the other end.
    pub(super) fn client(&self) -> Option<IpAddr> {
        let socket = || self.get_socket_digest()?.peer_addr()?.as_inet().map(SocketAddr::ip);
        self.connection.announced().or_else(socket)
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
        let (polled, in_frame) = {
            let mut shared = self.shared.lock();
            (shared.poll_admitted(task, buffer, &self.connection), shared.requests.is_in_frame())
        };
        if polled.is_pending() {
            self.connection.awaits();
            return Poll::Pending;
        }
        ready!(polled)?;
        let came = buffer.filled().len().saturating_sub(before);
        if came > 0 {
            self.connection.received(came);
            self.connection.is_in_frame(in_frame);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(self: Pin<&mut Self>, task: &mut TaskContext<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut shared = self.shared.lock();
        if shared.requests.is_http1() {
            ready!(self.connection.sending(bytes));
        }
        shared.poll_out(task, bytes.len(), &self.connection, |stream, task| stream.poll_write(task, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        task: &mut TaskContext<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut shared = self.shared.lock();
        if shared.requests.is_http1() {
            ready!(self.connection.sending(slices.first().map_or(&[], |slice| slice)));
        }
        let length = slices.iter().map(|slice| slice.len()).sum();
        shared.poll_out(task, length, &self.connection, |stream, task| stream.poll_write_vectored(task, slices))
    }

    fn is_write_vectored(&self) -> bool {
        self.shared.lock().stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        let mut shared = self.shared.lock();
        shared.poll_out(task, 0, &self.connection, |stream, task| stream.poll_flush(task).map_ok(|()| 0)).map_ok(drop)
    }

    fn poll_shutdown(self: Pin<&mut Self>, task: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.shared.lock().stream).poll_shutdown(task)
    }
}

#[async_trait]
impl Shutdown for WatchedStream {
    async fn shutdown(&mut self) {
        // however that ends, the stream is dropped next
        drop(AsyncWriteExt::shutdown(self).await);
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
