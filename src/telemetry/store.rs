//! The metrics of a gateway that shares states with others in a store.

use prometheus::{Histogram, HistogramVec, IntCounterVec, Registry};

use super::{counter, histogram, histogram_opts, names, registered};
use crate::units::Nanos;

/// The metrics of a store.
#[derive(Clone, Debug)]
pub struct StoreMetrics {
    requests: IntCounterVec,
    duration: HistogramVec,
    batch: Histogram,
}

impl StoreMetrics {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            requests: counter(registry, &names::STORE_REQUESTS)?,
            duration: histogram(registry, &names::STORE_REQUEST_DURATION, names::STORE_SECONDS)?,
            batch: registered(
                registry,
                Histogram::with_opts(histogram_opts(&names::STORE_BATCH_CHARGES, names::BATCH))?,
            )?,
        })
    }

    /// Gateways share a store, whose calls are for `operations` and end with `results`: their series begin at zero.
    pub fn expect(&self, operations: &[&str], results: &[&str]) {
        for op in operations {
            results.iter().for_each(|result| drop(self.requests.with_label_values(&[op, result])));
            self.duration.with_label_values(&[op]);
        }
    }

    /// A call to a store for `op` ended with this result, and took this long.
    pub fn called(&self, op: &str, result: &str, took: Nanos) {
        self.requests.with_label_values(&[op, result]).inc();
        self.duration.with_label_values(&[op]).observe(took.as_secs_f64());
    }

    /// A call to a store charged this many requests.
    #[expect(clippy::cast_precision_loss, reason = "a report")]
    pub fn charged(&self, requests: u64) {
        self.batch.observe(requests as f64);
    }
}
