//! Requests that the gateway refuses before it decides: each refusal is counted, and nothing of it reaches the upstream.

use std::time::{Duration, Instant};

use crate::support::gateway::proxied;
use crate::support::{Gateway, Origin, now};

fn count_of(gateway: &Gateway, code: &str, count: usize) {
    let labels = [("route", "none"), ("code", code)];
    gateway.wait_for_metric("tollgate_http_requests_total", &labels, f64::from(u32::try_from(count).unwrap()));
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

/// A timeout of two seconds for a head.
const HASTE: &str = "request_head: { timeout: 2s }\n";
const HASTE_ENDS: Duration = Duration::from_millis(1950);

/// Sends a head field by field until the gateway answers or closes; returns the time since `began`.
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
    // The timeout of the first head starts with the connection.
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
