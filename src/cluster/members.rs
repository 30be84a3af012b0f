//! The members: a state machine that turns the heartbeats of the gateways into a ring.
//!
//! A gateway that starts or returns does not become a member at once. It first pushes its states to their owners
//! ([`MemberState::Away`]). Then it asks to join ([`MemberState::Joining`]), and the members accept it when they have
//! heard it for [`UP_AFTER`]; so a gateway that fails and returns repeatedly does not move keys each time. Until then
//! it owns nothing and asks the members. A gateway that finds no member becomes one by itself. A gateway that was
//! stopped for a while joins like a new one: it knows neither the state of the others nor whether they stood in for it.
//!
//! This module is pure: time and heartbeats are passed in; it returns a ring and the heartbeats to send.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cluster::ring::{Member, Ring, RingHash};
use crate::units::Nanos;

/// How often gateways send each other heartbeats.
pub const HEARTBEAT_INTERVAL: Nanos = Nanos::new(250_000_000);
/// A peer that was silent for longer is no longer a member. A gateway whose last tick was longer ago was stopped.
pub const DOWN_AFTER: Nanos = Nanos::from_secs(1);
/// A joining peer becomes a member when this gateway has heard it for this long.
pub const UP_AFTER: Nanos = Nanos::from_secs(2);
/// How long a gateway that starts waits for peers that neither answer nor refuse connections.
pub const ALONE_AFTER: Nanos = Nanos::from_secs(1);

/// The conditions under which a starting gateway may form a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Founding {
    /// The minimum number of members, including this gateway.
    pub min_members: usize,
    /// How long this gateway waits for a second gateway before it forms a cluster alone.
    pub hold: Nanos,
}

impl Default for Founding {
    fn default() -> Self {
        Self { min_members: 1, hold: Nanos::ZERO }
    }
}

/// The state of a gateway, as it reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberState {
    /// The gateway is not a member, and first pushes its states to the members.
    Away,
    /// The gateway is not a member yet, and asks to join.
    Joining,
    /// The gateway is a member.
    Member,
    /// The gateway is no longer a member, and is about to end or to hand over to another process.
    Leaving,
}

/// The heartbeat that a gateway sends to another one: its own state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Its state.
    pub member_state: MemberState,
    /// Changes each time the gateway becomes [`MemberState::Away`].
    pub incarnation: u64,
    /// The hash of the members, as the sender sees them.
    pub ring: RingHash,
    /// Whether the sender keeps no state that another member owns.
    pub drained: bool,
    /// The incarnation of the receiving gateway, if the sender counts that gateway as a member.
    pub accepted_incarnation: Option<u64>,
}

/// The state of a peer, as this gateway sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// This gateway has heard nothing from the peer yet.
    Unheard,
    /// The peer answers, and is not a member.
    Away,
    /// The peer is about to become a member.
    Joining,
    /// The peer is a member.
    Up,
    /// The peer is no longer a member, and still answers.
    Leaving,
    /// The peer does not answer.
    Down,
}

impl PeerState {
    /// The state as one word for operators.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unheard => "unheard",
            Self::Away => "away",
            Self::Joining => "joining",
            Self::Up => "up",
            Self::Leaving => "leaving",
            Self::Down => "down",
        }
    }

    /// Whether the peer answers.
    pub const fn answers(self) -> bool {
        matches!(self, Self::Away | Self::Joining | Self::Up | Self::Leaving)
    }
}

/// A peer as this gateway knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerRecord {
    /// Its address and weight.
    pub member: Member,
    /// Its state. Means nothing unless it is `listed`.
    pub state: PeerState,
    /// Whether the configuration or DNS names it. A peer that is no longer named stays known for as long as it answers.
    pub listed: bool,
    /// Its last heartbeat, for as long as it answers.
    pub last_heartbeat: Option<Heartbeat>,
    since: Nanos,
    heard: Nanos,
}

