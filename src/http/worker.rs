//! One worker thread's state: the service that decides, its clock, its connections to upstreams.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use super::idle::IdleConnections;
use super::limiter::{ConnectionBounds, ConnectionLimiter, ConnectionPermit, LimitReached};
use super::pool::Pool;
use super::service::Service;
use super::traffic::Traffic;
use crate::clock::WorkerClock;
use crate::units::Nanos;

/// The interval of the sweeps of kept connections.
const SWEEP_EVERY: Nanos = Nanos::SECOND;

/// The state of a worker.
pub struct Worker<S> {
    pub(super) service: S,
    pub(super) clock: Rc<WorkerClock>,
    pub(super) traffic: Arc<Traffic>,
    pub(super) limiter: Arc<ConnectionLimiter>,
    pub(super) idle: Arc<IdleConnections>,
    pub(super) pool: RefCell<Pool>,
}

/// The state that all workers of a gateway share.
#[derive(Clone)]
pub struct EngineState {
    /// The counts of requests, and whether connections stay open.
    pub traffic: Arc<Traffic>,
    /// The limits on the number of connections.
    pub limiter: Arc<ConnectionLimiter>,
    /// The connections, ordered by their idle time.
    pub idle: Arc<IdleConnections>,
}

impl<S: Service> Worker<S> {
    /// A worker for which `service` decides, with its `clock`. It keeps at most `kept` idle HTTP/1.1 connections to upstreams.
    pub fn new(service: S, clock: Rc<WorkerClock>, shared: EngineState, kept: usize) -> Self {
        let EngineState { traffic, limiter, idle } = shared;
        Self { service, clock, traffic, limiter, idle, pool: RefCell::new(Pool::new(kept)) }
    }

    /// Regularly closes kept connections whose time is over and drops old configurations, as long as this is polled.
    pub async fn sweep(&self) {
        let mut ticks = tokio::time::interval(SWEEP_EVERY.to_duration());
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let sweeping = async {
            loop {
                ticks.tick().await;
                self.pool.borrow_mut().sweep(self.clock.now());
                self.service.refresh();
            }
        };
        self.clock.run(pin!(sweeping)).await
    }

    /// A permit for a connection; `None` if a limit on connections is reached and no idle connection can be evicted.
    pub(super) fn permit(&self, listener: usize, max_at_listener: Option<usize>) -> Option<ConnectionPermit> {
        let mut bounds =
            ConnectionBounds { total: self.service.settings().max_connections, per_listener: max_at_listener };
        loop {
            let full = match self.limiter.take(listener, bounds) {
                Ok(permit) => return Some(permit),
                Err(full) => full,
            };
            // an evicted connection is still counted until it is closed
            let (max, at) = match full {
                LimitReached::All => (bounds.total.take(), None),
                LimitReached::Listener => (bounds.per_listener.take(), Some(listener)),
            };
            if !self.idle.evict_longest_idle(at, self.clock.now()) {
                self.shed(full.as_str(), max);
                return None;
            }
            self.service.count_shed("idle");
        }
    }

    /// Counts a new connection that is closed because there are `max` connections already, as `reason` says. Logs a
    /// warning for some of them.
    pub(super) fn shed(&self, reason: &'static str, max: Option<usize>) {
        self.service.count_shed(reason);
        if self.limiter.may_warn(self.clock.now()) {
            tracing::warn!(reason, max, "new connections are closed at once: there are as many as there may be");
        }
    }
}
