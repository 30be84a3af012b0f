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
    /// Charges decided here because the owner could not be reached.
    pub stood_in: u64,
    /// Charges decided here because no gateway could be reached.
    pub alone: u64,
    /// States that a request needed and that this gateway could not fetch from earlier owners in time.
    pub unfetched: u64,
    /// The numbers of states that were sent and received.
    pub moved: MigrationCounts,
    /// DNS lookups that failed or whose answer this gateway rejected.
    pub not_found: u64,
    /// Corrections that were discarded of charges made here, or for gateways that are no longer known.
    pub lost: u64,
}

/// The numbers of states that were sent to other gateways and received from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MigrationCounts {
    /// States that this gateway pushed to their owners.
    pub pushed: u64,
    /// States that this gateway gave to gateways that fetched them.
    pub given: u64,
    /// States that this gateway received and kept.
    pub received: u64,
    /// States that this gateway received and merged with its own state of the key.
    pub merged: u64,
    /// States that this gateway received and did not understand.
    pub unknown: u64,
    /// States that this gateway lost because they were too large to move.
    pub too_large: u64,
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
    /// Corrections for it that were discarded.
    pub lost: u64,
}

impl Cluster {
    /// The state of the cluster as this gateway sees it.
    pub fn report(&self) -> Report {
        let node = &self.0;
        let view = node.view.load();
        let members = node.members.lock();
        let peers = members.peers().map(|peer| {
            let address = peer.member.address;
            let reached = node.find(address);
            PeerReport {
                address,
                state: peer.state,
                is_reachable: reached.as_ref().is_some_and(|peer| peer.is_reachable()),
                ring: peer.last_heartbeat.map(|last_heartbeat| last_heartbeat.ring),
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
            asked_under_other_ring: node.counts.asked_under_other_ring.load(Ordering::Relaxed),
            stood_in: node.counts.stood_in.load(Ordering::Relaxed),
            alone: node.counts.alone.load(Ordering::Relaxed),
            unfetched: node.counts.unfetched.load(Ordering::Relaxed),
            moved: MigrationCounts {
                too_large: node.service().map_or(0, |service| service.too_large()),
                ..node.migration.counts.read()
            },
            not_found: node.counts.not_found.load(Ordering::Relaxed),
            lost: node.corrections.lost.load(Ordering::Relaxed),
        }
    }
}
