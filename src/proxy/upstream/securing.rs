//! TLS to upstreams.
//!
//! pingora is built without TLS: what it has takes certificates once and for all when it starts. Here each connection is
//! opened with what is in force, and handed to pingora as the near end of a pair of sockets, between which and the
//! connection bytes are copied. So pingora keeps and reuses it like any other.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use pingora::connectors::L4Connect;
use pingora::http::ResponseHeader;
use pingora::protocols::l4::socket::SocketAddr as PingoraAddress;
use pingora::protocols::l4::stream::Stream;
use pingora::protocols::raw_connect::ProxyDigest;
use pingora::protocols::{Digest, GetProxyDigest};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, OrErr, Result};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy, split};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use crate::tls::TlsClient;

/// How TLS is spoken to the nodes of an upstream. Two are the same if they are made of the same files and name.
pub struct Securing {
    http1: Arc<TlsClient>,
    http2: Arc<TlsClient>,
    /// The name that certificates have to be for, where it is not that of the node.
    name: Option<String>,
    files: u128,
}

impl Securing {
    /// As `client` does it, which is made of `files`.
    pub fn new(client: TlsClient, name: Option<String>, files: u128) -> Self {
        let speaking = |protocol: &[u8]| {
            let mut client = client.clone();
            client.alpn_protocols = vec![protocol.to_vec()];
            Arc::new(client)
        };
        Self { http1: speaking(b"http/1.1"), http2: speaking(b"h2"), name, files }
    }

    /// The way to the node that is called `node` and is at `address`.
    pub(super) fn way_to(&self, address: SocketAddr, node: &str, http2: bool) -> Way {
        let host = node.rsplit_once(':').map_or(node, |(host, _)| host);
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = self.name.as_deref().unwrap_or(host).to_owned();
        let client = Arc::clone(if http2 { &self.http2 } else { &self.http1 });
        Way { address, name, client, files: self.files, http2 }
    }
}

impl PartialEq for Securing {
    fn eq(&self, other: &Self) -> bool {
        (self.files, &self.name) == (other.files, &other.name)
    }
}

impl fmt::Debug for Securing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Securing").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The way to one node.
pub(super) struct Way {
    address: SocketAddr,
    name: String,
    client: Arc<TlsClient>,
    files: u128,
    http2: bool,
}

impl Way {
    /// The node for pingora. Connections are kept for those that go to the same address on the same terms.
    pub(super) fn peer(self) -> HttpPeer {
        let mut terms = DefaultHasher::new();
        (self.address, &self.name, self.files, self.http2).hash(&mut terms);
        // Of a kept connection pingora asks whether it leads to the peer's address, which the near end of a pair cannot
        // tell. It does not ask of the address that stands for any.
        let mut peer = HttpPeer::new((Ipv4Addr::UNSPECIFIED, self.address.port()), false, String::new());
        peer.group_key = terms.finish();
        peer.options.custom_l4 = Some(Arc::new(self));
        peer
    }
}

impl fmt::Debug for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Way").field("address", &self.address).field("name", &self.name).finish_non_exhaustive()
    }
}

#[async_trait]
impl L4Connect for Way {
    /// `_address` is that of the peer, which stands for any.
    async fn connect(&self, _address: &PingoraAddress) -> Result<Stream> {
        let address = self.address;
        let stream = TcpStream::connect(address).await;
        let stream = stream.or_err_with(ErrorType::ConnectError, || format!("cannot connect to {address}"))?;
        stream.set_nodelay(true).or_err(ErrorType::SocketError, "cannot set up the socket")?;
        let name = ServerName::try_from(self.name.clone())
            .or_err_with(ErrorType::TLSHandshakeFailure, || format!("{} cannot be the name of a server", self.name))?;
        let stream = TlsConnector::from(Arc::clone(&self.client)).connect(name, stream).await;
        let stream =
            stream.or_err_with(ErrorType::TLSHandshakeFailure, || format!("cannot speak TLS with {address}"))?;
        if self.http2 && stream.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Error::e_explain(ErrorType::TLSHandshakeFailure, format!("{address} does not speak HTTP/2"));
        }
        let (near, far) = UnixStream::pair().or_err(ErrorType::SocketError, "cannot open a pair of sockets")?;
        let ending = Arc::new(Ending::default());
        tokio::spawn(carry(far, stream, Arc::clone(&ending)));
        let mut near = Stream::from(near);
        near.set_proxy_digest(ProxyDigest::new(Box::new(ResponseHeader::build(200, Some(0))?), Some(Box::new(ending))));
        Ok(near)
    }
}

/// How the node ended a connection. At the near end of the pair all ends look the same.
#[derive(Debug, Default)]
pub struct Ending {
    cut_off: AtomicBool,
}

impl Ending {
    /// How the connection ends that pingora tells this of; `None` of one in the clear, whose end is what it looks like.
    pub fn of(digest: &Digest) -> Option<Arc<Self>> {
        let user_data = digest.proxy_digest.as_ref()?.user_data.as_ref()?;
        user_data.downcast_ref().map(Arc::clone)
    }

    /// Whether the node, or somebody on the way, cut the connection off without saying that this is the end (RFC 8446,
    /// section 6.1). Known as soon as the near end is at its end.
    pub fn is_cut_off(&self) -> bool {
        self.cut_off.load(Ordering::Acquire)
    }
}

/// Copies between the two until one of them ends.
async fn carry(far: UnixStream, secured: impl AsyncRead + AsyncWrite, ending: Arc<Ending>) {
    let (mut from_near, mut to_near) = split(far);
    let (mut from_node, mut to_node) = split(secured);
    tokio::select! {
        _ended = copy(&mut from_near, &mut to_node) => {}
        ended = copy(&mut from_node, &mut to_near) => ending.cut_off.store(ended.is_err(), Ordering::Release),
    }
    // Whether the node hears of it makes no difference any more.
    drop(to_node.shutdown().await);
}
