//! The metrics that are read when they are scraped.

use std::collections::BTreeMap;

use super::{Admin, cluster};
use crate::customers::source::SourceStatus;
use crate::gateway::active_config::ActiveConfig;
use crate::store::shared::SharedStatus;
use crate::telemetry::{Samples, names};

/// The samples of a scrape. All that depends on the configuration is of one configuration.
pub(super) fn samples(admin: &Admin) -> Samples {
    let (gateway, mut samples) = (&admin.gateway, Samples::default());
    let active = gateway.active.load();
    samples.push_count(&names::CONFIG_INFO, &[&active.hash], true);
    if let Some(hash) = &active.directory_hash {
        samples.push_count(&names::DIRECTORY_INFO, &[hash], true);
    }
    samples.push_configured(&active.ruleset);
    for usage in gateway.store.usage(&active.binding) {
        let limit = usage.name.as_str();
        samples.push_count(&names::LIMIT_KEYS, &[limit], usage.keys);
        samples.push_count(&names::LIMIT_KEYS_MAX, &[limit], usage.max_keys);
        let evicted =
            [("expired", usage.evicted_expired), ("full", usage.evicted_full), ("overflow", usage.overflowed)];
        for (reason, total) in evicted {
            samples.push_count(&names::LIMIT_KEYS_EVICTED, &[limit, reason], total);
        }
    }
    for pool in &active.pools {
        let upstream = [pool.upstream.name.as_str()];
        samples.push_count(&names::UPSTREAM_NODES_HEALTHY, &upstream, pool.healthy_count());
        if let Some(limiter) = &pool.limiter {
            samples.push_count(&names::UPSTREAM_PENDING, &upstream, limiter.waiting());
        }
    }
    for source in active.sources() {
        let SourceStatus { entries, fresh_at, .. } = source.status();
        samples.push_count(&names::SOURCE_ENTRIES, &[source.name()], entries);
        let fresh_at = fresh_at.unwrap_or_default().as_secs_f64();
        samples.push(&names::SOURCE_LAST_SUCCESS_TIMESTAMP, &[source.name()], fresh_at);
    }
    push_certificates(&active, &mut samples);
    samples.push_count(&names::DIRECTORY_REFUSED_ROWS, &[], active.directory.refused_rows());
    let max = admin.records.access.top_denied_metrics();
    if max > 0 {
        let top = gateway.denial_recorder.offenders.of_last_minute(gateway.clock.now());
        samples.push_top_denied(top.offenders.iter().take(max));
    }
    if let Some(shared) = gateway.store.shared() {
        push_store(&shared.report(), &mut samples);
    }
    if let Some(cluster) = gateway.store.cluster() {
        let report = cluster.report();
        admin.telemetry.cluster.retain(report.peers.iter().map(|peer| peer.address));
        cluster::push(&report, &mut samples);
    }
    samples
}

/// Adds the ends of the certificates that listeners present.
fn push_certificates(active: &ActiveConfig, samples: &mut Samples) {
    let mut ends = BTreeMap::new();
    let servers = active.listeners.iter().filter_map(|listener| listener.tls.as_ref());
    for certificate in servers.flat_map(|server| server.certificates.all()) {
        let (_, end) = certificate.valid();
        let earliest = ends.entry(certificate.names().join(",")).or_insert(end);
        *earliest = end.min(*earliest);
    }
    for (names, end) in ends {
        samples.push(&names::CERTIFICATE_NOT_AFTER_TIMESTAMP, &[&names], end.as_secs_f64());
    }
}

/// Adds the state of the store that gateways share.
#[expect(clippy::cast_precision_loss, reason = "a report")]
fn push_store(status: &SharedStatus, samples: &mut Samples) {
    let SharedStatus { breaker, nodes, healed, overshoot, unsynced, waiting, clock_ahead, leases } = status;
    for state in ["closed", "open", "half_open"] {
        samples.push_count(&names::STORE_BREAKER_STATE, &[state], breaker.as_str() == state);
    }
    samples.push_count(&names::LIMIT_OVERSHOOT, &["outage"], *overshoot);
    let events =
        [("taken", leases.taken), ("spent", leases.spent), ("returned", leases.returned), ("lapsed", leases.lapsed)];
    for (event, total) in events {
        samples.push_count(&names::LEASE_TOKENS, &[event], total);
    }
    for (name, number) in [
        (&names::CLUSTER_MEMBERS, *nodes),
        (&names::STORE_STATES_HEALED, *healed),
        (&names::LIMIT_UNSYNCED, *unsynced),
        (&names::STORE_QUEUE_WAITERS, *waiting),
        (&names::LEASE_OUTSTANDING, leases.held),
    ] {
        samples.push_count(name, &[], number);
    }
    samples.push(&names::STORE_CLOCK_OFFSET, &[], *clock_ahead as f64 / 1e9);
}