/// The members as one gateway sees them. See the module.
#[derive(Debug)]
pub struct Members {
    own: Member,
    founding: Founding,
    /// Whether there were ever enough members.
    is_ready: bool,
    member_state: MemberState,
    incarnation: u64,
    peers: BTreeMap<SocketAddr, PeerRecord>,
    /// Whether the configuration or DNS has named the gateways.
    has_listing: bool,
    /// Whether it named this gateway among them.
    is_own_listed: bool,
    started: Nanos,
    last_tick: Nanos,
    /// Whether this gateway has pushed all states that other members own, since the last change of the ring and
    /// the last arrival.
    is_drained: bool,
    /// How often the ring has changed or states of other owners have arrived, to detect either during a push.
    undrained_count: u64,
    ring: Arc<Ring>,
}

// === impl Members ===

impl Members {
    /// The members as `own` sees them when it starts: only itself. Each process of a gateway passes another
    /// `incarnation`.
    pub fn new(own: Member, founding: Founding, incarnation: u64, now: Nanos) -> Self {
        Self {
            own,
            founding,
            is_ready: false,
            member_state: MemberState::Away,
            incarnation,
            peers: BTreeMap::new(),
            has_listing: false,
            is_own_listed: false,
            started: now,
            last_tick: now,
            is_drained: false,
            undrained_count: 0,
            ring: Arc::new(Ring::new([own])),
        }
    }

    /// This gateway.
    pub const fn own(&self) -> Member {
        self.own
    }

    /// The state of this gateway.
    pub const fn member_state(&self) -> MemberState {
        self.member_state
    }

    /// The other gateways.
    pub fn peers(&self) -> impl Iterator<Item = &PeerRecord> {
        self.peers.values()
    }

    /// The members. While this gateway knows no member, the ring has only this gateway, because some gateway has to
    /// decide.
    pub const fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// Whether this gateway knows the members and there are enough of them to decide requests. A gateway that was once
    /// ready stays ready: a cluster that loses members continues with the remaining ones.
    pub const fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// The number of members including this gateway, and the number that it needs.
    pub fn waits_for(&self) -> (usize, usize) {
        let others = self.peers.values().filter(|peer| peer.is_member()).count();
        (others.saturating_add(1), self.founding.min_members)
    }

    fn knows_enough(&self) -> bool {
        let is_heard = |peer: &PeerRecord| !peer.listed || peer.state != PeerState::Unheard;
        let (members, wanted) = self.waits_for();
        let is_known = self.member_state == MemberState::Member || (members > 1 && self.peers.values().all(is_heard));
        is_known && members >= wanted
    }

    /// The heartbeat for the peer at `address`.
    pub fn heartbeat_for(&self, address: SocketAddr) -> Heartbeat {
        Heartbeat {
            member_state: self.member_state,
            incarnation: self.incarnation,
            ring: self.ring.hash(),
            drained: self.is_drained(),
            accepted_incarnation: self
                .peers
                .get(&address)
                .filter(|peer| peer.is_member())
                .and_then(|peer| Some(peer.last_heartbeat?.incarnation)),
        }
    }

    /// Sets the gateways that the configuration or DNS names. If this gateway is among them, it takes its weight from
    /// there.
    pub fn set_listed(&mut self, members: &[Member], now: Nanos) {
        self.has_listing = true;
        self.is_own_listed = false;
        for peer in self.peers.values_mut() {
            peer.listed = false;
        }
        for member in members {
            if member.address == self.own.address {
                self.own.weight = member.weight;
                self.is_own_listed = true;
                continue;
            }
            let peer = self.peers.entry(member.address).or_insert_with(|| PeerRecord::unheard(*member, now));
            peer.member = *member;
            peer.listed = true;
        }
        self.update(now);
    }

    /// The gateways that the configuration or DNS names; none before it has named any.
    pub fn listed(&self) -> BTreeSet<SocketAddr> {
        let peers = self.peers.values().filter(|peer| peer.listed).map(|peer| peer.member.address);
        peers.chain(self.is_own_listed.then_some(self.own.address)).collect()
    }

