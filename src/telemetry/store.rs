//! The metrics of a gateway that shares states with others in a store.

use prometheus::{Gauge, Histogram, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry};

use super::{counter, gauge, gauge_value, histogram, histogram_opts, names, raise, registered, single};
use crate::units::Nanos;

/// The metrics of a store.
#[derive(Clone, Debug)]
pub struct StoreMetrics {
    requests: IntCounterVec,
    duration: HistogramVec,
    batch: Histogram,
    waiters: IntGauge,
    clock_offset: Gauge,
    breaker: IntGaugeVec,
    healed: IntCounter,
    overshoot: IntCounterVec,
    unsynced: IntGauge,
    lease_tokens: IntCounterVec,
    lease_outstanding: IntGauge,
}

/// The state of the store that nodes share, as a scrape shows it.
#[derive(Clone, Copy, Debug)]
pub struct StoreUsage {
    /// The state of the breaker.
    pub breaker: &'static str,
    /// The number of nodes.
    pub nodes: u64,
    /// States that were repaired so far.
    pub healed: u64,
    /// Tokens admitted in outages so far that the store did not have afterwards.
    pub overshoot: u64,
    /// Tokens admitted without the store that are not reconciled yet.
    pub unsynced: u64,
    /// Requests that wait until the call before theirs is answered.
    pub waiting: u64,
    /// How far the store's clock is ahead of this gateway's, in seconds.
    pub clock_ahead: f64,
    /// Leased tokens so far, by event: taken, spent or lapsed.
    pub leased: [(&'static str, u64); 3],
    /// Leased tokens that this gateway may still spend.
    pub held: u64,
}

impl StoreMetrics {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let number = |name| single(registry, name, IntGauge::with_opts);
        Ok(Self {
            requests: counter(registry, &names::STORE_REQUESTS)?,
            duration: histogram(registry, &names::STORE_REQUEST_DURATION, names::STORE_SECONDS)?,
            batch: registered(
                registry,
                Histogram::with_opts(histogram_opts(&names::STORE_BATCH_CHARGES, names::BATCH))?,
            )?,
            waiters: number(&names::STORE_QUEUE_WAITERS)?,
            clock_offset: single(registry, &names::STORE_CLOCK_OFFSET, Gauge::with_opts)?,
            breaker: gauge(registry, &names::STORE_BREAKER_STATE)?,
            healed: single(registry, &names::STORE_STATES_HEALED, IntCounter::with_opts)?,
            overshoot: counter(registry, &names::LIMIT_OVERSHOOT)?,
            unsynced: number(&names::LIMIT_UNSYNCED)?,
            lease_tokens: counter(registry, &names::LEASE_TOKENS)?,
            lease_outstanding: number(&names::LEASE_OUTSTANDING)?,
        })
    }

    /// Nodes share a store, whose calls end with one of `results`: the series of these calls begin at zero.
    pub fn expect(&self, results: impl Iterator<Item = &'static str> + Clone) {
        for op in names::STORE_OPS {
            results.clone().for_each(|result| drop(self.requests.with_label_values(&[op, result])));
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

    pub(super) fn set(&self, usage: &StoreUsage) {
        for state in ["closed", "open", "half_open"] {
            self.breaker.with_label_values(&[state]).set(i64::from(usage.breaker == state));
        }
        raise(&self.healed, usage.healed);
        raise(&self.overshoot.with_label_values(&["outage"]), usage.overshoot);
        for (event, total) in usage.leased {
            raise(&self.lease_tokens.with_label_values(&[event]), total);
        }
        self.unsynced.set(gauge_value(usage.unsynced));
        self.waiters.set(gauge_value(usage.waiting));
        self.clock_offset.set(usage.clock_ahead);
        self.lease_outstanding.set(gauge_value(usage.held));
    }
}
