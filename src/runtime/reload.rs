//! Reloading: its triggers, the files that it reads, and the one swap that puts a new configuration in force.
//!
//! A task checks the files again and again; their content decides whether anything changed. A file that is being written
//! is read once it has stayed the same for a moment. Everything is read and built beside the requests; an error anywhere
//! leaves the active configuration as it is.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::Receiver;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

mod watch;

use watch::{ActiveTasks, ChangeDetector};

use super::config_source::{ConfigSource, GatewayParts, LoadResult, Loader};
use super::senders::Senders;
use super::state::SnapshotWriter;
use crate::admin::access::Access;
use crate::admin::reloads::{ReloadAttempt, ReloadOutcome, ReloadRequest, Reloads, Trigger};
use crate::clock::Clock;
use crate::customers::source::{self, Refresher};
use crate::files::{FileVersion, Fingerprint};
use crate::gateway::Gateway;
use crate::gateway::active_config::ActiveConfig;
use crate::gateway::upstream::{Pool, health};
use crate::panics::{Panicked, catch_panic, failpoint};
use crate::ruleset::Ruleset;
use crate::ruleset::changes;
use crate::telemetry::Telemetry;
use crate::telemetry::history::History;
use crate::units::Nanos;

/// How often the reloader drops the retired configurations that no request holds any more.
const DROP_RETIRED_INTERVAL: Duration = Duration::from_secs(1);
/// The pause of the reloader after a panic.
const PANIC_PAUSE: Duration = Duration::from_secs(1);
/// The pause before a configuration is read again that was refused for a cause outside the files.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// How long a new configuration waits for the host names of its upstream nodes, and for its new sources of customers and
/// keys, before it takes force without them.
const FIRST_FETCH_TIMEOUT: Nanos = Nanos::from_secs(5);

/// Reads configurations and puts them in force, one at a time.
pub(super) struct Reloader {
    gateway: Gateway,
    telemetry: Telemetry,
    history: Arc<History>,
    reloads: Arc<Reloads>,
    requests: Receiver<ReloadRequest>,
    snapshot_writer: Arc<SnapshotWriter>,
    access: Arc<Access>,
    senders: Senders,
    /// `None` for a gateway whose configuration is built in.
    loader: Option<Arc<Mutex<Box<dyn Loader>>>>,
    /// The watched files, as they were when they were last read.
    files: Vec<FileVersion>,
    /// Whether the last attempt failed for a cause outside the files, so that the same files may be valid later.
    tries_again: bool,
    /// The files of the active configuration, with the hashes of their content.
    in_force: Vec<(PathBuf, Fingerprint)>,
    /// Earlier configurations that requests may still hold.
    retired: Vec<Arc<ActiveConfig>>,
    /// Whether there may be metric series of retired configurations.
    has_old_series: bool,
}

impl Reloader {
    pub(super) fn new(
        gateway: Gateway,
        (telemetry, history): (Telemetry, Arc<History>),
        (reloads, requests): (Arc<Reloads>, Receiver<ReloadRequest>),
        (snapshot_writer, access): (Arc<SnapshotWriter>, Arc<Access>),
        senders: Senders,
        origin: Option<ConfigSource>,
    ) -> Self {
        let (loader, files) = match origin {
            Some(ConfigSource { loader, files }) => (Some(Arc::new(Mutex::new(loader))), files),
            None => (None, Vec::new()),
        };
        let (in_force, retired) = (fingerprints(&files), Vec::new());
        let (tries_again, has_old_series) = (false, false);
        Self {
            gateway,
            telemetry,
            history,
            reloads,
            requests,
            snapshot_writer,
            access,
            senders,
            loader,
            files,
            tries_again,
            in_force,
            retired,
            has_old_series,
        }
    }

    /// Reloads if files have changed since they were read: the process that hands over may have changed customers and said
    /// that this is in force.
    pub(super) async fn catch_up(&mut self) {
        if self.reread_files().await {
            self.reload(Trigger::File).await;
        }
    }

    /// Reloads whenever asked to, until dropped; starts again after a panic.
    pub(super) async fn run(mut self) {
        while catch_panic(self.work()).await == Err(Panicked) {
            sleep(PANIC_PAUSE).await;
        }
    }

