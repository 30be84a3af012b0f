//! A denial never breaks the connection before the client can read its response.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::support::client::request;
use crate::support::gateway::limited;
use crate::support::wire::chunk;
use crate::support::{Gateway, Origin, now};

/// The request that `spent` sends is the only one that is admitted.
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

/// The way in which a client sends the body of a request that is denied.
#[derive(Clone, Copy, Debug)]
struct BodyCase {
    length: usize,
    chunked: bool,
    /// Whether the client pauses between the head and the body.
    pauses: bool,
    /// Whether the client sends `expect: 100-continue`, and then does not wait for the interim response.
    asks: bool,
}

/// All combinations of length and way to send.
fn body_cases() -> Vec<BodyCase> {
    let every = |length| {
        let ways = [(false, false), (true, false), (false, true), (true, true)];
        ways.map(|(pauses, asks)| BodyCase { length, chunked: false, pauses, asks })
    };
    let chunked =
        [10, 100_000, 30_000_000].map(|length| BodyCase { length, chunked: true, pauses: false, asks: false });
    [10, 100_000, 30_000_000].into_iter().flat_map(every).chain(chunked).collect()
}

/// Sends the whole body before it reads the denial; the gateway takes all of it, and the connection stays usable where it
/// can.
fn try_to_read(gateway: &Gateway, case: BodyCase) {
    let BodyCase { length, chunked, pauses, asks } = case;
    let mut client = gateway.client();
    let framing =
        if chunked { ("transfer-encoding", "chunked".to_owned()) } else { ("content-length", length.to_string()) };
    let mut fields = vec![(framing.0, framing.1.as_str())];
    if asks {
        fields.push(("expect", "100-continue"));
    }
    client.send(request("POST", "/", &fields));
    if pauses {
        let until = now() + Duration::from_millis(300);
        while let Some(left) = until.checked_duration_since(now()) {
            std::thread::park_timeout(left);
        }
    }
    let part = [b'x'; 64 << 10];
    let mut left = length;
    while left > 0 {
        let bytes = &part[..left.min(part.len())];
        let sent = if chunked { client.wire.send(chunk(bytes)) } else { client.wire.send(bytes) };
        sent.unwrap_or_else(|error| panic!("{case:?}: {left} bytes were not taken: {error}"));
        left -= bytes.len();
    }
    if chunked {
        client.send(chunk(b""));
    }
    let denied = client.next().unwrap_or_else(|| panic!("{case:?}: no answer"));
    assert_eq!((denied.status, denied.whole), (429, true), "{case:?}: {denied:?}");
    assert!(!denied.body.is_empty());
    if length <= 64 << 10 && !asks && !chunked {
        assert_eq!(client.get("/").status, 429, "{case:?}: the connection goes on");
    } else {
        assert!(client.is_ended(), "{case:?}");
    }
}

/// Tries each case `tries` times, with `at_once` tries in parallel.
#[expect(clippy::print_stderr, reason = "what is measured by command is read there")]
fn try_all(tries: usize, at_once: usize) {
    let origin = Origin::start();
    let gateway = spent(&origin);
    for case in body_cases() {
        let next = AtomicUsize::new(0);
        let began = now();
        crate::support::together(at_once, |_| {
            while next.fetch_add(1, Ordering::Relaxed) < tries {
                try_to_read(&gateway, case);
            }
        });
        eprintln!("{case:?}: read {tries} of {tries} in {:?}", now() - began);
    }
    assert_eq!(origin.count(), 1);
}

#[test]
fn a_denial_can_be_read_whatever_is_still_being_sent() {
    try_all(8, 8);
}

/// The same many times, to find rare failures: 1000 tries of each case take a quarter of an hour.
#[test]
#[ignore = "takes long; by command"]
fn a_denial_can_be_read_a_thousand_times() {
    let tries = std::env::var("TRIES").map_or(1000, |tries| tries.parse().unwrap());
    try_all(tries, 16);
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
fn a_client_that_asks_before_it_sends_is_told_to_go_on_where_the_upstream_is_not_asked() {
    let origin = Origin::start();
    for (edits, connection) in [(", request_headers: { remove: [expect] }", "keep-alive"), ("", "expect")] {
        let route = format!("routes: [{{ name: all, upstream: origin{edits} }}]\n");
        let gateway = Gateway::start(&format!("{}{route}", origin.upstream()));
        let mut client = gateway.client();
        let fields = [("content-length", "5"), ("expect", "100-continue"), ("connection", connection)];
        client.send(request("POST", "/echo", &fields));
        assert_eq!(client.receive().status, 100, "{connection}");
        client.send("hello");
        let response = client.receive();
        assert_eq!((response.status, response.text().as_str()), (200, "hello"), "{connection}");
    }
    assert!(origin.received().iter().all(|seen| seen.head.field("expect").is_none()));
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
