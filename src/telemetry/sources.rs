//! The metrics of external sources: keys and customers that are fetched in the background, or looked up one by one.

use prometheus::{Histogram, IntCounterVec, Registry};

use super::{counter, histogram_opts, names, registered};
use crate::units::Nanos;

/// The metrics of sources.
#[derive(Clone, Debug)]
pub struct SourceMetrics {
    refreshes: IntCounterVec,
    lookups: IntCounterVec,
    lookup_duration: Histogram,
}

impl SourceMetrics {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            refreshes: counter(registry, &names::SOURCE_REFRESHES)?,
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
}
