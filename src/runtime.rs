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
use self::config_source::{ConfigSource, GatewayParts};
use self::courier::Courier;
use self::descriptors::{FdBudget, MAX_ADMIN_CONNECTIONS, Needs};
use self::handover::Predecessor;
use self::inherit::Inherited;
use self::listen::{AcceptsUntil, AppListener};
use self::reload::Reloader;
use self::senders::{SenderSettings, Senders};
use self::shutdown::{ExitMode, SignalTargets};
use self::socket::{OwnedSocketFiles, Socket};
use self::state::{RestoredState, SnapshotWriter, StateFile};
use self::traces::Exporter;
use self::upgrade::Upgrader;
use self::usage_events::Events;
use self::webhook::Messages;
use self::workers::WorkerThreads;
use crate::admin::access::Access;
use crate::admin::reloads::Reloads;
use crate::admin::snapshots::Snapshots;
use crate::admin::{Admin, Records};
use crate::clock::{Clock, SystemClock};
use crate::cluster::{Cluster, OsPlatform, PeerObserver};
use crate::files;
use crate::gateway::active_config::ActiveConfig;
use crate::gateway::bans::Bans;
use crate::gateway::crossings::Crossings;
use crate::gateway::spans::Spans;
use crate::gateway::usage_sums::UsageSums;
use crate::gateway::{Gateway, GatewayState};
use crate::lifecycle::Phase;
use crate::ruleset::key::KeyHasher;
use crate::ruleset::{Endpoint, SocketPath};
use crate::store::shared::{CallObserver, CallResult, Operation};
use crate::store::{SharedStore, Store};
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
    room: FdBudget,
}

/// The listening sockets.
struct Sockets {
    /// For each worker, its sockets, each with the position of its address.
    clients: Vec<Vec<(usize, Socket)>>,
    admin: Vec<Socket>,
    sample: Option<Vec<Socket>>,
    /// The sockets for other gateways of the cluster.
    cluster: Vec<Socket>,
    /// All sockets above, each once.
    all: Vec<Socket>,
    /// The sockets in the file system that are not systemd's; this process removes them when it ends.
    paths: Vec<SocketPath>,
    /// The sockets in the file system that only the old process has listened on.
    unused: OwnedSocketFiles,
}

