//! Usage events: the gateway sums the usage per customer, limit and interval, writes it to a queue on disk as `CloudEvents`,
//! and posts it from there in batches until the receiver takes them.
//!
//! The gateway saves the sums every few seconds and when the process ends. While another process has the queue, or the queue
//! is full, the sums grow in memory and in the saved file.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::sleep;

mod journal;
mod ledger;

use journal::Journal;
use ledger::Ledger;

use super::courier::{Courier, DeliveryKind, QueueSettings};
use super::delivery::{BearerToken, DeliveryRequest};
use crate::ruleset::{Ruleset, UpstreamId};
use crate::telemetry::Telemetry;
use crate::telemetry::deliveries::QueueMetrics;
use crate::units::Nanos;

/// How often sums are saved: a process that is killed loses the usage since the last time.
const SAVE_INTERVAL: Nanos = Nanos::from_secs(2);
/// How often the gateway looks for sums of processes that have ended.
const ADOPT_INTERVAL: Nanos = Nanos::from_secs(10);
/// How often a failure that lasts is logged again.
const REMIND_INTERVAL: Nanos = Nanos::from_secs(600);

/// The settings of usage events.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// The queue that keeps events until they are delivered.
    pub queue: QueueSettings,
    /// The token that the gateway presents to the receiver.
    pub token: Option<BearerToken>,
    /// The `source` attribute of the events.
    pub source: String,
    /// The length of the intervals of the sums.
    pub every: Nanos,
}

/// The usage events of this process.
pub(super) struct Events(Mutex<State>);

struct State {
    ledger: Ledger,
    /// Open while there are settings.
    journal: Option<Journal>,
    /// The next time to look for sums of processes that have ended, on the steady clock.
    adopts_at: Nanos,
    /// The last failure, so that it is not logged at each attempt.
    last_error: Option<String>,
    /// The next time to log a failure again that lasts, on the steady clock.
    reminds_at: Nanos,
}

impl Events {
    /// The events of a process that starts at the wall time `now`.
    pub(super) fn new(now: Nanos) -> Self {
        let ledger = Ledger::new(rand::random(), now);
        Self(Mutex::new(State {
            ledger,
            journal: None,
            adopts_at: Nanos::ZERO,
            last_error: None,
            reminds_at: Nanos::ZERO,
        }))
    }
}

impl DeliveryKind for Events {
    type Settings = Settings;

    const NAME: &'static str = "usage events";
    const BATCH: usize = 100;

    fn queue(settings: &Settings) -> &QueueSettings {
        &settings.queue
    }

    fn metrics(telemetry: &Telemetry) -> &QueueMetrics {
        &telemetry.usage_events
    }

    fn receiver(ruleset: &Ruleset) -> Option<(UpstreamId, &str)> {
        ruleset.usage_events.as_ref().map(|events| (events.upstream, events.path.as_str()))
    }

    async fn write(courier: &Arc<Courier<Self>>, settings: &Settings) {
        loop {
            let settings = settings.clone();
            let due = courier.blocking(move |courier| write(courier, &settings, false)).await;
            let left = due.saturating_sub(courier.gateway.clock.wall());
            // an interval that has ended grows while the queue has no room
            let pause = if left == Nanos::ZERO { SAVE_INTERVAL } else { left.min(SAVE_INTERVAL) };
            tokio::select! {
                () = sleep(pause.to_duration()) => {}
                () = courier.gateway.usage_sums.wait_for_threshold() => {}
            }
        }
    }

    fn flush_to_queue(courier: &Courier<Self>, settings: &Settings) {
        write(courier, settings, true);
    }

    fn delivery_request(settings: &Settings, records: &[Vec<u8>], _now: Nanos) -> Option<DeliveryRequest> {
        let mut fields = vec![
            ("user-agent", "tollgate-usage".to_owned()),
            ("content-type", "application/cloudevents-batch+json".to_owned()),
        ];
        fields.extend(settings.token.iter().map(BearerToken::field));
        Some(DeliveryRequest { fields, body: [b"[".as_slice(), &records.join(&b","[..]), b"]"].concat() })
    }

    /// A wrong token or path is no refusal, so no event is lost to it: an operator has to correct it.
    fn is_refusal(status: u16) -> bool {
        matches!(status, 400 | 409 | 413 | 422)
    }

    fn is_expired(_record: &[u8], _ruleset: &Ruleset, _now: Nanos) -> bool {
        false
    }

    fn describe(records: &[Vec<u8>]) -> String {
        match records {
            [only] => String::from_utf8_lossy(only).into_owned(),
            several => format!("{} events", several.len()),
        }
    }
}

/// Saves the sums and puts events of ended intervals into the queue, as the process does while it serves.
pub(super) fn save(courier: &Courier<Events>) {
    if let Some(settings) = courier.settings() {
        write(courier, &settings, false);
    }
}

