//! The cost of metrics: a request that is charged under two limits, and one that is also counted, as the proxy does from
//! its head to its end; and a scrape of few series and of thousands.
//!
//! `cargo bench --bench telemetry`. The difference of the first two, compared with the CPU time of a whole request (`make
//! bench-peers`), is the share of metrics in it.

use std::fmt::Write;
use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput};
use tollgate::charge::{Charge, DecisionSource, Enforcement, RuleRef};
use tollgate::config;
use tollgate::ruleset::matcher::RouteId;
use tollgate::ruleset::upstream::UpstreamId;
use tollgate::ruleset::verdict::Verdict;
use tollgate::ruleset::{PlanId, Ruleset};
use tollgate::store::LocalStore;
use tollgate::store::local::Binding;
use tollgate::telemetry::meters::Meters;
use tollgate::telemetry::{Samples, Telemetry};
use tollgate::units::{LimitKey, Nanos};

const PLANS: usize = 5;

/// A ruleset of routes with two limits each, and parameters for every plan.
fn ruleset(routes: usize, limits: usize) -> Ruleset {
    let mut text = String::from(
        "listeners: [{ address: \"127.0.0.1:1\" }]\nupstreams: { origin: { nodes: [\"127.0.0.1:2\"] } }\n",
    );
    text +=
        "customers: { identify: [{ header: x-api-key }], directory: { file: none.csv }, anonymous: { plan: p0 } }\n";
    let plans: Vec<String> = (0..PLANS).map(|plan| format!("p{plan}")).collect();
    let terms: String = plans.iter().map(|plan| format!("{plan}: {{ rate: 1000000/s, burst: 1000000 }}, ")).collect();
    writeln!(text, "plans: [{}]\nlimits:", plans.join(", ")).expect("memory");
    for limit in 0..limits {
        writeln!(text, "  l{limit}: {{ algorithm: gcra, key: customer, plans: {{ {terms} }} }}").expect("memory");
    }
    text += "routes:\n";
    for route in 0..routes {
        let (one, other) = (route % limits, (route + 1) % limits);
        let limits = format!("limits: [l{one}, l{other}]");
        writeln!(text, "  - {{ name: r{route}, match: {{ path: /{route}/** }}, upstream: origin, {limits} }}")
            .expect("memory");
    }
    config::load(&text, "bench.yaml", &|_| None).expect("a configuration").ruleset
}

struct Subject {
    telemetry: Telemetry,
    meters: Meters,
    ruleset: Arc<Ruleset>,
    store: LocalStore,
    binding: Binding,
    now: Nanos,
}

impl Subject {
    fn new(routes: usize, limits: usize) -> Self {
        let telemetry = Telemetry::new().expect("names are in order");
        let ruleset = Arc::new(ruleset(routes, limits));
        let meters = Meters::new(&telemetry, &ruleset);
        let store = LocalStore::new();
        let binding = store.bind(&tollgate::gateway::active_config::limit_specs(&ruleset));
        telemetry.reload_applied(Nanos::SECOND);
        Self { telemetry, meters, ruleset, store, binding, now: Nanos::SECOND }
    }

    fn charged(&mut self) -> (Vec<Charge>, Verdict) {
        self.now = self.now.saturating_add(Nanos::new(1_000));
        let charge = |limit| Charge::new(limit, RuleRef::Listed(0), LimitKey(7), 1, Enforcement::DEFAULT);
        let mut charges = vec![charge(0), charge(1)];
        let charged = self.store.charge(&self.binding, &mut charges, self.now);
        let verdict = Verdict::new(&self.ruleset, &charges, &charged);
        (charges, verdict)
    }

    /// Counts a request that is admitted and answered, as the gateway does.
    fn counted(&mut self) {
        let (route, plan) = (RouteId(0), Some(PlanId(1)));
        self.meters.route(Some(route)).start();
        let (charges, verdict) = self.charged();
        self.meters.observe_decision(DecisionSource::Local, Nanos::new(900));
        self.meters.observe_verdict(route, |_| plan, &charges, &verdict);
        self.meters.observe_upstream(UpstreamId(0), Nanos::new(700_000));
        self.meters.route(Some(route)).finish(200, Nanos::new(800_000));
        self.meters.route(Some(route)).end();
    }
}

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut subject = Subject::new(1, 2);
    let mut requests = criterion.benchmark_group("a request");
    requests.bench_function("charged", |bencher| bencher.iter(|| black_box(subject.charged())));
    requests.bench_function("charged and counted", |bencher| bencher.iter(|| subject.counted()));
    requests.finish();
    let mut scrapes = criterion.benchmark_group("a scrape");
    for (routes, limits) in [(1, 2), (50, 20)] {
        let subject = Subject::new(routes, limits);
        for route in 0..routes {
            for code in [200, 429, 502] {
                subject.meters.route(Some(RouteId(route))).finish(code, Nanos::SECOND);
            }
        }
        let text = subject.telemetry.render(Samples::default()).expect("metrics");
        let series = text.lines().filter(|line| !line.starts_with('#')).count();
        scrapes.throughput(Throughput::Elements(series as u64));
        scrapes.bench_function(format!("{series} series"), |bencher| {
            bencher.iter(|| subject.telemetry.render(Samples::default()))
        });
    }
    scrapes.finish();
    criterion.final_summary();
}
