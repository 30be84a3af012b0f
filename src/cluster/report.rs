//! How a cluster stands, for operators.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use super::Cluster;
use super::members::{MemberState, PeerState};
use super::ring::{Member, RingHash};
use crate::units::Nanos;

/// How things stand, for reports.
#[derive(Clone, Debug)]
pub struct Report {
    /// This gateway's address.
    pub own: SocketAddr,
    /// How it stands.
    pub standing: MemberState,
    /// What the members are known by.
    pub ring: RingHash,
    /// The members.
    pub members: Vec<Member>,
    /// The others, members or not.
    pub peers: Vec<PeerReport>,
    /// Frames of questions from gateways that saw other members.
    pub asked_under_other_ring: u64,
    /// Charges decided here for an owner that could not be asked.
    pub stood_in: u64,
    /// Charges decided here because nobody could be asked.
    pub alone: u64,
    /// How many states went and came.
    pub moved: MigrationCounts,
    /// Answers of DNS that named nobody or were not believed, and looks that had none.
    pub not_found: u64,
    /// Corrections of charges here that were given up.
    pub lost: u64,
}

/// How many states went to other gateways and came from them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MigrationCounts {
    /// Sent to those who own them now.
    pub pushed: u64,
    /// Given to those who asked for them.
    pub given: u64,
    /// Came, and are in force here.
    pub received: u64,
    /// Came, and were merged with one that was there.
    pub merged: u64,
    /// Came, and were not understood.
    pub unknown: u64,
}

/// How another gateway stands.
#[derive(Clone, Debug)]
pub struct PeerReport {
    /// Its address.
    pub address: SocketAddr,
    /// How it stands.
    pub state: PeerState,
    /// Whether it can be asked.
    pub is_reachable: bool,
    /// The members as it sees them, if it said so.
    pub ring: Option<RingHash>,
    /// When it was last heard of.
    pub heard: Nanos,
    /// Corrections for it that were given up.
    pub lost: u64,
}

impl Cluster {
    /// How things stand.
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
                ring: peer.said.map(|said| said.ring),
                heard: reached.as_ref().map_or(Nanos::ZERO, |peer| peer.heard()),
                lost: reached.as_ref().map_or(0, |peer| peer.lost()),
            }
        });
        Report {
            own: self.own(),
            standing: members.standing(),
            ring: view.ring.hash(),
            members: view.ring.members().collect(),
            peers: peers.collect(),
            asked_under_other_ring: node.counts.asked_under_other_ring.load(Ordering::Relaxed),
            stood_in: node.counts.stood_in.load(Ordering::Relaxed),
            alone: node.counts.alone.load(Ordering::Relaxed),
            moved: node.migration.counts.read(),
            not_found: node.counts.not_found.load(Ordering::Relaxed),
            lost: node.corrections.lost.load(Ordering::Relaxed),
        }
    }
}
