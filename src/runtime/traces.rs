//! Sends spans of requests to a collector by OTLP, in batches, from memory.
//!
//! An unavailable collector costs spans, never requests: the gateway tries a batch a few times, and meanwhile drops and
//! counts spans for which there is no room.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

mod otlp;

use otlp::Source;

use super::delivery::{BearerToken, DeliveryRequest, backoff, deliver};
use crate::gateway::Gateway;
use crate::gateway::spans::{EndedSpan, Spans};
use crate::http::head::ResponseHead;
use crate::ruleset::{Ruleset, UpstreamId};
use crate::telemetry::Telemetry;
use crate::telemetry::deliveries::DeliveryMetrics;
use crate::units::Nanos;

/// The longest time that a span waits for its batch.
const SEND_INTERVAL: Nanos = Nanos::from_secs(2);
/// The maximum number of attempts for a batch.
const MAX_ATTEMPTS: u32 = 4;
/// The longest pause between two attempts, also where the collector asks for one.
const MAX_RETRY_INTERVAL: Nanos = Nanos::from_secs(30);
/// How long the end of the process waits until the last spans are sent.
const LAST_SEND_TIMEOUT: Nanos = Nanos::from_secs(2);

/// The settings of the exporter.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// The token that the gateway presents to the collector.
    pub token: Option<BearerToken>,
    /// The gateway's service name in spans.
    pub service: String,
}

/// Sends spans.
pub(super) struct Exporter {
    gateway: Gateway,
    telemetry: Telemetry,
    /// Identifies this process among those with the same service name.
    instance: u128,
    settings: Mutex<Option<Settings>>,
    /// Locked while a batch is sent.
    sending: tokio::sync::Mutex<()>,
    /// The last failure, so that it is logged once.
    last_error: Mutex<Option<String>>,
}

impl Exporter {
    pub(super) fn new(gateway: Gateway, telemetry: Telemetry, settings: Option<Settings>) -> Self {
        let (settings, sending, last_error) = (Mutex::new(settings), tokio::sync::Mutex::default(), Mutex::default());
        Self { gateway, telemetry, instance: rand::random(), settings, sending, last_error }
    }

    /// Applies new settings.
    pub(super) fn apply_settings(&self, settings: Option<Settings>) {
        *self.settings.lock() = settings;
    }

    /// Sends batches until dropped.
    pub(super) async fn run(self: Arc<Self>) {
        let spans = &self.gateway.spans;
        loop {
            spans.wait_for(1).await;
            // a batch is due after this time, or earlier with many spans
            drop(timeout(SEND_INTERVAL.to_duration(), spans.wait_for(Spans::BATCH_SIZE)).await);
            self.send(MAX_ATTEMPTS).await;
        }
    }

    /// Sends the last spans; at the end of the process.
    pub(super) fn flush(&self) {
        let spans = &self.gateway.spans;
        if spans.is_empty() {
            return;
        }
        let sending = async {
            while !spans.is_empty() {
                self.send(1).await;
            }
        };
        if let Ok(runtime) = Builder::new_current_thread().enable_all().build() {
            drop(runtime.block_on(async { timeout(LAST_SEND_TIMEOUT.to_duration(), sending).await }));
            // no thread waits for the name lookups that are still running
            runtime.shutdown_background();
        }
        if !spans.is_empty() {
            self.metrics().ended("dropped", spans.len());
            tracing::warn!(spans = spans.len(), "the process ends before all spans are sent: the rest is dropped");
        }
    }

    /// Sends the oldest spans in at most `attempts` attempts; then removes them, whether the collector took them or not.
    async fn send(&self, attempts: u32) {
        let _alone = self.sending.lock().await;
        let spans = self.gateway.spans.oldest();
        let (result, last_error) = match self.deliver(&spans, attempts).await {
            Ok(()) => ("sent", None),
            Err((result, reason)) => (result, Some(reason)),
        };
        self.gateway.spans.remove(spans.len());
        self.metrics().ended(result, spans.len());
        let mut last_logged = self.last_error.lock();
        if let Some(reason) = last_error.as_ref().filter(|reason| last_logged.as_ref() != Some(reason)) {
            tracing::warn!(spans = spans.len(), reason, "cannot send spans to the collector: they are dropped");
        }
        *last_logged = last_error;
    }

