//! What one worker thread knows: the service that decides, its clock, its connections to upstreams.

use std::cell::RefCell;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use super::idle::IdleConnections;
use super::limiter::{ConnectionLimiter, ConnectionPermit, Full};
use super::pool::Pool;
use super::service::Service;
use super::timer::WorkerClock;
use super::traffic::Traffic;
use crate::clock::Clock;
use crate::units::Nanos;

/// How often kept connections are looked at.
const SWEEP_EVERY: Nanos = Nanos::SECOND;

/// What a worker knows.
pub struct Worker<S> {
    pub(super) service: S,
    pub(super) clock: Rc<WorkerClock>,
    pub(super) traffic: Arc<Traffic>,
    pub(super) limiter: Arc<ConnectionLimiter>,
    pub(super) idle: Arc<IdleConnections>,
    pub(super) pool: RefCell<Pool>,
}

/// What the workers of a gateway have in common.
#[derive(Clone)]
pub struct EngineState {
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Which requests are here, and whether connections stay open.
    pub traffic: Arc<Traffic>,
    /// How many connections there are.
    pub limiter: Arc<ConnectionLimiter>,
    /// Which of them are without a request.
    pub idle: Arc<IdleConnections>,
}

impl<S: Service> Worker<S> {
    /// A worker for which `service` decides, and that keeps at most `kept` connections to upstreams of HTTP/1.1.
    pub fn new(service: S, shared: EngineState, kept: usize) -> Self {
        let EngineState { clock, traffic, limiter, idle } = shared;
        let clock = WorkerClock::new(clock);
        Self { service, clock, traffic, limiter, idle, pool: RefCell::new(Pool::new(kept)) }
    }

    /// Closes kept connections whose time is over and lets go of old rules, as long as this is polled.
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

    /// A permit for a connection; `None` where as many are here as there may be, and all of them have requests.
    pub(super) fn permit(&self, listener: usize, max_there: Option<usize>) -> Option<ConnectionPermit> {
        let mut bounds = (self.service.settings().max_connections, max_there);
        loop {
            let full = match self.limiter.take(listener, bounds) {
                Ok(permit) => return Some(permit),
                Err(full) => full,
            };
            // a connection that makes room is counted until it is closed
            let at = match full {
                Full::All => {
                    bounds.0 = None;
                    None
                }
                Full::Listener => {
                    bounds.1 = None;
                    Some(listener)
                }
            };
            let made = self.idle.make_room(at, self.clock.now());
            self.service.count_shed(if made { "idle" } else { full.as_str() });
            if !made {
                return None;
            }
        }
    }
}
