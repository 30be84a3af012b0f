//! Three gateways share one limit: each key has one owner, whichever gateway receives the request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::support::cluster::{Nodes, keys, members, wait_for_members};
use crate::support::{Gateway, Origin, SetOnDrop, now, wait_for_time, wait_until};

const RATE: f64 = 100.0;
const BURST: f64 = 60.0;

/// The result of a load.
struct Load {
    /// The number of admitted requests.
    passed: usize,
    /// The duration of the load.
    took: Duration,
    /// The time from the first admitted request to the last.
    passing: Duration,
    /// The durations of all requests, the longest last.
    times: Vec<Duration>,
}

/// Sends requests for `key` to all `gateways` as fast as they answer, until `during` returns; no request gets an error.
fn under_load(gateways: &[&Gateway], key: &str, during: impl FnOnce()) -> Load {
    let over = AtomicBool::new(false);
    let began = now();
    let asked: Vec<(Vec<Instant>, Vec<Duration>)> = std::thread::scope(|scope| {
        let over = &over;
        let ask = move |gateway: &Gateway| {
            let mut client = gateway.client();
            let (mut passed, mut times) = (Vec::new(), Vec::new());
            while !over.load(Ordering::Relaxed) {
                let asked = now();
                let response = client.round_trip("GET", "/", &[("x-key", key)]);
                assert!(matches!(response.status, 200 | 429), "{response:?}");
                let answered = now();
                passed.extend((response.status == 200).then_some(answered));
                times.push(answered - asked);
            }
            (passed, times)
        };
        let clients: Vec<_> =
            gateways.iter().cycle().take(6).map(|gateway| scope.spawn(move || ask(gateway))).collect();
        let ends = SetOnDrop(over);
        during();
        drop(ends);
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    let took = now() - began;
    let passes = || asked.iter().flat_map(|(passed, _)| passed);
    let passing = passes().max().zip(passes().min()).map_or(Duration::ZERO, |(last, first)| *last - *first);
    let passed = passes().count();
    let mut times: Vec<Duration> = asked.into_iter().flat_map(|(_, times)| times).collect();
    times.sort_unstable();
    Load { passed, took, passing, times }
}

fn all(gateways: &[Gateway]) -> Vec<&Gateway> {
    gateways.iter().collect()
}

/// Asserts that at most `B + r*t`, plus `excess`, were admitted.
fn assert_within(load: &Load, excess: f64) {
    let (passed, whole) =
        (f64::from(u32::try_from(load.passed).unwrap()), RATE.mul_add(load.took.as_secs_f64(), BURST));
    assert!(passed <= whole + excess, "{passed} of {whole} + {excess}");
}

/// The position of the gateway that owns `key`; sends it one request.
fn owner(gateways: &[Gateway], key: &str) -> usize {
    let before: Vec<usize> = gateways.iter().map(keys).collect();
    gateways[0].get("/", &[("x-key", key)]);
    let after = gateways.iter().map(keys);
    before.iter().zip(after).position(|(before, after)| after > *before).unwrap()
}

#[test]
fn a_key_asked_for_through_all_gateways_at_once_gets_what_the_limit_says_and_all_of_it() {
    let origin = Origin::start();
    let gateways = Nodes::new(3).start_all(&origin, &format!("algorithm: gcra, rate: {RATE}/s, burst: {BURST}"));
    let load = under_load(&all(&gateways), "a", || {
        let began = now();
        wait_for_time(began + Duration::from_secs(3));
    });
    assert_within(&load, 0.0);
    assert_eq!(load.passed, origin.count());
    let least = 0.99 * RATE.mul_add(load.passing.as_secs_f64(), BURST);
    let passed = f64::from(u32::try_from(load.passed).unwrap());
    assert!(load.passing >= Duration::from_secs(2) && passed >= least, "{passed} of {least} in {:?}", load.passing);
    // only one of the gateways keeps the key
    assert_eq!(gateways.iter().map(keys).sum::<usize>(), 1);
}

#[test]
fn every_key_is_counted_by_one_gateway_and_each_has_its_share() {
    let origin = Origin::start();
    let gateways = Nodes::new(3).start_all(&origin, "algorithm: gcra, rate: 1/h, burst: 2");
    let mut clients: Vec<_> = gateways.iter().map(Gateway::client).collect();
    for key in 0..60 {
        let key = key.to_string();
        let statuses: Vec<u16> =
            clients.iter_mut().map(|client| client.round_trip("GET", "/", &[("x-key", &key)]).status).collect();
        assert_eq!(statuses, [200, 200, 429], "key {key}");
    }
    let shares: Vec<usize> = gateways.iter().map(keys).collect();
    assert_eq!(shares.iter().sum::<usize>(), 60, "{shares:?}");
    // each gateway owns 20 on average; fewer than 5 happen once in a million such tests
    assert!(shares.iter().all(|share| *share >= 5), "{shares:?}");
}

#[test]
fn a_request_under_limits_of_several_owners_is_charged_by_all_or_by_none() {
    let origin = Origin::start();
    let nodes = Nodes::new(3);
    let rest = format!(
        "{}limits:
  small: {{ key: {{ header: x-small }}, algorithm: gcra, rate: 1/h, burst: 2 }}
  large: {{ key: {{ header: x-large }}, algorithm: gcra, rate: 1/h, burst: 20 }}
routes: [{{ name: all, upstream: origin, limits: [small, large] }}]
",
        origin.upstream(),
    );
    let gateways: Vec<Gateway> = (0..3).map(|node| nodes.start_with(node, "timeout: 1s", &rest)).collect();
    wait_for_members(&gateways, 3);
    let ask = |turn: usize, small: &str, large: &str| {
        gateways[turn % 3].get("/", &[("x-small", small), ("x-large", large)]).status
    };
    for large in 0..4 {
        let large = large.to_string();
        for small in 0..3 {
            let small = format!("{large}-{small}");
            let passed = (0..10).filter(|turn| ask(*turn, &small, &large) == 200).count();
            assert_eq!(passed, 2, "{small}");
        }
        // the tokens of requests that the small limit denied are refunded, and no more than those
        let mut passed = 6;
        wait_until("20 requests to pass", || {
            passed += usize::from(ask(passed, &format!("{large}+{passed}"), &large) == 200);
            passed == 20
        });
        assert!((0..6).all(|turn| ask(turn, &format!("{large}*{turn}"), &large) == 429));
    }
}

#[test]
fn slots_of_a_gateway_that_is_gone_come_back_and_those_of_a_long_request_do_not() {
    let origin = Origin::start();
    let mut gateways = Nodes::new(3).start_all(&origin, "algorithm: concurrency, limit: 1");
    let mut dies = gateways.pop().unwrap();
    let (stays, asks) = (&gateways[0], &gateways[1]);
    // a key that this gateway does not own itself
    let mut number = 0;
    let lost = loop {
        number += 1;
        let seen = origin.count();
        let mut client = dies.client();
        client.send_request("GET", "/stall", &[("x-key", &number.to_string())]);
        origin.wait_for_count(seen + 1);
        if keys(&dies) == 0 {
            break client;
        }
        drop(client);
        wait_until("the slot to be free", || keys(&dies) == 0);
    };
    let key = number.to_string();
    let mut long = stays.client();
    let seen = origin.count();
    long.send_request("GET", "/stall", &[("x-key", "long")]);
    origin.wait_for_count(seen + 1);
    let status = |key: &str| asks.get("/", &[("x-key", key)]).status;
    assert_eq!(status(&key), 429);
    dies.end("KILL");
    wait_until("the slot to come back", || status(&key) == 200);
    drop(lost);
    drop(long);
    wait_until("the request to end", || status("long") == 200);
}

#[test]
fn an_owner_that_is_killed_under_load_costs_nobody_an_error_and_at_most_one_burst() {
    let origin = Origin::start();
    let mut gateways = Nodes::new(3).start_all(&origin, &format!("algorithm: gcra, rate: {RATE}/s, burst: {BURST}"));
    let mut killed = gateways.remove(owner(&gateways, "a"));
    let load = under_load(&all(&gateways), "a", || {
        let began = now();
        wait_for_time(began + Duration::from_secs(1));
        killed.end("KILL");
        wait_for_members(&gateways, 2);
        wait_for_time(began + Duration::from_secs(3));
    });
    assert_within(&load, BURST);
    assert!(load.passed >= 150, "{}", load.passed);
}

#[test]
fn an_owner_that_hangs_is_waited_for_once_by_those_in_flight_and_then_left_alone() {
    const TIMEOUT: Duration = Duration::from_millis(500);
    let origin = Origin::start();
    let nodes = Nodes::new(3);
    let limit = format!("algorithm: gcra, rate: {RATE}/s, burst: {BURST}");
    let mut gateways: Vec<Gateway> = (0..3).map(|node| nodes.start(node, &origin, "timeout: 500ms", &limit)).collect();
    wait_for_members(&gateways, 3);
    let hangs = gateways.remove(owner(&gateways, "a"));
    let load = under_load(&all(&gateways), "a", || {
        let began = now();
        wait_for_time(began + Duration::from_secs(1));
        hangs.process.signal("STOP");
        wait_for_members(&gateways, 2);
        wait_for_time(began + Duration::from_secs(4));
    });
    hangs.process.signal("CONT");
    assert_within(&load, BURST);
    assert!(load.passed >= 150, "{}", load.passed);
    // six clients, each with one request in flight
    let waited = load.times.iter().filter(|time| **time >= TIMEOUT).count();
    assert!(waited <= 12, "{waited} requests waited: {:?}", load.times.last());
}

#[test]
fn gateways_without_the_others_go_on_by_themselves_and_find_each_other_again() {
    let origin = Origin::start();
    let nodes = Nodes::new(2);
    let mut gateways = nodes.start_all(&origin, "algorithm: gcra, rate: 1/h, burst: 3");
    gateways[1].end("KILL");
    wait_for_members(&gateways[..1], 1);
    let passed =
        |gateway: &Gateway, key: &str| (0..5).filter(|_| gateway.get("/", &[("x-key", key)]).status == 200).count();
    for key in ["a", "b", "c", "d"] {
        assert_eq!(passed(&gateways[0], key), 3);
    }
    gateways[1].start_again();
    wait_for_members(&gateways, 2);
    assert_eq!(members(&gateways[1]).len(), 2);
}
