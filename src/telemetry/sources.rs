//! The metrics of what is fetched in the background: customers and the keys of their tokens.

use prometheus::{GaugeVec, IntCounterVec, IntGaugeVec, Registry};

use super::{counter, gauge, names};
use crate::units::Nanos;

/// What is counted of sources.
#[derive(Clone, Debug)]
pub(super) struct SourceMetrics {
    refreshes: IntCounterVec,
    entries: IntGaugeVec,
    last_success: GaugeVec,
}

/// How a source stands, as shown at a scrape.
#[derive(Clone, Copy, Debug)]
pub struct SourceUsage {
    /// Which one.
    pub source: &'static str,
    /// How many things are served.
    pub entries: usize,
    /// When what is served was fetched, on the wall clock; nothing before that.
    pub fresh_at: Option<Nanos>,
}

impl SourceMetrics {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            refreshes: counter(registry, &names::SOURCE_REFRESHES)?,
            entries: gauge(registry, &names::SOURCE_ENTRIES)?,
            last_success: gauge(registry, &names::SOURCE_LAST_SUCCESS_TIMESTAMP)?,
        })
    }

    /// A source was asked.
    pub(super) fn asked(&self, source: &str, succeeded: bool) {
        let [success, failure] =
            ["success", "failure"].map(|result| self.refreshes.with_label_values(&[source, result]));
        if succeeded { success.inc() } else { failure.inc() }
    }

    /// The sources there are, in place of those before.
    pub(super) fn set(&self, sources: impl Iterator<Item = SourceUsage>) {
        self.entries.reset();
        self.last_success.reset();
        for SourceUsage { source, entries, fresh_at } in sources {
            self.entries.with_label_values(&[source]).set(i64::try_from(entries).unwrap_or(i64::MAX));
            self.last_success.with_label_values(&[source]).set(fresh_at.unwrap_or_default().as_secs_f64());
        }
    }
}
