//! Decides on requests: the engine (`http`) asks this module, which passes each question to the submodule in charge.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};

pub mod active_config;
pub mod admit;
mod attempts;
pub mod awaited_body;
pub mod bans;
pub mod caller;
mod charging;
pub mod cost_meter;
pub mod crossings;
mod decisions;
mod denials;
pub mod early;
pub mod explain;
pub mod facts;
pub mod field;
pub mod forward;
pub mod identify;
mod identity;
pub mod keys;
pub mod own_usage;
pub mod queue;
mod request_body;
pub mod request_context;
pub mod respond;
mod shown_headroom;
pub mod spans;
mod subject;
pub mod trace;
pub mod upstream;
pub mod usage_sums;

use active_config::ActiveConfig;
use bans::Bans;
use crossings::Crossings;
use facts::Head;
use request_context::RequestContext;
use respond::Answer;
use spans::Spans;
use usage_sums::UsageSums;

use crate::clock::{Clock, WorkerClock};
use crate::fields::Fields;
use crate::http::head::{RequestHead, ResponseHead, Version};
use crate::http::listener::{ListenerConfig, Peer};
use crate::http::service::{
    ConnectError, ConnectionSettings, Exchange, Failure, IncomingBody, Response, Service, Timing,
};
use crate::http::traffic::Traffic;
use crate::http::upstream::{Destination, OutgoingRequest};
use crate::panics::failpoint;
use crate::ruleset::ListenerService;
use crate::ruleset::key::KeyHasher;
use crate::store::Store;
use crate::telemetry::DenialRecorder;
use crate::units::Nanos;

/// A handle to the state of the gateway, which all connections share.
pub type Gateway = Arc<GatewayState>;

/// The parts of a running gateway.
pub struct GatewayState {
    /// The configuration in force.
    pub active: Arc<ArcSwap<ActiveConfig>>,
    /// The store of the limits' states.
    pub store: Arc<Store>,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The hasher that makes keys.
    pub hasher: KeyHasher,
    /// The counters of connections and requests, and the phase of the gateway: whether connections stay open.
    pub traffic: Arc<Traffic>,
    /// The maximum number of connections if the configuration sets none.
    pub default_max_connections: usize,
    /// The recorder of requests that are denied, delayed or over a limit that lets them pass.
    pub denial_recorder: DenialRecorder,
    /// The keys that limits have banned.
    pub bans: Bans,
    /// The notifications about keys that have reached a mark of `warn_at`.
    pub crossings: Crossings,
    /// The usage of customers, until usage events report it.
    pub usage_sums: UsageSums,
    /// The spans of ended requests, until they are sent.
    pub spans: Spans,
}

/// The configuration in force, as one worker holds it: its requests share it without a count that other workers write.
pub type WorkerConfig = Rc<Arc<ActiveConfig>>;

/// The gateway as one worker uses it.
#[derive(Clone)]
pub struct WorkerGateway(Rc<WorkerState>);

struct WorkerState {
    gateway: Gateway,
    time: Rc<WorkerClock>,
    /// The configuration in force, and what it is compared with.
    config: RefCell<(WorkerConfig, LatestConfig)>,
}

/// Finds out by comparing pointers whether the configuration was swapped: requests then change no reference count that other
/// workers write too.
type LatestConfig = Cache<Arc<ArcSwap<ActiveConfig>>, Arc<ActiveConfig>>;

impl WorkerGateway {
    /// Creates the view of `gateway` that one worker uses, whose time is `time`.
    pub fn new(gateway: Gateway, time: Rc<WorkerClock>) -> Self {
        let mut latest = Cache::new(Arc::clone(&gateway.active));
        let current = Rc::new(Arc::clone(latest.load()));
        Self(Rc::new(WorkerState { gateway, time, config: RefCell::new((current, latest)) }))
    }

    /// The worker's time, by which it decides.
    pub fn time(&self) -> &WorkerClock {
        &self.0.time
    }

    /// The configuration in force.
    pub fn config(&self) -> WorkerConfig {
        let (current, latest) = &mut *self.0.config.borrow_mut();
        let active = latest.load();
        if !Arc::ptr_eq(active, current) {
            *current = Rc::new(Arc::clone(active));
        }
        Rc::clone(current)
    }
}

impl std::ops::Deref for WorkerGateway {
    type Target = Gateway;

    fn deref(&self) -> &Gateway {
        &self.0.gateway
    }
}

impl Service for WorkerGateway {
    type Exchange = RequestContext;

    fn settings(&self) -> ConnectionSettings {
        let settings = self.config().settings;
        ConnectionSettings {
            max_connections: settings.max_connections.or(Some(self.default_max_connections)),
            ..settings
        }
    }

    fn refresh(&self) {
        drop(self.config());
    }

    fn listener(&self, position: usize) -> Option<Arc<ListenerConfig>> {
        self.config().listeners.get(position).map(Arc::clone)
    }

    fn is_trusted_proxy(&self, peer: &Peer) -> bool {
        self.config().ruleset.client_address.is_trusted(peer.address())
    }

    fn begin(&self, peer: &Rc<Peer>, version: Version, now: Nanos) -> RequestContext {
        RequestContext::new(self, Rc::clone(peer), version, now)
    }

    fn count_refused(&self, status: u16) {
        self.config().meters.route(None).count(status);
    }

    fn count_shed(&self, reason: &'static str) {
        self.config().meters.count_shed_connection(reason);
    }

    fn internal_error(&self) -> Response {
        respond::without_context(&Answer::Internal)
    }
}