    /// Processes a heartbeat of the peer at `address`.
    pub fn record_heartbeat(&mut self, address: SocketAddr, beat: Heartbeat, now: Nanos) {
        let i_am_member = self.member_state == MemberState::Member;
        let Some(peer) = self.peers.get_mut(&address) else { return };
        let same_incarnation =
            peer.last_heartbeat.is_some_and(|last_heartbeat| last_heartbeat.incarnation == beat.incarnation);
        let state = match (beat.member_state, peer.state) {
            (MemberState::Leaving, _) => PeerState::Leaving,
            (MemberState::Away, _) => PeerState::Away,
            // it does not know yet that it became a member
            (MemberState::Joining | MemberState::Member, PeerState::Up) if same_incarnation => PeerState::Up,
            // this gateway is no member: it has no keys that would move
            (MemberState::Member, _) if !i_am_member => PeerState::Up,
            (MemberState::Joining | MemberState::Member, PeerState::Joining) if same_incarnation => PeerState::Joining,
            (MemberState::Joining | MemberState::Member, _) => PeerState::Joining,
        };
        if state != peer.state || !same_incarnation {
            peer.since = now;
        }
        peer.state = state;
        peer.last_heartbeat = Some(beat);
        peer.heard = now;
        self.update(now);
    }

    /// Notes that a connection to the peer at `address` has failed.
    pub fn unreachable(&mut self, address: SocketAddr, now: Nanos) {
        if let Some(peer) = self.peers.get_mut(&address) {
            peer.goes_down(now);
        }
        self.update(now);
    }

    /// Notes that this gateway has pushed all states of other owners under `ring`. Has no effect if the ring has
    /// changed since, or if [`Members::undrained_count`] is no longer `before`.
    pub fn set_drained(&mut self, ring: RingHash, before: u64, now: Nanos) {
        if self.undrained_count == before && self.ring.hash() == ring {
            self.is_drained = true;
            self.update(now);
        }
    }

    /// Notes that this gateway may keep states of other owners: some have arrived, or the ring has changed.
    pub const fn set_undrained(&mut self) {
        self.is_drained = false;
        self.undrained_count = self.undrained_count.wrapping_add(1);
    }

    /// How often [`Members::set_undrained`] was called.
    pub const fn undrained_count(&self) -> u64 {
        self.undrained_count
    }

    /// Whether this gateway keeps no state that another member owns.
    pub const fn is_drained(&self) -> bool {
        self.is_drained
    }

    /// Whether this gateway may end: it does not leave, or it has handed over all its states.
    pub fn is_ready_to_end(&self) -> bool {
        self.member_state != MemberState::Leaving || self.has_nothing_to_hand_over()
    }

    /// Notes that this gateway leaves the cluster and is about to end.
    pub fn leave(&mut self, now: Nanos) {
        self.member_state = MemberState::Leaving;
        self.update(now);
    }

    /// Notes that this gateway does not end after all: it joins like a new one.
    pub fn rejoin(&mut self, now: Nanos) {
        self.begin_again(now);
        self.update(now);
    }

    /// Notes the time. Must be called once per [`HEARTBEAT_INTERVAL`], and may be called more often.
    pub fn tick(&mut self, now: Nanos) {
        if now.saturating_sub(self.last_tick) > DOWN_AFTER {
            self.was_stopped(now);
        }
        self.last_tick = now;
        for peer in self.peers.values_mut() {
            if peer.state.answers() && now.saturating_sub(peer.heard) > DOWN_AFTER {
                peer.goes_down(now);
            }
        }
        self.peers.retain(|_, peer| peer.listed || peer.state.answers());
        self.update(now);
    }

    /// Handles a pause of this gateway: others may have stood in for it, and their silence during the pause means
    /// nothing.
    fn was_stopped(&mut self, now: Nanos) {
        if self.member_state != MemberState::Leaving && !self.peers.is_empty() {
            self.begin_again(now);
        }
        for peer in self.peers.values_mut() {
            peer.heard = now;
        }
    }

    fn begin_again(&mut self, now: Nanos) {
        self.member_state = MemberState::Away;
        self.incarnation = self.incarnation.wrapping_add(1);
        self.set_undrained();
        self.started = now;
    }

