//! Gateways in virtual time.
//!
//! Each gateway has its own runtime. Its clock stands still until the world advances it, by at most the shortest message
//! delay, so no message arrives in a gateway's past. Everything runs on one thread, and the same seed gives the same world.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinHandle;
use tokio::time::{Instant, advance, sleep};
use tollgate::clock::Clock;
use tollgate::units::Nanos;

use crate::node::Node;

/// Some minutes after a full hour: no window of an hour ends while a world lasts.
const BEGINNING: Nanos = Nanos::from_secs(1_800_000_600);

pub(crate) const fn ms(count: u64) -> Nanos {
    Nanos::new(count * 1_000_000)
}

/// The clock of one gateway's runtime.
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

/// The surroundings of the gateways: a network, and perhaps a Redis.
pub(crate) trait Environment {
    /// Advances the surroundings to `until`, before the gateways reach it.
    fn pass(&mut self, until: Nanos);
}

/// See the module.
pub(crate) struct World<A> {
    pub(crate) now: Nanos,
    /// The time that a gateway runs before the others do.
    step: Nanos,
    pub(crate) environment: A,
    /// The gateways in the order of their numbers.
    pub(crate) gateways: Vec<Gateway>,
}

/// A running gateway.
pub(crate) struct Gateway {
    pub(crate) number: usize,
    pub(crate) node: Arc<Node>,
    pub(crate) clock: Arc<VirtualClock>,
    runtime: Runtime,
    stalled_until: Nanos,
}

impl Gateway {
    /// Starts `work` on the gateway's runtime.
    pub(crate) fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.spawn(work)
    }

    fn run(&self, from: Nanos, until: Nanos) {
        let at = until.saturating_sub(BEGINNING);
        let _span = tracing::info_span!("gateway", number = self.number, %at).entered();
        self.runtime.block_on(async {
            let now = self.clock.now();
            if now < from {
                advance(from.saturating_sub(now).to_duration()).await;
            }
            let left = until.saturating_sub(self.clock.now());
            sleep(left.to_duration()).await;
        });
    }
}

impl<A: Environment> World<A> {
    /// A world without gateways, in which a message takes at least `step`.
    pub(crate) const fn new(step: Nanos, environment: A) -> Self {
        Self { now: BEGINNING, step, environment, gateways: Vec::new() }
    }

    /// Starts a gateway with this number; `made` makes its node on the gateway's runtime with its clock.
    pub(crate) fn add(&mut self, number: usize, made: impl FnOnce(&Arc<VirtualClock>) -> Node) -> &Gateway {
        let runtime = Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let entered = runtime.enter();
        let clock = Arc::new(VirtualClock::starting_at(self.now));
        let node = Arc::new(made(&clock));
        drop(entered);
        self.gateways.push(Gateway { number, node, clock, runtime, stalled_until: self.now });
        self.gateways.sort_by_key(|gateway| gateway.number);
        self.gateway(number)
    }

    /// Ends a gateway.
    pub(crate) fn remove(&mut self, number: usize) {
        let place = self.gateways.iter().position(|gateway| gateway.number == number).unwrap();
        drop(self.gateways.remove(place));
    }

    /// Stalls a gateway for this time.
    pub(crate) fn stall(&mut self, number: usize, time: Nanos) {
        let until = self.now.saturating_add(time);
        let stalled = self.gateways.iter_mut().find(|gateway| gateway.number == number).unwrap();
        stalled.stalled_until = stalled.stalled_until.max(until);
    }

    pub(crate) fn step(&mut self) {
        let until = self.now.saturating_add(self.step);
        self.environment.pass(until);
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

    /// Whether `holds` becomes true within this time.
    pub(crate) fn wait_until(&mut self, within: Nanos, mut holds: impl FnMut(&mut Self) -> bool) -> bool {
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

    /// Runs `work` on a gateway while time passes, and returns its result.
    pub(crate) fn run_on<T: Send + 'static>(
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

    pub(crate) fn elapsed(&self) -> Nanos {
        self.now.saturating_sub(BEGINNING)
    }
}
