//! Delivers records from a queue on disk to a receiver that may be unavailable: the oldest first, again and again until the
//! receiver takes them.
//!
//! If the process is killed between a delivery and its acknowledgement in the queue, the records are delivered again
//! unchanged.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::{Notify, RwLock, watch};
use tokio::task::spawn_blocking;
use tokio::time::sleep;

use super::delivery::{DeliveryRequest, backoff, deliver};
use crate::gateway::Gateway;
use crate::outbox::{Damage, OpenError, Outbox};
use crate::ruleset::{Ruleset, UpstreamId};
use crate::telemetry::Telemetry;
use crate::telemetry::deliveries::QueueMetrics;
use crate::units::Nanos;

/// The pauses before a retry to open a queue that another process has, and to use one that cannot be read or written.
const LOCKED_RETRY_INTERVAL: Nanos = Nanos::new(250_000_000);
const FAILED_RETRY_INTERVAL: Nanos = Nanos::from_secs(10);
/// The longest pause between two attempts.
const MAX_DELIVERY_INTERVAL: Nanos = Nanos::from_secs(300);
/// The maximum number of refusals of a record; after them the courier gives it up.
const MAX_REFUSALS: u32 = 5;

/// The queue that keeps records until they are delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSettings {
    /// The directory of the queue.
    pub directory: PathBuf,
    /// The maximum size of the queue, in bytes.
    pub max_bytes: u64,
}

/// A kind of record that a courier delivers.
pub(super) trait DeliveryKind: Send + Sync + Sized + 'static {
    /// The settings for its delivery.
    type Settings: Clone + PartialEq + Send + Sync + 'static;

    /// The name of the queue in the log.
    const NAME: &'static str;
    /// The maximum number of records in one request.
    const BATCH: usize;

    /// The queue that keeps the records.
    fn queue(settings: &Self::Settings) -> &QueueSettings;

    /// The metrics of the records.
    fn metrics(telemetry: &Telemetry) -> &QueueMetrics;

    /// The receiver's upstream and path; `None` if the active configuration names none.
    fn receiver(ruleset: &Ruleset) -> Option<(UpstreamId, &str)>;

    /// Writes records to the queue of `courier` as they arrive. Never returns.
    fn write(courier: &Arc<Courier<Self>>, settings: &Self::Settings) -> impl Future<Output = ()> + Send;

    /// Writes the records to the queue that are still in memory, before the queue closes or the process ends. Waits for the
    /// disk.
    fn flush_to_queue(courier: &Courier<Self>, settings: &Self::Settings);

    /// The request that delivers `records` at the wall time `now`; `None` if one of them is not a record.
    fn delivery_request(settings: &Self::Settings, records: &[Vec<u8>], now: Nanos) -> Option<DeliveryRequest>;

    /// Whether a receiver that answers with `status` will not take the same records later either.
    fn is_refusal(status: u16) -> bool;

    /// Whether `record` is older than the configuration keeps such records.
    fn is_expired(record: &[u8], ruleset: &Ruleset, now: Nanos) -> bool;

    /// The description of `records` in the log.
    fn describe(records: &[Vec<u8>]) -> String;
}

/// Keeps the queue of one kind of record, and delivers its records.
pub(super) struct Courier<M: DeliveryKind> {
    pub(super) gateway: Gateway,
    pub(super) telemetry: Telemetry,
    pub(super) record_kind: M,
    settings: watch::Sender<Option<M::Settings>>,
    /// Open while this process has the queue.
    queue: Mutex<Option<Outbox>>,
    is_open: watch::Sender<bool>,
    /// Notified when a record was written to the queue.
    written: Notify,
    /// Locked for reading by work that waits for the disk: it goes on when the future that began it is dropped.
    working: Arc<RwLock<()>>,
}

impl<M: DeliveryKind> Courier<M> {
    pub(super) fn new(gateway: Gateway, telemetry: Telemetry, record_kind: M, settings: Option<M::Settings>) -> Self {
        let (settings, is_open) = (watch::Sender::new(settings), watch::Sender::new(false));
        let (queue, written, working) = (Mutex::default(), Notify::new(), Arc::default());
        Self { gateway, telemetry, record_kind, settings, queue, is_open, written, working }
    }

    /// Applies new settings. Records in the old queue stay there if the directory is another one.
    pub(super) fn apply_settings(&self, settings: Option<M::Settings>) {
        self.settings.send_if_modified(|before| {
            let differs = *before != settings;
            *before = settings;
            differs
        });
    }

