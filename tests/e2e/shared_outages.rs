//! Outages of Redis under load from several gateways: no request gets an error, the number of admitted requests stays
//! within the guaranteed bound, and the outage ends soon after Redis recovers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::redis::Redis;
use crate::support::shared::{gateway, passed, three, wait_for_breaker};
use crate::support::{Gateway, Origin, free_port, now, wait_for_time, wait_until};

const RATE: f64 = 100.0;
const BURST: f64 = 60.0;

/// Sends requests for one key to all `gateways` as fast as they answer, until `during` returns; no request gets an error.
/// Returns the duration.
fn under_load(gateways: &[Gateway], during: impl FnOnce()) -> Duration {
    let over = AtomicBool::new(false);
    let began = now();
    std::thread::scope(|scope| {
        let ask = |gateway: &Gateway| {
            let mut client = gateway.client();
            while !over.load(Ordering::Relaxed) {
                let response = client.round_trip("GET", "/", &[("x-key", "a")]);
                assert!(matches!(response.status, 200 | 429), "{response:?}");
            }
        };
        let clients: Vec<_> =
            gateways.iter().cycle().take(6).map(|gateway| scope.spawn(move || ask(gateway))).collect();
        during();
        over.store(true, Ordering::Relaxed);
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
    now() - began
}

/// Waits until all `gateways` use Redis again; returns the seconds between the first and the last of them.
fn wait_until_all_are_back(gateways: &[Gateway]) -> f64 {
    let is_back = |gateway: &&Gateway| {
        gateway.metrics().value("tollgate_store_breaker_state", &[("state", "closed")]) == Some(1.0)
    };
    wait_until("one to be back", || gateways.iter().any(|gateway| is_back(&gateway)));
    let first = now();
    wait_until("all to be back", || gateways.iter().all(|gateway| is_back(&gateway)));
    (now() - first).as_secs_f64()
}

/// Asserts that at most `B + r*t` were admitted, plus for each outage
/// - the requests that gateways did not know of each other at its beginning: at most `B`;
/// - `r*D*(M/N - 1)`, which is 0, because all gateways stay up;
/// - `r*x*(N - 1)/N` for the `x` seconds in which the first gateway uses Redis again and gets the whole rate, while the
///   others still admit their shares. They reconcile these tokens, but no bucket is charged with more than it holds.
///
/// `apart` has `x` of each outage.
fn assert_within(admitted: usize, took: Duration, apart: &[f64]) {
    let (admitted, rate) = (f64::from(u32::try_from(admitted).unwrap()), RATE * took.as_secs_f64());
    let excess: f64 = apart.iter().map(|apart| BURST + RATE * apart * 2.0 / 3.0).sum();
    assert!(admitted <= BURST + rate + excess, "{admitted} of {} + {excess}", BURST + rate);
    // and the gateways must not deny everything either
    assert!(admitted >= 0.7 * rate, "{admitted} of {rate}");
}

#[test]
fn three_gateways_without_redis_admit_what_the_limit_says_and_what_they_did_not_know_of_each_other() {
    let (origin, port) = (Origin::start(), free_port());
    let redis = Redis::start_on(port, None);
    let gateways = three(&origin, port, "timeout: 50ms", &format!("algorithm: gcra, rate: {RATE}/s, burst: {BURST}"));
    let (mut back, mut apart) = (None, Vec::new());
    let took = under_load(&gateways, || {
        let began = now();
        wait_for_time(began + Duration::from_millis(500));
        drop(redis);
        wait_for_time(began + Duration::from_secs(3));
        back = Some(Redis::start_on(port, None));
        apart.push(wait_until_all_are_back(&gateways));
    });
    assert_within(origin.count(), took, &apart);
    drop(back);
}

#[test]
fn tokens_admitted_beyond_a_limit_in_an_outage_are_counted_when_it_is_over() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let gateways = three(&origin, redis.port, "timeout: 1s", "algorithm: gcra, rate: 1/h, burst: 6");
    let passed = |gateway: &Gateway| (0..10).filter(|_| gateway.get("/", &[("x-key", "a")]).status == 200).count();
    assert_eq!(passed(&gateways[0]), 6);
    redis.signal("STOP");
    // this gateway had no request of this key: a third of the burst
    assert_eq!(passed(&gateways[1]), 2);
    wait_for_breaker(&gateways[1], "open");
    redis.signal("CONT");
    gateways[1].wait_for_metric("tollgate_limit_overshoot_tokens_total", &[("cause", "outage")], 2.0);
    assert_eq!(gateways.iter().map(passed).sum::<usize>(), 0);
}

#[test]
fn tokens_that_were_reconciled_count_once_in_an_outage_after_a_restart() {
    let (origin, port) = (Origin::start(), free_port());
    let redis = Redis::start_on(port, None);
    let mut gateway = Gateway::start(&format!(
        "{}state: {{ file: tollgate.state }}
store: {{ redis: \"redis://127.0.0.1:{port}\", timeout: 1s }}
limits:
  guard:
    {{ key: {{ header: x-key }}, mode: shared, on_store_down: local, algorithm: fixed_window, limit: 10, window: 1d }}
routes: [{{ name: all, upstream: origin, limits: [guard] }}]
",
        origin.upstream(),
    ));
    assert_eq!(passed(&gateway, "a", 1), 1);
    drop(redis);
    assert_eq!(passed(&gateway, "a", 4), 4);
    wait_for_breaker(&gateway, "open");
    let redis = Redis::start_on(port, None);
    wait_for_breaker(&gateway, "closed");
    gateway.wait_for_metric("tollgate_limit_unsynced_tokens", &[], 0.0);
    gateway.restart("TERM");
    assert_eq!(passed(&gateway, "a", 1), 1);
    drop(redis);
    assert_eq!(passed(&gateway, "a", 10), 4, "of 10 six were used");
}

#[test]
fn a_redis_that_comes_and_goes_every_two_seconds_costs_nobody_an_error() {
    const EVERY: Duration = Duration::from_secs(2);
    let (origin, port) = (Origin::start(), free_port());
    let mut redis = Some(Redis::start_on(port, None));
    let gateways = three(&origin, port, "timeout: 50ms", &format!("algorithm: gcra, rate: {RATE}/s, burst: {BURST}"));
    let mut apart = Vec::new();
    let took = under_load(&gateways, || {
        let mut next = now();
        for hangs in [true, false] {
            match &redis {
                Some(redis) if hangs => redis.signal("STOP"),
                _ => redis = None,
            }
            next += EVERY;
            wait_for_time(next);
            match &redis {
                Some(redis) => redis.signal("CONT"),
                None => redis = Some(Redis::start_on(port, None)),
            }
            next += EVERY;
            apart.push(wait_until_all_are_back(&gateways));
            wait_for_time(next);
        }
    });
    assert_within(origin.count(), took, &apart);
}

/// A fault of Redis: its beginning and its end.
struct Fault {
    name: &'static str,
    begin: fn(&mut Option<Redis>, u16),
    end: fn(&mut Option<Redis>, u16),
}

/// Sends a command that Redis answers only after a long time, and does not wait for the answer.
fn say_beside(redis: &Option<Redis>, words: &[&str]) {
    redis.as_ref().unwrap().send(words);
}

const FAULTS: [Fault; 6] = [
    Fault {
        name: "it hangs",
        begin: |redis, _| redis.as_ref().unwrap().signal("STOP"),
        end: |redis, _| redis.as_ref().unwrap().signal("CONT"),
    },
    Fault {
        name: "it ends and comes back empty",
        begin: |redis, _| *redis = None,
        end: |redis, port| *redis = Some(Redis::start_on(port, None)),
    },
    Fault {
        name: "somebody's script is slow",
        begin: |redis, _| say_beside(redis, &["EVAL", "while true do end", "0"]),
        end: |redis, _| drop(redis.as_ref().unwrap().command(&["SCRIPT", "KILL"])),
    },
    Fault {
        name: "it makes its clients wait",
        begin: |redis, _| drop(redis.as_ref().unwrap().command(&["CLIENT", "PAUSE", "60000", "WRITE"])),
        end: |redis, _| drop(redis.as_ref().unwrap().command(&["CLIENT", "UNPAUSE"])),
    },
    Fault {
        name: "its memory is full",
        begin: |redis, _| drop(redis.as_ref().unwrap().command(&["CONFIG", "SET", "maxmemory", "1"])),
        end: |redis, _| drop(redis.as_ref().unwrap().command(&["CONFIG", "SET", "maxmemory", "0"])),
    },
    Fault {
        name: "it takes no writes",
        begin: |redis, _| drop(redis.as_ref().unwrap().command(&["REPLICAOF", "127.0.0.1", "1"])),
        end: |redis, _| drop(redis.as_ref().unwrap().command(&["REPLICAOF", "NO", "ONE"])),
    },
];

#[test]
fn failures_of_redis_delay_no_request_and_calls_resume_soon() {
    const PATIENCE: Duration = Duration::from_millis(200);
    let (origin, port) = (Origin::start(), free_port());
    let mut redis = Some(Redis::start_on(port, None));
    let gateway = gateway(&origin, port, "timeout: 200ms", "algorithm: gcra, rate: 1000000/s, burst: 1000000");
    let mut client = gateway.client();
    let mut ask = || {
        let began = now();
        let response = client.round_trip("GET", "/", &[("x-key", "a")]);
        assert_eq!(response.status, 200, "{response:?}");
        now() - began
    };
    for Fault { name, begin, end } in FAULTS {
        ask();
        begin(&mut redis, port);
        let paid = wait_for_open(&gateway, &mut ask);
        let mut times: Vec<Duration> = (0..200).map(|_| ask()).collect();
        times.sort_unstable();
        let slow = times[197];
        assert!(slow < PATIENCE, "{name}: {slow:?}");
        end(&mut redis, port);
        wait_for_breaker(&gateway, "closed");
        assert!(paid <= 10, "{name}: {paid} requests waited");
    }
}

#[test]
fn a_request_waits_for_redis_once_whatever_is_asked_for_it() {
    const TIMEOUT: Duration = Duration::from_millis(500);
    let (origin, redis) = (Origin::start(), Redis::start());
    let limit = |consistency| {
        format!(
            "  {consistency}: {{ key: all, mode: shared, algorithm: gcra, rate: 1/h, burst: 9, consistency: {consistency} }}\n"
        )
    };
    let gateway = Gateway::start(&format!(
        "{}store: {{ redis: \"{}\", timeout: 500ms }}
limits:\n{}routes: [{{ name: all, upstream: origin, limits: [leased, eventual, exact] }}]
",
        origin.upstream(),
        redis.url(),
        ["leased", "eventual", "exact"].map(limit).concat(),
    ));
    let mut client = gateway.client();
    redis.signal("STOP");
    let began = now();
    assert_eq!(client.round_trip("GET", "/", &[]).status, 200);
    let took = now() - began;
    assert!(took >= TIMEOUT && took < TIMEOUT * 2, "{took:?}");
}

/// Sends requests until the breaker opens; returns the number of requests that waited for Redis.
fn wait_for_open(gateway: &Gateway, mut ask: impl FnMut() -> Duration) -> usize {
    let mut waited = 0;
    wait_until("the breaker to open", || {
        waited += usize::from(ask() >= Duration::from_millis(200));
        gateway.metrics().value("tollgate_store_breaker_state", &[("state", "closed")]) == Some(0.0)
    });
    waited
}

#[test]
fn a_slot_of_a_gateway_that_dies_comes_back_and_that_of_a_long_request_does_not() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let limit = "algorithm: concurrency, limit: 1";
    let [mut dies, stays, asks] = [(); 3].map(|()| gateway(&origin, redis.port, "timeout: 1s", limit));
    let mut long = stays.client();
    long.send_request("GET", "/stall", &[("x-key", "long")]);
    origin.wait_for_count(1);
    let mut lost = dies.client();
    lost.send_request("GET", "/stall", &[("x-key", "lost")]);
    origin.wait_for_count(2);
    let status = |key: &str| asks.get("/", &[("x-key", key)]).status;
    dies.end("KILL");
    assert_eq!([status("long"), status("lost")], [429, 429]);
    wait_until("the slot to come back", || status("lost") == 200);
    // the long request has run for longer, and still holds its slot
    assert_eq!(status("long"), 429);
    drop(long);
    wait_until("the request to end", || status("long") == 200);
}

#[test]
fn every_thread_is_connected_when_the_gateway_is_ready() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let _gateway =
        gateway(&origin, redis.port, "timeout: 10ms", "algorithm: gcra, rate: 1/h, burst: 6, on_store_down: deny");
    let connections = redis.command_raw(&["CLIENT", "LIST"]).matches("laddr=").count();
    let threads = std::thread::available_parallelism().unwrap().get();
    // one of the connections is that of the `CLIENT LIST` command
    assert!(connections > threads, "{connections} connections for {threads} threads");
}
