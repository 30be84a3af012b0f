//! Upstreams that refuse connections, are slow or abort, and retries.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::client::request;
use crate::support::gateway::{ALL, proxied};
use crate::support::origin::{by_path, upstream};
use crate::support::wire::{Framing, chunk};
use crate::support::{Gateway, Origin, RefusingNode, SilentNode, now, together, wait_for_time, wait_until};

/// Checks the common parts of responses for failing upstreams.
#[track_caller]
fn assert_problem(response: &crate::support::Response, status: u16) {
    assert_eq!(response.status, status, "{response:?}");
    assert!(response.whole);
    assert_eq!(response.field("content-type"), Some("application/problem+json"));
    assert_eq!(response.json()["status"], status);
}

#[test]
fn a_dead_upstream_is_a_bad_gateway() {
    let refusing = RefusingNode::new();
    let gateway = Gateway::start(&format!("{}{ALL}", upstream(&[refusing.node()], "")));
    let mut client = gateway.client();
    for _ in 0..2 {
        let response = client.get("/");
        assert_problem(&response, 502);
        assert_eq!(response.field("connection"), None, "the connection serves on");
    }
    assert_problem(&client.post("/", &[], b"body"), 502);
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", "502")], 3.0);
}

#[test]
fn the_answer_for_a_dead_upstream_can_be_read_while_a_large_body_is_sent() {
    let refusing = RefusingNode::new();
    let gateway = Gateway::start(&format!("{}{ALL}", upstream(&[refusing.node()], "")));
    for _ in 0..20 {
        let mut client = gateway.client();
        client.send(request("POST", "/", &[("content-length", "3000000")]));
        client.send(vec![b'x'; 3_000_000]);
        assert_problem(&client.receive(), 502);
    }
}

#[test]
fn an_upstream_that_closes_instead_of_answering_is_a_bad_gateway() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    assert_problem(&gateway.get("/drop", &[]), 502);
    assert_problem(&gateway.client().post("/drop", &[], b"body"), 502);
    assert_eq!(origin.count(), 2);
}

#[test]
fn an_upstream_that_does_not_speak_http_is_a_bad_gateway() {
    let origin = Origin::with(|exchange| {
        exchange.keep = false;
        exchange.send("SSH-2.0-OpenSSH_9.2\r\n\r\n")
    });
    let gateway = Gateway::start(&proxied(&origin, ""));
    assert_problem(&gateway.get("/", &[]), 502);
}

#[test]
fn an_upstream_without_a_healthy_node_is_unavailable() {
    let origin = Origin::start();
    origin.set_healthy(false);
    let gateway =
        Gateway::start(&proxied(&origin, "health_check: { path: /healthz, every: 10ms, unhealthy_after: 2 }"));
    gateway.wait_for_metric("tollgate_upstream_nodes_healthy", &[("upstream", "origin")], 0.0);
    let response = gateway.get("/", &[]);
    assert_problem(&response, 503);
    assert_eq!(response.json()["type"], "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity");
    assert_eq!(origin.count(), 0);
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", "503")], 1.0);
}

#[test]
fn an_interim_response_to_a_health_check_is_not_its_answer() {
    let origin = Origin::with(|exchange| {
        exchange.send("HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n")?;
        exchange.reply("200 OK", "", b"")
    });
    let check = "health_check: { path: /check, every: 10ms, unhealthy_after: 1 }";
    let gateway = Gateway::start(&proxied(&origin, check));
    origin.wait_for_count(3);
    assert_eq!(gateway.metrics().value("tollgate_upstream_nodes_healthy", &[("upstream", "origin")]), Some(1.0));
}

#[test]
fn an_upstream_that_does_not_begin_its_answer_in_time_is_a_timeout() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, "timeouts: { first_byte: 150ms }"));
    assert_problem(&gateway.get("/stall", &[]), 504);
    assert_problem(&gateway.client().post("/stall", &[], b"body"), 504);
    origin.wait_for_count(2);
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", "504")], 2.0);
    assert_eq!(gateway.metrics().all("tollgate_http_requests_total").len(), 1, "each is counted once");
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
}

