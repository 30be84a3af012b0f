//! The process and its configuration in force, as JSON.

use serde_json::{Value, json};

use super::{Admin, cluster};
use crate::gateway::upstream::NodeStatus;
use crate::store::shared::{ServerStatus, SharedStatus};

/// The answer to `/status`.
pub(super) fn status(admin: &Admin) -> Value {
    let gateway = &admin.gateway;
    let now = gateway.clock.now();
    let active = gateway.active.load();
    let ruleset = &active.ruleset;
    let usage = gateway.store.usage(&active.binding);
    let limits = ruleset.limits.iter().zip(usage).map(|(limit, usage)| {
        json!({
            "name": limit.name,
            "algorithm": limit.algorithm.as_str(),
            "keys": usage.keys,
            "max_keys": limit.max_keys,
        })
    });
    let upstreams = active.pools.iter().map(|pool| {
        let shown = |node: &NodeStatus<'_>| {
            let mut shown = json!({"address": node.address, "healthy": node.healthy, "ejected": node.ejected});
            if let Some(resolved) = &node.resolved {
                shown["resolved"] = json!(resolved);
            }
            if let Some(failure) = &node.failure {
                shown["failure"] = json!(failure);
            }
            shown
        };
        json!({"name": pool.upstream.name, "nodes": pool.node_statuses(now).iter().map(shown).collect::<Vec<_>>()})
    });
    let replays = admin.records.access.replays();
    let logs = replays.iter().flat_map(|replays| &replays.logs);
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "process": std::process::id(),
        "timestamp_seconds": gateway.clock.wall_at(now).as_secs_f64(),
        "uptime_seconds": now.saturating_sub(admin.started).as_secs_f64(),
        "stopping": admin.phase().is_stopping(),
        "takes_changes": admin.records.access.takes_changes(),
        "replay_logs": logs.map(|(name, _)| name).collect::<Vec<_>>(),
        "config_hash": active.hash,
        "reload": admin.records.reloads.status(),
        "state": admin.records.snapshots.status(),
        "routes": ruleset.matcher.routes().iter().map(|route| route.name.as_str()).collect::<Vec<_>>(),
        "plans": ruleset.plans,
        "limits": limits.collect::<Vec<_>>(),
        "upstreams": upstreams.collect::<Vec<_>>(),
        "credentials": active.directory.credentials(),
        "store": store(admin),
        "cluster": gateway.store.cluster().map(|known| cluster::status(known, now)),
    })
}

fn store(admin: &Admin) -> Value {
    let store = &admin.gateway.store;
    let Some(shared) = store.shared() else { return json!({ "tables": store.tables() }) };
    let SharedStatus { breaker, nodes, healed, overshoot, unsynced, leases, .. } = shared.report();
    let servers = shared.servers().into_iter().map(|ServerStatus { name, breaker, failure, unsynced, .. }| {
        let mut shown = json!({ "server": name, "breaker": breaker.as_str(), "unsynced_tokens": unsynced });
        if let Some(failure) = failure {
            shown["failure"] = json!(failure);
        }
        shown
    });
    json!({
        "tables": store.tables(),
        "breaker": breaker.as_str(),
        "servers": servers.collect::<Vec<_>>(),
        "nodes": nodes,
        "healed": healed,
        "overshoot_tokens": overshoot,
        "unsynced_tokens": unsynced,
        "leased_tokens": leases.held,
    })
}
