//! The state of a request while the gateway handles it, and the work at its end, however it ends.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::Method;

use crate::algorithm::{Completion, Decision};
use crate::charge::{Charge, DecisionSource, Enforcement, Refund};
use crate::gateway::awaited_body::AwaitedBody;
use crate::gateway::cost_meter::{ChargedRequest, Corrections, CostMeter};
use crate::gateway::facts::Target;
use crate::gateway::trace::Trace;
use crate::gateway::upstream::{ChosenInstance, Instance, UpstreamPermit};
use crate::gateway::{WorkerConfig, WorkerGateway};
use crate::http::head::Version;
use crate::http::listener::Peer;
use crate::ruleset::cors::AllowedOrigin;
use crate::ruleset::matcher::{Route, RouteId};
use crate::ruleset::upstream::UpstreamId;
use crate::ruleset::verdict::{Standing, Verdict};
use crate::ruleset::{AccessLog, ListenerService, PlanId};
use crate::units::{Cost, LimitKey, Nanos};

mod account;

use account::RequestRecord;

/// The cause of the gateway's own response where Redis cannot be asked about a limit.
pub const STORE_AWAY: &str = "store_away";
/// The content type of gRPC.
pub const GRPC: &str = "application/grpc";
/// The recorded status if the client went away before a response.
const CLIENT_GONE: u16 = 499;
/// The recorded status if the gateway panicked before a response.
const INTERNAL_ERROR: u16 = 500;

/// One request. Everything it holds is given back when it is dropped: after the response, when the client goes away, at a
/// deadline, and when its handling panics.
pub struct RequestContext {
    /// The gateway, as the request's worker uses it.
    pub gateway: WorkerGateway,
    /// The other end of its connection.
    pub peer: Rc<Peer>,
    /// The request's version of HTTP.
    pub version: Version,
    /// The configuration that was in force when the request arrived.
    pub active: WorkerConfig,
    /// The service of the listener at which the request arrived.
    pub serves: ListenerService,
    /// When its head was complete.
    pub started: Nanos,
    /// The method, as sent.
    pub method: Option<Method>,
    /// The trace it belongs to, if it has a span or its line of the access log names the trace.
    pub trace: Option<Box<Trace>>,
    /// Its canonical target, once that is known.
    pub target: Option<Target>,
    /// The address it is counted by.
    pub client: Option<IpAddr>,
    /// The route it takes.
    pub route: Option<RouteId>,
    /// The customer, once known.
    pub customer: Option<Arc<str>>,
    /// The caller's plan; of a question about descriptors that of the limit that the answer names.
    pub plan: Option<PlanId>,
    /// The plan of each charge, where descriptors name plans; empty where all charges go by `plan`.
    pub charge_plans: Vec<Option<PlanId>>,
    /// The site whose scripts may read the response, if they asked to.
    pub cors: AllowedOrigin,
    /// Whether it is exempt from charges.
    pub bypassed: bool,
    /// Whether it is a CORS preflight that goes to the upstream; it has no caller.
    pub is_preflight: bool,
    /// The content type in which a client that speaks gRPC is answered; `None` for other clients.
    pub grpc_type: Option<&'static str>,
    /// When it was charged.
    pub charged_at: Nanos,
    /// Its charges.
    pub charges: Vec<Charge>,
    /// The verdict of its limits.
    pub verdict: Verdict,
    /// The source of the decision, if there was one.
    pub decision_source: Option<DecisionSource>,
    /// The state of its charges.
    pub admission: Admission,
    /// Whether it was charged under the early limits, which need nothing about its caller, ahead of the others.
    pub is_early_charged: bool,
    /// The meter of its real cost, if that cost shows later.
    pub cost_meter: Option<Box<CostMeter>>,
    /// Its body, if limits depend on the content.
    pub awaited_body: Option<Box<AwaitedBody>>,
    /// The number of bytes of its body that may still arrive, if its route bounds them.
    pub body_left: Option<u64>,
    /// Its attempts at an upstream.
    pub attempts: UpstreamAttempts,
    /// The status that the client was sent.
    pub status: Option<u16>,
    /// The gateway's own response, if it gave one.
    pub own_answer: OwnAnswer,
    /// Whether it is counted as in flight on its route.
    is_in_flight: bool,
}

