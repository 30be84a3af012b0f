//! The composition root: puts the parts together and runs them on pingora.

use std::net::SocketAddr;
use std::sync::Arc;

use arc_swap::ArcSwap;
use pingora::server::Server;
use pingora::server::configuration::ServerConf;
use pingora::services::background::background_service;
use rustix::thread::disable_transparent_huge_pages;

mod accept_gate;
mod bounded;
mod cluster;
pub mod config_source;
pub mod courier;
pub mod delivery;
pub mod descriptors;
mod handover;
mod inherit;
mod listen;
mod reload;
pub mod sample;
pub mod senders;
mod shutdown;
mod socket;
mod sockets;
pub mod state;
pub mod traces;
mod upgrade;
mod upkeep;
pub mod usage_events;
pub mod webhook;
mod workers;

pub use self::shutdown::{GRACE_PERIOD, HeldSignals, ServerPanicked};

use self::accept_gate::{AcceptGate, ListenAddresses};
use self::bounded::{BoundedApp, REQUEST_TIMEOUT};
use self::cluster::ClusterListener;
use self::config_source::{ConfigSource, GatewayParts, StoreSettings};
use self::descriptors::{FdBudget, MAX_ADMIN_CONNECTIONS, Needs};
use self::handover::Predecessor;
use self::inherit::Inherited;
use self::listen::{AcceptsUntil, AppListener};
use self::reload::Reloader;
use self::senders::Senders;
use self::shutdown::{ExitMode, SignalTargets};
use self::socket::{OwnedSocketFiles, Socket};
use self::sockets::Sockets;
use self::state::{RestoredState, SnapshotOrigin, SnapshotWriter, StateFile};
use self::upgrade::Upgrader;
use self::workers::WorkerThreads;
use crate::admin::access::Access;
use crate::admin::reloads::Reloads;
use crate::admin::snapshots::Snapshots;
use crate::admin::{Admin, Records};
use crate::clock::{Clock, SystemClock};
use crate::cluster::settings::ClusterSettings;
use crate::cluster::{Cluster, OsPlatform, PeerObserver};
use crate::customers::source::Refresher;
use crate::gateway::active_config::ActiveConfig;
use crate::gateway::bans::Bans;
use crate::gateway::crossings::Crossings;
use crate::gateway::spans::Spans;
use crate::gateway::upstream::Pool;
use crate::gateway::usage_sums::UsageSums;
use crate::gateway::{Gateway, GatewayState};
use crate::lifecycle::Phase;
use crate::ruleset::key::KeyHasher;
use crate::ruleset::{Endpoint, SocketPath};
use crate::store::shared::{CallObserver, CallResult, Operation};
use crate::store::{LocalStore, SharedStore, Store};
use crate::telemetry::history::History;
use crate::telemetry::{ClusterMetrics, DenialRecorder, StoreMetrics, Telemetry};

/// The parts of a running gateway.
pub struct Setup {
    /// The signals that wait until the gateway serves.
    pub signals: HeldSignals,
    /// The configuration, compiled.
    pub parts: GatewayParts,
    /// The source of the configuration, for reloads; `None` if it cannot change.
    pub origin: Option<ConfigSource>,
    /// The address of the sample upstream, if this process serves it.
    pub sample: Option<SocketAddr>,
}

/// Why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Bind {
        /// The address, or the path.
        address: Endpoint,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// The limit of file descriptors is too low for the process itself.
    #[error(
        "the limit of {limit} file descriptors is too low: tollgate needs {least} before it serves a client; raise \
         `ulimit -n` / `LimitNOFILE`"
    )]
    FewDescriptors {
        /// The limit.
        limit: usize,
        /// The fewest with which the gateway starts.
        least: usize,
    },
    /// The metrics cannot be registered.
    #[error("cannot register the metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The process that should hand over to this one does not do so.
    #[error("cannot take over from the old process: {0}")]
    Predecessor(Box<dyn std::error::Error + Send + Sync>),
}

impl StartError {
    fn predecessor(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Predecessor(error.into())
    }
}

/// A gateway that can start. Its sockets are open: the system no longer refuses connections, and queues them until it runs.
pub struct Prepared {
    signals: HeldSignals,
    sockets: Sockets,
    /// The old process, which waits until this one serves.
    predecessor: Option<Predecessor>,
    addresses: ListenAddresses,
    origin: Option<ConfigSource>,
    warnings: Vec<String>,
    access: Arc<Access>,
    gateway: Gateway,
    telemetry: Telemetry,
    snapshots: Arc<Snapshots>,
    snapshot_writer: Arc<SnapshotWriter>,
    senders: Senders,
    fd_budget: FdBudget,
}

