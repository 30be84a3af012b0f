//! What is found out about nodes in the background: addresses of host names, and health.

use std::os::unix::net::SocketAddr as UnixAddress;
use std::sync::Arc;

use pingora::lb::Backend;
use pingora::lb::health_check::{HealthCheck as _, HttpHealthCheck};
use pingora::protocols::l4::socket::SocketAddr as PingoraAddress;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use super::exchange::speak_http2;
use super::{NodeAddress, Pool};
use crate::clock::Clock;
use crate::panics::{lasting, point};
use crate::ruleset::upstream::HealthCheck;
use crate::units::Nanos;

/// How often host names are resolved, and how long that may take.
const RESOLVE_EVERY: Nanos = Nanos::from_secs(5);

/// Watches the nodes of `pool` until dropped.
pub async fn watch(pool: Arc<Pool>, clock: Arc<dyn Clock>) {
    let mut tasks = JoinSet::new();
    for node in 0..pool.nodes.len() {
        if NodeAddress::of(&pool.upstream.nodes[node].address).is_none() {
            let pool = Arc::clone(&pool);
            tasks.spawn(lasting(move || resolve(Arc::clone(&pool), node)));
        }
        if let Some(check) = pool.upstream.health_check.clone() {
            let (pool, clock) = (Arc::clone(&pool), Arc::clone(&clock));
            tasks.spawn(lasting(move || check_health(Arc::clone(&pool), node, check.clone(), Arc::clone(&clock))));
        }
    }
    while tasks.join_next().await.is_some() {}
}

/// Finds an address for each node of `pool` that has none, before requests are sent there; waits for `patience` at most.
pub async fn resolve_new(pool: Arc<Pool>, patience: Nanos) {
    let mut tasks = JoinSet::new();
    for (node, state) in pool.nodes.iter().enumerate().filter(|(_, state)| state.address.load().is_none()) {
        let (name, state) = (pool.upstream.nodes[node].address.clone(), Arc::clone(state));
        tasks.spawn(async move {
            if let Some(address) = look_up(&name, patience).await {
                state.address.store(Some(Arc::new(NodeAddress::Inet(address))));
            }
        });
    }
    while tasks.join_next().await.is_some() {}
}

async fn look_up(name: &str, patience: Nanos) -> Option<std::net::SocketAddr> {
    let found = timeout(patience.to_duration(), tokio::net::lookup_host(name)).await;
    found.ok().and_then(Result::ok).and_then(|mut addresses| addresses.next())
}

/// Keeps the address of a node that is written as a host name. The last good address stays when resolving fails.
async fn resolve(pool: Arc<Pool>, node: usize) {
    let name = pool.upstream.nodes[node].address.clone();
    let mut ticks = interval(RESOLVE_EVERY.to_duration());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut failing = false;
    loop {
        ticks.tick().await;
        let first = look_up(&name, RESOLVE_EVERY).await;
        match first {
            Some(address) => pool.nodes[node].address.store(Some(Arc::new(NodeAddress::Inet(address)))),
            None if !failing => tracing::warn!(
                upstream = pool.upstream.name,
                node = name,
                "cannot resolve the node's host name; trying again every {RESOLVE_EVERY}"
            ),
            None => {}
        }
        failing = first.is_none();
    }
}

/// Asks a node for its health at intervals, and marks it after enough answers of the same kind in a row.
async fn check_health(pool: Arc<Pool>, node: usize, check: HealthCheck, clock: Arc<dyn Clock>) {
    let Ok(mut request) = health_request(&pool.upstream.nodes[node].address, &check, pool.upstream.http2) else {
        tracing::error!(upstream = pool.upstream.name, path = check.path, "cannot build the health check's request");
        return;
    };
    let mut ticks = interval(check.every.to_duration());
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut good, mut bad) = (0_u32, 0_u32);
    loop {
        ticks.tick().await;
        point("health_check");
        let Some(address) = pool.nodes[node].address.load_full() else { continue };
        let addr = match &*address {
            NodeAddress::Inet(address) => PingoraAddress::Inet(*address),
            NodeAddress::Unix(path) => match UnixAddress::from_pathname(path) {
                Ok(address) => PingoraAddress::Unix(address),
                Err(_) => continue,
            },
        };
        if let (Some(securing), NodeAddress::Inet(address)) = (&pool.securing, &*address) {
            let way = securing.way_to(*address, &pool.upstream.nodes[node].address, pool.upstream.http2);
            request.peer_template.options.custom_l4 = Some(Arc::new(way));
        }
        let backend = Backend { addr, weight: 1, ext: Default::default() };
        let answer = timeout(check.timeout.to_duration(), request.check(&backend)).await;
        if matches!(answer, Ok(Ok(()))) {
            (good, bad) = (good.saturating_add(1), 0);
        } else {
            (good, bad) = (0, bad.saturating_add(1));
        }
        if good >= check.healthy_after {
            pool.set_health(node, true, clock.now());
        } else if bad >= check.unhealthy_after {
            pool.set_health(node, false, clock.now());
        }
    }
}

fn health_request(host: &str, check: &HealthCheck, http2: bool) -> Result<HttpHealthCheck, pingora::BError> {
    let mut request = HttpHealthCheck::new(host, false);
    if http2 {
        speak_http2(&mut request.peer_template.options);
    }
    request.req.set_raw_path(check.path.as_bytes())?;
    request.req.insert_header(http::header::USER_AGENT, "tollgate-health-check")?;
    request.peer_template.options.connection_timeout = Some(check.timeout.to_duration());
    request.peer_template.options.read_timeout = Some(check.timeout.to_duration());
    request.validator = Some(Box::new(|response| match response.status.is_success() {
        true => Ok(()),
        false => pingora::Error::e_explain(
            pingora::ErrorType::CustomCode("status of the health check", response.status.as_u16()),
            "",
        ),
    }));
    Ok(request)
}
