//! The webhook: messages about keys at the marks of `warn_at` are written to a queue on disk, and posted from there, signed,
//! one after the other, until the receiver takes them.
//!
//! Requests hand crossings over and wait for nothing. A message that was delivered and not crossed off before the process was
//! killed is delivered again with the same `webhook-id`.

use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc::Receiver;
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

mod message;

pub use message::Secrets;

use message::Message;

use crate::fields::Fields;
use crate::gateway::Gateway;
use crate::gateway::crossings::Crossing;
use crate::http::upstream::{OutgoingRequest, post};
use crate::outbox::{OpenError, Outbox};
use crate::telemetry::Telemetry;
use crate::units::Nanos;

/// What messages are signed with, and where they are kept until they are delivered.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// The directory of the queue.
    pub directory: PathBuf,
    /// The most bytes of the queue.
    pub most: u64,
    /// What is signed with.
    pub secrets: Secrets,
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Settings").field("directory", &self.directory).field("most", &self.most).finish_non_exhaustive()
    }
}

/// How many crossings are written down at a time.
const BATCH: usize = 256;
/// How long it takes until a queue is tried again that another process has, or that cannot be read or written.
const TAKEN_PAUSE: Nanos = Nanos::new(250_000_000);
const BROKEN_PAUSE: Nanos = Nanos::from_secs(10);
/// The time between two attempts: at first, and at most.
const FIRST_PAUSE: Nanos = Nanos::SECOND;
const LONGEST_PAUSE: Nanos = Nanos::from_secs(300);
/// After so many answers that a message is wrong it is given up.
const MOST_REFUSALS: u32 = 5;

/// Writes messages down and delivers them.
pub(super) struct Courier {
    gateway: Gateway,
    telemetry: Telemetry,
    crossed: tokio::sync::Mutex<Receiver<Crossing>>,
    settings: watch::Sender<Option<Settings>>,
    /// Open while this process has it.
    queue: Mutex<Option<Outbox>>,
    /// Rings when there is a message.
    written: Notify,
}

/// What becomes of a message that is not tried any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Delivered,
    /// The receiver says that it is wrong.
    Refused,
    /// It is older than messages are kept.
    Expired,
}

impl Ended {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Refused => "refused",
            Self::Expired => "expired",
        }
    }
}

impl Courier {
    pub(super) fn new(
        gateway: Gateway,
        telemetry: Telemetry,
        crossed: Receiver<Crossing>,
        settings: Option<Settings>,
    ) -> Self {
        let crossed = tokio::sync::Mutex::new(crossed);
        let settings = watch::Sender::new(settings);
        Self { gateway, telemetry, crossed, settings, queue: Mutex::default(), written: Notify::new() }
    }

    /// Messages are kept and signed like this from here on. What waits in another queue waits there.
    pub(super) fn follow(&self, settings: Option<Settings>) {
        self.settings.send_if_modified(|before| {
            let differs = *before != settings;
            *before = settings;
            differs
        });
    }

