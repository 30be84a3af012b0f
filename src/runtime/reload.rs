//! Reloading: who asks for it, what is read, and the one swap that puts it in force.
//!
//! Files are looked at again and again, and what they held decides whether anything changed. A file that is being written
//! is read once it has been left alone for a moment. Everything is read and built beside the requests; what is wrong
//! anywhere changes nothing.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc::Receiver;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

mod watch;

use watch::{ActiveTasks, Watch};

use super::senders::{SenderSettings, Senders};
use super::state::{SnapshotWriter, StateFile};
use crate::admin::access::Access;
pub use crate::admin::access::{Token, TokenRules as AccessTerms};
use crate::admin::reloads::{Attempt, ReloadOutcome, ReloadRequest, Reloads, Trigger};
pub use crate::admin::replays::ReplayTerms;
use crate::clock::Clock;
use crate::cluster::settings::Settings as ClusterSettings;
use crate::customers::source::{self, Refresher};
use crate::files::{FileVersion, Print};
use crate::gateway::Gateway;
use crate::gateway::active_config::ActiveConfig;
pub use crate::gateway::active_config::CompiledConfig;
use crate::gateway::upstream::{Pool, health};
use crate::panics::{Panicked, catch_panic, failpoint};
use crate::ruleset::Endpoint;
use crate::ruleset::Ruleset;
use crate::ruleset::changes;
pub use crate::store::shared::{KeySecret, Settings as StoreSettings};
use crate::telemetry::Telemetry;
use crate::units::Nanos;

/// How often what was in force before is asked whether a request still holds it.
const TIDY: Duration = Duration::from_secs(1);
/// How long host names of new upstream nodes may take to be resolved, and new sources of customers and keys to be read,
/// before the configuration that names them is in force.
const MEETING: Nanos = Nanos::from_secs(5);

/// What a configuration says, read whole.
#[derive(Debug)]
pub struct Parts {
    /// Where clients connect to, in the order of `rules.listeners`.
    pub listeners: Vec<Endpoint>,
    /// Where operators connect to.
    pub admin: SocketAddr,
    /// How many threads serve clients.
    pub workers: usize,
    /// What they may do there.
    pub access: AccessTerms,
    /// What holds for requests.
    pub rules: CompiledConfig,
    /// Where states are kept over restarts, if anywhere.
    pub state: Option<StateFile>,
    /// Where what is shared is kept, if anything is. Cannot change.
    pub store: Option<StoreSettings>,
    /// The nodes that keep sticky limits together, if there are several. Only who the others are can change.
    pub cluster: Option<ClusterSettings>,
    /// What others are sent with.
    pub senders: SenderSettings,
    /// What is suspicious about it.
    pub warnings: Vec<String>,
}

/// What came of reading a configuration.
#[derive(Debug)]
pub struct Reading {
    /// Every file that was read for it, or could not be: those that are watched.
    pub files: Vec<FileVersion>,
    /// The configuration, or everything that is wrong with it.
    pub outcome: Result<Parts, Vec<String>>,
}

/// Where a configuration comes from.
pub trait Loader: Send {
    /// Reads everything anew. May take its time.
    fn load(&mut self) -> Reading;
}

/// A configuration that can be read again.
pub struct Origin {
    /// Reads it.
    pub loader: Box<dyn Loader>,
    /// The files that the one in force was read from.
    pub files: Vec<FileVersion>,
}

/// Reads configurations and puts them in force, one at a time.
pub(super) struct Reloader {
    gateway: Gateway,
    telemetry: Telemetry,
    reloads: Arc<Reloads>,
    asked: Receiver<ReloadRequest>,
    keeper: Arc<SnapshotWriter>,
    access: Arc<Access>,
    senders: Senders,
    /// `None` for a gateway whose configuration is no file.
    loader: Option<Arc<Mutex<Box<dyn Loader>>>>,
    /// What is watched, as it was when it was last read.
    files: Vec<FileVersion>,
    /// What was read for what is in force.
    in_force: Vec<(PathBuf, Print)>,
    /// What was in force before, and may still hold for requests that came then.
    retired: Vec<Arc<ActiveConfig>>,
    /// Whether there may be series of what is not in force any more.
    has_old_series: bool,
}