/// Takes the workers' sums, ends the interval if it is over or `is_last`, saves the sums and puts events into the queue.
/// Returns the end of the next interval.
fn write(courier: &Courier<Events>, settings: &Settings, is_last: bool) -> Nanos {
    let Events(state) = &courier.record_kind;
    let (mut state, now, elapsed) = (state.lock(), courier.gateway.clock.wall(), courier.gateway.clock.now());
    state.remind(elapsed);
    state.open_journal(settings);
    let sums = &courier.gateway.usage_sums;
    let mut lost = sums.take_lost();
    for taken in sums.take() {
        if !state.ledger.has_room_for(&taken) {
            state.ledger.end_interval(&settings.source, settings.every, now);
            state.save_and_queue(courier, settings, now);
        }
        lost = lost.saturating_add(state.ledger.add(taken));
    }
    if lost > 0 {
        tracing::error!(sums = lost, "too many customers to hold in memory: usage sums are lost");
        courier.metrics().deliveries.ended("lost", lost);
    }
    if is_last || state.ledger.is_due(settings.every, now) {
        state.ledger.end_interval(&settings.source, settings.every, now);
    }
    state.save_and_queue(courier, settings, now);
    if courier.is_open() && elapsed >= state.adopts_at {
        state.adopts_at = elapsed.saturating_add(ADOPT_INTERVAL);
        state.adopt(courier);
    }
    if is_last {
        // once more, for sums that had to wait for room in the queue
        state.ledger.end_interval(&settings.source, settings.every, now);
        state.save_and_queue(courier, settings, now);
        state.save(settings, now);
        (state.journal, state.adopts_at) = (None, Nanos::ZERO);
    }
    state.ledger.due(settings.every)
}

impl State {
    /// Has the last failure logged again if it still lasts, from time to time.
    fn remind(&mut self, elapsed: Nanos) {
        if elapsed >= self.reminds_at {
            (self.last_error, self.reminds_at) = (None, elapsed.saturating_add(REMIND_INTERVAL));
        }
    }

    fn open_journal(&mut self, settings: &Settings) {
        if let Some(before) = self.journal.take_if(|journal| !journal.is_in(&settings.queue.directory)) {
            self.log_failure("cannot remove the file of usage sums", before.save(&[]));
            self.ledger.is_changed = true;
        }
        if self.journal.is_none() {
            let opened = Journal::open(&settings.queue.directory, self.ledger.instance());
            self.journal = self.log_failure("cannot create the file of usage sums", opened);
        }
    }

    /// Saves all events before it queues any: if a crash delivers an event twice, both copies are the same.
    fn save_and_queue(&mut self, courier: &Courier<Events>, settings: &Settings, now: Nanos) {
        self.save(settings, now);
        let waiting = self.ledger.ended();
        if waiting.is_empty() {
            return;
        }
        if !courier.is_open() {
            return courier.show_waiting(waiting.len());
        }
        let (queued, mut done) = courier.append(waiting);
        if done.is_ok() && queued < waiting.len() {
            done = Err(std::io::Error::other("it is full; sums stay in memory, and intervals get longer"));
        }
        self.ledger.queued(queued);
        self.log_failure("cannot write usage events to the queue", done);
    }

    fn save(&mut self, settings: &Settings, now: Nanos) {
        if !self.ledger.is_changed {
            return;
        }
        let events = self.ledger.events(&settings.source, now);
        let saved = self.journal.as_ref().map(|journal| journal.save(&events));
        if saved.is_some_and(|saved| self.log_failure("cannot save the usage sums", saved).is_some()) {
            self.ledger.is_changed = false;
        }
    }

    fn adopt(&mut self, courier: &Courier<Events>) {
        let Some(journal) = &self.journal else { return };
        let (events, done) = journal.adopt(|events| courier.append(events));
        self.log_failure("cannot take over the usage sums of another process", done);
        if events > 0 {
            tracing::info!(events, "took over the usage sums of another process");
        }
    }

    /// The value of `done`; logs a failure if it differs from the one before.
    fn log_failure<T>(&mut self, failed: &str, done: std::io::Result<T>) -> Option<T> {
        match done {
            Ok(done) => {
                self.last_error = self.last_error.take().filter(|last_error| !last_error.starts_with(failed));
                Some(done)
            }
            Err(error) => {
                let last_error = format!("{failed}: {error}");
                if self.last_error.as_ref() != Some(&last_error) {
                    tracing::error!(%error, "{failed}; retrying");
                    self.last_error = Some(last_error);
                }
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_a_list_of_events_with_the_token_beside_it() {
        let queue = QueueSettings { directory: "q".into(), max_bytes: 1 };
        let settings = Settings {
            queue,
            token: Some(BearerToken::new("t".to_owned())),
            source: String::new(),
            every: Nanos::SECOND,
        };
        let delivery_request =
            Events::delivery_request(&settings, &[b"{\"a\":1}".to_vec(), b"{}".to_vec()], Nanos::ZERO).unwrap();
        assert_eq!(delivery_request.body, b"[{\"a\":1},{}]");
        assert!(delivery_request.fields.contains(&("authorization", "Bearer t".to_owned())));
    }

    #[test]
    fn a_failure_that_lasts_is_logged_again_after_ten_minutes() {
        let Events(state) = Events::new(Nanos::ZERO);
        let mut state = state.lock();
        let mut is_logged = |seconds| {
            state.remind(Nanos::from_secs(seconds));
            let is_new = state.last_error.is_none();
            state.log_failure::<()>("cannot write", Err(std::io::ErrorKind::StorageFull.into()));
            is_new
        };
        assert_eq!([5, 7, 604, 605, 607, 1205].map(&mut is_logged), [true, false, false, true, false, true]);
    }

    #[test]
    fn only_answers_about_the_events_themselves_are_refusals() {
        assert_eq!([400, 409, 413, 422].map(Events::is_refusal), [true; 4]);
        assert_eq!([401, 403, 404, 408, 429, 500, 503].map(Events::is_refusal), [false; 7]);
    }
}
