//! A node of an upstream, and its instances: one for each address that its host name resolves to.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use arc_swap::{ArcSwap, Guard};
use parking_lot::Mutex;

use super::outlier::OutlierState;
use crate::units::Nanos;

/// How long an instance is ejected after a connection to it failed; it is used all the same if there are no others.
const EJECTION: Nanos = Nanos::from_secs(1);

/// The address that an instance listens at.
pub use crate::http::upstream::Address as NodeAddress;

/// The state of one node.
#[derive(Debug)]
pub(super) struct NodeState {
    /// One instance; for a host name one for each address, and none before the name is resolved.
    instances: ArcSwap<Vec<Arc<Instance>>>,
    /// Whether a configuration has waited for the addresses of this node: later ones that have the node do not wait again.
    was_awaited: AtomicBool,
    /// Why the last resolution of the host name failed, if it did.
    unresolved: Mutex<Option<String>>,
}

/// The state of one address of a node.
#[derive(Debug)]
pub struct Instance {
    /// The address to connect to.
    pub address: NodeAddress,
    name: String,
    healthy: AtomicBool,
    /// The result of the last failed health check, while the instance is unhealthy.
    failure: Mutex<Option<String>>,
    /// When the instance began to warm up; 0 if it does not warm up.
    healthy_since: AtomicU64,
    ejected_until: AtomicU64,
    pub(super) outlier: OutlierState,
    in_flight: Arc<AtomicU64>,
    /// The instance's current weight in smooth weighted round robin.
    pub(super) current_weight: AtomicI64,
}

/// The address of a node that is configured as `written`; `None` for a host name.
pub(super) fn address_of(written: &str) -> Option<NodeAddress> {
    match written.strip_prefix("unix:") {
        Some(path) => Some(NodeAddress::Unix(path.into())),
        None => written.parse().ok().map(NodeAddress::Inet),
    }
}

// === impl NodeState ===

impl NodeState {
    /// Creates a node that is configured as `written`; its instances are healthy.
    pub(super) fn new(written: &str) -> Self {
        let instance = address_of(written).map(|address| Arc::new(Instance::new(address, None)));
        Self {
            instances: ArcSwap::from_pointee(instance.into_iter().collect()),
            was_awaited: AtomicBool::new(false),
            unresolved: Mutex::default(),
        }
    }

    /// The same node under other rules: failed requests have ejected none of its instances, and all are healthy until a health
    /// check says otherwise, unless they keep their health.
    pub(super) fn under_other_rules(&self, keeps_health: bool) -> Self {
        let instances = self.instances();
        let copies = instances.iter().map(|instance| Arc::new(instance.under_other_rules(keeps_health)));
        Self {
            instances: ArcSwap::from_pointee(copies.collect()),
            was_awaited: AtomicBool::new(true),
            unresolved: Mutex::new(self.unresolved.lock().clone()),
        }
    }

    /// Whether no configuration has waited for the addresses of this node. The caller waits for them now.
    pub(super) fn is_first_wait(&self) -> bool {
        !self.was_awaited.swap(true, Ordering::Relaxed)
    }

    pub(super) fn instances(&self) -> Guard<Arc<Vec<Arc<Instance>>>> {
        self.instances.load()
    }

    /// Sets the addresses that the host name resolves to now. Instances whose address stays keep their state; an instance
    /// that is added later than the first ones warms up.
    pub(super) fn set_addresses(&self, mut addresses: Vec<SocketAddr>, now: Nanos) {
        addresses.sort_unstable();
        addresses.dedup();
        let before = self.instances();
        let since = (!before.is_empty()).then_some(now);
        let instance = |address: SocketAddr| {
            let address = NodeAddress::Inet(address);
            let known = before.iter().find(|instance| instance.address == address);
            known.cloned().unwrap_or_else(|| Arc::new(Instance::new(address, since)))
        };
        self.instances.store(Arc::new(addresses.into_iter().map(instance).collect()));
        *self.unresolved.lock() = None;
    }

    /// Notes why the host name cannot be resolved now. The instances stay.
    pub(super) fn set_unresolved(&self, failure: String) {
        *self.unresolved.lock() = Some(failure);
    }

