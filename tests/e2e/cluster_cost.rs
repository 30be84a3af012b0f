//! Measurements: the cost of a key that another gateway owns, and the effect of one hot key on the other keys.
//!
//! `cargo test --release --test e2e -- --ignored --nocapture cluster_cost` prints the figures.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::cluster::{Nodes, wait_for_members};
use crate::support::{Client, Gateway, Origin, SetOnDrop, now, wait_until};

/// The duration of each measurement, and the number of clients.
const PART: Duration = Duration::from_secs(3);
const CLIENTS: usize = 4;
const WIDE: &str = "algorithm: gcra, rate: 1000000000/s, burst: 1000000000";

/// The durations of requests while `rest` runs. Each client sends one request after the other to the gateways in turn,
/// under the keys that `key` names.
fn times(
    gateways: &[&Gateway],
    clients: usize,
    key: impl Fn(usize, usize) -> String + Sync,
    rest: impl FnOnce(),
) -> Vec<Duration> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (over, key) = (&over, &key);
        let ask = move |number: usize, mut client: Client| {
            let mut times = Vec::new();
            while !over.load(Ordering::Relaxed) {
                let key = key(number, times.len());
                let began = now();
                assert_eq!(client.round_trip("GET", "/", &[("x-key", &key)]).status, 200);
                times.push(now() - began);
            }
            times
        };
        let asking: Vec<_> = (0..clients)
            .map(|number| {
                let client = gateways[number % gateways.len()].client();
                scope.spawn(move || ask(number, client))
            })
            .collect();
        let ends = SetOnDrop(over);
        rest();
        drop(ends);
        asking.into_iter().flat_map(|client| client.join().unwrap()).collect()
    })
}

fn part() {
    let end = now() + PART;
    wait_until("the end of the part", || now() >= end);
}

fn cpu_seconds(gateways: &[&Gateway]) -> f64 {
    gateways.iter().filter_map(|gateway| gateway.metrics().value("process_cpu_seconds_total", &[])).sum()
}

fn quantile(times: &mut [Duration], share: usize) -> Duration {
    times.sort_unstable();
    times[(times.len() * share / 1000).min(times.len() - 1)]
}

/// One of many keys, so that the load is spread over them.
fn spread(number: usize, turn: usize) -> String {
    format!("{number}-{}", turn % 1000)
}

#[expect(clippy::print_stderr, reason = "figures for whoever runs it")]
fn measure(name: &str, gateways: &[&Gateway]) {
    drop(times(gateways, CLIENTS, spread, part));
    // the kernel counts CPU time in hundredths of a second
    let before = cpu_seconds(gateways);
    let mut times = times(gateways, CLIENTS, spread, part);
    let cpu = (cpu_seconds(gateways) - before) * 1e6 / times.len() as f64;
    let rate = times.len() as f64 / PART.as_secs_f64();
    let [p50, p99] = [500, 990].map(|share| quantile(&mut times, share));
    eprintln!("{name}: {rate:.0} requests/s, {cpu:.0} us of CPU each, p50 {p50:?}, p99 {p99:?}");
}

#[test]
#[ignore = "its figures mean something in a release build on an idle machine only"]
fn cluster_cost_of_a_hop() {
    let origin = Origin::start();
    let single =
        Gateway::start(&crate::support::gateway::limited(&origin, &format!("{{ key: {{ header: x-key }}, {WIDE} }}")));
    let gateways = Nodes::new(3).start_all(&origin, WIDE);
    let three: Vec<&Gateway> = gateways.iter().collect();
    // alternating, so that other load on the machine affects both measurements alike
    for _ in 0..3 {
        measure("one gateway alone", &[&single]);
        measure("one of three asked, two thirds of the keys are others'", &three[..1]);
        measure("all three asked", &three);
    }
}

#[test]
#[ignore = "its figures mean something in a release build on an idle machine only"]
#[expect(clippy::print_stderr, reason = "figures for whoever runs it")]
fn cluster_cost_of_a_hot_key_for_the_others() {
    let origin = Origin::start();
    let nodes = Nodes::new(3);
    let gateways: Vec<Gateway> = (0..3).map(|node| nodes.start(node, &origin, "timeout: 1s", WIDE)).collect();
    wait_for_members(&gateways, 3);
    let all: Vec<&Gateway> = gateways.iter().collect();
    for _ in 0..3 {
        // the same load twice: on many keys, then on one
        let ratio: Vec<Duration> = [false, true]
            .into_iter()
            .map(|hot| {
                let mut others = Vec::new();
                let load = |number, turn| if hot { "hot".to_owned() } else { spread(number, turn) };
                drop(times(&all, CLIENTS, load, || {
                    others = times(&all, 1, |_, turn| format!("other-{}", turn % 100), part);
                }));
                let [p50, p99] = [500, 990].map(|share| quantile(&mut others, share));
                eprintln!(
                    "load on {}: others have p50 {p50:?}, p99 {p99:?}",
                    if hot { "one key" } else { "many keys" }
                );
                p99
            })
            .collect();
        eprintln!("p99 of the others: {:.2} times", ratio[1].as_secs_f64() / ratio[0].as_secs_f64());
    }
}
