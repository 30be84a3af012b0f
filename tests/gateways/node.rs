//! The store of one gateway that divides keys with others.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tollgate::algorithm::{AlgorithmName, Arguments, Rule, Value};
use tollgate::charge::{Charge, Enforcement, Mode, RuleRef, Sharing};
use tollgate::clock::Clock;
use tollgate::cluster::members::Founding;
use tollgate::cluster::ring::Member;
use tollgate::cluster::settings::{ClusterSettings, Peers};
use tollgate::cluster::{Cluster, Outcome, Platform, Secret};
use tollgate::store::{Binding, LimitSpec, LocalStore, Receipt, SharedStore, Store};
use tollgate::units::{LimitKey, Nanos, Rate};

/// The limits of [`Setup::usual`], by position.
pub(crate) const BURST: usize = 0;
pub(crate) const SLOTS: usize = 1;
pub(crate) const LOG: usize = 2;
pub(crate) const SMALL: usize = 3;
pub(crate) const HELD: usize = 4;

/// The number of slots of the limit `HELD`.
pub(crate) const MANY: u64 = 1 << 40;

/// The store of one gateway.
pub(crate) struct Node {
    pub(crate) store: Arc<Store>,
    pub(crate) binding: Binding,
    pub(crate) clock: Arc<dyn Clock>,
    asked: Arc<AtomicUsize>,
}

/// The settings that all gateways share.
pub(crate) struct Setup {
    pub(crate) timeout: Nanos,
    pub(crate) founding: Founding,
    /// Each limit's rule, and the number of keys that it may keep.
    pub(crate) limits: Vec<(Rule, u64)>,
    pub(crate) states: fn() -> LocalStore,
    /// The number of calls without an answer in time.
    pub(crate) unanswered: AtomicUsize,
}

impl Setup {
    pub(crate) fn new(timeout: Nanos, min_members: usize, limits: Vec<(Rule, u64)>) -> Self {
        let founding = Founding { min_members, ..Founding::default() };
        Self { timeout, founding, limits, states: LocalStore::new, unanswered: AtomicUsize::new(0) }
    }

    pub(crate) fn usual(burst: u64, timeout: Nanos) -> Self {
        let limits = vec![
            (gcra(burst), 1000),
            (rule(AlgorithmName::Concurrency, &[("limit", Value::Whole(1))]), 1000),
            (in_an_hour(AlgorithmName::SlidingLog, 2), 1000),
            (gcra(burst), 1),
            (rule(AlgorithmName::Concurrency, &[("limit", Value::Whole(MANY))]), 1000),
        ];
        Self::new(timeout, 1, limits)
    }
}

pub(crate) fn rule(name: AlgorithmName, arguments: &[(&'static str, Value)]) -> Rule {
    let mut all = Arguments::default();
    arguments.iter().for_each(|(name, value)| all.set(name, value.clone()));
    name.build(&all).unwrap().canonical()
}

pub(crate) fn gcra(burst: u64) -> Rule {
    let rate = Rate::new(1, Nanos::from_secs(3600)).unwrap();
    rule(AlgorithmName::Gcra, &[("rate", Value::Rate(rate)), ("burst", Value::Whole(burst))])
}

/// A rule with this limit in every hour.
pub(crate) fn in_an_hour(name: AlgorithmName, limit: u64) -> Rule {
    rule(name, &[("limit", Value::Whole(limit)), ("window", Value::Duration(Nanos::from_secs(3600)))])
}

impl Node {
    pub(crate) fn new(
        own: SocketAddr,
        members: &[SocketAddr],
        setup: &Arc<Setup>,
        clock: Arc<dyn Clock>,
        platform: Arc<dyn Platform>,
    ) -> Self {
        let asked = Arc::new(AtomicUsize::new(0));
        let settings = ClusterSettings {
            own,
            listen: own,
            peers: Peers::Listed(members.iter().map(|address| Member { address: *address, weight: 1 }).collect()),
            secret: Secret::of(b"a secret of two stores"),
            founding: setup.founding,
            timeout: setup.timeout,
        };
        let (count, common) = (Arc::clone(&asked), Arc::clone(setup));
        let told = Box::new(move |_, outcome, _| {
            count.fetch_add(1, Ordering::Relaxed);
            common
                .unanswered
                .fetch_add(usize::from(!matches!(outcome, Outcome::Ok | Outcome::NotOwner(_))), Ordering::Relaxed);
        });
        let cluster = Cluster::new(&settings, 1, Arc::clone(&clock), platform, told);
        let store = Arc::new(Store::new((setup.states)(), None, Some(cluster)));
        let named = setup.limits.iter().enumerate().map(|(number, limit)| (format!("limit {number}"), limit));
        let named: Vec<_> = named.collect();
        let limits = named.iter().map(|(name, (rule, max_keys))| LimitSpec {
            mode: Mode::Sticky,
            rules: std::slice::from_ref(rule),
            max_keys: *max_keys,
            ..LimitSpec::bare(name, rule.name(), 1)
        });
        let binding = store.bind(&limits.collect::<Vec<_>>());
        Self { store, binding, clock, asked }
    }

    /// A gateway whose limits are kept in Redis.
    pub(crate) fn with_redis(shared: Arc<SharedStore>, limits: &[(Rule, Sharing)], clock: Arc<dyn Clock>) -> Self {
        let store = Arc::new(Store::new(LocalStore::for_one_thread(), Some(shared), None));
        let named = limits.iter().enumerate().map(|(number, limit)| (format!("limit {number}"), limit));
        let named: Vec<_> = named.collect();
        let limits = named.iter().map(|(name, (rule, sharing))| LimitSpec {
            mode: Mode::Shared(*sharing),
            rules: std::slice::from_ref(rule),
            max_keys: 1000,
            may_refund: true,
            ..LimitSpec::bare(name, rule.name(), 1)
        });
        let binding = store.bind(&limits.collect::<Vec<_>>());
        Self { store, binding, clock, asked: Arc::default() }
    }

    pub(crate) fn cluster(&self) -> &Arc<Cluster> {
        self.store.cluster().unwrap()
    }

    pub(crate) async fn charge(&self, batch: &mut [Charge]) -> Receipt {
        self.store.charge(&self.binding, batch, self.clock.now()).await
    }

    pub(crate) async fn admits(&self, limit: usize, key: LimitKey) -> bool {
        self.charge(&mut [one(limit, key)]).await.charged[0].decision.is_admitted()
    }

    /// The number of times that a key is admitted until the first denial.
    pub(crate) async fn admitted(&self, limit: usize, key: LimitKey) -> usize {
        let mut count = 0;
        while self.admits(limit, key).await {
            count += 1;
        }
        count
    }

    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

pub(crate) fn one(limit: usize, key: LimitKey) -> Charge {
    Charge::new(limit, RuleRef::Listed(0), key, 1, Enforcement::DEFAULT)
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

/// Begins `work`, and cancels it as soon as it waits for anything.
pub(crate) async fn begun(work: impl Future) {
    tokio::select! {
        biased;
        _ = work => panic!("nothing to wait for"),
        () = std::future::ready(()) => {}
    }
}

impl Node {
    /// The remaining tokens of a key.
    pub(crate) async fn left(&self, limit: usize, key: LimitKey) -> u64 {
        let asks = Charge { enforcement: Enforcement::DRY_RUN, ..one(limit, key) };
        self.charge(&mut [asks]).await.charged[0].headroom.remaining.unwrap()
    }

    /// The number of keys of a limit that this gateway keeps.
    pub(crate) fn keys(&self, limit: usize) -> u64 {
        self.store.usage(&self.binding)[limit].keys
    }
}
