//! A connection between two gateways: the handshake, then frames in both directions.

use std::io;
use std::net::SocketAddr;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};

use super::handshake::{
    FrameError, HandshakeError, Hello, MAX_MESSAGE_BYTES, Proof, Role, Seal, Secret, Transcript, check_compatible,
};
use super::platform::{Platform, Stream};
use super::wire::VERSION;

/// This gateway's identity, as it presents it to others.
#[derive(Clone)]
pub(super) struct OwnIdentity {
    pub(super) address: SocketAddr,
    pub(super) process: u64,
    pub(super) secret: Secret,
}

/// A connection after a successful handshake.
pub(super) struct Connection {
    pub(super) reader: Reader,
    pub(super) writer: Writer,
    /// The other side's first message.
    pub(super) other: Hello,
}

/// The reason why a connection failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectError {
    /// An error of the operating system.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// This side refused.
    #[error("{0}")]
    Refused(HandshakeError),
    /// The other side refused.
    #[error("refused by the other side: {0}")]
    RefusedThere(HandshakeError),
    /// The other side does not speak this protocol.
    #[error("it does not speak the cluster's protocol")]
    Foreign,
}

/// Connects to `to`.
pub(super) async fn connect(
    own: &OwnIdentity,
    platform: &dyn Platform,
    to: SocketAddr,
) -> Result<Connection, ConnectError> {
    let mut stream = platform.connect(to).await?;
    let hello = own.hello(to);
    write(&mut stream, &hello).await?;
    let other: Hello = read(&mut stream).await?;
    let transcript = Transcript::new(&own.secret, &hello, &other);
    if let Err(refusal) = check_compatible(&hello, &other) {
        write(&mut stream, &Proof::Refused(refusal)).await?;
        return Err(ConnectError::Refused(refusal));
    }
    write(&mut stream, &transcript.proof(Role::Initiator)).await?;
    let answer: Proof = read(&mut stream).await?;
    transcript.check(Role::Acceptor, &answer).map_err(|refusal| ConnectError::refused(&answer, refusal))?;
    Ok(Connection::new(stream, &transcript, Role::Initiator, other))
}

/// Performs the handshake on an accepted connection. `Err` holds the address that the other side claims, if it sent one.
pub(super) async fn accept(
    own: &OwnIdentity,
    mut stream: Stream,
) -> Result<Connection, (Option<SocketAddr>, ConnectError)> {
    let other: Hello = read(&mut stream).await.map_err(|failed| (None, failed))?;
    let of = |failed: ConnectError| (Some(other.from), failed);
    let hello = own.hello(other.from);
    write(&mut stream, &hello).await.map_err(of)?;
    let transcript = Transcript::new(&own.secret, &other, &hello);
    let answer: Proof = read(&mut stream).await.map_err(of)?;
    let believed = transcript.check(Role::Initiator, &answer).and_then(|()| check_compatible(&hello, &other));
    if let Err(refusal) = believed {
        // a client that has closed the connection does not need the refusal
        drop(write(&mut stream, &Proof::Refused(refusal)).await);
        return Err(of(ConnectError::refused(&answer, refusal)));
    }
    write(&mut stream, &transcript.proof(Role::Acceptor)).await.map_err(of)?;
    Ok(Connection::new(stream, &transcript, Role::Acceptor, other.clone()))
}

impl ConnectError {
    const fn refused(answer: &Proof, refusal: HandshakeError) -> Self {
        match answer {
            Proof::Tag(_) => Self::Refused(refusal),
            Proof::Refused(_) => Self::RefusedThere(refusal),
        }
    }
}

impl OwnIdentity {
    fn hello(&self, to: SocketAddr) -> Hello {
        Hello { version: VERSION, nonce: rand::random(), process: self.process, from: self.address, to }
    }
}

/// Writes a message of the handshake behind two bytes with its length.
async fn write(stream: &mut Stream, message: &impl Serialize) -> Result<(), ConnectError> {
    let message = postcard::to_stdvec(message).map_err(io::Error::other)?;
    let length = u16::try_from(message.len()).map_err(io::Error::other)?;
    Ok(stream.writer.write_all(&[&length.to_le_bytes(), &*message].concat()).await?)
}