impl Reloader {
    pub(super) fn new(
        gateway: Gateway,
        telemetry: Telemetry,
        (reloads, asked): (Arc<Reloads>, Receiver<ReloadRequest>),
        (keeper, access): (Arc<SnapshotWriter>, Arc<Access>),
        senders: Senders,
        origin: Option<Origin>,
    ) -> Self {
        let (loader, files) = match origin {
            Some(Origin { loader, files }) => (Some(Arc::new(Mutex::new(loader))), files),
            None => (None, Vec::new()),
        };
        let (in_force, retired) = (prints(&files), Vec::new());
        let has_old_series = false;
        Self {
            gateway,
            telemetry,
            reloads,
            asked,
            keeper,
            access,
            senders,
            loader,
            files,
            in_force,
            retired,
            has_old_series,
        }
    }

    /// Works until dropped.
    pub(super) async fn run(mut self) {
        while catch_panic(self.work()).await == Err(Panicked) {
            sleep(TIDY).await;
        }
    }

    async fn work(&mut self) {
        let mut tasks = ActiveTasks::default();
        tasks.follow(&self.gateway);
        let mut watch = Watch::default();
        let mut next_look = Box::pin(sleep(watch.pause()));
        let mut next_tidy = Box::pin(sleep(TIDY));
        loop {
            let (trigger, answers) = tokio::select! {
                asked = self.asked.recv() => match asked {
                    Some(asked) => self.all_asked(asked),
                    None => return,
                },
                () = &mut next_tidy => {
                    self.drop_retired().await;
                    next_tidy.set(sleep(TIDY));
                    continue;
                }
                () = &mut next_look => {
                    let seen = self.look(watch.is_close()).await;
                    let is_quiet = watch.saw(seen, &self.files);
                    next_look.set(sleep(watch.pause()));
                    if !is_quiet {
                        continue;
                    }
                    (Trigger::File, Vec::new())
                }
            };
            if trigger != Trigger::File || self.has_other_contents().await {
                let attempt = self.reload(trigger).await;
                for answer in answers {
                    // Who went away does not want to know.
                    drop(answer.send(attempt.clone()));
                }
                tasks.follow(&self.gateway);
            }
            watch.restart();
            next_look.set(sleep(watch.pause()));
        }
    }

    /// One reload answers everybody who asks for one by now.
    fn all_asked(&mut self, first: ReloadRequest) -> (Trigger, Vec<tokio::sync::oneshot::Sender<Attempt>>) {
        let mut answers: Vec<_> = first.answer.into_iter().collect();
        while let Ok(another) = self.asked.try_recv() {
            answers.extend(another.answer);
        }
        (first.trigger, answers)
    }

    /// The files as they are now. `closely`: read, not only looked at from outside.
    async fn look(&self, closely: bool) -> Vec<FileVersion> {
        let files = self.files.clone();
        let look = move || files.iter().map(if closely { FileVersion::again } else { FileVersion::stamped }).collect();
        // Nothing in there panics; if it did, nothing would have changed.
        spawn_blocking(look).await.unwrap_or_else(|_| self.files.clone())
    }

    /// Reads the files; whether any holds something else.
    async fn has_other_contents(&mut self) -> bool {
        let files = self.look(true).await;
        let differs = prints(&files) != prints(&self.files);
        self.files = files;
        differs
    }

    /// Reads the configuration, and puts it in force if it is good and another one.
    async fn reload(&mut self, trigger: Trigger) -> Attempt {
        let clock = Arc::clone(&self.gateway.clock);
        let (began, at) = (clock.now(), clock.wall());
        let outcome = catch_panic(self.read_and_apply()).await;
        let outcome = outcome.unwrap_or_else(|panicked| ReloadOutcome::Refused {
            errors: vec![format!("reading the configuration failed: {panicked}, which is a fault of tollgate's own")],
        });
        let attempt = Attempt { at, took: clock.now().saturating_sub(began), trigger, outcome };
        self.tell(&attempt, clock.wall());
        self.reloads.ended(attempt.clone());
        attempt
    }

    async fn read_and_apply(&mut self) -> ReloadOutcome {
        failpoint("reload");
        match self.load().await {
            Ok(parts) if self.in_force == prints(&self.files) => {
                drop(parts);
                ReloadOutcome::Unchanged
            }
            Ok(parts) => self.apply(parts).await,
            Err(errors) => ReloadOutcome::Refused { errors },
        }
    }

