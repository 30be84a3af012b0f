//! Spans of requests are sent to a collector by OTLP, in batches, from memory.
//!
//! A collector that is unavailable costs spans, never requests: a batch is tried a few times, and what finds no room meanwhile is
//! dropped and counted.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};

mod otlp;

use otlp::Source;

use super::delivery::{BearerToken, Letter, deliver};
use crate::gateway::Gateway;
use crate::gateway::spans::{EndedSpan, Spans};
use crate::http::head::ResponseHead;
use crate::ruleset::{Ruleset, UpstreamId};
use crate::telemetry::Telemetry;
use crate::telemetry::deliveries::DeliveryMetrics;
use crate::units::Nanos;

/// How long spans wait for others to be sent with.
const EVERY: Nanos = Nanos::from_secs(2);
/// How often a batch is tried.
const ATTEMPTS: u32 = 4;
/// The time after the first attempt, which doubles from one to the next, and the longest that a collector may ask for.
const FIRST_PAUSE: Nanos = Nanos::SECOND;
const LONGEST_PAUSE: Nanos = Nanos::from_secs(30);
/// How long the end of the process waits for what is left to be sent.
const LAST: Nanos = Nanos::from_secs(2);

/// What spans are sent with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// What the collector is shown.
    pub token: Option<BearerToken>,
    /// What spans call the gateway.
    pub service: String,
}

/// Sends spans.
pub(super) struct Exporter {
    gateway: Gateway,
    telemetry: Telemetry,
    /// Identifies this process among those of the same name.
    instance: u128,
    settings: Mutex<Option<Settings>>,
    /// Held while a batch is sent.
    sending: tokio::sync::Mutex<()>,
    /// What went wrong last, so that it is told once.
    trouble: Mutex<Option<String>>,
}

impl Exporter {
    pub(super) fn new(gateway: Gateway, telemetry: Telemetry, settings: Option<Settings>) -> Self {
        let (settings, sending, trouble) = (Mutex::new(settings), tokio::sync::Mutex::default(), Mutex::default());
        Self { gateway, telemetry, instance: rand::random(), settings, sending, trouble }
    }

    /// Spans are sent like this from here on.
    pub(super) fn follow(&self, settings: Option<Settings>) {
        *self.settings.lock() = settings;
    }

    /// Works until dropped.
    pub(super) async fn run(self: Arc<Self>) {
        let spans = &self.gateway.spans;
        loop {
            spans.has(1).await;
            // it is time, or there are many
            drop(timeout(EVERY.to_duration(), spans.has(Spans::MANY)).await);
            self.send(ATTEMPTS).await;
        }
    }

