//! Heartbeats: one control connection to each other gateway, which carries heartbeats and corrections.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::time::{MissedTickBehavior, interval, timeout};

use super::connection::ConnectError;
use super::corrections::Correction;
use super::drain_latch::InFlight;
use super::members::{HEARTBEAT_INTERVAL, Heartbeat};
use super::ring::RingHash;
use super::session::Session;
use super::{Cluster, Peer};
use crate::panics::failpoint;
use crate::units::Nanos;

/// How often the log repeats that a peer cannot be reached for the same reason.
const WARN_INTERVAL: Nanos = Nanos::from_secs(60);

impl Cluster {
    fn heartbeat_for(&self, to: SocketAddr) -> Heartbeat {
        self.members.lock().heartbeat_for(to)
    }

    fn record_heartbeat(&self, from: SocketAddr, beat: Heartbeat) {
        self.members.lock().record_heartbeat(from, beat, self.context.clock.now());
        self.apply_membership();
    }

    /// Sends heartbeats and corrections while the connection lasts.
    async fn talk(self: &Arc<Self>, peer: &Arc<Peer>, session: &Arc<Session>) {
        let mut beats = interval(HEARTBEAT_INTERVAL.to_duration());
        beats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_time = tokio::select! {
                biased;
                () = session.ended() => return,
                _ = beats.tick() => true,
                () = peer.beat.notified() => true,
                () = peer.wake.notified() => peer.is_suspected(),
            };
            if is_time {
                failpoint("beat");
                let (cluster, address) = (Arc::clone(self), peer.address);
                peer.send_beat(session, &self.heartbeat_for(address), move |beat| {
                    cluster.record_heartbeat(address, beat)
                });
            }
            peer.send_corrections(session);
        }
    }

    /// Notes that a connection to `peer`, which this gateway tried to open at `since`, has failed.
    fn unreachable(&self, peer: &Peer, failed: &ConnectError, since: Nanos) {
        let address = peer.address;
        if matches!(failed, ConnectError::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused) {
            self.refusing.lock().insert(address);
        }
        self.migration.unreachable(address, since);
        self.members.lock().unreachable(address, self.context.clock.now());
        self.apply_membership();
        if !self.view.load().ring.has(address) {
            self.redirect(peer.pending.lock().take_transferable());
        }
    }

    /// Takes back corrections that a peer will never make: debits and refunds are made where the state is now, the
    /// others are lost.
    pub(super) fn redirect(&self, corrections: Vec<Correction>) {
        for correction in corrections {
            if correction.is_transferable() {
                self.corrections.push(correction);
            } else {
                self.corrections.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

// === answers to other gateways ===

impl Cluster {
    /// Processes the heartbeat of the gateway at `from`, and returns this gateway's heartbeat.
    pub(super) fn handle_heartbeat(&self, from: SocketAddr, beat: Heartbeat) -> Heartbeat {
        match self.find(from) {
            Some(peer) if peer.is_reachable() => self.record_heartbeat(from, beat),
            // it becomes a member only after this gateway has reached it and so can ask it
            Some(peer) => peer.beat.notify_one(),
            None => {}
        }
        self.heartbeat_for(from)
    }

    /// Notes that the gateway at `from`, which sees `ring`, sent a request, and whether it was a charge.
    pub(super) fn asked_under(&self, ring: RingHash, from: SocketAddr, charges: bool) {
        if ring.0 != self.context.ring.load(Ordering::Relaxed) {
            self.migration.asked_under_other_ring(from, self.context.clock.now());
            self.counts.asked_under_other_ring.fetch_add(charges.into(), Ordering::Relaxed);
        }
    }

    /// Registers a request as in flight. `None` if this gateway no longer answers.
    pub(super) fn enter(&self) -> Option<InFlight> {
        self.latch.enter()
    }

    /// Whether the address `ip` is that of a gateway of the cluster.
    pub(super) fn is_known_address(&self, ip: IpAddr) -> bool {
        self.peers.read().values().any(|peer| peer.address.ip() == ip)
    }
}

/// Keeps the control connection to `peer` open, until dropped.
pub(super) async fn run(cluster: Arc<Cluster>, peer: Arc<Peer>) {
    // the reason in the last log line, and the time of that line
    let mut logged: Option<(String, Nanos)> = None;
    loop {
        let since = cluster.context.clock.now();
        match peer.connect().await {
            Ok(connection) => {
                cluster.refusing.lock().remove(&peer.address);
                (logged, *peer.failure.lock()) = (None, None);
                let session = Session::begin(connection, Arc::clone(&cluster.context.ring));
                cluster.redirect(peer.arrived(&session));
                cluster.talk(&peer, &session).await;
            }
            Err(failed) => {
                let reason = failed.to_string();
                *peer.failure.lock() = Some(reason.clone());
                if is_due(logged.as_ref(), &reason, since) {
                    tracing::warn!(peer = %peer.address, reason, "cannot reach a gateway of the cluster");
                    logged = Some((reason, since));
                }
                cluster.unreachable(&peer, &failed, since);
                drop(timeout(HEARTBEAT_INTERVAL.to_duration(), peer.beat.notified()).await);
            }
        }
    }
}

/// Whether a failure at `now` is worth a log line after the one that was `logged` last: the reason is another one, or the
/// line is a minute old.
fn is_due(logged: Option<&(String, Nanos)>, reason: &str, now: Nanos) -> bool {
    logged.is_none_or(|(known, at)| known != reason || now.saturating_sub(*at) >= WARN_INTERVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_stays_unreachable_is_logged_once_a_minute() {
        let logged = Some(("timed out".to_owned(), Nanos::from_secs(100)));
        assert!(is_due(None, "timed out", Nanos::from_secs(100)));
        assert!(!is_due(logged.as_ref(), "timed out", Nanos::from_secs(159)));
        assert!(is_due(logged.as_ref(), "timed out", Nanos::from_secs(160)));
        assert!(is_due(logged.as_ref(), "refused", Nanos::from_secs(101)));
    }
}
