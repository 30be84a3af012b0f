//! The borders between the phases of a request: interim responses, waiting with a deadline, the next head.

use std::io;
use std::time::Duration;

use crate::support::client::request;
use crate::support::gateway::{ALL_GUARDED, proxied};
use crate::support::origin::Exchange;
use crate::support::{Gateway, Origin, PATIENCE, now};

/// The status of the final response; skips interim ones.
fn last_status(gateway: &Gateway) -> Option<u16> {
    let mut client = gateway.client();
    client.send_request("GET", "/", &[]);
    let first = client.next()?;
    if first.status >= 200 { Some(first.status) } else { client.next().map(|response| response.status) }
}

fn hint(exchange: &mut Exchange<'_>) -> io::Result<()> {
    exchange.keep = false;
    exchange.send("HTTP/1.1 103 Early Hints\r\nlink: </a.css>\r\n\r\n")
}

#[test]
fn an_upstream_that_closes_after_an_interim_response_is_answered_for() {
    let origin = Origin::with(hint);
    let gateway = Gateway::start(&proxied(&origin, ""));
    assert_eq!(last_status(&gateway), Some(502));
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", "502")], 1.0);
}

#[test]
fn an_upstream_that_is_late_after_an_interim_response_is_answered_for() {
    let origin = Origin::with(|exchange| {
        hint(exchange)?;
        exchange.wait_for_end()
    });
    let gateway = Gateway::start(&proxied(&origin, "timeouts: { first_byte: 300ms }"));
    assert_eq!(last_status(&gateway), Some(504));
}

#[test]
fn interim_responses_do_not_put_off_the_deadline_of_the_final_one() {
    let origin = Origin::with(|exchange| {
        loop {
            exchange.send("HTTP/1.1 102 Processing\r\n\r\n")?;
            std::thread::park_timeout(Duration::from_millis(20));
        }
    });
    let gateway = Gateway::start(&proxied(&origin, "timeouts: { first_byte: 300ms }"));
    let mut client = gateway.client();
    client.send_request("GET", "/", &[]);
    let began = now();
    let mut status = client.receive().status;
    while status == 102 {
        assert!(now() - began < PATIENCE, "interim responses put off the deadline");
        status = client.receive().status;
    }
    assert_eq!(status, 504);
}

#[test]
fn waiting_counts_against_the_total_deadline_and_the_upstream_is_left_alone() {
    let origin = Origin::start();
    let limit = "limits: { guard: { algorithm: gcra, rate: 1/1h, burst: 10, delay_after: 0, key: all,
        over_limit: { delay: { max_wait: 2h } } } }\n";
    let gateway = Gateway::start(&format!("{}{limit}{ALL_GUARDED}", origin.upstream_with("timeouts: { total: 2s }")));
    assert_eq!(gateway.get("/", &[]).status, 200);
    assert_eq!(gateway.get("/", &[]).status, 504);
    assert_eq!(origin.count(), 1);
}

#[test]
fn a_malformed_head_is_counted_on_every_request_of_a_connection() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    let mut client = gateway.client();
    assert_eq!(client.get("/").status, 200);
    client.send("nonsense\r\n\r\n");
    assert_eq!(client.receive().status, 400);
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "none"), ("code", "400")], 1.0);
}

#[test]
fn a_client_of_http_1_0_sees_its_connection_end() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    for fields in [&[][..], &[("connection", "keep-alive, close")]] {
        let mut client = gateway.client();
        client.send(request("GET", "/", fields).replace("HTTP/1.1", "HTTP/1.0"));
        let response = client.receive();
        assert_eq!((response.status, response.field("connection")), (200, Some("close")));
        assert!(client.is_ended());
    }
}
