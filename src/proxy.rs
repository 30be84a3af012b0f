//! The glue to pingora: each filter hands over to the file that knows.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use pingora::http::{RequestHeader, ResponseHeader};
use pingora::protocols::Digest;
use pingora::proxy::{FailToProxy, ProxyHttp, ProxyWarnLogContext, Session};
use pingora::upstreams::peer::HttpPeer;
use pingora::{Error, ErrorType, Result};

pub mod admit;
pub mod caller;
pub mod connection;
pub mod context;
pub mod explain;
pub mod facts;
pub mod field;
pub mod forward;
pub mod identify;
pub mod keys;
pub mod live;
pub mod own_usage;
pub mod queue;
pub mod respond;
pub mod seats;
pub mod spare;
pub mod tally;
pub mod trace;
pub mod traffic;
pub mod upstream;
mod watch;

use context::Context;
use live::Live;
use seats::Seats;
use spare::Spare;
use traffic::Traffic;

use crate::clock::Clock;
use crate::panics::{caught, point};
use crate::ruleset::key::KeyHasher;
use crate::store::Store;
use crate::telemetry::lookout::Lookout;

/// What all connections share.
#[derive(Clone)]
pub struct Gateway(Arc<Shared>);

/// See [`Gateway`].
pub struct Shared {
    /// What is in force.
    pub live: ArcSwap<Live>,
    /// Where states are kept.
    pub store: Arc<Store>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Makes keys.
    pub hasher: KeyHasher,
    /// Which requests are here, and whether connections stay open.
    pub traffic: Arc<Traffic>,
    /// How many connections there are.
    pub seats: Arc<Seats>,
    /// Which of them are without a request.
    pub spare: Spare,
    /// How many connections there may be where the configuration does not say.
    pub room: usize,
    /// What is noted of requests that do not simply pass.
    pub lookout: Lookout,
}

impl Gateway {
    /// A gateway with `shared`.
    pub fn new(shared: Shared) -> Self {
        Self(Arc::new(shared))
    }

    /// Lets a response say that its connection ends with it, where connections are to be closed.
    pub fn close_if_leaving(&self, session: &mut Session) {
        if self.traffic.is_leaving() {
            session.set_keepalive(None);
        }
    }
}

impl std::ops::Deref for Gateway {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

#[async_trait]
impl ProxyHttp for Gateway {
    type CTX = Context;

    fn new_ctx(&self) -> Context {
        Context::new(self)
    }

    async fn early_request_filter(&self, session: &mut Session, context: &mut Context) -> Result<()> {
        let filter = || {
            context.is_stream = session.is_http2();
            if context.is_stream {
                facts::spell_as_http1(session.req_header_mut())?;
            }
            facts::drop_fields(session.req_header_mut());
            // Never on again where pingora turned it off: HTTP/1.0, `Connection: close`.
            if session.get_keepalive().is_some() {
                session.set_keepalive(Some(context.live.ruleset.connections.idle.secs_ceil()));
            }
            self.close_if_leaving(session);
            Ok(())
        };
        contained("early_request_filter", filter)
    }

    async fn request_filter(&self, session: &mut Session, context: &mut Context) -> Result<bool> {
        let admitting = async {
            point("request_filter");
            admit::admit(session, context).await
        };
        let admitted = caught(admitting).await.map_err(|_| panicked())?;
        if let Some(connection) = &context.connection {
            connection.decided();
        }
        match admitted {
            Ok(()) => {
                upstream::deadline::set_total(context);
                upstream::deadline::set_idle(session, context);
                if !session.as_mut().is_body_empty() {
                    upstream::deadline::set_next_part(context);
                    // who asks first sends nothing before the upstream agrees
                    if !session.req_header().headers.contains_key(http::header::EXPECT) {
                        upstream::deadline::expect_body(context);
                    }
                }
                Ok(false)
            }
            Err(answer) => respond::send(session, context, &answer).await.map(|()| true),
        }
    }

    async fn upstream_peer(&self, _session: &mut Session, context: &mut Context) -> Result<Box<HttpPeer>> {
        contained("upstream_peer", || upstream::peer(context))
    }

    async fn connected_to_upstream(
        &self,
        session: &mut Session,
        _reused: bool,
        _peer: &HttpPeer,
        _fd: std::os::fd::RawFd,
        digest: Option<&Digest>,
        context: &mut Context,
    ) -> Result<()> {
        contained("connected_to_upstream", || {
            context.ending = digest.and_then(upstream::Ending::of);
            if let Some(tally) = &mut context.tally {
                tally.reached_upstream();
            }
            if session.as_mut().is_body_empty() {
                upstream::deadline::set_first_byte(context);
            }
            Ok(())
        })
    }

    async fn request_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        context: &mut Context,
    ) -> Result<()> {
        contained("request_body_filter", || {
            let length = body.as_ref().map_or(0, Bytes::len);
            if let Some(tally) = &mut context.tally {
                tally.request_body(length);
            }
            upstream::deadline::body_came(context, length, end_of_stream);
            match end_of_stream {
                true => upstream::deadline::set_first_byte(context),
                false => upstream::deadline::set_next_part(context),
            }
            // pingora writes an empty last part to HTTP/1.1 as a chunk of length 0, and the terminator after it.
            if end_of_stream && length == 0 {
                *body = None;
            }
            Ok(())
        })
    }

