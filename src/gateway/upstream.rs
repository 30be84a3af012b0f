//! The nodes of an upstream: their states, and the choice of a node for each request.

use std::sync::Arc;

use parking_lot::Mutex;
use smallvec::SmallVec;

use crate::http::upstream::{Address, Server};
use crate::ruleset::upstream::{Balance, Upstream};
use crate::units::{LimitKey, Nanos};

mod balance;
pub mod health;
mod limiter;
mod node;
mod outlier;
mod tls;

pub use limiter::{UpstreamLimiter, UpstreamPermit};
pub use node::{Instance, NodeAddress};
pub use tls::TlsConnector;

use balance::Candidate;
use node::NodeState;

/// Choosing among up to this number of instances allocates no memory.
const FEW: usize = 8;

/// An upstream of a running gateway.
pub struct Pool {
    /// The upstream, as configured.
    pub upstream: Upstream,
    /// The TLS settings for its nodes; `None` for plain connections.
    upstream_tls: Option<Arc<TlsConnector>>,
    nodes: Vec<Arc<NodeState>>,
    /// The lock for turns in round robin: one request at a time takes its turn.
    round_robin_lock: Mutex<()>,
    /// The places for requests, if their number at its nodes is bounded.
    pub limiter: Option<Arc<UpstreamLimiter>>,
    /// The same limiter; if their number is not bounded now, that of the last pool with a bound, whose requests may still run.
    last_limiter: Option<Arc<UpstreamLimiter>>,
}

/// An instance of a node, chosen for a request; counts as in flight there until it is dropped.
#[derive(Debug)]
pub struct ChosenInstance {
    /// The node's position in the upstream.
    pub node: usize,
    /// Where to connect to.
    pub instance: Arc<Instance>,
}

impl Drop for ChosenInstance {
    fn drop(&mut self) {
        self.instance.end();
    }
}

/// The status of an instance, or of a node that has none, for operators.
#[derive(Debug, PartialEq, Eq)]
pub struct NodeStatus<'a> {
    /// The node, as configured.
    pub address: &'a str,
    /// The address that its host name was resolved to.
    pub resolved: Option<String>,
    /// Whether requests are sent to it, unless it is ejected.
    pub healthy: bool,
    /// Whether requests are sent to it only if no other is healthy, because requests or a connection to it failed.
    pub ejected: bool,
    /// Why its last health check failed, if that is why no requests are sent to it, and why its host name cannot be resolved.
    pub failure: Option<String>,
}

// === impl Pool ===

impl Pool {
    /// The server at one of a node's addresses, with its protocol and TLS settings.
    pub fn server_at(&self, address: &NodeAddress, node: usize) -> Server {
        let tls = match (&self.upstream_tls, address, self.upstream.nodes.get(node)) {
            (Some(tls), Address::Inet(_), Some(node)) => Some(tls.settings_for(&node.address, self.upstream.http2)),
            _ => None,
        };
        Server { address: address.clone(), tls, http2: self.upstream.http2 }
    }

    /// The host that the gateway names in its own requests to one of a node's addresses.
    pub fn host_at(&self, address: &NodeAddress, node: usize) -> &str {
        match (address, self.upstream.nodes.get(node)) {
            (NodeAddress::Inet(_), Some(node)) => &node.address,
            // the path of a socket is no host, and servers refuse it as one
            _ => "localhost",
        }
    }

    /// The pool of `upstream` that replaces the pool `before`: the same pool, if nothing changed. Nodes that stay keep their
    /// state, without ejections by another rule; new nodes are healthy, and have no address yet if they are configured as host
    /// names.
    pub fn reuse_or_new(
        upstream: &Upstream,
        upstream_tls: Option<Arc<TlsConnector>>,
        before: Option<&Arc<Self>>,
    ) -> Arc<Self> {
        match before {
            Some(before) if before.upstream == *upstream && before.upstream_tls == upstream_tls => Arc::clone(before),
            _ => Arc::new(Self::new(upstream.clone(), upstream_tls, before.map(|before| &**before))),
        }
    }

