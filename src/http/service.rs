//! The interface between the engine and the code that decides.
//!
//! The engine knows sockets, framing, connections and deadlines, but no limits. A [`Service`] knows routes, customers and
//! limits, but no sockets.

use std::num::NonZeroU64;
use std::rc::Rc;
use std::sync::Arc;

use super::body_rate::MinBodyRate;
use super::head::{HeadBounds, RequestHead, ResponseHead, Unreadable, Version};
use super::listener::{ListenerConfig, Peer};
use super::syntax::Refused;
use super::upstream::{Destination, OutgoingRequest, UpstreamError};
use crate::fields::Fields;
use crate::units::{Nanos, Prefixes};

/// Decides on the requests of all connections of a worker.
///
/// Each worker has its own service.
pub trait Service: 'static {
    /// One request from its head to its end.
    type Exchange: Exchange;

    /// The settings of client connections that are in force now.
    fn settings(&self) -> ConnectionSettings;

    /// Drops a configuration that is no longer in force. Called about once a second.
    fn refresh(&self);

    /// The configuration of the listener with this position; `None` if there is none.
    fn listener(&self, position: usize) -> Option<Arc<ListenerConfig>>;

    /// Whether `peer` is a trusted proxy, whose connections carry requests of many clients.
    fn is_trusted_proxy(&self, peer: &Peer) -> bool;

    /// Begins a request whose head was complete at `now`.
    fn begin(&self, peer: &Rc<Peer>, version: Version, now: Nanos) -> Self::Exchange;

    /// Counts a request that was refused with this status before an exchange began.
    fn count_refused(&self, status: u16);

    /// Counts a connection that was or will be closed because a limit on connections is reached.
    fn count_shed(&self, reason: &'static str);

    /// The response to a request during which the gateway panicked.
    fn internal_error(&self) -> Response;
}

/// One request while it is handled. Dropping it ends the request, whatever the outcome.
pub trait Exchange {
    /// Removes from a head that has just arrived the fields that its sender may not set. Called before all other methods.
    fn remove_untrusted_fields(&self, request: &mut RequestHead);

    /// Decides on the request; this may have to wait, also for a part of its `body`. The engine drops the future if the client
    /// goes away.
    ///
    /// Errors: the response to a request that is not forwarded.
    fn decide(
        &mut self,
        request: &RequestHead,
        body: &impl IncomingBody,
    ) -> impl Future<Output = Result<(), Box<Response>>>;

    /// The timeouts and rates from here on.
    fn timing(&self) -> Timing;

    /// The next destination of the request. Called again after a failed connection, or one that broke before a response.
    fn destination(&mut self) -> Result<Destination, Box<Response>>;

    /// Notes that the connection to the last destination failed. `Ok`: the engine tries another one.
    fn connect_failed(&mut self, error: &ConnectError) -> Result<(), Box<Response>>;

    /// Notes that a kept connection was closed before a response, or that the upstream did not process the request; the
    /// engine sends the request again on a new connection.
    fn resent(&mut self);

    /// The target and the fields of the request that the engine now sends on a connection to the last destination.
    fn request_head(&mut self, request: &RequestHead) -> Result<OutgoingRequest, Box<Response>>;

    /// Looks at a part of the body of `request`, new or held back before; `is_head_sent` says whether the upstream may have
    /// got the request's head. `Ok`: the engine forwards the part after this delay.
    fn request_body(
        &mut self,
        request: &RequestHead,
        part: &[u8],
        is_head_sent: bool,
    ) -> impl Future<Output = Result<Nanos, Box<Response>>>;

    /// Notes that the delay of the last part is over. Not called for a part without a delay.
    fn delay_ended(&mut self);

    /// The fields of the response for the client. Not called for interim responses, except 101.
    fn response_head(&mut self, response: &ResponseHead) -> Result<Fields, Box<Response>>;

    /// Looks at a part of the response's body. `is_last` says whether the body ends with it.
    fn response_body(&mut self, part: &[u8], is_last: bool);

    /// Notes that the request fails. Returns the response, if the client can still get one.
    fn failed(&mut self, failure: &Failure) -> Box<Response>;
}

/// The body of a request that is not decided on yet. The engine holds back what the decision reads of it, and forwards it
/// later.
///
/// If the client goes away meanwhile, or sends its body too slowly or malformed, the engine drops the decision and calls
/// [`Exchange::failed`].
pub trait IncomingBody {
    /// Gives `read` the parts that have arrived, one after the other, as long as it returns that it needs more. Returns
    /// whether it needs no more or the body has ended.
    fn read_arrived(&self, read: impl FnMut(&[u8]) -> bool) -> impl Future<Output = bool>;

