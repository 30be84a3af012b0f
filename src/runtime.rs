//! The composition root: puts the parts together and runs them on pingora.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use arc_swap::ArcSwap;
use pingora::apps::http_app::HttpServer;
use pingora::proxy::HttpProxy;
use pingora::server::Server;
use pingora::server::configuration::ServerConf;
use pingora::services::background::background_service;

mod listen;
pub mod reload;
pub mod sample;
mod shutdown;
mod upkeep;

pub use self::shutdown::GRACE;

use self::listen::{Announcement, Doors, Listening};
use self::reload::{Origin, Parts, Reloader};
use crate::admin::reloads::Reloads;
use crate::admin::{Admin, Readiness};
use crate::clock::{Clock, SystemClock};
use crate::proxy::connection::Edge;
use crate::proxy::live::Live;
use crate::proxy::{Gateway, Shared};
use crate::ruleset::key::KeyHasher;
use crate::store::shared::Observer;
use crate::store::{SharedStore, Store};
use crate::telemetry::Telemetry;

/// What a gateway is made of.
pub struct Setup {
    /// What its configuration says.
    pub parts: Parts,
    /// Where that comes from, to be read again; `None` where it does not change.
    pub origin: Option<Origin>,
    /// Where to serve the sample upstream, if at all.
    pub sample: Option<SocketAddr>,
}

/// Why a gateway cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Bind {
        /// Which address.
        address: SocketAddr,
        /// What the system says.
        error: std::io::Error,
    },
    /// The metrics cannot be registered.
    #[error("cannot register the metrics: {0}")]
    Metrics(#[from] prometheus::Error),
}

/// Requests are tried once, then again as often as an upstream's `retries` say, which is at most this often.
const MAX_TRIES: usize = 7;
/// Connections to upstreams that are kept for the next request, for each core.
const KEPT_CONNECTIONS: usize = 512;

/// A gateway that can start. Its sockets are open: connections are not refused any more, but wait until it runs.
pub struct Prepared {
    /// For each core, a socket for each address.
    listeners: Vec<Vec<TcpListener>>,
    admin: TcpListener,
    sample: Option<TcpListener>,
    announcement: Announcement,
    origin: Option<Origin>,
    warnings: Vec<String>,
    gateway: Gateway,
    telemetry: Telemetry,
}

/// Does everything that can fail.
pub fn prepare(setup: Setup) -> Result<Prepared, StartError> {
    let Setup { parts, origin, sample } = setup;
    let Parts { listeners: clients, admin: operators, rules, store, warnings } = parts;
    let fails = |address| move |error| StartError::Bind { address, error };
    for address in clients.iter().chain([&operators]).chain(&sample) {
        listen::probe(*address).map_err(fails(*address))?;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut listeners: Vec<Vec<TcpListener>> = (0..cores).map(|_| Vec::new()).collect();
    for address in &clients {
        let sockets = listen::shared(*address, cores).map_err(fails(*address))?;
        for (listeners, socket) in listeners.iter_mut().zip(sockets) {
            listeners.push(socket);
        }
    }
    let admin = listen::exclusive(operators).map_err(fails(operators))?;
    let sample = sample.map(|address| listen::exclusive(address).map_err(fails(address))).transpose()?;
    let telemetry = Telemetry::new()?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let secret = store.as_ref().and_then(|settings| settings.key_secret.clone());
    // the proxies ask, and what goes on beside them
    let shared = store.map(|settings| {
        let telemetry = telemetry.clone();
        let told: Observer = Box::new(move |op, result, took| telemetry.store_called(op, result.as_str(), took));
        SharedStore::new(settings, cores.saturating_add(1), Arc::clone(&clock), told)
    });
    let store = Arc::new(Store::new(shared));
    let live = Live::new(rules, None, &store, &telemetry);
    telemetry.reload_applied(&live.hash, clock.now());
    let gateway = Gateway::new(Shared {
        live: ArcSwap::from_pointee(live),
        store,
        clock,
        hasher: KeyHasher::new(&rand::random()).with_secret(secret.as_ref().map_or(&[], |secret| secret.seed())),
        active: Arc::default(),
    });
    let announcement = Announcement { clients, operators };
    Ok(Prepared { listeners, admin, sample, announcement, origin, warnings, gateway, telemetry })
}

impl Prepared {
    /// Runs the gateway until it is told to stop. Returns when the requests in flight are finished.
    pub fn run(self) {
        let Self { listeners, admin, sample, announcement, origin, warnings, gateway, telemetry } = self;
        let mut server = Server::new_with_opt_and_conf(None, configuration());
        server.bootstrap();
        let services = listeners.len() + 1 + usize::from(sample.is_some());
        let readiness = Arc::new(Readiness::new(services));
        let doors = Arc::new(Doors::new(Arc::clone(&readiness), announcement, Arc::clone(&gateway.clock)));
        add_proxies(&mut server, listeners, &gateway, &doors);
        let (reloads, asked) = Reloads::new(gateway.clock.now(), warnings);
        let reloads = Arc::new(reloads);
        let app = Admin::new(gateway.clone(), telemetry.clone(), Arc::clone(&readiness), Arc::clone(&reloads));
        let app = HttpServer::new_app(app);
        server.add_service(Listening::new("admin".to_owned(), vec![admin], app, Arc::clone(&doors)));
        let reloader = Reloader::new(gateway.clone(), telemetry, (Arc::clone(&reloads), asked), origin);
        server.add_service(background_service("upkeep", upkeep::Upkeep::new(gateway.clone(), reloader)));
        if let Some(listener) = sample {
            let app = HttpServer::new_app(sample::Sample);
            server.add_service(Listening::new("sample upstream".to_owned(), vec![listener], app, doors));
        }
        shutdown::run_until_idle(server, &gateway, readiness, reloads);
    }
}

/// A proxy for each core, all on the same addresses: a request stays on the core that accepted it, and no thread wakes
/// another.
fn add_proxies(server: &mut Server, listeners: Vec<Vec<TcpListener>>, gateway: &Gateway, doors: &Arc<Doors>) {
    for (core, listeners) in listeners.into_iter().enumerate() {
        let proxy = HttpProxy::new(gateway.clone(), Arc::clone(&server.configuration));
        let edge = Edge::new(proxy, gateway.clone());
        server.add_service(Listening::new(format!("proxy {core}"), listeners, edge, Arc::clone(doors)));
    }
}

fn configuration() -> ServerConf {
    ServerConf {
        threads: 1,
        upstream_keepalive_pool_size: KEPT_CONNECTIONS,
        max_retries: MAX_TRIES,
        grace_period_seconds: Some(GRACE.secs_ceil()),
        graceful_shutdown_timeout_seconds: Some(1),
        ..ServerConf::default()
    }
}