    fn new(upstream: Upstream, upstream_tls: Option<Arc<TlsConnector>>, before: Option<&Self>) -> Self {
        let checked = |upstream: &Upstream| upstream.health_check.is_some();
        let rules = |upstream: &Upstream| (checked(upstream), upstream.ejection);
        let known = |address: &str| {
            let before = before?;
            let position = before.upstream.nodes.iter().position(|node| node.address == address)?;
            Some((before.nodes.get(position)?, rules(&before.upstream)))
        };
        let nodes = upstream.nodes.iter().map(|node| match known(&node.address) {
            Some((state, before)) if before == rules(&upstream) => Arc::clone(state),
            Some((state, (was_checked, _))) => Arc::new(state.under_other_rules(was_checked == checked(&upstream))),
            None => Arc::new(NodeState::new(&node.address)),
        });
        let nodes = nodes.collect();
        let former = before.and_then(|before| before.last_limiter.clone());
        let last_limiter = former.or_else(|| upstream.max_requests.map(UpstreamLimiter::new));
        let limiter = last_limiter.clone().filter(|_| upstream.max_requests.is_some());
        Self { upstream, upstream_tls, nodes, round_robin_lock: Mutex::new(()), limiter, last_limiter }
    }

    /// Puts `max_requests` of this pool in force. The pool before it has the same limiter, so a reload calls this when it swaps
    /// them.
    pub fn apply_max_requests(&self) {
        if let Some(limiter) = &self.last_limiter {
            limiter.resize(self.upstream.max_requests.unwrap_or(u64::MAX));
        }
    }

    /// Chooses a healthy instance for a request, other than those in `tried`; `hash` is the value that `consistent_hash`
    /// balances by. `None` if there is none.
    ///
    /// An ejected instance, also one whose connection failed a moment ago, is used only if there is no other.
    pub fn choose(&self, tried: &[Arc<Instance>], hash: Option<LimitKey>, now: Nanos) -> Option<ChosenInstance> {
        let (node, instance) = self.choose_healthy(tried, hash, now)?;
        instance.begin();
        Some(ChosenInstance { node, instance })
    }

    fn choose_healthy(
        &self,
        tried: &[Arc<Instance>],
        hash: Option<LimitKey>,
        now: Nanos,
    ) -> Option<(usize, Arc<Instance>)> {
        let nodes: SmallVec<[_; FEW]> = self.nodes.iter().map(|node| node.instances()).collect();
        let instances = nodes.iter().enumerate().flat_map(|(node, of)| of.iter().map(move |instance| (node, instance)));
        let is_usable =
            |instance: &Arc<Instance>| instance.is_healthy() && !tried.iter().any(|tried| Arc::ptr_eq(tried, instance));
        let mut usable: SmallVec<[_; FEW]> = instances.filter(|(_, instance)| is_usable(instance)).collect();
        if usable.iter().any(|(_, instance)| !instance.is_ejected(now)) {
            usable.retain(|(_, instance)| !instance.is_ejected(now));
        }
        let candidates = usable.iter().map(|(node, instance)| Candidate {
            name: instance.name(),
            weight: instance.weight(self.upstream.nodes[*node].weight, self.upstream.slow_start, now),
            in_flight: instance.in_flight(),
            current_weight: &instance.current_weight,
        });
        let candidates: SmallVec<[Candidate<'_>; FEW]> = candidates.collect();
        let chosen = match &self.upstream.balance {
            _ if candidates.len() == 1 => Some(0),
            Balance::RoundRobin => {
                let _guard = self.round_robin_lock.lock();
                balance::round_robin(&candidates)
            }
            Balance::Random => balance::random(&candidates, &mut rand::rng()),
            Balance::LeastRequests => balance::least_requests(&candidates, &mut rand::rng()),
            Balance::ConsistentHash(_) => match hash {
                Some(hash) => balance::rendezvous(&candidates, hash),
                None => balance::random(&candidates, &mut rand::rng()),
            },
        }?;
        usable.get(chosen).map(|(node, instance)| (*node, Arc::clone(instance)))
    }

    /// Notes the result of a request to `instance`. Returns the duration of the ejection, if the result ejects the instance.
    pub(super) fn record_result(&self, instance: &Instance, is_success: bool, now: Nanos) -> Option<Nanos> {
        let rule = self.upstream.ejection?;
        if is_success {
            instance.outlier.record_success(rule, now);
            return None;
        }
        instance.outlier.record_failure(rule, now, || {
            let all = self.instances();
            let ejected = all.iter().filter(|(_, instance)| instance.outlier.is_ejected(now)).count();
            ejected.saturating_mul(100) <= all.len().saturating_mul(rule.max_percent)
        })
    }

    /// All instances, with the positions of their nodes.
    fn instances(&self) -> Vec<(usize, Arc<Instance>)> {
        let of_node = |(position, node): (usize, &Arc<NodeState>)| -> Vec<(usize, Arc<Instance>)> {
            node.instances().iter().map(|instance| (position, Arc::clone(instance))).collect()
        };
        self.nodes.iter().enumerate().flat_map(of_node).collect()
    }

    /// Whether any node has an address.
    pub fn has_address(&self) -> bool {
        self.nodes.iter().any(|node| !node.instances().is_empty())
    }

    /// The addresses of all instances, by which limits count nodes.
    pub fn instance_names(&self) -> Vec<String> {
        self.instances().iter().map(|(_, instance)| instance.name().to_owned()).collect()
    }

    /// The number of healthy instances.
    pub fn healthy_count(&self) -> usize {
        self.instances().iter().filter(|(_, instance)| instance.is_healthy()).count()
    }

    /// The status of each instance, and of each node that has none.
    pub fn node_statuses(&self, now: Nanos) -> Vec<NodeStatus<'_>> {
        let mut statuses = Vec::new();
        for (node, state) in self.upstream.nodes.iter().zip(&self.nodes) {
            let address = node.address.as_str();
            let instances = state.instances();
            if instances.is_empty() {
                let failure = state.failure(None);
                statuses.push(NodeStatus { address, resolved: None, healthy: false, ejected: false, failure });
            }
            statuses.extend(instances.iter().map(|instance| NodeStatus {
                address,
                resolved: node::address_of(address).is_none().then(|| instance.name().to_owned()),
                healthy: instance.is_healthy(),
                ejected: instance.is_ejected(now),
                failure: state.failure(Some(instance)),
            }));
        }
        statuses
    }

