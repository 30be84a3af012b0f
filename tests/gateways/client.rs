//! The clients of a gateway, which send charges of every kind.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tollgate::algorithm::{AlgorithmName, Completion, Rule, Value};
use tollgate::charge::{Charge, DecisionSource, Enforcement, Refund};
use tollgate::units::{Cost, LimitKey, Nanos, Rate};

use crate::node::{MANY, Node, gcra, in_an_hour, one, rule};
use crate::oracle::{Bucket, Ledger};

/// The positions of the limits whose tokens do not refill during a history.
pub(crate) const SPENT: [AlgorithmName; 7] = [
    AlgorithmName::Gcra,
    AlgorithmName::TokenBucket,
    AlgorithmName::FixedWindow,
    AlgorithmName::SlidingWindow,
    AlgorithmName::SlidingLog,
    AlgorithmName::SlidingCounters,
    AlgorithmName::QuotaReset,
];
/// The position of a limit that refills [`RATE`] tokens per second.
pub(crate) const FAST: usize = 7;
/// The position of a limit that is never spent, and that does not refill during a history.
pub(crate) const WIDE: usize = 8;
pub(crate) const HELD: usize = 9;
pub(crate) const RATE: u64 = 5;
/// The number of keys of each limit.
pub(crate) const KEYS: u64 = 4;
/// The highest cost of a request in tokens.
pub(crate) const MAX_COST: Cost = 2;
/// The time for which clients press one key.
const KEY_TIME: Nanos = Nanos::new(1_300_000_000);
/// The rules of all limits.
pub(crate) fn rules(burst: u64, slots: u64) -> Vec<Rule> {
    let mut limits: Vec<_> = SPENT
        .into_iter()
        .map(|name| match name {
            AlgorithmName::Gcra | AlgorithmName::TokenBucket => {
                let rate = Rate::new(1, Nanos::from_secs(36_000)).unwrap();
                rule(name, &[("rate", Value::Rate(rate)), ("burst", Value::Whole(burst))])
            }
            _ => in_an_hour(name, burst),
        })
        .collect();
    let rate = Rate::new(RATE, Nanos::SECOND).unwrap();
    limits.push(rule(AlgorithmName::Gcra, &[("rate", Value::Rate(rate)), ("burst", Value::Whole(burst))]));
    limits.push(gcra(MANY));
    limits.push(rule(AlgorithmName::Concurrency, &[("limit", Value::Whole(slots))]));
    limits
}

/// The key of a bucket: no two limits have a key in common, and keys with the same number have the same owner.
pub(crate) fn key((limit, number): Bucket) -> LimitKey {
    let spread = |number: u64| (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let fingerprint = spread(number) >> 48 << 48 | spread(number << 8 | limit as u64) >> 16;
    LimitKey(u128::from(fingerprint.rotate_left(17)) << 64 | u128::from(fingerprint))
}

fn charge(bucket: Bucket, cost: Cost) -> Charge {
    Charge { cost, ..one(bucket.0, key(bucket)) }
}

/// A client of one gateway.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) gateway: usize,
    pub(crate) node: Arc<Node>,
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    /// The positions of further limits after those of [`rules`]; each request asks them for one token.
    pub(crate) extra_limits: Range<usize>,
}

