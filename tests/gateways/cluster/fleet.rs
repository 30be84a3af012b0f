//! Gateways of a cluster in virtual time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tollgate::cluster::Report;
use tollgate::cluster::state_service::StateService;
use tollgate::units::Nanos;

use crate::cluster::network::{Network, Port};
use crate::node::{Node, Setup};
use crate::world::{self, Environment, ms};

/// A simulation of gateways that divide keys among themselves over a network.
pub(crate) type World = world::World<Fleet>;

/// The settings that the gateways share.
pub(crate) struct Fleet {
    pub(crate) network: Arc<Network>,
    pub(crate) setup: Arc<Setup>,
    /// What each gateway runs for its part in the cluster.
    parts: BTreeMap<usize, AbortHandle>,
}

impl Environment for Fleet {
    /// Does nothing: each gateway waits for the arrival times of its messages itself.
    fn pass(&mut self, _until: Nanos) {}
}

impl World {
    /// A world with this number of addresses; a message takes from `delay.0` to `delay.1` milliseconds.
    pub(crate) fn of(seed: u64, addresses: u8, delay: (u64, u64), setup: Setup) -> Self {
        let network = Arc::new(Network::new(seed, addresses, delay));
        Self::new(ms(delay.0), Fleet { network, setup: Arc::new(setup), parts: BTreeMap::new() })
    }

    /// Starts a gateway at the address with this number.
    pub(crate) fn start(&mut self, number: usize) {
        let (network, setup) = (Arc::clone(&self.environment.network), Arc::clone(&self.environment.setup));
        let members: Vec<SocketAddr> = network.addresses();
        self.add(number, |clock| {
            let port = Port { number, network: Arc::clone(&network), clock: Arc::clone(clock) };
            Node::new(members[number], &members, &setup, Arc::clone(clock) as _, Arc::new(port))
        });
        self.take_part(number);
    }

    /// Begins a gateway's part in the cluster; ends an earlier one before, as a handover that fails does.
    pub(crate) fn take_part(&mut self, number: usize) {
        if let Some(before) = self.environment.parts.remove(&number) {
            before.abort();
        }
        let gateway = self.gateway(number);
        let (accepts, accepted) = mpsc::channel(1024);
        let (running, service) = (Arc::clone(&gateway.node), Arc::clone(&gateway.node.store) as Arc<dyn StateService>);
        let part = gateway.spawn(async move { running.cluster().run(service, accepted).await });
        self.environment.network.start(number, accepts, Arc::clone(&gateway.clock));
        self.environment.parts.insert(number, part.abort_handle());
    }

    /// Ends a gateway. If it is `silent`, the others receive nothing from it any more; otherwise its connections are
    /// closed.
    pub(crate) fn end(&mut self, number: usize, silent: bool) {
        self.environment.network.end(number, silent);
        self.remove(number);
    }

    pub(crate) fn reports(&self) -> Vec<Report> {
        self.gateways.iter().map(|gateway| gateway.node.cluster().report()).collect()
    }

    /// Whether all gateways see the same members, and no key moves.
    pub(crate) fn agree(&self) -> bool {
        self.gateways.iter().all(|gateway| {
            let cluster = gateway.node.cluster();
            cluster.report().members.len() == self.gateways.len() && !cluster.is_migrating()
        })
    }

    /// Whether all gateways agree and no work is in progress between them.
    pub(crate) fn is_quiet(&self) -> bool {
        self.agree() && self.gateways.iter().all(|gateway| gateway.node.store.is_settled())
    }
}
