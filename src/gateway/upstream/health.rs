//! Watches nodes in the background: resolves their host names, and checks their health.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::node::{NodeState, address_of};
use super::{Instance, Pool};
use crate::clock::Clock;
use crate::http::upstream::{EXHAUSTED, probe};
use crate::panics::{failpoint, restart_on_panic};
use crate::ruleset::upstream::HealthCheck;
use crate::units::Nanos;

/// How often host names are resolved, and the timeout of a resolution.
const RESOLVE_EVERY: Nanos = Nanos::from_secs(5);
/// How often a host name is tried that has no address yet.
const RETRY_EVERY: Nanos = Nanos::new(250_000_000);
/// The interval in which at most one failed resolution of a name is logged.
const QUIET: Nanos = Nanos::from_secs(60);

/// Watches the nodes of `pool` until dropped.
pub async fn watch(pool: Arc<Pool>, clock: Arc<dyn Clock>) {
    let mut tasks = JoinSet::new();
    for node in 0..pool.nodes.len() {
        let (pool, clock) = (Arc::clone(&pool), Arc::clone(&clock));
        tasks.spawn(restart_on_panic(move || watch_node(Arc::clone(&pool), node, Arc::clone(&clock))));
    }
    while tasks.join_next().await.is_some() {}
}

/// Finds addresses for each node of `pools` that is new and has none; waits for `patience` at most.
pub async fn resolve_new(pools: &[Arc<Pool>], patience: Nanos) {
    let mut tasks = JoinSet::new();
    for pool in pools {
        let is_awaited = |state: &NodeState| state.instances().is_empty() && state.is_first_wait();
        for (node, state) in pool.nodes.iter().enumerate().filter(|(_, state)| is_awaited(state)) {
            let (name, state) = (pool.upstream.nodes[node].address.clone(), Arc::clone(state));
            tasks.spawn(async move {
                loop {
                    match look_up(&name).await {
                        // the first instances of a node do not warm up
                        Ok(addresses) => return state.set_addresses(addresses, Nanos::ZERO),
                        Err(failure) => state.set_unresolved(failure),
                    }
                    sleep(RETRY_EVERY.to_duration()).await;
                }
            });
        }
    }
    let all = async { while tasks.join_next().await.is_some() {} };
    // `watch` goes on resolving the nodes that have no address by then
    drop(timeout(patience.to_duration(), all).await);
}

/// The addresses of a host name, or the reason why none are known.
async fn look_up(name: &str) -> Result<Vec<SocketAddr>, String> {
    match timeout(RESOLVE_EVERY.to_duration(), tokio::net::lookup_host(name)).await {
        Ok(Ok(found)) => {
            let addresses: Vec<SocketAddr> = found.collect();
            if addresses.is_empty() { Err("it has no address".to_owned()) } else { Ok(addresses) }
        }
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer in {RESOLVE_EVERY}")),
    }
}

/// Follows the addresses of a node, and checks the health of each.
async fn watch_node(pool: Arc<Pool>, node: usize, clock: Arc<dyn Clock>) {
    let name = &pool.upstream.nodes[node].address;
    let state = &pool.nodes[node];
    let mut checks = Checks::default();
    if address_of(name).is_some() {
        checks.follow(&pool, node, &clock);
        return while checks.tasks.join_next().await.is_some() {};
    }
    let upstream = &pool.upstream.name;
    let mut logged = None;
    loop {
        let found = look_up(name).await;
        let now = clock.now();
        match found {
            Ok(addresses) => {
                if logged.take().is_some() {
                    tracing::info!(upstream, node = name, "the node's host name is resolved again");
                }
                state.set_addresses(addresses, now);
            }
            // the node keeps its earlier addresses
            Err(error) => {
                if logged.is_none_or(|at| now.saturating_sub(at) >= QUIET) {
                    tracing::warn!(upstream, node = name, error, "cannot resolve the node's host name; retrying");
                    logged = Some(now);
                }
                state.set_unresolved(error);
            }
        }
        checks.follow(&pool, node, &clock);
        let has_none = state.instances().is_empty();
        sleep(if has_none { RETRY_EVERY } else { RESOLVE_EVERY }.to_duration()).await;
    }
}

/// The health checks of a node, one for each of its instances.
#[derive(Default)]
struct Checks {
    tasks: JoinSet<()>,
    running: Vec<(Arc<Instance>, AbortHandle)>,
}

impl Checks {
    /// Begins to check the node's new instances, and ends the checks of those that are gone.
    fn follow(&mut self, pool: &Arc<Pool>, node: usize, clock: &Arc<dyn Clock>) {
        let Some(check) = &pool.upstream.health_check else { return };
        let instances = pool.nodes[node].instances();
        self.running.retain(|(running, task)| {
            let stays = instances.iter().any(|instance| Arc::ptr_eq(instance, running));
            if !stays {
                task.abort();
            }
            stays
        });
        while self.tasks.try_join_next().is_some() {}
        for instance in instances.iter() {
            if !self.running.iter().any(|(running, _)| Arc::ptr_eq(running, instance)) {
                let (pool, check, clock) = (Arc::clone(pool), check.clone(), Arc::clone(clock));
                let begin = {
                    let instance = Arc::clone(instance);
                    move || {
                        let (pool, instance) = (Arc::clone(&pool), Arc::clone(&instance));
                        check_health(pool, node, instance, check.clone(), Arc::clone(&clock))
                    }
                };
                self.running.push((Arc::clone(instance), self.tasks.spawn(restart_on_panic(begin))));
            }
        }
    }
}

/// Probes an instance at intervals, and marks it healthy or unhealthy after enough equal results in a row.
async fn check_health(
    pool: Arc<Pool>,
    node: usize,
    instance: Arc<Instance>,
    check: HealthCheck,
    clock: Arc<dyn Clock>,
) {
    let host = pool.host_at(&instance.address, node);
    let mut ticks = interval(check.every.to_duration());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut good, mut bad) = (0_u32, 0_u32);
    loop {
        ticks.tick().await;
        failpoint("health_check");
        let server = pool.server_at(&instance.address, node);
        let asking = probe(&server, host, &check.path, "tollgate-health-check");
        let answer = timeout(check.timeout.to_duration(), asking).await;
        let result = match answer {
            Ok(Ok(200..=299)) => Ok(()),
            Ok(Ok(status)) => Err(format!("it answered {status}")),
            // this says nothing about the node
            Ok(Err(error)) if error.kind() == EXHAUSTED => continue,
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer in {}", check.timeout)),
        };
        (good, bad) = match result {
            Ok(()) => (good.saturating_add(1), 0),
            Err(_) => (0, bad.saturating_add(1)),
        };
        if good >= check.healthy_after || bad >= check.unhealthy_after {
            pool.set_health(node, &instance, result, clock.now());
        }
    }
}
