//! Limits that gateways share through a Redis that is far away, slow, or sometimes unavailable.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::redis::Redis;
use crate::support::shared::{calls, gateway, three};
use crate::support::{DelayProxy, Origin, SetOnDrop, now, together, wait_for_time, wait_until};

#[test]
fn a_late_call_counts_once_however_many_requests_wait_for_it() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let way = DelayProxy::to(redis.port);
    let gateway = gateway(&origin, way.port, "timeout: 100ms", "algorithm: gcra, rate: 1/h, burst: 100");
    assert_eq!(gateway.get("/", &[("x-key", "a")]).status, 200);
    way.set(Duration::from_millis(75));
    assert_eq!(together(12, |_| gateway.get("/", &[("x-key", "a")]).status), [200; 12]);
    way.set(Duration::ZERO);
    let opened = gateway.metrics().value("tollgate_store_breaker_state", &[("state", "closed")]);
    assert_eq!(opened, Some(1.0));
}

#[test]
fn charges_unknown_to_a_late_answer_are_not_repeated() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let way = DelayProxy::to(redis.port);
    let limit = "algorithm: fixed_window, limit: 100, window: 1d, cost: { header: x-cost, max: 2 }";
    let gateway = gateway(&origin, way.port, "timeout: 1s", limit);
    let ask = |key: &str, cost: &str| {
        let response = gateway.get("/", &[("x-key", key), ("x-cost", cost)]);
        assert_eq!(response.status, 200, "{response:?}");
        response.number("x-ratelimit-remaining").unwrap()
    };
    together(8, |_| ask("warm", "1"));
    way.set(Duration::from_millis(200));
    let charge_others_meanwhile = || {
        // Redis does not know the key; its answer reaches the gateway after the gateway has charged other requests
        wait_until("the call to arrive", || redis.command_raw(&["KEYS", "*"]).matches(":fixed_window:").count() > 1);
        way.set(Duration::ZERO);
        together(8, |_| ask("a", "2"));
    };
    together(2, |number| match number {
        0 => drop(ask("a", "1")),
        _ => charge_others_meanwhile(),
    });
    assert_eq!((0..10).map(|_| ask("a", "1")).min(), Some(100 - 1 - 16 - 10));
}

#[test]
fn eventual_counts_of_many_keys_are_sent_at_once() {
    const KEYS: usize = 1_000;
    let (origin, redis) = (Origin::start(), Redis::start());
    let way = DelayProxy::to(redis.port);
    way.set(Duration::from_millis(20));
    let limit = "algorithm: gcra, rate: 1/h, burst: 100, consistency: eventual";
    let gateway = gateway(&origin, way.port, "timeout: 1s, sync_every: 8s", limit);
    let began = now();
    together(32, |client| {
        let keys = (0..KEYS).filter(|key| key % 32 == client);
        let mut client = gateway.client();
        keys.for_each(|key| assert_eq!(client.round_trip("GET", "/", &[("x-key", &key.to_string())]).status, 200));
    });
    // each client made 31 calls or 32, one after the other
    let call = (now() - began) / 32;
    assert_eq!(calls(&gateway, "sync"), 0.0, "a slow machine");
    wait_until("keys to be told of", || calls(&gateway, "sync") >= 1.0);
    let began = now();
    wait_until("all keys to be told of", || calls(&gateway, "sync") >= 100.0);
    let took = now() - began;
    assert!(took < call * 45, "{took:?} for 100 calls of {call:?}");
}

const RATE: f64 = 100.0;
const BURST: f64 = 60.0;

#[test]
fn a_redis_that_is_as_slow_as_the_timeout_does_not_add_up() {
    const TIME: Duration = Duration::from_secs(8);
    let (origin, redis) = (Origin::start(), Redis::start());
    let way = DelayProxy::to(redis.port);
    let limit = format!("algorithm: gcra, rate: {RATE}/s, burst: {BURST}");
    let gateways = three(&origin, way.port, "timeout: 20ms", &limit);
    let over = AtomicBool::new(false);
    let began = now();
    std::thread::scope(|scope| {
        let _over = SetOnDrop(&over);
        for number in 0..6 {
            let (gateway, over) = (&gateways[number % 3], &over);
            scope.spawn(move || {
                let mut client = gateway.client();
                while !over.load(Ordering::Relaxed) {
                    let status = client.round_trip("GET", "/", &[("x-key", "a")]).status;
                    assert!(matches!(status, 200 | 429), "{status}");
                }
            });
        }
        let mut far = false;
        let mut next = now();
        while now() - began < TIME {
            far = !far;
            way.set(Duration::from_millis(if far { 15 } else { 1 }));
            next += Duration::from_millis(if far { 150 } else { 700 });
            wait_for_time(next);
        }
    });
    let fits = BURST + RATE * (now() - began).as_secs_f64();
    let admitted = f64::from(u32::try_from(origin.count()).unwrap());
    // each outage adds two thirds of a burst at its beginning and at its end, and the probes leave time for four outages
    let excess = 4.0 * 2.0 * BURST * 2.0 / 3.0;
    assert!(admitted <= fits + excess, "{admitted} of {fits} + {excess}");
    assert!(admitted >= 0.5 * fits, "{admitted} of {fits}");
}