async fn read<T: DeserializeOwned>(stream: &mut Stream) -> Result<T, ConnectError> {
    let length = usize::from(stream.reader.read_u16_le().await?);
    if length > MAX_MESSAGE_BYTES {
        return Err(ConnectError::Foreign);
    }
    let mut message = vec![0; length];
    stream.reader.read_exact(&mut message).await?;
    postcard::from_bytes(&message).map_err(|_| ConnectError::Foreign)
}

// === frames ===

/// The incoming half of a connection.
pub(super) struct Reader {
    stream: BufReader<Box<dyn AsyncRead + Send + Unpin>>,
    seal: Seal,
    frame: Vec<u8>,
}

/// The outgoing half of a connection.
pub(super) struct Writer {
    stream: Box<dyn AsyncWrite + Send + Unpin>,
    seal: Seal,
    text: Vec<u8>,
    bytes: Vec<u8>,
}

/// A frame with this many bytes is full; the next item begins a new frame.
const FULL_FRAME: usize = 64 << 10;
/// The size of the read buffer, in bytes.
const READ: usize = 64 << 10;

impl Connection {
    fn new(stream: Stream, transcript: &Transcript<'_>, role: Role, other: Hello) -> Self {
        let theirs = match role {
            Role::Initiator => Role::Acceptor,
            Role::Acceptor => Role::Initiator,
        };
        Self {
            reader: Reader {
                stream: BufReader::with_capacity(READ, stream.reader),
                seal: transcript.seal(theirs),
                frame: Vec::new(),
            },
            writer: Writer { stream: stream.writer, seal: transcript.seal(role), text: Vec::new(), bytes: Vec::new() },
            other,
        }
    }
}

impl Reader {
    /// Reads the next frame and returns its content. Not cancel-safe: after a dropped call the connection is unusable.
    pub(super) async fn frame(&mut self) -> io::Result<&[u8]> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length).await?;
        self.frame.resize(Seal::length(length).map_err(broken)?, 0);
        self.stream.read_exact(&mut self.frame).await?;
        self.seal.open(length, &mut self.frame).map_err(broken)
    }
}

impl Writer {
    /// Sends `items` in as many frames as needed; each frame begins with `head`.
    pub(super) async fn send(&mut self, head: Option<u64>, items: &[impl Serialize]) -> io::Result<()> {
        self.bytes.clear();
        let mut items = items.iter().peekable();
        while items.peek().is_some() {
            self.text.clear();
            if let Some(head) = head {
                self.put(&head)?;
            }
            while self.text.len() < FULL_FRAME
                && let Some(item) = items.next()
            {
                self.put(item)?;
            }
            self.seal.close(&self.text, &mut self.bytes).map_err(broken)?;
        }
        self.stream.write_all(&self.bytes).await
    }

    fn put(&mut self, item: &impl Serialize) -> io::Result<()> {
        self.text = postcard::to_extend(item, std::mem::take(&mut self.text)).map_err(io::Error::other)?;
        Ok(())
    }
}

fn broken(broken: FrameError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, broken)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::duplex;
    use tokio::task::yield_now;

    use super::super::session::Outgoing;
    use super::*;

    #[derive(Serialize)]
    struct Item {
        #[serde(skip)]
        _kept: Arc<()>,
    }

    #[tokio::test]
    async fn an_item_is_kept_until_it_is_written() {
        let hello = |to| Hello { version: VERSION, nonce: [1; 32], process: 1, from: to, to };
        let address = SocketAddr::from(([10, 0, 0, 1], 7946));
        let secret = Secret::of(b"one secret of a cluster");
        let transcript = Transcript::new(&secret, &hello(address), &hello(address));
        let (here, mut there) = duplex(1);
        let (reader, writer) = tokio::io::split(here);
        let connection = Connection::new(Stream::new(reader, writer), &transcript, Role::Acceptor, hello(address));
        let ((queue, queued), kept) = (Outgoing::new(), Arc::new(()));
        tokio::spawn(async move { queued.serve(connection.writer, None, std::future::pending()).await });
        queue.push(Item { _kept: Arc::clone(&kept) });
        yield_now().await;
        assert_eq!(Arc::strong_count(&kept), 2);
        tokio::spawn(async move { there.read_to_end(&mut Vec::new()).await });
        for _ in 0..1000 {
            yield_now().await;
        }
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