    fn set_health(&self, node: usize, instance: &Instance, result: Result<(), String>, now: Nanos) {
        if !instance.set_health(result, now) {
            return;
        }
        let (upstream, written, address) = (&self.upstream.name, &self.upstream.nodes[node].address, instance.name());
        match instance.failure() {
            None => tracing::info!(upstream, node = written, address, "upstream node is healthy again"),
            Some(failure) => {
                let effect = match self.healthy_count() {
                    0 => "no node is healthy, and requests get 503",
                    _ => "requests go to the others",
                };
                tracing::warn!(upstream, node = written, address, failure, "upstream node is unhealthy: {effect}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ruleset::upstream::{Ejection, HealthCheck, Retries, Timeouts, UpstreamNode};

    fn pool(balance: Balance) -> Pool {
        let node = |port: u16| UpstreamNode { address: format!("127.0.0.1:{port}"), weight: 1 };
        let upstream = Upstream {
            name: "u".to_owned(),
            nodes: vec![node(1), node(2), node(3)],
            http2: false,
            balance,
            health_check: None,
            timeouts: Timeouts::default(),
            retries: Retries { attempts: 1 },
            slow_start: Nanos::from_secs(10),
            max_requests: None,
            max_pending: 0,
            ejection: None,
        };
        Pool::new(upstream, None, None)
    }

    const NOW: Nanos = Nanos::from_secs(1000);

    fn instance(pool: &Pool, position: usize) -> Arc<Instance> {
        Arc::clone(&pool.instances()[position].1)
    }

    fn set_health(pool: &Pool, position: usize, healthy: bool) {
        let result = if healthy { Ok(()) } else { Err("it answered 503".to_owned()) };
        pool.set_health(position, &instance(pool, position), result, NOW);
    }

    fn healthy(pool: &Pool) -> Vec<bool> {
        pool.node_statuses(NOW).iter().map(|node| node.healthy).collect()
    }

    #[test]
    fn an_unhealthy_node_is_not_chosen_and_without_a_healthy_one_there_is_no_choice() {
        let pool = pool(Balance::RoundRobin);
        set_health(&pool, 0, false);
        let chosen: Vec<usize> = (0..4).map(|_| pool.choose(&[], None, NOW).unwrap().node).collect();
        assert_eq!(chosen, [1, 2, 1, 2]);
        set_health(&pool, 1, false);
        set_health(&pool, 2, false);
        assert_eq!(pool.choose(&[], None, NOW).map(|chosen| chosen.node), None);
    }

    #[test]
    fn a_node_that_refused_a_connection_is_left_alone_while_there_are_others() {
        let pool = pool(Balance::RoundRobin);
        instance(&pool, 1).eject(NOW);
        assert!((0..6).all(|_| pool.choose(&[], None, NOW).unwrap().node != 1));
        instance(&pool, 0).eject(NOW);
        instance(&pool, 2).eject(NOW);
        assert!(pool.choose(&[], None, NOW).is_some());
        assert_eq!(pool.choose(&[instance(&pool, 0), instance(&pool, 2)], None, NOW).unwrap().node, 1);
    }

    #[test]
    fn a_node_that_comes_back_warms_up() {
        let pool = pool(Balance::RoundRobin);
        set_health(&pool, 0, false);
        set_health(&pool, 0, true);
        let share = |now: Nanos| (0..2100).filter(|_| pool.choose(&[], None, now).unwrap().node == 0).count();
        assert!(share(NOW) < 30);
        assert!((300..500).contains(&share(NOW.saturating_add(Nanos::from_secs(5)))));
        assert_eq!(share(NOW.saturating_add(Nanos::from_secs(10))), 700);
    }

    #[test]
    fn turns_under_former_weights_do_not_outlive_them() {
        let mut upstream = pool(Balance::RoundRobin).upstream;
        (upstream.nodes[0].weight, upstream.slow_start) = (1000, Nanos::ZERO);
        let before = Pool::reuse_or_new(&upstream, None, None);
        for _ in 0..500 {
            before.choose(&[], None, NOW).unwrap();
        }
        upstream.nodes[0].weight = 1;
        let after = Pool::reuse_or_new(&upstream, None, Some(&before));
        let mut taken = [0; 3];
        (0..30).for_each(|_| taken[after.choose(&[], None, NOW).unwrap().node] += 1);
        assert!(taken.iter().all(|turns| *turns >= 5), "{taken:?}");
    }

    #[test]
    fn requests_in_flight_are_counted_until_they_end() {
        let pool = pool(Balance::LeastRequests);
        let held: Vec<ChosenInstance> = (0..3).filter_map(|_| pool.choose(&[], None, NOW)).collect();
        let mut nodes: Vec<usize> = held.iter().map(|chosen| chosen.node).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, [0, 1, 2]);
        drop(held);
        assert!(pool.instances().iter().all(|(_, instance)| instance.in_flight() == 0));
    }

    #[test]
    fn requests_from_before_max_requests_was_removed_count_when_it_is_set_again() {
        let mut upstream = pool(Balance::RoundRobin).upstream;
        let mut reload = |max_requests, before: Option<&Arc<Pool>>| {
            upstream.max_requests = max_requests;
            let pool = Pool::reuse_or_new(&upstream, None, before);
            pool.apply_max_requests();
            pool
        };
        let limited = reload(Some(3), None);
        let permit = |pool: &Arc<Pool>| pool.limiter.as_ref().unwrap().try_acquire();
        let mut held: Vec<_> = (0..3).map_while(|_| permit(&limited)).collect();
        let unlimited = reload(None, Some(&limited));
        assert!(held.len() == 3 && unlimited.limiter.is_none());
        let again = reload(Some(2), Some(&unlimited));
        assert!(permit(&again).is_none());
        held.pop();
        assert!(permit(&again).is_none());
        held.pop();
        assert!(permit(&again).is_some());
    }

    #[test]
    fn the_state_of_a_node_outlives_a_change_of_its_upstream() {
        let before = Arc::new(pool(Balance::LeastRequests));
        set_health(&before, 0, false);
        let held = before.choose(&[instance(&before, 0), instance(&before, 1)], None, NOW).unwrap();
        assert!(Arc::ptr_eq(&before, &Pool::reuse_or_new(&before.upstream, None, Some(&before))), "nothing changed");
        let mut upstream = before.upstream.clone();
        upstream.nodes.remove(1);
        upstream.nodes.push(UpstreamNode { address: "127.0.0.1:4".to_owned(), weight: 1 });
        let after = Pool::reuse_or_new(&upstream, None, Some(&before));
        assert_eq!(healthy(&after), [false, true, true]);
        assert_eq!(after.choose(&[], None, NOW).unwrap().node, 2, "the other one has a request in flight");
        drop(held);
        assert!(after.instances().iter().all(|(_, instance)| instance.in_flight() == 0));
        upstream.ejection = Some(Ejection { after: 1, time: Nanos::SECOND, max_percent: 50 });
        assert_eq!(healthy(&Pool::reuse_or_new(&upstream, None, Some(&after))), [false, true, true]);
        // a change to or from health checks makes all nodes healthy: without checks an unhealthy node would stay unhealthy
        upstream.health_check = Some(HealthCheck {
            path: "/".to_owned(),
            every: Nanos::SECOND,
            timeout: Nanos::SECOND,
            healthy_after: 1,
            unhealthy_after: 1,
        });
        assert_eq!(healthy(&Pool::reuse_or_new(&upstream, None, Some(&after))), [true; 3]);
    }
}
