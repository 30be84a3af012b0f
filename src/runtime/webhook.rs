//! The webhook: the gateway writes messages about keys that reach a mark of `warn_at` to a queue on disk, and posts them
//! from there, signed, one after the other, until the receiver takes them.
//!
//! Requests hand crossings over and wait for nothing. If the process is killed between a delivery and its acknowledgement in
//! the queue, the next process delivers the message again with the same `webhook-id`.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

mod message;

pub use message::Secrets;

use message::Message;

use super::courier::{Courier, DeliveryKind, QueueSettings};
use super::delivery::DeliveryRequest;
use crate::gateway::crossings::Crossing;
use crate::ruleset::{Ruleset, UpstreamId};
use crate::telemetry::Telemetry;
use crate::telemetry::deliveries::QueueMetrics;
use crate::units::Nanos;

/// The settings of the webhook.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// The queue that keeps messages until they are delivered.
    pub queue: QueueSettings,
    /// The secrets that messages are signed with.
    pub secrets: Secrets,
}

/// The origin of log lines about lost messages. Clients cause these lines, so their number is bounded, unlike that of the
/// other lines of the runtime.
const LOG_TARGET: &str = "tollgate::webhook";
/// How often waiting and lost crossings are counted while the queue is not open.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of crossings in one write to the queue.
const MAX_BATCH: usize = 256;

/// Messages about keys.
pub(super) struct Messages {
    crossed: tokio::sync::Mutex<Receiver<Crossing>>,
}

impl Messages {
    /// Messages about the crossings that `crossed` receives.
    pub(super) fn new(crossed: Receiver<Crossing>) -> Self {
        Self { crossed: tokio::sync::Mutex::new(crossed) }
    }
}

impl DeliveryKind for Messages {
    type Settings = Settings;

    const NAME: &'static str = "webhook";
    const BATCH: usize = 1;

    fn queue(settings: &Settings) -> &QueueSettings {
        &settings.queue
    }

    fn metrics(telemetry: &Telemetry) -> &QueueMetrics {
        &telemetry.webhook
    }

    fn receiver(ruleset: &Ruleset) -> Option<(UpstreamId, &str)> {
        ruleset.webhook.as_ref().map(|webhook| (webhook.upstream, webhook.path.as_str()))
    }

    async fn write(courier: &Arc<Courier<Self>>, settings: &Settings) {
        let mut opened = pin!(courier.opened());
        while timeout(COUNT_INTERVAL, &mut opened).await.is_err() {
            count_lost(courier);
            courier.show_waiting(courier.record_kind.crossed.lock().await.len());
        }
        let mut crossed = courier.record_kind.crossed.lock().await;
        loop {
            let mut batch = Vec::new();
            if crossed.recv_many(&mut batch, MAX_BATCH).await == 0 {
                return;
            }
            count_lost(courier);
            let settings = settings.clone();
            courier.blocking(move |courier| put(courier, &settings, &batch)).await;
        }
    }

    fn flush_to_queue(courier: &Courier<Self>, settings: &Settings) {
        let Ok(mut crossed) = courier.record_kind.crossed.try_lock() else { return };
        let rest: Vec<Crossing> = std::iter::from_fn(|| crossed.try_recv().ok()).collect();
        if !rest.is_empty() {
            put(courier, settings, &rest);
        }
    }

    fn delivery_request(settings: &Settings, records: &[Vec<u8>], now: Nanos) -> Option<DeliveryRequest> {
        let message = Message::from_bytes(records.first()?)?;
        let seconds = now.get() / Nanos::SECOND.get();
        let fields = vec![
            ("user-agent", "tollgate-webhook".to_owned()),
            ("content-type", "application/json".to_owned()),
            ("webhook-timestamp", seconds.to_string()),
            ("webhook-signature", settings.secrets.sign(&message, seconds)),
            ("webhook-id", message.id),
        ];
        Some(DeliveryRequest { fields, body: message.body.into_bytes() })
    }

    fn is_refusal(status: u16) -> bool {
        matches!(status, 400..=499) && !matches!(status, 408 | 425 | 429)
    }

    fn is_expired(record: &[u8], ruleset: &Ruleset, now: Nanos) -> bool {
        let (webhook, message) = (ruleset.webhook.as_ref(), Message::from_bytes(record));
        webhook.zip(message).is_some_and(|(webhook, message)| now.saturating_sub(message.at) >= webhook.keep)
    }

    fn describe(records: &[Vec<u8>]) -> String {
        records.first().and_then(|record| Message::from_bytes(record)).map(|message| message.id).unwrap_or_default()
    }
}

/// Counts the crossings for which there was no room in memory.
fn count_lost(courier: &Courier<Messages>) {
    match courier.gateway.crossings.take_lost() {
        0 => {}
        lost => courier.metrics().deliveries.ended("lost", lost),
    }
}

/// Writes messages to the queue, and counts those that are lost.
fn put(courier: &Courier<Messages>, settings: &Settings, batch: &[Crossing]) {
    let messages: Vec<Vec<u8>> =
        batch.iter().map(|crossing| Message::of(crossing, &settings.secrets).to_bytes()).collect();
    let (taken, done) = courier.append(&messages);
    let lost = messages.len().saturating_sub(taken);
    match done {
        Ok(()) if lost == 0 => {}
        Ok(()) => {
            tracing::error!(target: LOG_TARGET, messages = lost, "the webhook's queue on disk is full: new messages are dropped");
            courier.metrics().deliveries.ended("no_room", lost);
        }
        Err(error) => {
            tracing::error!(target: LOG_TARGET, %error, messages = lost, "cannot write to the webhook's queue on disk: messages are dropped");
            courier.metrics().deliveries.ended("lost", lost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_ask_for_patience_are_no_refusals() {
        assert_eq!([400, 401, 404, 410, 422].map(Messages::is_refusal), [true; 5]);
        assert_eq!([300, 408, 425, 429, 500, 503].map(Messages::is_refusal), [false; 6]);
    }
}