/// The attempts of a request at its upstream.
#[derive(Default)]
pub struct UpstreamAttempts {
    /// The upstream that a limit diverts the request to.
    pub diverted: Option<UpstreamId>,
    /// The upstream that the split of its route has chosen.
    pub split: Option<UpstreamId>,
    /// The values that `consistent_hash` balances by, for each upstream that it may go to and that balances so.
    pub balance_hashes: Vec<(UpstreamId, LimitKey)>,
    /// The node that it goes to.
    pub chosen: Option<ChosenInstance>,
    /// When the node was chosen.
    pub chosen_at: Nanos,
    /// Its place at the upstream, if the number of requests there is bounded.
    pub permit: Option<UpstreamPermit>,
    /// The instances whose connections failed.
    pub tried: Vec<Arc<Instance>>,
    /// Whether the upstream began to answer.
    pub is_answered: bool,
}

/// The gateway's own response to a request.
#[derive(Default)]
pub struct OwnAnswer {
    /// Its cause; `None` as long as there is no such response.
    pub cause: Option<&'static str>,
    /// The status that it means, also where a gRPC client was sent 200.
    pub status: Option<u16>,
    /// The random number by which its retry time is spread, if the configuration spreads such times.
    pub retry_roll: u32,
}

impl UpstreamAttempts {
    /// The value that `consistent_hash` balances by at `upstream`, if that balances so.
    pub fn balance_hash(&self, upstream: UpstreamId) -> Option<LimitKey> {
        self.balance_hashes.iter().find(|(of, _)| *of == upstream).map(|(_, hash)| *hash)
    }

    /// The node that the request goes to, as configured.
    pub fn node_name(&self) -> Option<&str> {
        self.chosen.as_ref().map(|chosen| chosen.instance.name())
    }
}

/// The state of a request's charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Nothing is charged.
    None,
    /// It is charged and admitted, but not passed on yet: it may wait for its turn. If it ends now, the charges are refunded.
    Pending,
    /// Some limits have charged it ahead of the others, which have not decided yet. If it ends now, these charges stay.
    PartlyCharged {
        /// The time of these charges.
        at: Nanos,
        /// The route under whose limits they were made.
        route: RouteId,
    },
    /// It has passed; limits that count running requests hold a slot until it ends.
    Passed {
        /// The time at which it passed.
        at: Nanos,
    },
}

impl RequestContext {
    /// A request that began at `now`.
    pub fn new(gateway: &WorkerGateway, peer: Rc<Peer>, version: Version, now: Nanos) -> Self {
        let active = gateway.config();
        let serves = active.listeners.get(peer.listener).map(|listener| listener.serves).unwrap_or_default();
        Self {
            peer,
            version,
            active,
            serves,
            started: now,
            gateway: gateway.clone(),
            method: None,
            trace: None,
            target: None,
            client: None,
            route: None,
            customer: None,
            plan: None,
            charge_plans: Vec::new(),
            cors: AllowedOrigin::default(),
            bypassed: false,
            is_preflight: false,
            grpc_type: (serves.speaks_grpc() && version == Version::Http2).then_some(GRPC),
            charged_at: Nanos::ZERO,
            charges: Vec::new(),
            verdict: Verdict::unlimited(),
            decision_source: None,
            admission: Admission::None,
            is_early_charged: false,
            cost_meter: None,
            awaited_body: None,
            body_left: None,
            attempts: UpstreamAttempts::default(),
            status: None,
            own_answer: OwnAnswer::default(),
            is_in_flight: false,
        }
    }

    /// The route that was found.
    pub fn matched_route(&self) -> Option<&Route> {
        self.route.map(|route| self.active.ruleset.matcher.route(route))
    }

