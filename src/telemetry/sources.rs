//! The metrics of external sources: keys and customers that are fetched in the background, or looked up one by one.

use prometheus::{GaugeVec, Histogram, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::{counter, gauge, histogram_opts, names, registered, single};
use crate::units::Nanos;

/// The metrics of sources.
#[derive(Clone, Debug)]
pub struct SourceMetrics {
    refreshes: IntCounterVec,
    entries: IntGaugeVec,
    last_success: GaugeVec,
    refused_rows: IntGauge,
    lookups: IntCounterVec,
    lookup_duration: Histogram,
}

/// The state of a source, as a scrape shows it.
#[derive(Clone, Copy, Debug)]
pub struct SourceUsage {
    /// The source's name.
    pub source: &'static str,
    /// The number of entries (keys or credentials) that are served from the source.
    pub entries: usize,
    /// The wall clock's time at which the served entries were fetched; `None` before the first fetch.
    pub fresh_at: Option<Nanos>,
}

impl SourceMetrics {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            refreshes: counter(registry, &names::SOURCE_REFRESHES)?,
            entries: gauge(registry, &names::SOURCE_ENTRIES)?,
            last_success: gauge(registry, &names::SOURCE_LAST_SUCCESS_TIMESTAMP)?,
            refused_rows: single(registry, &names::DIRECTORY_REFUSED_ROWS, IntGauge::with_opts)?,
            lookups: counter(registry, &names::CUSTOMER_LOOKUPS)?,
            lookup_duration: registered(
                registry,
                Histogram::with_opts(histogram_opts(&names::CUSTOMER_LOOKUP_DURATION, names::STORE_SECONDS))?,
            )?,
        })
    }

    /// The gateway asked a source of customers or keys.
    pub fn asked(&self, source: &str, succeeded: bool) {
        let [success, failure] =
            ["success", "failure"].map(|result| self.refreshes.with_label_values(&[source, result]));
        if succeeded { success.inc() } else { failure.inc() }
    }

    /// The service that customers are looked up in was asked, with this result, and took this long.
    pub fn service_asked(&self, result: &str, took: Nanos) {
        self.lookups.with_label_values(&[result]).inc();
        self.lookup_duration.observe(took.as_secs_f64());
    }

    /// Replaces the sources and their state, and sets how many rows of customers are left out. The caller does this before
    /// [`super::Telemetry::render`].
    pub fn set(&self, sources: impl Iterator<Item = SourceUsage>, refused_rows: usize) {
        self.refused_rows.set(i64::try_from(refused_rows).unwrap_or(i64::MAX));
        self.entries.reset();
        self.last_success.reset();
        for SourceUsage { source, entries, fresh_at } in sources {
            self.entries.with_label_values(&[source]).set(i64::try_from(entries).unwrap_or(i64::MAX));
            self.last_success.with_label_values(&[source]).set(fresh_at.unwrap_or_default().as_secs_f64());
        }
    }
}