    /// Posts `spans` in at most `attempts` attempts.
    async fn deliver(&self, spans: &[Arc<EndedSpan>], attempts: u32) -> Result<(), Failed> {
        let mut attempt: u32 = 1;
        loop {
            let Some(Settings { token, service }) = self.settings.lock().clone() else {
                return Err(("dropped", "the configuration no longer names a collector".to_owned()));
            };
            let source = Source { service: &service, instance: self.instance };
            let standard =
                [("user-agent", "tollgate-traces".to_owned()), ("content-type", "application/x-protobuf".to_owned())];
            let fields = standard.into_iter().chain(token.as_ref().map(BearerToken::field)).collect();
            let delivery_request = DeliveryRequest { fields, body: otlp::request(&source, spans) };
            let answered = deliver(&self.gateway, receiver, &delivery_request).await;
            let is_taken = answered.as_ref().is_ok_and(|head| matches!(head.status, 200..=299));
            self.metrics().attempted(is_taken);
            let (reason, retry_after) = match answered {
                Ok(_) if is_taken => return Ok(()),
                Ok(head) if is_retryable(head.status) => (format!("it answered {}", head.status), retry_after(&head)),
                Ok(head) => return Err(("refused", format!("it answered {}", head.status))),
                Err(reason) => (reason, None),
            };
            if attempt >= attempts {
                return Err(("failed", reason));
            }
            sleep(pause(attempt, retry_after, rand::random()).to_duration()).await;
            attempt = attempt.saturating_add(1);
        }
    }

    fn metrics(&self) -> &DeliveryMetrics {
        &self.telemetry.spans
    }
}

/// The outcome for spans that the collector did not take, as metrics count it, and the reason.
type Failed = (&'static str, String);

fn receiver(ruleset: &Ruleset) -> Option<(UpstreamId, &str)> {
    ruleset.traces.as_ref().map(|traces| (traces.upstream, traces.path.as_str()))
}

/// Whether a collector that answers with `status` may take the same spans later (OTLP 1, OTLP/HTTP, "Retryable Response
/// Codes").
const fn is_retryable(status: u16) -> bool {
    matches!(status, 429 | 502..=504)
}

/// The pause that the collector asks for in `Retry-After`.
fn retry_after(head: &ResponseHead) -> Option<Nanos> {
    let seconds = str::from_utf8(head.fields.get("retry-after")?).ok()?.parse().ok()?;
    Some(Nanos::from_secs(seconds).min(MAX_RETRY_INTERVAL))
}

/// The pause after `attempts` attempts: the collector's `retry_after`, or as for other deliveries.
fn pause(attempts: u32, retry_after: Option<Nanos>, chance: u8) -> Nanos {
    retry_after.unwrap_or_else(|| backoff(attempts.saturating_sub(1), MAX_RETRY_INTERVAL, chance))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_differ_by_chance_and_follow_the_collector() {
        let seconds = |attempts, retry_after, chance| pause(attempts, retry_after, chance).as_secs_f64();
        assert_eq!([seconds(1, None, 0), seconds(2, None, 0), seconds(9, None, 0)], [1.0, 2.0, 30.0]);
        assert!((0.5..0.51).contains(&seconds(1, None, 255)));
        let mut head = ResponseHead::default();
        assert_eq!(retry_after(&head), None);
        for (text, seconds) in [("3", Some(3)), ("9999999999", Some(30)), ("Tue, 24 Nov 2026 08:00:00 GMT", None)] {
            head.fields.clear();
            head.fields.push("Retry-After", text);
            assert_eq!(retry_after(&head), seconds.map(Nanos::from_secs), "{text}");
        }
        assert_eq!(pause(1, retry_after(&head).or(Some(Nanos::from_secs(3))), 255), Nanos::from_secs(3));
    }

    #[test]
    fn only_a_collector_that_is_busy_or_away_is_asked_again() {
        assert_eq!([429, 502, 503, 504].map(is_retryable), [true; 4]);
        assert_eq!([400, 401, 404, 413, 500, 501, 505].map(is_retryable), [false; 7]);
    }
}
