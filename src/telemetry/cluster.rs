//! The metrics of a gateway in a cluster.

use std::collections::HashSet;
use std::net::SocketAddr;

use prometheus::{HistogramVec, IntCounter, IntCounterVec, IntGaugeVec, Registry};

use super::{counter, gauge, histogram, names, raise, series, single};
use crate::units::Nanos;

/// The metrics of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterMetrics {
    ring: IntGaugeVec,
    up: IntGaugeVec,
    requests: IntCounterVec,
    duration: HistogramVec,
    decisions: IntCounterVec,
    states: IntCounterVec,
    not_found: IntCounter,
    under_another_ring: IntCounter,
    corrections_lost: IntCounter,
}

/// The state of a cluster, as a scrape shows it.
#[derive(Clone, Debug)]
pub struct ClusterUsage {
    /// A hash of the members.
    pub ring: String,
    /// The number of members.
    pub members: usize,
    /// The other gateways, and whether they can be reached.
    pub peers: Vec<(SocketAddr, bool)>,
    /// Charges so far that a gateway other than the owner decided, by cause.
    pub decisions: [(&'static str, u64); 3],
    /// States that moved to or from other gateways so far, by event.
    pub states: [(&'static str, u64); 6],
    /// Lookups of the nodes' name so far that found no node, or an answer that the gateway does not trust.
    pub not_found: u64,
    /// Calls so far from gateways that saw other members.
    pub under_another_ring: u64,
    /// Corrections so far that could not be delivered.
    pub corrections_lost: u64,
}

impl ClusterMetrics {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let plain = |name| single(registry, name, IntCounter::with_opts);
        Ok(Self {
            ring: gauge(registry, &names::CLUSTER_RING_INFO)?,
            up: gauge(registry, &names::PEER_UP)?,
            requests: counter(registry, &names::PEER_REQUESTS)?,
            duration: histogram(registry, &names::PEER_REQUEST_DURATION, names::PEER_SECONDS)?,
            decisions: counter(registry, &names::CLUSTER_DECISIONS)?,
            states: counter(registry, &names::CLUSTER_STATES)?,
            not_found: plain(&names::CLUSTER_DISCOVERY_FAILURES)?,
            under_another_ring: plain(&names::CLUSTER_OTHER_RING)?,
            corrections_lost: plain(&names::CLUSTER_CORRECTIONS_LOST)?,
        })
    }

    /// Another gateway was asked, with this result, and took this long.
    pub fn asked(&self, peer: SocketAddr, result: &str, took: Nanos) {
        let peer = peer.to_string();
        self.requests.with_label_values(&[peer.as_str(), result]).inc();
        self.duration.with_label_values(&[peer.as_str()]).observe(took.as_secs_f64());
    }

    pub(super) fn set(&self, usage: &ClusterUsage) {
        self.ring.reset();
        self.ring.with_label_values(&[&usage.ring]).set(1);
        let known: HashSet<String> = usage.peers.iter().map(|(peer, _)| peer.to_string()).collect();
        let keep = |labels: &series::Labels<'_>| labels.get("peer").is_none_or(|peer| known.contains(*peer));
        series::retain(&self.up, keep);
        series::retain(&self.requests, keep);
        series::retain(&self.duration, keep);
        for (peer, is_up) in &usage.peers {
            self.up.with_label_values(&[&peer.to_string()]).set(i64::from(*is_up));
        }
        for (cause, total) in usage.decisions {
            raise(&self.decisions.with_label_values(&[cause]), total);
        }
        for (event, total) in usage.states {
            raise(&self.states.with_label_values(&[event]), total);
        }
        for (counter, total) in [
            (&self.not_found, usage.not_found),
            (&self.under_another_ring, usage.under_another_ring),
            (&self.corrections_lost, usage.corrections_lost),
        ] {
            raise(counter, total);
        }
    }
}
