//! Metrics and logs for the operators of tollgate.
//!
//! Every metric is registered here, in a registry of its own, under the names in [`names`]. Label values come from the
//! configuration, never from a client. Handles are resolved when a ruleset comes into force ([`meters::Meters`]), so
//! that a request resolves none.

mod cluster;
mod configured;
pub mod deliveries;
pub mod history;
pub mod logging;
pub mod meters;
pub mod names;
pub mod offenders;
pub mod recent;
mod series;
mod sources;
mod store;
mod striped;

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::{Atomic, Collector, GenericCounterVec, GenericGaugeVec};
use prometheus::{
    Gauge, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use configured::ConfiguredLimitMetrics;
use deliveries::{AllDeliveries, DeliveryMetrics, QueueMetrics};
use names::Name;
use offenders::{Offender, Offenders};
use recent::RecentDecisions;
use striped::{HotCounterVec, HotGaugeVec, HotHistogramVec};

pub use cluster::{ClusterMetrics, ClusterUsage};
pub use sources::{SourceMetrics, SourceUsage};
pub use store::{StoreMetrics, StoreUsage};

use crate::ruleset::Ruleset;
use crate::units::Nanos;

/// The denials, delays and diversions that the gateway keeps for operators who look at it while it runs.
#[derive(Debug, Default)]
pub struct DenialRecorder {
    /// The keys that are denied most.
    pub offenders: Offenders,
    /// The last denials.
    pub recent: RecentDecisions,
}

/// All metrics of a process.
#[derive(Clone, Debug)]
pub struct Telemetry {
    registry: Registry,
    http_requests: HotCounterVec,
    http_duration: HotHistogramVec,
    http_upstream_duration: HotHistogramVec,
    http_in_flight: HotGaugeVec,
    limit_requests: HotCounterVec,
    limit_candidate_requests: IntCounterVec,
    limit_tokens: HotCounterVec,
    limit_cost_invalid: IntCounterVec,
    decisions: HotCounterVec,
    connections_shed: IntCounterVec,
    limit_near: HotCounterVec,
    limit_warnings: HotCounterVec,
    limit_bans: HotCounterVec,
    /// The metrics of messages to the webhook.
    pub webhook: QueueMetrics,
    /// The metrics of usage events.
    pub usage_events: QueueMetrics,
    /// The metrics of spans.
    pub spans: DeliveryMetrics,
    limit_utilization: HotHistogramVec,
    limit_wait: HotHistogramVec,
    limit_retry_after: HotHistogramVec,
    decision_duration: HotHistogramVec,
    limit_keys: IntGaugeVec,
    limit_keys_max: IntGaugeVec,
    limit_keys_evicted: IntCounterVec,
    /// The metrics of the store that nodes share.
    pub store: StoreMetrics,
    /// The metrics of sources of customers and keys.
    pub sources: SourceMetrics,
    cluster_members: IntGauge,
    /// The metrics of the cluster.
    pub cluster: ClusterMetrics,
    upstream_healthy: IntGaugeVec,
    upstream_pending: IntGaugeVec,
    upstream_ejections: IntCounterVec,
    upstream_refused: IntCounterVec,
    /// Reloads, by result.
    reloads: IntCounterVec,
    last_reload_successful: IntGauge,
    last_reload_success: Gauge,
    config_info: IntGaugeVec,
    configured: ConfiguredLimitMetrics,
    state_restores: IntCounterVec,
    state_snapshots: IntCounterVec,
    /// The last snapshot: the time at which it began, its duration and its size.
    state_last: [Gauge; 3],
    last_snapshot_successful: IntGauge,
    upgrade_failures: IntCounter,
    panics: IntCounter,
    log_lines_dropped: IntCounterVec,
    /// The counts of the keys that were denied most, and by how much these may be too high.
    top_denied: [IntGaugeVec; 2],
    /// Held while the metrics of one configuration replace those of another: a scrape sees exactly one configuration.
    exchange: Arc<Mutex<()>>,
}

/// The usage of one limit's table, as a scrape shows it.
#[derive(Clone, Copy, Debug)]
pub struct TableUsage<'a> {
    /// The limit's name.
    pub limit: &'a str,
    /// The keys in the table.
    pub keys: u64,
    /// The most keys that the table may hold.
    pub max_keys: u64,
    /// Keys evicted so far, by reason.
    pub evicted: [(&'static str, u64); 3],
}

impl Telemetry {
    /// Registers every metric.
    ///
    /// Errors: a name that is registered twice or that Prometheus does not accept, which a test excludes.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let AllDeliveries { webhook, usage_events, spans } = AllDeliveries::new(&registry)?;
        let telemetry = Self {
            http_requests: counter(&registry, &names::HTTP_REQUESTS)?,
            http_duration: hot_histogram(&registry, &names::HTTP_REQUEST_DURATION, names::REQUEST_SECONDS)?,
            http_upstream_duration: hot_histogram(&registry, &names::HTTP_UPSTREAM_DURATION, names::REQUEST_SECONDS)?,
            http_in_flight: gauge(&registry, &names::HTTP_REQUESTS_IN_FLIGHT)?,
            limit_requests: counter(&registry, &names::LIMIT_REQUESTS)?,
            limit_candidate_requests: counter(&registry, &names::LIMIT_CANDIDATE_REQUESTS)?,
            limit_tokens: counter(&registry, &names::LIMIT_TOKENS)?,
            limit_cost_invalid: counter(&registry, &names::LIMIT_COST_INVALID)?,
            decisions: counter(&registry, &names::DECISIONS)?,
            connections_shed: counter(&registry, &names::CONNECTIONS_SHED)?,
            limit_near: counter(&registry, &names::LIMIT_NEAR)?,
            limit_warnings: counter(&registry, &names::LIMIT_WARNINGS)?,
            limit_bans: counter(&registry, &names::LIMIT_BANS)?,
            webhook,
            usage_events,
            spans,
            limit_utilization: hot_histogram(&registry, &names::LIMIT_UTILIZATION, names::RATIO)?,
            limit_wait: hot_histogram(&registry, &names::LIMIT_WAIT, names::WAIT_SECONDS)?,
            limit_retry_after: hot_histogram(&registry, &names::LIMIT_RETRY_AFTER, names::WAIT_SECONDS)?,
            decision_duration: hot_histogram(&registry, &names::LIMIT_DECISION_DURATION, names::DECISION_SECONDS)?,
            limit_keys: gauge(&registry, &names::LIMIT_KEYS)?,
            limit_keys_max: gauge(&registry, &names::LIMIT_KEYS_MAX)?,
            limit_keys_evicted: counter(&registry, &names::LIMIT_KEYS_EVICTED)?,
            store: StoreMetrics::new(&registry)?,
            sources: SourceMetrics::new(&registry)?,
            cluster_members: single(&registry, &names::CLUSTER_MEMBERS, IntGauge::with_opts)?,
            cluster: ClusterMetrics::new(&registry)?,
            upstream_healthy: gauge(&registry, &names::UPSTREAM_NODES_HEALTHY)?,
            upstream_pending: gauge(&registry, &names::UPSTREAM_PENDING)?,
            upstream_ejections: counter(&registry, &names::UPSTREAM_EJECTIONS)?,
            upstream_refused: counter(&registry, &names::UPSTREAM_REFUSED)?,
            reloads: counter(&registry, &names::CONFIG_RELOADS)?,
            last_reload_successful: single(&registry, &names::CONFIG_LAST_RELOAD_SUCCESSFUL, IntGauge::with_opts)?,
            last_reload_success: single(&registry, &names::CONFIG_LAST_RELOAD_SUCCESS_TIMESTAMP, Gauge::with_opts)?,
            config_info: gauge(&registry, &names::CONFIG_INFO)?,
            configured: ConfiguredLimitMetrics::new(&registry)?,
            state_restores: counter(&registry, &names::STATE_RESTORES)?,
            state_snapshots: counter(&registry, &names::STATE_SNAPSHOTS)?,
            state_last: [
                single(&registry, &names::STATE_LAST_SNAPSHOT_TIMESTAMP, Gauge::with_opts)?,
                single(&registry, &names::STATE_SNAPSHOT_DURATION, Gauge::with_opts)?,
                single(&registry, &names::STATE_SNAPSHOT_SIZE, Gauge::with_opts)?,
            ],
            last_snapshot_successful: single(&registry, &names::STATE_LAST_SNAPSHOT_SUCCESSFUL, IntGauge::with_opts)?,
            upgrade_failures: single(&registry, &names::UPGRADE_FAILURES, IntCounter::with_opts)?,
            panics: single(&registry, &names::PANICS, IntCounter::with_opts)?,
            log_lines_dropped: counter(&registry, &names::LOG_LINES_DROPPED)?,
            top_denied: [
                gauge(&registry, &names::LIMIT_TOP_DENIED_REQUESTS)?,
                gauge(&registry, &names::LIMIT_TOP_DENIED_ERROR_REQUESTS)?,
            ],
            exchange: Arc::default(),
            registry,
        };
        for result in ["success", "unchanged", "failure"] {
            telemetry.reloads.with_label_values(&[result]);
        }
        for reason in ["all", "listener", "client", "idle", "admin"] {
            telemetry.connections_shed.with_label_values(&[reason]);
        }
        for result in ["success", "failure"] {
            telemetry.state_snapshots.with_label_values(&[result]);
        }
        telemetry.state_file_changed();
        registered(&telemetry.registry, logging::LINES_LEFT_OUT.clone())?;
        let build: IntGaugeVec = gauge(&telemetry.registry, &names::BUILD_INFO)?;
        build
            .with_label_values(&[env!("CARGO_PKG_VERSION"), option_env!("TOLLGATE_REVISION").unwrap_or("unknown")])
            .set(1);
        let process = prometheus::process_collector::ProcessCollector::for_self();
        telemetry.registry.register(Box::new(process))?;
        Ok(telemetry)
    }

    /// All metrics in Prometheus' text exposition format.
    pub fn render(&self) -> Result<String, prometheus::Error> {
        let exchange = self.exchange.lock();
        for (log, lines) in logging::dropped() {
            raise(&self.log_lines_dropped.with_label_values(&[log]), lines);
        }
        let families = self.registry.gather();
        drop(exchange);
        TextEncoder::new().encode_to_string(&families)
    }

    /// A configuration came into force at `now`; `hash` is the hash of its text.
    pub fn reload_applied(&self, ruleset: &Ruleset, hash: &str, now: Nanos) {
        let exchange = self.exchange.lock();
        self.config_info.reset();
        self.config_info.with_label_values(&[hash]).set(1);
        self.configured.set(ruleset);
        drop(exchange);
        self.last_reload_success.set(now.as_secs_f64());
        self.reload_ended("success");
    }

    /// The configuration that was read is already in force.
    pub fn reload_unchanged(&self) {
        self.reload_ended("unchanged");
    }

    fn reload_ended(&self, result: &str) {
        self.reloads.with_label_values(&[result]).inc();
        self.last_reload_successful.set(1);
    }

    /// A configuration was refused; the one before stays in force.
    pub fn reload_refused(&self) {
        self.reloads.with_label_values(&["failure"]).inc();
        self.last_reload_successful.set(0);
    }

    /// The process began, and the restore of its state had this result.
    pub fn state_recovered(&self, result: &str) {
        self.state_restores.with_label_values(&[result]).inc();
    }

    /// Snapshots go to another file from now on, or to none: none has failed there yet.
    pub fn state_file_changed(&self) {
        self.last_snapshot_successful.set(1);
    }

    /// A snapshot was written, which began at the time `at`.
    #[expect(clippy::cast_precision_loss, reason = "a report")]
    pub fn state_written(&self, at: Nanos, took: Nanos, bytes: u64) {
        self.state_snapshots.with_label_values(&["success"]).inc();
        self.last_snapshot_successful.set(1);
        let [last, duration, size] = &self.state_last;
        last.set(at.as_secs_f64());
        duration.set(took.as_secs_f64());
        size.set(bytes as f64);
    }

    /// A snapshot could not be written.
    pub fn state_not_written(&self) {
        self.state_snapshots.with_label_values(&["failure"]).inc();
        self.last_snapshot_successful.set(0);
    }

    /// An upgrade failed: no new process took over.
    pub fn upgrade_failed(&self) {
        self.upgrade_failures.inc();
    }

    /// Counts and logs the panics of all threads from now on. Logs a panic's message only if it is a literal in the program:
    /// another message may contain a client's data, or a secret.
    pub fn watch_panics(&self) {
        let panics = self.panics.clone();
        std::panic::set_hook(Box::new(move |panic| {
            panics.inc();
            let place = panic.location().map(tracing::field::display);
            let thread = std::thread::current();
            let says = panic.payload().downcast_ref::<&'static str>();
            tracing::error!(place, thread = thread.name(), says, "tollgate panicked, which is a bug: please report it");
        }));
    }

    /// Drops the series of routes, limits, plans and upstreams that are in none of `rulesets`.
    ///
    /// The caller makes sure that no request runs under another ruleset: it would count on series that are gone.
    pub fn retain(&self, rulesets: &[&Ruleset]) {
        let wanted = series::NamedSeries::of(rulesets);
        let keep = |labels: &series::Labels<'_>| wanted.has(labels);
        series::retain(&self.http_requests, keep);
        series::retain(&self.http_duration, keep);
        series::retain(&self.http_upstream_duration, keep);
        series::retain(&self.http_in_flight, keep);
        series::retain(&self.limit_requests, keep);
        series::retain(&self.limit_candidate_requests, keep);
        series::retain(&self.limit_tokens, keep);
        series::retain(&self.limit_near, keep);
        series::retain(&self.limit_warnings, keep);
        series::retain(&self.limit_bans, keep);
        series::retain(&self.limit_utilization, keep);
        series::retain(&self.limit_wait, keep);
        series::retain(&self.limit_retry_after, keep);
        series::retain(&self.limit_cost_invalid, keep);
        series::retain(&self.limit_keys, keep);
        series::retain(&self.limit_keys_max, keep);
        series::retain(&self.limit_keys_evicted, keep);
        series::retain(&self.upstream_healthy, keep);
        series::retain(&self.upstream_pending, keep);
        series::retain(&self.upstream_ejections, keep);
        series::retain(&self.upstream_refused, keep);
    }

    /// Sets the usage of a limit's table. The caller does this before [`Telemetry::render`].
    pub fn set_table_usage(&self, usage: &TableUsage<'_>) {
        self.limit_keys.with_label_values(&[usage.limit]).set(gauge_value(usage.keys));
        self.limit_keys_max.with_label_values(&[usage.limit]).set(gauge_value(usage.max_keys));
        for (reason, total) in usage.evicted {
            raise(&self.limit_keys_evicted.with_label_values(&[usage.limit, reason]), total);
        }
    }

    /// Sets the state of the store that nodes share. The caller does this before [`Telemetry::render`].
    pub fn set_store_usage(&self, usage: &StoreUsage) {
        self.store.set(usage);
        self.cluster_members.set(gauge_value(usage.nodes));
    }

    /// Replaces the keys that were denied most. The caller does this before [`Telemetry::render`].
    pub fn set_top_denied<'o>(&self, offenders: impl Iterator<Item = &'o Offender>) {
        let [denied, errors] = &self.top_denied;
        denied.reset();
        errors.reset();
        for offender in offenders {
            let labels = [offender.subject.limit.as_str(), &offender.subject.line()];
            denied.with_label_values(&labels).set(gauge_value(offender.denied));
            errors.with_label_values(&labels).set(gauge_value(offender.error));
        }
    }

    /// Sets the state of the cluster. The caller does this before [`Telemetry::render`] and after
    /// [`Telemetry::set_store_usage`].
    pub fn set_cluster_usage(&self, usage: &ClusterUsage) {
        self.cluster.set(usage);
        self.cluster_members.set(i64::try_from(usage.members).unwrap_or(i64::MAX));
    }

    /// Sets how many nodes of an upstream are healthy, and how many requests wait for room there (`None` if the upstream has
    /// no bound). The caller does this before [`Telemetry::render`].
    pub fn set_upstream(&self, upstream: &str, healthy: usize, pending: Option<u64>) {
        self.upstream_healthy.with_label_values(&[upstream]).set(i64::try_from(healthy).unwrap_or(i64::MAX));
        match pending {
            Some(pending) => self.upstream_pending.with_label_values(&[upstream]).set(gauge_value(pending)),
            // an error if the upstream had no bound before
            None => drop(self.upstream_pending.remove_label_values(&[upstream])),
        }
    }
}

