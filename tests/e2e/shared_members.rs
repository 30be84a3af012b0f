//! The number of gateways that each gateway counts: its share of a limit without Redis depends on it.

use std::time::Duration;

use crate::restarts::{Lineage, has_ended};
use crate::support::cluster::{Nodes, keys, wait_for_members};
use crate::support::process::signal;
use crate::support::redis::Redis;
use crate::support::shared::{ONCE_IN_LONG, calls, gateway, passed, three};
use crate::support::{DelayProxy, Gateway, Origin, free_port, wait_until};

fn members(gateway: &Gateway) -> f64 {
    gateway.metrics().value("tollgate_cluster_members", &[]).unwrap()
}

fn is_closed(gateway: &Gateway) -> bool {
    gateway.metrics().value("tollgate_store_breaker_state", &[("state", "closed")]) == Some(1.0)
}

/// Each gateway enforces one share of a limit while Redis is away, and a process that took over is no gateway more.
#[test]
fn a_gateway_that_restarts_is_counted_once_in_redis() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let start = || gateway(&origin, redis.port, "timeout: 1s", ONCE_IN_LONG);
    let is_alone = |gateway: &Gateway| {
        wait_until("heartbeats", || calls(gateway, "heartbeat") >= 3.0);
        members(gateway) == 1.0
    };
    let mut lineage = Lineage::of(start());
    assert!(is_alone(&lineage.gateway));
    lineage.hand_over();
    assert!(is_alone(&lineage.gateway), "the process before is the same gateway");
    signal(lineage.current, "TERM");
    wait_until("the end", || has_ended(lineage.current));
    assert!(redis.keys("tollgate:*:nodes").is_empty(), "a gateway that ends takes itself out");
    assert!(is_alone(&start()));
}

#[test]
fn gateways_that_reconcile_much_are_still_counted() {
    const KEYS: usize = 1_500;
    let (origin, redis) = (Origin::start(), Redis::start());
    let way = DelayProxy::to(redis.port);
    let gateways = three(&origin, way.port, "timeout: 1s", ONCE_IN_LONG);
    redis.signal("STOP");
    wait_until("all to be without Redis", || gateways.iter().all(|gateway| !is_closed(gateway)));
    let mut client = gateways[0].client();
    for key in 0..KEYS {
        assert_eq!(client.round_trip("GET", "/", &[("x-key", &key.to_string())]).status, 200);
    }
    way.set(Duration::from_millis(25));
    redis.signal("CONT");
    wait_until("all to be back", || gateways.iter().all(is_closed));
    wait_until("all to be told", || {
        assert_eq!(gateways.each_ref().map(members), [3.0; 3]);
        gateways[0].metrics().value("tollgate_limit_unsynced_tokens", &[]) == Some(0.0)
    });
}

#[test]
fn a_redis_without_memory_forgets_no_gateway() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let gateways = three(&origin, redis.port, "timeout: 1s", ONCE_IN_LONG);
    assert_eq!(redis.command(&["CONFIG", "SET", "maxmemory", "1"]), "+OK");
    wait_until("all to be without Redis", || gateways.iter().all(|gateway| !is_closed(gateway)));
    wait_until("the heartbeats to lapse", || {
        assert!(!gateways.iter().any(is_closed), "it takes no writes");
        redis.keys("tollgate:*:nodes").is_empty()
    });
    assert_eq!(redis.command(&["CONFIG", "SET", "maxmemory", "0"]), "+OK");
    wait_until("one to be back", || gateways.iter().any(is_closed));
    assert_eq!(gateways.each_ref().map(members), [3.0; 3]);
}

#[test]
fn a_redis_that_is_back_for_a_moment_does_not_change_the_shares() {
    let (origin, port) = (Origin::start(), free_port());
    let mut redis = Redis::start_on(port, None);
    let gateways = three(&origin, port, "timeout: 1s", ONCE_IN_LONG);
    for round in 0..3 {
        drop(redis);
        wait_until("all to be without Redis", || gateways.iter().all(|gateway| !is_closed(gateway)));
        redis = Redis::start_on(port, None);
        wait_until("one to be back", || gateways.iter().any(is_closed));
        redis.signal("KILL");
        wait_until("all to be without Redis", || gateways.iter().all(|gateway| !is_closed(gateway)));
        let shares = gateways.each_ref().map(|gateway| passed(gateway, &format!("new {round}"), 4));
        assert_eq!(shares, [2; 3]);
    }
}

#[test]
fn there_are_never_fewer_gateways_than_the_configuration_says() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let gateway = gateway(&origin, redis.port, "timeout: 1s, nodes: 3", ONCE_IN_LONG);
    let beats = [("op", "heartbeat"), ("result", "ok")];
    wait_until("a heartbeat", || gateway.metrics().value("tollgate_store_requests_total", &beats) >= Some(1.0));
    assert_eq!(members(&gateway), 3.0);
    drop(redis);
    assert_eq!(passed(&gateway, "a", 4), 2);
}

/// The buckets of an outage belong to each gateway: they stay where they are when the keys of the cluster move.
#[test]
fn members_that_change_during_an_outage_admit_their_own_share_once() {
    const KEYS: usize = 40;
    let (origin, redis, nodes) = (Origin::start(), Redis::start(), Nodes::new(4));
    let rest = format!(
        "{}store: {{ redis: \"{}\", timeout: 1s, nodes: 3 }}
limits:
  shared: {{ key: {{ header: x-key }}, mode: shared, algorithm: gcra, rate: 1/d, burst: 9 }}
  guard: {{ key: {{ header: x-key }}, algorithm: gcra, rate: 1/d, burst: 1000 }}
routes: [{{ name: all, upstream: origin, limits: [guard, shared] }}]
",
        origin.upstream(),
        redis.url(),
    );
    let start = |position| nodes.start_with(position, "timeout: 1s", &rest);
    let mut gateways: Vec<Gateway> = (0..3).map(start).collect();
    wait_for_members(&gateways, 3);
    let each = |gateway: &Gateway| (0..KEYS).map(|key| passed(gateway, &key.to_string(), 5)).collect::<Vec<_>>();

    redis.signal("STOP");
    wait_until("all to be without Redis", || !gateways.iter().any(is_closed));
    for gateway in &gateways {
        assert_eq!(each(gateway), [3; KEYS]);
    }
    let all_keys = |gateways: &[Gateway]| gateways.iter().map(keys).sum::<usize>() == KEYS;
    gateways.push(start(3));
    wait_for_members(&gateways, 4);
    wait_until("keys to move to the new member", || keys(&gateways[3]) > 0 && all_keys(&gateways));
    gateways[0].process.signal("TERM");
    let mut leaves = gateways.remove(0);
    wait_for_members(&gateways, 3);
    wait_until("keys to move from the one that leaves", || all_keys(&gateways));

    let [stays, too, new] = [0, 1, 2].map(|gateway| each(&gateways[gateway]));
    assert_eq!([stays, too, new], [[0; KEYS], [0; KEYS], [3; KEYS]]);
    redis.signal("CONT");
    assert!(leaves.process.wait().success());
    let is_reconciled = |gateway: &Gateway| {
        is_closed(gateway) && gateway.metrics().value("tollgate_limit_unsynced_tokens", &[]) == Some(0.0)
    };
    wait_until("all to have reconciled", || gateways.iter().all(is_reconciled));
    assert!(gateways.iter().all(|gateway| each(gateway) == [0; KEYS]));
}
