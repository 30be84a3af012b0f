//! More connections than the limit allows: the gateway closes the excess ones at once, and no other client notices.

use crate::support::gateway::proxied;
use crate::support::http2::Http2;
use crate::support::{Client, Gateway, Origin};

fn open(gateway: &Gateway, last: u8, count: usize) -> Vec<Client> {
    (0..count).map(|_| gateway.client_from(last)).collect()
}

fn shed(gateway: &Gateway, reason: &str) -> f64 {
    gateway.metrics().value("tollgate_connections_shed_total", &[("reason", reason)]).unwrap()
}

/// Whether a request on a new connection gets a response.
fn is_served(gateway: &Gateway, last: u8) -> bool {
    let mut client = gateway.client_from(last);
    client.send_request("GET", "/", &[("connection", "close")]);
    client.next().is_some_and(|response| response.status == 200)
}

#[test]
fn one_client_cannot_take_all_places() {
    let origin = Origin::start();
    let gateway = Gateway::start(&format!("connections: {{ max_per_client: 10 }}\n{}", proxied(&origin, "")));
    let held = open(&gateway, 2, 10);
    gateway.wait_for_metric("tollgate_connections_shed_total", &[("reason", "client")], 0.0);
    for mut one_more in open(&gateway, 2, 5) {
        assert!(one_more.is_ended());
    }
    assert_eq!(shed(&gateway, "client"), 5.0);
    assert!(is_served(&gateway, 3), "others come in");
    drop(held);
    crate::support::wait_until("the places to be free", || is_served(&gateway, 2));
}

#[test]
fn beyond_the_most_connections_are_closed_at_once_and_operators_are_served() {
    let origin = Origin::start();
    for (listener, connections, reason) in
        [("", "connections: { max: 20 }\n", "all"), ("max_connections: 20", "", "listener")]
    {
        let gateway = Gateway::start_listening(listener, &format!("{connections}{}", proxied(&origin, "")), &[]);
        let before = origin.count();
        let mut held = open(&gateway, 2, 20);
        for client in &mut held {
            assert_eq!(client.get("/").status, 200);
            client.send_request("GET", "/stall", &[]);
        }
        origin.wait_for_count(before + 40);
        for mut one_more in open(&gateway, 3, 10) {
            assert!(one_more.is_ended(), "{reason}");
        }
        assert_eq!(shed(&gateway, reason), 10.0);
        crate::support::wait_until("a warning", || gateway.process.stderr().contains("closed at once"));
        let log = gateway.process.stderr();
        let warnings: Vec<_> = log.lines().filter(|line| line.contains("closed at once")).collect();
        assert!(warnings[0].contains(&format!("\"reason\":\"{reason}\",\"max\":20")), "{warnings:?}");
        assert!(warnings.len() < 10, "{warnings:?}");
        assert_eq!(shed(&gateway, "idle"), 0.0, "who has a request stays");
        assert_eq!(gateway.admin_get("/readyz").status, 200);
        drop(held);
        crate::support::wait_until("the places to be free", || is_served(&gateway, 2));
    }
}

#[test]
fn the_connection_idle_for_longest_makes_room() {
    let origin = Origin::start();
    for (listener, connections) in [("", "connections: { max: 20 }\n"), ("max_connections: 20", "")] {
        let gateway = Gateway::start_listening(listener, &format!("{connections}{}", proxied(&origin, "")), &[]);
        let mut held = open(&gateway, 2, 20);
        for client in &mut held {
            assert_eq!(client.get("/").status, 200);
        }
        let (first, others) = held.split_at_mut(5);
        // connections with a recent request are not the ones that are closed
        for client in &mut *others {
            assert_eq!(client.get("/").status, 200);
        }
        let mut newcomers = open(&gateway, 3, 5);
        for client in &mut newcomers {
            assert_eq!(client.get("/").status, 200);
        }
        assert!(first.iter_mut().all(Client::is_ended));
        assert_eq!(shed(&gateway, "idle"), 5.0);
        for client in others.iter_mut().chain(&mut newcomers) {
            assert_eq!(client.get("/").status, 200);
        }
        assert_eq!((shed(&gateway, "all"), shed(&gateway, "listener")), (0.0, 0.0));
    }
}

#[test]
fn silent_and_endless_connections_make_room() {
    let origin = Origin::start();
    let patient = "connections: { max: 20 }\nrequest_head: { timeout: 60s }\n";
    let gateway = Gateway::start(&format!("{patient}{}", proxied(&origin, "")));
    let mut slow = open(&gateway, 2, 20);
    for client in slow.iter_mut().skip(5) {
        client.send("GET / HTTP/1.1\r\nhost: ");
    }
    // connections with a request in progress get a moment, in which a new client finds no place
    let mut served = Vec::new();
    while origin.count() < 20 {
        let before = origin.count();
        let mut client = gateway.client_from(3);
        client.wire.stream.set_read_timeout(Some(std::time::Duration::from_millis(20))).unwrap();
        client.send_request("GET", "/stall", &[]);
        crate::support::wait_until("an end or a request", || origin.count() > before || client.wire.has_more());
        served.push(client);
    }
    assert!(slow.iter_mut().all(Client::is_ended));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_without_streams_makes_room_and_one_with_a_stream_does_not() {
    let origin = Origin::start();
    let config = format!("connections: {{ max: 2 }}\n{}", proxied(&origin, ""));
    let gateway = Gateway::start_listening("http2: true", &config, &[]);
    let mut busy = Http2::connect_cleartext(gateway.address).await;
    let (stalled, _) = busy.begin(http::Method::GET, "http://test/stall", &[], true).await.unwrap();
    tokio::task::block_in_place(|| origin.wait_for_count(1));
    let mut idle = Http2::connect_cleartext(gateway.address).await;
    assert_eq!(idle.get("http://test/", &[]).await.unwrap().status, 200);
    tokio::task::block_in_place(|| crate::support::wait_until("a place", || is_served(&gateway, 2)));
    assert!(idle.get("http://test/", &[]).await.is_err());
    assert_eq!(busy.get("http://test/", &[]).await.unwrap().status, 200);
    drop(stalled);
}
