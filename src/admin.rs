//! The admin listener: metrics, health, and what is in force. Never on a port that serves clients.

use std::sync::Arc;

use async_trait::async_trait;
use http::{HeaderValue, Method, Response, StatusCode, header};
use pingora::apps::http_app::ServeHttp;
use pingora::protocols::http::ServerSession;

mod cluster;
mod explain;
mod readiness;
pub mod reloads;
pub mod snapshots;

pub use readiness::Readiness;
use reloads::Reloads;
use snapshots::Snapshots;

use crate::proxy::Gateway;
use crate::store::SharedStore;
use crate::store::shared::Report;
use crate::telemetry::{StoreUsage, TableUsage, Telemetry};
use crate::units::Nanos;

/// Answers on the admin listener.
pub struct Admin {
    gateway: Gateway,
    telemetry: Telemetry,
    started: Nanos,
    readiness: Arc<Readiness>,
    reloads: Arc<Reloads>,
    snapshots: Arc<Snapshots>,
}

const TEXT: &str = "text/plain; charset=utf-8";
/// The exposition format of `prometheus::TextEncoder`.
const EXPOSITION: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";

/// A status, what the body is, and the body.
type Answer = (StatusCode, &'static str, String);

impl Admin {
    /// For `gateway`, ready when `readiness` says so.
    pub fn new(
        gateway: Gateway,
        telemetry: Telemetry,
        readiness: Arc<Readiness>,
        (reloads, snapshots): (Arc<Reloads>, Arc<Snapshots>),
    ) -> Self {
        let started = gateway.clock.now();
        Self { gateway, telemetry, started, readiness, reloads, snapshots }
    }

    async fn answer(&self, session: &mut ServerSession) -> Answer {
        let head = session.req_header();
        let (method, path) = (head.method.clone(), head.uri.path().to_owned());
        match (path.as_str(), &method) {
            ("/-/reload", &Method::POST) => self.reload().await,
            ("/explain", &Method::POST) => explain::answer(&self.gateway, session).await,
            ("/-/reload" | "/explain", _) => {
                (StatusCode::METHOD_NOT_ALLOWED, TEXT, "only POST is served here\n".to_owned())
            }
            (path, method) => self.shown(method, path),
        }
    }

    /// What can be looked at.
    fn shown(&self, method: &Method, path: &str) -> Answer {
        if !matches!(*method, Method::GET | Method::HEAD) {
            return (StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET is served here\n".to_owned());
        }
        match path {
            "/metrics" => self.metrics(),
            "/healthz" => (StatusCode::OK, TEXT, "ok\n".to_owned()),
            "/readyz" if self.readiness.is_stopping() => {
                (StatusCode::SERVICE_UNAVAILABLE, TEXT, "stopping\n".to_owned())
            }
            "/readyz" if self.readiness.is_starting() => {
                (StatusCode::SERVICE_UNAVAILABLE, TEXT, "starting\n".to_owned())
            }
            "/readyz" => (StatusCode::OK, TEXT, "ready\n".to_owned()),
            "/status" => (StatusCode::OK, JSON, format!("{:#}\n", self.status())),
            _ => (
                StatusCode::NOT_FOUND,
                TEXT,
                "here are /metrics, /healthz, /readyz, /status, /explain and /-/reload\n".to_owned(),
            ),
        }
    }

    /// Reads the configuration anew, and tells what came of it.
    async fn reload(&self) -> Answer {
        let Some(attempt) = self.reloads.request().await else {
            return (StatusCode::SERVICE_UNAVAILABLE, TEXT, "stopping\n".to_owned());
        };
        let status = if attempt.is_in_force() { StatusCode::OK } else { StatusCode::UNPROCESSABLE_ENTITY };
        let mut report = attempt.report();
        let live = self.gateway.live.load();
        report["in_force"] = serde_json::json!({
            "config_hash": live.hash,
            "routes": live.ruleset.matcher.routes().len(),
            "limits": live.ruleset.limits.len(),
            "plans": live.ruleset.plans.len(),
            "upstreams": live.ruleset.upstreams.len(),
            "credentials": live.directory.credentials(),
        });
        (status, JSON, format!("{report:#}\n"))
    }

    fn metrics(&self) -> Answer {
        let live = self.gateway.live.load();
        for usage in self.gateway.store.usage(&live.binding) {
            self.telemetry.set_table_usage(&TableUsage {
                limit: &usage.name,
                keys: usage.keys,
                max_keys: usage.max_keys,
                evicted: [
                    ("expired", usage.evicted_expired),
                    ("full", usage.evicted_full),
                    ("overflow", usage.overflowed),
                ],
            });
        }
        if let Some(shared) = self.gateway.store.shared() {
            let Report { breaker, nodes, healed, overshoot, unsynced, waiting, clock_ahead, leases } = shared.report();
            self.telemetry.set_store_usage(&StoreUsage {
                breaker: breaker.as_str(),
                nodes,
                healed,
                overshoot,
                unsynced,
                waiting,
                clock_ahead: clock_ahead as f64 / 1e9,
                leased: [("taken", leases.taken), ("spent", leases.spent), ("lapsed", leases.lapsed)],
                held: leases.held,
            });
        }
        if let Some(cluster) = self.gateway.store.cluster() {
            self.telemetry.set_cluster_usage(&cluster::usage(cluster));
        }
        for pool in &live.pools {
            self.telemetry.set_upstream_health(&pool.upstream.name, pool.healthy());
        }
        match self.telemetry.render() {
            Ok(text) => (StatusCode::OK, EXPOSITION, text),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, TEXT, format!("cannot render the metrics: {error}\n")),
        }
    }

    fn status(&self) -> serde_json::Value {
        let live = self.gateway.live.load();
        let ruleset = &live.ruleset;
        let usage = self.gateway.store.usage(&live.binding);
        let limits = ruleset.limits.iter().zip(usage).map(|(limit, usage)| {
            serde_json::json!({
                "name": limit.name,
                "algorithm": limit.algorithm.as_str(),
                "keys": usage.keys,
                "max_keys": limit.max_keys,
            })
        });
        let upstreams = live.pools.iter().map(|pool| {
            let nodes =
                pool.nodes().map(|(address, healthy)| serde_json::json!({"address": address, "healthy": healthy}));
            serde_json::json!({"name": pool.upstream.name, "nodes": nodes.collect::<Vec<_>>()})
        });
        serde_json::json!({
            "version": env!("CARGO_PKG_VERSION"),
            "process": std::process::id(),
            "uptime_seconds": self.gateway.clock.now().saturating_sub(self.started).as_secs_f64(),
            "stopping": self.readiness.is_stopping(),
            "config_hash": live.hash,
            "reload": self.reloads.status(),
            "state": self.snapshots.status(),
            "routes": ruleset.matcher.routes().iter().map(|route| route.name.as_str()).collect::<Vec<_>>(),
            "plans": ruleset.plans,
            "limits": limits.collect::<Vec<_>>(),
            "upstreams": upstreams.collect::<Vec<_>>(),
            "credentials": live.directory.credentials(),
            "store": self.store(),
            "cluster": self.gateway.store.cluster().map(|known| cluster::status(known, self.gateway.clock.now())),
        })
    }

    fn store(&self) -> serde_json::Value {
        let store = &self.gateway.store;
        match store.shared().map(SharedStore::report) {
            Some(Report { breaker, nodes, healed, overshoot, unsynced, leases, .. }) => serde_json::json!({
                "tables": store.tables(),
                "breaker": breaker.as_str(),
                "nodes": nodes,
                "healed": healed,
                "overshoot_tokens": overshoot,
                "unsynced_tokens": unsynced,
                "leased_tokens": leases.held,
            }),
            None => serde_json::json!({ "tables": store.tables() }),
        }
    }
}

#[async_trait]
impl ServeHttp for Admin {
    async fn response(&self, session: &mut ServerSession) -> Response<Vec<u8>> {
        let is_head = session.req_header().method == Method::HEAD;
        let (status, content_type, body) = self.answer(session).await;
        let body = if is_head { String::new() } else { body };
        let mut response = Response::new(body.into_bytes());
        *response.status_mut() = status;
        let length = HeaderValue::from(response.body().len());
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        response.headers_mut().insert(header::CONTENT_LENGTH, length);
        response
    }
}
