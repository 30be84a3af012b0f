//! What is refused before it is looked at: each refusal is counted, and nothing of it reaches the upstream.

use std::time::{Duration, Instant};

use crate::support::client::request;
use crate::support::gateway::proxied;
use crate::support::{Gateway, Origin, now};

/// Heads that no strict server takes, after a name for each.
const MALFORMED: &[(&str, &[u8])] = &[
    ("no host", b"GET / HTTP/1.1\r\n\r\n"),
    ("two hosts", b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"),
    ("two different hosts", b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"),
    ("a user in the host", b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n"),
    ("an empty host", b"GET / HTTP/1.1\r\nHost:\r\n\r\n"),
    ("another host in the target", b"GET http://b/x HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("two lengths", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx"),
    ("a length with a sign", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\nx"),
    ("an empty length", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\nx"),
    ("a negative length", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\nx"),
    ("a length of 2^64", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 18446744073709551616\r\n\r\nx"),
    ("an unknown coding", b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n"),
    ("the coding identity", b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\nx"),
    ("chunks in HTTP/1.0", b"POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
    ("a space before the colon", b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n"),
    ("a space before the name", b"GET / HTTP/1.1\r\n Host: a\r\n\r\n"),
    ("a bare CR", b"GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\n\r\n"),
    ("an empty name", b"GET / HTTP/1.1\r\nHost: a\r\n: x\r\n\r\n"),
    ("a folded line", b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n"),
    ("NUL", b"GET / HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n"),
    ("no colon", b"GET / HTTP/1.1\r\nHost: a\r\nnonsense\r\n\r\n"),
    ("HTTP/1.2", b"GET / HTTP/1.2\r\nHost: a\r\n\r\n"),
    ("HTTP/2.0", b"GET / HTTP/2.0\r\nHost: a\r\n\r\n"),
    ("HTTP/0.9", b"GET /\r\n\r\n"),
    ("an encoded NUL", b"GET /a%00 HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("an encoded slash", b"GET /a%2fb HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a broken encoding", b"GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a path above the root", b"GET /../a HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a path without a slash", b"GET login HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a backslash", b"GET \\login HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a raw byte", b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n"),
    ("a star for GET", b"GET * HTTP/1.1\r\nHost: a\r\n\r\n"),
    (
        "a length and chunks",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ),
    ("bare line feeds", b"GET / HTTP/1.1\nHost: a\n\n"),
    ("one bare line feed", b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n"),
    ("the same length twice", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx"),
    ("the same length twice in a line", b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1, 1\r\n\r\nx"),
    ("two codings", b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
    ("chunks twice", b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n"),
    ("a coding without a name", b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: ,chunked\r\n\r\n0\r\n\r\n"),
    ("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
];

fn count_of(gateway: &Gateway, code: &str, count: usize) {
    let labels = [("route", "none"), ("code", code)];
    gateway.wait_for_metric("tollgate_http_requests_total", &labels, f64::from(u32::try_from(count).unwrap()));
}

#[test]
fn what_is_no_request_is_refused() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    for (number, (name, bytes)) in MALFORMED.iter().enumerate() {
        let mut client = gateway.client();
        client.send(bytes);
        let response = client.next().unwrap_or_else(|| panic!("{name}: no answer"));
        assert_eq!((response.status, response.whole), (400, true), "{name}");
        match response.field("connection") {
            Some("close") => assert!(client.is_ended(), "{name}"),
            _ => assert_eq!(client.get("/").status, 200, "{name}"),
        }
        assert!(origin.seen().iter().all(|seen| seen.target() == "/" && seen.head.field("host") == Some("test")));
        count_of(&gateway, "400", number + 1);
    }
}

#[test]
fn a_target_that_is_too_long_is_refused() {
    let origin = Origin::start();
    let gateway = Gateway::start(&(proxied(&origin, "") + "request_head: { max_target: 1KiB }\n"));
    let target = |length: usize| format!("/{}", "x".repeat(length - 1));
    assert_eq!(gateway.get(&target(1024), &[]).status, 200);
    for length in [1025, 20_000] {
        let response = gateway.get(&target(length), &[]);
        assert_eq!(response.status, 414);
        assert_eq!(response.field("content-type"), Some("application/problem+json"));
    }
    assert_eq!(origin.count(), 1);
    count_of(&gateway, "414", 2);
}

#[test]
fn a_head_that_is_too_large_is_refused() {
    let origin = Origin::start();
    let bounds = "request_head: { max_header: 1KiB, max_headers: 20, max_headers_total: 4KiB }\n";
    let gateway = Gateway::start(&(proxied(&origin, "") + bounds));
    let value = "v".repeat(900);
    let fields = |count: usize| vec![("x-field", value.as_str()); count];
    let many = |count: usize| vec![("x-field", ""); count];
    assert_eq!(gateway.get("/", &fields(4)).status, 200);
    assert_eq!(gateway.get("/", &many(19)).status, 200);
    for (name, fields) in [
        ("one field", vec![("x-field", "v".repeat(1020))]),
        ("all together", fields(5).into_iter().map(|(name, value)| (name, value.to_owned())).collect()),
        ("too many", many(20).into_iter().map(|(name, value)| (name, value.to_owned())).collect()),
        ("one huge", vec![("x-field", "v".repeat(100_000))]),
    ] {
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (*name, value.as_str())).collect();
        assert_eq!(gateway.get("/", &fields).status, 431, "{name}");
    }
    assert_eq!(origin.count(), 2);
    count_of(&gateway, "431", 4);
}

#[test]
fn the_usual_bounds_of_a_head_hold() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    let long = |length: usize| "x".repeat(length);
    assert_eq!(gateway.get("/", &[("x-field", &long(9 << 10))]).status, 431);
    assert_eq!(gateway.get("/", &vec![("x-field", long(4000).as_str()); 10]).status, 431);
    assert_eq!(gateway.get("/", &vec![("x-field", ""); 200]).status, 431);
    assert_eq!(gateway.get(&format!("/{}", long(10_000)), &[]).status, 414);
    // Beyond what the parser takes; how that is said is not ours to choose.
    let response = gateway.get("/", &vec![("x-field", ""); 300]);
    assert!(matches!(response.status, 400 | 431), "{response:?}");
    assert_eq!(origin.count(), 0);
}

#[test]
fn trace_and_connect_are_not_served() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    assert_eq!(gateway.client().exchange("TRACE", "/", &[]).status, 405);
    assert_eq!(gateway.say("CONNECT test:80 HTTP/1.1\r\nhost: test:80\r\n\r\n").unwrap().status, 405);
    assert_eq!(origin.count(), 0);
    count_of(&gateway, "405", 2);
}

#[test]
fn other_methods_meet_their_limit_and_cannot_be_disguised() {
    let origin = Origin::start();
    let limit = "{ algorithm: gcra, rate: 1/h, burst: 3, key: all }";
    let gateway = Gateway::start(&crate::support::gateway::limited(&origin, limit));
    for (method, status) in [("get", 200), ("FOO", 200), ("OPTIONS", 200), ("HEAD", 429), ("PATCH", 429), ("get", 429)]
    {
        let fields = [("x-http-method-override", "TRACE"), ("x-method-override", "OPTIONS")];
        assert_eq!(gateway.client().exchange(method, "/", &fields).status, status, "{method}");
    }
    assert_eq!(
        origin.seen().iter().map(|seen| seen.head.word(0).to_owned()).collect::<Vec<_>>(),
        ["get", "FOO", "OPTIONS"]
    );
}

#[test]
fn malformed_chunks_are_refused_and_never_complete_at_the_upstream() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    for (number, chunks) in [
        "0x1\r\nx\r\n0\r\n\r\n",
        "+1\r\nx\r\n0\r\n\r\n",
        "00000000000000001\r\nx\r\n0\r\n\r\n",
        "1\r\nxyz0\r\n\r\n",
        "1\nx\n0\n\n",
        "g\r\n",
    ]
    .iter()
    .enumerate()
    {
        let mut client = gateway.client();
        client.send(request("POST", "/echo", &[("transfer-encoding", "chunked")]));
        client.send(chunks);
        let response = client.next().unwrap_or_else(|| panic!("{chunks:?}: no answer"));
        assert_eq!(response.status, 400, "{chunks:?}");
        gateway.wait_for_metric(
            "tollgate_http_requests_total",
            &[("route", "all"), ("code", "400")],
            f64::from(u32::try_from(number + 1).unwrap()),
        );
    }
    assert_eq!(gateway.metrics().value("tollgate_http_requests_total", &[("route", "all"), ("code", "200")]), None);
}

/// Two seconds for a head.
const HASTE: &str = "request_head: { timeout: 2s }\n";
const HASTE_ENDS: Duration = Duration::from_millis(1950);

/// Sends a head field by field until the gateway has had enough; how long that took from `began` on.
fn drip(client: &mut crate::support::Client, began: Instant) -> Duration {
    client.send("GET / HTTP/1.1\r\nhost: test\r\n");
    client.wire.stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    while !client.wire.has_more() {
        assert!(now() - began < crate::support::PATIENCE, "a dripping head is taken for ever");
        client.send("x-drip: y\r\n");
    }
    now() - began
}

#[test]
fn a_head_that_drips_is_cut_off_on_the_first_request_of_a_connection() {
    let origin = Origin::start();
    let gateway = Gateway::start(&(proxied(&origin, "") + HASTE));
    // The time of the first head runs from the connection on.
    let began = now();
    let mut client = gateway.client();
    assert!(drip(&mut client, began) >= HASTE_ENDS);
    assert_eq!(client.receive().status, 408);
    assert!(client.is_ended());
    assert_eq!(origin.count(), 0);
    count_of(&gateway, "408", 1);
}

#[test]
fn a_head_that_drips_is_cut_off_on_the_second_request_of_a_connection() {
    let origin = Origin::start();
    let gateway = Gateway::start(&(proxied(&origin, "") + HASTE));
    let mut client = gateway.client();
    assert_eq!(client.get("/").status, 200);
    assert!(drip(&mut client, now()) >= HASTE_ENDS);
    assert_eq!(client.receive().status, 408);
    assert!(client.is_ended());
    assert_eq!(origin.count(), 1);
}

#[test]
fn a_connection_that_never_speaks_is_closed() {
    let origin = Origin::start();
    let gateway = Gateway::start(&(proxied(&origin, "") + HASTE));
    assert!(gateway.client().is_ended());
}

#[test]
fn a_pause_between_two_requests_is_no_slow_head() {
    let origin = Origin::start();
    let gateway = Gateway::start(&(proxied(&origin, "") + "request_head: { timeout: 1s }\n"));
    let mut client = gateway.client();
    assert_eq!(client.get("/").status, 200);
    client.wire.stream.set_read_timeout(Some(Duration::from_millis(1500))).unwrap();
    assert!(!client.wire.has_more(), "the connection waits for the next request");
    client.wire.stream.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
    assert_eq!(client.get("/").status, 200);
}
