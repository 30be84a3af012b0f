//! Gateways that join, leave, hang and return: the states of keys move to their owners, and no limit starts afresh.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::restarts::Lineage;
use crate::support::cluster::{Nodes, keys, members, wait_for_members};
use crate::support::gateway::proxied;
use crate::support::{Client, Gateway, Origin, SetOnDrop, free_port, now, wait_until};

/// No token refills while a test runs.
const LIMIT: &str = "algorithm: gcra, rate: 1/d, burst: 5000";
const BURST: u64 = 5000;
const KEYS: usize = 40;

/// Sends requests for all keys to `gateways`, and to those that `during` adds, as fast as they answer, until `during`
/// returns. Returns the number of admitted requests of each key.
fn under_load(gateways: &[&Gateway], during: impl FnOnce(&dyn Fn(&Gateway))) -> HashMap<usize, u64> {
    let (over, passed) = (AtomicBool::new(false), Mutex::new(HashMap::new()));
    std::thread::scope(|scope| {
        let (over, passed) = (&over, &passed);
        let ask = move |mut client: Client, offset: usize| {
            for number in (0..KEYS).cycle().skip(offset) {
                if over.load(Ordering::Relaxed) {
                    return;
                }
                let response = client.round_trip("GET", "/", &[("x-key", &number.to_string())]);
                assert_eq!(response.status, 200, "{response:?}");
                *passed.lock().entry(number).or_default() += 1;
            }
        };
        for (position, gateway) in gateways.iter().enumerate() {
            let client = gateway.client();
            scope.spawn(move || ask(client, position * 7));
        }
        let joins = |gateway: &Gateway| {
            let client = gateway.client();
            scope.spawn(move || ask(client, 23));
        };
        let ends = SetOnDrop(over);
        during(&joins);
        drop(ends);
    });
    passed.into_inner()
}

/// The tokens that a key had before this request, which itself costs one.
fn left(gateway: &Gateway, number: usize) -> u64 {
    let response = gateway.get("/", &[("x-key", &number.to_string())]);
    assert_eq!(response.status, 200, "{response:?}");
    response.number("x-ratelimit-remaining").unwrap() + 1
}

/// Asserts that every key has counted each of its requests once, whichever gateway is asked.
fn assert_all_counted(gateways: &[Gateway], passed: &HashMap<usize, u64>) {
    for (turn, number) in (0..KEYS).enumerate() {
        let left = left(&gateways[turn % gateways.len()], number);
        assert_eq!(left + passed[&number], BURST, "key {number}");
    }
}

fn all(gateways: &[Gateway]) -> Vec<&Gateway> {
    gateways.iter().collect()
}

#[test]
fn a_gateway_that_joins_takes_its_share_of_the_keys_and_refills_none() {
    let origin = Origin::start();
    let nodes = Nodes::new(4);
    let start = |position| nodes.start(position, &origin, "timeout: 1s", LIMIT);
    let mut gateways: Vec<Gateway> = (0..3).map(start).collect();
    wait_for_members(&gateways, 3);
    let mut fourth = None;
    let passed = under_load(&all(&gateways), |joins| {
        wait_until("all keys to be known", || gateways.iter().map(keys).sum::<usize>() == KEYS);
        let gateway = start(3);
        joins(&gateway);
        wait_until("four members", || gateways.iter().chain([&gateway]).all(|gateway| members(gateway).len() == 4));
        wait_until("keys to move", || {
            gateways.iter().map(keys).sum::<usize>() + keys(&gateway) == KEYS && keys(&gateway) > 0
        });
        fourth = Some(gateway);
    });
    gateways.extend(fourth);
    let shares: Vec<usize> = gateways.iter().map(keys).collect();
    assert_eq!(shares.iter().sum::<usize>(), KEYS, "{shares:?}");
    // 10 on average; fewer than 2 or more than 22 happen once in ten thousand such tests
    assert!((2..=22).contains(&shares[3]), "{shares:?}");
    assert_all_counted(&gateways, &passed);
}