/// Does every step of the start that can fail. If another process hands over to this one, that process has stopped
/// accepting connections when this function returns; so what may take long or fail comes before `restore_state`.
pub fn prepare(setup: Setup) -> Result<Prepared, StartError> {
    descriptors::raise();
    disable_huge_pages();
    let Setup { signals, parts, origin, sample } = setup;
    let GatewayParts { listeners, admin, workers, access, rules, store, state, cluster, senders, warnings } = parts;
    let needs = Needs {
        workers,
        listeners: listeners.len(),
        peers: cluster.as_ref().map(|settings| settings.peers.others()),
        has_lookups: rules.directory.is_asked_over_http(),
        has_sample: sample.is_some(),
    };
    let (limit, least) = (descriptors::limit(), needs.least());
    if limit < least {
        return Err(StartError::FewDescriptors { limit, least });
    }
    let (mut predecessor, inherited) = match Predecessor::detect().map_err(StartError::predecessor)? {
        Some((predecessor, sockets)) => (Some(predecessor), Inherited::new(sockets)),
        None => (None, Inherited::from_systemd()),
    };
    let optional = (sample, cluster.as_ref().map(|cluster| cluster.listen));
    let sockets = Sockets::open((&listeners, workers), admin, optional, inherited)?;
    let telemetry = Telemetry::new()?;
    telemetry.watch_panics();
    let pools = rules.pools(None);
    fetch_before_takeover(predecessor.as_ref(), &pools, &rules.sources(), &telemetry)?;
    let cluster_seed = cluster.as_ref().map(|cluster| cluster.secret.key_seed());
    let restored = restore_state(predecessor.as_mut(), state.as_ref(), cluster_seed)?;
    restored.report(&telemetry);
    let RestoredState { store: local, seed, clock, recovery, refused, last } = restored;
    let clock: Arc<dyn Clock> = Arc::new(clock.telling(local.wall_offset()));
    let fd_budget = FdBudget::within(limit, needs);
    fd_budget.warn_if_small();
    let hasher = key_hasher(&seed, store.as_ref(), cluster.is_some());
    let store = Arc::new(build_store(local, (store, cluster), workers, &clock, &telemetry));
    let active = ActiveConfig::new((rules, pools), None, &store, hasher.clone(), &telemetry);
    telemetry.reload_applied(clock.wall());
    let (crossings, crossed) = Crossings::new();
    let gateway = Gateway::new(GatewayState {
        active: Arc::new(ArcSwap::from_pointee(active)),
        store,
        clock,
        hasher,
        traffic: Arc::default(),
        default_max_connections: fd_budget.clients,
        denial_recorder: DenialRecorder::default(),
        bans: Bans::default(),
        crossings,
        usage_sums: UsageSums::default(),
        spans: Spans::default(),
    });
    let snapshots = Arc::new(Snapshots::new(recovery));
    let found = SnapshotOrigin { seed, refused, last };
    let snapshot_writer = SnapshotWriter::new(gateway.clone(), telemetry.clone(), Arc::clone(&snapshots), found, state);
    Ok(Prepared {
        signals,
        sockets,
        predecessor,
        addresses: ListenAddresses { clients: listeners, operators: admin },
        origin,
        warnings,
        access: Arc::new(Access::new(access)),
        senders: Senders::new(&gateway, &telemetry, crossed, senders),
        gateway,
        telemetry,
        snapshots,
        snapshot_writer: Arc::new(snapshot_writer),
        fd_budget,
    })
}

/// Makes the kernel use small pages only. The kernel clears a large page, 2 MiB, as a whole at its first use, and all
/// requests of that core wait; a gateway with many connections uses a little memory of many pages.
fn disable_huge_pages() {
    if let Err(error) = disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "memory may come in large pages");
    }
}

/// Does work that comes before the server and its runtimes start.
fn block_on<T>(work: impl Future<Output = T>) -> std::io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let done = runtime.block_on(work);
    // no thread waits for name lookups that are still running
    runtime.shutdown_background();
    Ok(done)
}

/// Resolves the host names of upstreams, and reads customers and keys. A start goes on without them, but the old process
/// serves on if it has some that this one could not get.
fn fetch_before_takeover(
    predecessor: Option<&Predecessor>,
    pools: &[Arc<Pool>],
    sources: &[Arc<Refresher>],
    telemetry: &Telemetry,
) -> Result<(), StartError> {
    let system_clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let fetched = block_on(reload::resolve_nodes_and_refresh_sources(pools, sources, telemetry, &system_clock));
    if let Err(error) = fetched {
        tracing::warn!(%error, "cannot resolve host names or read customers and keys before the start; they are read in the background");
    }
    let Some(predecessor) = predecessor else { return Ok(()) };
    predecessor.check_upstreams(pools).map_err(StartError::predecessor)?;
    predecessor.check_sources(sources).map_err(StartError::predecessor)
}

