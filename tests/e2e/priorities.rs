//! Priorities of plans under one limit: lower plans leave tokens for higher ones, on one gateway and on several.

use serde_json::{Value, json};

use crate::admin_api;
use crate::support::client::request;
use crate::support::cluster::{Nodes, SECRET, wait_for_members};
use crate::support::redis::Redis;
use crate::support::{Client, Gateway, Origin, free_port, together, wait_for, wait_until};

const CUSTOMERS: &str = "credential,customer,plan\nfree-key,a,free\nbasic-key,b,basic\npro-key,c,pro\n";

fn config(origin: &Origin, limit: &str) -> String {
    format!(
        "{}customers: {{ identify: [{{ header: x-api-key }}], directory: {{ file: customers.csv }} }}
plans: [free, basic, pro]
limits:
  capacity: {{ {limit}, key: all, priority: {{ free: 50, basic: 80 }} }}
  customer: {{ algorithm: fixed_window, limit: 1000, window: 1d, key: customer }}
routes: [{{ name: all, upstream: origin, limits: [customer, capacity] }}]
usage: {{}}
",
        origin.upstream()
    )
}

const DAY: &str = "algorithm: fixed_window, limit: 100, window: 1d";

fn start(origin: &Origin, limit: &str) -> Gateway {
    Gateway::start_with(&config(origin, limit), &[("customers.csv", CUSTOMERS)], &[])
}

/// The number of admitted requests of 120 that ten clients send to all `gateways`.
fn passed(gateways: &[&Gateway], key: &str) -> usize {
    let passed = together(10, |number| {
        let mut client = gateways[number % gateways.len()].client();
        (0..12).filter(|_| client.round_trip("GET", "/", &[("x-api-key", key)]).status == 200).count()
    });
    passed.into_iter().sum()
}

fn each_plan_gets_its_share(gateways: &[&Gateway], origin: &Origin) {
    assert_eq!(passed(gateways, "free-key"), 50);
    assert_eq!(passed(gateways, "basic-key"), 30);
    assert_eq!(passed(gateways, "free-key"), 0);
    assert_eq!(passed(gateways, "pro-key"), 20);
    assert_eq!(passed(gateways, "basic-key"), 0);
    assert_eq!(origin.count(), 100);
}

#[test]
fn lower_plans_are_denied_before_the_limit_is_spent() {
    let origin = Origin::start();
    let gateway = start(&origin, DAY);
    each_plan_gets_its_share(&[&gateway], &origin);
}

#[test]
fn gateways_that_share_a_limit_in_redis_keep_the_same_room_free() {
    let (origin, redis) = (Origin::start(), Redis::start());
    let shared = format!("{DAY}, mode: shared");
    let config = format!("{}store: {{ redis: \"{}\", timeout: 1s }}\n", config(&origin, &shared), redis.url());
    let gateways: Vec<Gateway> =
        (0..3).map(|_| Gateway::start_with(&config, &[("customers.csv", CUSTOMERS)], &[])).collect();
    each_plan_gets_its_share(&gateways.iter().collect::<Vec<_>>(), &origin);
}

#[test]
fn a_gateway_without_redis_keeps_its_part_of_the_room_free() {
    let origin = Origin::start();
    let shared = config(&origin, &format!("{DAY}, mode: shared"));
    let nobody = format!("store: {{ redis: \"redis://127.0.0.1:{}\", nodes: 2 }}\n", free_port());
    let gateway = Gateway::start_with(&(shared + &nobody), &[("customers.csv", CUSTOMERS)], &[]);
    let shares = ["free-key", "basic-key", "free-key", "pro-key"].map(|key| passed(&[&gateway], key));
    assert_eq!(shares, [25, 15, 0, 10], "of two gateways each enforces half");
}

#[test]
fn gateways_that_divide_keys_keep_the_same_room_free() {
    let origin = Origin::start();
    let nodes = Nodes::new(3);
    let start = |position| {
        let config = nodes.section(position, "timeout: 1s") + &config(&origin, DAY);
        Gateway::start_with(&config, &[("cluster.key", SECRET), ("customers.csv", CUSTOMERS)], &[])
    };
    let gateways: Vec<Gateway> = (0..3).map(start).collect();
    wait_for_members(&gateways, 3);
    each_plan_gets_its_share(&gateways.iter().collect::<Vec<_>>(), &origin);
}