/// Raises a counter to a total that is kept elsewhere.
fn raise(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}

/// A number as the value of a gauge.
fn gauge_value(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn opts(name: &Name) -> Opts {
    Opts::new(name.name, name.help)
}

fn histogram_opts(name: &Name, buckets: &[f64]) -> HistogramOpts {
    HistogramOpts::new(name.name, name.help).buckets(buckets.to_vec())
}

fn registered<C: Collector + Clone + 'static>(registry: &Registry, collector: C) -> Result<C, prometheus::Error> {
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

/// A metric without labels, which `make` makes.
fn single<C: Collector + Clone + 'static>(
    registry: &Registry,
    name: &Name,
    make: fn(Opts) -> Result<C, prometheus::Error>,
) -> Result<C, prometheus::Error> {
    registered(registry, make(opts(name))?)
}

fn counter<N: Atomic + 'static>(registry: &Registry, name: &Name) -> Result<GenericCounterVec<N>, prometheus::Error> {
    registered(registry, GenericCounterVec::new(opts(name), name.labels)?)
}

fn gauge<N: Atomic + 'static>(registry: &Registry, name: &Name) -> Result<GenericGaugeVec<N>, prometheus::Error> {
    registered(registry, GenericGaugeVec::new(opts(name), name.labels)?)
}

