//! Background work beside requests: sweeping idle keys, writing snapshots, sending, recording rates, reloading, watching
//! upstream nodes, and the link to Redis.

use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use pingora::server::ShutdownWatch;
use pingora::services::background::BackgroundService;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval};

use super::reload::Reloader;
use super::senders::Senders;
use super::state::SnapshotWriter;
use crate::gateway::Gateway;
use crate::panics::{failpoint, restart_on_panic};
use crate::telemetry::history::History;
use crate::units::Nanos;

/// A sweep visits every key once in this many ticks.
const SWEEP_PARTS: usize = 64;
const SWEEP_INTERVAL: Nanos = Nanos::SECOND;
const WATCH_INTERVAL: Nanos = Nanos::SECOND;
/// A process that does not look for this long has stood still.
const STANDSTILL: Nanos = Nanos::from_secs(3);

/// The background work of a gateway.
pub(super) struct Upkeep {
    gateway: Gateway,
    /// Taken when the work starts.
    reloader: Mutex<Option<Reloader>>,
    snapshot_writer: Arc<SnapshotWriter>,
    history: Arc<History>,
    senders: Senders,
}

impl Upkeep {
    pub(super) fn new(
        gateway: Gateway,
        reloader: Reloader,
        snapshot_writer: Arc<SnapshotWriter>,
        history: Arc<History>,
        senders: Senders,
    ) -> Self {
        Self { gateway, reloader: Mutex::new(Some(reloader)), snapshot_writer, history, senders }
    }

    /// Samples the meters, from which rates are computed, and logs steps of the wall clock and times when the process stood
    /// still.
    async fn look(gateway: Gateway, history: Arc<History>) {
        let mut ticks = interval(WATCH_INTERVAL.to_duration());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut known, mut looked) = (gateway.clock.wall_offset(), gateway.clock.now());
        loop {
            ticks.tick().await;
            let now = gateway.clock.now();
            let gap = now.saturating_sub(looked);
            if gap > STANDSTILL {
                tracing::warn!(
                    seconds = gap.as_secs_f64(),
                    "this gateway stood still: the process or the machine was stopped, or got no processor"
                );
            }
            looked = now;
            let offset = gateway.clock.wall_offset();
            if offset != known {
                let seconds = offset.minus(known).as_secs_f64();
                tracing::warn!(seconds, "the wall clock was set; limits and deadlines continue by elapsed time");
                known = offset;
            }
            let active = gateway.active.load_full();
            history.take_sample(&active.meters, now);
        }
    }

    async fn keep_in_touch(gateway: Gateway) {
        if let Some(shared) = gateway.store.shared() {
            shared.run().await;
        }
    }

    async fn sweep(gateway: Gateway) {
        let mut ticks = interval(SWEEP_INTERVAL.to_duration());
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for part in (0..SWEEP_PARTS).cycle() {
            ticks.tick().await;
            failpoint("sweep");
            gateway.store.sweep(part, SWEEP_PARTS, gateway.clock.now());
        }
    }
}

#[async_trait]
impl BackgroundService for Upkeep {
    async fn start(&self, mut shutdown: ShutdownWatch) {
        let mut tasks = JoinSet::new();
        let (gateway, history, snapshot_writer) =
            (self.gateway.clone(), Arc::clone(&self.history), Arc::clone(&self.snapshot_writer));
        tasks.spawn(restart_on_panic({
            let gateway = gateway.clone();
            move || Self::sweep(gateway.clone())
        }));
        tasks.spawn(restart_on_panic(move || Arc::clone(&snapshot_writer).run()));
        self.senders.start(&mut tasks);
        tasks.spawn(restart_on_panic({
            let gateway = gateway.clone();
            move || Self::look(gateway.clone(), Arc::clone(&history))
        }));
        let mut in_touch = JoinSet::new();
        in_touch.spawn(restart_on_panic(move || Self::keep_in_touch(gateway.clone())));
        let reloader = self.reloader.lock().take();
        if let Some(reloader) = reloader {
            tasks.spawn(reloader.run());
        }
        // the sender lives as long as the server
        drop(shutdown.changed().await);
        drop(tasks);
        // until the process ends, requests that are not finished hold slots in Redis and change counts
        in_touch.join_all().await;
    }
}