#[test]
fn clients_are_told_of_the_room_of_their_plan() {
    let origin = Origin::start();
    let gateway = start(&origin, DAY);
    let ask = |key: &str| gateway.get("/", &[("x-api-key", key)]);
    let told = |key: &str| {
        let response = ask(key);
        (response.number("x-ratelimit-limit"), response.number("x-ratelimit-remaining"))
    };
    assert_eq!(told("free-key"), (Some(50), Some(49)));
    assert_eq!(told("pro-key"), (Some(100), Some(98)));
    assert_eq!(passed(&[&gateway], "free-key"), 48);
    let denied = ask("free-key");
    assert_eq!((denied.status, denied.number("x-ratelimit-remaining")), (429, Some(0)));
    assert!(denied.number("retry-after").is_some_and(|seconds| seconds > 0), "{denied:?}");
    let usage = gateway.get("/.tollgate/usage", &[("x-api-key", "basic-key")]).json();
    let capacity = usage["limits"].as_array().unwrap().iter().find(|line| line["limit"] == "capacity").unwrap();
    assert_eq!((capacity["quota"].as_u64(), capacity["remaining"].as_u64()), (Some(80), Some(30)), "{capacity}");
    let post = |path: &str, question: Value| admin_api::post(&gateway, path, &[admin_api::HOST], &question).json();
    let peeked = post("/v1/keys/peek", json!({ "limit": "capacity", "plan": "basic" }));
    let explained = post("/v1/explain", json!({ "url": "http://a.example/", "headers": { "x-api-key": "basic-key" } }));
    for terms in [&capacity["terms"], &peeked["terms"], &explained["limits"][1]["terms"]] {
        assert!(terms.as_str().unwrap().ends_with("; leaves 20 to requests of other plans"), "{terms}");
    }
    let limits = admin_api::get(&gateway, "/v1/limits");
    let quotas = limits["limits"][0]["plans"].as_array().unwrap().iter().map(|plan| plan["quota"].as_u64().unwrap());
    assert_eq!(quotas.collect::<Vec<_>>(), [50, 80, 100]);
}

#[test]
fn slots_of_running_requests_are_left_free_for_higher_plans() {
    let (origin, redis) = (Origin::start(), Redis::start());
    for mode in ["sticky", "shared"] {
        let limit = format!("algorithm: concurrency, limit: 4, mode: {mode}");
        let store = format!("store: {{ redis: \"{}\", timeout: 1s }}\n", redis.url());
        let config = config(&origin, &limit) + &store;
        let gateway = Gateway::start_with(&config, &[("customers.csv", CUSTOMERS)], &[]);
        let denied = |plan: &str| {
            let labels = [("route", "all"), ("limit", "capacity"), ("plan", plan), ("outcome", "denied")];
            gateway.metrics().value("tollgate_limit_requests_total", &labels).unwrap_or_default()
        };
        // the slot of a request before may come back a moment after its answer
        let hold = |plan: &str| {
            wait_for("a slot", || {
                let (reached, before) = (origin.count(), denied(plan));
                let mut client = gateway.client();
                client.send(request("GET", "/stall", &[("x-api-key", &format!("{plan}-key"))]));
                wait_until("a decision", || origin.count() > reached || denied(plan) > before);
                (origin.count() > reached).then_some(client)
            })
        };
        let held: [Client; 2] = ["free"; 2].map(hold);
        let status = |key: &str| gateway.get("/", &[("x-api-key", key)]).status;
        assert_eq!((status("free-key"), status("basic-key")), (429, 200), "{mode}");
        wait_until("the slot to come back", || status("basic-key") == 200);
        let more: [Client; 2] = ["pro"; 2].map(hold);
        assert_eq!(status("pro-key"), 429, "{mode}");
        drop((held, more));
        wait_until("a slot for the lowest plan", || status("free-key") == 200);
    }
}