#[test]
fn a_gateway_that_ends_gives_its_keys_away_and_refills_none() {
    let origin = Origin::start();
    let mut gateways = Nodes::new(3).start_all(&origin, LIMIT);
    let mut ends = gateways.pop().unwrap();
    let passed = under_load(&all(&gateways), |_| {
        let known = || gateways.iter().map(keys).sum::<usize>() + keys(&ends);
        wait_until("all keys to be known", || known() == KEYS);
        ends.process.signal("TERM");
        wait_for_members(&gateways, 2);
        assert!(ends.process.wait().success());
        wait_until("all keys to have moved", || gateways.iter().map(keys).sum::<usize>() == KEYS);
    });
    assert_all_counted(&gateways, &passed);
}

#[test]
fn a_gateway_that_was_stopped_goes_on_with_what_those_counted_who_stood_in() {
    let origin = Origin::start();
    let gateways = Nodes::new(3).start_all(&origin, "algorithm: gcra, rate: 1/d, burst: 2");
    let ask = |gateway: &Gateway, key: usize| gateway.get("/", &[("x-key", &key.to_string())]).status;
    for key in 0..KEYS {
        assert_eq!(ask(&gateways[0], key), 200);
    }
    let (stopped, others) = gateways.split_last().unwrap();
    assert!(keys(stopped) > 0);
    stopped.process.signal("STOP");
    wait_for_members(others, 2);
    for key in 0..KEYS {
        // until the burst is spent, whatever the other gateways knew of the key
        wait_until("the burst to end", || ask(&others[0], key) == 429);
    }
    stopped.process.signal("CONT");
    wait_for_members(&gateways, 3);
    for key in 0..KEYS {
        assert!(gateways.iter().all(|gateway| ask(gateway, key) == 429), "key {key}");
    }
    wait_until("keys to move back", || keys(stopped) > 0);
}

/// A stall that is too short for the cluster to notice leaves a second, nearly fresh state of each key with the stand-in.
#[test]
fn a_spent_quota_stays_spent_when_the_owner_leaves_after_a_stall() {
    let origin = Origin::start();
    let nodes = Nodes::new(2);
    let limit = "algorithm: quota_reset, limit: 20, window: 1d";
    let mut gateways: Vec<Gateway> = (0..2).map(|node| nodes.start(node, &origin, "timeout: 250ms", limit)).collect();
    wait_for_members(&gateways, 2);
    let ask = |gateway: &Gateway, key: usize| gateway.get("/", &[("x-key", &key.to_string())]).status;
    let mut owner = gateways.pop().unwrap();
    let heir = &gateways[0];
    for key in 0..KEYS {
        // the heir does not know of the owner's denials
        wait_until("the quota to end", || ask(&owner, key) == 429);
    }
    let owned = keys(&owner);
    owner.process.signal("STOP");
    let stood_in = (0..KEYS).filter(|key| ask(heir, *key) == 200).count();
    owner.process.signal("CONT");
    assert_eq!(stood_in, owned);
    let up = [("peer", &*nodes.0[1].to_string())];
    wait_until("the owner to be asked", || heir.metrics().value("tollgate_peer_up", &up) == Some(1.0));
    // the states that the heir kept during the stall move back to the owner
    wait_until("the states to go back", || keys(heir) == KEYS - owned && keys(&owner) == owned);
    owner.process.signal("TERM");
    assert!(owner.process.wait().success());
    let passed = (0..KEYS).filter(|key| ask(&gateways[0], *key) == 200).count();
    assert_eq!(passed, 0, "of {owned} keys whose owner left");
}

/// Another gateway waits for a state for half of the timeout, which is less than the time for which the owner is silent.
#[test]
fn a_spent_quota_stays_spent_while_its_owner_hands_over() {
    let origin = Origin::start();
    let nodes = Nodes::new(3);
    let limit = "algorithm: quota_reset, limit: 5, window: 1d";
    let mut gateways: Vec<Gateway> = (0..3).map(|node| nodes.start(node, &origin, "timeout: 400ms", limit)).collect();
    wait_for_members(&gateways, 3);
    let ask = |client: &mut Client, key: &str| client.round_trip("GET", "/", &[("x-key", key)]).status;
    let spent: Vec<String> = (0..KEYS).map(|key| key.to_string()).collect();
    for key in &spent {
        assert_eq!([(); 6].map(|()| ask(&mut gateways[0].client(), key)), [200, 200, 200, 200, 200, 429]);
    }
    assert!(keys(&gateways[2]) > 0);
    let mut lineage = Lineage::of(gateways.pop().unwrap());
    // the owner waits 250 ms for the request of a new connection
    let _silent = lineage.gateway.client();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for (gateway, keys) in
            gateways.iter().flat_map(|gateway| spent.chunks(KEYS / 4).map(move |keys| (gateway, keys)))
        {
            let (over, mut client) = (&over, gateway.client());
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    keys.iter().for_each(|key| assert_eq!(ask(&mut client, key), 429, "key {key}"));
                }
            });
        }
        let _ends = SetOnDrop(&over);
        lineage.upgrade();
        wait_for_members(&gateways, 3);
    });
}

