//! Balancing: the node that the gateway chooses for a request.

use std::collections::HashSet;

use crate::support::gateway::ALL;
use crate::support::origin::upstream;
use crate::support::{Gateway, Origin, RefusingNode, together, wait_until};

fn gateway(origins: &[&Origin], more: &str) -> Gateway {
    let nodes: Vec<String> = origins.iter().map(|origin| origin.node()).collect();
    Gateway::start(&format!("{}{ALL}", upstream(&nodes, more)))
}

#[test]
fn round_robin_takes_turns() {
    let origins = [Origin::start(), Origin::start(), Origin::start()];
    let gateway = gateway(&origins.each_ref(), "balance: round_robin");
    for _ in 0..12 {
        assert_eq!(gateway.get("/", &[]).status, 200);
    }
    assert_eq!(origins.each_ref().map(Origin::count), [4, 4, 4]);
}

#[test]
fn round_robin_follows_the_weights_for_clients_together_too() {
    let origins = [Origin::start(), Origin::start()];
    let nodes = [origins[0].node(), format!("{{ address: {}, weight: 3 }}", origins[1].node())];
    let gateway = Gateway::start(&format!("{}{ALL}", upstream(&nodes, "balance: round_robin")));
    together(8, |_| {
        let mut client = gateway.client();
        for _ in 0..10 {
            assert_eq!(client.get("/").status, 200);
        }
    });
    assert_eq!(origins.each_ref().map(Origin::count), [20, 60]);
}

#[test]
fn consistent_hash_sends_a_value_to_one_node() {
    let origins = [Origin::start(), Origin::start(), Origin::start()];
    let gateway = gateway(&origins.each_ref(), "balance: consistent_hash, hash_on: { header: x-key }");
    let keys: Vec<String> = (0..30).map(|key| format!("key-{key}")).collect();
    together(4, |_| {
        for key in &keys {
            assert_eq!(gateway.get("/", &[("x-key", key)]).status, 200);
        }
    });
    let met = origins.each_ref().map(|origin| {
        let seen = origin.received();
        seen.iter().map(|seen| seen.head.field("x-key").unwrap().to_owned()).collect::<HashSet<String>>()
    });
    assert_eq!(met.iter().map(HashSet::len).sum::<usize>(), 30, "every key met one node");
    assert!(met.iter().all(|keys| keys.len() >= 2), "{met:?}");
}

#[test]
fn least_requests_avoids_the_node_that_is_busy() {
    let origins = [Origin::start(), Origin::start()];
    let gateway = gateway(&origins.each_ref(), "balance: least_requests");
    let mut busy = gateway.client();
    busy.send_request("GET", "/stall", &[]);
    wait_until("the stalled request", || origins.iter().any(|origin| origin.count() == 1));
    let stalled = usize::from(origins[1].count() == 1);
    for _ in 0..10 {
        assert_eq!(gateway.get("/", &[]).status, 200);
        gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 1.0);
    }
    assert_eq!((origins[stalled].count(), origins[1 - stalled].count()), (1, 10));
}

#[test]
fn random_meets_every_node() {
    let origins = [Origin::start(), Origin::start()];
    let gateway = gateway(&origins.each_ref(), "balance: random");
    let mut client = gateway.client();
    wait_until("requests at both nodes", || {
        assert_eq!(client.get("/").status, 200);
        origins.iter().all(|origin| origin.count() > 0)
    });
}

#[test]
fn a_node_that_fails_its_health_check_gets_no_requests_until_it_passes_again() {
    let origins = [Origin::start(), Origin::start()];
    let check = "health_check: { path: /healthz, every: 10ms, healthy_after: 2, unhealthy_after: 2 }";
    let gateway = gateway(&origins.each_ref(), check);
    let mut client = gateway.client();
    for healthy in [false, true, false] {
        origins[0].set_healthy(healthy);
        let nodes = if healthy { 2.0 } else { 1.0 };
        gateway.wait_for_metric("tollgate_upstream_nodes_healthy", &[("upstream", "origin")], nodes);
        let before = origins.each_ref().map(Origin::count);
        for _ in 0..10 {
            assert_eq!(client.get("/").status, 200);
        }
        let met = [0, 1].map(|node: usize| origins[node].count() - before[node]);
        assert_eq!(met, if healthy { [5, 5] } else { [0, 10] });
    }
    let status = gateway.admin_get("/status").json();
    assert_eq!(status["upstreams"][0]["nodes"][0]["healthy"], false);
    assert_eq!(status["upstreams"][0]["nodes"][1]["healthy"], true);
    wait_until("checks of both nodes", || origins.iter().all(|origin| origin.checks() > 4));
}

#[test]
fn a_node_that_dies_is_found_out_by_its_health_check() {
    let mut origins = vec![Origin::start(), Origin::start()];
    let check = "health_check: { path: /healthz, every: 10ms, unhealthy_after: 2 }";
    let gateway = gateway(&origins.iter().collect::<Vec<_>>(), check);
    drop(origins.remove(0));
    gateway.wait_for_metric("tollgate_upstream_nodes_healthy", &[("upstream", "origin")], 1.0);
    for _ in 0..5 {
        assert_eq!(gateway.get("/", &[]).status, 200);
    }
    assert_eq!(origins[0].count(), 5);
}

#[test]
fn a_limit_by_upstream_node_holds_at_each_node_alone() {
    let origins = [Origin::start(), Origin::start()];
    let nodes = [origins[0].node(), format!("{{ address: {}, weight: 3 }}", origins[1].node())];
    let limit = "{ key: upstream_node, algorithm: gcra, rate: 1/h, burst: 5 }";
    let routes = "routes: [{ name: all, upstream: origin, limits: [guard] }]\n";
    let config = format!("{}limits: {{ guard: {limit} }}\n{routes}", upstream(&nodes, "balance: round_robin"));
    let gateway = Gateway::start(&config);
    // in each round of four requests, one goes to the first node and three go to the second
    let statuses: Vec<u16> = (0..24).map(|_| gateway.get("/", &[]).status).collect();
    assert_eq!(origins.each_ref().map(Origin::count), [5, 5], "{statuses:?}");
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 14);
}

#[test]
fn a_node_that_was_chosen_for_a_limit_and_cannot_be_reached_is_replaced() {
    let origin = Origin::start();
    let gone = RefusingNode::new();
    let limit = "{ key: upstream_node, algorithm: gcra, rate: 1/h, burst: 100 }";
    let routes = "routes: [{ name: all, upstream: origin, limits: [guard] }]\n";
    let more = "retries: { attempts: 1, on: [connect_error] }";
    let config = format!("{}limits: {{ guard: {limit} }}\n{routes}", upstream(&[gone.node(), origin.node()], more));
    let gateway = Gateway::start(&config);
    assert!((0..10).all(|_| gateway.get("/", &[]).status == 200));
    assert_eq!(origin.count(), 10);
}
