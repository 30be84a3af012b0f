//! Delivers records that wait in a queue on disk to a receiver that may be away: the oldest first, again and again until the
//! receiver takes them.
//!
//! Records that were delivered and not crossed off before the process was killed are delivered again as they were.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::delivery::{Letter, deliver};
use crate::gateway::Gateway;
use crate::outbox::{OpenError, Outbox};
use crate::ruleset::{Ruleset, UpstreamId};
use crate::telemetry::Telemetry;
use crate::telemetry::deliveries::QueueMetrics;
use crate::units::Nanos;

/// How long it takes until a queue is tried again that another process has, or that cannot be read or written.
const TAKEN_PAUSE: Nanos = Nanos::new(250_000_000);
const BROKEN_PAUSE: Nanos = Nanos::from_secs(10);
/// The time between two attempts: at first, and at most.
const FIRST_PAUSE: Nanos = Nanos::SECOND;
const LONGEST_PAUSE: Nanos = Nanos::from_secs(300);
/// After so many answers that a record is wrong it is given up.
const MOST_REFUSALS: u32 = 5;

/// Where records are kept until they are delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// The directory of the queue.
    pub directory: PathBuf,
    /// The most bytes of the queue.
    pub most: u64,
}

/// What a courier delivers.
pub(super) trait Mail: Send + Sync + Sized + 'static {
    /// What it takes to deliver it.
    type Settings: Clone + PartialEq + Send + Sync + 'static;

    /// Who is told, in the log.
    const NAME: &'static str;
    /// How many records one request delivers at most.
    const BATCH: usize;

    /// Where records are kept.
    fn queue(settings: &Self::Settings) -> &QueueSettings;

    /// What is counted of them.
    fn metrics(telemetry: &Telemetry) -> &QueueMetrics;

    /// Where the receiver is; `None` where the configuration in force names none.
    fn receiver(ruleset: &Ruleset) -> Option<(UpstreamId, &str)>;

    /// Writes records to the queue of `courier` as they come up. Does not end.
    fn write(courier: &Arc<Courier<Self>>, settings: &Self::Settings) -> impl Future<Output = ()> + Send;

    /// Writes down what has come up and is not in the queue: the queue is closed after this, or the process ends. Waits for
    /// the disk.
    fn write_down(courier: &Courier<Self>, settings: &Self::Settings);

    /// The request that delivers `records` at that time, by the wall clock; `None` where one of them is no record.
    fn letter(settings: &Self::Settings, records: &[Vec<u8>], now: Nanos) -> Option<Letter>;

    /// Whether a receiver that answers so will not take the same records later.
    fn is_refusal(status: u16) -> bool;

    /// Whether `record` is older than such records are kept.
    fn is_expired(record: &[u8], ruleset: &Ruleset, now: Nanos) -> bool;

    /// What `records` are called in the log.
    fn describe(records: &[Vec<u8>]) -> String;
}

/// Keeps the queue of one sort of records, and delivers what is in it.
pub(super) struct Courier<M: Mail> {
    pub(super) gateway: Gateway,
    pub(super) telemetry: Telemetry,
    pub(super) mail: M,
    settings: watch::Sender<Option<M::Settings>>,
    /// Open while this process has it.
    queue: Mutex<Option<Outbox>>,
    is_open: watch::Sender<bool>,
    /// Rings when there is a record.
    written: Notify,
}

impl<M: Mail> Courier<M> {
    pub(super) fn new(gateway: Gateway, telemetry: Telemetry, mail: M, settings: Option<M::Settings>) -> Self {
        let (settings, is_open) = (watch::Sender::new(settings), watch::Sender::new(false));
        Self { gateway, telemetry, mail, settings, queue: Mutex::default(), is_open, written: Notify::new() }
    }

    /// Records are kept and delivered like this from here on. What waits in another queue waits there.
    pub(super) fn follow(&self, settings: Option<M::Settings>) {
        self.settings.send_if_modified(|before| {
            let differs = *before != settings;
            *before = settings;
            differs
        });
    }