/// Does every step of the start that can fail. If another process hands over to this one, that process has stopped
/// accepting connections when this function returns.
pub fn prepare(setup: Setup) -> Result<Prepared, StartError> {
    descriptors::raise();
    disable_huge_pages();
    let Setup { signals, parts, origin, sample } = setup;
    let GatewayParts {
        listeners: clients,
        admin: operators,
        workers,
        access,
        rules,
        store,
        state,
        cluster,
        senders: SenderSettings { webhook, usage_events, traces },
        warnings,
    } = parts;
    let access = Arc::new(Access::new(access));
    let (mut predecessor, inherited) = match Predecessor::detect().map_err(StartError::predecessor)? {
        Some((predecessor, sockets)) => (Some(predecessor), Inherited::new(sockets)),
        None => (None, Inherited::from_systemd()),
    };
    let sockets = Sockets::open(
        (&clients, workers),
        operators,
        (sample, cluster.as_ref().map(|cluster| cluster.listen)),
        inherited,
    )?;
    let telemetry = Telemetry::new()?;
    telemetry.watch_panics();
    // before the old process stops accepting, and before it learns that this one is ready
    let pools = rules.pools(None);
    let (sources, of_system): (_, Arc<dyn Clock>) = (rules.sources(), Arc::new(SystemClock::new()));
    let begun = block_on(reload::resolve_nodes_and_refresh_sources(&pools, &sources, &telemetry, &of_system));
    if let Err(error) = begun {
        tracing::warn!(%error, "cannot resolve host names or read customers and keys before the start; they are read in the background");
    }
    if let Some(predecessor) = &predecessor {
        predecessor.check_upstreams(&pools).map_err(StartError::predecessor)?;
        predecessor.check_sources(&sources).map_err(StartError::predecessor)?;
    }
    let seed = cluster.as_ref().map(|cluster| cluster.secret.key_seed());
    let recovered = recover(predecessor.as_mut(), state.as_ref(), seed)?;
    recovered.report(&telemetry);
    let RestoredState { store: local, seed, clock, recovery, refused, last } = recovered;
    let clock: Arc<dyn Clock> = Arc::new(clock.telling(local.wall_offset()));
    let secret = store.as_ref().and_then(|settings| settings.key_secret.clone());
    // the workers call Redis and peers, and so does the background work
    let asking = sockets.clients.len().saturating_add(1);
    let shared = store.map(|settings| {
        SharedStore::new(settings, asking, Arc::clone(&clock), calls_counted_by(telemetry.store.clone()))
    });
    let hasher = KeyHasher::new(&seed).with_secret(secret.as_ref().map_or(&[], |secret| secret.seed()));
    let hasher = if cluster.is_some() { hasher.divided() } else { hasher };
    let peers = cluster.as_ref().map(|settings| settings.peers.others());
    let cluster = cluster.map(|settings| {
        let told = questions_counted_by(telemetry.cluster.clone());
        Cluster::new(&settings, asking, Arc::clone(&clock), Arc::new(OsPlatform), told)
    });
    let store = Arc::new(Store::new(local, shared, cluster));
    let needs = Needs {
        workers: sockets.clients.len(),
        listeners: clients.len(),
        peers,
        has_lookups: rules.directory.is_asked_over_http(),
        has_sample: sample.is_some(),
    };
    let room = FdBudget::within(descriptors::limit(), needs);
    room.warn_if_small();
    let active = ActiveConfig::new((rules, pools), None, &store, hasher.clone(), &telemetry);
    telemetry.reload_applied(clock.wall());
    let (crossings, crossed) = Crossings::new();
    let gateway = Gateway::new(GatewayState {
        active: Arc::new(ArcSwap::from_pointee(active)),
        store,
        clock,
        hasher,
        traffic: Arc::default(),
        default_max_connections: room.clients,
        denial_recorder: DenialRecorder::default(),
        bans: Bans::default(),
        crossings,
        usage_sums: UsageSums::default(),
        spans: Spans::default(),
    });
    let snapshots = Arc::new(Snapshots::new(recovery));
    let (found, told) = ((seed, refused, last), Arc::clone(&snapshots));
    let snapshot_writer = Arc::new(SnapshotWriter::new(gateway.clone(), telemetry.clone(), told, found, state));
    let addresses = ListenAddresses { clients, operators };
    let webhook = Courier::new(gateway.clone(), telemetry.clone(), Messages::new(crossed), webhook);
    let events = Events::new(gateway.clock.wall());
    let usage_events = Courier::new(gateway.clone(), telemetry.clone(), events, usage_events);
    let traces = Exporter::new(gateway.clone(), telemetry.clone(), traces);
    let senders =
        Senders { webhook: Arc::new(webhook), usage_events: Arc::new(usage_events), traces: Arc::new(traces) };
    Ok(Prepared {
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
        room,
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

/// The state of limits that the old process hands over, or that the last snapshot holds. `seed` is the cluster's, which all
/// its gateways hash keys with.
fn recover(
    predecessor: Option<&mut Predecessor>,
    state: Option<&StateFile>,
    seed: Option<&[u8; 16]>,
) -> Result<RestoredState, StartError> {
    let Some(predecessor) = predecessor else { return Ok(RestoredState::from_file(state, seed)) };
    let stream = predecessor.ask_for_state().map_err(StartError::predecessor)?;
    let restored = RestoredState::from_predecessor(stream, seed).map_err(StartError::predecessor)?;
    Ok(RestoredState { last: state.and_then(|file| files::open(&file.path).ok()), ..restored })
}

fn calls_counted_by(metrics: StoreMetrics) -> CallObserver {
    metrics.expect(&Operation::ALL.map(Operation::as_str), &CallResult::ALL.map(CallResult::as_str));
    Box::new(move |call| {
        metrics.called(call.operation.as_str(), call.result.as_str(), call.took);
        call.charges.into_iter().for_each(|requests| metrics.charged(requests));
    })
}

fn questions_counted_by(metrics: ClusterMetrics) -> PeerObserver {
    Box::new(move |peer, outcome, took| metrics.asked(peer, outcome.as_str(), took))
}

impl Prepared {
    /// Runs the gateway until a signal stops it. Returns when the requests in flight are finished.
    ///
    /// Errors: the gateway ended without a signal.
    pub fn run(self) -> Result<(), ServerPanicked> {
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
            room,
        } = self;
        let Sockets { clients, admin, sample, cluster, all, paths, unused } = sockets;
        let left = OwnedSocketFiles::at(paths.iter().map(|at| at.path.clone()));
        let takes_over = predecessor.is_some();
        let mut server = Server::new_with_opt_and_conf(None, configuration());
        server.bootstrap();
        // the workers, the admin port and the signal handler, then the optional services
        let services = clients.len() + 2 + usize::from(sample.is_some()) + usize::from(!cluster.is_empty());
        let shared = (Arc::clone(&gateway.traffic), Arc::clone(&gateway.clock));
        let announced = addresses.clients.len();
        let gate = AcceptGate::new(services, addresses, shared, all);
        let gate = Arc::new(gate.when_open(move || {
            if let Some(predecessor) = predecessor {
                // an inherited socket has the mode of the old process, which goes on with it if this one fails before
                for at in &paths {
                    if let Err(error) = socket::set_mode(at) {
                        tracing::error!(path = %at.path.display(), %error, "cannot set the mode of the socket");
                    }
                }
                predecessor.confirm_serving();
                unused.clear();
            }
        }));
        let workforce = WorkerThreads::new(clients, announced, &gateway, &gate, room.kept);
        if !cluster.is_empty() {
            server.add_service(ClusterListener::new(cluster, Arc::clone(&gateway.store), Arc::clone(&gate)));
        }
        let (reloads, asked) = Reloads::new(gateway.clock.wall(), warnings);
        let reloads = Arc::new(reloads);
        let history = Arc::new(History::default());
        let records = Records {
            reloads: Arc::clone(&reloads),
            snapshots,
            history: Arc::clone(&history),
            access: Arc::clone(&access),
        };
        let app = Admin::new(gateway.clone(), telemetry.clone(), records);
        let meters = gateway.clone();
        let shed = move || meters.active.load().meters.shed("admin");
        let app = BoundedApp::new(app, (MAX_ADMIN_CONNECTIONS, REQUEST_TIMEOUT), Arc::clone(&gateway.clock), shed);
        server.add_service(AppListener::new("admin".to_owned(), admin, app, Arc::clone(&gate), AcceptsUntil::End));
        let mut reloader = Reloader::new(
            gateway.clone(),
            (telemetry.clone(), Arc::clone(&history)),
            (Arc::clone(&reloads), asked),
            (Arc::clone(&snapshot_writer), access),
            senders.clone(),
            origin,
        );
        if takes_over && let Err(error) = block_on(reloader.catch_up()) {
            tracing::warn!(%error, "cannot look for changed files before the start; the reloader looks soon");
        }
        let upkeep =
            upkeep::Upkeep::new(gateway.clone(), reloader, Arc::clone(&snapshot_writer), history, senders.clone());
        server.add_service(background_service("upkeep", upkeep));
        if let Some(listeners) = sample {
            let most = room.clients.saturating_mul(2);
            let app = BoundedApp::new(sample::Sample, (most, REQUEST_TIMEOUT), Arc::clone(&gateway.clock), || ());
            let name = "sample upstream".to_owned();
            server.add_service(AppListener::new(name, listeners, app, Arc::clone(&gate), AcceptsUntil::Stop));
        }
        let upgrader = Upgrader {
            gate: Arc::clone(&gate),
            snapshot_writer: Arc::clone(&snapshot_writer),
            gateway: gateway.clone(),
            telemetry,
        };
        let targets = SignalTargets { reloads, gate, upgrader, held: signals };
        let save = || {
            snapshot_writer.write();
            senders.save();
        };
        let ended = shutdown::run_until_idle(server, workforce, &gateway, targets, save)
            .inspect_err(|panicked| tracing::error!("{panicked}"));
        // a process that fails to take over leaves the sockets to the old one
        let has_failed = takes_over && gateway.traffic.lifecycle.phase() == Phase::Starting;
        if !has_failed && !matches!(ended, Ok(ExitMode::Successor)) {
            left.clear();
        }
        snapshot_writer.write();
        senders.finish();
        tracing::info!("stopped");
        ended.map(drop)
    }
}

impl Sockets {
    /// Takes the inherited sockets, and opens new ones on the other addresses.
    fn open(
        (clients, workers): (&[Endpoint], usize),
        operators: SocketAddr,
        (sample, cluster): (Option<SocketAddr>, Option<SocketAddr>),
        mut inherited: Inherited,
    ) -> Result<Self, StartError> {
        let fails = |address: &Endpoint| {
            let address = address.clone();
            move |error| StartError::Bind { address, error }
        };
        let others = [operators].into_iter().chain(sample).chain(cluster).map(Endpoint::Inet);
        for endpoint in clients.iter().cloned().chain(others).filter(|endpoint| !inherited.has(endpoint)) {
            if let Endpoint::Inet(address) = &endpoint {
                listen::probe(*address).map_err(fails(&endpoint))?;
            }
        }
        // systemd keeps its sockets open for this process, and their files in the file system too
        let of_systemd = |endpoint: &&Endpoint| inherit::are_of_systemd() && inherited.has(endpoint);
        let ours = clients.iter().filter(|endpoint| !of_systemd(endpoint));
        let paths = ours.filter_map(Endpoint::path).cloned().collect();
        let mut all = Vec::new();
        let mut open = |endpoint: &Endpoint, services: usize| {
            let open = match inherited.take(endpoint) {
                none if none.is_empty() => listen::open_at(endpoint, services).map_err(fails(endpoint))?,
                some => some,
            };
            let spread = listen::spread(&open, services).map_err(fails(endpoint))?;
            all.extend(open);
            Ok::<_, StartError>(spread)
        };
        let mut proxies: Vec<Vec<(usize, Socket)>> = (0..workers).map(|_| Vec::new()).collect();
        for (position, endpoint) in clients.iter().enumerate() {
            for (proxy, sockets) in proxies.iter_mut().zip(open(endpoint, workers)?) {
                proxy.extend(sockets.into_iter().map(|socket| (position, socket)));
            }
        }
        let admin = open(&Endpoint::Inet(operators), 1)?.into_iter().flatten().collect();
        let sample = sample.map(|address| open(&Endpoint::Inet(address), 1)).transpose()?;
        let sample = sample.map(|sockets| sockets.into_iter().flatten().collect());
        let cluster = cluster.map(|address| open(&Endpoint::Inet(address), 1)).transpose()?;
        let cluster = cluster.into_iter().flatten().flatten().collect();
        let unused = if inherit::are_of_systemd() { OwnedSocketFiles::default() } else { inherited.files() };
        Ok(Self { clients: proxies, admin, sample, cluster, all, paths, unused })
    }
}

fn configuration() -> ServerConf {
    ServerConf {
        threads: 1,
        grace_period_seconds: Some(GRACE_PERIOD.secs_ceil()),
        graceful_shutdown_timeout_seconds: Some(1),
        ..ServerConf::default()
    }
}
