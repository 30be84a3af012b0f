//! The process's limit of file descriptors, and how many client connections it allows.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::cluster::serve::MAX_HANDSHAKES;

/// The maximum number of idle upstream connections that each worker keeps for further requests.
const MAX_KEPT: usize = 512;
/// Descriptors of the process itself: logs, state, Redis, health checks, files that are read again.
const OWN: usize = 64;
/// The maximum number of connections to the admin port.
pub(super) const MAX_ADMIN_CONNECTIONS: usize = 64;
/// The maximum number of connections to the cluster port that are in their handshake.
const OF_CLUSTER: usize = MAX_HANDSHAKES;
/// Descriptors for each worker, and for each listener of a worker.
const OF_WORKER: usize = 8;
const OF_LISTENER: usize = 2;
/// The fewest descriptors with which the threads of a gateway start: its own, and those of each worker beside its listeners.
const MIN_OWN: usize = 20;
const MIN_OF_WORKER: usize = 5;
/// A gateway with room for fewer clients warns when it starts.
const FEW_CLIENTS: usize = 100;

/// The numbers of connections that the descriptors are enough for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdBudget {
    /// Connections from clients.
    pub clients: usize,
    /// Idle connections to upstreams that each worker keeps for further requests.
    pub kept: usize,
}

/// The parts of a gateway that need descriptors beside its client connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// The number of workers.
    pub workers: usize,
    /// The number of listeners of each worker.
    pub listeners: usize,
    /// The number of other gateways in the cluster; `None` without a cluster.
    pub peers: Option<usize>,
    /// Whether customers are looked up over HTTP.
    pub has_lookups: bool,
    /// Whether the sample upstream is served by the same process.
    pub has_sample: bool,
}

impl Needs {
    /// The fewest descriptors with which the gateway starts.
    pub(super) fn least(self) -> usize {
        MIN_OF_WORKER.saturating_add(self.listeners).saturating_mul(self.workers).saturating_add(MIN_OWN)
    }
}

impl FdBudget {
    /// The budget for `limit` descriptors. Each client connection needs three: itself, an upstream connection for its
    /// request, and one that another worker keeps idle.
    pub fn within(limit: usize, needs: Needs) -> Self {
        let Needs { workers, listeners, peers, has_lookups, has_sample } = needs;
        let of_worker = OF_LISTENER.saturating_mul(listeners).saturating_add(OF_WORKER);
        let own = of_worker.saturating_mul(workers).saturating_add(OWN).saturating_add(MAX_ADMIN_CONNECTIONS);
        // the workers, the background work and the heartbeats have a connection to each peer, and it has as many to this one
        let of_peer = workers.saturating_add(2).saturating_mul(2);
        let of_cluster = peers.map_or(0, |peers| of_peer.saturating_mul(peers).saturating_add(OF_CLUSTER));
        let of_lookups = if has_lookups { for_lookups(limit) } else { 0 };
        let own = own.saturating_add(of_cluster).saturating_add(of_lookups);
        let each = if has_sample { 5 } else { 3 };
        let clients = limit.saturating_sub(own).checked_div(each).unwrap_or(0).max(1);
        let kept = clients.checked_div(workers).unwrap_or(clients).clamp(1, MAX_KEPT);
        Self { clients, kept }
    }

    /// Logs a warning if there is room for few clients.
    pub(super) fn warn_if_small(self) {
        let clients = self.clients;
        if clients < FEW_CLIENTS {
            tracing::warn!(
                descriptors = limit(),
                "the limit of file descriptors leaves room for {clients} clients; raise `ulimit -n` / `LimitNOFILE`"
            );
        }
    }
}

/// How many of `limit` descriptors look-ups of customers over HTTP may use at a time.
pub fn for_lookups(limit: usize) -> usize {
    (limit / 8).min(10_000)
}

/// The default number of workers, each a thread: one for each core.
pub fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The maximum number of descriptors of a process that is started like this one.
pub fn limit() -> usize {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    maximum.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX))
}

/// Raises the process's limit of descriptors to the maximum that the system allows; the default is lower.
pub(super) fn raise() {
    let limits = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits }) {
        tracing::warn!(%error, "cannot raise the soft limit of file descriptors to the hard limit");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_a_third_of_what_is_left() {
        let plain = Needs { workers: 4, listeners: 1, peers: None, has_lookups: false, has_sample: false };
        assert_eq!(FdBudget::within(256, plain), FdBudget { clients: 29, kept: 7 });
        assert_eq!(FdBudget::within(1024, plain), FdBudget { clients: 285, kept: 71 });
        assert_eq!(FdBudget::within(1024, Needs { peers: Some(0), ..plain }), FdBudget { clients: 242, kept: 60 });
        assert_eq!(FdBudget::within(1024, Needs { peers: Some(7), ..plain }).clients, 242 - 7 * 12 / 3);
        assert_eq!(FdBudget::within(1024, Needs { has_lookups: true, ..plain }), FdBudget { clients: 242, kept: 60 });
        assert_eq!(FdBudget::within(1024, Needs { has_sample: true, ..plain }), FdBudget { clients: 171, kept: 42 });
        assert_eq!(FdBudget::within(1 << 20, Needs { listeners: 2, ..plain }).kept, MAX_KEPT);
        assert_eq!(
            FdBudget::within(10, Needs { workers: 64, listeners: 64, ..plain }),
            FdBudget { clients: 1, kept: 1 }
        );
        assert!(FdBudget::within(usize::MAX, Needs { workers: 1, ..plain }).clients > 1 << 60);
    }
}
