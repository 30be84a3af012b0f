//! Gateways that share a limit through Redis.

use super::{Gateway, Origin};

/// A limit of six requests whose tokens do not come back during a test.
pub const ONCE_IN_LONG: &str = "algorithm: gcra, rate: 1/h, burst: 6";

/// A gateway that shares `limit` through the Redis on `port`; `store` has the other settings of the store.
pub fn gateway(origin: &Origin, port: u16, store: &str, limit: &str) -> Gateway {
    Gateway::start(&format!(
        "{}store: {{ redis: \"redis://127.0.0.1:{port}\", {store} }}
limits: {{ guard: {{ key: {{ header: x-key }}, mode: shared, {limit} }} }}
routes: [{{ name: all, upstream: origin, limits: [guard] }}]
",
        origin.upstream(),
    ))
}

/// Three gateways that know of each other.
pub fn three(origin: &Origin, port: u16, store: &str, limit: &str) -> [Gateway; 3] {
    let gateways = [(); 3].map(|()| gateway(origin, port, store, limit));
    for gateway in &gateways {
        gateway.wait_for_metric("tollgate_cluster_members", &[], 3.0);
    }
    gateways
}

/// The number of admitted requests of `count`; all others must be denied.
#[track_caller]
pub fn passed(gateway: &Gateway, key: &str, count: usize) -> usize {
    let statuses: Vec<u16> = (0..count).map(|_| gateway.get("/", &[("x-key", key)]).status).collect();
    assert!(statuses.iter().all(|status| matches!(status, 200 | 429)), "{statuses:?}");
    statuses.iter().filter(|status| **status == 200).count()
}

pub fn wait_for_breaker(gateway: &Gateway, state: &str) {
    gateway.wait_for_metric("tollgate_store_breaker_state", &[("state", state)], 1.0);
}

/// The number of calls of this kind that Redis has answered.
pub fn calls(gateway: &Gateway, op: &str) -> f64 {
    let labels = [("op", op), ("result", "ok")];
    gateway.metrics().value("tollgate_store_requests_total", &labels).unwrap_or_default()
}