    /// Works until dropped.
    pub(super) async fn run(self: Arc<Self>) {
        let mut settings = self.settings.subscribe();
        loop {
            let now = settings.borrow_and_update().clone();
            let work = async {
                match now {
                    Some(now) => self.serve(now).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = work => {}
                // the sender is in this value
                _ = settings.changed() => {}
            }
            *self.queue.lock() = None;
        }
    }

    /// Writes down what requests have handed over and nobody has taken; at the end of the process.
    pub(super) fn write_down(&self) {
        let (Some(settings), Ok(mut crossed)) = (self.settings.borrow().clone(), self.crossed.try_lock()) else {
            return;
        };
        let rest: Vec<Crossing> = std::iter::from_fn(|| crossed.try_recv().ok()).collect();
        if !rest.is_empty() {
            self.put(&settings, &rest);
        }
    }

    async fn serve(self: &Arc<Self>, settings: Settings) {
        self.open(&settings).await;
        tokio::join!(self.write(&settings), self.deliver(&settings));
    }

    /// Opens the queue as soon as nobody else has it: the process that hands over to this one keeps it until it ends.
    async fn open(self: &Arc<Self>, settings: &Settings) {
        let directory = settings.directory.display();
        let mut is_taken = false;
        loop {
            let (path, most) = (settings.directory.clone(), settings.most);
            let pause = match self.blocking(move |_| Outbox::open(&path, most)).await {
                Ok((outbox, cut)) => {
                    if cut > 0 {
                        tracing::warn!(%directory, bytes = cut, "the webhook's queue had messages that are not whole: cut off");
                    }
                    self.telemetry.webhook_queued(outbox.len(), outbox.bytes());
                    *self.queue.lock() = Some(outbox);
                    return;
                }
                Err(OpenError::Taken) => {
                    if !std::mem::replace(&mut is_taken, true) {
                        tracing::warn!(%directory, "another process has the webhook's queue: messages wait until it ends");
                    }
                    TAKEN_PAUSE
                }
                Err(OpenError::Failed(error)) => {
                    tracing::error!(%directory, %error, "cannot open the webhook's queue; it is tried again");
                    BROKEN_PAUSE
                }
            };
            sleep(pause.to_duration()).await;
        }
    }

    async fn write(self: &Arc<Self>, settings: &Settings) {
        let mut crossed = self.crossed.lock().await;
        loop {
            let mut batch = Vec::new();
            if crossed.recv_many(&mut batch, BATCH).await == 0 {
                return;
            }
            match self.gateway.crossings.take_lost() {
                0 => {}
                lost => self.telemetry.webhook_ended("lost", lost),
            }
            let settings = settings.clone();
            self.blocking(move |courier| courier.put(&settings, &batch)).await;
            self.written.notify_one();
        }
    }

    /// Writes messages to the queue.
    fn put(&self, settings: &Settings, batch: &[Crossing]) {
        let messages: Vec<Vec<u8>> =
            batch.iter().map(|crossing| Message::of(crossing, &settings.secrets).to_bytes()).collect();
        let mut queue = self.queue.lock();
        let taken = match queue.as_mut().map(|queue| queue.append(messages.iter().map(Vec::as_slice))) {
            Some(Ok(taken)) => taken,
            Some(Err(error)) => {
                tracing::error!(%error, messages = messages.len(), "cannot write to the webhook's queue: they are lost");
                self.telemetry.webhook_ended("lost", messages.len());
                return;
            }
            None => 0,
        };
        if taken < messages.len() {
            let lost = messages.len().saturating_sub(taken);
            tracing::error!(messages = lost, "the webhook's queue is full: they are lost");
            self.telemetry.webhook_ended("no_room", lost);
        }
        self.tell(queue.as_ref());
    }

    /// Delivers the messages of the queue, the oldest first.
    async fn deliver(self: &Arc<Self>, settings: &Settings) {
        loop {
            match self.blocking(|courier| courier.oldest()).await {
                Ok(None) => self.written.notified().await,
                Ok(Some(record)) => {
                    let ended = match Message::from_bytes(&record) {
                        Some(message) => self.deliver_one(settings, &message).await.as_str(),
                        None => "lost",
                    };
                    self.telemetry.webhook_ended(ended, 1);
                    if let Err(error) = self.blocking(|courier| courier.cross_off()).await {
                        tracing::error!(%error, "cannot write to the webhook's queue: a message is delivered again");
                        sleep(BROKEN_PAUSE.to_duration()).await;
                    }
                }
                Err(error) => {
                    tracing::error!(%error, "cannot read the webhook's queue; it is tried again");
                    sleep(BROKEN_PAUSE.to_duration()).await;
                }
            }
        }
    }

    fn oldest(&self) -> std::io::Result<Option<Vec<u8>>> {
        self.queue.lock().as_ref().map_or(Ok(None), |queue| Ok(queue.batch(1)?.pop()))
    }

    fn cross_off(&self) -> std::io::Result<()> {
        let mut queue = self.queue.lock();
        let done = queue.as_mut().map_or(Ok(()), |queue| queue.acknowledge(1));
        self.tell(queue.as_ref());
        done
    }

    fn tell(&self, queue: Option<&Outbox>) {
        if let Some(queue) = queue {
            self.telemetry.webhook_queued(queue.len(), queue.bytes());
        }
    }

    /// Tries until the receiver takes the message, or it is given up.
    async fn deliver_one(&self, settings: &Settings, message: &Message) -> Ended {
        let (mut attempts, mut refusals) = (0, 0);
        loop {
            let failed = match self.attempt(settings, message).await {
                Ok(200..=299) => return Ended::Delivered,
                Ok(status) => {
                    refusals = u32::saturating_add(refusals, u32::from(is_refusal(status)));
                    format!("it answered {status}")
                }
                Err(reason) => reason,
            };
            let webhook = self.gateway.active.load().ruleset.webhook.clone();
            let age = self.gateway.clock.wall().saturating_sub(message.at);
            let ended = match webhook {
                _ if refusals >= MOST_REFUSALS => Some(Ended::Refused),
                Some(webhook) if age >= webhook.keep => Some(Ended::Expired),
                _ => None,
            };
            if let Some(ended) = ended {
                tracing::error!(
                    id = message.id,
                    reason = failed,
                    "a message to the webhook is given up: {}",
                    ended.as_str()
                );
                return ended;
            }
            tracing::warn!(id = message.id, reason = failed, "the webhook does not take a message; it is tried again");
            sleep(pause(attempts, rand::random()).to_duration()).await;
            attempts = u32::saturating_add(attempts, 1);
        }
    }

    /// The status that the receiver answers with, or why it does not.
    async fn attempt(&self, settings: &Settings, message: &Message) -> Result<u16, String> {
        let active = self.gateway.active.load_full();
        let webhook = active.ruleset.webhook.as_ref().ok_or("there is no webhook any more")?;
        let pool = active.pools.get(webhook.upstream.0).ok_or("there is no such upstream")?;
        let upstream = &pool.upstream.name;
        let chosen = pool.choose(&[], None, self.gateway.clock.now());
        let chosen = chosen.ok_or_else(|| format!("no node of the upstream {upstream} is healthy"))?;
        let place =
            pool.room.as_ref().map(|room| room.enter().ok_or_else(|| format!("the upstream {upstream} is full")));
        let _place = place.transpose()?;
        let server = pool.server_at(&chosen.instance.address, chosen.node);
        let seconds = self.gateway.clock.wall().get() / Nanos::SECOND.get();
        let mut fields = Fields::default();
        fields.push("host", pool.host_at(&chosen.instance.address, chosen.node));
        fields.push("user-agent", "tollgate-webhook");
        fields.push("content-type", "application/json");
        fields.push("webhook-id", &message.id);
        fields.push("webhook-timestamp", seconds.to_string());
        fields.push("webhook-signature", settings.secrets.sign(message, seconds));
        let outgoing = OutgoingRequest { target: webhook.path.as_bytes().to_vec(), fields };
        let timeouts = &pool.upstream.timeouts;
        let patience = timeouts.connect.saturating_add(timeouts.first_byte);
        match timeout(patience.to_duration(), post(&server, outgoing, message.body.as_bytes())).await {
            Ok(answered) => answered.map_err(|error| error.to_string()),
            Err(_) => Err(format!("it did not answer within {patience}")),
        }
    }

    /// Does what waits for the disk where nobody waits for it.
    async fn blocking<T: Send + 'static>(self: &Arc<Self>, work: impl FnOnce(&Self) -> T + Send + 'static) -> T {
        let courier = Arc::clone(self);
        match spawn_blocking(move || work(&courier)).await {
            Ok(done) => done,
            // it panicked, and so does the task, which begins anew
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

/// Whether a receiver that answers so will not take the same message later.
const fn is_refusal(status: u16) -> bool {
    matches!(status, 400..=499) && !matches!(status, 408 | 425 | 429)
}

/// How long to wait after so many failed attempts: twice as long each time, of which up to a half is left out at random
/// (`chance`, 0 to 255).
fn pause(attempts: u32, chance: u8) -> Nanos {
    let longest = FIRST_PAUSE.doubled(attempts).min(LONGEST_PAUSE).get();
    Nanos::new(longest.saturating_sub(longest / 512 * u64::from(chance)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_five_minutes_and_differ_by_chance() {
        let seconds = |attempts, chance| pause(attempts, chance).as_secs_f64();
        assert_eq!(
            [0, 1, 2, 8, 9, 63, 64, u32::MAX].map(|attempts| seconds(attempts, 0)),
            [1.0, 2.0, 4.0, 256.0, 300.0, 300.0, 300.0, 300.0]
        );
        assert!((0.5..0.51).contains(&seconds(0, 255)), "{}", seconds(0, 255));
    }

    #[test]
    fn answers_that_ask_for_patience_are_no_refusals() {
        assert_eq!([400, 401, 404, 410, 422].map(is_refusal), [true; 5]);
        assert_eq!([300, 408, 425, 429, 500, 503].map(is_refusal), [false; 6]);
    }
}