#[test]
fn a_changed_list_of_peers_is_taken_up_by_a_reload_and_keys_move() {
    let origin = Origin::start();
    let (few, all) = (Nodes::new(2), Nodes::new(3));
    // the first two members stay the same
    let all = Nodes(few.0.iter().chain(all.0.last()).copied().collect());
    let rest = "limits: { guard: { key: { header: x-key }, algorithm: gcra, rate: 1/d, burst: 3 } }
routes: [{ name: all, upstream: origin, limits: [guard] }]
";
    let rest = format!("{}{rest}", origin.upstream());
    let mut gateways: Vec<Gateway> = (0..2).map(|node| few.start_with(node, "timeout: 1s", &rest)).collect();
    wait_for_members(&gateways, 2);
    let ask = |gateway: &Gateway, key: usize| gateway.get("/", &[("x-key", &key.to_string())]).status;
    for key in 0..KEYS {
        assert!((0..3).all(|_| ask(&gateways[0], key) == 200));
    }
    gateways.push(all.start_with(2, "timeout: 1s", &rest));
    for (position, gateway) in gateways.iter().enumerate().take(2) {
        gateway.rewrite(&format!("{}{rest}", all.section(position, "timeout: 1s")));
        assert_eq!(gateway.reload().status, 200);
    }
    wait_for_members(&gateways, 3);
    for key in 0..KEYS {
        assert!(gateways.iter().all(|gateway| ask(gateway, key) == 429), "key {key}");
    }
    assert!(keys(&gateways[2]) > 0);
    // a reload cannot change the address of the gateway itself
    gateways[0].rewrite(&format!("{}{rest}", all.section(1, "timeout: 1s")));
    let refused = gateways[0].reload();
    assert!(refused.text().contains("cluster.self: cannot change while tollgate runs"), "{}", refused.text());
}

#[test]
fn gateways_send_a_value_to_one_node_and_guard_that_node_together() {
    let origins = [Origin::start(), Origin::start(), Origin::start()];
    let addresses: Vec<String> = origins.iter().map(|origin| format!("\"{}\"", origin.address)).collect();
    let rest = format!(
        "upstreams: {{ origin: {{ nodes: [{}], balance: consistent_hash, hash_on: {{ header: x-key }} }} }}
limits: {{ guard: {{ key: upstream_node, algorithm: gcra, rate: 1/d, burst: 30 }} }}
routes: [{{ name: all, upstream: origin, limits: [guard] }}]
",
        addresses.join(", ")
    );
    let nodes = Nodes::new(2);
    let gateways: Vec<Gateway> = (0..2).map(|node| nodes.start_with(node, "timeout: 1s", &rest)).collect();
    wait_for_members(&gateways, 2);
    let counts = || origins.iter().map(Origin::count).collect::<Vec<_>>();
    let ask = |gateway: &Gateway, key: usize| gateway.get("/", &[("x-key", &key.to_string())]).status;
    for key in 0..KEYS / 4 {
        let before = counts();
        assert!(gateways.iter().all(|gateway| ask(gateway, key) == 200));
        let moved: Vec<usize> = counts().iter().zip(before).map(|(after, before)| after - before).collect();
        assert!(moved.contains(&2), "key {key} went to {moved:?}");
    }
    for key in 0..KEYS * 4 {
        ask(&gateways[key % 2], key);
    }
    assert_eq!(counts(), [30, 30, 30]);
}

