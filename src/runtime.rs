//! The composition root: puts the parts together and runs them on pingora.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use arc_swap::ArcSwap;
use pingora::apps::http_app::HttpServer;
use pingora::listeners::TcpSocketOptions;
use pingora::proxy::HttpProxy;
use pingora::server::Server;
use pingora::server::configuration::ServerConf;
use pingora::services::background::background_service;
use pingora::services::listening::Service;

pub mod sample;
mod shutdown;
mod upkeep;

use crate::admin::Admin;
use crate::clock::{Clock, SystemClock};
use crate::customers::{Directory, Tokens};
use crate::proxy::connection::Edge;
use crate::proxy::live::Live;
use crate::proxy::{Gateway, Shared};
use crate::ruleset::Ruleset;
use crate::ruleset::key::KeyHasher;
use crate::store::{LocalStore, Store};
use crate::telemetry::Telemetry;

/// What a gateway is made of.
#[derive(Debug)]
pub struct Setup {
    /// Where clients connect to.
    pub listeners: Vec<SocketAddr>,
    /// Where operators connect to.
    pub admin: SocketAddr,
    /// The rules.
    pub ruleset: Ruleset,
    /// The customers.
    pub directory: Directory,
    /// Whose tokens are good; absent where there are none.
    pub tokens: Option<Tokens>,
    /// Identifies the configuration's text.
    pub hash: String,
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

/// A gateway that can start.
pub struct Prepared {
    listeners: Vec<SocketAddr>,
    admin: SocketAddr,
    sample: Option<SocketAddr>,
    gateway: Gateway,
    telemetry: Telemetry,
}

/// Does everything that can fail.
pub fn prepare(setup: Setup) -> Result<Prepared, StartError> {
    let Setup { listeners, admin, ruleset, directory, tokens, hash, sample } = setup;
    for address in listeners.iter().chain([&admin]).chain(&sample) {
        // pingora would try for 30 s and then go on without the listener.
        TcpListener::bind(address).map_err(|error| StartError::Bind { address: *address, error })?;
    }
    let telemetry = Telemetry::new()?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let store = Arc::new(Store::Local(LocalStore::new()));
    let live = Live::new(ruleset, directory, tokens, hash, &store, &telemetry);
    telemetry.ruleset_in_force(&live.hash, clock.now());
    let gateway = Gateway::new(Shared {
        live: ArcSwap::from_pointee(live),
        store,
        clock,
        hasher: KeyHasher::new(&rand::random()),
        active: Arc::default(),
    });
    Ok(Prepared { listeners, admin, sample, gateway, telemetry })
}

impl Prepared {
    /// Runs the gateway until it is told to stop. Returns when the requests in flight are finished.
    pub fn run(self) {
        let Self { listeners, admin, sample, gateway, telemetry } = self;
        let mut server = Server::new_with_opt_and_conf(None, configuration());
        server.bootstrap();
        add_proxies(&mut server, &listeners, &gateway);
        let stopping = Arc::new(AtomicBool::new(false));
        let app = Admin::new(gateway.clone(), telemetry, Arc::clone(&stopping));
        let mut admin_service = Service::new("admin".to_owned(), HttpServer::new_app(app));
        admin_service.threads = Some(1);
        admin_service.add_tcp(&admin.to_string());
        server.add_service(admin_service);
        server.add_service(background_service("upkeep", upkeep::Upkeep::new(gateway.clone())));
        if let Some(address) = sample {
            let mut service = Service::new("sample upstream".to_owned(), HttpServer::new_app(sample::Sample));
            service.add_tcp(&address.to_string());
            server.add_service(service);
        }
        for address in &listeners {
            tracing::info!(%address, "listening for clients");
        }
        tracing::info!(address = %admin, "listening for operators");
        shutdown::run_until_idle(server, &gateway, stopping);
    }
}

/// One single-threaded service for each core, all on the same addresses: a request stays on the core that accepted it,
/// and no thread wakes another.
fn add_proxies(server: &mut Server, listeners: &[SocketAddr], gateway: &Gateway) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for core in 0..cores {
        let proxy = HttpProxy::new(gateway.clone(), Arc::clone(&server.configuration));
        let mut service = Service::new(format!("proxy {core}"), Edge::new(proxy, gateway.clone()));
        service.threads = Some(1);
        for address in listeners {
            let mut options = TcpSocketOptions::default();
            options.so_reuseport = Some(true);
            service.add_tcp_with_settings(&spelling(*address, core), options);
        }
        server.add_service(service);
    }
}

/// An address in a spelling of its own for each core. pingora keeps a table of sockets by the text of their address:
/// with one text, the services would share one socket, and each of them would close it.
fn spelling(address: SocketAddr, core: usize) -> String {
    let text = address.to_string();
    match text.rsplit_once(':') {
        Some((host, port)) => format!("{host}:{}{port}", "0".repeat(core)),
        None => text,
    }
}

fn configuration() -> ServerConf {
    ServerConf {
        threads: 1,
        upstream_keepalive_pool_size: KEPT_CONNECTIONS,
        max_retries: MAX_TRIES,
        grace_period_seconds: Some(shutdown::GRACE.secs_ceil()),
        graceful_shutdown_timeout_seconds: Some(1),
        ..ServerConf::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_core_spells_an_address_in_its_own_way() {
        for text in ["127.0.0.1:8080", "[::1]:80"] {
            let address: SocketAddr = text.parse().unwrap();
            let spellings: std::collections::HashSet<String> = (0..64).map(|core| spelling(address, core)).collect();
            assert_eq!(spellings.len(), 64);
            assert!(spellings.iter().all(|spelling| spelling.parse() == Ok(address)));
        }
    }
}
