//! How many descriptors the process may have, and how many connections of clients that is enough for.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::cluster::serve::MAX_HANDSHAKES;

/// Connections to upstreams that are kept for the next request, for each worker, at most.
const MOST_KEPT: usize = 512;
/// What the process itself needs: logs, state, Redis, other gateways, health checks, files that are read again.
const OWN: usize = 64;
/// Connections to the admin port, at most.
pub(super) const MOST_ADMIN: usize = 64;
/// Connections to the cluster's port that are at their handshake, at most.
const OF_CLUSTER: usize = MAX_HANDSHAKES;
/// What each worker needs, and each listener of it.
const OF_WORKER: usize = 8;
const OF_LISTENER: usize = 2;

/// For how many connections there are descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdBudget {
    /// Connections of clients.
    pub clients: usize,
    /// Connections to upstreams that are kept for the next request, for each worker.
    pub kept: usize,
}

/// What takes descriptors beside the connections of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// How many workers there are.
    pub workers: usize,
    /// How many listeners each of them has.
    pub listeners: usize,
    /// Whether there is a port for other gateways.
    pub is_clustered: bool,
    /// Whether the sample upstream is served by the same process.
    pub has_sample: bool,
}

impl FdBudget {
    /// What `limit` descriptors are enough for: a connection of a client, one to an upstream for its request, and one there
    /// that another worker keeps.
    pub fn within(limit: usize, needs: Needs) -> Self {
        let Needs { workers, listeners, is_clustered, has_sample } = needs;
        let of_worker = OF_LISTENER.saturating_mul(listeners).saturating_add(OF_WORKER);
        let own = of_worker.saturating_mul(workers).saturating_add(OWN).saturating_add(MOST_ADMIN);
        let own = own.saturating_add(if is_clustered { OF_CLUSTER } else { 0 });
        let each = if has_sample { 5 } else { 3 };
        let clients = limit.saturating_sub(own).checked_div(each).unwrap_or(0).max(1);
        let kept = clients.checked_div(workers).unwrap_or(clients).clamp(1, MOST_KEPT);
        Self { clients, kept }
    }
}

/// How many workers serve clients, each of them a thread, where the configuration does not say: one for each core.
pub fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// How many descriptors a gateway may have that is started as this process is.
pub fn limit() -> usize {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    maximum.map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX))
}

/// Lets the process have as many descriptors as it may, which is more than it has unless asked for.
pub(super) fn raise() {
    let limits = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits }) {
        tracing::warn!(%error, "the process cannot have as many descriptors as it may");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_a_third_of_what_is_left() {
        let plain = Needs { workers: 4, listeners: 1, is_clustered: false, has_sample: false };
        assert_eq!(FdBudget::within(256, plain), FdBudget { clients: 29, kept: 7 });
        assert_eq!(FdBudget::within(1024, plain), FdBudget { clients: 285, kept: 71 });
        assert_eq!(FdBudget::within(1024, Needs { is_clustered: true, ..plain }), FdBudget { clients: 242, kept: 60 });
        assert_eq!(FdBudget::within(1024, Needs { has_sample: true, ..plain }), FdBudget { clients: 171, kept: 42 });
        assert_eq!(FdBudget::within(1 << 20, Needs { listeners: 2, ..plain }).kept, MOST_KEPT);
        assert_eq!(
            FdBudget::within(10, Needs { workers: 64, listeners: 64, ..plain }),
            FdBudget { clients: 1, kept: 1 }
        );
        assert!(FdBudget::within(usize::MAX, Needs { workers: 1, ..plain }).clients > 1 << 60);
    }
}
