//! One thread that serves clients: its listeners' sockets, its connections, its connections to upstreams.

use std::cell::RefCell;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::mpsc;

use super::connection;
use super::idle::IdleConnections;
use super::limiter::{ConnectionLimiter, ConnectionPermit, Full};
use super::pool::Pool;
use super::service::Service;
use super::socket::RawSocket;
use super::timer::WorkerClock;
use super::traffic::{ArrivalGuard, Traffic};
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
pub struct Shared {
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
    pub fn new(service: S, shared: Shared, kept: usize) -> Self {
        let Shared { clock, traffic, limiter, idle } = shared;
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

// === handing connections over ===

/// A connection that was accepted by one worker for another.
pub struct HandedOver {
    listener: usize,
    descriptor: OwnedFd,
    arriving: ArrivalGuard,
    load: Load,
}

/// How many connections each worker has, and the way to each.
pub struct Workers {
    all: Vec<(AtomicUsize, mpsc::UnboundedSender<HandedOver>)>,
}

/// One more connection of a worker, until it is dropped.
pub struct Load {
    workers: Arc<Workers>,
    worker: usize,
}

impl Workers {
    /// So many workers, and what each of them receives.
    pub fn new(count: usize) -> (Arc<Self>, Vec<mpsc::UnboundedReceiver<HandedOver>>) {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::unbounded_channel()).unzip();
        let all = senders.into_iter().map(|sender| (AtomicUsize::new(0), sender)).collect();
        (Arc::new(Self { all }), receivers)
    }

    /// The worker with the fewest connections, which is `own` where it has no more than any other.
    fn least_loaded(&self, own: usize) -> usize {
        let load = |worker: usize| self.all.get(worker).map_or(usize::MAX, |(load, _)| load.load(Ordering::Relaxed));
        (0..self.all.len()).fold(own, |least, worker| if load(worker) < load(least) { worker } else { least })
    }

    fn load(self: &Arc<Self>, worker: usize) -> Load {
        if let Some((load, _)) = self.all.get(worker) {
            load.fetch_add(1, Ordering::Relaxed);
        }
        Load { workers: Arc::clone(self), worker }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        if let Some((load, _)) = self.workers.all.get(self.worker) {
            load.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Serves a connection that the worker `own` accepted, or hands it to a worker that has fewer.
pub fn accepted<S: Service>(
    worker: &Rc<Worker<S>>,
    (workers, own): (&Arc<Workers>, usize),
    listener: usize,
    raw: RawSocket,
    arriving: ArrivalGuard,
) {
    let least = workers.least_loaded(own);
    let load = workers.load(least);
    match workers.all.get(least) {
        Some((_, other)) if least != own => match raw.into_descriptor() {
            // a worker that ended serves nobody
            Ok(descriptor) => drop(other.send(HandedOver { listener, descriptor, arriving, load })),
            Err(error) => tracing::debug!(%error, "a connection ended on its way to another worker"),
        },
        _ => serve(worker, listener, raw, arriving, load),
    }
}

/// Serves connections that other workers hand over, as long as this is polled.
pub async fn receive<S: Service>(worker: &Rc<Worker<S>>, mut received: mpsc::UnboundedReceiver<HandedOver>) {
    while let Some(HandedOver { listener, descriptor, arriving, load }) = received.recv().await {
        match RawSocket::from_descriptor(descriptor) {
            Ok(raw) => serve(worker, listener, raw, arriving, load),
            Err(error) => tracing::debug!(%error, "a connection ended on its way to another worker"),
        }
    }
}

fn serve<S: Service>(worker: &Rc<Worker<S>>, listener: usize, raw: RawSocket, arriving: ArrivalGuard, load: Load) {
    let (clock, worker) = (Rc::clone(&worker.clock), Rc::clone(worker));
    tokio::task::spawn_local(async move {
        clock.run(pin!(connection::serve(worker, listener, raw, arriving))).await;
        drop(load);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_go_to_the_worker_that_has_the_fewest() {
        let (workers, _receivers) = Workers::new(3);
        let mut held = Vec::new();
        for _ in 0..9 {
            // all of them come in at the same worker
            held.push(workers.load(workers.least_loaded(1)));
        }
        let counts = |workers: &Workers| -> Vec<usize> {
            workers.all.iter().map(|(load, _)| load.load(Ordering::Relaxed)).collect()
        };
        assert_eq!(counts(&workers), [3, 3, 3]);
        held.retain(|load| load.worker != 2);
        assert_eq!((counts(&workers), workers.least_loaded(1)), (vec![3, 3, 0], 2));
    }
}
