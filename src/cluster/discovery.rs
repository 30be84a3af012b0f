//! Discovery of the gateways by DNS: whether to accept an answer, and the membership that follows from it.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::net::lookup_host;
use tokio::time::{sleep, timeout};

use super::Cluster;
use super::ring::Member;
use super::settings::{Name, Peers};
use crate::units::Nanos;

/// The verdict on a DNS answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DnsVerdict {
    /// The answer is accepted.
    Believed,
    /// The answer has no address.
    Empty,
    /// More than half of the known gateways that answer heartbeats are missing in the answer.
    DropsMany,
}

/// Judges a DNS answer with the addresses `found`, after the addresses `known`. `answers` says which gateways are
/// alive.
pub(super) fn judge(
    known: &BTreeSet<SocketAddr>,
    found: &BTreeSet<SocketAddr>,
    answers: impl Fn(&SocketAddr) -> bool,
) -> DnsVerdict {
    let alive: Vec<&SocketAddr> = known.iter().filter(|address| answers(address)).collect();
    let dropped = alive.iter().filter(|address| !found.contains(address)).count();
    match found.is_empty() {
        true => DnsVerdict::Empty,
        false if dropped.saturating_mul(2) > alive.len() => DnsVerdict::DropsMany,
        false => DnsVerdict::Believed,
    }
}

/// The timeout of a DNS lookup.
const ANSWERS_WITHIN: Nanos = Nanos::from_secs(5);

impl Cluster {
    /// Takes over the listed gateways, or looks their name up again and again, until dropped.
    pub(super) async fn discover(self: Arc<Self>) {
        let mut peers = self.peer_settings.subscribe();
        loop {
            let current = peers.borrow_and_update().clone();
            match current {
                Peers::Listed(members) => {
                    self.take_up(&members);
                    drop(peers.changed().await);
                }
                Peers::Named(name) => tokio::select! {
                    () = self.ask_for(&name) => {}
                    _ = peers.changed() => {}
                },
            }
        }
    }

    fn take_up(&self, members: &[Member]) {
        self.members.lock().set_listed(members, self.context.clock.now());
        self.apply_membership();
    }

    /// Looks `name` up repeatedly, until dropped.
    async fn ask_for(&self, name: &Name) {
        let mut complaint = None;
        loop {
            let found = match timeout(ANSWERS_WITHIN.to_duration(), lookup_host((name.host.as_str(), name.port))).await
            {
                Ok(Ok(found)) => Ok(found.collect::<BTreeSet<SocketAddr>>()),
                Ok(Err(error)) => Err(error.to_string()),
                Err(_) => Err("no answer".to_owned()),
            };
            let known = self.members.lock().listed();
            let reason = match found {
                Ok(found) => match judge(&known, &found, |address| self.answers(*address)) {
                    DnsVerdict::Believed => {
                        let members: Vec<Member> =
                            found.iter().map(|address| Member { address: *address, weight: 1 }).collect();
                        self.take_up(&members);
                        None
                    }
                    DnsVerdict::Empty => Some("the name has no address".to_owned()),
                    DnsVerdict::DropsMany => {
                        Some("the lookup lacks more than half of the gateways, although they answer".to_owned())
                    }
                },
                Err(reason) => Some(reason),
            };
            if reason.is_some() {
                self.counts.not_found.fetch_add(1, Ordering::Relaxed);
            }
            if let Some(reason) = reason.as_ref().filter(|reason| complaint.as_ref() != Some(*reason)) {
                let kept = known.len();
                tracing::warn!(
                    name = name.host,
                    reason,
                    kept,
                    "cannot use the lookup of the cluster's name; the former members stay"
                );
            }
            complaint = reason;
            sleep(name.every.to_duration()).await;
        }
    }

    fn answers(&self, address: SocketAddr) -> bool {
        let members = self.members.lock();
        address == self.context.own.address
            || members.peers().any(|peer| peer.member.address == address && peer.state.answers())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(hosts: &[u8]) -> BTreeSet<SocketAddr> {
        hosts.iter().map(|host| SocketAddr::from(([10, 0, 0, *host], 7946))).collect()
    }

    #[test]
    fn an_answer_holds_unless_it_names_nobody_or_loses_many_who_answer() {
        let all = |_: &SocketAddr| true;
        let nobody = |_: &SocketAddr| false;
        assert_eq!(judge(&of(&[]), &of(&[1]), all), DnsVerdict::Believed);
        assert_eq!(judge(&of(&[1, 2, 3, 4]), &of(&[3, 4, 5]), all), DnsVerdict::Believed);
        assert_eq!(judge(&of(&[1, 2, 3, 4]), &of(&[4, 5, 6, 7]), all), DnsVerdict::DropsMany);
        assert_eq!(judge(&of(&[1, 2, 3, 4]), &of(&[4, 5, 6, 7]), nobody), DnsVerdict::Believed);
        // only those that answer count
        let half = |address: &SocketAddr| of(&[1, 2, 3]).contains(address);
        assert_eq!(judge(&of(&[1, 2, 3, 4, 5, 6]), &of(&[3]), half), DnsVerdict::DropsMany);
        assert_eq!(judge(&of(&[1, 2, 3, 4, 5, 6]), &of(&[2, 3]), half), DnsVerdict::Believed);
        assert_eq!(judge(&of(&[1, 2, 3, 4]), &of(&[]), nobody), DnsVerdict::Empty);
        assert_eq!(judge(&of(&[]), &of(&[]), nobody), DnsVerdict::Empty);
    }
}