    /// Why `instance`, or a node without instances, gets no requests or may be at another address by now.
    pub(super) fn failure(&self, instance: Option<&Instance>) -> Option<String> {
        let unresolved = self.unresolved.lock().as_ref().map(|error| format!("cannot resolve the host name: {error}"));
        let unhealthy = instance.and_then(Instance::failure);
        let all: Vec<String> = unhealthy.into_iter().chain(unresolved).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

// === impl Instance ===

impl Instance {
    fn new(address: NodeAddress, healthy_since: Option<Nanos>) -> Self {
        Self {
            name: address.to_string(),
            address,
            healthy: AtomicBool::new(true),
            failure: Mutex::default(),
            healthy_since: AtomicU64::new(healthy_since.map_or(0, Nanos::get)),
            ejected_until: AtomicU64::new(0),
            outlier: OutlierState::default(),
            in_flight: Arc::default(),
            current_weight: AtomicI64::new(0),
        }
    }

    fn under_other_rules(&self, keeps_health: bool) -> Self {
        let copy = |value: &AtomicU64| AtomicU64::new(value.load(Ordering::Relaxed));
        Self {
            name: self.name.clone(),
            address: self.address.clone(),
            healthy: AtomicBool::new(!keeps_health || self.is_healthy()),
            failure: Mutex::new(self.failure().filter(|_| keeps_health)),
            healthy_since: if keeps_health { copy(&self.healthy_since) } else { AtomicU64::new(0) },
            ejected_until: copy(&self.ejected_until),
            outlier: OutlierState::default(),
            in_flight: Arc::clone(&self.in_flight),
            current_weight: AtomicI64::new(0),
        }
    }

    /// The address in text.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn is_healthy(&self) -> bool {
        self.healthy.load(Ordering::Relaxed)
    }

    /// Why the instance is unhealthy, if it is.
    pub(super) fn failure(&self) -> Option<String> {
        self.failure.lock().clone()
    }

    /// Marks the instance as healthy or, with the reason, as unhealthy. Returns whether that is a change.
    pub(super) fn set_health(&self, result: Result<(), String>, now: Nanos) -> bool {
        let healthy = result.is_ok();
        *self.failure.lock() = result.err();
        let is_news = self.healthy.swap(healthy, Ordering::Relaxed) != healthy;
        if is_news && healthy {
            self.healthy_since.store(now.get(), Ordering::Relaxed);
        }
        is_news
    }

    /// Ejects the instance after a failed connection. Returns whether it was not ejected before.
    pub(in crate::gateway) fn eject(&self, now: Nanos) -> bool {
        let before = self.ejected_until.swap(now.saturating_add(EJECTION).get(), Ordering::Relaxed);
        before <= now.get()
    }

    pub(super) fn is_ejected(&self, now: Nanos) -> bool {
        self.ejected_until.load(Ordering::Relaxed) > now.get() || self.outlier.is_ejected(now)
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    pub(super) fn begin(&self) {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// The configured weight in thousandths; less while the instance warms up, but at least a hundredth of it.
    pub(super) fn weight(&self, configured: u32, slow_start: Nanos, now: Nanos) -> u64 {
        let full = u64::from(configured) * 1000;
        let since = self.healthy_since.load(Ordering::Relaxed);
        let up = now.get().saturating_sub(since);
        if since == 0 || up >= slow_start.get() {
            return full;
        }
        let ramped = u128::from(full) * u128::from(up) / u128::from(slow_start.get().max(1));
        u64::try_from(ramped).unwrap_or(full).max(full / 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::from_secs(1000);

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, last], 80))
    }

    #[test]
    fn an_instance_whose_address_stays_keeps_its_state() {
        let node = NodeState::new("many.test:80");
        assert!(node.instances().is_empty());
        node.set_addresses(vec![address(2), address(1), address(2)], NOW);
        let before = node.instances();
        assert_eq!(
            before.iter().map(|instance| instance.name.as_str()).collect::<Vec<_>>(),
            ["10.0.0.1:80", "10.0.0.2:80"]
        );
        before[1].set_health(Err("it answered 503".to_owned()), NOW);
        node.set_addresses(vec![address(3), address(2)], NOW);
        let after = node.instances();
        assert!(Arc::ptr_eq(&before[1], &after[0]));
        assert_eq!(after.iter().map(|instance| instance.is_healthy()).collect::<Vec<_>>(), [false, true]);
        let full = |instance: &Instance| instance.weight(1, Nanos::from_secs(10), NOW) == 1000;
        assert_eq!((full(&before[0]), full(&after[1])), (true, false), "one that comes later warms up");
    }
}
