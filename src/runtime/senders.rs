//! The senders: they send webhook messages, usage events and traces, beside the requests that the gateway forwards.

use std::sync::Arc;

use tokio::sync::mpsc::Receiver;
use tokio::task::JoinSet;

use super::courier::Courier;
use super::traces::{self, Exporter};
use super::usage_events::{self, Events};
use super::webhook::{self, Messages};
use crate::gateway::Gateway;
use crate::gateway::crossings::Crossing;
use crate::panics::restart_on_panic;
use crate::telemetry::Telemetry;

/// The senders of a process.
#[derive(Clone)]
pub(super) struct Senders {
    pub(super) webhook: Arc<Courier<Messages>>,
    pub(super) usage_events: Arc<Courier<Events>>,
    pub(super) traces: Arc<Exporter>,
}

/// The settings of the senders; absent for a sender that sends nothing.
pub struct SenderSettings {
    /// Messages to the webhook.
    pub webhook: Option<webhook::Settings>,
    /// Usage events.
    pub usage_events: Option<usage_events::Settings>,
    /// Spans of requests.
    pub traces: Option<traces::Settings>,
}

impl Senders {
    /// The senders of `gateway`; `crossed` receives the keys that cross marks of their limits.
    pub(super) fn new(
        gateway: &Gateway,
        telemetry: &Telemetry,
        crossed: Receiver<Crossing>,
        settings: SenderSettings,
    ) -> Self {
        let SenderSettings { webhook, usage_events, traces } = settings;
        let events = Events::new(gateway.clock.wall());
        Self {
            webhook: Arc::new(Courier::new(gateway.clone(), telemetry.clone(), Messages::new(crossed), webhook)),
            usage_events: Arc::new(Courier::new(gateway.clone(), telemetry.clone(), events, usage_events)),
            traces: Arc::new(Exporter::new(gateway.clone(), telemetry.clone(), traces)),
        }
    }

    /// Applies new settings to the senders.
    pub(super) fn apply_settings(&self, settings: SenderSettings) {
        let SenderSettings { webhook, usage_events, traces } = settings;
        self.webhook.apply_settings(webhook);
        self.usage_events.apply_settings(usage_events);
        self.traces.apply_settings(traces);
    }

    /// Starts the senders as `tasks`.
    pub(super) fn start(&self, tasks: &mut JoinSet<()>) {
        let Self { webhook, usage_events, traces } = self.clone();
        tasks.spawn(restart_on_panic(move || Arc::clone(&webhook).run()));
        tasks.spawn(restart_on_panic(move || Arc::clone(&usage_events).run()));
        tasks.spawn(restart_on_panic(move || Arc::clone(&traces).run()));
    }

    /// Writes records to disk that are in memory, when the tasks have ended and the process goes on.
    pub(super) fn save(&self) {
        self.webhook.flush_to_queue();
        usage_events::save(&self.usage_events);
    }

    /// Writes records that are still in memory to their queues, and sends the last spans; at the end of the process.
    pub(super) fn finish(&self) {
        self.webhook.flush_to_queue();
        self.usage_events.flush_to_queue();
        self.traces.flush();
    }
}
