//! The state of a cluster, for operators.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use super::Cluster;
use super::members::{MemberState, PeerState};
use super::ring::{Member, RingHash};
use crate::units::Nanos;

/// The state of the cluster as this gateway sees it.
#[derive(Clone, Debug)]
pub struct Report {
    /// This gateway's address.
    pub own: SocketAddr,
    /// Its state.
    pub member_state: MemberState,
    /// The hash of the ring that it sees.
    pub ring: RingHash,
    /// The members.
    pub members: Vec<Member>,
    /// The other gateways, members or not.
    pub peers: Vec<PeerReport>,
    /// Requests from gateways that saw other members.
    pub asked_under_other_ring: u64,
    /// Charges that a gateway other than the owner decided, by cause: here because the owner could not be reached, here
    /// because no gateway could be reached, without a state that could not be fetched from earlier owners in time.
    pub decisions: [(&'static str, u64); 3],
    /// States that were sent to other gateways and received from them, by event.
    pub states: [(&'static str, u64); 6],
    /// DNS lookups that failed or whose answer this gateway rejected.
    pub not_found: u64,
    /// Corrections that were discarded of charges made here, or for gateways that are no longer known.
    pub lost: u64,
}

/// Another gateway as this one sees it.
#[derive(Clone, Debug)]
pub struct PeerReport {
    /// Its address.
    pub address: SocketAddr,
    /// Its state.
    pub state: PeerState,
    /// Whether this gateway can send requests to it.
    pub is_reachable: bool,
    /// The hash of the ring as it sees it, if known.
    pub ring: Option<RingHash>,
    /// The time of its last answer.
    pub heard: Nanos,
    /// The reason why this gateway has no connection to it, if the last try failed.
    pub failure: Option<String>,
    /// Corrections for it that were discarded.
    pub lost: u64,
}

impl Cluster {
    /// The state of the cluster as this gateway sees it.
    pub fn report(&self) -> Report {
        let (counts, states) = (&self.counts, &self.migration.counts);
        let view = self.view.load();
        let members = self.members.lock();
        let peers = members.peers().map(|peer| {
            let address = peer.member.address;
            let reached = self.find(address);
            PeerReport {
                address,
                state: peer.state,
                is_reachable: reached.as_ref().is_some_and(|peer| peer.is_reachable()),
                ring: peer.last_heartbeat.map(|last_heartbeat| last_heartbeat.ring),
                failure: reached.as_ref().and_then(|peer| peer.failure.lock().clone()),
                heard: reached.as_ref().map_or(Nanos::ZERO, |peer| peer.heard()),
                lost: reached.as_ref().map_or(0, |peer| peer.lost()),
            }
        });
        Report {
            own: self.own(),
            member_state: members.member_state(),
            ring: view.ring.hash(),
            members: view.ring.members().collect(),
            peers: peers.collect(),
            asked_under_other_ring: counts.asked_under_other_ring.load(Ordering::Relaxed),
            decisions: [
                ("stand_in", counts.stood_in.load(Ordering::Relaxed)),
                ("alone", counts.alone.load(Ordering::Relaxed)),
                ("unfetched", counts.unfetched.load(Ordering::Relaxed)),
            ],
            states: [
                ("pushed", states.pushed.load(Ordering::Relaxed)),
                ("given", states.given.load(Ordering::Relaxed)),
                ("received", states.received.load(Ordering::Relaxed)),
                ("merged", states.merged.load(Ordering::Relaxed)),
                ("unknown", states.unknown.load(Ordering::Relaxed)),
                ("too_large", self.service().map_or(0, |service| service.too_large())),
            ],
            not_found: counts.not_found.load(Ordering::Relaxed),
            lost: self.corrections.lost.load(Ordering::Relaxed),
        }
    }
}