/// The state of limits that the old process hands over, or that the last snapshot holds. From then on the old process
/// accepts no connections. `seed` is the cluster's, which all its gateways hash keys with.
fn restore_state(
    predecessor: Option<&mut Predecessor>,
    state: Option<&StateFile>,
    seed: Option<&[u8; 16]>,
) -> Result<RestoredState, StartError> {
    let Some(predecessor) = predecessor else { return Ok(RestoredState::from_file(state, seed)) };
    let stream = predecessor.ask_for_state().map_err(StartError::predecessor)?;
    let restored = RestoredState::from_predecessor(stream, seed).map_err(StartError::predecessor)?;
    Ok(restored.with_file(state, &Predecessor::state_file()))
}

fn key_hasher(seed: &[u8; 16], store: Option<&StoreSettings>, is_in_cluster: bool) -> KeyHasher {
    let secret = store.and_then(|settings| settings.key_secret.as_ref());
    let hasher = KeyHasher::new(seed).with_secret(secret.map_or(&[], |secret| secret.seed()));
    if is_in_cluster { hasher.divided() } else { hasher }
}

fn build_store(
    local: LocalStore,
    (shared, cluster): (Option<StoreSettings>, Option<ClusterSettings>),
    workers: usize,
    clock: &Arc<dyn Clock>,
    telemetry: &Telemetry,
) -> Store {
    // the workers call Redis and peers, and so does the background work
    let calling_threads = workers.saturating_add(1);
    let shared = shared.map(|settings| {
        let observer = call_observer(telemetry.store.clone());
        SharedStore::new(settings, calling_threads, Predecessor::member(), Arc::clone(clock), observer)
    });
    let cluster = cluster.map(|settings| {
        let peer_observer = peer_observer(telemetry.cluster.clone());
        Cluster::new(&settings, calling_threads, Arc::clone(clock), Arc::new(OsPlatform), peer_observer)
    });
    Store::new(local, shared, cluster)
}

/// Counts the calls to Redis.
fn call_observer(metrics: StoreMetrics) -> CallObserver {
    metrics.expect(&Operation::ALL.map(Operation::as_str), &CallResult::ALL.map(CallResult::as_str));
    Box::new(move |call| {
        metrics.called(call.operation.as_str(), call.result.as_str(), call.took);
        call.charges.into_iter().for_each(|requests| metrics.charged(requests));
    })
}

/// Counts the calls to other gateways of the cluster.
fn peer_observer(metrics: ClusterMetrics) -> PeerObserver {
    Box::new(move |peer, outcome, took| metrics.asked(peer, outcome.as_str(), took))
}

impl Prepared {
    /// Runs the gateway until a signal stops it. Returns when the requests in flight are finished.
    ///
    /// Errors: the gateway ended without a signal.
    pub fn run(self) -> Result<(), ServerPanicked> {
        let socket_files = OwnedSocketFiles::at(self.sockets.paths.iter().map(|at| at.path.clone()));
        let takes_over = self.predecessor.is_some();
        let (gateway, senders) = (self.gateway.clone(), self.senders.clone());
        let snapshot_writer = Arc::clone(&self.snapshot_writer);
        let mut server = Server::new_with_opt_and_conf(None, configuration());
        server.bootstrap();
        let (workforce, targets) = self.add_services(&mut server);
        let save = || {
            snapshot_writer.write();
            senders.save();
        };
        let ended = shutdown::run_until_idle(server, workforce, &gateway, targets, save)
            .inspect_err(|panicked| tracing::error!(error = %panicked, "the gateway ends without a signal"));
        // another process serves on the sockets: a successor, or the old process if this one has failed to take over
        let has_failed = takes_over && gateway.traffic.lifecycle.phase() == Phase::Starting;
        let is_last = !has_failed && !matches!(ended, Ok(ExitMode::Successor));
        if is_last {
            socket_files.clear();
        }
        snapshot_writer.write();
        senders.finish();
        if let Some(shared) = gateway.store.shared().filter(|_| is_last) {
            // an error only makes this gateway count for some seconds more
            drop(block_on(shared.leave()));
        }
        let requests = gateway.traffic.requests();
        if requests > 0 {
            tracing::warn!(requests, "the end of the process breaks off requests; they have no line in the access log");
        }
        tracing::info!("stopped");
        ended.map(drop)
    }

