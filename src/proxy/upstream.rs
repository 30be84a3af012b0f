//! The nodes of an upstream: which one a request goes to, and what is known of each.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use crate::ruleset::upstream::{Balance, Upstream};
use crate::units::{LimitKey, Nanos};

mod balance;
pub mod deadline;
mod exchange;
pub mod health;
mod securing;

pub use exchange::{answered, broke_off, connect_failed, log_failure, peer};
pub use securing::{Ending, Securing};

use balance::Candidate;

/// How long a node is left alone after a connection to it failed, as long as there are others.
const EJECTION: Nanos = Nanos::from_secs(1);

/// An upstream while tollgate runs.
#[derive(Debug)]
pub struct Pool {
    /// As configured.
    pub upstream: Upstream,
    /// How TLS is spoken to its nodes, if it is.
    securing: Option<Arc<Securing>>,
    nodes: Vec<Arc<NodeState>>,
    /// The current weights of smooth weighted round robin, one per node.
    turns: Mutex<Vec<i64>>,
}

/// What is known of one node.
#[derive(Debug)]
struct NodeState {
    /// The address that requests go to; a host name's is found out in the background.
    address: ArcSwapOption<NodeAddress>,
    healthy: AtomicBool,
    /// When the node became healthy again; 0 if it always was.
    healthy_since: AtomicU64,
    ejected_until: AtomicU64,
    in_flight: Arc<AtomicU64>,
}

/// Where a node listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeAddress {
    /// At an address and a port.
    Inet(SocketAddr),
    /// At a path in the file system.
    Unix(PathBuf),
}

