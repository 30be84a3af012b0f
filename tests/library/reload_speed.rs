//! The time in which a large configuration comes into force, from its text to the finished parts that the swap installs.
//!
//! `cargo test --release --test library -- --ignored --nocapture reload_speed` prints the times and the CPU times; use an
//! idle machine.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate::config;
use tollgate::gateway::active_config::{ActiveConfig, CompiledConfig};
use tollgate::ruleset::key::KeyHasher;
use tollgate::store::Store;
use tollgate::telemetry::Telemetry;

/// The allocator of the program.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ROUTES: usize = 10_000;
/// The numbers of limits and plans; each limit has a rate and a burst for each plan.
const LIMITS: usize = 100;
const PLANS: usize = 500;

fn text(version: usize) -> String {
    let mut text = String::from(
        "listeners: [{ address: \"127.0.0.1:1\" }]\nupstreams: { o: { nodes: [\"127.0.0.1:2\"] } }\nplans:\n",
    );
    (0..PLANS).for_each(|plan| writeln!(text, "- p{plan}").unwrap());
    text.push_str("customers: { identify: [{ header: x-api-key }], directory: { file: c.csv }, anonymous: { plan: p0 } }\nlimits:\n");
    for limit in 0..LIMITS {
        writeln!(text, "  l{limit}:\n    key: customer\n    algorithm: gcra\n    plans:").unwrap();
        for plan in 0..PLANS {
            writeln!(text, "      p{plan}: {{rate: {}/s, burst: {}}}", plan + 1, plan + limit + version + 1).unwrap();
        }
    }
    text.push_str("routes:\n");
    for route in 0..ROUTES {
        let (path, limit) = (route % 100, route % LIMITS);
        writeln!(text, "- {{name: r{route}, match: {{path: /a{path}/b{route}/*}}, upstream: o, limits: [l{limit}]}}")
            .unwrap();
    }
    text
}

#[expect(clippy::disallowed_methods, reason = "a figure of real time")]
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let began = Instant::now();
    let done = work();
    (done, began.elapsed())
}

/// The CPU time of this process so far, in steps of 10 ms.
fn processor_time() -> Duration {
    // after the name, which may contain spaces, the 12th and 13th words are utime and stime
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, rest) = stat.rsplit_once(')').unwrap();
    Duration::from_millis(rest.split_whitespace().skip(11).take(2).map(|word| 10 * word.parse::<u64>().unwrap()).sum())
}

#[test]
#[ignore = "its figures mean something in a release build on an idle machine only"]
#[expect(clippy::print_stderr, reason = "figures for whoever runs it")]
fn ten_thousand_routes_and_a_hundred_thousand_parameters_reload_in_half_a_second() {
    let (store, telemetry, hasher) = (Store::default(), Telemetry::new().unwrap(), KeyHasher::stable());
    let mut before: Option<ActiveConfig> = None;
    let mut fastest = (Duration::MAX, Duration::MAX);
    for version in 0..5 {
        let text = text(version);
        let taken = processor_time();
        let (loaded, reading) = timed(|| config::load(&text, "large.yaml", &|_| None).unwrap());
        let rules = CompiledConfig {
            ruleset: loaded.ruleset,
            directory: Arc::default(),
            groups: Arc::default(),
            tokens: None,
            listeners: Vec::new(),
            upstream_tls: Vec::new(),
            hash: String::new(),
            directory_hash: None,
        };
        let (live, building) = timed(|| {
            let pools = rules.pools(before.as_ref());
            ActiveConfig::new((rules, pools), before.as_ref(), &store, hasher.clone(), &telemetry)
        });
        let taken = processor_time() - taken;
        let (_, dropping) = timed(|| drop(before.replace(live)));
        eprintln!(
            "{:.1} MB: reading {reading:?}, building {building:?}, together {taken:?} of the processor; dropping the one \
             before {dropping:?}",
            text.len() as f64 / 1e6
        );
        fastest = (fastest.0.min(reading + building), fastest.1.min(taken));
    }
    let (passed, taken) = fastest;
    eprintln!("{ROUTES} routes, {} parameters: {passed:?}, {taken:?} of the processor", 2 * LIMITS * PLANS);
    assert!(passed < Duration::from_millis(500), "{passed:?}");
}
