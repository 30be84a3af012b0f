//! The senders: they send webhook messages, usage events and traces, beside the requests that the gateway forwards.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::courier::Courier;
use super::traces::{self, Exporter};
use super::usage_events::{self, Events};
use super::webhook::{self, Messages};
use crate::panics::restart_on_panic;

/// The senders of a process.
#[derive(Clone)]
pub(super) struct Senders {
    pub(super) webhook: Arc<Courier<Messages>>,
    pub(super) usage_events: Arc<Courier<Events>>,
    pub(super) traces: Arc<Exporter>,
}

/// The settings of the senders; absent for a sender that sends nothing.
#[derive(Debug)]
pub struct SenderSettings {
    /// Messages to the webhook.
    pub webhook: Option<webhook::Settings>,
    /// Usage events.
    pub usage_events: Option<usage_events::Settings>,
    /// Spans of requests.
    pub traces: Option<traces::Settings>,
}

impl Senders {
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
