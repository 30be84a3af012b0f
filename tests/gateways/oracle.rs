//! The decisions that clients see, and the number of admissions that the limits allow.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use tollgate::units::{Cost, Nanos};

/// A limit's position, and the number of a key.
pub(crate) type Bucket = (usize, u64);

/// The decisions that clients received.
#[derive(Default)]
pub(crate) struct Ledger {
    /// The buckets that requests asked for tokens.
    pub(crate) touched: BTreeSet<Bucket>,
    admitted: BTreeMap<Bucket, Vec<Admission>>,
    /// The used tokens of keys that are never spent.
    pub(crate) used: BTreeMap<u64, Cost>,
    /// The number of requests that were decided without the owner or Redis.
    pub(crate) alone: u64,
    /// The gateways through which requests run that hold a slot.
    running: BTreeMap<u64, Vec<usize>>,
    most_running: BTreeMap<u64, usize>,
}

#[derive(Hash)]
struct Admission {
    sent_at: Nanos,
    answered_at: Nanos,
    cost: Cost,
}

impl Ledger {
    pub(crate) fn admit(&mut self, bucket: Bucket, sent_at: Nanos, answered_at: Nanos, cost: Cost) {
        self.admitted.entry(bucket).or_default().push(Admission { sent_at, answered_at, cost });
    }

    pub(crate) fn begin(&mut self, key: u64, gateway: usize) {
        let running = self.running.entry(key).or_default();
        running.push(gateway);
        let most = self.most_running.entry(key).or_default();
        *most = running.len().max(*most);
    }

    pub(crate) fn complete(&mut self, key: u64, gateway: usize) {
        let running = self.running.entry(key).or_default();
        let place = running.iter().position(|runs| *runs == gateway).unwrap();
        running.swap_remove(place);
    }

    /// Ends all requests that run through a gateway.
    pub(crate) fn die(&mut self, gateway: usize) {
        self.running.values_mut().for_each(|running| running.retain(|runs| *runs != gateway));
    }

    pub(crate) fn most_running(&self) -> usize {
        self.most_running.values().copied().max().unwrap_or(0)
    }

    pub(crate) fn total(&self, bucket: Bucket) -> Cost {
        self.admitted.get(&bucket).map_or(0, |admitted| admitted.iter().map(|admission| admission.cost).sum())
    }

    /// The highest excess of a key's admitted tokens over `rate` per second, in any interval.
    pub(crate) fn max_excess(&self, bucket: Bucket, rate: u64) -> u64 {
        let admitted = self.admitted.get(&bucket).map_or(&[][..], Vec::as_slice);
        let most = admitted.iter().flat_map(|first| {
            admitted.iter().filter(|last| last.answered_at >= first.sent_at).map(move |last| {
                let within =
                    |other: &&Admission| other.sent_at >= first.sent_at && other.answered_at <= last.answered_at;
                let passed: Cost = admitted.iter().filter(within).map(|admission| admission.cost).sum();
                let time = last.answered_at.saturating_sub(first.sent_at);
                passed.saturating_sub(time.get().saturating_mul(rate) / Nanos::SECOND.get())
            })
        });
        most.max().unwrap_or(0)
    }

    /// A hash that distinguishes this history from others.
    pub(crate) fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.admitted, &self.used, &self.most_running).hash(&mut hasher);
        hasher.finish()
    }
}
