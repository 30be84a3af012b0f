//! One gateway's store, which divides keys with others.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tollgate::algorithm::{AlgorithmName, Arguments, Rule, Value};
use tollgate::charge::{Charge, Enforcement, Mode, RuleRef};
use tollgate::clock::{Clock, SystemClock};
use tollgate::cluster::members::Founding;
use tollgate::cluster::ring::Member;
use tollgate::cluster::settings::{Peers, Settings};
use tollgate::cluster::{Cluster, OsPlatform, Secret};
use tollgate::store::{Binding, LimitSpec, LocalStore, Receipt, Store};
use tollgate::units::{LimitKey, Nanos, Rate};

/// The limits, by position.
pub(crate) const BURST: usize = 0;
pub(crate) const SLOTS: usize = 1;
pub(crate) const LOG: usize = 2;
pub(crate) const SMALL: usize = 3;
pub(crate) const HELD: usize = 4;

/// What the limit `HELD` lets run at once.
pub(crate) const MANY: u64 = 1 << 40;

/// One gateway's store.
pub(crate) struct Node {
    pub(crate) store: Arc<Store>,
    pub(crate) binding: Binding,
    pub(crate) clock: Arc<SystemClock>,
    asked: Arc<AtomicUsize>,
    late: Arc<AtomicUsize>,
}

fn rule(name: AlgorithmName, arguments: &[(&'static str, Value)]) -> Rule {
    let mut all = Arguments::default();
    arguments.iter().for_each(|(name, value)| all.set(name, value.clone()));
    name.build(&all).unwrap()
}

pub(crate) fn gcra(burst: u64) -> Rule {
    let rate = Rate::new(1, Nanos::from_secs(3600)).unwrap();
    rule(AlgorithmName::Gcra, &[("rate", Value::Rate(rate)), ("burst", Value::Whole(burst))])
}

fn limit<'a>(name: &'a str, rules: &'a [Rule], max_keys: u64) -> LimitSpec<'a> {
    LimitSpec { mode: Mode::Sticky, rules, max_keys, ..LimitSpec::bare(name, rules[0].name(), 1) }
}

impl Node {
    pub(crate) fn new(own: SocketAddr, members: &[SocketAddr], burst: u64, timeout: Nanos) -> Self {
        let clock = Arc::new(SystemClock::new());
        let asked = Arc::new(AtomicUsize::new(0));
        let settings = Settings {
            own,
            listen: own,
            peers: Peers::Listed(members.iter().map(|address| Member { address: *address, weight: 1 }).collect()),
            secret: Secret::of(b"a secret of two stores"),
            founding: Founding::default(),
            timeout,
        };
        let count = Arc::clone(&asked);
        let late = Arc::new(AtomicUsize::new(0));
        let count_late = Arc::clone(&late);
        let told = Box::new(move |_, _, took: Nanos| {
            count.fetch_add(1, Ordering::Relaxed);
            count_late.fetch_add(usize::from(took.get() > timeout.get() / 8), Ordering::Relaxed);
        });
        let cluster = Cluster::new(&settings, 1, Arc::clone(&clock) as Arc<dyn Clock>, Arc::new(OsPlatform), told);
        let store = Arc::new(Store::new(LocalStore::new(), None, Some(Arc::new(cluster))));
        let log = [("limit", Value::Whole(2)), ("window", Value::Duration(Nanos::from_secs(3600)))];
        let rules = [
            [gcra(burst)],
            [rule(AlgorithmName::Concurrency, &[("limit", Value::Whole(1))])],
            [rule(AlgorithmName::SlidingLog, &log)],
            [gcra(burst)],
            [rule(AlgorithmName::Concurrency, &[("limit", Value::Whole(MANY))])],
        ];
        let [wide, slots, log, small, many] = rules.each_ref();
        let limits = [
            limit("wide", wide, 1000),
            limit("slots", slots, 1000),
            limit("log", log, 1000),
            limit("small", small, 1),
            limit("many", many, 1000),
        ];
        let binding = store.bind(&limits);
        Self { store, binding, clock, asked, late }
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        self.store.cluster().unwrap()
    }

    pub(crate) async fn charge(&self, batch: &mut [Charge]) -> Receipt {
        self.store.charge(&self.binding, batch, self.clock.now()).await
    }

    pub(crate) async fn admits(&self, limit: usize, key: LimitKey) -> bool {
        self.charge(&mut [one(limit, key)]).await.charged[0].decision.is_admitted()
    }

    /// How often a key is admitted one after the other.
    pub(crate) async fn admitted(&self, limit: usize, key: LimitKey) -> usize {
        let mut count = 0;
        while self.admits(limit, key).await {
            count += 1;
        }
        count
    }

    /// How many questions took longer than gateways may take while a key moves.
    pub(crate) fn late(&self) -> usize {
        self.late.load(Ordering::Relaxed)
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

pub(crate) fn one(limit: usize, key: LimitKey) -> Charge {
    Charge::new(limit, RuleRef::Listed(0), key, 1, Enforcement::USUAL)
}

pub(crate) async fn wait_for<F: Future<Output = bool>>(what: &str, holds: impl Fn() -> F) {
    let mut looks = tokio::time::interval(Duration::from_millis(2));
    let waited = async {
        while !holds().await {
            looks.tick().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waited).await.unwrap_or_else(|_| panic!("waited in vain for {what}"));
}

/// Begins `work`, and drops it as soon as it waits for anything.
pub(crate) async fn begun(work: impl Future) {
    tokio::select! {
        biased;
        _ = work => panic!("nothing to wait for"),
        () = std::future::ready(()) => {}
    }
}

impl Node {
    /// What is left of a key.
    pub(crate) async fn left(&self, limit: usize, key: LimitKey) -> u64 {
        let asks = Charge { enforcement: Enforcement::ASKS, ..one(limit, key) };
        self.charge(&mut [asks]).await.charged[0].headroom.remaining.unwrap()
    }

    /// How many keys of a limit it keeps.
    pub(crate) fn keys(&self, limit: usize) -> u64 {
        self.store.usage(&self.binding)[limit].keys
    }
}