    /// Writes and delivers records until dropped.
    pub(super) async fn run(self: Arc<Self>) {
        // an earlier run may have panicked
        self.close().await;
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
                // never an error: `self` holds the sender
                _ = settings.changed() => {}
            }
            // while another process has the queue, new records stay in memory for the next queue
            if let Some(before) = now.clone().filter(|_| self.is_open()) {
                self.blocking(move |courier| M::flush_to_queue(courier, &before)).await;
            }
            let records = self.close().await;
            let directory =
                |settings: Option<M::Settings>| settings.map(|settings| M::queue(&settings).directory.clone());
            let (before, after) = (directory(now), directory(self.settings()));
            if records > 0 && before != after {
                let directory = before.as_ref().map(|before| tracing::field::display(before.display()));
                tracing::warn!(
                    queue = M::NAME,
                    directory,
                    records,
                    "the queue on disk is not in use any more: its records stay there"
                );
            }
        }
    }

    /// Writes the records to the queue that are still in memory; at the end of the process.
    pub(super) fn flush_to_queue(&self) {
        if let Some(settings) = self.settings() {
            drop(self.working.blocking_write());
            M::flush_to_queue(self, &settings);
        }
    }

    /// The settings in force.
    pub(super) fn settings(&self) -> Option<M::Settings> {
        self.settings.borrow().clone()
    }

    async fn serve(self: &Arc<Self>, settings: &M::Settings) {
        let delivering = async {
            self.open(M::queue(settings)).await;
            self.deliver(settings).await;
        };
        tokio::join!(M::write(self, settings), delivering);
    }

    /// Opens the queue as soon as no other process has it: the process that hands over to this one keeps it until it ends.
    async fn open(self: &Arc<Self>, settings: &QueueSettings) {
        let (queue, directory) = (M::NAME, settings.directory.display());
        let mut is_taken = false;
        loop {
            let QueueSettings { directory: path, max_bytes } = settings.clone();
            let pause = match self.blocking(move |_| Outbox::open(&path, max_bytes)).await {
                Ok((outbox, Damage { cut, lost })) => {
                    if cut > 0 {
                        tracing::warn!(queue, %directory, bytes = cut, "the queue on disk ended with an incomplete record: it is removed");
                    }
                    if lost > 0 {
                        tracing::error!(queue, %directory, records = lost, "records in the queue on disk are damaged: they are lost");
                        self.metrics().deliveries.ended("lost", lost);
                    }
                    self.update_metrics(&outbox);
                    *self.queue.lock() = Some(outbox);
                    self.is_open.send_replace(true);
                    return;
                }
                Err(OpenError::InUse) => {
                    if !std::mem::replace(&mut is_taken, true) {
                        tracing::warn!(queue, %directory, "another process has the queue on disk open; new records wait in memory until it ends");
                    }
                    LOCKED_RETRY_INTERVAL
                }
                Err(OpenError::Failed(error)) => {
                    tracing::error!(queue, %directory, %error, "cannot open the queue on disk; retrying");
                    // nothing is delivered either, and an alert watches that
                    self.metrics().deliveries.attempted(false);
                    FAILED_RETRY_INTERVAL
                }
            };
            sleep(pause.to_duration()).await;
        }
    }

    /// Closes the queue once no work uses it any more. Returns the number of records that stay there.
    async fn close(&self) -> u64 {
        drop(self.working.write().await);
        let closed = self.queue.lock().take();
        self.metrics().queued(0, 0);
        self.is_open.send_replace(false);
        closed.map_or(0, |queue| queue.len())
    }

    /// Waits until this process has the queue.
    pub(super) async fn opened(&self) {
        // never an error: `self` holds the sender
        drop(self.is_open.subscribe().wait_for(|is_open| *is_open).await);
    }

    /// Shows `records` that wait in memory while another process has the queue.
    pub(super) fn show_waiting(&self, records: usize) {
        self.metrics().queued(u64::try_from(records).unwrap_or(u64::MAX), 0);
    }

    /// Whether this process has the queue.
    pub(super) fn is_open(&self) -> bool {
        *self.is_open.borrow()
    }

    /// Writes records to the queue, as [`Outbox::append`].
    ///
    /// Errors: also that this process does not have the queue open.
    pub(super) fn append(&self, records: &[Vec<u8>]) -> (usize, io::Result<()>) {
        let mut queue = self.queue.lock();
        let Some(queue) = queue.as_mut() else { return (0, Err(io::Error::other("it is not open"))) };
        let taken = queue.append(records.iter().map(Vec::as_slice));
        self.update_metrics(queue);
        self.written.notify_one();
        taken
    }

    /// Delivers the records of the queue, the oldest first.
    async fn deliver(self: &Arc<Self>, settings: &M::Settings) {
        let (mut max_records, mut attempts, mut refusals) = (M::BATCH, 0, 0);
        loop {
            let records = match self.blocking(move |courier| courier.oldest(max_records)).await {
                Ok(records) if records.is_empty() => {
                    self.written.notified().await;
                    continue;
                }
                Ok(records) => records,
                Err(error) => {
                    tracing::error!(queue = M::NAME, %error, "cannot read the queue on disk; retrying");
                    sleep(FAILED_RETRY_INTERVAL.to_duration()).await;
                    continue;
                }
            };
            let Some(delivery_request) = M::delivery_request(settings, &records, self.gateway.clock.wall()) else {
                self.end("lost", records.len()).await;
                continue;
            };
            let answered = deliver(&self.gateway, M::receiver, &delivery_request).await.map(|head| head.status);
            let is_taken = matches!(answered, Ok(200..=299));
            self.metrics().deliveries.attempted(is_taken);
            if is_taken {
                (max_records, attempts, refusals) = (max_records.saturating_mul(2).min(M::BATCH), 0, 0);
                self.end("delivered", records.len()).await;
                continue;
            }
            if answered.as_ref().is_ok_and(|status| M::is_refusal(*status)) {
                if records.len() > 1 {
                    // the receiver may take the others: try fewer at a time
                    max_records = records.len() / 2;
                    continue;
                }
                refusals = u32::saturating_add(refusals, 1);
            }
            let reason = answered.map_or_else(|reason| reason, |status| format!("it answered {status}"));
            let (queue, what) = (M::NAME, M::describe(&records));
            if let Some(ended) = self.give_up_reason(refusals, &records) {
                tracing::error!(queue, what, reason, result = ended, "removed from the queue without delivery");
                (attempts, refusals) = (0, 0);
                self.end(ended, records.len()).await;
            } else {
                tracing::warn!(queue, what, reason, "cannot deliver to the receiver; retrying");
                sleep(backoff(attempts, MAX_DELIVERY_INTERVAL, rand::random()).to_duration()).await;
                attempts = u32::saturating_add(attempts, 1);
            }
        }
    }

    /// The reason why the courier gives up `records`, or `None`.
    fn give_up_reason(&self, refusals: u32, records: &[Vec<u8>]) -> Option<&'static str> {
        let (active, now) = (self.gateway.active.load(), self.gateway.clock.wall());
        if refusals >= MAX_REFUSALS {
            return Some("refused");
        }
        records.iter().all(|record| M::is_expired(record, &active.ruleset, now)).then_some("expired")
    }

    fn oldest(&self, max_records: usize) -> io::Result<Vec<Vec<u8>>> {
        self.queue.lock().as_ref().map_or(Ok(Vec::new()), |queue| queue.batch(max_records))
    }

    /// Removes the oldest `count` records from the queue, and counts their result.
    async fn end(self: &Arc<Self>, result: &str, count: usize) {
        self.metrics().deliveries.ended(result, count);
        if let Err(error) = self.blocking(move |courier| courier.acknowledge_oldest(count)).await {
            tracing::error!(queue = M::NAME, %error, "cannot remove records from the queue on disk; they may be delivered again");
            sleep(FAILED_RETRY_INTERVAL.to_duration()).await;
        }
    }

    fn acknowledge_oldest(&self, count: usize) -> io::Result<()> {
        let mut queue = self.queue.lock();
        let Some(queue) = queue.as_mut() else { return Ok(()) };
        let done = queue.acknowledge(count);
        self.update_metrics(queue);
        done
    }

    fn update_metrics(&self, queue: &Outbox) {
        self.metrics().queued(queue.len(), queue.bytes());
    }

    pub(super) fn metrics(&self) -> &QueueMetrics {
        M::metrics(&self.telemetry)
    }

    /// Runs work that waits for the disk on a thread that may block.
    pub(super) async fn blocking<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> T {
        let (courier, working) = (Arc::clone(self), Arc::clone(&self.working).read_owned().await);
        let work = move || {
            let done = work(&courier);
            drop(working);
            done
        };
        match spawn_blocking(work).await {
            Ok(done) => done,
            // the work panicked: so does this task, which then restarts
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}

/// A time in the format of RFC 3339; `None` if it is too late for that format.
pub(super) fn rfc3339(time: Nanos) -> Option<String> {
    let time = Timestamp::from_nanosecond(time.get().into()).ok()?;
    Some(format!("{time:.3}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_five_minutes_and_differ_by_chance() {
        let seconds = |attempts, chance| backoff(attempts, MAX_DELIVERY_INTERVAL, chance).as_secs_f64();
        assert_eq!(
            [0, 1, 2, 8, 9, 63, 64, u32::MAX].map(|attempts| seconds(attempts, 0)),
            [1.0, 2.0, 4.0, 256.0, 300.0, 300.0, 300.0, 300.0]
        );
        assert!((0.5..0.51).contains(&seconds(0, 255)), "{}", seconds(0, 255));
    }
}
