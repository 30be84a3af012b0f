//! Who is a member: what nodes tell each other in beats, turned into a ring.
//!
//! A node that comes, back or for the first time, is no member at once. It first gives away what it holds and others own
//! ([`MemberState::Away`]), then it asks to be one ([`MemberState::Joining`]), and the others take it up when they have heard it
//! for a while; so a node that comes and goes moves no keys each time. Until then it owns nothing and asks the members. A
//! node that finds no member becomes one by itself. A node that was stopped, and so can know neither how others stand nor
//! whether they stood in for it, comes back like a new one.
//!
//! Time and everything heard are handed in; what is handed back is a ring, and what to say to others.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cluster::ring::{Member, Ring, RingHash};
use crate::units::Nanos;

/// How often nodes tell each other how they stand.
pub const HEARTBEAT_INTERVAL: Nanos = Nanos::new(250_000_000);
/// A peer that was not heard for this long is no member any more. A node that did not look for this long was stopped.
pub const DOWN_AFTER: Nanos = Nanos::from_secs(1);
/// A peer that comes is a member when it was heard for this long.
pub const UP_AFTER: Nanos = Nanos::from_secs(2);
/// How long a node that starts waits for what its peers say, where they neither answer nor refuse.
pub const ALONE_AFTER: Nanos = Nanos::from_secs(1);

/// What a node that starts waits for before it decides by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Founding {
    /// How many members there have to be, the node itself among them.
    pub min_members: usize,
    /// How long a second one may take to be found.
    pub hold: Nanos,
}

impl Default for Founding {
    fn default() -> Self {
        Self { min_members: 1, hold: Nanos::ZERO }
    }
}

/// How a node stands, in its own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MemberState {
    /// It is no member, and has states that members should have first.
    Away,
    /// It is no member yet.
    Joining,
    /// It is a member.
    Member,
    /// It is no member any more, and about to end.
    Leaving,
}

/// What a node says of itself to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// How it stands.
    pub standing: MemberState,
    /// Another number each time it begins to stand as [`MemberState::Away`].
    pub incarnation: u64,
    /// The members as it sees them.
    pub ring: RingHash,
    /// Whether it keeps no state that another of those members owns.
    pub drained: bool,
    /// The life of the node that it says this to, if that is among them.
    pub counts: Option<u64>,
}

/// How a peer stands, as seen from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// Nothing was heard of it yet.
    Unheard,
    /// It answers, and is no member.
    Away,
    /// It is going to be a member.
    Joining,
    /// It is a member.
    Up,
    /// It is no member any more, and answers still.
    Leaving,
    /// It does not answer.
    Down,
}

impl PeerState {
    /// A word for operators.
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

    /// Whether it answers.
    pub const fn answers(self) -> bool {
        matches!(self, Self::Away | Self::Joining | Self::Up | Self::Leaving)
    }
}

/// What is known of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address and weight.
    pub member: Member,
    /// How it stands. Not to be counted on where it is not `listed`.
    pub state: PeerState,
    /// Whether it is among those that this node was told of. One that is not any more stays known while it answers.
    pub listed: bool,
    /// What it said last, while it answers.
    pub said: Option<Heartbeat>,
    since: Nanos,
    heard: Nanos,
}

/// The members as one node sees them. See the module.
#[derive(Debug)]
pub struct Members {
    own: Member,
    founding: Founding,
    /// Whether there were as many members as it takes.
    is_ready: bool,
    standing: MemberState,
    incarnation: u64,
    peers: BTreeMap<SocketAddr, Peer>,
    /// Whether it was told who there is.
    was_told: bool,
    started: Nanos,
    last_tick: Nanos,
    /// The hash of the ring under which this node has given away all that others own.
    drained: Option<RingHash>,
    /// How often it got states that others own.
    set_undrained: u64,
    ring: Arc<Ring>,
}

// === impl Members ===

impl Members {
    /// Those that node `own` sees when it starts, which is none but itself. `incarnation` tells its processes apart.
    pub fn new(own: Member, founding: Founding, incarnation: u64, now: Nanos) -> Self {
        Self {
            own,
            founding,
            is_ready: false,
            standing: MemberState::Away,
            incarnation,
            peers: BTreeMap::new(),
            was_told: false,
            started: now,
            last_tick: now,
            drained: None,
            set_undrained: 0,
            ring: Arc::new(Ring::new([own])),
        }
    }

    /// This node.
    pub const fn own(&self) -> Member {
        self.own
    }