    /// Works until dropped.
    pub(super) async fn run(self: Arc<Self>) {
        // after a panic
        self.close();
        let mut settings = self.settings.subscribe();
        loop {
            let now = settings.borrow_and_update().clone();
            let work = async {
                match &now {
                    Some(now) => self.serve(now).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = work => {}
                // the sender is in this value
                _ = settings.changed() => {}
            }
            // what comes up while another process has the queue is for the next one
            if let Some(before) = now.filter(|_| self.is_open()) {
                self.blocking(move |courier| M::write_down(courier, &before)).await;
            }
            self.close();
        }
    }

    /// Writes down what has come up and is not in the queue; at the end of the process.
    pub(super) fn write_down(&self) {
        let settings = self.settings.borrow().clone();
        if let Some(settings) = settings {
            M::write_down(self, &settings);
        }
    }

    async fn serve(self: &Arc<Self>, settings: &M::Settings) {
        let delivering = async {
            self.open(M::queue(settings)).await;
            self.deliver(settings).await;
        };
        tokio::join!(M::write(self, settings), delivering);
    }

    /// Opens the queue as soon as nobody else has it: the process that hands over to this one keeps it until it ends.
    async fn open(self: &Arc<Self>, settings: &QueueSettings) {
        let (queue, directory) = (M::NAME, settings.directory.display());
        let mut is_taken = false;
        loop {
            let QueueSettings { directory: path, most } = settings.clone();
            let pause = match self.blocking(move |_| Outbox::open(&path, most)).await {
                Ok((outbox, cut)) => {
                    if cut > 0 {
                        tracing::warn!(queue, %directory, bytes = cut, "the queue had records that are not whole: cut off");
                    }
                    self.tell(&outbox);
                    *self.queue.lock() = Some(outbox);
                    self.is_open.send_replace(true);
                    return;
                }
                Err(OpenError::Taken) => {
                    if !std::mem::replace(&mut is_taken, true) {
                        tracing::warn!(queue, %directory, "another process has the queue: records wait until it ends");
                    }
                    TAKEN_PAUSE
                }
                Err(OpenError::Failed(error)) => {
                    tracing::error!(queue, %directory, %error, "cannot open the queue; it is tried again");
                    BROKEN_PAUSE
                }
            };
            sleep(pause.to_duration()).await;
        }
    }

    fn close(&self) {
        *self.queue.lock() = None;
        self.is_open.send_replace(false);
    }

    /// Waits until this process has the queue.
    pub(super) async fn opened(&self) {
        // the sender is in this value
        drop(self.is_open.subscribe().wait_for(|is_open| *is_open).await);
    }

    /// Whether this process has the queue.
    pub(super) fn is_open(&self) -> bool {
        *self.is_open.borrow()
    }

    /// Writes records to the queue. How many it took, in their order: none while another process has it.
    pub(super) fn append(&self, records: &[Vec<u8>]) -> io::Result<usize> {
        let mut queue = self.queue.lock();
        let Some(queue) = queue.as_mut() else { return Ok(0) };
        let taken = queue.append(records.iter().map(Vec::as_slice));
        self.tell(queue);
        self.written.notify_one();
        taken
    }

    /// Delivers the records of the queue, the oldest first.
    async fn deliver(self: &Arc<Self>, settings: &M::Settings) {
        let (mut most, mut attempts, mut refusals) = (M::BATCH, 0, 0);
        loop {
            let records = match self.blocking(move |courier| courier.oldest(most)).await {
                Ok(records) if records.is_empty() => {
                    self.written.notified().await;
                    continue;
                }
                Ok(records) => records,
                Err(error) => {
                    tracing::error!(queue = M::NAME, %error, "cannot read the queue; it is tried again");
                    sleep(BROKEN_PAUSE.to_duration()).await;
                    continue;
                }
            };
            let Some(letter) = M::letter(settings, &records, self.gateway.clock.wall()) else {
                self.end("lost", records.len()).await;
                continue;
            };
            let answered = deliver(&self.gateway, M::receiver, &letter).await.map(|head| head.status);
            let is_taken = matches!(answered, Ok(200..=299));
            self.metrics().deliveries.attempted(is_taken);
            if is_taken {
                (most, attempts, refusals) = (most.saturating_mul(2).min(M::BATCH), 0, 0);
                self.end("delivered", records.len()).await;
                continue;
            }
            if answered.as_ref().is_ok_and(|status| M::is_refusal(*status)) {
                if records.len() > 1 {
                    // the others may be good
                    most = records.len() / 2;
                    continue;
                }
                refusals = u32::saturating_add(refusals, 1);
            }
            let reason = answered.map_or_else(|reason| reason, |status| format!("it answered {status}"));
            let (queue, what) = (M::NAME, M::describe(&records));
            if let Some(ended) = self.is_given_up(refusals, &records) {
                tracing::error!(queue, what, reason, "given up: {ended}");
                (attempts, refusals) = (0, 0);
                self.end(ended, records.len()).await;
            } else {
                tracing::warn!(queue, what, reason, "the receiver does not take it; it is tried again");
                sleep(pause(attempts, rand::random()).to_duration()).await;
                attempts = u32::saturating_add(attempts, 1);
            }
        }
    }

    /// Why records are not tried any more, if they are not.
    fn is_given_up(&self, refusals: u32, records: &[Vec<u8>]) -> Option<&'static str> {
        let (active, now) = (self.gateway.active.load(), self.gateway.clock.wall());
        if refusals >= MOST_REFUSALS {
            return Some("refused");
        }
        records.iter().all(|record| M::is_expired(record, &active.ruleset, now)).then_some("expired")
    }

