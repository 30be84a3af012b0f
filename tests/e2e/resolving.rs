//! Nodes that are host names: the gateway uses all their addresses, and leaves out those that fail.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde_json::json;

use crate::admin_api::{HOST, post};
use crate::restarts::Lineage;
use crate::support::client::Client;
use crate::support::gateway::{ALL, is_ready};
use crate::support::process::signal;
use crate::support::{Folder, Gateway, Origin, Process, free_port, now, wait_until};

/// Name resolution with a hosts file of this test.
struct Hosts(Folder);

impl Hosts {
    fn new(addresses: &[u8]) -> Self {
        let hosts = Self(Folder::new());
        hosts.set(addresses);
        hosts
    }

    /// Gives `many.test` each address 127.0.0.N.
    fn set(&self, addresses: &[u8]) {
        let lines: String = addresses.iter().map(|last| format!("127.0.0.{last} many.test\n")).collect();
        self.0.write("new", format!("127.0.0.1 one.test\n{lines}"));
        std::fs::rename(self.0.path().join("new"), self.0.path().join("hosts")).unwrap();
    }

    fn environment(&self) -> [(&'static str, String); 2] {
        let hosts = self.0.path().join("hosts");
        [("LD_PRELOAD", "libnss_wrapper.so".to_owned()), ("NSS_WRAPPER_HOSTS", hosts.to_str().unwrap().to_owned())]
    }

    fn start(&self, config: &str) -> Gateway {
        let environment = self.environment();
        let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
        Gateway::start_with(config, &[], &environment)
    }
}

/// One upstream at each 127.0.0.N, all on the same port.
fn origins(addresses: &[u8]) -> (Vec<Origin>, u16) {
    let port = free_port();
    let at = |last: &u8| Origin::at(SocketAddr::from((Ipv4Addr::new(127, 0, 0, *last), port)));
    (addresses.iter().map(at).collect(), port)
}

fn upstream(port: u16, more: &str) -> String {
    format!("upstreams: {{ origin: {{ nodes: [\"many.test:{port}\"]{more} }} }}\n{ALL}")
}

#[test]
fn all_addresses_of_a_host_name_are_used() {
    let hosts = Hosts::new(&[2, 3, 4]);
    let (origins, port) = origins(&[2, 3, 4]);
    let gateway = hosts.start(&upstream(port, ""));
    let mut client = gateway.client();
    for _ in 0..30 {
        assert_eq!(client.get("/").status, 200);
    }
    assert_eq!(origins.iter().map(Origin::count).collect::<Vec<_>>(), [10, 10, 10]);
    gateway.wait_for_metric("tollgate_upstream_nodes_healthy", &[("upstream", "origin")], 3.0);
    let nodes = gateway.admin_get("/status").json()["upstreams"][0]["nodes"].clone();
    let shown = |node: &serde_json::Value| (node["address"].clone(), node["resolved"].clone(), node["healthy"].clone());
    let expected = [2, 3, 4].map(|last| {
        (format!("many.test:{port}").into(), format!("127.0.0.{last}:{port}").into(), serde_json::Value::from(true))
    });
    assert_eq!(nodes.as_array().unwrap().iter().map(shown).collect::<Vec<_>>(), expected);
}

#[test]
fn keys_of_a_node_with_a_host_name_are_named_by_its_address() {
    let by_node = |port: u16| {
        let limit = "limits: { by-node: { algorithm: gcra, rate: 1/30d, burst: 5, key: upstream_node } }\n";
        let all = "routes: [{ name: all, upstream: origin, limits: [by-node] }]\n";
        format!("{limit}{}", upstream(port, "").replace(ALL, all))
    };
    let (_origins, port) = origins(&[2, 3]);
    let gateway = Hosts::new(&[2]).start(&by_node(port));
    assert_eq!(gateway.get("/", &[]).status, 200);
    let request = json!({ "url": "http://localhost/" });
    let peek = |gateway: &Gateway, key: serde_json::Value| post(gateway, "/v1/keys/peek", &[HOST], &key);
    let named = |node: &str| peek(&gateway, json!({ "limit": "by-node", "key": { "upstream_node": node } }));
    let by_request = json!({ "limit": "by-node", "request": request });
    for found in [named(&format!("127.0.0.2:{port}")), peek(&gateway, by_request.clone())] {
        assert_eq!(found.json()["standing"]["remaining"], 4, "{found:?}");
    }
    for unknown in [format!("many.test:{port}"), format!("127.0.0.3:{port}")] {
        assert!(named(&unknown).text().contains("there is no such node"), "{unknown}");
    }
    let limit = post(&gateway, "/v1/explain", &[HOST], &request).json()["limits"][0].clone();
    let address = format!("127.0.0.2:{port}");
    assert_eq!((&limit["key"][0]["value"], &limit["standing"]["remaining"]), (&json!(address), &json!(4)));

    let gateway = Hosts::new(&[2, 3]).start(&by_node(port));
    assert!(peek(&gateway, by_request).text().contains("which is not known; name the parts"));
    let limit = post(&gateway, "/v1/explain", &[HOST], &request).json()["limits"][0].clone();
    assert!(limit["key"][0]["value"].as_str().unwrap().ends_with("or one of the 1 other nodes"), "{limit:#}");
}

#[test]
fn an_address_that_refuses_connections_is_passed_over() {
    let hosts = Hosts::new(&[2, 3]);
    let (origins, port) = origins(&[3]);
    let gateway = hosts.start(&upstream(port, ""));
    let mut client = gateway.client();
    for number in 0..20 {
        assert_eq!(client.post("/echo", &[], b"once").status, 200, "{number}");
    }
    assert_eq!(origins[0].count(), 20);
}

#[test]
fn the_health_of_each_address_is_checked() {
    let hosts = Hosts::new(&[2, 3]);
    let (origins, port) = origins(&[2, 3]);
    let check = ", health_check: { path: /healthz, every: 10ms, healthy_after: 1, unhealthy_after: 2 }";
    let gateway = hosts.start(&upstream(port, check));
    let healthy = |count: f64| {
        gateway.wait_for_metric("tollgate_upstream_nodes_healthy", &[("upstream", "origin")], count);
    };
    for (sick, other) in [(0, 1), (1, 0)] {
        origins[sick].set_healthy(false);
        healthy(1.0);
        let before = (origins[sick].count(), origins[other].count());
        let mut client = gateway.client();
        for _ in 0..10 {
            assert_eq!(client.get("/").status, 200);
        }
        assert_eq!((origins[sick].count(), origins[other].count()), (before.0, before.1 + 10));
        origins[sick].set_healthy(true);
        healthy(2.0);
    }
}

#[test]
fn a_host_name_whose_addresses_change_is_followed() {
    let hosts = Hosts::new(&[2, 3]);
    let (origins, port) = origins(&[2, 3, 4]);
    let gateway = hosts.start(&upstream(port, ""));
    hosts.set(&[3, 4]);
    let mut client = gateway.client();
    wait_until("requests to the new address", || {
        assert_eq!(client.get("/").status, 200);
        origins[2].count() > 0
    });
    let before = origins[0].count();
    for _ in 0..10 {
        assert_eq!(client.get("/").status, 200);
    }
    assert_eq!(origins[0].count(), before, "the address that went gets no requests");
}

#[test]
fn addresses_of_one_host_name_are_hashed_like_nodes() {
    let hosts = Hosts::new(&[2, 3, 4]);
    let (origins, port) = origins(&[2, 3, 4]);
    let gateway = hosts.start(&upstream(port, ", balance: consistent_hash, hash_on: { header: x-user }"));
    let mut client = gateway.client();
    for _ in 0..3 {
        for user in 0..40 {
            let user = user.to_string();
            assert_eq!(client.round_trip("GET", "/", &[("x-user", &user)]).status, 200);
        }
    }
    let users = |origin: &Origin| -> BTreeSet<String> {
        origin.received().iter().map(|seen| seen.head.field("x-user").unwrap().to_owned()).collect()
    };
    let at: Vec<_> = origins.iter().map(users).collect();
    assert!(at.iter().all(|users| !users.is_empty()), "{at:?}");
    assert_eq!(at.iter().map(BTreeSet::len).sum::<usize>(), 40, "each user is at one address");
}

/// Starts a gateway, and does not wait until it is ready.
fn start_unready(hosts: &Hosts, folder: &Folder, config: &str) -> (Process, SocketAddr, SocketAddr) {
    let [address, admin] = [free_port(), free_port()].map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let listeners = format!("listeners: [{{ address: \"{address}\" }}]\nadmin: {{ address: \"{admin}\" }}\n");
    folder.write("tollgate.yaml", format!("{listeners}{config}"));
    let environment = hosts.environment();
    let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
    (Process::tollgate(&["run", "--config", "tollgate.yaml"], folder.path(), &environment), address, admin)
}

#[test]
fn a_gateway_that_is_ready_has_resolved_its_host_names() {
    let (folder, hosts) = (Folder::new(), Hosts::new(&[]));
    let (origins, port) = origins(&[2]);
    let (_process, address, admin) = start_unready(&hosts, &folder, &upstream(port, ""));
    // The gateway opens its socket before it resolves names: early connections wait.
    wait_until("the socket", || std::net::TcpStream::connect(address).is_ok());
    let mut early = Client::connect(address);
    early.send_request("GET", "/early", &[]);
    let began = now();
    wait_until("a gateway that does not wait to be ready", || now() - began > Duration::from_secs(1));
    hosts.set(&[2]);
    wait_until("the gateway to be ready", || is_ready(admin));
    assert_eq!(Client::connect(address).get("/").status, 200);
    assert_eq!(early.receive().status, 200);
    assert_eq!(origins[0].count(), 2);
}

#[test]
fn a_gateway_whose_host_name_cannot_be_resolved_starts_all_the_same() {
    let (folder, hosts) = (Folder::new(), Hosts::new(&[]));
    let (origins, port) = origins(&[2]);
    // an address in place of a name: nss_wrapper sometimes crashes when two threads resolve names at once
    let others = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let config = format!(
        "upstreams: {{ origin: {{ nodes: [\"many.test:{port}\"] }}, other: {{ nodes: [\"{others}\"] }} }}\n{ALL}"
    );
    let (process, address, admin) = start_unready(&hosts, &folder, &config);
    wait_until("the gateway to be ready", || is_ready(admin));
    assert_eq!(Client::connect(address).get("/").status, 503);
    wait_until("a warning", || process.stderr().contains("cannot resolve"));
    assert!(process.stderr().contains("many.test"), "{}", process.stderr());
    const REASON: &str = "failed to lookup address information";
    let failure = || Client::connect(admin).get("/status").json()["upstreams"][0]["nodes"][0]["failure"].clone();
    assert!(failure().as_str().unwrap().starts_with("cannot resolve the host name: failed"), "{}", failure());
    assert!(process.stderr().contains(REASON), "{}", process.stderr());
    hosts.set(&[2]);
    wait_until("the upstream", || Client::connect(address).get("/").status == 200);
    assert!(origins[0].count() > 0);
    wait_until("word of it", || process.stderr().contains("the node's host name is resolved again"));
    assert_eq!(failure(), serde_json::Value::Null);
    hosts.set(&[]);
    wait_until("the failure while the address stays in use", || failure().is_string());
    assert_eq!(Client::connect(address).get("/").status, 200);
}

#[test]
fn a_reload_waits_for_the_addresses_of_new_nodes() {
    let hosts = Hosts::new(&[2]);
    let (_origins, port) = origins(&[2, 3]);
    let gateway = hosts.start(&upstream(port, ""));
    gateway.rewrite(&upstream(port, "").replace("many.test", "one.test"));
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(gateway.get("/", &[]).status, 502, "nothing listens at the only address");
    gateway.rewrite(&upstream(port, ", balance: random"));
    assert_eq!(gateway.reload().status, 200);
    assert_eq!(gateway.get("/", &[]).status, 200);
}

#[test]
fn a_reload_does_not_wait_for_a_name_that_an_earlier_one_has_waited_for() {
    let hosts = Hosts::new(&[2]);
    let (_origins, port) = origins(&[2]);
    let named = |name: &str, more: &str| upstream(port, more).replace("many.test", name);
    let gateway = hosts.start(&named("127.0.0.2", ""));
    let took = |config: &str| {
        gateway.rewrite(config);
        let report = gateway.reload().json();
        assert_eq!(report["result"], "applied", "{report}");
        report["duration_seconds"].as_f64().unwrap()
    };
    let (waited, later) = (took(&named("gone.test", "")), took(&named("gone.test", ", balance: random")));
    assert!(later < waited / 2.0, "{later} s after {waited} s");
}

#[test]
fn a_successor_without_an_address_that_the_old_process_has_takes_nothing_over() {
    let hosts = Hosts::new(&[]);
    let (_origins, port) = origins(&[2]);
    let mut lineage = Lineage::of(hosts.start(&upstream(port, "")));
    lineage.upgrade();
    assert_eq!(lineage.gateway.get("/", &[]).status, 503, "neither process has an address");
    hosts.set(&[2]);
    wait_until("the upstream", || lineage.gateway.get("/", &[]).status == 200);
    hosts.set(&[]);
    signal(lineage.current, "USR2");
    let said = |text: &str| lineage.gateway.process.stderr().contains(text);
    wait_until("the failure", || said("the handover failed; this process continues to serve"));
    assert!(said(&format!("no address of its nodes is found here: many.test:{port}")));
    assert_eq!(lineage.gateway.get("/", &[]).status, 200);
}