    async fn load(&mut self) -> Result<Parts, Vec<String>> {
        let Some(loader) = self.loader.clone() else {
            return Err(vec!["this gateway has its configuration built in; there is nothing to reload".to_owned()]);
        };
        let known = self.files.clone();
        let load = move || {
            failpoint("load");
            let Reading { mut files, outcome } = loader.lock().load();
            if outcome.is_err() {
                // What a broken configuration does not name any more is still in force.
                let unread = known.iter().filter(|known| !files.iter().any(|file| file.path == known.path));
                let unread: Vec<FileVersion> = unread.map(FileVersion::again).collect();
                files.extend(unread);
            }
            (files, outcome)
        };
        let (files, outcome) =
            spawn_blocking(load).await.map_err(|error| vec![format!("reading the configuration failed: {error}")])?;
        self.files = files;
        outcome
    }

    async fn apply(&mut self, parts: Parts) -> ReloadOutcome {
        let Parts { rules, warnings, state, cluster, access, senders, .. } = parts;
        let (gateway, telemetry) = (self.gateway.clone(), self.telemetry.clone());
        let pools = rules.pools(Some(&gateway.active.load()));
        meet_others(&pools, &rules.sources(), &telemetry, &gateway.clock).await;
        if !rules.directory.is_ready() && gateway.active.load().directory.is_ready() {
            let error = "customers.directory: PostgreSQL could not be read, and there is no snapshot of its customers";
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
        self.keeper.follow(state);
        self.access.follow(access);
        self.senders.follow(senders);
        if let (Some(running), Some(settings)) = (self.gateway.store.cluster(), cluster) {
            running.follow(&settings.peers);
        }
        let notes = changes::notes(&before.ruleset, &active.ruleset);
        self.in_force = prints(&self.files);
        self.retired.push(before);
        self.has_old_series = true;
        ReloadOutcome::Applied { warnings, notes }
    }

    /// Log lines and metrics.
    fn tell(&self, attempt: &Attempt, now: Nanos) {
        let (trigger, took) = (attempt.trigger.as_str(), attempt.took.as_secs_f64());
        let active = self.gateway.active.load();
        match &attempt.outcome {
            ReloadOutcome::Applied { warnings, notes } => {
                self.telemetry.reload_applied(&active.ruleset, &active.hash, now);
                for warning in warnings {
                    tracing::warn!("{warning}");
                }
                for note in notes {
                    tracing::info!("{note}");
                }
                tracing::info!(trigger, duration_seconds = took, config_hash = active.hash, "configuration reloaded");
            }
            ReloadOutcome::Unchanged => {
                self.telemetry.reload_unchanged(now);
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
                    "configuration refused; the one before stays in force"
                );
            }
        }
    }

    /// Drops what no request holds any more. What it counted on goes with it.
    async fn drop_retired(&mut self) {
        let (gone, held): (Vec<_>, Vec<_>) = self.retired.drain(..).partition(|active| Arc::strong_count(active) == 1);
        self.retired = held;
        if gone.is_empty() && !self.has_old_series {
            return;
        }
        self.has_old_series = !self.retired.is_empty();
        let mut kept = self.retired.clone();
        kept.push(self.gateway.active.load_full());
        let telemetry = self.telemetry.clone();
        let work = move || {
            // Large ones take a while.
            drop(gone);
            let rulesets: Vec<&Ruleset> = kept.iter().map(|active| &active.ruleset).collect();
            telemetry.retain(&rulesets);
        };
        if let Err(error) = spawn_blocking(work).await {
            tracing::error!(%error, "cannot drop what is not in force any more");
        }
    }
}

/// Finds addresses for nodes and asks sources that nobody asked before.
pub(super) async fn meet_others(
    pools: &[Arc<Pool>],
    sources: &[Arc<Refresher>],
    telemetry: &Telemetry,
    clock: &Arc<dyn Clock>,
) {
    for refresher in sources {
        let (telemetry, name) = (telemetry.clone(), refresher.name());
        refresher.observe(Box::new(move |succeeded| telemetry.source_asked(name, succeeded)));
    }
    tokio::join!(health::resolve_new(pools, MEETING), source::begin(sources, MEETING, clock));
}

fn prints(files: &[FileVersion]) -> Vec<(PathBuf, Print)> {
    files.iter().map(|file| (file.path.clone(), file.print.clone())).collect()
}