    async fn work(&mut self) {
        let mut tasks = ActiveTasks::default();
        tasks.sync_with(&self.gateway);
        let mut watch = ChangeDetector::default();
        let mut next_check = Box::pin(sleep(watch.pause()));
        let mut next_drop = Box::pin(sleep(DROP_RETIRED_INTERVAL));
        let mut next_retry = Box::pin(sleep(RETRY_INTERVAL));
        loop {
            let (trigger, answers) = tokio::select! {
                request = self.requests.recv() => match request {
                    Some(request) => self.take_all_requests(request),
                    None => return,
                },
                () = &mut next_drop => {
                    self.drop_retired().await;
                    next_drop.set(sleep(DROP_RETIRED_INTERVAL));
                    continue;
                }
                () = &mut next_retry, if self.tries_again => (Trigger::Retry, Vec::new()),
                () = &mut next_check => {
                    let seen = self.check_files(watch.reads_content()).await;
                    let is_quiet = watch.record_check(seen, &self.files);
                    next_check.set(sleep(watch.pause()));
                    if !is_quiet {
                        continue;
                    }
                    (Trigger::File, Vec::new())
                }
            };
            if trigger != Trigger::File || self.reread_files().await {
                let attempt = self.reload(trigger).await;
                for answer in answers {
                    // fails if the caller has gone away, which is no problem
                    drop(answer.send(attempt.clone()));
                }
                tasks.sync_with(&self.gateway);
                next_retry.set(sleep(RETRY_INTERVAL));
            }
            watch.restart();
            next_check.set(sleep(watch.pause()));
        }
    }

    /// Takes the waiting requests besides `first`: one reload answers them all.
    fn take_all_requests(
        &mut self,
        first: ReloadRequest,
    ) -> (Trigger, Vec<tokio::sync::oneshot::Sender<ReloadAttempt>>) {
        let mut answers: Vec<_> = first.answer.into_iter().collect();
        while let Ok(another) = self.requests.try_recv() {
            answers.extend(another.answer);
        }
        (first.trigger, answers)
    }

    /// The files as they are now. With `reads_content` their content is read, otherwise only their stamps.
    async fn check_files(&self, reads_content: bool) -> Vec<FileVersion> {
        let files = self.files.clone();
        let check = if reads_content { FileVersion::reread } else { FileVersion::restamped };
        let check_all = move || files.iter().map(check).collect();
        // no panic is expected here; if there is one, the files count as unchanged
        spawn_blocking(check_all).await.unwrap_or_else(|_| self.files.clone())
    }

    /// Reads the files again, and keeps what it finds. Returns whether the content of any has changed.
    async fn reread_files(&mut self) -> bool {
        let files = self.check_files(true).await;
        let has_changed = fingerprints(&files) != fingerprints(&self.files);
        self.files = files;
        has_changed
    }

    /// Reads the configuration, and puts it in force if it is valid and has changed.
    async fn reload(&mut self, trigger: Trigger) -> ReloadAttempt {
        let clock = Arc::clone(&self.gateway.clock);
        let (began, at) = (clock.now(), clock.wall());
        let (outcome, warnings) = catch_panic(self.read_and_apply()).await.unwrap_or_else(|panicked| {
            let errors = vec![format!("reading the configuration failed: {panicked}, which is a bug in tollgate")];
            (ReloadOutcome::Refused { errors }, Vec::new())
        });
        let attempt = ReloadAttempt { at, took: clock.now().saturating_sub(began), trigger, warnings, outcome };
        self.report_attempt(&attempt, clock.wall());
        self.reloads.record(attempt.clone());
        attempt
    }

    /// Returns also the warnings about the configuration.
    async fn read_and_apply(&mut self) -> (ReloadOutcome, Vec<String>) {
        failpoint("reload");
        self.tries_again = false;
        match self.load().await {
            Ok(mut parts) => {
                let warnings = std::mem::take(&mut parts.warnings);
                // only the load tells which files there are: the text names them, and a pattern may match new ones
                let is_unchanged = self.in_force == fingerprints(&self.files);
                let outcome = if is_unchanged { ReloadOutcome::Unchanged } else { self.apply(parts).await };
                (outcome, warnings)
            }
            Err(errors) => (ReloadOutcome::Refused { errors }, Vec::new()),
        }
    }

    async fn load(&mut self) -> Result<GatewayParts, Vec<String>> {
        let Some(loader) = self.loader.clone() else {
            return Err(vec!["this gateway has its configuration built in; there is nothing to reload".to_owned()]);
        };
        let known = self.files.clone();
        let load = move || {
            failpoint("load");
            let LoadResult { mut files, outcome } = loader.lock().load();
            if outcome.is_err() {
                // files that a broken configuration does not name stay watched: the active one uses them
                let unread = known.iter().filter(|known| !files.iter().any(|file| file.path == known.path));
                let unread: Vec<FileVersion> = unread.map(FileVersion::reread).collect();
                files.extend(unread);
            }
            (files, outcome)
        };
        let (files, outcome) =
            spawn_blocking(load).await.map_err(|error| vec![format!("reading the configuration failed: {error}")])?;
        self.files = files;
        outcome.map_err(|mut errors| {
            self.tries_again = self.files.iter().any(|file| file.print == Fingerprint::Unknown);
            if self.tries_again {
                errors.push(
                    "there are too many open files to read all; tollgate tries again every few seconds".to_owned(),
                );
            }
            errors
        })
    }