impl Client {
    /// Sends requests of all kinds until `over` is set and all requests have ended.
    pub(crate) async fn run(self, seed: u64, over: Arc<AtomicBool>) {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut requests = JoinSet::new();
        while !over.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(random.random_range(1..60))).await;
            let seed = random.random();
            requests.spawn(self.clone().request(seed));
            while requests.try_join_next().is_some() {}
        }
        requests.join_all().await;
    }

    /// Asks for a token of one wide key every few milliseconds until `over` is set.
    pub(crate) async fn hammer(self, number: u64, over: Arc<AtomicBool>) {
        let mut requests = JoinSet::new();
        while !over.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(16)).await;
            let client = self.clone();
            requests.spawn(async move { client.admits(&[((WIDE, number), 1)]).await });
            while requests.try_join_next().is_some() {}
        }
        requests.join_all().await;
    }

    /// Asks for tokens of all limits until `over` is set. It asks for tokens of `most` far faster than they refill: for
    /// some time under one key, then under the next one.
    pub(crate) async fn press(self, most: usize, seed: u64, over: Arc<AtomicBool>) {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut requests = JoinSet::new();
        while !over.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(random.random_range(1..20))).await;
            let any = random.random_range(0..SPENT.len() + 1 + self.extra_limits.len());
            let any = if any > FAST { self.extra_limits.start + any - FAST - 1 } else { any };
            let (limit, client) = (if random.random() { most } else { any }, self.clone());
            let number = self.node.clock.now().get() / KEY_TIME.get() % KEYS;
            requests.spawn(async move { client.admits(&[((limit, number), 1)]).await });
            while requests.try_join_next().is_some() {}
        }
        requests.join_all().await;
    }

    async fn request(self, seed: u64) {
        let mut random = SmallRng::seed_from_u64(seed);
        let spent = random.random_range(0..SPENT.len());
        let (number, other) = (random.random_range(0..KEYS), random.random_range(0..KEYS));
        let cost = random.random_range(1..=MAX_COST);
        match random.random_range(0..12 + self.extra_limits.len()) {
            0..4 => self.admits(&[((spent, number), cost)]).await,
            // all or none, with two owners
            4 => self.admits(&[((spent, number), cost), ((FAST, other), 1)]).await,
            5 => self.admits(&[((FAST, number), cost)]).await,
            6 => self.admits(&[((WIDE, number), cost)]).await,
            7 => {
                self.use_wide(number, cost);
                self.node.store.debit(&self.node.binding, &[charge((WIDE, number), cost)], self.node.clock.now());
            }
            8 => self.is_denied_and_counts(number, cost).await,
            9 => {
                let wait = Duration::from_millis(random.random_range(0..40));
                self.takes_back(([spent, WIDE][random.random_range(0..2)], number), cost, wait).await;
            }
            10..12 => self.runs(number, Duration::from_millis(random.random_range(1..1500))).await,
            more => self.admits(&[((self.extra_limits.start + more - 12, number), 1)]).await,
        }
    }

    fn use_wide(&self, number: u64, cost: Cost) {
        let mut ledger = self.ledger.lock();
        ledger.touched.insert((WIDE, number));
        *ledger.used.entry(number).or_default() += cost;
    }

    /// Whether all charges were admitted.
    async fn charge(&self, batch: &mut [Charge]) -> bool {
        let receipt = self.node.charge(batch).await;
        for (Charge { key, cost, limit, .. }, charged) in batch.iter().zip(&receipt.charged) {
            let (admitted, left) = (charged.decision.is_admitted(), charged.headroom.remaining);
            let number = (0..KEYS).find(|number| self::key((*limit, *number)) == *key);
            tracing::info!(limit, number, cost, admitted, left, source = ?receipt.source, "charged");
        }
        self.ledger.lock().alone += u64::from(receipt.source == DecisionSource::Fallback);
        receipt.charged.iter().all(|charged| charged.decision.is_admitted())
    }

    async fn admits(&self, wanted: &[(Bucket, Cost)]) {
        let asked = self.node.clock.now();
        self.ledger.lock().touched.extend(wanted.iter().map(|(bucket, _)| *bucket));
        let mut batch: Vec<Charge> = wanted.iter().map(|(bucket, cost)| charge(*bucket, *cost)).collect();
        if self.charge(&mut batch).await {
            let mut ledger = self.ledger.lock();
            for (bucket, cost) in wanted {
                ledger.admit(*bucket, asked, self.node.clock.now(), *cost);
                if bucket.0 == WIDE {
                    *ledger.used.entry(bucket.1).or_default() += cost;
                }
            }
        }
    }

    async fn is_denied_and_counts(&self, number: u64, cost: Cost) {
        self.use_wide(number, cost);
        self.ledger.lock().touched.insert((FAST, number));
        let enforcement = Enforcement { counts_denied: true, ..Enforcement::DEFAULT };
        let never = charge((FAST, number), MANY);
        assert!(!self.charge(&mut [Charge { enforcement, ..charge((WIDE, number), cost) }, never]).await);
    }

    async fn takes_back(&self, bucket: Bucket, cost: Cost, after: Duration) {
        self.ledger.lock().touched.insert(bucket);
        let (mut batch, now) = ([charge(bucket, cost)], self.node.clock.now());
        let receipt = self.node.store.charge(&self.node.binding, &mut batch, now).await;
        if receipt.charged[0].decision.is_admitted() {
            sleep(after).await;
            let [charge] = batch;
            self.node.store.refund(
                &self.node.binding,
                &[Refund::of(charge, receipt.charged[0].headroom, now)],
                self.node.clock.now(),
            );
        }
    }

    async fn runs(&self, number: u64, time: Duration) {
        self.ledger.lock().touched.insert((HELD, number));
        let mut batch = [charge((HELD, number), 1)];
        if self.charge(&mut batch).await {
            self.ledger.lock().begin(number, self.gateway);
            sleep(time).await;
            self.ledger.lock().complete(number, self.gateway);
            self.node.store.complete(&self.node.binding, &batch, Completion::UNMEASURED, self.node.clock.now());
        }
    }
}
