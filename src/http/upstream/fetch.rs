//! The gateway's own requests to servers that are not upstreams: each on a new connection, with the response in memory.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use ::http::Uri;
use ::http::uri::Scheme;
use tokio::net::lookup_host;

use super::connect::{connect, exchange};
use super::{Address, Http1Connection, OutgoingRequest, Server, TlsSettings, Upstream, UpstreamError};
use crate::fields::Fields;
use crate::http::body::Framing;
use crate::http::head::RequestHead;
use crate::http::socket::Socket;
use crate::tls::TlsClient;

/// The `User-Agent` of the gateway.
const USER_AGENT: &str = concat!("tollgate/", env!("CARGO_PKG_VERSION"));

/// A request that the gateway itself makes. No `Debug`: its fields and its body may hold secrets.
#[derive(Clone, Copy)]
pub struct OwnRequest<'a> {
    /// The method.
    pub method: &'a str,
    /// The absolute URL, with the scheme `http` or `https`.
    pub url: &'a Uri,
    /// The TLS settings, which `https` needs.
    pub tls: Option<&'a Arc<TlsClient>>,
    /// Fields in addition to the standard ones.
    pub fields: &'a [(&'a str, &'a str)],
    /// The body.
    pub body: &'a [u8],
    /// The maximum size of the response's body, in bytes.
    pub max_answer: usize,
}

/// The response to a request of the gateway's own.
#[derive(Debug)]
pub struct Fetched {
    /// The status.
    pub status: u16,
    /// The fields.
    pub fields: Fields,
    /// The whole body.
    pub body: Vec<u8>,
}

/// The reason why there is no response. Holds nothing of the request or the response.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The URL names no server that the gateway can connect to.
    #[error("is not a URL that can be fetched")]
    BadUrl,
    /// The connection failed or could not be opened.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The response is not valid HTTP.
    #[error("{0}")]
    Unreadable(UpstreamError),
    /// The response is longer than allowed.
    #[error("the response is longer than {} KiB", .0 >> 10)]
    TooLong(usize),
}

impl From<UpstreamError> for FetchError {
    fn from(error: UpstreamError) -> Self {
        match error {
            UpstreamError::Io(error) | UpstreamError::Reset(error) | UpstreamError::Refused(error) => Self::Io(error),
            unreadable @ UpstreamError::Unreadable(_) => Self::Unreadable(unreadable),
        }
    }
}

/// Sends `request` and reads the response. Does not follow redirects. Has no timeout.
pub async fn fetch(request: OwnRequest<'_>) -> Result<Fetched, FetchError> {
    let authority = request.url.authority().ok_or(FetchError::BadUrl)?;
    let connection = Box::new(Http1Connection::new(open(&request).await?));
    let target = request.url.path_and_query().map_or("/", |target| target.as_str());
    let mut outgoing = OutgoingRequest { target: target.as_bytes().to_vec(), fields: Fields::default() };
    let standard = [("host", authority.as_str()), ("user-agent", USER_AGENT), ("connection", "close")];
    standard.iter().chain(request.fields).for_each(|(name, value)| outgoing.fields.push(name, value));
    let framing = match u64::try_from(request.body.len()) {
        Ok(0) => Framing::Empty,
        length => Framing::Length(length.unwrap_or(u64::MAX)),
    };
    let head = RequestHead { method: request.method.to_owned(), framing, ..RequestHead::default() };
    let mut upstream = Upstream::begin_http1(connection, &head, &outgoing, None);
    let head = exchange(&mut upstream, request.method, request.body).await?;
    let mut body = Vec::new();
    while poll_fn(|task| upstream.poll_body(task)).await? {
        let part = upstream.channel().content();
        let length = part.len();
        if body.len().saturating_add(length) > request.max_answer {
            return Err(FetchError::TooLong(request.max_answer));
        }
        body.extend_from_slice(part);
        upstream.channel().consume(length);
    }
    Ok(Fetched { status: head.status, fields: head.fields, body })
}

/// Connects to the server of the request, at the first address that accepts a connection.
async fn open(request: &OwnRequest<'_>) -> Result<Socket, FetchError> {
    let (url, secured) = (request.url, request.url.scheme() == Some(&Scheme::HTTPS));
    let host = url.host().ok_or(FetchError::BadUrl)?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let port = url.port_u16().unwrap_or(if secured { 443 } else { 80 });
    let tls = match (secured, request.tls) {
        (false, _) => None,
        (true, Some(config)) => Some(TlsSettings { config: Arc::clone(config), name: host.into(), identity: 0 }),
        (true, None) => return Err(FetchError::BadUrl),
    };
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host name has no address");
    for address in lookup_host((host, port)).await? {
        let server = Server { address: Address::Inet(address), tls: tls.clone(), http2: false };
        match connect(&server).await {
            Ok(socket) => return Ok(socket),
            Err(error) => failed = error,
        }
    }
    Err(failed.into())
}
