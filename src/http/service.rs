//! The questions that the engine asks of the part that decides: the border between bytes and rules.
//!
//! The engine knows sockets, framing, connections and deadlines, and nothing of limits. A [`Service`] knows routes, customers
//! and limits, and nothing of sockets.

use std::num::NonZeroU64;
use std::sync::Arc;

use super::head::{HeadBounds, RequestHead, ResponseHead, Unreadable, Version};
use super::listener::{ListenerConfig, Peer};
use super::pace::MinBodyRate;
use super::syntax::Refused;
use super::upstream::{Destination, OutgoingRequest};
use crate::fields::Fields;
use crate::units::{Nanos, Prefixes};

/// Decides on the requests of all connections.
///
/// Each worker has one of its own.
pub trait Service: 'static {
    /// One request from its head to its end.
    type Exchange: Exchange;

    /// The settings of client connections that are in force now.
    fn settings(&self) -> Settings;

    /// Drops a configuration that is no longer in force. Called about once in a second.
    fn refresh(&self);

    /// How connections come in at the listener with this position; `None` where there is none.
    fn listener(&self, position: usize) -> Option<Arc<ListenerConfig>>;

    /// A request begins, whose head was complete at `now`.
    fn begin(&self, peer: &Arc<Peer>, version: Version, now: Nanos) -> Self::Exchange;

    /// A request that no exchange was begun for was refused with this status.
    fn count_refused(&self, status: u16);

    /// A connection was closed, or is, for want of room.
    fn count_shed(&self, reason: &'static str);

    /// The answer to a request in whose handling the gateway panicked.
    fn internal_error(&self) -> Response;
}

/// One request while it is handled. When it is dropped the request is over, however it ended.
pub trait Exchange {
    /// How many bytes the body may have that is read whole before the decision; `None` where the head is enough.
    fn max_collected(&self) -> Option<usize>;

    /// Decides on the request; it may have to wait. Dropped before it is done when the client goes away. `body` is the body that
    /// [`Exchange::max_collected`] asked for, and empty otherwise.
    ///
    /// Errors: the answer to a request that is not forwarded.
    fn decide(&mut self, request: &RequestHead, body: &[u8]) -> impl Future<Output = Result<(), Response>>;

    /// How many bytes of the body may be held back for a decision that depends on them; `None` where it is
    /// decided on. Asked after [`Exchange::decide`].
    fn max_held(&self) -> Option<usize>;

    /// A part of the body that is held back: whether more is needed for the decision.
    fn hold(&mut self, part: &[u8]) -> bool;

    /// Decides on the request as far as that needs nothing of the body, of which not enough is here. Dropped before it is done
    /// when the client goes away.
    fn decide_ahead(&mut self, request: &RequestHead) -> impl Future<Output = Result<(), Response>>;

    /// Decides on a request of whose body enough was held back, or all that there is or may be. Dropped before it is done when
    /// the client goes away.
    fn decide_by_body(&mut self, request: &RequestHead) -> impl Future<Output = Result<(), Response>>;

    /// How long things may take from here on.
    fn timing(&self) -> Timing;

    /// Where the request goes next. Asked again after a connection could not be made, or broke before an answer.
    fn destination(&mut self) -> Result<Destination, Response>;

    /// A connection to the last destination could not be made. `Ok`: another one is to be tried.
    fn connect_failed(&mut self, error: &ConnectError) -> Result<(), Response>;

    /// A kept connection turned out to be closed before anything was answered; the request goes out again on a new one.
    fn resent(&mut self);

    /// There is a connection to the last destination, on which the request is sent now: its target and its fields.
    fn request_head(&mut self, request: &RequestHead) -> Result<OutgoingRequest, Response>;

    /// A part of the request's body came, or passes that was held back, and is forwarded if that is `Ok`.
    fn request_body(&mut self, part: &[u8]) -> impl Future<Output = Result<(), Response>>;

    /// The upstream answered: the fields that the client is sent. Not asked about interim responses, but for 101.
    fn response_head(&mut self, response: &ResponseHead) -> Result<Fields, Response>;

    /// A part of the response's body; `is_last` says whether the body is whole with it.
    fn response_body(&mut self, part: &[u8], is_last: bool);

    /// The request fails: the answer to the client, if it can still be answered.
    fn failed(&mut self, failure: &Failure) -> Response;
}

/// The settings of client connections.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How large a head may be.
    pub head: HeadBounds,
    /// How long a head may take to arrive.
    pub head_timeout: Nanos,
    /// How large a list of fields may be over HTTP/2, in bytes as RFC 9113 counts them.
    pub max_list: u32,
    /// How long a connection may be without a request.
    pub idle: Nanos,
    /// How many connections there may be.
    pub max_connections: Option<usize>,
    /// How many of them one client may have.
    pub max_per_client: Option<usize>,
    /// How many bits of an address name a client.
    pub prefixes: Prefixes,
}

/// How long an exchange may take.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// To connect.
    pub connect: Nanos,
    /// From the request having been sent to the head of the response being complete.
    pub first_byte: Nanos,
    /// Between two parts of a body, in either direction; the upstream gets `first_byte` if that is longer.
    pub idle: Nanos,
    /// When everything has to be over.
    pub due: Option<Nanos>,
    /// At which rate the request's body has to come at least.
    pub min_body_rate: Option<MinBodyRate>,
    /// At how many bytes in each second the response's body is sent; as fast as it comes where that is not said.
    pub response_rate: Option<NonZeroU64>,
}

/// A response of the gateway's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// The fields, without those that frame it.
    pub fields: Fields,
    /// The body.
    pub body: Vec<u8>,
    /// The fields behind the body, if there are any. Clients of HTTP/1.1 are not sent them.
    pub trailers: Option<Box<Fields>>,
    /// Whether the place where the next request would begin is uncertain, so that the connection has to end.
    pub closes: bool,
}

/// Why a connection to an upstream could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// It took too long.
    #[error("connecting took too long")]
    TimedOut,
    /// It was refused, or TLS or HTTP/2 could not be agreed on.
    #[error("{0}")]
    Failed(#[from] std::io::Error),
}

/// Why a request fails whose handling had begun.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The head of a request did not come in time.
    #[error("the head of the request took too long")]
    HeadTimeout,
    /// The client stopped sending its body, or sent it too slowly.
    #[error("the body of the request came too slowly")]
    BodyTimeout,
    /// The client went away, or stopped reading.
    #[error("the client went away")]
    ClientGone,
    /// The body that is to be read whole is larger than it may be.
    #[error("the body of the request is too large")]
    BodyTooLarge,
    /// The client's bytes cannot be read as HTTP.
    #[error("{0}")]
    Refused(#[from] Refused),
    /// The upstream did not answer in time.
    #[error("the upstream took too long")]
    UpstreamTimeout,
    /// The upstream's connection broke.
    #[error("the connection to the upstream broke: {0}")]
    UpstreamBroke(std::io::Error),
    /// The upstream's bytes cannot be read as HTTP.
    #[error("{0}")]
    Unreadable(#[from] Unreadable),
}