    /// Waits for the parts that follow, within these times and at this rate, until `read` needs no more or the body has ended.
    /// Sends 100 (Continue) to a client that asks for it.
    fn read_awaited(&self, timing: &Timing, read: impl FnMut(&[u8]) -> bool) -> impl Future<Output = ()>;

    /// Takes the whole body, which is not forwarded.
    ///
    /// Errors: the body has more than `max` bytes, or does not arrive within this time.
    fn take_whole(&self, max: usize, within: Nanos) -> impl Future<Output = Result<Vec<u8>, Failure>>;
}

/// The settings of client connections.
#[derive(Clone, Copy, Debug)]
pub struct ConnectionSettings {
    /// The maximum size of a head.
    pub head: HeadBounds,
    /// How long a head may take to arrive.
    pub head_timeout: Nanos,
    /// The maximum size of a field list over HTTP/2, in bytes as RFC 9113 counts them.
    pub max_list: u32,
    /// How long a connection may be idle.
    pub idle: Nanos,
    /// The maximum number of connections.
    pub max_connections: Option<usize>,
    /// The maximum number of connections of one client.
    pub max_per_client: Option<usize>,
    /// The prefix lengths by which addresses are grouped into clients.
    pub prefixes: Prefixes,
}

/// The time limits and rates of an exchange.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// The timeout for connecting.
    pub connect: Nanos,
    /// From the end of the sent request to the end of the response's head, and from its head to 100 (Continue) if the client
    /// waits for that.
    pub first_byte: Nanos,
    /// Between two parts of a body, in either direction; the upstream gets `first_byte` if that is longer.
    pub idle: Nanos,
    /// The deadline of the whole exchange.
    pub due: Option<Nanos>,
    /// Whether either side may be silent until the other one has sent something, as in gRPC.
    pub converses: bool,
    /// The minimum rate at which the request's body has to arrive.
    pub min_body_rate: Option<MinBodyRate>,
    /// The maximum rate of the response's body, in bytes per second; `None` for no maximum.
    pub response_rate: Option<NonZeroU64>,
}

/// A response that the gateway itself makes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Response {
    /// The status.
    pub status: u16,
    /// The fields, without those for the framing.
    pub fields: Fields,
    /// The body.
    pub body: Vec<u8>,
    /// The trailers, if there are any. HTTP/1.1 clients do not receive them.
    pub trailers: Option<Box<Fields>>,
    /// Whether the connection must end, because it is uncertain where the next request would begin.
    pub closes: bool,
}

/// The reason why a connection to an upstream failed.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Connecting took too long.
    #[error("connecting timed out")]
    TimedOut,
    /// The deadline of the whole exchange passed before the connection was open.
    #[error("the request took too long")]
    Overdue,
    /// The upstream refused, or TLS or HTTP/2 could not be negotiated.
    #[error("{0}")]
    Failed(#[from] std::io::Error),
}

/// The reason why a request failed after its handling began.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The head of the request did not arrive in time.
    #[error("the head of the request did not arrive in time")]
    HeadTimeout,
    /// The client stopped sending its body, or sent it too slowly.
    #[error("the body of the request arrived too slowly")]
    BodyTimeout,
    /// The client went away, or stopped reading.
    #[error("the client disconnected")]
    ClientGone,
    /// The body has to be read whole, and is larger than allowed.
    #[error("the body of the request is too large")]
    BodyTooLarge,
    /// The client's bytes cannot be read as HTTP.
    #[error("{0}")]
    Refused(#[from] Refused),
    /// The upstream did not answer in time.
    #[error("the upstream did not answer in time")]
    UpstreamTimeout,
    /// The upstream's connection broke.
    #[error("the connection to the upstream failed: {0}")]
    UpstreamBroke(std::io::Error),
    /// The upstream ended the request, and not the connection.
    #[error("the upstream reset the request: {0}")]
    UpstreamReset(std::io::Error),
    /// The upstream did not process the request, and said so.
    #[error("the upstream did not process the request: {0}")]
    UpstreamRefused(std::io::Error),
    /// The upstream's bytes cannot be read as HTTP.
    #[error("{0}")]
    Unreadable(#[from] Unreadable),
}

impl From<UpstreamError> for Failure {
    fn from(error: UpstreamError) -> Self {
        match error {
            UpstreamError::Io(error) => Self::UpstreamBroke(error),
            UpstreamError::Reset(error) => Self::UpstreamReset(error),
            UpstreamError::Refused(error) => Self::UpstreamRefused(error),
            UpstreamError::Unreadable(unreadable) => Self::Unreadable(unreadable),
        }
    }
}
