//! The metrics of what is delivered from queues on disk: messages to the webhook, and usage events.

use prometheus::{IntCounterVec, IntGauge, Registry};

use super::names::Name;
use super::{counter, names, opts, registered, shown};

/// What is counted of one queue and its receiver.
#[derive(Clone, Debug)]
pub struct QueueMetrics {
    /// The receiver, as a label.
    to: &'static str,
    ended: IntCounterVec,
    attempts: IntCounterVec,
    records: IntGauge,
    bytes: IntGauge,
}

impl QueueMetrics {
    /// Of the webhook and of usage events.
    pub(super) fn both(registry: &Registry) -> Result<[Self; 2], prometheus::Error> {
        let attempts = counter(registry, &names::DELIVERY_ATTEMPTS)?;
        let webhook = (&names::WEBHOOK_MESSAGES, &names::WEBHOOK_QUEUE_MESSAGES, &names::WEBHOOK_QUEUE_BYTES);
        let usage = (&names::USAGE_EVENTS, &names::USAGE_QUEUE_EVENTS, &names::USAGE_QUEUE_BYTES);
        Ok([
            Self::new(
                registry,
                "webhook",
                &attempts,
                webhook,
                &["delivered", "refused", "expired", "no_room", "lost"],
            )?,
            Self::new(registry, "usage_events", &attempts, usage, &["delivered", "refused", "lost"])?,
        ])
    }

    fn new(
        registry: &Registry,
        to: &'static str,
        attempts: &IntCounterVec,
        (ended, records, bytes): (&Name, &Name, &Name),
        results: &[&str],
    ) -> Result<Self, prometheus::Error> {
        let gauge = |name| registered(registry, IntGauge::with_opts(opts(name))?);
        let metrics = Self {
            to,
            ended: counter(registry, ended)?,
            attempts: attempts.clone(),
            records: gauge(records)?,
            bytes: gauge(bytes)?,
        };
        results.iter().for_each(|result| metrics.ended(result, 0));
        ["success", "failure"].iter().for_each(|result| drop(attempts.with_label_values(&[to, result])));
        Ok(metrics)
    }

    /// So many records are over, with this result.
    pub fn ended(&self, result: &str, records: usize) {
        self.ended.with_label_values(&[result]).inc_by(u64::try_from(records).unwrap_or(u64::MAX));
    }

    /// The receiver was posted records, and took them or not.
    pub fn attempted(&self, is_taken: bool) {
        self.attempts.with_label_values(&[self.to, if is_taken { "success" } else { "failure" }]).inc();
    }

    /// What waits for the receiver.
    pub fn queued(&self, records: u64, bytes: u64) {
        self.records.set(shown(records));
        self.bytes.set(shown(bytes));
    }
}