    /// The upstream that the request goes to.
    pub fn upstream(&self) -> Option<UpstreamId> {
        self.attempts.diverted.or(self.attempts.split).or_else(|| self.matched_route()?.upstream)
    }

    /// Whether tollgate answered with an error before it chose a node.
    fn is_refused(&self) -> bool {
        let is_error = self.own_answer.status.is_some_and(|status| status >= 400);
        self.own_answer.cause.is_some() && is_error && self.attempts.chosen_at == Nanos::ZERO
    }

    /// The plan of the charge at `position`.
    pub fn plan_of(&self, position: usize) -> Option<PlanId> {
        self.charge_plans.get(position).copied().unwrap_or(self.plan)
    }

    /// Sets the route that the request takes, or none, and counts the request as in flight there.
    pub fn set_route(&mut self, route: Option<RouteId>) {
        self.end_in_flight();
        self.route = route;
        self.is_in_flight = true;
        self.active.meters.route(route).start();
    }

    fn end_in_flight(&mut self) {
        if std::mem::take(&mut self.is_in_flight) {
            self.active.meters.route(self.route).end();
        }
    }

    /// Refunds the charges of the request for which `is_refunded` holds.
    fn refund(&self, now: Nanos, is_refunded: fn(Enforcement, Decision) -> bool) {
        let refunds: Vec<_> = self
            .taken()
            .filter(|(charge, standing)| is_refunded(charge.enforcement, standing.decision))
            .map(|(charge, standing)| Refund::of(charge.clone(), standing.headroom, self.charged_at))
            .collect();
        self.gateway.store.refund(&self.active.binding, &refunds, now);
    }

    /// Refunds all charges of a request that does not go on.
    fn refund_all(&self, now: Nanos) {
        self.refund(now, Enforcement::takes);
        for (position, (charge, standing)) in self.charges.iter().zip(&self.verdict.standings).enumerate() {
            if charge.enforcement.takes(standing.decision) {
                self.active.meters.count_refunded_tokens(self.plan_of(position), [charge]);
            }
        }
    }

    /// Refunds the charges of a request that is admitted and fails all the same. The verdict has the headroom after that.
    pub fn refund_as_failed(&mut self, now: Nanos) {
        self.refund_all(now);
        self.admission = Admission::None;
        self.verdict.refund(&self.charges, Enforcement::takes);
    }

    /// Refunds the charges of a request that is denied after all, except those of limits that count denials. The verdict has
    /// the headroom after that.
    pub fn refund_as_denied(&mut self, now: Nanos) {
        if self.admission == Admission::Pending {
            self.refund(now, Enforcement::refunds_if_denied);
            self.verdict.refund(&self.charges, Enforcement::refunds_if_denied);
            self.admission = Admission::None;
        }
    }

    /// The time as of which the verdict has its numbers: that of the charge, or of the last charge for a part of the body.
    pub fn measured_at(&self) -> Nanos {
        let body = self.cost_meter.as_ref().map_or(Nanos::ZERO, |meter| meter.body_charged_at);
        body.max(self.charged_at)
    }

    /// The charges that took something when the request was admitted.
    fn taken(&self) -> impl Iterator<Item = (&Charge, &Standing)> {
        self.verdict.consuming_charges(&self.charges)
    }

    fn release(&self, now: Nanos) {
        let active = &self.active;
        let at = match self.admission {
            Admission::None => return,
            Admission::Pending => return self.refund_all(now),
            Admission::PartlyCharged { at, route } => {
                active.meters.observe_verdict(route, |_| self.plan, &self.charges, &self.verdict);
                at
            }
            Admission::Passed { at } => {
                self.add_usage();
                at
            }
        };
        let end = Completion {
            latency: now.saturating_sub(at),
            measured: self.status.is_some_and(|status| status < 500) && self.attempts.is_answered,
        };
        let holds = |charge: &&Charge| active.ruleset.rule_of_charge(charge).holds_slots();
        let held: Vec<Charge> = self.taken().map(|(charge, _)| charge).filter(holds).cloned().collect();
        self.gateway.store.complete(&active.binding, &held, end, now);
        self.settle(now);
    }

