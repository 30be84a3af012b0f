//! Limits that gateways share through several Redis servers over mutual TLS.

use crate::support::redis::{Redis, RedisTls};
use crate::support::tls::Authority;
use crate::support::{Folder, Gateway, Origin, shared, wait_until};

const BURST: usize = 3;

/// The beginning of `store:`; the servers follow.
const TLS: &str = "store: { timeout: 1s, tls: { ca: ca.pem, cert: client.pem, key: client.key }, ";

fn start(origin: &Origin, authority: &Authority, servers: &str) -> Gateway {
    let config = format!(
        "{}{TLS}{servers} }}
limits: {{ guard: {{ key: {{ header: x-key }}, mode: shared, algorithm: gcra, rate: 1/h, burst: {BURST} }} }}
routes: [{{ name: all, upstream: origin, limits: [guard] }}]
",
        origin.upstream()
    );
    let (own, ca) = (authority.sign(&["tollgate"]), authority.pem());
    let files = [("ca.pem", &*ca), ("client.pem", &own.certificate), ("client.key", &own.key)];
    Gateway::start_with(&config, &files, &[])
}

/// The number of admitted requests when two more are sent than the burst allows.
fn passed(gateway: &Gateway, key: &str) -> usize {
    shared::passed(gateway, key, BURST + 2)
}

#[test]
fn every_server_of_a_cluster_is_spoken_to_over_tls() {
    const KEYS: usize = 12;
    let (origin, folder, authority) = (Origin::start(), Folder::new(), Authority::new());
    let servers = Redis::start_cluster(&folder, Some(&RedisTls::of(&authority, &folder)));
    // the gateway learns the other servers from this one
    let gateway = start(&origin, &authority, &format!("cluster: [\"{}\"]", servers[0].url()));
    for number in 0..KEYS {
        assert_eq!(passed(&gateway, &format!("key-{number}")), BURST);
    }
    for server in &servers {
        assert!(!server.keys("tollgate:*").is_empty(), "keys with each server");
    }
    for server in &servers {
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    }
    for number in 0..KEYS {
        assert_eq!(passed(&gateway, &format!("key-{number}")), 0, "on connections that were made anew");
    }
}

#[test]
fn sentinels_and_the_server_that_takes_over_are_spoken_to_over_tls() {
    let (origin, folder, authority) = (Origin::start(), Folder::new(), Authority::new());
    let primary = Redis::start_with_tls(&RedisTls::of(&authority, &folder));
    let replica = primary.start_replica();
    let sentinel = primary.start_sentinel(&folder);
    let nodes = format!("127.0.0.1:{}", sentinel.tls_port.unwrap());
    let gateway = start(&origin, &authority, &format!("sentinel: {{ master: mymaster, nodes: [\"{nodes}\"] }}"));
    assert_eq!(passed(&gateway, "kept"), BURST);
    let key = primary.keys("tollgate:*guard*").pop().unwrap();
    wait_until("the replica to have it", || replica.command_raw(&["GET", &key]) == primary.command_raw(&["GET", &key]));
    primary.signal("KILL");
    wait_until("the replica to take over", || {
        replica.try_command_raw(&["ROLE"]).is_ok_and(|role| role.contains("master"))
    });
    wait_until("the gateway to find it", || {
        gateway.get("/", &[("x-key", "another")]);
        replica.keys("tollgate:*guard*").len() > 1
    });
    assert_eq!(passed(&gateway, "kept"), 0);
    assert_eq!(passed(&gateway, "new"), BURST);
}
