//! The metrics of deliveries to receivers: webhook messages and usage events, from queues on disk, and spans.

use prometheus::{IntCounterVec, IntGauge, Registry};

use super::{counter, gauge_value, names, single};

/// The metrics of deliveries to one receiver.
#[derive(Clone, Debug)]
pub struct DeliveryMetrics {
    /// The receiver, as a label.
    to: &'static str,
    ended: IntCounterVec,
    attempts: IntCounterVec,
}

/// The metrics of deliveries to one receiver, and of their queue on disk.
#[derive(Clone, Debug)]
pub struct QueueMetrics {
    /// The metrics of the deliveries.
    pub deliveries: DeliveryMetrics,
    records: IntGauge,
    bytes: IntGauge,
}

/// The metrics of all receivers.
pub(super) struct AllDeliveries {
    pub(super) webhook: QueueMetrics,
    pub(super) usage_events: QueueMetrics,
    pub(super) spans: DeliveryMetrics,
}

impl AllDeliveries {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let attempts = counter(registry, &names::DELIVERY_ATTEMPTS)?;
        let metrics = |to, ended, results: &[&str]| {
            let metrics = DeliveryMetrics { to, ended: counter(registry, ended)?, attempts: attempts.clone() };
            results.iter().for_each(|result| metrics.ended(result, 0));
            ["success", "failure"].iter().for_each(|result| drop(attempts.with_label_values(&[to, result])));
            Ok::<_, prometheus::Error>(metrics)
        };
        let gauge = |name| single(registry, name, IntGauge::with_opts);
        let webhook = ["delivered", "refused", "expired", "no_room", "lost"];
        Ok(Self {
            webhook: QueueMetrics {
                deliveries: metrics("webhook", &names::WEBHOOK_MESSAGES, &webhook)?,
                records: gauge(&names::WEBHOOK_QUEUE_MESSAGES)?,
                bytes: gauge(&names::WEBHOOK_QUEUE_BYTES)?,
            },
            usage_events: QueueMetrics {
                deliveries: metrics("usage_events", &names::USAGE_EVENTS, &["delivered", "refused", "lost"])?,
                records: gauge(&names::USAGE_QUEUE_EVENTS)?,
                bytes: gauge(&names::USAGE_QUEUE_BYTES)?,
            },
            spans: metrics("traces", &names::TRACE_SPANS, &["sent", "refused", "failed", "dropped"])?,
        })
    }
}

impl DeliveryMetrics {
    /// The delivery of so many records ended, with this result.
    pub fn ended(&self, result: &str, records: usize) {
        self.ended.with_label_values(&[result]).inc_by(u64::try_from(records).unwrap_or(u64::MAX));
    }

    /// The gateway posted records to the receiver, which took them or not.
    pub fn attempted(&self, is_taken: bool) {
        self.attempts.with_label_values(&[self.to, if is_taken { "success" } else { "failure" }]).inc();
    }
}

impl QueueMetrics {
    /// Sets the number of records that wait for the receiver, and the size of their queue in bytes.
    pub fn queued(&self, records: u64, bytes: u64) {
        self.records.set(gauge_value(records));
        self.bytes.set(gauge_value(bytes));
    }
}
