//! `cluster:`: the gateways that together keep sticky limits.

use std::net::{IpAddr, SocketAddr};

use crate::cluster::members::Founding;
use crate::cluster::ring::Member;
use crate::cluster::settings::{Name, Peers};
use crate::config::listeners::{self, Server};
use crate::config::read::{Field, Section, unique_items};
use crate::config::scalar::{InvalidValue, invalid};
use crate::config::settings::{CLUSTER, CLUSTER_NAME, CLUSTER_PEER};
use crate::config::values::{NamedFile, is_host_name};
use crate::units::Nanos;

/// The settings of `cluster:`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cluster {
    /// The address at which the other gateways reach this gateway.
    pub own: SocketAddr,
    /// The address on which this gateway listens for the other gateways.
    pub listen: SocketAddr,
    /// The gateways of the cluster: a list, or a name in DNS.
    pub peers: Peers,
    /// The file of the secret that all gateways know.
    pub secret_file: NamedFile,
    /// The condition under which this gateway may form a cluster when it starts.
    pub founding: Founding,
    /// How long a request waits for the gateway that owns its key.
    pub timeout: Nanos,
}

impl Cluster {
    /// How long a name must resolve to this gateway alone before the gateway counts as alone, where `min_members` is
    /// absent.
    pub const HOLD: Nanos = Nanos::from_secs(10);
}

const A_PEER: &str = "an address and a port, like `10.0.0.1:7946`";
const ALL_PEERS: &str =
    "a list of all gateways, like `[\"10.0.0.1:7946\", \"10.0.0.2:7946\"]`, or `{dns: tollgate.internal, port: 7946}`";
/// The largest number of gateways in `peers`.
const MAX_PEERS: usize = 256;

/// Reads `cluster:`.
pub(super) fn read(top: &Section<'_>) -> Option<Cluster> {
    top.optional("cluster", cluster)
}

fn cluster(field: &Field<'_>) -> Option<Cluster> {
    let section = field.section(&CLUSTER)?;
    let own_field = section.must("self", |field| Some(field.clone()));
    let own = own_field.as_ref().and_then(|field| field.read(reachable));
    let listen = section.optional("listen", listeners::address);
    let peers = section.required("peers", ALL_PEERS).and_then(|field| peers(&field, own));
    let secret_file = section.must("secret_file", Field::file);
    let timeout = section.duration("timeout");
    let min_members = section.optional("min_members", |field| {
        let count: usize = field.whole()?;
        match &peers {
            Some(Peers::Listed(members)) if count > members.len() => {
                let problem = field.error("is more than `peers` has gateways").expected("at most as many as there are");
                field.fail(problem.hint("a gateway is not ready before so many are members"))
            }
            _ => Some(count),
        }
    });
    let (own_field, own, peers) = (own_field?, own?, peers?);
    if let Peers::Listed(members) = &peers
        && !members.iter().any(|member| member.address == own)
    {
        let problem = own_field.error("is not among `peers`").expected("one of the addresses of the list");
        return own_field.fail(problem.hint("the list is the same on all gateways, and names each of them"));
    }
    let founding = match (min_members, &peers) {
        (Some(min_members), _) => Founding { min_members, hold: Nanos::ZERO },
        (None, Peers::Listed(members)) => Founding { min_members: members.len().div_ceil(2), hold: Nanos::ZERO },
        (None, Peers::Named(_)) => Founding { min_members: 1, hold: Cluster::HOLD },
    };
    Some(Cluster { own, listen: listen.unwrap_or(own), founding, peers, secret_file: secret_file?, timeout })
}

/// Checks `cluster` against the other sections. `sticky` says whether any limit is sticky.
pub(super) fn check(top: &Section<'_>, cluster: &Cluster, server: &Server, sticky: bool) -> Option<()> {
    let field = top.get("cluster")?;
    let listen = field.as_mapping().and_then(|section| section.get("listen").or_else(|| section.get("self")))?;
    let taken = server
        .listeners
        .iter()
        .filter_map(|listener| listener.address.inet())
        .chain([server.admin])
        .find(|taken| listeners::collide(*taken, cluster.listen));
    if let Some(taken) = taken {
        return listen.fail(listen.error(format!("cannot be listened on beside {taken}")));
    }
    if !sticky {
        field.warn("keeps nothing: no limit is `mode: sticky`", None);
    }
    if matches!(&cluster.peers, Peers::Listed(members) if members.len() == 1) {
        field.warn("names no other gateway", None);
    }
    Some(())
}

fn peers(field: &Field<'_>, own: Option<SocketAddr>) -> Option<Peers> {
    if field.as_mapping().is_some() {
        return name(&field.section(&CLUSTER_NAME)?, own).map(Peers::Named);
    }
    let items = field.list_up_to(MAX_PEERS, "gateways", ALL_PEERS)?;
    unique_items(&items, peer, |member| member.address).map(Peers::Listed)
}

fn peer(field: &Field<'_>) -> Option<Member> {
    if field.as_mapping().is_none() {
        return Some(Member { address: field.parsed(A_PEER, reachable)?, weight: 1 });
    }
    let section = field.section(&CLUSTER_PEER)?;
    let address = section.must("address", |field| field.read(reachable));
    Some(Member { weight: section.whole("weight"), address: address? })
}

fn name(section: &Section<'_>, own: Option<SocketAddr>) -> Option<Name> {
    let host = section.must("dns", |field| field.read(host));
    let every = section.duration("every");
    // by default all gateways listen on the same port
    let port = section.optional("port", Field::whole).or_else(|| Some(own?.port()));
    Some(Name { host: host?, port: port?, every })
}

fn host(text: &str) -> Result<String, InvalidValue> {
    if text.parse::<IpAddr>().is_ok() {
        return Err(invalid("is an address").hint("write addresses as a list"));
    }
    match is_host_name(text) {
        true => Ok(text.to_owned()),
        false => Err(invalid("is not a name")),
    }
}

/// An address that another gateway can connect to.
fn reachable(text: &str) -> Result<SocketAddr, InvalidValue> {
    let address: SocketAddr = text.parse().map_err(|_| invalid("is not an address and a port"))?;
    if address.ip().is_unspecified() {
        let hint = "write this machine's own address, and `listen` beside it to listen on others too";
        return Err(invalid("is no address that other gateways can reach").hint(hint));
    }
    if address.ip().is_multicast() {
        return Err(invalid("is no address of one gateway"));
    }
    match address.port() {
        0 => Err(invalid("has no port from 1 to 65535")),
        _ => Ok(address),
    }
}