    /// How this node stands.
    pub const fn standing(&self) -> MemberState {
        self.standing
    }

    /// What it knows of the others.
    pub fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.peers.values()
    }

    /// The members. This node alone while it knows of none: somebody has to decide.
    pub const fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// Whether it is known who the members are, and there are enough of them, so that requests can be decided by those who
    /// own their keys. What was ready stays so: a cluster that loses members goes on with the others.
    pub const fn is_ready(&self) -> bool {
        self.is_ready
    }

    /// How many members there would be with this node, and how many it waits for.
    pub fn waits_for(&self) -> (usize, usize) {
        let others = self.peers.values().filter(|peer| peer.counts()).count();
        (others.saturating_add(1), self.founding.min_members)
    }

    fn knows_enough(&self) -> bool {
        let is_heard = |peer: &Peer| !peer.listed || peer.state != PeerState::Unheard;
        let (members, wanted) = self.waits_for();
        let is_known = self.standing == MemberState::Member || (members > 1 && self.peers.values().all(is_heard));
        is_known && members >= wanted
    }

    /// What to say to the peer at `address`.
    pub fn says(&self, address: SocketAddr) -> Heartbeat {
        Heartbeat {
            standing: self.standing,
            incarnation: self.incarnation,
            ring: self.ring.hash(),
            drained: self.is_drained(),
            counts: self.peers.get(&address).filter(|peer| peer.counts()).and_then(|peer| Some(peer.said?.incarnation)),
        }
    }

    /// The nodes that there are, as told: this one may be among them, and its weight is taken from there.
    pub fn set_listed(&mut self, members: &[Member], now: Nanos) {
        self.was_told = true;
        for peer in self.peers.values_mut() {
            peer.listed = false;
        }
        for member in members {
            if member.address == self.own.address {
                self.own.weight = member.weight;
                continue;
            }
            let peer = self.peers.entry(member.address).or_insert_with(|| Peer::unheard(*member, now));
            peer.member = *member;
            peer.listed = true;
        }
        self.update(now);
    }

    /// The peer at `address` said something.
    pub fn heard(&mut self, address: SocketAddr, beat: Heartbeat, now: Nanos) {
        let i_am_member = self.standing == MemberState::Member;
        let Some(peer) = self.peers.get_mut(&address) else { return };
        let same_incarnation = peer.said.is_some_and(|said| said.incarnation == beat.incarnation);
        let state = match (beat.standing, peer.state) {
            (MemberState::Leaving, _) => PeerState::Leaving,
            (MemberState::Away, _) => PeerState::Away,
            // it does not know yet that it was taken up
            (MemberState::Joining | MemberState::Member, PeerState::Up) if same_incarnation => PeerState::Up,
            // whoever is no member itself has no keys that would move
            (MemberState::Member, _) if !i_am_member => PeerState::Up,
            (MemberState::Joining | MemberState::Member, PeerState::Joining) if same_incarnation => PeerState::Joining,
            (MemberState::Joining | MemberState::Member, _) => PeerState::Joining,
        };
        if state != peer.state || !same_incarnation {
            peer.since = now;
        }
        peer.state = state;
        peer.said = Some(beat);
        peer.heard = now;
        self.update(now);
    }

    /// The peer at `address` cannot be reached: there is no connection to it, and none can be made.
    pub fn unreachable(&mut self, address: SocketAddr, now: Nanos) {
        if let Some(peer) = self.peers.get_mut(&address) {
            peer.goes_down(now);
        }
        self.update(now);
    }

    /// This node has given away all that others own under the ring of this hash, unless it got more since
    /// [`Members::undrained_count`] told `before`.
    pub fn set_drained(&mut self, ring: RingHash, before: u64, now: Nanos) {
        if self.set_undrained == before {
            self.drained = Some(ring);
            self.update(now);
        }
    }

    /// This node has got states that others own.
    pub const fn set_undrained(&mut self) {
        self.drained = None;
        self.set_undrained = self.set_undrained.wrapping_add(1);
    }

    /// How often it got any.
    pub const fn undrained_count(&self) -> u64 {
        self.set_undrained
    }

    /// Whether this node keeps nothing that another member owns.
    pub fn is_drained(&self) -> bool {
        self.drained == Some(self.ring.hash())
    }

    /// Whether this node is either not about to end, or keeps nothing any more that another could have.
    pub fn is_ready_to_end(&self) -> bool {
        self.standing != MemberState::Leaving || self.has_nothing_to_hand_over()
    }

    /// This node is about to end.
    pub fn leave(&mut self, now: Nanos) {
        self.standing = MemberState::Leaving;
        self.update(now);
    }

    /// Time has passed: to be called once per [`HEARTBEAT_INTERVAL`], and more often at will.
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

    /// Others may have stood in for this node, and that nothing was heard of them says nothing.
    fn was_stopped(&mut self, now: Nanos) {
        if self.standing != MemberState::Leaving && !self.peers.is_empty() {
            self.standing = MemberState::Away;
            self.incarnation = self.incarnation.wrapping_add(1);
            self.drained = None;
            self.started = now;
        }
        for peer in self.peers.values_mut() {
            peer.heard = now;
        }
    }

    /// Draws the conclusions.
    fn update(&mut self, now: Nanos) {
        for peer in self.peers.values_mut() {
            if peer.state == PeerState::Joining && now.saturating_sub(peer.since) >= UP_AFTER {
                peer.state = PeerState::Up;
            }
        }
        self.rebuild_ring();
        if self.standing == MemberState::Away && self.has_nothing_to_hand_over() {
            self.standing = MemberState::Joining;
        }
        if self.standing == MemberState::Joining {
            let counts_this = |said: Heartbeat| said.counts == Some(self.incarnation);
            if self.peers.values().any(|peer| peer.counts() && peer.said.is_some_and(counts_this)) {
                self.standing = MemberState::Member;
                self.follow();
            } else if self.is_alone(now) {
                self.standing = MemberState::Member;
                // they are alone like this one, and find the same
                self.take_up_all();
            }
            self.rebuild_ring();
        }
        self.is_ready |= self.knows_enough();
    }

    /// Takes up those who join beside this node, if a member has taken up all.
    fn follow(&mut self) {
        let joins = |peer: &Peer| peer.listed && peer.state == PeerState::Joining;
        let then = self.ring_of(|peer| peer.counts() || joins(peer)).hash();
        if self.peers.values().any(|peer| peer.counts() && peer.said.is_some_and(|said| said.ring == then)) {
            self.take_up_all();
        }
    }

    fn take_up_all(&mut self) {
        let joining = self.peers.values_mut().filter(|peer| peer.state == PeerState::Joining);
        joining.for_each(|peer| peer.state = PeerState::Up);
    }

    /// Whether no member owns anything that this node has.
    fn has_nothing_to_hand_over(&self) -> bool {
        self.is_drained() || !self.peers.values().any(Peer::counts)
    }

    /// Whether there is no member that could take this node up, as far as can be known.
    fn is_alone(&self, now: Nanos) -> bool {
        let mut listed = self.peers.values().filter(|peer| peer.listed);
        let waited = now.saturating_sub(self.started) >= ALONE_AFTER;
        let joining = self.peers.values().filter(|peer| peer.listed && peer.state == PeerState::Joining).count();
        (self.was_told || waited)
            && joining.saturating_add(1) >= self.founding.min_members
            && (joining > 0 || now.saturating_sub(self.started) >= self.founding.hold)
            && listed.all(|peer| match peer.state {
                PeerState::Unheard => waited,
                PeerState::Up => false,
                PeerState::Away | PeerState::Joining | PeerState::Leaving | PeerState::Down => true,
            })
    }

    /// Makes the ring anew, if the members are others.
    fn rebuild_ring(&mut self) {
        let ring = self.ring_of(Peer::counts);
        if ring.hash() != self.ring.hash() {
            self.ring = Arc::new(ring);
        }
    }

    /// The ring of this node, if it is a member, and those peers.
    fn ring_of(&self, counts: impl Fn(&Peer) -> bool) -> Ring {
        let own = (self.standing == MemberState::Member).then_some(self.own);
        let peers = self.peers.values().filter(|peer| counts(peer)).map(|peer| peer.member);
        let mut members: Vec<Member> = own.into_iter().chain(peers).collect();
        if members.is_empty() {
            members.push(self.own);
        }
        Ring::new(members)
    }
}

// === impl Peer ===

impl Peer {
    const fn unheard(member: Member, now: Nanos) -> Self {
        Self { member, state: PeerState::Unheard, listed: true, said: None, since: now, heard: now }
    }

    /// Whether it is a member.
    pub const fn counts(&self) -> bool {
        self.listed && matches!(self.state, PeerState::Up)
    }

    const fn goes_down(&mut self, now: Nanos) {
        self.state = PeerState::Down;
        self.said = None;
        self.since = now;
    }
}

#[cfg(test)]
mod tests;