    /// Settles the charges of a request that has ended.
    fn settle(&self, now: Nanos) {
        let Some(cost_meter) = &self.cost_meter else { return };
        let active = &self.active;
        let charged = ChargedRequest { charges: &self.charges, verdict: &self.verdict, charged_at: self.charged_at };
        let unreadable = |limit| active.meters.count_invalid_cost(limit);
        let Corrections { debits, refunds } =
            cost_meter.corrections(&active.ruleset, charged, self.own_answer.status, unreadable);
        let store = &self.gateway.store;
        if !debits.is_empty() {
            store.debit(&active.binding, &debits, now);
            active.meters.count_debited_tokens(self.plan, &debits);
        }
        if !refunds.is_empty() {
            store.refund(&active.binding, &refunds, now);
            active.meters.count_refunded_tokens(self.plan, refunds.iter().map(|refund| &refund.charge));
        }
    }

    /// Adds the usage of a request that passed to the sums of its customer.
    fn add_usage(&self) {
        let (Some(events), Some(customer)) = (&self.active.ruleset.usage_events, &self.customer) else { return };
        let charges = self.charges.iter().zip(&self.verdict.standings).enumerate();
        let costs = charges.filter_map(|(position, (charge, standing))| {
            Some((standing.limit, self.cost(position, charge, standing)?))
        });
        self.gateway.usage_sums.add(events, (customer, self.plan), costs);
    }

    /// The cost of the request under the limit at `position` of its charges; `None` if that limit has denied it after all.
    fn cost(&self, position: usize, charge: &Charge, standing: &Standing) -> Option<Cost> {
        let meter = self.cost_meter.as_ref();
        let later =
            meter.and_then(|meter| meter.cost(&self.active.ruleset, (position, charge), self.own_answer.status));
        // limits that watch, mark or divert let the request pass, whether it was over them or not
        later.or_else(|| (!standing.denies()).then(|| charge.taken_cost()))
    }

    /// Reports the request, which ended at `now`, in the access log and in its span.
    fn report(&self, status: u16, now: Nanos) {
        let is_logged = is_logged(self.active.ruleset.access_log, status >= 400 || self.own_answer.cause.is_some());
        let spanned = self.trace.as_deref().filter(|trace| trace.span.is_some());
        if !is_logged && spanned.is_none() {
            return;
        }
        let record = RequestRecord::of(self, status, now);
        if is_logged {
            record.write_access_log();
        }
        if let (Some(trace), Some(traces)) = (spanned, &self.active.ruleset.traces)
            && !self.gateway.spans.add(record.span(*trace), traces.max_spans)
        {
            self.active.meters.count_dropped_span();
        }
    }
}

/// Whether a line is written to the access log; with `always`, a sampled log writes it, too.
pub(super) fn is_logged(log: AccessLog, always: bool) -> bool {
    match log {
        AccessLog::Off => false,
        AccessLog::Full => true,
        AccessLog::Sampled(one_in) => always || rand::random_range(0..one_in.max(1)) == 0,
    }
}

impl Drop for RequestContext {
    fn drop(&mut self) {
        let now = self.gateway.time().now();
        self.release(now);
        let unanswered = if std::thread::panicking() { INTERNAL_ERROR } else { CLIENT_GONE };
        let status = self.status.unwrap_or(unanswered);
        let duration = now.saturating_sub(self.started);
        self.active.meters.route(self.route).finish(status, duration);
        self.end_in_flight();
        self.report(status, now);
    }
}

#[cfg(test)]
mod tests {
    use arc_swap::ArcSwap;

    use super::*;
    use crate::charge::{Enforcement, RuleRef};
    use crate::clock::{SystemClock, WorkerClock};
    use crate::gateway::active_config::{ActiveConfig, CompiledConfig};
    use crate::gateway::bans::Bans;
    use crate::gateway::crossings::Crossings;
    use crate::gateway::spans::Spans;
    use crate::gateway::usage_sums::UsageSums;
    use crate::gateway::{Gateway, GatewayState, forward};
    use crate::http::head::RequestHead;
    use crate::http::service::Exchange as _;
    use crate::ruleset::key::KeyHasher;
    use crate::store::Store;
    use crate::telemetry::DenialRecorder;
    use crate::telemetry::Telemetry;

