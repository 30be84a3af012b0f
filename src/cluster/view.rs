//! A gateway's view of its cluster: the members, and how to reach them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Cluster;
use super::members::{PeerState, UP_AFTER};
use super::peer::Peer;
use super::ring::{Ring, RingHash};
use crate::units::Nanos;

/// How long gateways may see different members before this gateway logs it.
const DIFFERS: Nanos = UP_AFTER;

/// The members, and how to reach them.
pub(super) struct View {
    pub(super) ring: Arc<Ring>,
    pub(super) peers: BTreeMap<SocketAddr, Arc<Peer>>,
}

impl Cluster {
    /// Publishes the current members: updates the ring, the peers and the migration of states.
    pub(super) fn apply_membership(&self) {
        let members = self.members.lock();
        let ring = Arc::clone(members.ring());
        self.is_ready.send_if_modified(|ready| !std::mem::replace(ready, members.is_ready()) && members.is_ready());
        for silent in members.peers().filter(|peer| peer.state == PeerState::Down) {
            self.find(silent.member.address).iter().for_each(|peer| peer.suspect_unlogged());
        }
        let differs = members.peers().any(|peer| {
            peer.is_member() && peer.last_heartbeat.is_some_and(|last_heartbeat| last_heartbeat.ring != ring.hash())
        });
        let known: BTreeSet<SocketAddr> = members.peers().map(|peer| peer.member.address).collect();
        self.report_difference(differs, ring.hash());
        let is_gone = |peer: &Arc<Peer>| !known.contains(&peer.address);
        let gone: Vec<Arc<Peer>> = self.peers.read().values().filter(|peer| is_gone(peer)).cloned().collect();
        for peer in gone {
            self.peers.write().remove(&peer.number);
            self.redirect(peer.pending.lock().take_all());
            self.corrections.lost.fetch_add(peer.lost(), Ordering::Relaxed);
        }
        let missing: Vec<SocketAddr> = known.into_iter().filter(|address| self.find(*address).is_none()).collect();
        for address in missing {
            let number = self.last_peer.fetch_add(1, Ordering::Relaxed).saturating_add(1);
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            self.peers.write().insert(number, Peer::new(address, number, Arc::clone(&self.context)));
        }
        self.migration.settle(&ring, members.peers(), members.is_drained(), self.context.clock.now());
        let before = self.view.load();
        let peers: BTreeMap<SocketAddr, Arc<Peer>> = self.known();
        let is_known =
            |peer: &Arc<Peer>| before.peers.get(&peer.address).is_some_and(|known| known.number == peer.number);
        if before.ring.hash() == ring.hash() && peers.values().all(is_known) {
            return;
        }
        if before.ring.hash() != ring.hash() {
            self.migration.ring_changed(&before.ring, self.context.clock.now());
            self.heartbeat_now();
            let members: Vec<String> = ring.members().map(|member| member.address.to_string()).collect();
            tracing::info!(ring = %ring.hash(), members = members.join(", "), "the members of the cluster have changed");
        }
        self.context.ring.store(ring.hash().0, Ordering::Relaxed);
        self.view.store(Arc::new(View { ring, peers }));
        // locked until here, so that an older view never replaces a newer one
        drop(members);
    }

    /// Starts a push if states of other owners have arrived since the last one.
    pub(super) fn push_if_undrained(&self) {
        let mut members = self.members.lock();
        if self.note_stand_in.swap(false, Ordering::Relaxed) {
            members.set_undrained();
        }
        if !members.is_drained() {
            self.migration.push.notify_one();
        }
    }

    /// Logs once that gateways see different members, if that lasts longer than the spread of a change
    /// by heartbeats takes.
    fn report_difference(&self, differs: bool, ring: RingHash) {
        let (since, now) = (Nanos::new(self.counts.differs.load(Ordering::Relaxed)), self.context.clock.now());
        let then = match (differs, since) {
            (false, _) => Nanos::ZERO,
            (true, Nanos::ZERO) => now,
            (true, since) if since < Nanos::MAX && now.saturating_sub(since) >= DIFFERS => {
                tracing::warn!(%ring, "other gateways of the cluster see different members");
                Nanos::MAX
            }
            (true, since) => since,
        };
        self.counts.differs.store(then.get(), Ordering::Relaxed);
    }

    pub(super) fn heartbeat_now(&self) {
        self.peers.read().values().for_each(|peer| peer.beat.notify_one());
    }

    pub(super) fn known(&self) -> BTreeMap<SocketAddr, Arc<Peer>> {
        self.peers.read().values().map(|peer| (peer.address, Arc::clone(peer))).collect()
    }

    pub(super) fn find(&self, address: SocketAddr) -> Option<Arc<Peer>> {
        self.peers.read().values().find(|peer| peer.address == address).map(Arc::clone)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;
    use crate::cluster::ring::Member;
    use crate::cluster::settings::{ClusterSettings, Peers};
    use crate::cluster::{OsPlatform, Secret};

    #[test]
    fn corrections_lost_for_a_gateway_stay_counted_when_it_is_taken_off_the_list() {
        let [own, other] = [1, 2].map(|last| SocketAddr::from(([10, 0, 0, last], 7946)));
        let members = [own, other].map(|address| Member { address, weight: 1 });
        let settings = ClusterSettings {
            own,
            listen: own,
            peers: Peers::Listed(members.to_vec()),
            secret: Secret::of(b"one secret of a cluster"),
            founding: Default::default(),
            timeout: Nanos::SECOND,
        };
        let clock = Arc::new(SystemClock::new());
        let cluster = Cluster::new(&settings, 1, clock, Arc::new(OsPlatform), Box::new(|_, _, _| {}));
        cluster.find(other).unwrap().lost.store(3, Ordering::Relaxed);
        cluster.members.lock().set_listed(&members[..1], Nanos::SECOND);
        cluster.members.lock().tick(Nanos::SECOND);
        cluster.apply_membership();
        let report = cluster.report();
        assert_eq!((report.peers.len(), report.lost), (0, 3));
    }
}