#[test]
fn an_upstream_that_does_not_accept_in_time_is_a_timeout() {
    let silent = SilentNode::new();
    let nodes = upstream(&[silent.node()], "timeouts: { connect: 150ms }, retries: { attempts: 0 }");
    let gateway = Gateway::start(&format!("{nodes}{ALL}"));
    assert_problem(&gateway.get("/", &[]), 504);
}

#[test]
fn a_node_that_does_not_accept_in_time_is_passed_over() {
    let (silent, origin) = (SilentNode::new(), Origin::start());
    let nodes = upstream(&[silent.node(), origin.node()], "timeouts: { connect: 150ms }");
    let gateway = Gateway::start(&format!("{nodes}{ALL}"));
    assert_eq!(gateway.client().post("/echo", &[], b"once").text(), "once");
    assert_eq!(origin.count(), 1);
}

#[test]
fn a_head_that_drips_does_not_put_the_timeout_off() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, "timeouts: { first_byte: 200ms }"));
    assert_problem(&gateway.get("/drip", &[]), 504);
}

#[test]
fn the_timeout_of_the_first_byte_runs_from_the_end_of_the_request() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, "timeouts: { first_byte: 2s }"));
    let mut client = gateway.client();
    client.send(request("POST", "/echo", &[("transfer-encoding", "chunked")]));
    let began = now();
    while now() - began < std::time::Duration::from_millis(2500) {
        client.send(chunk("x"));
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
    client.send(chunk(b""));
    let response = client.receive();
    assert_eq!(response.status, 200);
}

#[test]
fn the_total_timeout_ends_a_response_that_goes_on_and_on() {
    let origin = Origin::with(|exchange| {
        exchange.send("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
        loop {
            exchange.send(chunk("tick"))?;
            std::thread::park_timeout(std::time::Duration::from_millis(20));
        }
    });
    let gateway = Gateway::start(&proxied(&origin, "timeouts: { total: 2s }"));
    let response = gateway.get("/", &[]);
    assert_eq!((response.status, response.whole), (200, false));
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
}

#[test]
fn the_total_timeout_covers_the_time_before_the_answer() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, "timeouts: { total: 200ms }"));
    assert_problem(&gateway.get("/stall", &[]), 504);
}

#[test]
fn a_request_body_that_stops_coming_is_ended_by_the_total_timeout_and_no_node_is_ejected() {
    let origins = [Origin::start(), Origin::start()];
    let settings = "timeouts: { total: 200ms }, eject: { after: 1, for: 1h, max_percent: 50 }";
    let gateway = Gateway::start(&format!("{}{ALL}", upstream(&origins.each_ref().map(Origin::node), settings)));
    for framing in [("content-length", "10"), ("transfer-encoding", "chunked")] {
        let mut client = gateway.client();
        client.send(request("POST", "/echo", &[framing]));
        client.send("5\r\nhalf ");
        assert_problem(&client.receive(), 408);
    }
    assert_eq!(gateway.metrics().value("tollgate_upstream_ejections_total", &[("upstream", "origin")]), Some(0.0));
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
}

#[test]
fn a_connection_that_the_total_timeout_ends_is_no_nodes_fault_and_no_other_node_gets_the_request() {
    let (silent, origin) = (SilentNode::new(), Origin::start());
    let settings = "timeouts: { connect: 1m, total: 300ms }, retries: { attempts: 2, on: [connect_error] }, \
                    eject: { after: 1, for: 1h, max_percent: 50 }";
    let gateway = Gateway::start(&format!("{}{ALL}", upstream(&[silent.node(), origin.node()], settings)));
    let statuses = [(); 4].map(|()| gateway.client().post("/", &[], b"body").status);
    assert_eq!(statuses.iter().filter(|status| **status == 504).count(), 2, "{statuses:?}");
    assert_eq!(origin.count(), 2);
    assert_eq!(gateway.metrics().value("tollgate_upstream_ejections_total", &[("upstream", "origin")]), Some(0.0));
}