    /// Sends what is left; at the end of the process.
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
            drop(runtime.block_on(async { timeout(LAST.to_duration(), sending).await }));
            // what the system still looks up is waited for by nobody
            runtime.shutdown_background();
        }
        if !spans.is_empty() {
            self.metrics().ended("dropped", spans.len());
            tracing::warn!(spans = spans.len(), "the process ends before its spans are sent: they are lost");
        }
    }

    /// Sends the oldest spans, in so many attempts; then they are over, whether anybody took them or not.
    async fn send(&self, attempts: u32) {
        let _alone = self.sending.lock().await;
        let spans = self.gateway.spans.oldest();
        let (result, trouble) = match self.deliver(&spans, attempts).await {
            Ok(()) => ("sent", None),
            Err((result, reason)) => (result, Some(reason)),
        };
        self.gateway.spans.remove(spans.len());
        self.metrics().ended(result, spans.len());
        let mut told = self.trouble.lock();
        if let Some(reason) = trouble.as_ref().filter(|reason| told.as_ref() != Some(reason)) {
            tracing::warn!(spans = spans.len(), reason, "the collector does not take spans: they are lost");
        }
        *told = trouble;
    }

    /// Posts `spans` in so many attempts at most.
    async fn deliver(&self, spans: &[Arc<EndedSpan>], attempts: u32) -> Result<(), Failed> {
        let mut attempt: u32 = 1;
        loop {
            let Some(Settings { token, service }) = self.settings.lock().clone() else {
                return Err(("dropped", "the configuration names no collector any more".to_owned()));
            };
            let source = Source { service: &service, instance: self.instance };
            let standard =
                [("user-agent", "tollgate-traces".to_owned()), ("content-type", "application/x-protobuf".to_owned())];
            let fields = standard.into_iter().chain(token.as_ref().map(BearerToken::field)).collect();
            let letter = Letter { fields, body: otlp::request(&source, spans) };
            let answered = deliver(&self.gateway, receiver, &letter).await;
            let is_taken = answered.as_ref().is_ok_and(|head| matches!(head.status, 200..=299));
            self.metrics().attempted(is_taken);
            let (reason, asked) = match answered {
                Ok(_) if is_taken => return Ok(()),
                Ok(head) if is_worth_another(head.status) => (format!("it answered {}", head.status), asked(&head)),
                Ok(head) => return Err(("refused", format!("it answered {}", head.status))),
                Err(reason) => (reason, None),
            };
            if attempt >= attempts {
                return Err(("failed", reason));
            }
            sleep(pause(attempt, asked, rand::random()).to_duration()).await;
            attempt = attempt.saturating_add(1);
        }
    }

    fn metrics(&self) -> &DeliveryMetrics {
        &self.telemetry.spans
    }
}

/// What becomes of spans that nobody takes, and why nobody does.
type Failed = (&'static str, String);

fn receiver(ruleset: &Ruleset) -> Option<(UpstreamId, &str)> {
    ruleset.traces.as_ref().map(|traces| (traces.upstream, traces.path.as_str()))
}

/// Whether a collector that answers so may take the same spans later (OTLP 1, OTLP/HTTP, "Retryable Response Codes").
const fn is_worth_another(status: u16) -> bool {
    matches!(status, 429 | 502..=504)
}

/// How long a collector asks to be left alone.
fn asked(head: &ResponseHead) -> Option<Nanos> {
    let seconds = str::from_utf8(head.fields.get("retry-after")?).ok()?.parse().ok()?;
    Some(Nanos::from_secs(seconds).min(LONGEST_PAUSE))
}

/// How long to wait after so many attempts: as long as the collector `asked`, or twice as long each time, of which up to a half
/// is left out at random (`chance`, 0 to 255).
fn pause(attempts: u32, asked: Option<Nanos>, chance: u8) -> Nanos {
    let doubled = FIRST_PAUSE.doubled(attempts.saturating_sub(1)).min(LONGEST_PAUSE).get();
    let shortened = Nanos::new(doubled.saturating_sub(doubled / 512 * u64::from(chance)));
    asked.unwrap_or(shortened)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_differ_by_chance_and_follow_the_collector() {
        let seconds = |attempts, asked, chance| pause(attempts, asked, chance).as_secs_f64();
        assert_eq!([seconds(1, None, 0), seconds(2, None, 0), seconds(9, None, 0)], [1.0, 2.0, 30.0]);
        assert!((0.5..0.51).contains(&seconds(1, None, 255)));
        let mut head = ResponseHead::default();
        assert_eq!(asked(&head), None);
        for (text, seconds) in [("3", Some(3)), ("9999999999", Some(30)), ("Tue, 24 Nov 2026 08:00:00 GMT", None)] {
            head.fields.clear();
            head.fields.push("Retry-After", text);
            assert_eq!(asked(&head), seconds.map(Nanos::from_secs), "{text}");
        }
        assert_eq!(pause(1, asked(&head).or(Some(Nanos::from_secs(3))), 255), Nanos::from_secs(3));
    }

    #[test]
    fn only_a_collector_that_is_busy_or_away_is_asked_again() {
        assert_eq!([429, 502, 503, 504].map(is_worth_another), [true; 4]);
        assert_eq!([400, 401, 404, 413, 500, 501, 505].map(is_worth_another), [false; 7]);
    }
}
