//! The listening sockets of a process: inherited ones, and new ones on the other addresses.

use std::net::SocketAddr;

use super::StartError;
use super::inherit::Inherited;
use super::listen;
use super::socket::{OwnedSocketFiles, Socket};
use crate::ruleset::{Endpoint, SocketPath};

/// The listening sockets of all services.
pub(super) struct Sockets {
    /// For each worker, its sockets, each with the position of its address.
    pub(super) clients: Vec<Vec<(usize, Socket)>>,
    pub(super) admin: Vec<Socket>,
    pub(super) sample: Option<Vec<Socket>>,
    /// The sockets for other gateways of the cluster.
    pub(super) cluster: Vec<Socket>,
    /// All sockets above, each once.
    pub(super) all: Vec<Socket>,
    /// The sockets in the file system that are not a supervisor's; this process removes them when it ends.
    pub(super) paths: Vec<SocketPath>,
    /// The sockets in the file system that only the old process has listened on.
    pub(super) unused: OwnedSocketFiles,
}

impl Sockets {
    /// Takes the inherited sockets, and opens new ones on the other addresses.
    pub(super) fn open(
        (clients, workers): (&[Endpoint], usize),
        admin: SocketAddr,
        (sample, cluster): (Option<SocketAddr>, Option<SocketAddr>),
        mut inherited: Inherited,
    ) -> Result<Self, StartError> {
        let fails = |address: &Endpoint| {
            let address = address.clone();
            move |error| StartError::Bind { address, error }
        };
        let others = [admin].into_iter().chain(sample).chain(cluster).map(Endpoint::Inet);
        for endpoint in clients.iter().cloned().chain(others).filter(|endpoint| !inherited.has(endpoint)) {
            if let Endpoint::Inet(address) = &endpoint {
                let probed = listen::probe(*address).map_err(|error| inherited.explain(*address, error));
                probed.map_err(fails(&endpoint))?;
            }
        }
        let ours = clients.iter().filter(|endpoint| !inherited.is_supervised(endpoint));
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
        let mut worker_sockets: Vec<Vec<(usize, Socket)>> = (0..workers).map(|_| Vec::new()).collect();
        for (position, endpoint) in clients.iter().enumerate() {
            for (worker, opened) in worker_sockets.iter_mut().zip(open(endpoint, workers)?) {
                worker.extend(opened.into_iter().map(|socket| (position, socket)));
            }
        }
        let admin = open(&Endpoint::Inet(admin), 1)?.into_iter().flatten().collect();
        let sample = sample.map(|address| open(&Endpoint::Inet(address), 1)).transpose()?;
        let sample = sample.map(|sockets| sockets.into_iter().flatten().collect());
        let cluster = cluster.map(|address| open(&Endpoint::Inet(address), 1)).transpose()?;
        let cluster = cluster.into_iter().flatten().flatten().collect();
        Ok(Self { clients: worker_sockets, admin, sample, cluster, all, paths, unused: inherited.files() })
    }
}