#[test]
fn a_request_body_that_stops_coming_is_not_waited_for() {
    let origin = Origin::start();
    // The upstream is silent as long as the client is: the client gets the same response, whichever timeout fires first.
    for timeouts in ["idle: 200ms", "idle: 200ms, first_byte: 200ms", "idle: 200ms, first_byte: 100ms"] {
        let gateway = Gateway::start(&proxied(&origin, &format!("timeouts: {{ {timeouts} }}")));
        together(8, |number| {
            let framing = [("content-length", "10"), ("transfer-encoding", "chunked")][number % 2];
            let mut client = gateway.client();
            client.send(request("POST", "/echo", &[framing]));
            client.send("2\r\n");
            assert_problem(&client.receive(), 408);
        });
        gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", "408")], 8.0);
        gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
    }
}

#[test]
fn an_upstream_that_does_not_say_whether_to_go_on_is_late() {
    let origin = Origin::start();
    let ask = request("POST", "/stall", &[("content-length", "10"), ("expect", "100-continue")]);
    for timeouts in ["idle: 200ms, first_byte: 400ms", "idle: 20s, first_byte: 200ms", "total: 200ms"] {
        let gateway = Gateway::start(&proxied(&origin, &format!("timeouts: {{ {timeouts} }}")));
        let mut client = gateway.client();
        client.send(&ask);
        assert_problem(&client.receive(), 504);
    }
    // a client that has begun without an answer has to go on
    let gateway = Gateway::start(&proxied(&origin, "timeouts: { idle: 200ms, first_byte: 200ms }"));
    let mut client = gateway.client();
    client.send(ask + "half ");
    assert_problem(&client.receive(), 408);
}

#[test]
fn a_client_that_asks_before_it_sends_has_its_time_from_the_answer_on() {
    let origin = Origin::with(|exchange| {
        wait_for_time(now() + std::time::Duration::from_millis(2500));
        by_path(exchange)
    });
    let gateway = Gateway::start(&proxied(&origin, "timeouts: { idle: 2s }"));
    let mut client = gateway.client();
    client.send(request("POST", "/echo", &[("content-length", "4"), ("expect", "100-continue")]));
    assert_eq!(client.receive().status, 100);
    client.send("body");
    assert_eq!(client.receive().text(), "body");
}

#[test]
fn a_client_that_stops_reading_is_let_go() {
    let origin = Origin::with(|exchange| {
        let part = vec![b'x'; 1 << 20];
        exchange.send(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 1_u64 << 40))?;
        loop {
            exchange.send(&part)?;
        }
    });
    let gateway = Gateway::start(&proxied(&origin, "timeouts: { idle: 200ms }"));
    let mut client = gateway.client();
    client.send_request("GET", "/", &[]);
    origin.wait_for_count(1);
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
    assert!(!client.receive().whole);
}

#[test]
fn an_upstream_that_stops_in_the_middle_of_its_answer_is_not_waited_for() {
    let origin = Origin::with(|exchange| {
        exchange.send("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf ")?;
        exchange.wait_for_end()
    });
    let gateway = Gateway::start(&proxied(&origin, "timeouts: { idle: 200ms, first_byte: 2s }"));
    let response = gateway.get("/", &[]);
    assert_eq!((response.status, response.whole), (200, false));
}

