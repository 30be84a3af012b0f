//! The cost of a charge in a request for each way to share a limit, compared with a sticky limit: the time of
//! `Store::charge`, on one thread as in the gateway, with its own redis-server.
//!
//! `cargo bench --bench consistency` prints the median, the 99th percentile, and the number of calls to Redis of each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Connection;
use tokio::task::{JoinSet, yield_now};
use tollgate::algorithm::{AlgorithmName, Arguments, Rule, Value};
use tollgate::charge::{Charge, Consistency, Enforcement, Mode, RuleRef, Sharing};
use tollgate::clock::{Clock, SystemClock};
use tollgate::redis_client::{Credentials, Servers};
use tollgate::store::shared::StoreSettings;
use tollgate::store::{Binding, LimitSpec, LocalStore, SharedStore, Store};
use tollgate::units::{LimitKey, Nanos, Rate};

#[path = "../tests/e2e/support/folder.rs"]
#[allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "made for tests")]
mod folder;
#[path = "../tests/e2e/support/ports.rs"]
#[allow(unreachable_pub, clippy::unwrap_used, reason = "made for tests")]
mod ports;
#[path = "../tests/library/redis_link/server.rs"]
#[allow(dead_code, clippy::disallowed_methods, clippy::unwrap_used, reason = "made for tests")]
mod server;

/// The positions of the limits.
const STICKY: usize = 0;
const LEASED: usize = 1;
const EXACT: usize = 2;
const SPENT: usize = 3;

/// The interval between requests of the hot key, and their number.
const EVERY: Duration = Duration::from_micros(50);
const REQUESTS: usize = 20_000;

struct Subject {
    store: Store,
    binding: Binding,
    clock: Arc<SystemClock>,
}

impl Subject {
    fn new(server: &server::Server) -> Self {
        let clock = Arc::new(SystemClock::new());
        let settings = StoreSettings {
            servers: Servers::at("127.0.0.1", server.port),
            credentials: Credentials::default(),
            prefix: "bench:".to_owned(),
            timeout: Nanos::SECOND,
            sync_every: Nanos::SECOND,
            nodes: Some(1),
            key_secret: None,
        };
        let told = Arc::clone(&clock) as Arc<dyn Clock>;
        let shared = SharedStore::new(settings, 1, None, told, Box::new(|_| {}));
        let store = Store::new(LocalStore::new(), Some(shared), None);
        let (wide, narrow) = (gcra(1_000_000, Nanos::SECOND, 1_000_000), gcra(1, Nanos::from_secs(3600), 1));
        let shared = |consistency| Mode::Shared(Sharing { consistency, ..Sharing::default() });
        let leased = shared(Consistency::Leased { strict: None });
        let exact = shared(Consistency::Exact);
        let limits = [
            limit("sticky", Mode::Sticky, &wide),
            limit("leased", leased, &wide),
            limit("exact", exact, &wide),
            limit("spent", exact, &narrow),
        ];
        Self { binding: store.bind(&limits), store, clock }
    }

    /// Measures one charge.
    #[expect(clippy::disallowed_methods, reason = "a stopwatch")]
    async fn time(&self, limit: usize, admits: Option<bool>) -> Duration {
        let mut batch = [Charge::new(limit, RuleRef::Listed(0), LimitKey(limit as u128), 1, Enforcement::DEFAULT)];
        let began = Instant::now();
        let receipt = self.store.charge(&self.binding, &mut batch, self.clock.now()).await;
        let took = began.elapsed();
        let admitted = receipt.charged[0].decision.is_admitted();
        assert!(admits.is_none_or(|admits| admits == admitted), "{receipt:?}");
        took
    }

    /// Charges one request after the other with a pause, in which the background work that they start can run.
    #[expect(clippy::disallowed_methods, reason = "a stopwatch")]
    async fn one_by_one(&self, limit: usize, admits: bool) -> Vec<Duration> {
        let mut times = Vec::with_capacity(REQUESTS);
        for _ in 0..REQUESTS {
            let next = Instant::now() + EVERY;
            times.push(self.time(limit, Some(admits)).await);
            while Instant::now() < next {
                yield_now().await;
            }
        }
        times
    }
}

fn gcra(tokens: u64, period: Nanos, burst: u64) -> [Rule; 1] {
    let mut arguments = Arguments::default();
    arguments.set("rate", Value::Rate(Rate::new(tokens, period).expect("not zero")));
    arguments.set("burst", Value::Whole(burst));
    [AlgorithmName::Gcra.build(&arguments).expect("sensible")]
}

const fn limit<'a>(name: &'a str, mode: Mode, rules: &'a [Rule]) -> LimitSpec<'a> {
    LimitSpec {
        name,
        algorithm: AlgorithmName::Gcra,
        mode,
        key_kind: 0,
        is_reset: false,
        rules,
        max_keys: u64::MAX,
        may_refund: false,
    }
}

/// Prints the figures of the charges since the last report.
#[expect(clippy::print_stdout, reason = "a report")]
fn report(what: &str, redis: &mut Connection, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e6;
    let stats: String = redis::cmd("INFO").arg("commandstats").query(redis).expect("an answer");
    redis::cmd("CONFIG").arg("RESETSTAT").exec(redis).expect("an answer");
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    let calls = calls.and_then(|rest| rest.split(',').next()).unwrap_or("0");
    println!("{what:<20} p50 {:>8.2} us   p99 {:>8.2} us   {calls} calls for {} requests", at(50), at(99), times.len());
}

fn main() {
    let server = server::Server::start();
    let mut redis = server.connect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let subject = Arc::new(Subject::new(&server));
        // open the connections, and spend the limit of the spent key
        for limit in [STICKY, LEASED, EXACT, SPENT] {
            subject.time(limit, Some(true)).await;
        }
        redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut redis).expect("an answer");
        for _ in 0..2 {
            for (what, limit, admits) in
                [("sticky", STICKY, true), ("leased", LEASED, true), ("exact", EXACT, true), ("denied", SPENT, false)]
            {
                report(what, &mut redis, subject.one_by_one(limit, admits).await);
            }
            let mut tasks = JoinSet::new();
            for _ in 0..64 {
                let subject = Arc::clone(&subject);
                tasks.spawn(async move {
                    let mut times = Vec::new();
                    for _ in 0..REQUESTS / 64 {
                        times.push(subject.time(EXACT, None).await);
                    }
                    times
                });
            }
            report("exact, 64 at once", &mut redis, tasks.join_all().await.concat());
        }
    });
}