    const CONFIG: &str = "listeners: [{ address: \"127.0.0.1:1\" }]
upstreams: { origin: { nodes: [\"127.0.0.1:2\"] } }
limits: { one: { algorithm: concurrency, limit: 1, key: all } }
routes: [{ name: all, upstream: origin, limits: [one] }]
";

    fn gateway() -> WorkerGateway {
        let ruleset = crate::config::load(CONFIG, "", &|_| None).unwrap().ruleset;
        let store = Arc::new(Store::default());
        let rules = CompiledConfig {
            ruleset,
            directory: Arc::default(),
            groups: Arc::default(),
            tokens: None,
            listeners: Vec::new(),
            upstream_tls: Vec::new(),
            hash: String::new(),
            directory_hash: None,
        };
        let hasher = KeyHasher::new(&[0; 16]);
        let pools = rules.pools(None);
        let active = ActiveConfig::new((rules, pools), None, &store, hasher.clone(), &Telemetry::new().unwrap());
        let shared = GatewayState {
            active: Arc::new(ArcSwap::from_pointee(active)),
            store,
            clock: Arc::new(SystemClock::new()),
            hasher,
            traffic: Arc::default(),
            default_max_connections: 1,
            denial_recorder: DenialRecorder::default(),
            bans: Bans::default(),
            crossings: Crossings::default(),
            usage_sums: UsageSums::default(),
            spans: Spans::default(),
        };
        WorkerGateway::new(Gateway::new(shared), WorkerClock::new(Arc::new(SystemClock::new())))
    }

    /// A request that was charged, and whether it passed.
    fn charged(gateway: &WorkerGateway) -> (RequestContext, bool) {
        let mut context = RequestContext::new(gateway, Rc::default(), Version::Http11, gateway.clock.now());
        context.set_route(Some(RouteId(0)));
        context.charges = vec![Charge::new(0, RuleRef::Listed(0), LimitKey(1), 1, Enforcement::DEFAULT)];
        let now = gateway.clock.now();
        let charging = gateway.store.charge(&context.active.binding, &mut context.charges, now);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let charged = runtime.block_on(charging).charged;
        context.verdict = Verdict::new(&context.active.ruleset, &context.charges, &charged);
        let passed = charged[0].decision.is_admitted();
        context.admission = if passed { Admission::Passed { at: now } } else { Admission::None };
        (context, passed)
    }

    #[test]
    fn a_request_without_a_target_or_a_route_is_never_forwarded_as_it_came() {
        let gateway = gateway();
        for route in [None, Some(RouteId(0))] {
            let mut context = RequestContext::new(&gateway, Rc::default(), Version::Http11, gateway.clock.now());
            context.set_route(route);
            let request = RequestHead { target: b"/raw".to_vec(), ..RequestHead::default() };
            assert!(forward::request(&request, &context).is_none());
            let answered = context.request_head(&request).unwrap_err();
            assert_eq!(answered.status, 500);
        }
    }

    #[test]
    fn a_request_whose_filter_panics_gives_back_what_it_holds() {
        let gateway = gateway();
        let shared = Gateway::clone(&gateway);
        let panicking = std::thread::scope(|scope| {
            let filter = scope.spawn(|| {
                let gateway = WorkerGateway::new(shared, WorkerClock::new(Arc::new(SystemClock::new())));
                let (_context, passed) = charged(&gateway);
                let (_denied, second) = charged(&gateway);
                assert_eq!((passed, second), (true, false));
                std::panic::resume_unwind(Box::new("a filter panics"));
            });
            filter.join().unwrap_err()
        });
        assert_eq!(panicking.downcast_ref(), Some(&"a filter panics"));
        assert!(charged(&gateway).1, "the slot is free");
    }
}
