//! Metrics and logs for the operators of tollgate.
//!
//! Every metric has its name in [`names`], and is registered here, in a registry of its own, or read at a scrape
//! ([`Samples`]). Label values come from the configuration, never from a client. Handles are resolved when a ruleset comes
//! into force ([`meters::Meters`]), so that a request resolves none.

mod cluster;
mod configured;
pub mod deliveries;
pub mod history;
pub mod logging;
pub mod meters;
pub mod names;
pub mod offenders;
pub mod recent;
mod samples;
mod series;
mod sources;
mod store;
mod striped;

use prometheus::core::{Atomic, Collector, GenericCounterVec, GenericGaugeVec};
use prometheus::{
    Gauge, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry, TextEncoder,
};

use deliveries::{AllDeliveries, DeliveryMetrics, QueueMetrics};
use names::Name;
use offenders::Offenders;
use recent::RecentDecisions;
use striped::{HotCounterVec, HotGaugeVec, HotHistogramVec};

pub use cluster::ClusterMetrics;
pub use samples::Samples;
pub use sources::SourceMetrics;
pub use store::StoreMetrics;

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
    /// The metrics of the store that gateways share.
    pub store: StoreMetrics,
    /// The metrics of sources of customers and keys.
    pub sources: SourceMetrics,
    /// The metrics of the cluster.
    pub cluster: ClusterMetrics,
    upstream_ejections: IntCounterVec,
    upstream_refused: IntCounterVec,
    /// Reloads, by result.
    reloads: IntCounterVec,
    last_reload_successful: IntGauge,
    last_reload_success: Gauge,
    state_restores: IntCounterVec,
    state_snapshots: IntCounterVec,
    /// The last snapshot: the time at which it began, its duration and its size.
    state_last: [Gauge; 3],
    last_snapshot_successful: IntGauge,
    upgrade_failures: IntCounter,
    panics: IntCounter,
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
            store: StoreMetrics::new(&registry)?,
            sources: SourceMetrics::new(&registry)?,
            cluster: ClusterMetrics::new(&registry)?,
            upstream_ejections: counter(&registry, &names::UPSTREAM_EJECTIONS)?,
            upstream_refused: counter(&registry, &names::UPSTREAM_REFUSED)?,
            reloads: counter(&registry, &names::CONFIG_RELOADS)?,
            last_reload_successful: single(&registry, &names::CONFIG_LAST_RELOAD_SUCCESSFUL, IntGauge::with_opts)?,
            last_reload_success: single(&registry, &names::CONFIG_LAST_RELOAD_SUCCESS_TIMESTAMP, Gauge::with_opts)?,
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

    /// All metrics in Prometheus' text exposition format, with the `samples` of those that are read at a scrape.
    pub fn render(&self, mut samples: Samples) -> Result<String, prometheus::Error> {
        for (log, lines) in logging::dropped() {
            samples.push_count(&names::LOG_LINES_DROPPED, &[log], lines);
        }
        TextEncoder::new().encode_to_string(&samples.and(self.registry.gather()))
    }

    /// A configuration came into force at `now`.
    pub fn reload_applied(&self, now: Nanos) {
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

    /// Snapshots go to another file from now on, or to none: none was written there or has failed yet.
    pub fn state_file_changed(&self) {
        self.last_snapshot_successful.set(1);
        self.state_last.iter().for_each(|last| last.set(0.0));
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
        series::retain(&self.upstream_ejections, keep);
        series::retain(&self.upstream_refused, keep);
    }
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
    use std::sync::Arc;

    use super::*;
    use crate::telemetry::offenders::{LimitedKey, Offender};

    #[test]
    fn the_keys_denied_most_take_the_place_of_earlier_ones() {
        let telemetry = Telemetry::new().unwrap();
        let offender = |customer: &str, denied| Offender {
            subject: Arc::new(LimitedKey {
                limit: "guard".to_owned(),
                key: vec![("customer".to_owned(), Some(customer.to_owned())), ("cookie a".to_owned(), None)],
            }),
            denied,
            error: 2,
        };
        let render = |offenders: &[Offender]| {
            let mut samples = Samples::default();
            samples.push_top_denied(offenders.iter());
            telemetry.render(samples).unwrap()
        };
        let text = render(&[offender("acme", 7), offender("a\"b\n", 5)]);
        let acme = r#"{customer="acme, no cookie a",limit="guard"}"#;
        assert!(text.contains(&format!("tollgate_limit_top_denied_requests{acme} 7\n")), "{text}");
        assert!(text.contains(&format!("tollgate_limit_top_denied_error_requests{acme} 2\n")), "{text}");
        assert!(text.contains(r#"customer="a\"b\n, no cookie a""#), "{text}");
        let text = render(&[offender("globex", 1)]);
        assert!(text.contains("globex") && !text.contains("acme"), "{text}");
        // two keys of which the same is shown
        let text = render(&[offender("acme", 7), offender("acme", 4)]);
        assert!(text.contains(&format!("tollgate_limit_top_denied_requests{acme} 11\n")), "{text}");
        assert!(text.contains(&format!("tollgate_limit_top_denied_error_requests{acme} 4\n")), "{text}");
    }
}