    /// Updates the states of peers and of this gateway, and the ring.
    fn update(&mut self, now: Nanos) {
        for peer in self.peers.values_mut() {
            if peer.state == PeerState::Joining && now.saturating_sub(peer.since) >= UP_AFTER {
                peer.state = PeerState::Up;
            }
        }
        self.rebuild_ring();
        if self.member_state == MemberState::Away && self.has_nothing_to_hand_over() {
            self.member_state = MemberState::Joining;
        }
        if self.member_state == MemberState::Joining {
            let counts_this = |last_heartbeat: Heartbeat| last_heartbeat.accepted_incarnation == Some(self.incarnation);
            if self.peers.values().any(|peer| peer.is_member() && peer.last_heartbeat.is_some_and(counts_this)) {
                self.member_state = MemberState::Member;
                self.accept_joining_with_members();
            } else if self.is_alone(now) {
                self.member_state = MemberState::Member;
                // the other joining gateways are alone as well, and decide the same
                self.accept_joining();
            }
            self.rebuild_ring();
        }
        self.is_ready |= self.knows_enough();
    }

    /// Accepts the peers that join at the same time as this gateway, once a member's ring has all of them.
    fn accept_joining_with_members(&mut self) {
        let joins = |peer: &PeerRecord| peer.listed && peer.state == PeerState::Joining;
        let then = self.ring_of(|peer| peer.is_member() || joins(peer)).hash();
        if self.peers.values().any(|peer| {
            peer.is_member() && peer.last_heartbeat.is_some_and(|last_heartbeat| last_heartbeat.ring == then)
        }) {
            self.accept_joining();
        }
    }

    fn accept_joining(&mut self) {
        let joining = self.peers.values_mut().filter(|peer| peer.state == PeerState::Joining);
        joining.for_each(|peer| peer.state = PeerState::Up);
    }

    /// Whether this gateway keeps no state that a member owns, or knows no member.
    fn has_nothing_to_hand_over(&self) -> bool {
        self.is_drained() || !self.peers.values().any(PeerRecord::is_member)
    }

    /// Whether this gateway knows no member that could accept it, and so may found the cluster.
    fn is_alone(&self, now: Nanos) -> bool {
        let mut listed = self.peers.values().filter(|peer| peer.listed);
        let waited = now.saturating_sub(self.started) >= ALONE_AFTER;
        let joining = self.peers.values().filter(|peer| peer.listed && peer.state == PeerState::Joining).count();
        (self.has_listing || waited)
            && joining.saturating_add(1) >= self.founding.min_members
            && (joining > 0 || now.saturating_sub(self.started) >= self.founding.hold)
            && listed.all(|peer| match peer.state {
                PeerState::Unheard => waited,
                PeerState::Up => false,
                PeerState::Away | PeerState::Joining | PeerState::Leaving | PeerState::Down => true,
            })
    }

    /// Replaces the ring if the members have changed, and marks this gateway as not drained: states may have arrived
    /// under the previous ring, so an earlier drain under the same members proves nothing.
    fn rebuild_ring(&mut self) {
        let ring = self.ring_of(PeerRecord::is_member);
        if ring.hash() != self.ring.hash() {
            self.ring = Arc::new(ring);
            self.set_undrained();
        }
    }

    /// The ring of the peers for which `counts` holds, with this gateway if it is a member or if there is no peer.
    fn ring_of(&self, counts: impl Fn(&PeerRecord) -> bool) -> Ring {
        let own = (self.member_state == MemberState::Member).then_some(self.own);
        let peers = self.peers.values().filter(|peer| counts(peer)).map(|peer| peer.member);
        let mut members: Vec<Member> = own.into_iter().chain(peers).collect();
        if members.is_empty() {
            members.push(self.own);
        }
        Ring::new(members)
    }
}

// === impl PeerRecord ===

impl PeerRecord {
    const fn unheard(member: Member, now: Nanos) -> Self {
        Self { member, state: PeerState::Unheard, listed: true, last_heartbeat: None, since: now, heard: now }
    }

    /// Whether the peer is a member: listed and up.
    pub const fn is_member(&self) -> bool {
        self.listed && matches!(self.state, PeerState::Up)
    }

    const fn goes_down(&mut self, now: Nanos) {
        self.state = PeerState::Down;
        self.last_heartbeat = None;
        self.since = now;
    }
}

#[cfg(test)]
mod tests;