impl Exchange for RequestContext {
    fn remove_untrusted_fields(&self, request: &mut RequestHead) {
        // another proxy answers for the fields of the requests that it asks about
        if self.serves == ListenerService::Proxy {
            facts::remove_untrusted(&mut request.fields, self.peer.address(), &self.active.ruleset);
        }
    }

    async fn decide(&mut self, request: &RequestHead, body: &impl IncomingBody) -> Result<(), Box<Response>> {
        failpoint("decide");
        if self.serves != ListenerService::Proxy {
            return Err(Box::pin(decisions::decide(self, request, body)).await);
        }
        let peer = Rc::clone(&self.peer);
        let mut admitted = admit::admit_incoming(self, &Head::of(request, &peer), (request.framing, body)).await;
        if admitted.is_ok() {
            admitted = attempts::acquire_upstream_permit(self).await;
        }
        admitted.map_err(|answer| respond::answer(self, &answer, &request.fields))
    }

    fn timing(&self) -> Timing {
        let ruleset = &self.active.ruleset;
        let upstream = self.upstream().and_then(|upstream| ruleset.upstreams.get(upstream.0));
        let timeouts = upstream.map(|upstream| upstream.timeouts).unwrap_or_default();
        // in a gRPC call either side may be silent for a while
        let converses = self.grpc_type.is_some() && upstream.is_some_and(|upstream| upstream.http2);
        Timing {
            connect: timeouts.connect,
            first_byte: timeouts.first_byte,
            idle: timeouts.idle,
            due: timeouts.total.map(|total| self.started.saturating_add(total)),
            converses,
            min_body_rate: ruleset.request_body.min_rate.filter(|_| !converses),
            response_rate: self.matched_route().and_then(|route| route.response_rate),
        }
    }

    fn destination(&mut self) -> Result<Destination, Box<Response>> {
        failpoint("destination");
        attempts::destination(self).map_err(|answer| self.answer(&answer))
    }

    fn connect_failed(&mut self, error: &ConnectError) -> Result<(), Box<Response>> {
        failpoint("connect_failed");
        attempts::connect_failed(self, error).map_err(|answer| self.answer_failure(&answer))
    }

    fn resent(&mut self) {
        tracing::debug!(
            "the upstream closed a kept connection or did not process the request: the request is sent again"
        );
        // a part that was delayed is sent again with those before it
        self.delay_ended();
    }

    fn request_head(&mut self, request: &RequestHead) -> Result<OutgoingRequest, Box<Response>> {
        failpoint("request_head");
        if let Some(cost_meter) = &mut self.cost_meter {
            cost_meter.mark_forwarded();
        }
        forward::request(request, self).ok_or_else(|| self.answer(&Answer::Internal))
    }

    async fn request_body(
        &mut self,
        request: &RequestHead,
        part: &[u8],
        is_head_sent: bool,
    ) -> Result<Nanos, Box<Response>> {
        failpoint("request_body");
        if let Some(left) = &mut self.body_left {
            let length = u64::try_from(part.len()).unwrap_or(u64::MAX);
            match left.checked_sub(length) {
                Some(rest) => *left = rest,
                None => return Err(respond::answer(self, &Answer::BodyTooLarge, &request.fields)),
            }
        }
        let passes = self.awaited_body.as_mut().map_or(Ok(()), |body| body.read_forwarded(part));
        let charged = match passes {
            Ok(()) => request_body::charge_part(self, part.len(), is_head_sent).await,
            Err(fault) => Err(Answer::Malformed(fault)),
        };
        charged.map_err(|answer| respond::answer(self, &answer, &request.fields))
    }

    fn delay_ended(&mut self) {
        if let Some(cost_meter) = &mut self.cost_meter {
            cost_meter.forward_delayed();
        }
    }

    fn response_head(&mut self, response: &ResponseHead) -> Result<Fields, Box<Response>> {
        failpoint("response_head");
        let now = attempts::record_response(self, response.status);
        self.status = Some(response.status);
        if let Some(cost_meter) = &mut self.cost_meter {
            let method = self.method.as_ref().map_or("", http::Method::as_str);
            cost_meter.response_head(&self.active.ruleset, method, response);
        }
        Ok(forward::response(response, self, now))
    }

    fn response_body(&mut self, part: &[u8], is_last: bool) {
        failpoint("response_body");
        if let Some(cost_meter) = &mut self.cost_meter {
            cost_meter.response_body(&self.active.ruleset, part, is_last);
        }
    }

    fn failed(&mut self, failure: &Failure) -> Box<Response> {
        failpoint("failed");
        attempts::log_failure(self, failure);
        let answer = match failure {
            Failure::HeadTimeout => Answer::HeadTimeout,
            Failure::BodyTimeout => Answer::BodyTimeout,
            Failure::BodyTooLarge => Answer::BodyTooLarge,
            Failure::Refused(refused) => (*refused).into(),
            Failure::UpstreamTimeout => Answer::UpstreamTimeout,
            Failure::UpstreamBroke(_)
            | Failure::UpstreamReset(_)
            | Failure::UpstreamRefused(_)
            | Failure::Unreadable(_) => Answer::UpstreamFailed,
            Failure::ClientGone => return Box::default(),
        };
        decisions::with_denied_status(self.answer_failure(&answer), self.serves)
    }
}

impl RequestContext {
    /// Answers the request with a response of the gateway itself.
    fn answer(&mut self, answer: &Answer) -> Box<Response> {
        respond::answer(self, answer, &Fields::default())
    }

    /// The response to a request whose handling failed; a request that was answered before keeps its status.
    fn answer_failure(&mut self, answer: &Answer) -> Box<Response> {
        if self.route.is_none() && self.status.is_none() {
            // the request could not be read, so it has no route
            self.set_route(None);
        }
        self.answer(answer)
    }
}
