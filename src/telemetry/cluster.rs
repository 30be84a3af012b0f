//! The metrics of a gateway in a cluster.

use std::collections::HashSet;
use std::net::SocketAddr;

use prometheus::{HistogramVec, IntCounterVec, Registry};

use super::{counter, histogram, names, series};
use crate::units::Nanos;

/// The metrics of a cluster.
#[derive(Clone, Debug)]
pub struct ClusterMetrics {
    requests: IntCounterVec,
    duration: HistogramVec,
}

impl ClusterMetrics {
    pub(super) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        Ok(Self {
            requests: counter(registry, &names::PEER_REQUESTS)?,
            duration: histogram(registry, &names::PEER_REQUEST_DURATION, names::PEER_SECONDS)?,
        })
    }

    /// Another gateway was asked, with this result, and took this long.
    pub fn asked(&self, peer: SocketAddr, result: &str, took: Nanos) {
        let peer = peer.to_string();
        self.requests.with_label_values(&[peer.as_str(), result]).inc();
        self.duration.with_label_values(&[peer.as_str()]).observe(took.as_secs_f64());
    }

    /// Drops the series of gateways that are not among `peers`.
    pub fn retain(&self, peers: impl Iterator<Item = SocketAddr>) {
        let known: HashSet<String> = peers.map(|peer| peer.to_string()).collect();
        let keep = |labels: &series::Labels<'_>| labels.get("peer").is_none_or(|peer| known.contains(*peer));
        series::retain(&self.requests, keep);
        series::retain(&self.duration, keep);
    }
}