    async fn apply(&mut self, parts: GatewayParts) -> ReloadOutcome {
        let GatewayParts { rules, state, store, cluster, access, senders, .. } = parts;
        let (gateway, telemetry) = (self.gateway.clone(), self.telemetry.clone());
        let pools = rules.pools(Some(&gateway.active.load()));
        resolve_nodes_and_refresh_sources(&pools, &rules.sources(), &telemetry, &gateway.clock).await;
        if !rules.directory.is_ready() && gateway.active.load().directory.is_ready() {
            self.tries_again = true;
            let error = "customers.directory: PostgreSQL could not be read, and there is no snapshot of its customers; \
                 tollgate tries again every few seconds";
            return ReloadOutcome::Refused { errors: vec![error.to_owned()] };
        }
        let build = move || {
            let before = gateway.active.load();
            ActiveConfig::new((rules, pools), Some(&before), &gateway.store, gateway.hasher.clone(), &telemetry)
        };
        let active = match spawn_blocking(build).await {
            Ok(active) => Arc::new(active),
            Err(error) => {
                return ReloadOutcome::Refused { errors: vec![format!("building the ruleset failed: {error}")] };
            }
        };
        let before = self.gateway.active.swap(Arc::clone(&active));
        active.pools.iter().for_each(|pool| pool.apply_max_requests());
        if let Some(settings) = store {
            settings.apply_credentials();
        }
        self.snapshot_writer.set_file(state);
        self.access.replace_rules(access);
        self.senders.apply_settings(senders);
        if let (Some(running), Some(settings)) = (self.gateway.store.cluster(), cluster) {
            running.set_peers(&settings.peers);
        }
        if let Some(loader) = &self.loader {
            loader.lock().confirm();
        }
        let notes = changes::describe_limit_changes(&before.ruleset, &active.ruleset);
        self.in_force = fingerprints(&self.files);
        self.retired.push(before);
        self.has_old_series = true;
        ReloadOutcome::Applied { notes }
    }

    /// Reports an attempt to the log and the metrics.
    fn report_attempt(&self, attempt: &ReloadAttempt, now: Nanos) {
        let (trigger, took) = (attempt.trigger.as_str(), attempt.took.as_secs_f64());
        let active = self.gateway.active.load();
        for warning in &attempt.warnings {
            tracing::warn!("{warning}");
        }
        match &attempt.outcome {
            ReloadOutcome::Applied { notes } => {
                self.telemetry.reload_applied(now);
                for note in notes {
                    tracing::info!("{note}");
                }
                tracing::info!(trigger, duration_seconds = took, config_hash = active.hash, "configuration reloaded");
            }
            ReloadOutcome::Unchanged => {
                self.telemetry.reload_unchanged();
                tracing::info!(trigger, config_hash = active.hash, "configuration read again: nothing changed");
            }
            ReloadOutcome::Refused { errors } => {
                self.telemetry.reload_refused();
                for error in errors {
                    tracing::error!("{error}");
                }
                tracing::error!(
                    trigger,
                    errors = errors.len(),
                    config_hash = active.hash,
                    "configuration refused; the former configuration stays in force"
                );
            }
        }
    }

    /// Drops the configurations that no request holds any more, and their metric series.
    async fn drop_retired(&mut self) {
        let (gone, held): (Vec<_>, Vec<_>) = self.retired.drain(..).partition(|active| Arc::strong_count(active) == 1);
        self.retired = held;
        if gone.is_empty() && !self.has_old_series {
            return;
        }
        self.has_old_series = !self.retired.is_empty();
        let mut kept = self.retired.clone();
        kept.push(self.gateway.active.load_full());
        let (telemetry, history) = (self.telemetry.clone(), Arc::clone(&self.history));
        let work = move || {
            // dropping a large configuration takes a while
            drop(gone);
            let rulesets: Vec<&Ruleset> = kept.iter().map(|active| &*active.ruleset).collect();
            telemetry.retain(&rulesets);
            history.retain(&rulesets);
        };
        if let Err(error) = spawn_blocking(work).await {
            tracing::error!(%error, "cannot free the configurations that are no longer in force");
        }
    }
}

/// Resolves the host names of new nodes, and reads new sources; waits for [`FIRST_FETCH_TIMEOUT`] at most.
pub(super) async fn resolve_nodes_and_refresh_sources(
    pools: &[Arc<Pool>],
    sources: &[Arc<Refresher>],
    telemetry: &Telemetry,
    clock: &Arc<dyn Clock>,
) {
    for refresher in sources {
        let (metrics, name) = (telemetry.sources.clone(), refresher.name());
        refresher.observe(Box::new(move |succeeded| metrics.asked(name, succeeded)));
    }
    tokio::join!(health::resolve_new(pools, FIRST_FETCH_TIMEOUT), source::begin(sources, FIRST_FETCH_TIMEOUT, clock));
}

fn fingerprints(files: &[FileVersion]) -> Vec<(PathBuf, Fingerprint)> {
    files.iter().map(|file| (file.path.clone(), file.print.clone())).collect()
}
