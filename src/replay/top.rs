//! The keys that are denied most often, in bounded memory.
//!
//! Space-Saving (Metwally, Agrawal, El Abbadi 2005) in batches: up to 4096 keys are counted exactly. When there are
//! twice as many, the half with the lower counts is forgotten. A key that is new after that begins with the largest
//! forgotten count, as its possible error. A count is never too low, and too high by its error at most.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use serde::Serialize;

use crate::units::{LimitKey, Nanos};

/// Twice as many keys as this make [`TopKeys`] forget all but this many.
const MAX_KEYS: usize = 4096;

/// Counts of keys.
#[derive(Clone, Debug, Default)]
pub struct TopKeys {
    entries: HashMap<LimitKey, Entry, BuildHasherDefault<AlreadyHashed>>,
    floor: u64,
}

#[derive(Clone, Debug)]
struct Entry {
    who: String,
    count: u64,
    error: u64,
    first: Nanos,
    last: Nanos,
}

/// A key that was denied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeniedKey {
    /// The key in words.
    pub who: String,
    /// How often it was denied, at most.
    pub denied: u64,
    /// By how much `denied` may be too high; 0 if it is exact.
    pub error: u64,
    /// The time of the first denial that is still known.
    #[serde(serialize_with = "super::when::serialize")]
    pub first: Nanos,
    /// The time of the last denial.
    #[serde(serialize_with = "super::when::serialize")]
    pub last: Nanos,
}

/// A hasher that returns a part of the key: keys are already hashes with a secret seed.
#[derive(Clone, Copy, Debug, Default)]
struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        let half = bytes.first_chunk().map_or(0, |half| u64::from_ne_bytes(*half));
        self.0 ^= half;
    }
}

impl TopKeys {
    /// Counts a denial of `key`. `who` describes the key, and is called only for a key that is not counted yet.
    #[inline(never)] // few requests are denied
    pub fn add(&mut self, key: LimitKey, now: Nanos, who: impl FnOnce() -> String) {
        let floor = self.floor;
        let new = || Entry { who: who(), count: floor, error: floor, first: now, last: now };
        let entry = self.entries.entry(key).or_insert_with(new);
        entry.count += 1;
        entry.last = now;
        if self.entries.len() >= 2 * MAX_KEYS {
            self.forget();
        }
    }

    fn forget(&mut self) {
        let mut counts: Vec<u64> = self.entries.values().map(|entry| entry.count).collect();
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let Some(least) = counts.get(MAX_KEYS).copied() else { return };
        self.floor = self.floor.max(least);
        self.entries.retain(|_, entry| entry.count > least);
    }

    /// The keys with the highest counts, at most `max` of them.
    pub fn first(&self, max: usize) -> Vec<DeniedKey> {
        let denied = |entry: &Entry| DeniedKey {
            who: entry.who.clone(),
            denied: entry.count,
            error: entry.error,
            first: entry.first,
            last: entry.last,
        };
        let mut all: Vec<&Entry> = self.entries.values().collect();
        all.sort_unstable_by(|a, b| b.count.cmp(&a.count).then_with(|| a.who.cmp(&b.who)));
        all.into_iter().take(max).map(denied).collect()
    }

    /// The number of keys; `None` if some were forgotten.
    pub fn keys(&self) -> Option<usize> {
        (self.floor == 0).then_some(self.entries.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(top: &mut TopKeys, key: u128) {
        top.add(LimitKey(key), Nanos::ZERO, || key.to_string());
    }

    #[test]
    fn few_keys_are_counted_exactly() {
        let mut top = TopKeys::default();
        for round in 0..100 {
            for key in 0..=round {
                count(&mut top, key);
            }
        }
        let first: Vec<(String, u64, u64)> =
            top.first(2).into_iter().map(|denied| (denied.who, denied.denied, denied.error)).collect();
        assert_eq!(first, [("0".to_owned(), 100, 0), ("1".to_owned(), 99, 0)]);
        assert_eq!(top.keys(), Some(100));
    }

    #[test]
    fn among_many_keys_counts_are_never_too_low_nor_too_high_by_more_than_their_error() {
        let mut top = TopKeys::default();
        let mut real: HashMap<u128, u64> = HashMap::new();
        let mut random = 1_u64;
        for _ in 0..200_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let wide = u128::from(random >> 33) % 100_000;
            let key = if random >> 63 == 0 { wide } else { wide % 10 };
            *real.entry(key).or_default() += 1;
            count(&mut top, key);
            assert!(top.entries.len() < 2 * MAX_KEYS);
        }
        assert_eq!(top.keys(), None);
        let first = top.first(10);
        for denied in &first {
            let real = real[&denied.who.parse::<u128>().unwrap()];
            assert!((denied.denied - denied.error..=denied.denied).contains(&real), "{denied:?} {real}");
        }
        let names: std::collections::BTreeSet<u8> = first.iter().map(|denied| denied.who.parse().unwrap()).collect();
        assert_eq!(names, (0..10).collect());
    }
}
