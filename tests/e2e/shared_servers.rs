//! Limits that gateways share through several Redis servers: a cluster, and a primary whose replica takes over.

use crate::support::redis::Redis;
use crate::support::{Folder, Gateway, Origin, wait_until};

/// The labels of successful calls of this kind.
fn answered(op: &str) -> [(&str, &str); 2] {
    [("op", op), ("result", "ok")]
}

fn calls_of(gateway: &Gateway, op: &str) -> f64 {
    gateway.metrics().value("tollgate_store_requests_total", &answered(op)).unwrap_or_default()
}

/// The section `store:` for the cluster of `servers`.
fn cluster(servers: &[Redis]) -> String {
    let urls: Vec<String> = servers.iter().map(|server| format!("\"{}\"", server.url())).collect();
    format!("store: {{ cluster: [{}], timeout: 1s }}", urls.join(", "))
}

/// The number of scripts that all servers have run.
fn scripts(servers: &[Redis]) -> f64 {
    servers.iter().map(|server| f64::from(u32::try_from(server.calls("evalsha")).unwrap())).sum()
}

#[test]
fn limits_of_one_customer_are_one_call_in_a_cluster() {
    const CUSTOMERS: usize = 12;
    let (origin, folder) = (Origin::start(), Folder::new());
    let servers = Redis::start_cluster(&folder, None);
    let rows = (0..CUSTOMERS).map(|number| format!("key-{number},customer-{number},free\n"));
    let directory = format!("credential,customer,plan\n{}", rows.collect::<String>());
    let config = format!(
        "{}{}
customers: {{ identify: [{{ header: x-api-key }}], directory: {{ file: customers.csv }} }}
plans: [free]
limits:
  rate: {{ key: customer, mode: shared, algorithm: gcra, rate: 1/h, burst: 5 }}
  day: {{ key: customer, mode: shared, algorithm: fixed_window, limit: 4, window: 1d }}
  log: {{ key: [customer, path], mode: shared, algorithm: sliding_log, limit: 3, window: 1h }}
routes: [{{ name: all, upstream: origin, limits: [rate, day, log] }}]
",
        origin.upstream(),
        cluster(&servers),
    );
    let gateway = Gateway::start_with(&config, &[("customers.csv", &directory)], &[]);
    let status = |number: usize| gateway.get("/", &[("x-api-key", &format!("key-{number}"))]).status;
    // load the script on every server first
    (0..CUSTOMERS).for_each(|number| assert_eq!(status(number), 200));
    for server in &servers {
        assert!(!server.keys("tollgate:*").is_empty(), "customers with each server");
    }
    let (sent, beats, charges) = (scripts(&servers), calls_of(&gateway, "heartbeat"), calls_of(&gateway, "charge"));
    for number in 0..CUSTOMERS {
        assert_eq!([status(number), status(number)], [200, 200]);
    }
    let sent = scripts(&servers) - sent;
    let (beats, charges) = (calls_of(&gateway, "heartbeat") - beats, calls_of(&gateway, "charge") - charges);
    assert_eq!(charges, 24.0, "a call for each request");
    // a heartbeat may be counted on one side only
    assert!((sent - beats - charges).abs() <= 1.0, "{sent} scripts, {beats} heartbeats, {charges} charges");
    // the tightest of the limits decides
    (0..CUSTOMERS).for_each(|number| assert_eq!(status(number), 429));
    assert_eq!(origin.count(), 3 * CUSTOMERS);
}

#[test]
fn tokens_of_one_redis_slot_are_refunded_when_another_denies() {
    const KEYS: usize = 12;
    let (origin, folder) = (Origin::start(), Folder::new());
    let servers = Redis::start_cluster(&folder, None);
    let config = format!(
        "{}{}
limits:
  broad: {{ key: all, mode: shared, algorithm: gcra, rate: 1/h, burst: {} }}
  own: {{ key: {{ header: x-key }}, mode: shared, algorithm: gcra, rate: 1/h, burst: 1 }}
routes: [{{ name: all, upstream: origin, limits: [broad, own] }}]
",
        origin.upstream(),
        cluster(&servers),
        2 * KEYS,
    );
    let gateways = [(); 2].map(|()| Gateway::start(&config));
    let status = |gateway: usize, key: &str| gateways[gateway].get("/", &[("x-key", key)]).status;
    let keys: Vec<String> = (0..KEYS).map(|number| format!("key-{number}")).collect();
    for key in &keys {
        assert_eq!(status(0, key), 200);
    }
    // the other gateway does not know that they are spent: it charges the broad limit first, and refunds it when `own`
    // denies
    for (key, given_back) in keys.iter().zip(1_u32..) {
        assert_eq!(status(1, key), 429);
        gateways[1].wait_for_metric("tollgate_store_requests_total", &answered("refund"), f64::from(given_back));
    }
    for key in &keys {
        assert_eq!(status(0, &format!("new {key}")), 200, "nothing but what passed was taken");
    }
    assert_eq!(status(0, "newer"), 429);
    assert_eq!(origin.count(), 2 * KEYS);
}