#[test]
fn a_pause_in_a_body_that_is_shorter_than_the_timeout_is_no_failure() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, "timeouts: { idle: 20s }"));
    let mut client = gateway.client();
    client.send(request("POST", "/echo", &[("content-length", "4")]));
    for (sent, part) in ["a", "b", "c", "d"].into_iter().enumerate() {
        client.send(part);
        // the client sends the next part only after the gateway has forwarded this one
        wait_until("the part at the upstream", || origin.received().first().is_some_and(|seen| seen.body.len() > sent));
    }
    assert_eq!(client.receive().text(), "abcd");
}

#[test]
fn a_node_that_refuses_connections_is_passed_over() {
    let origin = Origin::start();
    let refusing = RefusingNode::new();
    let gateway = Gateway::start(&format!("{}{ALL}", upstream(&[refusing.node(), origin.node()], "")));
    let mut client = gateway.client();
    for number in 0..5 {
        assert_eq!(client.get("/").status, 200, "{number}");
        assert_eq!(client.post("/echo", &[], b"once").text(), "once", "nothing was sent to the other node");
    }
    assert_eq!(origin.count(), 10);
}

#[test]
fn without_retries_a_refused_connection_shows() {
    let origin = Origin::start();
    let refusing = RefusingNode::new();
    let nodes = upstream(&[refusing.node(), origin.node()], "retries: { attempts: 0 }");
    let gateway = Gateway::start(&format!("{nodes}{ALL}"));
    assert_problem(&gateway.get("/", &[]), 502);
    assert_eq!(gateway.get("/", &[]).status, 200, "the node that refused is left alone for a moment");
}

/// An upstream that closes its connection in place of an answer to the second request on it.
fn forgetful() -> Origin {
    let answered = AtomicUsize::new(usize::MAX);
    Origin::with(move |exchange| {
        exchange.body()?;
        if exchange.path() == "/first" {
            answered.store(0, Ordering::Relaxed);
            return exchange.reply("200 OK", "", b"first\n");
        }
        if answered.fetch_add(1, Ordering::Relaxed) == 0 {
            exchange.keep = false;
            return Ok(());
        }
        exchange.reply("200 OK", "", b"again\n")
    })
}

#[test]
fn a_get_on_a_kept_connection_that_was_closed_is_sent_again_once() {
    let origin = forgetful();
    let gateway = Gateway::start(&proxied(&origin, ""));
    let mut client = gateway.client();
    assert_eq!(client.get("/first").text(), "first\n");
    let response = client.get("/second");
    assert_eq!((response.status, response.text().as_str()), (200, "again\n"));
    let connections: Vec<usize> = origin.received().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [0, 0, 1]);
}

#[test]
fn a_post_is_never_sent_twice() {
    let origin = forgetful();
    let gateway = Gateway::start(&proxied(&origin, ""));
    let mut client = gateway.client();
    assert_eq!(client.get("/first").text(), "first\n");
    assert_problem(&client.post("/second", &[], b"pay 5"), 502);
    assert_eq!(origin.received().iter().filter(|seen| seen.target() == "/second").count(), 1);
}

#[test]
fn a_request_that_is_sent_again_is_charged_once() {
    let origin = forgetful();
    let limit = "{ algorithm: gcra, rate: 1/h, burst: 9, key: all }";
    let gateway = Gateway::start(&crate::support::gateway::limited(&origin, limit));
    let mut client = gateway.client();
    assert_eq!(client.get("/first").number("x-ratelimit-remaining"), Some(8));
    assert_eq!(client.get("/second").number("x-ratelimit-remaining"), Some(7));
    assert_eq!(origin.count(), 3);
}

#[test]
fn a_body_that_is_sent_again_is_paid_once() {
    let origin = forgetful();
    let limit = "{ algorithm: token_bucket, rate: 1/30d, burst: 100, key: all, cost: { request_bytes: 1KiB } }";
    let gateway = Gateway::start(&crate::support::gateway::limited(&origin, limit));
    let mut client = gateway.client();
    assert_eq!(client.get("/first").number("x-ratelimit-remaining"), Some(99));
    client.send("PUT /second HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n");
    for part in [&[b'x'; 10 << 10][..], b""] {
        client.send(chunk(part));
    }
    assert_eq!(client.receive().text(), "again\n");
    assert_eq!(origin.count(), 3);
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
    let admitted = [("limit", "guard"), ("plan", "none"), ("outcome", "admitted")];
    assert_eq!(gateway.metrics().value("tollgate_limit_tokens_total", &admitted), Some(1.0 + 10.0));
}