    /// Adds the services to `server`. Returns the workers, and what signals act on.
    fn add_services(self, server: &mut Server) -> (WorkerThreads, SignalTargets) {
        let Self {
            signals,
            sockets,
            predecessor,
            addresses,
            origin,
            warnings,
            access,
            gateway,
            telemetry,
            snapshots,
            snapshot_writer,
            senders,
            fd_budget,
        } = self;
        let Sockets { clients, admin, sample, cluster, all, paths, unused } = sockets;
        let takes_over = predecessor.is_some();
        // the workers, the admin port and the signal handler, then the optional services
        let services = clients.len() + 2 + usize::from(sample.is_some()) + usize::from(!cluster.is_empty());
        let shared = (Arc::clone(&gateway.traffic), Arc::clone(&gateway.clock));
        let listeners = addresses.clients.len();
        let gate = AcceptGate::new(services, addresses, shared, all);
        let gate = match predecessor {
            Some(predecessor) => gate.when_open(move || complete_takeover(predecessor, &paths, unused)),
            None => gate,
        };
        let gate = Arc::new(gate);
        let workforce = WorkerThreads::new(clients, listeners, &gateway, &gate, fd_budget.kept);
        if !cluster.is_empty() {
            server.add_service(ClusterListener::new(cluster, Arc::clone(&gateway.store), Arc::clone(&gate)));
        }
        let (reloads, reload_requests) = Reloads::new(gateway.clock.wall(), warnings);
        let reloads = Arc::new(reloads);
        let history = Arc::new(History::default());
        let records = Records {
            reloads: Arc::clone(&reloads),
            snapshots,
            history: Arc::clone(&history),
            access: Arc::clone(&access),
        };
        server.add_service(admin_listener(admin, &gateway, &telemetry, records, &gate));
        let mut reloader = Reloader::new(
            gateway.clone(),
            (telemetry.clone(), Arc::clone(&history)),
            (Arc::clone(&reloads), reload_requests),
            (Arc::clone(&snapshot_writer), access),
            senders.clone(),
            origin,
        );
        if takes_over && let Err(error) = block_on(reloader.catch_up()) {
            tracing::warn!(%error, "cannot look for changed files before the start; the reloader looks soon");
        }
        let upkeep = upkeep::Upkeep::new(gateway.clone(), reloader, Arc::clone(&snapshot_writer), history, senders);
        server.add_service(background_service("upkeep", upkeep));
        if let Some(sockets) = sample {
            server.add_service(sample_listener(sockets, &gateway, fd_budget, &gate));
        }
        let upgrader = Upgrader { gate: Arc::clone(&gate), snapshot_writer, gateway, telemetry };
        (workforce, SignalTargets { reloads, gate, upgrader, held: signals })
    }
}

/// Tells the old process that this one serves. `paths` are the sockets in the file system that this process uses, `unused`
/// those that only the old process has listened on.
fn complete_takeover(predecessor: Predecessor, paths: &[SocketPath], unused: OwnedSocketFiles) {
    // an inherited socket has the mode of the old process, which goes on with it if this one fails before
    for at in paths {
        if let Err(error) = socket::set_mode(at) {
            tracing::error!(path = %at.path.display(), %error, "cannot set the mode of the socket");
        }
    }
    predecessor.confirm_serving();
    unused.clear();
}

fn admin_listener(
    sockets: Vec<Socket>,
    gateway: &Gateway,
    telemetry: &Telemetry,
    records: Records,
    gate: &Arc<AcceptGate>,
) -> AppListener<BoundedApp<Admin>> {
    let app = Admin::new(gateway.clone(), telemetry.clone(), records);
    let meters = gateway.clone();
    let shed = move || meters.active.load().meters.count_shed_connection("admin");
    let app = BoundedApp::new(app, (MAX_ADMIN_CONNECTIONS, REQUEST_TIMEOUT), Arc::clone(&gateway.clock), shed);
    AppListener::new("admin".to_owned(), sockets, app, Arc::clone(gate), AcceptsUntil::End)
}

fn sample_listener(
    sockets: Vec<Socket>,
    gateway: &Gateway,
    fd_budget: FdBudget,
    gate: &Arc<AcceptGate>,
) -> AppListener<BoundedApp<sample::Sample>> {
    let max_connections = fd_budget.clients.saturating_mul(2);
    let app = BoundedApp::new(sample::Sample, (max_connections, REQUEST_TIMEOUT), Arc::clone(&gateway.clock), || ());
    AppListener::new("sample upstream".to_owned(), sockets, app, Arc::clone(gate), AcceptsUntil::Stop)
}

fn configuration() -> ServerConf {
    ServerConf {
        threads: 1,
        grace_period_seconds: Some(GRACE_PERIOD.secs_ceil()),
        graceful_shutdown_timeout_seconds: Some(1),
        ..ServerConf::default()
    }
}