fn hot_histogram(registry: &Registry, name: &Name, buckets: &[f64]) -> Result<HotHistogramVec, prometheus::Error> {
    registered(registry, striped::histograms(histogram_opts(name, buckets), name.labels)?)
}

fn histogram(registry: &Registry, name: &Name, buckets: &[f64]) -> Result<HistogramVec, prometheus::Error> {
    registered(registry, HistogramVec::new(histogram_opts(name, buckets), name.labels)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::offenders::LimitedKey;

    #[test]
    fn who_is_denied_most_takes_the_place_of_who_was_before() {
        let telemetry = Telemetry::new().unwrap();
        let offender = |customer: &str, denied| Offender {
            subject: Arc::new(LimitedKey {
                limit: "guard".to_owned(),
                key: vec![("customer".to_owned(), Some(customer.to_owned())), ("cookie a".to_owned(), None)],
            }),
            denied,
            error: 2,
        };
        telemetry.set_top_denied([offender("acme", 7), offender("a\"b\n", 5)].iter());
        let text = telemetry.render().unwrap();
        let acme = r#"{customer="acme, no cookie a",limit="guard"}"#;
        assert!(text.contains(&format!("tollgate_limit_top_denied_requests{acme} 7\n")), "{text}");
        assert!(text.contains(&format!("tollgate_limit_top_denied_error_requests{acme} 2\n")), "{text}");
        assert!(text.contains(r#"customer="a\"b\n, no cookie a""#), "{text}");
        telemetry.set_top_denied([offender("globex", 1)].iter());
        let text = telemetry.render().unwrap();
        assert!(text.contains("globex") && !text.contains("acme"), "{text}");
    }
}