impl NodeAddress {
    /// Where a node listens that is written like this; `None` of a host name.
    fn of(written: &str) -> Option<Self> {
        match written.strip_prefix("unix:") {
            Some(path) => Some(Self::Unix(path.into())),
            None => written.parse().ok().map(Self::Inet),
        }
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A node chosen for a request; counts as in flight there until it is dropped.
#[derive(Debug)]
pub struct Chosen {
    /// The node's position in the upstream.
    pub node: usize,
    /// Where to connect to.
    pub address: NodeAddress,
    in_flight: Arc<AtomicU64>,
}

impl Drop for Chosen {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

// === impl Pool ===

impl Pool {
    /// The pool of `upstream` in place of the one `before`: that one, if nothing changed. What is known of nodes that
    /// stay is kept; new ones are healthy, and have no address yet where they are written as host names.
    pub fn following(upstream: &Upstream, securing: Option<Arc<Securing>>, before: Option<&Arc<Self>>) -> Arc<Self> {
        match before {
            Some(before) if before.upstream == *upstream && before.securing == securing => Arc::clone(before),
            _ => Arc::new(Self::new(upstream.clone(), securing, before.map(|before| &**before))),
        }
    }

    fn new(upstream: Upstream, securing: Option<Arc<Securing>>, before: Option<&Self>) -> Self {
        let checked = |upstream: &Upstream| upstream.health_check.is_some();
        let known = |address: &str| {
            let before = before?;
            let position = before.upstream.nodes.iter().position(|node| node.address == address)?;
            Some((before.nodes.get(position)?, checked(&before.upstream)))
        };
        let nodes = upstream.nodes.iter().map(|node| match known(&node.address) {
            Some((state, was_checked)) if was_checked == checked(&upstream) => Arc::clone(state),
            Some((state, _)) => Arc::new(state.unjudged()),
            None => Arc::new(NodeState::new(&node.address)),
        });
        let nodes: Vec<Arc<NodeState>> = nodes.collect();
        let turns = Mutex::new(vec![0; nodes.len()]);
        Self { upstream, securing, nodes, turns }
    }

    /// Chooses a node for a request, other than those in `tried`; `hash` is of the part that `consistent_hash` goes by.
    ///
    /// `None` if no node is healthy. A node whose connection failed a moment ago is used only if there is no other.
    pub fn choose(&self, tried: &[usize], hash: Option<LimitKey>, now: Nanos) -> Option<Chosen> {
        let candidates = |ejected_too: bool| -> Vec<Candidate<'_>> {
            let nodes = self.nodes.iter().enumerate();
            nodes
                .filter(|(position, node)| {
                    !tried.contains(position)
                        && node.healthy.load(Ordering::Relaxed)
                        && node.address.load().is_some()
                        && (ejected_too || node.ejected_until.load(Ordering::Relaxed) <= now.get())
                })
                .map(|(position, node)| Candidate {
                    node: position,
                    name: &self.upstream.nodes[position].address,
                    weight: node.weight(self.upstream.nodes[position].weight, self.upstream.slow_start, now),
                    in_flight: node.in_flight.load(Ordering::Relaxed),
                })
                .collect()
        };
        let mut open = candidates(false);
        if open.is_empty() {
            open = candidates(true);
        }
        let node = match &self.upstream.balance {
            Balance::RoundRobin => balance::round_robin(&open, &mut self.turns.lock()),
            Balance::Random => balance::random(&open, &mut rand::rng()),
            Balance::LeastRequests => balance::least_requests(&open, &mut rand::rng()),
            Balance::ConsistentHash(_) => match hash {
                Some(hash) => balance::rendezvous(&open, hash),
                None => balance::random(&open, &mut rand::rng()),
            },
        }?;
        let state = &self.nodes[node];
        let address = NodeAddress::clone(state.address.load().as_ref()?);
        state.in_flight.fetch_add(1, Ordering::Relaxed);
        Some(Chosen { node, address, in_flight: Arc::clone(&state.in_flight) })
    }

    /// The name of a node in the configuration.
    pub fn name(&self, chosen: &Chosen) -> Option<&str> {
        self.upstream.nodes.get(chosen.node).map(|node| node.address.as_str())
    }

    /// A connection to `node` could not be made. Says whether that is news.
    pub fn eject(&self, node: usize, now: Nanos) -> bool {
        let Some(state) = self.nodes.get(node) else { return false };
        let before = state.ejected_until.swap(now.saturating_add(EJECTION).get(), Ordering::Relaxed);
        before <= now.get()
    }

    /// How many nodes requests are sent to.
    pub fn healthy(&self) -> usize {
        let usable = |node: &&Arc<NodeState>| node.healthy.load(Ordering::Relaxed) && node.address.load().is_some();
        self.nodes.iter().filter(usable).count()
    }

    /// Each node's address as configured, and whether requests are sent to it.
    pub fn nodes(&self) -> impl Iterator<Item = (&str, bool)> {
        self.upstream.nodes.iter().zip(&self.nodes).map(|(node, state)| {
            (node.address.as_str(), state.healthy.load(Ordering::Relaxed) && state.address.load().is_some())
        })
    }

    fn set_health(&self, node: usize, healthy: bool, now: Nanos) {
        let state = &self.nodes[node];
        if state.healthy.swap(healthy, Ordering::Relaxed) == healthy {
            return;
        }
        let (upstream, address) = (&self.upstream.name, &self.upstream.nodes[node].address);
        if healthy {
            state.healthy_since.store(now.get(), Ordering::Relaxed);
            tracing::info!(upstream, node = address, "upstream node is healthy again");
        } else {
            tracing::warn!(upstream, node = address, "upstream node is unhealthy: requests go to the others");
        }
    }
}

// === impl NodeState ===

impl NodeState {
    fn new(address: &str) -> Self {
        Self {
            address: ArcSwapOption::new(NodeAddress::of(address).map(Arc::new)),
            healthy: AtomicBool::new(true),
            healthy_since: AtomicU64::new(0),
            ejected_until: AtomicU64::new(0),
            in_flight: Arc::default(),
        }
    }

    /// The same node, healthy until a health check says otherwise.
    fn unjudged(&self) -> Self {
        Self {
            address: ArcSwapOption::new(self.address.load_full()),
            healthy: AtomicBool::new(true),
            healthy_since: AtomicU64::new(0),
            ejected_until: AtomicU64::new(self.ejected_until.load(Ordering::Relaxed)),
            in_flight: Arc::clone(&self.in_flight),
        }
    }

    /// The configured weight in thousandths; less while the node warms up, but at least a hundredth of it.
    fn weight(&self, configured: u32, slow_start: Nanos, now: Nanos) -> u64 {
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
    use crate::ruleset::upstream::{HealthCheck, Node, Retries, Timeouts};

    fn pool(balance: Balance) -> Pool {
        let node = |port: u16| Node { address: format!("127.0.0.1:{port}"), weight: 1 };
        let upstream = Upstream {
            name: "u".to_owned(),
            nodes: vec![node(1), node(2), node(3)],
            http2: false,
            balance,
            health_check: None,
            timeouts: Timeouts::default(),
            retries: Retries::default(),
            slow_start: Nanos::from_secs(10),
        };
        Pool::new(upstream, None, None)
    }

    const NOW: Nanos = Nanos::from_secs(1000);

    #[test]
    fn an_unhealthy_node_is_not_chosen_and_without_a_healthy_one_there_is_no_choice() {
        let pool = pool(Balance::RoundRobin);
        pool.set_health(0, false, NOW);
        let chosen: Vec<usize> = (0..4).map(|_| pool.choose(&[], None, NOW).unwrap().node).collect();
        assert_eq!(chosen, [1, 2, 1, 2]);
        pool.set_health(1, false, NOW);
        pool.set_health(2, false, NOW);
        assert!(pool.choose(&[], None, NOW).is_none());
    }

    #[test]
    fn a_node_that_refused_a_connection_is_left_alone_while_there_are_others() {
        let pool = pool(Balance::RoundRobin);
        pool.eject(1, NOW);
        assert!((0..6).all(|_| pool.choose(&[], None, NOW).unwrap().node != 1));
        pool.eject(0, NOW);
        pool.eject(2, NOW);
        assert!(pool.choose(&[], None, NOW).is_some());
        assert_eq!(pool.choose(&[0, 2], None, NOW).unwrap().node, 1);
    }

    #[test]
    fn a_node_that_comes_back_warms_up() {
        let pool = pool(Balance::RoundRobin);
        pool.set_health(0, false, NOW);
        pool.set_health(0, true, NOW);
        let share = |now: Nanos| (0..2100).filter(|_| pool.choose(&[], None, now).unwrap().node == 0).count();
        assert!(share(NOW) < 30);
        assert!((300..500).contains(&share(NOW.saturating_add(Nanos::from_secs(5)))));
        assert_eq!(share(NOW.saturating_add(Nanos::from_secs(10))), 700);
    }

    #[test]
    fn requests_in_flight_are_counted_until_they_end() {
        let pool = pool(Balance::LeastRequests);
        let held: Vec<Chosen> = (0..3).filter_map(|_| pool.choose(&[], None, NOW)).collect();
        let mut nodes: Vec<usize> = held.iter().map(|chosen| chosen.node).collect();
        nodes.sort_unstable();
        assert_eq!(nodes, [0, 1, 2]);
        drop(held);
        assert!(pool.nodes.iter().all(|node| node.in_flight.load(Ordering::Relaxed) == 0));
    }

    #[test]
    fn what_is_known_of_a_node_outlives_a_change_of_its_upstream() {
        let before = Arc::new(pool(Balance::LeastRequests));
        before.set_health(0, false, NOW);
        let held = before.choose(&[0, 1], None, NOW).unwrap();
        assert!(Arc::ptr_eq(&before, &Pool::following(&before.upstream, None, Some(&before))), "nothing changed");
        let mut upstream = before.upstream.clone();
        upstream.nodes.remove(1);
        upstream.nodes.push(Node { address: "127.0.0.1:4".to_owned(), weight: 1 });
        let after = Pool::following(&upstream, None, Some(&before));
        assert_eq!(after.nodes().map(|(_, healthy)| healthy).collect::<Vec<_>>(), [false, true, true]);
        assert_eq!(after.choose(&[], None, NOW).unwrap().node, 2, "the other one has a request in flight");
        drop(held);
        assert!(after.nodes.iter().all(|node| node.in_flight.load(Ordering::Relaxed) == 0));
        // Without health checks nobody would ever find the node healthy again.
        upstream.health_check = Some(HealthCheck {
            path: "/".to_owned(),
            every: Nanos::SECOND,
            timeout: Nanos::SECOND,
            healthy_after: 1,
            unhealthy_after: 1,
        });
        assert!(Pool::following(&upstream, None, Some(&after)).nodes().all(|(_, healthy)| healthy));
    }
}
