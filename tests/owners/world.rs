//! Gateways in virtual time.
//!
//! Each gateway runs on a runtime of its own. Its clock stands still until the world moves it on, by no more than a message
//! takes at least: so nothing arrives in a gateway's past. All of it runs on one thread, and the same seed gives the same world.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, sleep};
use tollgate::clock::Clock;
use tollgate::cluster::Report;
use tollgate::cluster::state_service::StateService;
use tollgate::units::Nanos;

use crate::network::{Network, Port};
use crate::node::{Node, Setup};

/// Some minutes after a full hour: no window of an hour ends while a world lasts.
const BEGINNING: Nanos = Nanos::from_secs(1_800_000_600);

pub(crate) const fn ms(count: u64) -> Nanos {
    Nanos::new(count * 1_000_000)
}

/// The time of one gateway's runtime.
pub(crate) struct VirtualClock {
    origin: Instant,
    base: Nanos,
    last: AtomicU64,
}

impl VirtualClock {
    #[expect(clippy::disallowed_methods, reason = "the time of the runtime is virtual")]
    fn starting_at(base: Nanos) -> Self {
        Self { origin: Instant::now(), base, last: AtomicU64::new(base.get()) }
    }

    pub(crate) fn instant(&self, at: Nanos) -> Instant {
        self.origin + at.saturating_sub(self.base).to_duration()
    }
}

impl Clock for VirtualClock {
    #[expect(clippy::disallowed_methods, reason = "the time of the runtime is virtual")]
    fn now(&self) -> Nanos {
        // outside its runtime the gateway's time stands still
        if Handle::try_current().is_ok() {
            let now = self.base.saturating_add((Instant::now() - self.origin).into());
            self.last.store(now.get(), Ordering::Relaxed);
        }
        Nanos::new(self.last.load(Ordering::Relaxed))
    }
}

/// See the module.
pub(crate) struct World {
    pub(crate) now: Nanos,
    /// How far a gateway runs before the others do.
    step: Nanos,
    pub(crate) network: Arc<Network>,
    setup: Arc<Setup>,
    /// By their addresses' numbers, in this order.
    pub(crate) gateways: Vec<Gateway>,
}

/// A gateway that runs.
pub(crate) struct Gateway {
    pub(crate) number: usize,
    pub(crate) node: Arc<Node>,
    runtime: Runtime,
    stalled_until: Nanos,
}

impl Gateway {
    /// Begins to do `work` on the gateway's runtime.
    pub(crate) fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.spawn(work)
    }

    fn run(&self, from: Nanos, until: Nanos) {
        let at = until.saturating_sub(BEGINNING);
        let _span = tracing::info_span!("gateway", number = self.number, %at).entered();
        self.runtime.block_on(async {
            let now = self.node.clock.now();
            if now < from {
                advance(from.saturating_sub(now).to_duration()).await;
            }
            let left = until.saturating_sub(self.node.clock.now());
            sleep(left.to_duration()).await;
        });
    }
}

impl World {
    /// Of so many addresses, between which a message takes from `delay.0` to `delay.1` milliseconds.
    pub(crate) fn new(seed: u64, addresses: u8, delay: (u64, u64), setup: Setup) -> Self {
        let network = Arc::new(Network::new(seed, addresses, delay));
        Self { now: BEGINNING, step: ms(delay.0), network, setup: Arc::new(setup), gateways: Vec::new() }
    }

    /// Starts a gateway at the address of this number.
    pub(crate) fn start(&mut self, number: usize) {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let members: Vec<SocketAddr> = self.network.addresses();
        let guard = runtime.enter();
        let clock = Arc::new(VirtualClock::starting_at(self.now));
        let port = Port { number, network: Arc::clone(&self.network), clock: Arc::clone(&clock) };
        let node = Arc::new(Node::new(members[number], &members, &self.setup, Arc::clone(&clock) as _, Arc::new(port)));
        drop(guard);
        let (accepts, accepted) = mpsc::channel(1024);
        let (running, service) = (Arc::clone(&node), Arc::clone(&node.store) as Arc<dyn StateService>);
        runtime.spawn(async move { running.cluster().run(service, accepted).await });
        self.network.start(number, accepts, clock);
        self.gateways.push(Gateway { number, node, runtime, stalled_until: self.now });
        self.gateways.sort_by_key(|gateway| gateway.number);
    }

    /// Ends a gateway. If it is `silent`, the others hear nothing of it any more, else the system ends its connections.
    pub(crate) fn end(&mut self, number: usize, silent: bool) {
        self.network.end(number, silent);
        let place = self.gateways.iter().position(|gateway| gateway.number == number).unwrap();
        drop(self.gateways.remove(place));
    }

    /// Nothing of a gateway happens for as long.
    pub(crate) fn stall(&mut self, number: usize, time: Nanos) {
        let until = self.now.saturating_add(time);
        let stalled = self.gateways.iter_mut().find(|gateway| gateway.number == number).unwrap();
        stalled.stalled_until = stalled.stalled_until.max(until);
    }

    pub(crate) fn step(&mut self) {
        let until = self.now.saturating_add(self.step);
        for gateway in self.gateways.iter().filter(|gateway| gateway.stalled_until <= self.now) {
            gateway.run(self.now, until);
        }
        self.now = until;
    }

    pub(crate) fn pass(&mut self, time: Nanos) {
        let until = self.now.saturating_add(time);
        while self.now < until {
            self.step();
        }
    }

    /// Whether `holds` within a time.
    pub(crate) fn comes(&mut self, within: Nanos, mut holds: impl FnMut(&mut Self) -> bool) -> bool {
        let until = self.now.saturating_add(within);
        while !holds(self) {
            if self.now > until {
                return false;
            }
            self.pass(ms(10));
        }
        true
    }

    pub(crate) fn gateway(&self, number: usize) -> &Gateway {
        self.gateways.iter().find(|gateway| gateway.number == number).unwrap()
    }

    /// Has a gateway do something, while time passes.
    pub(crate) fn ask<T: Send + 'static>(
        &mut self,
        number: usize,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        let asked = self.gateway(number).spawn(work);
        while !asked.is_finished() {
            self.step();
        }
        self.gateway(number).runtime.block_on(asked).unwrap()
    }

    pub(crate) const fn setup(&self) -> &Arc<Setup> {
        &self.setup
    }

    pub(crate) fn elapsed(&self) -> Nanos {
        self.now.saturating_sub(BEGINNING)
    }

    pub(crate) fn reports(&self) -> Vec<Report> {
        self.gateways.iter().map(|gateway| gateway.node.cluster().report()).collect()
    }

    /// Whether all see the same members, and no key moves.
    pub(crate) fn agree(&self) -> bool {
        self.gateways.iter().all(|gateway| {
            let cluster = gateway.node.cluster();
            cluster.report().members.len() == self.gateways.len() && !cluster.is_migrating()
        })
    }

    /// Whether nothing is under way between gateways that agree.
    pub(crate) fn is_quiet(&self) -> bool {
        self.agree() && self.gateways.iter().all(|gateway| gateway.node.store.is_settled())
    }
}