#[test]
fn connections_that_the_upstream_closes_after_each_answer_cost_no_request() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    let mut client = gateway.client();
    for number in 0..50 {
        assert_eq!(client.get("/closing").status, 200, "{number}");
    }
}

#[test]
fn connections_to_the_upstream_are_kept() {
    let origin = Origin::start();
    let gateway = Gateway::start(&proxied(&origin, ""));
    let mut client = gateway.client();
    for _ in 0..20 {
        assert_eq!(client.get("/").status, 200);
    }
    assert!(origin.received().iter().all(|seen| seen.connection == 0), "one client, one core, one connection");
}

#[test]
fn a_client_that_goes_away_ends_the_request_at_the_upstream() {
    let (gone, is_gone) = std::sync::mpsc::channel();
    let gone = parking_lot::Mutex::new(gone);
    let origin = Origin::with(move |exchange| match exchange.path() {
        "/stall" => {
            let end = exchange.wait_for_end();
            gone.lock().send(()).unwrap();
            end
        }
        _ => by_path(exchange),
    });
    let gateway = Gateway::start(&proxied(&origin, ""));
    let mut client = gateway.client();
    client.send_request("GET", "/stall", &[]);
    origin.wait_for_count(1);
    drop(client);
    is_gone.recv_timeout(crate::support::PATIENCE).unwrap();
    gateway.wait_for_metric("tollgate_http_requests_total", &[("route", "all"), ("code", "499")], 1.0);
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 0.0);
}

#[test]
fn an_early_answer_of_the_upstream_reaches_a_client_that_is_still_sending() {
    let origin = Origin::with(|exchange| {
        exchange.keep = false;
        exchange.reply("413 Content Too Large", "connection: close\r\n", b"too much\n")?;
        while exchange.part()?.is_some() {}
        Ok(())
    });
    let gateway = Gateway::start(&proxied(&origin, ""));
    // the connection ends unless the rest of the body is short
    for (framing, closes) in [
        (("content-length", "1000000"), true),
        (("transfer-encoding", "chunked"), true),
        (("content-length", "2000"), false),
    ] {
        let mut client = gateway.client();
        client.send(request("POST", "/", &[framing]));
        client.send(if framing.1 == "chunked" { chunk([b'x'; 1000]) } else { vec![b'x'; 1000] });
        let head = client.wire.head().unwrap().unwrap();
        assert_eq!((head.word(1), head.field("connection") == Some("close")), ("413", closes), "{framing:?}");
        let (body, whole) = client.wire.content(Framing::of_response(&head, false));
        assert_eq!((body.as_slice(), whole), (&b"too much\n"[..], true));
    }
}

#[test]
fn a_slow_answer_within_the_timeout_is_no_failure() {
    let (go_on, told) = std::sync::mpsc::channel();
    let told = parking_lot::Mutex::new(told);
    let origin = Origin::with(move |exchange| {
        told.lock().recv().unwrap();
        exchange.reply("200 OK", "", b"slow\n")
    });
    let gateway = Gateway::start(&proxied(&origin, "timeouts: { first_byte: 20s, total: 20s }"));
    let mut client = gateway.client();
    client.send_request("GET", "/", &[]);
    origin.wait_for_count(1);
    gateway.wait_for_metric("tollgate_http_requests_in_flight", &[("route", "all")], 1.0);
    go_on.send(()).unwrap();
    assert_eq!(client.receive().text(), "slow\n");
}