#[test]
fn a_server_that_hangs_costs_only_the_requests_for_its_keys_a_few_timeouts() {
    const KEYS: usize = 24;
    let (origin, folder) = (Origin::start(), Folder::new());
    let servers = Redis::start_cluster(&folder, None);
    let urls: Vec<String> = servers.iter().map(|server| format!("\"{}\"", server.url())).collect();
    let config = format!(
        "{}store: {{ cluster: [{}], timeout: 100ms }}
limits: {{ own: {{ key: {{ header: x-key }}, mode: shared, algorithm: gcra, rate: 1/h, burst: 1000 }} }}
routes: [{{ name: all, upstream: origin, limits: [own] }}]
",
        origin.upstream(),
        urls.join(", "),
    );
    let gateway = Gateway::start(&config);
    let ask_all = || (0..KEYS).all(|key| gateway.get("/", &[("x-key", &format!("key-{key}"))]).status == 200);
    let calls = |result: &str| {
        let labels = [("op", "charge"), ("result", result)];
        gateway.metrics().value("tollgate_store_requests_total", &labels).unwrap_or_default()
    };
    assert!(ask_all());
    let [hangs, others @ ..] = &servers[..] else { panic!("no servers") };
    hangs.signal("STOP");
    let is_closed = |server: &Redis| {
        let status = gateway.admin_get("/status").json();
        let name = format!("127.0.0.1:{}", server.port);
        let known =
            status["store"]["servers"].as_array().unwrap().iter().find(|known| known["server"] == name).cloned();
        known.is_some_and(|known| known["breaker"] == "closed")
    };
    wait_until("the breaker of the server to open", || ask_all() && !is_closed(hangs));
    let (answered, late) = (calls("ok"), calls("timeout") + calls("error"));
    (0..5).for_each(|_| assert!(ask_all()));
    // calls that were sent before may still end
    assert!(calls("timeout") + calls("error") - late < 5.0, "no request asks the server that hangs");
    assert!(calls("ok") > answered, "the others are asked");
    assert!(others.iter().all(is_closed));
    hangs.signal("CONT");
    wait_until("the server to be asked again", || is_closed(hangs));
    gateway.wait_for_metric("tollgate_limit_unsynced_tokens", &[], 0.0);
    let answered = calls("ok");
    assert!(ask_all());
    assert!(calls("ok") - answered >= KEYS as f64, "all keys are asked for");
}

#[test]
fn another_server_takes_over_and_nobody_gets_an_error_or_a_fresh_bucket() {
    const BURST: usize = 6;
    let (origin, folder) = (Origin::start(), Folder::new());
    let primary = Redis::start();
    let replica = primary.start_replica();
    let sentinel = primary.start_sentinel(&folder);
    let config = format!(
        "{}store: {{ sentinel: {{ master: mymaster, nodes: [\"127.0.0.1:{}\"] }}, timeout: 200ms }}
limits: {{ guard: {{ key: {{ header: x-key }}, mode: shared, algorithm: gcra, rate: 1/h, burst: {BURST} }} }}
routes: [{{ name: all, upstream: origin, limits: [guard] }}]
",
        origin.upstream(),
        sentinel.port,
    );
    let gateways = [(); 2].map(|()| Gateway::start(&config));
    let passed = |gateway: usize, key: &str| {
        let statuses: Vec<u16> = (0..10).map(|_| gateways[gateway].get("/", &[("x-key", key)]).status).collect();
        assert!(statuses.iter().all(|status| matches!(status, 200 | 429)), "{statuses:?}");
        statuses.iter().filter(|status| **status == 200).count()
    };
    for gateway in &gateways {
        gateway.wait_for_metric("tollgate_cluster_members", &[], 2.0);
    }
    assert_eq!(passed(0, "kept"), BURST);
    let key = primary.keys("tollgate:*guard*").pop().unwrap();
    wait_until("the replica to have it", || replica.command_raw(&["GET", &key]) == primary.command_raw(&["GET", &key]));
    // the replica does not receive the requests that are spent from here on
    replica.signal("STOP");
    assert_eq!(primary.command(&["CLIENT", "KILL", "TYPE", "replica"]), ":1");
    assert_eq!(passed(0, "lost"), BURST);
    primary.signal("KILL");
    replica.signal("CONT");
    let mut number = 0;
    wait_until("the replica to take over", || {
        number += 1;
        passed(number % 2, &format!("key-{number}"));
        // the replica closes connections during the failover
        replica.try_command_raw(&["ROLE"]).is_ok_and(|role| role.contains("master"))
    });
    for gateway in &gateways {
        gateway.wait_for_metric("tollgate_store_breaker_state", &[("state", "closed")], 1.0);
        gateway.wait_for_metric("tollgate_cluster_members", &[], 2.0);
    }
    assert_eq!([passed(0, "kept"), passed(1, "kept")], [0, 0]);
    assert_eq!(passed(0, "lost"), 0, "its gateway remembers");
    assert!(passed(1, "lost") <= BURST, "a bucket at most");
    assert_eq!(passed(0, "new") + passed(1, "new"), BURST);
}