/// A node that returns is cold again: all gateways together send it a third of the rate at first.
#[test]
fn a_node_that_comes_back_is_warmed_up_by_all_gateways_together() {
    let origin = Origin::start();
    let check = "health_check: { path: /healthz, every: 10ms, healthy_after: 2, unhealthy_after: 2 }";
    let rest = format!(
        "upstreams: {{ origin: {{ nodes: [{}], {check} }} }}
limits:
  gently:
    key: upstream_node
    algorithm: smooth_warming_up
    rate: 1/20ms
    warm_up: 400ms
    over_limit: {{ delay: {{ max_wait: 20s }} }}
routes: [{{ name: all, upstream: origin, limits: [gently] }}]
",
        origin.node()
    );
    let nodes = Nodes::new(2);
    let gateways: Vec<Gateway> = (0..2).map(|node| nodes.start_with(node, "timeout: 1s", &rest)).collect();
    wait_for_members(&gateways, 2);
    let healthy = |nodes: f64| {
        for gateway in &gateways {
            gateway.wait_for_metric("tollgate_upstream_nodes_healthy", &[("upstream", "origin")], nodes);
        }
    };
    // the cost of each of 10 permits from cold, as in `waiting`
    let price = |number: u64| Duration::from_millis(58 - 4 * number);
    for _ in 0..2 {
        healthy(1.0);
        let mut clients: Vec<Client> = (0..10).map(|number| gateways[number % 2].client()).collect();
        let (before, began) = (origin.count(), now());
        clients.iter_mut().for_each(|client| client.send_request("GET", "/", &[]));
        assert!(clients.iter_mut().all(|client| client.receive().status == 200));
        let seen = origin.received();
        for (number, seen) in (0..).zip(&seen[before..]) {
            let (came, due): (_, Duration) = (seen.at - began, (0..number).map(price).sum());
            assert!(came + Duration::from_millis(1) >= due, "number {number} came after {came:?}, due after {due:?}");
        }
        origin.set_healthy(false);
        healthy(0.0);
        let cold = now() + Duration::from_secs(1);
        wait_until("the node to be cold", || now() >= cold);
        origin.set_healthy(true);
    }
}

#[test]
fn a_name_that_stands_for_nobody_changes_nothing_and_one_that_does_is_followed() {
    let origin = Origin::start();
    let port = free_port();
    let start = |name: &str| {
        let cluster = format!(
            "cluster: {{ self: \"127.0.0.1:{port}\", peers: {{ dns: {name}, every: 100ms }}, min_members: 1, secret_file: cluster.key }}\n"
        );
        let config = format!("{cluster}{}", proxied(&origin, ""));
        Gateway::start_with(&config, &[("cluster.key", crate::support::cluster::SECRET)], &[])
    };
    let nobody = start("nobody.invalid");
    let failures = "tollgate_cluster_discovery_failures_total";
    wait_until("looks to fail", || nobody.metrics().value(failures, &[]) > Some(1.0));
    assert_eq!(nobody.get("/", &[]).status, 200);
    assert_eq!(members(&nobody), [format!("127.0.0.1:{port}")]);
    drop(nobody);
    let local = start("localhost");
    wait_for_members(std::slice::from_ref(&local), 1);
    assert_eq!(local.get("/", &[]).status, 200);
    assert_eq!(local.metrics().value(failures, &[]), Some(0.0));
}

/// What the list named counts as known when the name is looked up for the first time.
#[test]
fn a_name_that_takes_the_place_of_a_list_and_lacks_most_gateways_changes_nothing() {
    let origin = Origin::start();
    let port = free_port();
    let nodes = Nodes((1..=3).map(|last| ([127, 0, 0, last], port).into()).collect());
    let rest = proxied(&origin, "");
    let gateways: Vec<Gateway> = (0..3).map(|node| nodes.start_with(node, "timeout: 1s", &rest)).collect();
    wait_for_members(&gateways, 3);
    let named = format!(
        "cluster: {{ self: \"127.0.0.1:{port}\", peers: {{ dns: localhost, every: 100ms }}, secret_file: cluster.key, timeout: 1s }}\n"
    );
    gateways[0].rewrite(&format!("{named}{rest}"));
    assert_eq!(gateways[0].reload().status, 200);
    wait_until("looks whose answer is not used", || {
        gateways[0].metrics().value("tollgate_cluster_discovery_failures_total", &[]) > Some(1.0)
    });
    assert_eq!(members(&gateways[0]).len(), 3);
}