    async fn upstream_request_filter(
        &self,
        session: &mut Session,
        request: &mut RequestHeader,
        context: &mut Context,
    ) -> Result<()> {
        contained("upstream_request_filter", || forward::request(request, context, admit::peer(session, context)))
    }

    async fn upstream_response_filter(
        &self,
        _session: &mut Session,
        response: &mut ResponseHeader,
        context: &mut Context,
    ) -> Result<()> {
        contained("upstream_response_filter", || {
            if !response.status.is_informational() {
                upstream::answered(context);
                if let Some(value) = response.headers.get("keep-alive") {
                    upstream::said_keep_alive(context, value);
                }
                if !forward::ends_with_connection(response) {
                    context.ending = None;
                }
                if let Some(tally) = &mut context.tally {
                    tally.response_head(&context.live.ruleset, &context.method, response);
                }
            }
            Ok(())
        })
    }

    fn response_body_filter(
        &self,
        _session: &mut Session,
        body: &mut Option<Bytes>,
        end_of_stream: bool,
        context: &mut Context,
    ) -> Result<Option<Duration>> {
        contained("response_body_filter", || {
            if end_of_stream && context.ending.as_ref().is_some_and(|ending| ending.is_cut_off()) {
                let cut_off = Error::explain(ErrorType::ConnectionClosed, "cut off within the response");
                return Err(cut_off.into_up());
            }
            if let Some(tally) = &mut context.tally {
                tally.response_body(&context.live.ruleset, body.as_deref().unwrap_or_default(), end_of_stream);
            }
            Ok(None)
        })
    }

    async fn response_filter(
        &self,
        session: &mut Session,
        response: &mut ResponseHeader,
        context: &mut Context,
    ) -> Result<()> {
        contained("response_filter", || {
            if response.status == http::StatusCode::SWITCHING_PROTOCOLS {
                context.status = Some(response.status.as_u16());
                upstream::answered(context);
                upstream::deadline::set_tunnel(session, context);
            }
            if response.status == http::StatusCode::CONTINUE {
                upstream::deadline::expect_body(context);
            }
            if response.status.is_informational() {
                return Ok(());
            }
            context.status = Some(response.status.as_u16());
            forward::response(response, context)?;
            forward::frame_for_client(session, response);
            self.close_if_leaving(session);
            Ok(())
        })
    }

    fn fail_to_connect(
        &self,
        _session: &mut Session,
        _peer: &HttpPeer,
        context: &mut Context,
        error: Box<Error>,
    ) -> Box<Error> {
        point("fail_to_connect");
        upstream::connect_failed(context, error)
    }

    fn error_while_proxy(
        &self,
        _peer: &HttpPeer,
        session: &mut Session,
        error: Box<Error>,
        context: &mut Context,
        reused: bool,
    ) -> Box<Error> {
        point("error_while_proxy");
        upstream::broke_off(session, context, error, reused)
    }

    async fn fail_to_proxy(&self, session: &mut Session, error: &Error, context: &mut Context) -> FailToProxy {
        point("fail_to_proxy");
        // a tunnel has no place for an answer
        let may_answer = |head: &ResponseHeader| {
            head.status.is_informational() && head.status != http::StatusCode::SWITCHING_PROTOCOLS
        };
        let answer = respond::answer_to(error).filter(|_| session.response_written().is_none_or(may_answer));
        let error_code = answer.as_ref().map_or(0, respond::Answer::status);
        if let Some(answer) = answer {
            // pingora closes after a failure, whatever is returned here.
            session.set_keepalive(None);
            match respond::send(session, context, &answer).await {
                Ok(()) => session.as_downstream_mut().shutdown().await,
                Err(error) => tracing::debug!(%error, "the client went away before its answer"),
            }
        }
        FailToProxy { error_code, can_reuse_downstream: false }
    }

    fn suppress_error_log(&self, _session: &Session, _context: &Context, _error: &Error) -> bool {
        true
    }

    fn suppress_proxy_warn_log(
        &self,
        _session: &Session,
        _context: &Context,
        _error: &Error,
        _of: ProxyWarnLogContext,
    ) -> bool {
        true
    }

    fn request_summary(&self, session: &Session, _context: &Context) -> String {
        session.req_header().method.to_string()
    }

    async fn logging(&self, _session: &mut Session, error: Option<&Error>, context: &mut Context) {
        point("logging");
        if let Some(error) = error {
            upstream::log_failure(context, error);
        }
    }
}

/// What comes of a filter. One that panics ends its request, which is answered as a fault of tollgate's own; where there is
/// no place for an answer, its task ends, which is the connection's or the stream's.
fn contained<T>(name: &str, filter: impl FnOnce() -> Result<T>) -> Result<T> {
    let filter = || {
        point(name);
        filter()
    };
    catch_unwind(AssertUnwindSafe(filter)).unwrap_or_else(|_| Err(panicked()))
}

/// An error for pingora that `respond` turns into a fault of tollgate's own.
fn panicked() -> Box<Error> {
    Error::new(ErrorType::InternalError)
}

/// An error for pingora that `respond` turns into "no healthy node".
fn no_node() -> Box<Error> {
    Error::new(ErrorType::HTTPStatus(503))
}