    fn oldest(&self, most: usize) -> io::Result<Vec<Vec<u8>>> {
        self.queue.lock().as_ref().map_or(Ok(Vec::new()), |queue| queue.batch(most))
    }

    /// The oldest `count` records are over: they leave the queue.
    async fn end(self: &Arc<Self>, result: &str, count: usize) {
        self.metrics().deliveries.ended(result, count);
        if let Err(error) = self.blocking(move |courier| courier.cross_off(count)).await {
            tracing::error!(queue = M::NAME, %error, "cannot write to the queue: a record is delivered again");
            sleep(BROKEN_PAUSE.to_duration()).await;
        }
    }

    fn cross_off(&self, count: usize) -> io::Result<()> {
        let mut queue = self.queue.lock();
        let Some(queue) = queue.as_mut() else { return Ok(()) };
        let done = queue.acknowledge(count);
        self.tell(queue);
        done
    }

    fn tell(&self, queue: &Outbox) {
        self.metrics().queued(queue.len(), queue.bytes());
    }

    pub(super) fn metrics(&self) -> &QueueMetrics {
        M::metrics(&self.telemetry)
    }

    /// Does what waits for the disk where nobody waits for it.
    pub(super) async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> T {
        let courier = Arc::clone(self);
        match spawn_blocking(move || work(&courier)).await {
            Ok(done) => done,
            // it panicked, and so does the task, which begins anew
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

/// How long to wait after so many failed attempts: twice as long each time, of which up to a half is left out at random
/// (`chance`, 0 to 255).
fn pause(attempts: u32, chance: u8) -> Nanos {
    let longest = FIRST_PAUSE.doubled(attempts).min(LONGEST_PAUSE).get();
    Nanos::new(longest.saturating_sub(longest / 512 * u64::from(chance)))
}

/// A time in the form of RFC 3339; null where it is later than can be said.
pub(super) fn rfc3339(time: Nanos) -> Option<String> {
    let time = Timestamp::from_nanosecond(time.get().into()).ok()?;
    Some(format!("{time:.3}"))
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
}
