//! A denial never breaks the connection before its answer can be read.

use crate::support::client::request;
use crate::support::gateway::limited;
use crate::support::{Client, Gateway, Origin};

/// Nothing gets past the one request that `spent` sends.
const ONE: &str = "{ algorithm: gcra, rate: 1/h, burst: 1, key: all }";

fn spent(origin: &Origin) -> Gateway {
    let gateway = Gateway::start(&limited(origin, ONE));
    assert_eq!(gateway.get("/", &[]).status, 200);
    gateway
}

#[test]
fn the_connection_goes_on_after_a_denial() {
    let origin = Origin::start();
    let gateway = spent(&origin);
    let mut client = gateway.client();
    for _ in 0..3 {
        assert_eq!(client.get("/").status, 429);
        for length in [0, 10, 60_000] {
            let denied = client.post("/", &[], &vec![b'x'; length]);
            assert_eq!(denied.status, 429, "{length}");
            assert_ne!(denied.field("connection"), Some("close"), "{length}");
        }
    }
    assert_eq!(origin.count(), 1);
}

#[test]
fn a_denial_is_sent_before_a_small_body_is_and_the_connection_goes_on() {
    let origin = Origin::start();
    let gateway = spent(&origin);
    let mut client = gateway.client();
    client.send(request("POST", "/", &[("content-length", "5")]));
    client.send("ab");
    assert_eq!(client.receive().status, 429);
    client.send("cde");
    assert_eq!(client.get("/").status, 429);
}

#[test]
fn a_denial_of_a_large_body_can_be_read() {
    const LENGTH: usize = 30 << 20;
    let origin = Origin::start();
    let gateway = spent(&origin);
    let read_denial = |mut client: Client, chunked: bool| {
        let framing =
            if chunked { ("transfer-encoding", "chunked".to_owned()) } else { ("content-length", LENGTH.to_string()) };
        client.send(request("POST", "/", &[(framing.0, &framing.1)]));
        let part = vec![b'x'; 1 << 20];
        for _ in 0..LENGTH >> 20 {
            let bytes = if chunked { crate::support::wire::chunk(&part) } else { part.clone() };
            if client.wire.send(bytes).is_err() {
                break;
            }
        }
        let denied = client.receive();
        assert_eq!((denied.status, denied.whole), (429, true), "{denied:?}");
        assert!(!denied.body.is_empty());
    };
    for chunked in [false, true] {
        read_denial(gateway.client(), chunked);
    }
    assert_eq!(origin.count(), 1);
}

#[test]
fn a_denial_does_not_wait_for_a_large_body() {
    let origin = Origin::start();
    let gateway = spent(&origin);
    for framing in [("content-length", "30000000"), ("transfer-encoding", "chunked")] {
        let mut client = gateway.client();
        client.send(request("POST", "/", &[framing]));
        let denied = client.receive();
        assert_eq!((denied.status, denied.whole, denied.field("connection")), (429, true, Some("close")));
    }
}

#[test]
fn a_client_that_asks_before_it_sends_is_denied_without_a_continue() {
    let origin = Origin::start();
    let gateway = spent(&origin);
    for length in ["10", "30000000"] {
        let mut client = gateway.client();
        client.send(request("POST", "/", &[("content-length", length), ("expect", "100-continue")]));
        let first = client.receive();
        assert_eq!((first.status, first.whole), (429, true));
    }
    assert_eq!(origin.count(), 1);
}

#[test]
fn a_client_that_asks_before_it_sends_is_told_to_go_on() {
    let origin = Origin::start();
    let gateway = Gateway::start(&limited(&origin, ONE));
    let mut client = gateway.client();
    client.send(request("POST", "/echo", &[("content-length", "5"), ("expect", "100-continue")]));
    assert_eq!(client.receive().status, 100);
    client.send("hello");
    let response = client.receive();
    assert_eq!((response.status, response.text().as_str()), (200, "hello"));
}

#[test]
fn sixty_four_denied_clients_keep_their_connections() {
    let origin = Origin::start();
    let gateway = spent(&origin);
    let statuses = crate::support::together(64, |_| {
        let mut client = gateway.client();
        [(); 5].map(|()| client.post("/", &[], b"0123456789").status)
    });
    assert!(statuses.iter().flatten().all(|status| *status == 429), "{statuses:?}");
}
