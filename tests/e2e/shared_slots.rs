//! Shared slots of `concurrency`: each is counted once, as long as its request runs, with Redis near, far or unavailable.

use std::time::Duration;

use crate::support::redis::Redis;
use crate::support::shared::{calls, wait_for_breaker};
use crate::support::{Client, DelayProxy, Gateway, Origin, free_port, wait_until};

/// A gateway with `limit` slots, shared through the Redis on `port`.
fn gateway(origin: &Origin, port: u16, limit: usize, on_store_down: &str) -> Gateway {
    Gateway::start(&format!(
        "{}store: {{ redis: \"redis://127.0.0.1:{port}\", timeout: 1s }}
limits:
  guard: {{ algorithm: concurrency, limit: {limit}, key: all, mode: shared, on_store_down: {on_store_down} }}
routes: [{{ name: all, upstream: origin, limits: [guard] }}]
",
        origin.upstream(),
    ))
}

/// `count` requests that run until their clients are dropped.
fn running(origin: &Origin, gateway: &Gateway, count: usize) -> Vec<Client> {
    let before = origin.count();
    let clients = (0..count).map(|number| {
        let mut client = gateway.client();
        client.send_request("GET", "/stall", &[]);
        origin.wait_for_count(before + number + 1);
        client
    });
    clients.collect()
}

fn status(gateway: &Gateway) -> u16 {
    gateway.get("/", &[]).status
}

#[test]
fn a_slot_whose_request_has_ended_is_not_renewed() {
    const COUNT: usize = 40;
    let (origin, redis) = (Origin::start(), Redis::start());
    let way = DelayProxy::to(redis.port);
    for each_way in [1, 3, 10] {
        way.set(Duration::from_millis(each_way));
        let gateway = gateway(&origin, way.port, COUNT, "local");
        let clients = running(&origin, &gateway, COUNT);
        wait_until("slots to be renewed", || calls(&gateway, "renew") >= 1.0);
        drop(clients);
        wait_until("all requests to end", || calls(&gateway, "complete") >= 40.0);
        let beats = calls(&gateway, "heartbeat");
        wait_until("all renewals to be over", || calls(&gateway, "heartbeat") >= beats + 3.0);
        assert_eq!(redis.keys("tollgate:*guard*"), Vec::<String>::new(), "{each_way} ms away");
    }
}

#[test]
fn slots_taken_without_redis_count_when_it_recovers() {
    let (origin, port) = (Origin::start(), free_port());
    let gateway = gateway(&origin, port, 5, "local");
    wait_for_breaker(&gateway, "open");
    let mut clients = running(&origin, &gateway, 5);
    assert_eq!(status(&gateway), 429);
    let _redis = Redis::start_on(port, None);
    wait_for_breaker(&gateway, "closed");
    assert_eq!(status(&gateway), 429);
    clients.pop();
    wait_until("a slot to come back", || status(&gateway) == 200);
}

#[test]
fn slots_held_when_redis_goes_away_still_count() {
    for (on_store_down, limit) in [("local", 5), ("divide", 5)] {
        let (origin, port) = (Origin::start(), free_port());
        let redis = Redis::start_on(port, None);
        let gateway = gateway(&origin, port, limit, on_store_down);
        let mut clients = running(&origin, &gateway, limit);
        drop(redis);
        wait_for_breaker(&gateway, "open");
        assert_eq!(status(&gateway), 429, "{on_store_down}");
        let _redis = Redis::start_on(port, None);
        wait_for_breaker(&gateway, "closed");
        // Redis restarted empty
        assert_eq!(status(&gateway), 429, "{on_store_down}");
        clients.pop();
        wait_until("a slot to come back", || status(&gateway) == 200);
    }
}

#[test]
fn without_redis_two_gateways_run_half_of_the_slots_each() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let gateways = [(); 2].map(|()| gateway(&origin, redis.port, 6, "divide"));
    for gateway in &gateways {
        gateway.wait_for_metric("tollgate_cluster_members", &[], 2.0);
    }
    let _held = running(&origin, &gateways[0], 2);
    drop(redis);
    for (gateway, free) in gateways.iter().zip([1, 3]) {
        wait_for_breaker(gateway, "open");
        let _more = running(&origin, gateway, free);
        assert_eq!(status(gateway), 429);
    }
}

#[test]
fn slots_that_end_without_redis_are_free_when_it_recovers() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let gateway = gateway(&origin, redis.port, 5, "local");
    let clients = running(&origin, &gateway, 5);
    redis.signal("STOP");
    wait_for_breaker(&gateway, "open");
    drop(clients);
    wait_until("the requests to end", || status(&gateway) == 200);
    redis.signal("CONT");
    wait_for_breaker(&gateway, "closed");
    assert_eq!(status(&gateway), 200);
}

#[test]
fn slots_that_redis_takes_too_late_are_free_when_it_recovers() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let gateway = gateway(&origin, redis.port, 5, "local");
    assert_eq!(status(&gateway), 200);
    redis.signal("STOP");
    for _ in 0..5 {
        assert_eq!(status(&gateway), 200);
    }
    wait_for_breaker(&gateway, "open");
    redis.signal("CONT");
    wait_for_breaker(&gateway, "closed");
    let _all = running(&origin, &gateway, 5);
}
