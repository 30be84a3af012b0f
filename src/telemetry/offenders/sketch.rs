//! Space-Saving (Metwally, Agrawal, El Abbadi: Efficient computation of frequent and top-k elements in data streams, 2005).
//!
//! With m counters and n events: a key's counter is never below its true number, and above it by its error at most; no
//! error is more than n/m; every key with more than n/m events has a counter. A key without a counter takes over the
//! lowest counter, with its number. Counters are few, so a linear search finds them.

/// The most frequent keys of a stream, each with a name `N`.
#[derive(Clone, Debug)]
pub struct Sketch<N> {
    /// The keys and numbers of the counters have vectors of their own, because `add` searches them.
    keys: Vec<u128>,
    counts: Vec<u64>,
    rest: Vec<(N, u64)>,
    max_keys: usize,
    events: u64,
}

/// A key and its count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counter<'a, N> {
    /// The key.
    pub key: u128,
    /// Its name.
    pub name: &'a N,
    /// The number of its events, at most.
    pub count: u64,
    /// By how much `count` may be too high.
    pub error: u64,
}

impl<N> Sketch<N> {
    /// A sketch with at most `max_keys` counters, which must be at least 1.
    pub const fn new(max_keys: usize) -> Self {
        Self { keys: Vec::new(), counts: Vec::new(), rest: Vec::new(), max_keys, events: 0 }
    }

    /// Counts an event of `key`; calls `name` only if the key has no counter.
    pub fn add(&mut self, key: u128, name: impl FnOnce() -> N) {
        self.events = self.events.saturating_add(1);
        if let Some(position) = self.keys.iter().position(|known| *known == key) {
            self.counts[position] = self.counts[position].saturating_add(1);
        } else if self.keys.len() < self.max_keys {
            self.keys.push(key);
            self.counts.push(1);
            self.rest.push((name(), 0));
        } else if let Some((position, least)) = self.least() {
            self.keys[position] = key;
            self.counts[position] = least.saturating_add(1);
            self.rest[position] = (name(), least);
        }
    }

    /// The number of all events.
    pub const fn events(&self) -> u64 {
        self.events
    }

    /// The most events that a key without a counter may have had.
    pub fn floor(&self) -> u64 {
        if self.keys.len() < self.max_keys { 0 } else { self.least().map_or(0, |(_, least)| least) }
    }

    /// The number of events of `key`, at most, and by how much it may be too high. A key without a counter may have had as many
    /// events as the one with the lowest count.
    pub fn count(&self, key: u128) -> (u64, u64) {
        match self.keys.iter().position(|known| *known == key) {
            Some(position) => (self.counts[position], self.rest[position].1),
            None => (self.floor(), self.floor()),
        }
    }

    /// The counters, in no order.
    pub fn counters(&self) -> impl Iterator<Item = Counter<'_, N>> {
        let counted = self.keys.iter().zip(&self.counts).zip(&self.rest);
        counted.map(|((key, count), (name, error))| Counter { key: *key, name, count: *count, error: *error })
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.keys.clear();
        self.counts.clear();
        self.rest.clear();
        self.events = 0;
    }

    fn least(&self) -> Option<(usize, u64)> {
        self.counts.iter().copied().enumerate().min_by_key(|(_, count)| *count)
    }
}
